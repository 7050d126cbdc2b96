package steer

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Filters of ours are known by their name: it is what remains after a crash.
const filterName = "telegraf-agp"

// Preferences that are tried for a filter; somebody else may have the first.
const (
	firstPref = 1
	lastPref  = 64
)

// filter is a cls_bpf filter of ours. The qdisc below it stays when it goes: it does
// nothing by itself, and others may have come to use it.
type filter struct {
	nl *netlink.Handle // of the network namespace in which the filter was added
	*netlink.BpfFilter
}

// attachFilter adds a filter beside those of others. The qdisc is made if absent.
func attachFilter(i *iface, p *ebpf.Program, name string, parent uint32) (_ *filter, err error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer func() {
		if err != nil {
			nl.Close()
		}
	}()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: i.index(), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := nl.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("adding clsact: %w", err)
	}
	taken := map[uint16]bool{}
	others, err := nl.FilterList(i, parent)
	if err != nil {
		return nil, fmt.Errorf("listing filters: %w", err)
	}
	for _, o := range others {
		taken[o.Attrs().Priority] = true
	}
	for pref := uint16(firstPref); pref <= lastPref; pref++ {
		if taken[pref] {
			continue
		}
		f := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: i.index(), Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: pref,
			},
			Fd: p.FD(), Name: filterName + " " + name, DirectAction: true,
		}
		err := nl.FilterAdd(f)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("adding a filter to clsact: %w", err)
		}
		return &filter{nl: nl, BpfFilter: f}, nil
	}
	return nil, fmt.Errorf("adding a filter to clsact: all preferences up to %d are taken: %w", lastPref, unix.EEXIST)
}

// Close removes the filter. It is no error if it is gone, or its interface is.
func (f *filter) Close() error {
	err := f.nl.FilterDel(f.BpfFilter)
	f.nl.Close()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing our filter: %w", err)
	}
	return nil
}

// Sweep removes filters that an earlier process of this program left at clsact when it
// was killed, and returns their number. Links need no sweeping. It must not be called
// while another process has the interface.
func Sweep(ifindex int) (int, error) {
	i, err := lookup(ifindex)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(i, parent)
		if errors.Is(err, unix.EINVAL) { // no clsact
			continue
		}
		if err != nil {
			return n, i.wrap(fmt.Errorf("listing filters: %w", explain(err)))
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok && ours(b.Name) {
				if err := netlink.FilterDel(b); err != nil {
					return n, i.wrap(fmt.Errorf("removing filter %q: %w", b.Name, explain(err)))
				}
				n++
			}
		}
	}
	return n, nil
}
