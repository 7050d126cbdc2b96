package enforce

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/netns"
)

// TestAllowListHasOwnAddressesAndGatewaysOfEveryDefaultRoute: of both families, several
// at once, in another table, and an IPv4 route by way of an IPv6 neighbour; other
// routes do not count. It follows what changes.
func TestAllowListHasOwnAddressesAndGatewaysOfEveryDefaultRoute(t *testing.T) {
	ns := netns.Test(t)
	run := func(args ...string) {
		t.Helper()
		out, err := ns.Output("ip", args...)
		require.NoError(t, err, out)
	}
	var list []Allowed
	read := func() {
		t.Helper()
		require.NoError(t, ns.Do(func() (err error) { list, err = LocalAllowed(); return err }))
	}
	why := func(a string) string {
		for _, l := range list {
			if l.Prefix == host(netip.MustParseAddr(a)) {
				return l.Why
			}
		}
		return ""
	}
	peer := netns.Test(t)
	require.NoError(t, netns.Veth(netns.End{NS: ns, Name: "v0"}, netns.End{NS: peer, Name: "v1"}, 1, 1500))
	require.NoError(t, ns.Addr("v0", netip.MustParsePrefix("198.51.100.2/24")))
	if _, err := ns.Output("sysctl", "-w", "net.ipv6.conf.v0.disable_ipv6=0"); err != nil {
		t.Skip("no IPv6 in namespaces here")
	}
	run("address", "add", "2001:db8:9::2/64", "dev", "v0", "nodad")
	run("route", "add", "default", "nexthop", "via", "198.51.100.1", "nexthop", "via", "198.51.100.3")
	run("route", "add", "default", "via", "198.51.100.4", "table", "77")
	run("route", "add", "203.0.113.0/24", "via", "198.51.100.5")
	run("-6", "route", "add", "default", "via", "2001:db8:9::1")
	run("route", "add", "default", "via", "inet6", "2001:db8:9::4", "dev", "v0", "metric", "50")
	read()
	require.Equal(t, "own address of v0", why("198.51.100.2"))
	require.Equal(t, "own address of v0", why("2001:db8:9::2"))
	for _, gateway := range []string{"198.51.100.1", "198.51.100.3", "198.51.100.4", "2001:db8:9::1", "2001:db8:9::4"} {
		require.Equal(t, "default gateway", why(gateway), gateway)
	}
	require.Empty(t, why("198.51.100.5"))

	run("address", "add", "198.51.100.66/24", "dev", "v0")
	read()
	require.Equal(t, "own address of v0", why("198.51.100.66"))
}
