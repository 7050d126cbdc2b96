package live

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// A limit is that of the source, not of each interface that its frames pass.
func TestLimitIsTakenOnceFromAFrameThatPassesSeveralHooks(t *testing.T) {
	const pps = 200
	prefix := func(s string) netip.Prefix { return netip.MustParsePrefix(s) }
	for name, c := range map[string]struct {
		// set connects "h0" of a host, whose other end is far, to whoever asks.
		set   func(t *testing.T, host *netns.NS) (asks *netns.NS)
		hooks []string
	}{
		"bridge and its port": {func(t *testing.T, host *netns.NS) *netns.NS {
			require.NoError(t, host.Bridge("br0", "h0"))
			require.NoError(t, host.Addr("br0", hostNet))
			return host
		}, []string{"h0", "br0"}},
		"from one interface to the other": {func(t *testing.T, host *netns.NS) *netns.NS {
			near := netns.Test(t)
			require.NoError(t, netns.Veth(netns.End{NS: host, Name: "h1"}, netns.End{NS: near, Name: "n0"}, 1, 0))
			require.NoError(t, host.Addr("h0", hostNet))
			require.NoError(t, host.Addr("h1", prefix("172.20.0.1/24")))
			require.NoError(t, near.Addr("n0", prefix("172.20.0.2/24")))
			require.NoError(t, near.Netlink().RouteAdd(&netlink.Route{Gw: prefix("172.20.0.1/24").Addr().AsSlice()}))
			require.NoError(t, host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
			return near
		}, []string{"h0", "h1"}},
	} {
		t.Run(name, func(t *testing.T) {
			netns.NothingLeft(t)
			host, far := netns.Test(t), netns.Test(t)
			require.NoError(t, netns.Veth(netns.End{NS: host, Name: "h0"}, netns.End{NS: far, Name: "q0"}, 1, 0))
			asks := c.set(t, host)
			require.NoError(t, far.Addr("q0", farNet))
			require.NoError(t, far.Netlink().RouteAdd(&netlink.Route{Gw: hostNet.Addr().AsSlice()}))
			server, err := rig.Serve(far, farNet.Addr())
			require.NoError(t, err)
			t.Cleanup(server.Close)
			e := start(t, host, config(t, "mirror", c.hooks...))
			probe, err := rig.ProbeUDP(asks, farNet.Addr())
			require.NoError(t, err)
			t.Cleanup(func() { probe.Stop() })
			eventually(t, "answers", func() bool { return probe.Answered() > 200 })

			rule := &agppb.SteerRule{Prefix: farNet.Addr().String() + "/32", PacketsPerSecond: pps}
			require.NoError(t, e.Send(&agppb.Command{Command: &agppb.Command_SteerRules{SteerRules: &agppb.SteerRules{Add: []*agppb.SteerRule{rule}}}}))
			eventually(t, "a limit that is reached", func() bool { return target(e.Snapshot(), "rate_limited").GetPackets() > 0 })
			before, begin := probe.Answered(), time.Now()
			settle(2 * time.Second)
			rate := float64(probe.Answered()-before) / time.Since(begin).Seconds()
			t.Logf("%.0f answers per second, the limit is %d", rate, pps)
			require.InDelta(t, pps, rate, pps/5)
		})
	}
}
