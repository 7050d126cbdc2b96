package steer

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
)

// Mode is how an XDP program is attached.
type Mode uint8

// Modes, best first.
const (
	Native  Mode = iota + 1 // in the driver
	Generic                 // in the kernel's network core, behind the driver: slow, works everywhere
)

func (m Mode) String() string {
	switch m {
	case Native:
		return "native"
	case Generic:
		return "generic"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Frames begin with the IP header on interfaces of these kinds.
var rawKinds = map[string]bool{
	"none": true, "void": true, "ppp": true, "ipip": true, "tunnel6": true, "sit": true, "rawip": true,
}

var etherKinds = map[string]bool{"ether": true, "loopback": true}

// iface is what attaching needs to know of an interface.
type iface struct {
	netlink.Link
	raw bool
}

func lookup(ifindex int) (*iface, error) {
	l, err := netlink.LinkByIndex(ifindex)
	var absent netlink.LinkNotFoundError
	switch {
	case errors.As(err, &absent) || errors.Is(err, unix.ENODEV):
		return nil, fmt.Errorf("interface %d: %w", ifindex, ErrNoInterface)
	case err != nil:
		return nil, fmt.Errorf("interface %d: %w", ifindex, explain(err))
	}
	i := &iface{Link: l, raw: rawKinds[l.Attrs().EncapType]}
	if !i.raw && !etherKinds[l.Attrs().EncapType] {
		return nil, i.wrap(fmt.Errorf("%w: %q", ErrLinkType, l.Attrs().EncapType))
	}
	return i, nil
}

func (i *iface) index() int { return i.Attrs().Index }

func (i *iface) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("interface %s: %w", i.Attrs().Name, err)
}

// AttachMirror takes snapshots of what an interface receives and sends, at tcx or,
// where the kernel has none, at clsact. With xdp, what it receives is taken by an XDP
// program if the driver can; that sees frames before the kernel coalesces them, but
// attaching it may interrupt traffic. how says what was attached: "tcx", "clsact",
// "xdp native + tcx", "xdp native + clsact".
func (d *Datapath) AttachMirror(ifindex int, xdp bool) (how string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, err := d.free(ifindex)
	if err != nil {
		return "", err
	}
	if xdp && i.raw {
		return "", i.wrap(fmt.Errorf("%w: XDP needs Ethernet, this is %q", ErrLinkType, i.Attrs().EncapType))
	}
	ingress, egress := bpf.SteerProgAgpIngress, bpf.SteerProgAgpEgress
	if i.raw {
		ingress, egress = bpf.SteerProgAgpIngressIp, bpf.SteerProgAgpEgressIp
	}
	if xdp {
		// Not in generic mode: that is behind the kernel's coalescing, of which it knows nothing.
		_, err := d.attachXDP(i, bpf.SteerProgAgpMirror, []Mode{Native})
		switch {
		case err == nil:
			ingress, how = "", "xdp native + "
		case !errors.Is(err, ErrNoDriverXDP) && !errors.Is(err, ErrMTU):
			return "", i.wrap(err)
		}
	}
	hook, err := d.attachTC(i, ingress, egress)
	if err != nil {
		return "", i.wrap(errors.Join(err, d.detach(ifindex)))
	}
	return how + hook, nil
}

// AttachDivert redirects what an interface receives to the sockets, in the first of
// the modes that works. A Datapath diverts one interface, because sockets are
// found by the number of the queue.
func (d *Datapath) AttachDivert(ifindex int, modes []Mode) (Mode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, err := d.free(ifindex)
	if err != nil {
		return 0, err
	}
	switch {
	case d.divert != 0:
		return 0, i.wrap(fmt.Errorf("%w: this datapath diverts interface %d", ErrInUse, d.divert))
	case i.raw:
		return 0, i.wrap(fmt.Errorf("%w: XDP needs Ethernet, this is %q", ErrLinkType, i.Attrs().EncapType))
	}
	mode, err := d.attachXDP(i, bpf.SteerProgAgpDivert, modes)
	if err != nil {
		return 0, i.wrap(err)
	}
	d.divert = ifindex
	return mode, nil
}

// free returns an interface that this Datapath has nothing attached to.
func (d *Datapath) free(ifindex int) (*iface, error) {
	if d.closed {
		return nil, ErrClosed
	}
	i, err := lookup(ifindex)
	if err != nil {
		return nil, err
	}
	if len(d.attached[ifindex]) > 0 {
		return nil, i.wrap(ErrInUse)
	}
	return i, nil
}

// Detach removes what is attached to an interface, if anything is.
func (d *Datapath) Detach(ifindex int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.detach(ifindex)
}

func (d *Datapath) detach(ifindex int) error {
	var errs []error
	for _, c := range d.attached[ifindex] {
		errs = append(errs, c.Close())
	}
	delete(d.attached, ifindex)
	if d.divert == ifindex {
		d.divert = 0
	}
	return errors.Join(errs...)
}

func (d *Datapath) keep(i *iface, c io.Closer) {
	d.attached[i.index()] = append(d.attached[i.index()], c)
}

// attachTC attaches to ingress and egress; an empty name leaves one out.
func (d *Datapath) attachTC(i *iface, ingress, egress string) (string, error) {
	sides := []struct {
		program string
		attach  ebpf.AttachType
		parent  uint32
	}{
		{ingress, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
		{egress, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
	}
	tcx := haveTCX() == nil && !d.withoutTCX
	for _, s := range sides {
		if s.program == "" {
			continue
		}
		p, err := d.program(s.program, 0, 0)
		if err != nil {
			return "", err
		}
		if tcx {
			// Before others, so that what they drop has been seen; they still run.
			l, err := link.AttachTCX(link.TCXOptions{Interface: i.index(), Program: p, Attach: s.attach, Anchor: link.Head()})
			if err != nil {
				return "", explain(err)
			}
			d.keep(i, l)
			continue
		}
		f, err := attachFilter(i, p, s.program, s.parent)
		if err != nil {
			return "", explain(err)
		}
		d.keep(i, f)
	}
	if tcx {
		return "tcx", nil
	}
	return "clsact", nil
}

// attachXDP attaches a program in the first mode that works.
func (d *Datapath) attachXDP(i *iface, name string, modes []Mode) (Mode, error) {
	if len(modes) == 0 {
		return 0, fmt.Errorf("%w: no XDP mode is allowed", ErrConfig)
	}
	if err := foreignXDP(i.index()); err != nil {
		return 0, err
	}
	var errs []error
	for _, mode := range modes {
		var flags link.XDPAttachFlags
		switch mode {
		case Native:
			flags = link.XDPDriverMode
		case Generic:
			flags = link.XDPGenericMode
		default:
			return 0, fmt.Errorf("%w: XDP %s", ErrConfig, mode)
		}
		err := d.linkXDP(i, name, flags)
		if err == nil {
			return mode, nil
		}
		errs = append(errs, fmt.Errorf("XDP in %s mode: %w", mode, err))
		if errors.Is(err, ErrAttached) || errors.Is(err, ErrPermission) {
			break
		}
	}
	return 0, errors.Join(errs...)
}

func (d *Datapath) linkXDP(i *iface, name string, flags link.XDPAttachFlags) error {
	// Drivers take a program for an MTU beyond their buffers if it can do with several
	// of them; a few refuse it for other reasons and take the plain one.
	var errs []error
	for _, fragments := range []uint32{unix.BPF_F_XDP_HAS_FRAGS, 0} {
		p, err := d.program(name, fragments, 0)
		if name == bpf.SteerProgAgpDivert && flags == link.XDPDriverMode {
			// Few drivers tell times, and no kernel before 6.3 asks for them.
			if timed, err := d.program(bpf.SteerProgAgpDivertTimed, fragments|unix.BPF_F_XDP_DEV_BOUND_ONLY, uint32(i.index())); err == nil { //nolint:gosec // an index
				if l, err := link.AttachXDP(link.XDPOptions{Program: timed, Interface: i.index(), Flags: flags}); err == nil {
					d.keep(i, l)
					return nil
				}
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: i.index(), Flags: flags})
		if err == nil {
			d.keep(i, l)
			return nil
		}
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			if other := foreignXDP(i.index()); other != nil {
				return other
			}
			return &AttachedError{}
		}
		errs = append(errs, explain(err))
	}
	return i.xdpError(errors.Join(errs...), flags)
}

// largeMTU is where the buffers of drivers that use one page per frame end, or less.
const largeMTU = 3000

// xdpError gives the reason a name. Drivers tell it in words alone, which the system
// call does not return.
func (i *iface) xdpError(err error, flags link.XDPAttachFlags) error {
	mtu := i.Attrs().MTU
	switch {
	case errors.Is(err, ErrPermission):
		return err
	case errors.Is(err, unix.ERANGE) || flags == link.XDPDriverMode && mtu > largeMTU && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
		return fmt.Errorf("%w (it is %d): %w", ErrMTU, mtu, err)
	case flags == link.XDPDriverMode && errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrNoDriverXDP, err)
	}
	return err
}

// foreignXDP returns an AttachedError if an XDP program is attached to an interface.
func foreignXDP(ifindex int) error {
	i, err := lookup(ifindex)
	if err != nil {
		return err
	}
	x := i.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil
	}
	e := &AttachedError{ID: x.ProgId}
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId)); err == nil {
		if info, err := p.Info(); err == nil {
			e.Name = info.Name
		}
		_ = p.Close() // the name is a courtesy
	}
	return e
}
