package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/afpacket"
	"github.com/agp-net/telegraf-agp/agp/source/afxdp"
	"github.com/agp-net/telegraf-agp/agp/source/live"
	"github.com/agp-net/telegraf-agp/agp/source/mirror"
	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/agp/steer/port"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// ErrInterface says that an interface cannot be captured from any more.
var ErrInterface = errors.New("interface")

const (
	// idleSlack is how old the time that passes without packets is: younger packets may
	// still be on their way.
	idleSlack = time.Millisecond
	// drainLimit bounds how long an ending source reads what has come already.
	drainLimit = 500 * time.Millisecond
	// manyBuffers is the memory of which the start takes long enough to be told of, in bytes.
	manyBuffers = 512 << 20
)

// symmetricKey gives both directions of a flow one queue (repeated to the key's length).
var symmetricKey = []byte{0x6d, 0x5a}

// capture takes frames from running interfaces: it holds their ports, the programs attached to
// them and the source that reads what the programs deliver, and it is that source.
//
// Next, Stats and Close may be called from any goroutine: an engine whose plugin is gone
// takes everything back while the pipeline reads.
type capture struct {
	log   Log
	what  string // for people
	label string // of readings
	clock live.Clock
	since int64 // ns from the monotonic clock to realtime
	ports []*port.Port
	paths []*steer.Datapath
	watch context.CancelFunc

	ended  atomic.Bool           // nothing more comes
	reason atomic.Pointer[error] // why, nil if it was asked for

	mu       sync.Mutex // guards what follows and the source's single user
	src      source.Source
	until    time.Time // when an ending source stops reading; zero while it runs
	closed   bool
	stats    source.Stats
	counters []steer.Counters // of paths, as last read
}

// openCapture opens what s names.
func openCapture(s *agppb.Source, label string, log Log) (*capture, error) {
	l := s.GetLive()
	if len(l.GetInterfaces()) == 0 {
		return nil, fmt.Errorf("%w: source = %q without interfaces", ErrConfig, s.GetKind())
	}
	policy, err := steerPolicy(l.GetPolicy())
	if err != nil {
		return nil, err
	}
	c := &capture{log: log, label: label, clock: live.System()}
	c.since = c.clock.Realtime()
	if s.GetKind() == "divert" {
		err = c.divert(l, policy)
	} else {
		err = c.mirror(l, policy)
	}
	if err == nil {
		err = c.follow(l.GetInterfaces())
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// take opens a port and sets it up; s is then what was possible.
func (c *capture) take(name string, l *agppb.Live, s *port.Settings) (*port.Port, error) {
	p, err := port.Open(name, port.Options{StateDir: l.GetStateDir()})
	if err != nil {
		return nil, err
	}
	c.ports = append(c.ports, p)
	for _, r := range p.Recovered {
		if !r.Empty() {
			c.log(agppb.Log_WARN, "left by an earlier engine: %v", r)
		}
	}
	if n, err := steer.Sweep(p.IfIndex()); err != nil {
		return nil, err
	} else if n > 0 {
		c.log(agppb.Log_WARN, "%s: %d filters of an earlier engine removed", name, n)
	}
	s.Promiscuous = l.GetPromiscuous()
	err = p.Apply(*s)
	if errors.Is(err, port.ErrNotSupported) && s.RSSKey != nil {
		c.log(agppb.Log_WARN, "%v; flows are spread by the engine alone", err)
		s.RSSKey = nil
		err = p.Apply(*s)
	}
	return p, err
}

func (c *capture) load(l *agppb.Live, cfg steer.Config) (*steer.Datapath, error) {
	cfg.MaxBlocked = int(l.GetMaxBlocked())
	d, err := steer.Load(cfg)
	if err != nil {
		return nil, err
	}
	c.paths = append(c.paths, d)
	c.counters = append(c.counters, steer.Counters{})
	return d, nil
}

func (c *capture) mirror(l *agppb.Live, policy steer.Policy) error {
	names := l.GetInterfaces()
	for _, name := range names {
		if _, err := c.take(name, l, &port.Settings{}); err != nil {
			return err
		}
	}
	how, err := c.attachMirror(l, policy)
	if errors.Is(err, steer.ErrUnsupported) || errors.Is(err, steer.ErrPermission) {
		return c.withoutBPF(l, err)
	}
	if err != nil {
		return err
	}
	c.what = fmt.Sprintf("mirror %s (%s)", strings.Join(names, ", "), how)
	return nil
}

// withoutBPF mirrors by packet sockets, which need less of the kernel and one capability.
func (c *capture) withoutBPF(l *agppb.Live, why error) error {
	for _, d := range c.paths {
		if err := d.Close(); err != nil {
			return errors.Join(why, err)
		}
	}
	c.paths, c.counters = nil, nil
	names := l.GetInterfaces()
	src, err := afpacket.Open(afpacket.Config{
		Interfaces: names, SnapLen: int(l.GetSnapLen()), Promiscuous: l.GetPromiscuous(), Clock: c.clock,
		Duplicates: severalHooks(names),
	})
	if err != nil {
		return fmt.Errorf("%w; nor by AF_PACKET: %w", why, err)
	}
	if c.src != nil { // of rings that nothing fills
		why = errors.Join(why, c.src.Close())
	}
	c.src = src
	c.log(agppb.Log_WARN, "%v; capturing by AF_PACKET, without steering and block list", why)
	c.what = fmt.Sprintf("mirror %s (AF_PACKET)", strings.Join(names, ", "))
	return nil
}

func (c *capture) attachMirror(l *agppb.Live, policy steer.Policy) (how string, err error) {
	d, err := c.load(l, steer.Config{RingBytes: int(l.GetRingBytes()), SnapLen: int(l.GetSnapLen()), Policy: policy})
	if err != nil {
		return "", err
	}
	links := map[int]mirror.Link{}
	for i, name := range l.GetInterfaces() {
		hardware, err := hardwareType(name)
		if err != nil {
			return "", err
		}
		t, err := live.LinkType(hardware)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		links[c.ports[i].IfIndex()] = mirror.Link{Interface: uint32(i), Type: t}
	}
	// The reader is there before the first frame.
	c.src, err = mirror.Open(mirror.Config{
		Rings: d.Rings(), SnapLen: int(l.GetSnapLen()), Clock: c.clock,
		Links:      func(ifindex int) (mirror.Link, bool) { link, ok := links[ifindex]; return link, ok },
		Duplicates: severalHooks(l.GetInterfaces()),
		Dropped: func() map[string]uint64 {
			if n := c.read(0).RingFull.Frames; n > 0 {
				return map[string]uint64{"ring_full": n}
			}
			return nil
		},
	})
	if err != nil {
		return "", err
	}
	for _, p := range c.ports {
		if how, err = d.AttachMirror(p.IfIndex(), l.GetXdp()); err != nil {
			return "", err
		}
	}
	return how, nil
}

func (c *capture) divert(l *agppb.Live, policy steer.Policy) error {
	names := l.GetInterfaces()
	if len(names) != 1 {
		return fmt.Errorf("%w: source = \"divert\" with %d interfaces, allowed: one", ErrConfig, len(names))
	}
	if l.GetPeer() != "" {
		names = append(names, l.GetPeer())
	}
	modes := map[string][]steer.Mode{"native": {steer.Native}, "generic": {steer.Generic}}[l.GetXdpMode()]
	if modes == nil {
		modes = []steer.Mode{steer.Native, steer.Generic}
	}
	var ends []*afxdp.Port
	var how []string
	var buffers uint64 // bytes, at least
	for _, name := range names {
		s := port.Settings{Channels: int(l.GetChannels()), RXRing: int(l.GetRingEntries())}
		if l.GetRss() {
			s.RSSKey = symmetricKey
		}
		p, err := c.take(name, l, &s)
		if err != nil {
			return err
		}
		queues, err := receiveQueues(name)
		if err != nil {
			return err
		}
		d, err := c.load(l, steer.Config{Policy: policy, Sockets: queues})
		if err != nil {
			return err
		}
		// Before the sockets: whether they can have zero copy depends on the program. Until
		// they are there, frames pass.
		m, err := d.AttachDivert(p.IfIndex(), modes)
		if err != nil {
			return err
		}
		if m == steer.Generic {
			if err := wireFrames(p, s); err != nil {
				return err
			}
		}
		how = append(how, "xdp "+m.String())
		buffers += uint64(queues) * uint64(l.GetUmemFrames()) * afxdp.MinFrameSize //nolint:gosec // a small number
		ends = append(ends, &afxdp.Port{Interface: name, IfIndex: p.IfIndex(), Map: d.Sockets()})
	}
	cfg := afxdp.Config{
		Port: *ends[0], Frames: int(l.GetUmemFrames()), Offset: c.since, Timestamps: true,
		Mode: map[string]afxdp.Mode{"on": afxdp.ModeZeroCopy, "off": afxdp.ModeCopy}[l.GetZeroCopy()],
	}
	if len(ends) > 1 {
		cfg.Peer = ends[1]
	} else {
		cfg.SnapLen = steer.MaxSnapLen
	}
	if buffers >= manyBuffers {
		c.log(agppb.Log_INFO, "divert %s: %d MiB for packet buffers, which takes a while", strings.Join(names, ", "), buffers>>20)
	}
	src, err := afxdp.Open(cfg)
	if errors.Is(err, afxdp.ErrMemory) {
		return fmt.Errorf("umem_frames = %d: %w", l.GetUmemFrames(), err)
	}
	if err != nil {
		return err
	}
	c.src = src
	if len(names) > 1 {
		if ok, err := bridged(names[0], names[1]); err != nil {
			return err
		} else if !ok {
			c.log(agppb.Log_WARN, "%s and %s are not ports of one bridge: frames that the engine does not take (ARP and all else that is not IP), "+
				"and while no engine runs all of them, do not get from one to the other", names[0], names[1])
		}
	}
	for _, s := range src.Status() {
		if mode := "AF_XDP " + s.Mode.String(); !slices.Contains(how, mode) {
			how = append(how, mode)
		}
	}
	c.what = fmt.Sprintf("divert %s (%s)", strings.Join(names, ", "), strings.Join(how, ", "))
	return nil
}

// wireFrames switches off what would give generic XDP other frames than were on the wire:
// AF_XDP does not tell that a frame is several, or that a tag was taken out.
func wireFrames(p *port.Port, s port.Settings) error {
	info, err := p.Info()
	if err != nil {
		return err
	}
	s.Features = map[string]bool{}
	for _, name := range []string{"rx-gro", "rx-gro-hw", "rx-gro-list", "rx-udp-gro-forwarding", "rx-lro", "rx-vlan-hw-parse"} {
		if f, ok := info.Features[name]; ok && f.Active && !f.Fixed {
			s.Features[name] = false
		}
	}
	return p.Apply(s)
}

// follow watches the interfaces: one that goes ends the source.
func (c *capture) follow(names []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	c.watch = cancel
	for i, p := range c.ports {
		events, err := p.Watch(ctx)
		if err != nil {
			return err
		}
		go c.heed(names[min(i, len(names)-1)], events)
	}
	return nil
}

func (c *capture) heed(name string, events <-chan port.Event) {
	first := true
	for e := range events {
		switch e.Kind {
		case port.Gone, port.Back:
			c.fail(fmt.Errorf("%w %s: is gone", ErrInterface, name))
		case port.Down:
			c.log(agppb.Log_WARN, "interface %s is down", e.Name)
		case port.Up:
			if !first {
				c.log(agppb.Log_INFO, "interface %s is up", e.Name)
			}
		case port.Renamed:
			c.log(agppb.Log_INFO, "interface %s is now called %s", name, e.Name)
		case port.Lost:
			c.log(agppb.Log_WARN, "interface %s: not watched any more: %v", name, e.Err)
		}
		first = false
	}
}

// fail ends the source with a reason that is not an order.
func (c *capture) fail(err error) {
	c.reason.CompareAndSwap(nil, &err)
	c.Interrupt()
}

// Next implements source.Source. A source that ends first reads what came before the
// programs were detached.
func (c *capture) Next(b *source.Batch) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.ended.Load()
	switch {
	case c.closed:
		return 0, c.verdict()
	case ended && c.until.IsZero():
		c.until = time.Now().Add(drainLimit)
	}
	n, err := c.src.Next(b)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		if c.reason.Load() != nil {
			return 0, c.verdict() // the better explanation
		}
		return n, err
	case errors.Is(err, io.EOF), n == 0 && ended, ended && time.Now().After(c.until):
		return 0, c.verdict()
	}
	return n, nil
}

// verdict is what Next returns at the end.
func (c *capture) verdict() error {
	if why := c.reason.Load(); why != nil {
		return *why
	}
	return io.EOF
}

// Stats implements source.Source.
func (c *capture) Stats() source.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readStats()
	return c.stats
}

func (c *capture) readStats() {
	if c.closed || c.src == nil {
		return
	}
	c.stats = c.src.Stats()
	// These were delivered here; it is the peer's network that misses them.
	if n, ok := c.stats.Dropped[peerDropped]; ok {
		delete(c.stats.Dropped, peerDropped)
		if c.stats.Repaired == nil {
			c.stats.Repaired = map[string]uint64{}
		}
		c.stats.Repaired[peerDropped] = n
	}
}

const peerDropped = "peer_tx_dropped"

// Interrupt implements source.Source: nothing more comes in, what is there is read.
func (c *capture) Interrupt() {
	if c.ended.Swap(true) {
		return
	}
	for i, d := range c.paths {
		if err := d.Detach(c.ports[i%len(c.ports)].IfIndex()); err != nil {
			c.log(agppb.Log_WARN, "detach: %v", err)
		}
	}
	if len(c.paths) == 1 { // a mirror has several ports on one
		for _, p := range c.ports[1:] {
			_ = c.paths[0].Detach(p.IfIndex())
		}
	}
}

// Close takes everything back. It may be called beside Next and more than once.
func (c *capture) Close() error {
	c.Interrupt()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.watch != nil {
		defer c.watch() // it tells a port where its interface has gone
	}
	var errs []error
	if c.src != nil {
		errs = append(errs, c.src.Close())
		c.readStats() // with what was lost at the end
	}
	c.closed = true
	for i, d := range c.paths {
		c.read(i)
		errs = append(errs, d.Close())
	}
	for _, p := range c.ports {
		r, err := p.Close()
		if len(r.Left) > 0 {
			c.log(agppb.Log_WARN, "%v", r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// read returns the counters of a datapath, those of the last time if it is closed.
func (c *capture) read(i int) *steer.Counters {
	if n, err := c.paths[i].Counters(); err == nil {
		c.counters[i] = n
	}
	return &c.counters[i]
}

// now is the time that passes without packets.
func (c *capture) now() int64 { return c.clock.Monotonic() + c.since - int64(idleSlack) }

// steering appends what the programs did with the frames.
func (c *capture) steering(s *telemetry.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := map[string]int{}
	for i, d := range c.paths {
		c.read(i).Each(func(name string, n steer.Count) {
			k, ok := at[name]
			if !ok {
				k = len(s.Steering)
				at[name] = k
				s.Steering = append(s.Steering, telemetry.SteeringRow{Interface: c.label, Target: name})
			}
			r := &s.Steering[k]
			r.Packets += n.Frames
			r.Bytes += n.Bytes
			if name == "blocked" {
				r.Rules = uint64(d.Blocked())
			}
		})
	}
}

// rules changes the block list of all datapaths.
func (c *capture) rules(r *agppb.SteerRules) error {
	remove := make([]netip.Prefix, 0, len(r.GetRemove()))
	for _, text := range r.GetRemove() {
		p, err := parsePrefix(text)
		if err != nil {
			return err
		}
		remove = append(remove, p)
	}
	add := make([]steer.Rule, 0, len(r.GetAdd()))
	for _, m := range r.GetAdd() {
		p, err := parsePrefix(m.GetPrefix())
		if err != nil {
			return err
		}
		rule := steer.Rule{Prefix: p, Action: steer.Block, DryRun: m.GetDryRun()}
		if n := m.GetPacketsPerSecond(); n > 0 {
			rule.Action, rule.PacketsPerSecond = steer.RateLimit, n
		}
		add = append(add, rule)
	}
	var errs []error
	for _, d := range c.paths {
		if r.GetClear() {
			errs = append(errs, d.Clear())
		}
		if len(remove) > 0 {
			errs = append(errs, d.Remove(remove))
		}
		if len(add) > 0 {
			errs = append(errs, d.Add(add))
		}
	}
	return errors.Join(errs...)
}

func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%w: rule for %q: not an address or prefix", ErrConfig, text)
	}
	return p, nil
}

// policy changes what the engine sees.
func (c *capture) policy(p *agppb.SteerPolicy) error {
	policy, err := steerPolicy(p)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range c.paths {
		errs = append(errs, d.SetPolicy(policy))
	}
	return errors.Join(errs...)
}

func steerPolicy(p *agppb.SteerPolicy) (out steer.Policy, err error) {
	out.SampleN, out.SharePermille = p.GetSampleEvery(), p.GetSharePermille()
	for _, list := range []struct {
		text []string
		to   *[]steer.Class
	}{{p.GetEngine(), &out.Classes}, {p.GetKernel(), &out.Kernel}} {
		for _, text := range list.text {
			c, err := options.ParseClass(text)
			if err != nil {
				return out, fmt.Errorf("%w: %w", ErrConfig, err)
			}
			*list.to = append(*list.to, steer.Class{Protocol: c.Protocol, PortMin: c.PortMin, PortMax: c.PortMax})
		}
	}
	return out, nil
}

// hardwareType returns the ARPHRD_ number of an interface.
func hardwareType(name string) (uint16, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("%w: interface %q: %w", ErrConfig, name, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFHWADDR, req); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return req.Uint16(), nil
}

// severalHooks says that a frame can be seen more than once: at two interfaces, or where
// what is sent is received again.
func severalHooks(names []string) bool {
	return len(names) > 1 || slices.ContainsFunc(names, func(name string) bool {
		t, err := hardwareType(name)
		return err == nil && t == unix.ARPHRD_LOOPBACK
	})
}

// bridged says whether what the kernel keeps of one port of a pair can get to the other.
func bridged(a, b string) (bool, error) {
	var bridge [2]int
	for i, name := range []string{a, b} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		bridge[i] = l.Attrs().MasterIndex
	}
	return bridge[0] != 0 && bridge[0] == bridge[1], nil
}

// receiveQueues returns how many receive queues an interface has.
func receiveQueues(name string) (int, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return max(1, l.Attrs().NumRxQueues), nil
}

// randomKey makes the hashes of live traffic unpredictable.
func randomKey() (key [16]byte) {
	rand.Read(key[:]) // never fails: it ends the process instead
	return key
}

// Restore puts back what engines that crashed have left changed at ports, and removes
// their filters from interfaces that no engine has now.
func Restore(stateDir string, interfaces []string) (lines []string, err error) {
	reports, err := port.RestoreAll(stateDir)
	for _, r := range reports {
		lines = append(lines, r.String())
	}
	errs := []error{err}
	for _, name := range interfaces {
		l, err := netlink.LinkByName(name)
		var gone netlink.LinkNotFoundError
		if errors.As(err, &gone) {
			continue // with its filters
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		p, err := port.Open(name, port.Options{StateDir: stateDir})
		if errors.Is(err, port.ErrBusy) {
			lines = append(lines, err.Error())
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n, err := steer.Sweep(l.Attrs().Index)
		if n > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d filters removed", name, n))
		}
		_, cerr := p.Close()
		errs = append(errs, err, cerr)
	}
	return lines, errors.Join(errs...)
}
