package live

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

var (
	hostNet = netip.MustParsePrefix("10.9.0.1/24")
	farNet  = netip.MustParsePrefix("10.9.0.2/24")

	hostNet6 = netip.MustParsePrefix("fd09::1/64")
	farNet6  = netip.MustParsePrefix("fd09::2/64")
)

// lan is a host whose frames go through a bridge to a far end. Behind the bridge, at
// "q0", nothing is joined any more.
type lan struct {
	host, mid, far *netns.NS
	addr           netip.Addr // of the far end
	server         *rig.Server
	queueDrops     uint64 // of the kernel before
}

func newLAN(t *testing.T, offload bool) *lan { return newLANOf(t, offload, hostNet, farNet) }

func newLANOf(t *testing.T, offload bool, near, far netip.Prefix) *lan {
	t.Helper()
	mid := netns.Test(t)
	l := &lan{host: netns.Test(t), mid: mid, far: netns.Test(t), addr: far.Addr()}
	require.NoError(t, netns.Veth(netns.End{NS: l.host, Name: "h0"}, netns.End{NS: mid, Name: "p0"}, 2, 0))
	require.NoError(t, netns.Veth(netns.End{NS: mid, Name: "m1"}, netns.End{NS: l.far, Name: "q0"}, 2, 0))
	require.NoError(t, mid.Bridge("br0", "p0", "m1"))
	// A veth end joins frames (GRO) only if the other end does not send joined ones.
	for _, e := range []netns.End{{NS: mid, Name: "m1"}, {NS: l.far, Name: "q0"}, {NS: mid, Name: "p0"}} {
		require.NoError(t, e.NS.Offload(e.Name, false))
	}
	require.NoError(t, l.host.Offload("h0", offload))
	require.NoError(t, l.host.Addr("h0", near))
	require.NoError(t, l.far.Addr("q0", far))
	var err error
	l.queueDrops, err = rig.QueueDrops()
	require.NoError(t, err)
	l.server, err = rig.Serve(l.far, l.addr)
	require.NoError(t, err)
	t.Cleanup(l.server.Close)
	return l
}

// drops is what the links and the kernel's queues behind them have dropped since l
// was made.
func (l *lan) drops(t *testing.T) uint64 {
	t.Helper()
	queues, err := rig.QueueDrops()
	require.NoError(t, err)
	return queues - l.queueDrops + linkDrops(t, l.host, "h0") + linkDrops(t, l.mid, "p0") + linkDrops(t, l.mid, "m1") + linkDrops(t, l.far, "q0")
}

// exchanged is how many flows an exchange has.
const exchanged = 3 + 50 + 2

// exchange is a bulk transfer each way, many small requests, and UDP that the
// kernel cuts into segments.
func (l *lan) exchange(t *testing.T) {
	t.Helper()
	ask := func(times, send, receive int) {
		c, err := rig.Dial(l.host, l.addr)
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
	require.NoError(t, rig.SendSegmented(l.host, l.addr, 1200, 45_000, 50))
	require.NoError(t, rig.SendSegmented(l.host, l.addr, 1000, 10_500, 50)) // the last segment is shorter
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
	for name, c := range map[string]struct {
		offload, xdp bool
		near, far    netip.Prefix
	}{
		"offloads on":                   {true, false, hostNet, farNet},
		"offloads on, IPv6":             {true, false, hostNet6, farNet6},
		"offloads off":                  {false, false, hostNet, farNet},
		"offloads on, received at XDP":  {true, true, hostNet, farNet},
		"offloads off, received at XDP": {false, true, hostNet, farNet},
	} {
		t.Run(name, func(t *testing.T) {
			netns.NothingLeft(t)
			// Where a link loses frames the two ends see different ones.
			const attempts = 3
			for n := 1; !mirrored(t, c.near, c.far, c.offload, c.xdp); n++ {
				require.Less(t, n, attempts, "the links lost frames every time")
			}
		})
	}
}

// mirrored compares what the engine counts with the frames at the far end. It is false if
// the links in between have lost frames.
func mirrored(t *testing.T, near, far netip.Prefix, offload, xdp bool) bool {
	l := newLANOf(t, offload, near, far)
	path := filepath.Join(t.TempDir(), "q0.pcap")
	sniffer, err := l.far.Sniff("q0", path)
	require.NoError(t, err)
	conf := config(t, "mirror", "h0")
	conf.Source.Live.Xdp = xdp
	e := start(t, l.host, conf)
	l.exchange(t)
	quiet(t, sniffer)
	frames, err := sniffer.Stop()
	require.NoError(t, err)
	if n := l.drops(t); n > 0 {
		t.Logf("the links lost %d frames", n)
		e.End()
		return false
	}
	want, packets, err := rig.Replay(agpBinary(t), path)
	require.NoError(t, err)
	require.Equal(t, frames, packets)
	// What IPv6 says of itself may have come before one of the two looked.
	const talk = 20
	require.NoError(t, e.Settled(packets-talk, rig.Patience))
	_, err = e.Fresh()
	require.NoError(t, err)

	got, s := drain(t, e)
	require.Empty(t, lost(s), "frames that the engine missed")
	want, got = transfers(want), transfers(got)
	require.Equal(t, exchanged, len(got))
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
	// kernel does it after us. What is received is joined before tc, after XDP.
	require.Greater(t, coalesced, all/4)
	if offload && !xdp {
		require.Greater(t, coalesced, all*6/10, "received frames were not joined")
	}
	return true
}

// transfers are the records of TCP and UDP.
func transfers(list []rig.Record) []rig.Record {
	return slices.DeleteFunc(list, func(r rig.Record) bool { return r["protocol"] != "tcp" && r["protocol"] != "udp" })
}
