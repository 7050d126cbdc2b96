package port

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func addrs(s ...string) (out []netip.Addr) {
	for _, x := range s {
		out = append(out, netip.MustParseAddr(x))
	}
	return out
}

func TestAddressesAndDefaultGateways(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 1)
	for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		addr, err := netlink.ParseAddr(a)
		require.NoError(t, err)
		addr.Flags = unix.IFA_F_NODAD
		require.NoError(t, netlink.AddrAdd(l, addr))
	}
	got, err := Addresses()
	require.NoError(t, err)
	for _, a := range addrs("127.0.0.1", "::1", "192.0.2.1", "2001:db8::1") {
		require.Contains(t, got, a)
	}
	none, err := DefaultGateways()
	require.NoError(t, err)
	require.Empty(t, none)

	_, all4, _ := net.ParseCIDR("0.0.0.0/0")
	_, half, _ := net.ParseCIDR("10.0.0.0/8")
	for _, r := range []*netlink.Route{
		{LinkIndex: l.Attrs().Index, Gw: net.ParseIP("192.0.2.254")},
		{LinkIndex: l.Attrs().Index, Dst: all4, Gw: net.ParseIP("192.0.2.253"), Table: 77},
		{LinkIndex: l.Attrs().Index, Dst: half, Gw: net.ParseIP("192.0.2.9")},
		{LinkIndex: l.Attrs().Index, Gw: net.ParseIP("fe80::1")},
		{Dst: all4, Priority: 5, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: l.Attrs().Index, Gw: net.ParseIP("192.0.2.11")},
			{LinkIndex: l.Attrs().Index, Gw: net.ParseIP("192.0.2.12")},
		}},
		{LinkIndex: l.Attrs().Index, Dst: all4, Priority: 6, Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fe80::2")}},
		{LinkIndex: l.Attrs().Index, Dst: all4, Priority: 7}, // no next hop
	} {
		require.NoError(t, netlink.RouteAdd(r), "%+v", r)
	}
	got, err = DefaultGateways()
	require.NoError(t, err)
	require.Equal(t, addrs("192.0.2.11", "192.0.2.12", "192.0.2.253", "192.0.2.254", "fe80::1", "fe80::2"), got)
}

func TestStack(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 1)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
	if err := netlink.LinkAdd(br); err != nil {
		t.Skipf("no bridges here: %v", err)
	}
	require.NoError(t, netlink.LinkSetMaster(l, br))
	m := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "m", ParentIndex: br.Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	if err := netlink.LinkAdd(m); err != nil {
		t.Skipf("no macvlan: %v", err)
	}
	names := func(list []Link) (out []string) {
		for _, x := range list {
			out = append(out, x.Name+" "+x.Kind)
		}
		return out
	}
	lower, upper, err := Stack(l.Attrs().Index)
	require.NoError(t, err)
	require.Empty(t, lower, "the peer of a veth is no part of it")
	require.Equal(t, []string{"br bridge", "m macvlan"}, names(upper))
	lower, upper, err = Stack(m.Index)
	require.NoError(t, err)
	require.Equal(t, []string{"br bridge", "a veth"}, names(lower))
	require.Empty(t, upper)
	lower, _, err = Stack(br.Index)
	require.NoError(t, err)
	require.Equal(t, []string{"a veth"}, names(lower))
	_, _, err = Stack(9999)
	require.ErrorIs(t, err, ErrNoInterface)
}

// A parent in another namespace has an index that means another interface here.
func TestStackOfParentsElsewhere(t *testing.T) {
	here := netlink.LinkAttrs{Index: 2, Name: "vlan", ParentIndex: 3, NetNsID: -1}
	there := netlink.LinkAttrs{Index: 4, Name: "far", ParentIndex: 3, NetNsID: 0}
	up, down := stacking([]netlink.Link{
		&netlink.Vlan{LinkAttrs: here}, &netlink.Vlan{LinkAttrs: there},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 3, NetNsID: -1}},
	})
	require.Equal(t, map[int][]int{3: {2}}, up)
	require.Equal(t, map[int][]int{2: {3}}, down)
}
