package steer

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Feature is something of the kernel that is used if it is there, and what for.
type Feature struct {
	Name     string
	Use      string
	Required bool  // without it nothing is captured by BPF
	Err      error // nil: it is there
}

// Probe asks the kernel what it has. It changes nothing and attaches nothing; without
// privileges every answer is a PermissionError.
func Probe() []Feature {
	fs := []Feature{
		{"tc programs", "mirror", true, features.HaveProgramType(ebpf.SchedCLS)},
		{"ring buffers", "mirror", true, features.HaveMapType(ebpf.RingBuf)},
		{"prefix maps", "block list", true, features.HaveMapType(ebpf.LPMTrie)},
		{"XDP programs", "divert; mirror before coalescing", false, features.HaveProgramType(ebpf.XDP)},
		{"AF_XDP maps", "divert", false, features.HaveMapType(ebpf.XSKMap)},
		{"XDP frames of several buffers", "divert with a large MTU", false, haveXDPFragments()},
		{"tcx", "mirror that ends with the process (else clsact)", false, haveTCX()},
		{"batches of map entries", "fast changes of the block list", false, haveBatches()},
	}
	for i := range fs {
		if err := fs[i].Err; err != nil {
			if fs[i].Err = explain(err); !errors.Is(fs[i].Err, ErrPermission) {
				fs[i].Err = &UnsupportedError{Feature: fs[i].Name, Err: err}
			}
		}
	}
	return fs
}

// haveTCX asks for the programs of an interface that cannot be: a kernel that knows
// tcx misses the interface, another one does not know the question.
func haveTCX() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: math.MaxInt32, Attach: ebpf.AttachTCXIngress})
	switch {
	case err == nil || errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	return err
}

func haveXDPFragments() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		return err
	}
	return p.Close()
}

func haveBatches() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	_, err = m.BatchUpdate([]uint32{1}, []uint32{1}, nil)
	return errors.Join(err, m.Close())
}

// parseCPUs reads a list like "0-3,8".
func parseCPUs(list string) (map[int]bool, error) {
	cpus := map[int]bool{}
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err := strconv.Atoi(from)
		if err != nil {
			return nil, err
		}
		b, err := strconv.Atoi(to)
		if err != nil {
			return nil, err
		}
		if a < 0 || b < a || b > math.MaxUint16 {
			return nil, fmt.Errorf("not a range of CPUs: %q", part)
		}
		for c := a; c <= b; c++ {
			cpus[c] = true
		}
	}
	return cpus, nil
}

func ours(filter string) bool { return strings.HasPrefix(filter, filterName+" ") }
