package live

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

var (
	hostNet = netip.MustParsePrefix("10.9.0.1/24")
	farNet  = netip.MustParsePrefix("10.9.0.2/24")
)

// lan is a host whose frames go through a bridge to a far end. Behind the bridge, at
// "q0", nothing is joined any more.
type lan struct {
	host, far *netns.NS
	server    *rig.Server
}

func newLAN(t *testing.T, offload bool) *lan {
	t.Helper()
	l := &lan{host: netns.Test(t), far: netns.Test(t)}
	mid := netns.Test(t)
	require.NoError(t, netns.Veth(netns.End{NS: l.host, Name: "h0"}, netns.End{NS: mid, Name: "p0"}, 2, 0))
	require.NoError(t, netns.Veth(netns.End{NS: mid, Name: "m1"}, netns.End{NS: l.far, Name: "q0"}, 2, 0))
	require.NoError(t, mid.Bridge("br0", "p0", "m1"))
	for _, e := range []netns.End{{NS: mid, Name: "m1"}, {NS: l.far, Name: "q0"}} {
		require.NoError(t, e.NS.Offload(e.Name, false))
	}
	for _, e := range []netns.End{{NS: l.host, Name: "h0"}, {NS: mid, Name: "p0"}} {
		require.NoError(t, e.NS.Offload(e.Name, offload))
	}
	require.NoError(t, l.host.Addr("h0", hostNet))
	require.NoError(t, l.far.Addr("q0", farNet))
	var err error
	l.server, err = rig.Serve(l.far, farNet.Addr())
	require.NoError(t, err)
	t.Cleanup(l.server.Close)
	return l
}

// exchange is a bulk transfer each way, many small requests, and UDP that the
// kernel cuts into segments.
func (l *lan) exchange(t *testing.T) {
	t.Helper()
	ask := func(times, send, receive int) {
		c, err := rig.Dial(l.host, farNet.Addr())
		require.NoError(t, err)
		for range times {
			require.NoError(t, rig.Ask(c, send, receive))
		}
		require.NoError(t, c.Close())
	}
	ask(1, 16<<20, 0)
	ask(1, 0, 16<<20)
	ask(300, 200, 1000)
	for range 50 {
		ask(1, 300, 5000)
	}
	require.NoError(t, rig.SendSegmented(l.host, farNet.Addr(), 1200, 45_000, 50))
	require.NoError(t, rig.SendSegmented(l.host, farNet.Addr(), 1000, 10_500, 50)) // the last segment is shorter
}

// quiet waits until the sniffer has nothing new to write.
func quiet(t *testing.T, s *netns.Sniffer) {
	t.Helper()
	last, since := s.Frames(), time.Now()
	eventually(t, "no more frames", func() bool {
		if n := s.Frames(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	})
}

// Mirror with TSO, GSO and GRO on and off: TCP bulk transfer, small requests and UDP GSO give
// the same packets, bytes and sizes as the frames beyond the last offload; both
// directions of every flow are in one record.
func TestMirrorCountsFramesOnTheWire(t *testing.T) {
	for name, c := range map[string]struct{ offload, xdp bool }{
		"offloads on":                   {true, false},
		"offloads off":                  {false, false},
		"offloads on, received at XDP":  {true, true},
		"offloads off, received at XDP": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			netns.NothingLeft(t)
			l := newLAN(t, c.offload)
			path := filepath.Join(t.TempDir(), "q0.pcap")
			sniffer, err := l.far.Sniff("q0", path)
			require.NoError(t, err)
			conf := config(t, "mirror", "h0")
			conf.Source.Live.Xdp = c.xdp
			e := start(t, l.host, conf)
			l.exchange(t)
			quiet(t, sniffer)
			frames, err := sniffer.Stop()
			require.NoError(t, err)
			want, packets, err := rig.Replay(agpBinary(t), path)
			require.NoError(t, err)
			require.Equal(t, frames, packets)
			require.NoError(t, e.Settled(packets, rig.Patience))

			got, s := drain(t, e)
			require.Empty(t, lost(s), "frames that the engine missed")
			require.Equal(t, packets, s.GetEngine().GetPacketsSeen())
			require.Empty(t, rig.Difference(want, got))
			var coalesced, all uint64
			for _, r := range got {
				coalesced += r.Number("packets_coalesced")
				all += r.Number("packets_fwd") + r.Number("packets_rev")
				if r["protocol"] == "tcp" {
					require.Positive(t, r.Number("packets_fwd"), r)
					require.Positive(t, r.Number("packets_rev"), r)
				}
			}
			t.Logf("%d frames on the wire, %d of them came to the engine several at a time", all, coalesced)
			// TCP hands over several at a time even where the port cannot split them: the
			// kernel does it after us.
			require.Greater(t, coalesced, all/4)
		})
	}
}
