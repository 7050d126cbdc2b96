package steer

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
)

// MaxClasses is the number of classes in a Policy.
const MaxClasses = bpf.MaxClasses

// Class is a class of traffic: an IP protocol, a range of ports, or both. It matches
// both directions of a flow: either port may be in the range. Protocols without ports
// and, since only the first one has them, fragments are in no range of ports; a
// fragment that a range might concern stays with the kernel if it is a
// question of divert, and is mirrored otherwise.
type Class struct {
	Protocol uint8 // 0: any
	PortMin  uint16
	PortMax  uint16 // 0: any port, or none
}

// Policy says which frames go to the engine. The zero value: all. Frames that are
// not understood (not IP, or rare encapsulations) stay with the kernel in divert and
// are mirrored in mirror. All conditions must hold:
type Policy struct {
	Classes []Class // go to the engine; empty: all
	Kernel  []Class // stay with the kernel, also if they are in Classes
	// SampleN is 1:N by frame. A coalesced frame is one. 0 and 1: all.
	SampleN uint32
	// SharePermille is the share of flows, by hash, both directions of each. 0 and 1000: all.
	SharePermille uint32
	IPOnly        bool // do not mirror what is not understood
}

func (p Policy) encode() (*bpf.Policy, error) {
	if n := len(p.Classes) + len(p.Kernel); n > MaxClasses {
		return nil, fmt.Errorf("%w: %d classes of traffic, at most %d are possible", ErrConfig, n, MaxClasses)
	}
	if p.SharePermille > 1000 {
		return nil, fmt.Errorf("%w: a share of %d per mille", ErrConfig, p.SharePermille)
	}
	out := &bpf.Policy{SampleN: p.SampleN, Share: bpf.ShareAll, Engine: uint32(len(p.Classes))} //nolint:gosec // at most 32
	if p.SharePermille > 0 {
		out.Share = (p.SharePermille*bpf.ShareAll + 999) / 1000
	}
	if p.IPOnly {
		out.IPOnly = 1
	}
	for i, c := range append(append([]Class{}, p.Classes...), p.Kernel...) {
		if c.PortMin > c.PortMax {
			return nil, fmt.Errorf("%w: ports %d to %d", ErrConfig, c.PortMin, c.PortMax)
		}
		switch c.Protocol {
		case 0, 6, 17, 132: // any, TCP, UDP, SCTP
		default:
			if c.PortMax != 0 {
				return nil, fmt.Errorf("%w: IP protocol %d has no ports", ErrConfig, c.Protocol)
			}
		}
		to := &out.Class[i]
		to.Protocol, to.PortMin, to.PortMax = c.Protocol, c.PortMin, c.PortMax
		if i < len(p.Classes) {
			to.Engine = 1
		}
		out.Classes++
	}
	return out, nil
}

// SetPolicy exchanges the policy; no frame sees a mixture.
func (d *Datapath) SetPolicy(p Policy) error {
	encoded, err := p.encode()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	return d.setPolicy(encoded)
}

func (d *Datapath) setPolicy(p *bpf.Policy) error {
	spec := d.spec.Maps[bpf.SteerMapPolicies].InnerMap.Copy()
	spec.Name = "agp_policy"
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return fmt.Errorf("creating a policy: %w", explain(err))
	}
	err = m.Put(uint32(0), p)
	if err == nil {
		err = d.maps[bpf.SteerMapPolicies].Put(uint32(0), m)
	}
	if err = errors.Join(err, m.Close()); err != nil { // the outer map keeps it alive
		return fmt.Errorf("writing the policy: %w", err)
	}
	return nil
}
