package port

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses returns all IPv4 and IPv6 addresses of this network namespace, sorted.
func Addresses() ([]netip.Addr, error) {
	list, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, ip.Unmap())
		}
	}
	return sorted(out), nil
}

// DefaultGateways returns the next hops of all default routes, IPv4 and IPv6, of all
// routing tables, sorted.
func DefaultGateways() ([]netip.Addr, error) {
	var out []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("read routes: %w", err)
		}
		for _, r := range routes {
			if !isDefault(r) {
				continue
			}
			out = appendHop(out, r.Gw, r.Via)
			for _, h := range r.MultiPath {
				out = appendHop(out, h.Gw, h.Via)
			}
		}
	}
	return sorted(out), nil
}

// whole repeats a read that a change has interrupted.
func whole[T any](read func() ([]T, error)) (list []T, err error) {
	for range 10 {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

func appendHop(out []netip.Addr, gw []byte, via netlink.Destination) []netip.Addr {
	if v, ok := via.(*netlink.Via); ok && v != nil {
		gw = v.Addr
	}
	if ip, ok := netip.AddrFromSlice(gw); ok && !ip.IsUnspecified() {
		out = append(out, ip.Unmap())
	}
	return out
}

func sorted(a []netip.Addr) []netip.Addr {
	slices.SortFunc(a, netip.Addr.Compare)
	return slices.Compact(a)
}

// Link is an interface in a stack.
type Link struct {
	IfIndex int
	Name    string
	Kind    string // "bridge", "vlan", "macvlan", "veth", …, "device" for hardware
}

// Stack returns the interfaces that a frame of this one passes too, nearest first:
// lower ones, which it is made of (the parent of a VLAN or macvlan, the ports of a
// bridge or bond), and upper ones, which are made of it.
func Stack(ifindex int) (lower, upper []Link, err error) {
	list, err := whole(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("read interfaces: %w", err)
	}
	if !slices.ContainsFunc(list, func(l netlink.Link) bool { return l.Attrs().Index == ifindex }) {
		return nil, nil, fmt.Errorf("interface %d: %w", ifindex, ErrNoInterface)
	}
	up, down := stacking(list)
	return walk(list, ifindex, down), walk(list, ifindex, up), nil
}

// stacking returns for each interface those directly above and below it.
func stacking(list []netlink.Link) (up, down map[int][]int) {
	up, down = map[int][]int{}, map[int][]int{}
	on := func(upper, lower int) {
		up[lower] = append(up[lower], upper)
		down[upper] = append(down[upper], lower)
	}
	for _, l := range list {
		a := l.Attrs()
		if a.MasterIndex != 0 {
			on(a.MasterIndex, a.Index)
		}
		// IFLA_LINK of a veth is its peer, of another namespace it is no index of ours.
		if a.ParentIndex != 0 && a.ParentIndex != a.Index && a.NetNsID < 0 && l.Type() != "veth" {
			on(a.Index, a.ParentIndex)
		}
	}
	return up, down
}

func walk(list []netlink.Link, from int, next map[int][]int) (out []Link) {
	seen := map[int]bool{from: true}
	for todo := next[from]; len(todo) > 0; todo = todo[1:] {
		if seen[todo[0]] {
			continue
		}
		seen[todo[0]] = true
		for _, l := range list {
			if a := l.Attrs(); a.Index == todo[0] {
				out = append(out, Link{a.Index, a.Name, l.Type()})
			}
		}
		todo = append(todo[:len(todo):len(todo)], next[todo[0]]...)
	}
	return out
}
