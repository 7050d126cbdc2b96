package steer

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"os"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
)

// Limits and defaults of Config.
const (
	DefaultRingBytes   = 4 << 20
	DefaultSnapLen     = 256
	DefaultMaxBlocked  = 1 << 20
	DefaultIndirection = 128

	MinSnapLen     = 64
	MaxSnapLen     = 256
	MaxIndirection = 1 << 16
	maxRingBytes   = 1 << 30
	maxSockets     = 1 << 16
	maxMaxBlocked  = 1 << 26

	// idleRingBytes is the ring of a CPU that is not there when a Datapath is
	// loaded: machines announce many more than they have.
	idleRingBytes = 64 << 10
)

// Config says what Load makes. The zero value is a mirror with the defaults.
type Config struct {
	RingBytes  int // ring of each CPU, a power of two of at least a page; 0: DefaultRingBytes
	SnapLen    int // bytes of a frame in a snapshot; 0: DefaultSnapLen
	MaxBlocked int // rules in the block list; 0: DefaultMaxBlocked
	Policy     Policy

	// For divert. A socket's index is rx_queue*PerQueue + k, k < PerQueue.
	Sockets     int // entries for sockets; 0: 1
	PerQueue    int // sockets of a queue; 0: 1
	Indirection int // entries of the indirection table, a power of two; 0: DefaultIndirection
}

// withDefaults returns the config with zeros filled in, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	for _, d := range []struct {
		v        *int
		preset   int
		name     string
		min, max int
		power    bool
	}{
		{&c.RingBytes, DefaultRingBytes, "ring bytes", os.Getpagesize(), maxRingBytes, true},
		{&c.SnapLen, DefaultSnapLen, "snapshot length", MinSnapLen, MaxSnapLen, false},
		{&c.MaxBlocked, DefaultMaxBlocked, "maximum of blocked", 1, maxMaxBlocked, false},
		{&c.Sockets, 1, "number of sockets", 1, maxSockets, false},
		{&c.PerQueue, 1, "sockets per queue", 1, maxSockets, false},
		{&c.Indirection, DefaultIndirection, "indirection entries", 1, MaxIndirection, true},
	} {
		if *d.v == 0 {
			*d.v = d.preset
		}
		if *d.v < d.min || *d.v > d.max {
			return c, fmt.Errorf("%w: %s %d is not between %d and %d", ErrConfig, d.name, *d.v, d.min, d.max)
		}
		if d.power && bits.OnesCount(uint(*d.v)) != 1 {
			return c, fmt.Errorf("%w: %s %d is not a power of two", ErrConfig, d.name, *d.v)
		}
	}
	return c, nil
}

// Names of the maps of the programs' constants and variables.
const (
	constants = ".rodata"
	variables = ".bss"
)

// Datapath is the loaded programs and their maps.
type Datapath struct {
	cfg  Config
	spec *ebpf.CollectionSpec

	mu       sync.Mutex
	closed   bool
	maps     map[string]*ebpf.Map
	rings    []*ebpf.Map
	programs map[string]*ebpf.Program // loaded so far
	attached map[int][]io.Closer      // by interface
	divert   int                      // interface that is diverted, 0: none
	// withoutTCX is set by tests of what older kernels do.
	withoutTCX bool

	// What the block list holds; the kernel does not count it.
	hosts4 map[[4]byte]struct{}
	hosts6 map[[16]byte]struct{}
	nets   map[netip.Prefix]struct{}
	lists  uint32 // as last written to the kernel
}

// Load creates the maps. Programs are loaded when they are first attached.
func Load(cfg Config) (*Datapath, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	policy, err := cfg.Policy.encode()
	if err != nil {
		return nil, err
	}
	spec, err := bpf.LoadSteer()
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("counting CPUs: %w", err)
	}
	for name, v := range map[string]uint32{
		bpf.SteerVarSnapLen:         uint32(cfg.SnapLen),         //nolint:gosec // checked above
		bpf.SteerVarIndirectionMask: uint32(cfg.Indirection - 1), //nolint:gosec // checked above
		bpf.SteerVarPerQueue:        uint32(cfg.PerQueue),        //nolint:gosec // checked above
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	if err := spec.Variables[bpf.SteerVarRealtime].Set(realtime()); err != nil {
		return nil, fmt.Errorf("setting the clock: %w", err)
	}
	for name, n := range map[string]int{
		bpf.SteerMapHost4:       cfg.MaxBlocked,
		bpf.SteerMapHost6:       cfg.MaxBlocked,
		bpf.SteerMapNet4:        cfg.MaxBlocked,
		bpf.SteerMapNet6:        cfg.MaxBlocked,
		bpf.SteerMapRings:       cpus,
		bpf.SteerMapSockets:     cfg.Sockets,
		bpf.SteerMapIndirection: cfg.Indirection,
	} {
		spec.Maps[name].MaxEntries = uint32(n) //nolint:gosec // checked above
	}

	d := &Datapath{
		cfg: cfg, spec: spec,
		programs: map[string]*ebpf.Program{}, attached: map[int][]io.Closer{},
		hosts4: map[[4]byte]struct{}{}, hosts6: map[[16]byte]struct{}{}, nets: map[netip.Prefix]struct{}{},
	}
	// Not a Collection: it would map the variables into memory, and hold their maps
	// until the garbage collector comes.
	var m struct {
		bpf.SteerMaps
		Constants *ebpf.Map `ebpf:".rodata"`
		Variables *ebpf.Map `ebpf:".bss"`
	}
	if err := spec.LoadAndAssign(&m, nil); err != nil {
		return nil, fmt.Errorf("creating BPF maps: %w", explain(err))
	}
	d.maps = map[string]*ebpf.Map{
		bpf.SteerMapCounters: m.Counters, bpf.SteerMapHost4: m.Host4, bpf.SteerMapHost6: m.Host6,
		bpf.SteerMapNet4: m.Net4, bpf.SteerMapNet6: m.Net6, bpf.SteerMapPolicies: m.Policies,
		bpf.SteerMapRings: m.Rings, bpf.SteerMapIndirection: m.Indirection, bpf.SteerMapSockets: m.Sockets, bpf.SteerMapJudged: m.Judged,
		constants: m.Constants, variables: m.Variables,
	}
	if err := d.fill(policy, cpus); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// fill gives the maps their first content.
func (d *Datapath) fill(policy *bpf.Policy, cpus int) error {
	online, err := onlineCPUs()
	if err != nil {
		return err
	}
	inner := d.spec.Maps[bpf.SteerMapRings].InnerMap
	for cpu := range cpus {
		s := inner.Copy()
		s.Name = fmt.Sprintf("agp_ring_%d", cpu)
		s.MaxEntries = uint32(d.cfg.RingBytes) //nolint:gosec // checked
		if !online[cpu] {
			s.MaxEntries = min(s.MaxEntries, idleRingBytes)
		}
		ring, err := ebpf.NewMap(s)
		if err != nil {
			return fmt.Errorf("creating the ring of CPU %d (%d bytes): %w", cpu, s.MaxEntries, explain(err))
		}
		d.rings = append(d.rings, ring)
		if err := d.maps[bpf.SteerMapRings].Put(uint32(cpu), ring); err != nil { //nolint:gosec // a small number
			return fmt.Errorf("installing the ring of CPU %d: %w", cpu, err)
		}
	}
	entries := make([]uint32, d.cfg.Indirection)
	for i := range entries {
		entries[i] = uint32(i % d.cfg.PerQueue) //nolint:gosec // a small number
	}
	if err := d.setIndirection(entries); err != nil {
		return err
	}
	return d.setPolicy(policy)
}

// onlineCPUs reads which CPUs run; a list like "0-3,8".
func onlineCPUs() (map[int]bool, error) {
	const path = "/sys/devices/system/cpu/online"
	list, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("which CPUs are online: %w", err)
	}
	cpus, err := parseCPUs(string(list))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cpus, nil
}

// program returns a program and loads it if this is its first use. A program that asks
// the device is bound to one, which ifindex names; otherwise it is 0.
func (d *Datapath) program(name string, flags, ifindex uint32) (*ebpf.Program, error) {
	key := fmt.Sprint(name, " ", flags, " ", ifindex)
	if p := d.programs[key]; p != nil {
		return p, nil
	}
	spec := d.spec.Copy()
	p := spec.Programs[name]
	p.Flags |= flags
	p.Ifindex = ifindex
	spec.Programs = map[string]*ebpf.ProgramSpec{name: p}
	spec.Variables = nil
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: d.maps})
	if err != nil {
		return nil, fmt.Errorf("loading program %s: %w", name, explain(err))
	}
	defer coll.Close()
	d.programs[key] = coll.DetachProgram(name)
	return d.programs[key], nil
}

// Rings returns the rings of snapshots, one per possible CPU, by its number. They
// belong to the Datapath and end with it. Records are as package bpf says; a ring is
// never woken up for: its reader polls.
func (d *Datapath) Rings() []*ebpf.Map { return d.rings }

// Sockets returns the map of AF_XDP sockets: index rx_queue*PerQueue + k. It belongs to
// the Datapath.
func (d *Datapath) Sockets() *ebpf.Map { return d.maps[bpf.SteerMapSockets] }

// SetIndirection writes the table from the hash's low bits to the socket of a queue
// (k < PerQueue). An entry changes at once, each by itself.
func (d *Datapath) SetIndirection(entries []uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if len(entries) != d.cfg.Indirection {
		return fmt.Errorf("%w: %d indirection entries, the table has %d", ErrConfig, len(entries), d.cfg.Indirection)
	}
	for i, e := range entries {
		if int64(e) >= int64(d.cfg.PerQueue) {
			return fmt.Errorf("%w: indirection entry %d is socket %d, a queue has %d", ErrConfig, i, e, d.cfg.PerQueue)
		}
	}
	return d.setIndirection(entries)
}

func (d *Datapath) setIndirection(entries []uint32) error {
	m := d.maps[bpf.SteerMapIndirection]
	for i, e := range entries {
		if err := m.Put(uint32(i), e); err != nil { //nolint:gosec // a small number
			return fmt.Errorf("writing indirection entry %d: %w", i, err)
		}
	}
	return nil
}

// Close detaches everything and frees it. It may be called again.
func (d *Datapath) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for ifindex := range d.attached {
		errs = append(errs, d.detach(ifindex))
	}
	for _, p := range d.programs {
		errs = append(errs, p.Close())
	}
	for _, r := range d.rings {
		errs = append(errs, r.Close())
	}
	for _, m := range d.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
