package live

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// A frame that passes several of our hooks is counted once.
func TestFrameThatPassesSeveralHooksCountsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(t *testing.T, host, far *netns.NS)
		hooks []string
	}{
		"bridge and its port": {func(t *testing.T, host, _ *netns.NS) {
			require.NoError(t, host.Bridge("br0", "h0"))
			require.NoError(t, host.Addr("br0", hostNet))
		}, []string{"h0", "br0"}},
		"macvlan and its parent": {func(t *testing.T, host, _ *netns.NS) {
			require.NoError(t, host.Macvlan("mv0", "h0"))
			require.NoError(t, host.Addr("mv0", hostNet))
		}, []string{"h0", "mv0"}},
		"both ends of a veth pair and a bridge between": {func(t *testing.T, host, _ *netns.NS) {
			require.NoError(t, netns.Veth(netns.End{NS: host, Name: "va"}, netns.End{NS: host, Name: "vb"}, 1, 0))
			require.NoError(t, host.Bridge("br0", "h0", "vb"))
			require.NoError(t, host.Addr("va", hostNet))
		}, []string{"va", "vb"}},
	} {
		t.Run(name, func(t *testing.T) {
			netns.NothingLeft(t)
			host, far := netns.Test(t), netns.Test(t)
			require.NoError(t, netns.Veth(netns.End{NS: host, Name: "h0"}, netns.End{NS: far, Name: "q0"}, 1, 0))
			for _, e := range []netns.End{{NS: host, Name: "h0"}, {NS: far, Name: "q0"}} {
				require.NoError(t, e.NS.Offload(e.Name, false))
			}
			c.set(t, host, far)
			require.NoError(t, far.Addr("q0", farNet))
			server, err := rig.Serve(far, farNet.Addr())
			require.NoError(t, err)
			t.Cleanup(server.Close)
			path := filepath.Join(t.TempDir(), "q0.pcap")
			sniffer, err := far.Sniff("q0", path)
			require.NoError(t, err)
			conf := config(t, "mirror", c.hooks...)
			e := start(t, host, conf)

			for _, portions := range [][2]int{{200_000, 10}, {10, 200_000}, {100, 100}} {
				conn, err := rig.Dial(host, farNet.Addr())
				require.NoError(t, err)
				for range 20 {
					require.NoError(t, rig.Ask(conn, portions[0], portions[1]))
				}
				require.NoError(t, conn.Close())
			}
			probe, err := rig.ProbeUDP(host, farNet.Addr())
			require.NoError(t, err)
			eventually(t, "answers", func() bool { return probe.Answered() > 200 })
			probe.Stop()

			quiet(t, sniffer)
			_, err = sniffer.Stop()
			require.NoError(t, err)
			want, packets, err := rig.Replay(agpBinary(t), path)
			require.NoError(t, err)
			eventually(t, "all frames", func() bool { return recorded(e.Snapshot()) >= packets })
			got, s := drain(t, e)
			require.Empty(t, lost(s))
			require.Empty(t, rig.Difference(want, got))
			t.Logf("%d frames, %d seen again and not counted", packets, s.GetEngine().GetDrops()["duplicate"])
			require.GreaterOrEqual(t, s.GetEngine().GetDrops()["duplicate"], packets*9/10)
		})
	}
}

// recorded is the number of frames that were counted, or dropped for what they are.
func recorded(s *agppb.Snapshot) uint64 {
	return rig.Seen(s) - s.GetEngine().GetDrops()["duplicate"]
}
