package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/netns"
)

// ARP is not for the engine: without a bridge the hosts at a pair would not find each other.
func TestAPairWithoutABridgeOfItsOwnIsNoticed(t *testing.T) {
	ns, hosts := netns.Test(t), netns.Test(t)
	for _, name := range []string{"in", "out", "other"} {
		require.NoError(t, netns.Veth(netns.End{NS: ns, Name: name}, netns.End{NS: hosts, Name: name}, 1, 0))
	}
	check := func(a, b string) (ok bool) {
		require.NoError(t, ns.Do(func() (err error) { ok, err = bridged(a, b); return err }))
		return ok
	}
	require.False(t, check("in", "out"))
	require.NoError(t, ns.Bridge("br0", "in", "out"))
	require.True(t, check("in", "out"))
	require.NoError(t, ns.Bridge("br1", "other"))
	require.False(t, check("in", "other"), "two bridges")
	require.Error(t, ns.Do(func() error { _, err := bridged("in", "nothing"); return err }))
}
