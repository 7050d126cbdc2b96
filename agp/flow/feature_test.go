package flow

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// The numbered tests are the sixteen feature errors known from other flow meters;
// 14 (partitions), 15 (sketches) and 16 (other programs) are where those parts
// meet: agp/pipeline/cpu, agp/sketch and tests/oracle.

func TestFeature01CloseAfterBothFinsAndAck(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoTCP)
	f.handshake()
	f.tcp(ms, false, finack, 101, 501, 0)
	f.tcp(ms, true, ack, 501, 102, 0)
	f.tcp(ms, true, psh, 501, 102, 10) // half closed: the server still sends
	f.tcp(ms, false, ack, 102, 511, 0)
	f.r.t.Tick((f.now/TickNs + 15) * TickNs)
	require.Empty(t, f.r.records, "the first FIN alone must not close")
	f.tcp(ms, true, finack, 511, 102, 0)
	f.tcp(ms, false, ack, 102, 512, 0)
	f.tcp(ms, false, ack, 102, 512, 0) // late
	f.r.t.Tick((f.now/TickNs + 20) * TickNs)
	require.Len(t, f.r.records, 1)
	require.Equal(t, telemetry.EndTCP, f.r.records[0].EndReason)
	require.EqualValues(t, 10, total(&f.r.records[0]), "the late ACK belongs to the closed flow")
	require.Zero(t, f.r.t.Active())
	require.Len(t, f.flush(), 1, "and opened nothing")
}

func TestFeature01CloseAfterReset(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoTCP)
	f.tcp(0, false, syn, 100, 0, 0)
	f.tcp(ms, true, rst|ack, 0, 101, 0)
	f.r.t.Tick((f.now/TickNs + 20) * TickNs)
	require.Len(t, f.r.records, 1)
	require.Equal(t, telemetry.EndTCP, f.r.records[0].EndReason)
}

func TestFeature02ReuseOfAKeyOpensANewRecord(t *testing.T) {
	t.Run("after close", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoTCP)
		f.handshake()
		f.closing()
		f.tcp(s, false, syn, 9000, 0, 0)
		require.Len(t, f.r.records, 1)
		require.Equal(t, telemetry.EndTCP, f.r.records[0].EndReason)
		require.Len(t, f.flush(), 2)
	})
	t.Run("after idle", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoUDP)
		f.add(f.packet(0, false, 10))
		f.add(f.packet(60*s+1, false, 10))
		require.Len(t, f.flush(), 2)
		require.Equal(t, telemetry.EndIdle, f.r.records[0].EndReason)
		require.Equal(t, telemetry.EndFlushed, f.r.records[1].EndReason)
	})
	t.Run("SYN of another connection in an open flow", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoTCP)
		f.handshake()
		f.tcp(s, false, syn, 77777, 0, 0)
		require.Len(t, f.flush(), 2)
	})
	t.Run("SYN of another connection after the active timeout, with and without a tick between", func(t *testing.T) {
		for _, tick := range []bool{false, true} {
			f := newFeed(Config{IdleNs: 5 * s, ActiveNs: 8 * s}, packet.ProtoTCP)
			f.handshake()
			f.tcp(4*s, false, psh, 101, 501, 0)
			f.tcp(3900*ms, false, psh, 101, 501, 0)
			if tick {
				f.r.t.Tick(t0 + 9*s)
			}
			f.tcp(2*s, false, syn, 50, 0, 0)
			r := f.flush()
			require.Len(t, r, 2)
			require.Equal(t, telemetry.EndActive, r[0].EndReason)
			require.Zero(t, r[1].Dir[0].Retransmits, "the new connection knows nothing of the old one's sequence numbers")
			require.EqualValues(t, 1, f.r.started-1, "a new flow, not one that goes on")
		}
	})
	t.Run("a repeated SYN is a retransmission", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoTCP)
		f.tcp(0, false, syn, 100, 0, 0)
		f.tcp(s, false, syn, 100, 0, 0)
		f.tcp(2*s, false, syn, 100, 0, 0)
		r := f.flush()
		require.Len(t, r, 1)
		require.EqualValues(t, 2, r[0].TCPSynRetransmits)
	})
	t.Run("simultaneous open is one flow", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoTCP)
		f.tcp(0, false, syn, 100, 0, 0)
		f.tcp(us, true, syn, 500, 0, 0)
		f.tcp(ms, false, synack, 100, 501, 0)
		f.tcp(ms, true, synack, 500, 101, 0)
		require.Len(t, f.flush(), 1)
	})
}

func TestFeature03TimeoutsCutBeforeThePacket(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		f := newFeed(Config{IdleNs: 10 * s}, packet.ProtoUDP)
		f.add(f.packet(0, false, 10))
		f.add(f.packet(10*s, false, 10)) // exactly the timeout is not over it
		f.add(f.packet(10*s+1, false, 10))
		r := f.flush()
		require.Len(t, r, 2)
		require.EqualValues(t, 2, total(&r[0]))
		require.Equal(t, t0+10*s, r[0].EndNs)
		require.EqualValues(t, 1, total(&r[1]))
	})
	t.Run("active", func(t *testing.T) {
		f := newFeed(Config{IdleNs: 10 * s, ActiveNs: 30 * s}, packet.ProtoUDP)
		for range 5 {
			f.add(f.packet(9*s, false, 10))
		}
		r := f.flush()
		require.Len(t, r, 2)
		require.Equal(t, telemetry.EndActive, r[0].EndReason)
		require.LessOrEqual(t, r[0].EndNs-r[0].StartNs, 30*s, "a record never overshoots")
		require.EqualValues(t, 4, total(&r[0]))
	})
	t.Run("what is due first names the reason", func(t *testing.T) {
		f := newFeed(Config{IdleNs: 10 * s, ActiveNs: 12 * s}, packet.ProtoUDP)
		f.add(f.packet(0, false, 10))
		f.add(f.packet(9*s, false, 10))
		f.add(f.packet(60*s, false, 10)) // active was due at 12 s, idle at 19 s
		r := f.flush()
		require.Equal(t, telemetry.EndActive, r[0].EndReason)
	})
	t.Run("time passes without packets", func(t *testing.T) {
		f := newFeed(Config{IdleNs: 10 * s}, packet.ProtoUDP)
		f.add(f.packet(0, false, 10))
		base := t0 / TickNs
		f.r.t.Tick((base + 10) * TickNs)
		require.Empty(t, f.r.records)
		f.r.t.Tick((base + 11) * TickNs)
		require.Len(t, f.r.records, 1)
		require.Equal(t, telemetry.EndIdle, f.r.records[0].EndReason)
	})
	t.Run("flush emits everything once", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoUDP)
		for i := range 5000 {
			p := f.packet(us, false, 10)
			p.SrcPort = uint16(i)
			f.add(p)
		}
		require.Len(t, f.flush(), 5000)
		require.Len(t, f.flush(), 5000)
		require.Zero(t, f.r.t.Active())
	})
	t.Run("an active cut keeps the direction", func(t *testing.T) {
		f := newFeed(Config{IdleNs: 10 * s, ActiveNs: 20 * s}, packet.ProtoUDP)
		f.add(f.packet(0, false, 10))
		for range 4 {
			f.add(f.packet(8*s, true, 10))
		}
		r := f.flush()
		require.Len(t, r, 2)
		require.Equal(t, r[0].Src, r[1].Src)
		require.EqualValues(t, 0, r[1].Dir[telemetry.Fwd].Packets)
		require.Equal(t, 1, f.r.started, "it is not a new flow")
	})
}

func TestFeature04DirectionIsTheInitiators(t *testing.T) {
	t.Run("first packet counts once", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoTCP)
		f.handshake()
		r := f.flush()
		require.EqualValues(t, 2, r[0].Dir[telemetry.Fwd].Packets)
		require.EqualValues(t, 1, r[0].Dir[telemetry.Rev].Packets)
		require.Equal(t, addr(0x0a000001), r[0].Src)
	})
	t.Run("SYN+ACK first", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoTCP)
		f.tcp(0, true, synack, 500, 101, 0)
		f.tcp(ms, false, ack, 101, 501, 0)
		r := f.flush()
		require.Equal(t, addr(0x0a000001), r[0].Src)
		require.EqualValues(t, 40000, r[0].SrcPort)
		require.EqualValues(t, 1, r[0].Dir[telemetry.Rev].Packets)
		require.EqualValues(t, -1, r[0].FirstReplyNs, "the request was not seen")
	})
	t.Run("one host talking to itself", func(t *testing.T) {
		f := newFeed(Config{}, packet.ProtoUDP)
		for range 3 {
			p := f.packet(ms, false, 10)
			p.Dst, p.DstPort = p.Src, p.SrcPort
			f.add(p)
		}
		r := f.flush()
		require.Len(t, r, 1)
		require.EqualValues(t, 3, r[0].Dir[telemetry.Fwd].Packets)
	})
}

func TestFeature05LengthsAreThreeThings(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoTCP)
	p := f.packet(0, false, 0)
	p.L3Len, p.WireLen = 40, 60 // Ethernet padding
	f.add(p)
	r := f.flush()
	require.EqualValues(t, 60, r[0].Dir[0].WireBytes)
	require.EqualValues(t, 40, r[0].Dir[0].L3Bytes)
	require.EqualValues(t, 0, r[0].Dir[0].PayloadBytes)
	require.EqualValues(t, 1, r[0].SizeHist[SizeBin(40)])
}

func TestFeature06NoAliasedColumns(t *testing.T) {
	var n names
	telemetry.Visit(&telemetry.Record{Protocol: packet.ProtoTCP, IPVersion: 4}, &n)
	seen := map[string]bool{}
	for _, name := range n {
		require.False(t, seen[name], name)
		seen[name] = true
	}
}

func TestFeature07MeansAreRealDivision(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoUDP)
	f.add(f.packet(0, false, 10))
	f.add(f.packet(1, false, 11))
	f.add(f.packet(2, false, 11))
	r := f.flush()
	require.InDelta(t, 64+2.0/3, r[0].Dir[0].WireLenMean, 1e-12)
	require.InDelta(t, 1.5, r[0].Dir[0].DelayMeanNs, 1e-12)
	require.InDelta(t, 0.5, r[0].Dir[0].DelayStdNs, 1e-12)
}

func TestFeature08FlagsOverAllPackets(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoTCP)
	f.handshake()
	f.closing()
	r := f.flush()
	require.EqualValues(t, syn|ack|packet.TCPFin, r[0].Dir[telemetry.Fwd].TCPFlags)
	require.EqualValues(t, synack|packet.TCPFin, r[0].Dir[telemetry.Rev].TCPFlags)
}

func TestFeature09OnePacketFlowHasZeroes(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoUDP)
	f.add(f.packet(0, false, 10))
	r := f.flush()[0]
	h := r.Dir[0]
	for _, v := range []float64{h.WireLenMean, h.WireLenStd, h.DelayMeanNs, h.DelayStdNs} {
		require.False(t, math.IsNaN(v) || math.IsInf(v, 0))
	}
	require.Zero(t, h.DelayMeanNs)
	require.Zero(t, h.WireLenStd)
	require.EqualValues(t, 0, sum(r.DelayHist[:]), "delays are packets - 1")
	require.Equal(t, r.StartNs, r.EndNs)
}

func TestFeature10NegativeTimeSteps(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoUDP)
	f.add(f.packet(0, false, 10))
	f.add(f.packet(10*ms, false, 10))
	f.add(f.packet(-5*ms, false, 10)) // 5 ms: before the packet before it
	f.add(f.packet(1*ms, false, 10))  // 6 ms: still
	f.add(f.packet(14*ms, false, 10)) // 20 ms
	r := f.flush()[0]
	require.EqualValues(t, 2, r.TimeSteps)
	require.EqualValues(t, 2, f.r.t.Stats().TimeSteps)
	h := r.Dir[0]
	require.Zero(t, h.DelayMinNs)
	require.Equal(t, 10*ms, h.DelayMaxNs)
	require.LessOrEqual(t, float64(h.DelayMinNs), h.DelayMeanNs)
	require.GreaterOrEqual(t, float64(h.DelayMaxNs), h.DelayMeanNs)
	require.Equal(t, t0+20*ms, r.EndNs)

	f = newFeed(Config{}, packet.ProtoUDP)
	for range 1000 {
		f.add(f.packet(59_999_999_999, false, 1400))
	}
	for _, r := range f.flush() {
		require.Zero(t, r.Dir[0].DelayStdNs, "equal gaps have no deviation")
		require.Zero(t, r.Dir[0].WireLenStd)
	}
}

func TestFeature11VLANTellsFlowsApartOnlyIfAsked(t *testing.T) {
	for _, asked := range []bool{false, true} {
		f := newFeed(Config{Key: KeyOptions{VLAN: asked}}, packet.ProtoUDP)
		for vlan := range uint16(3) {
			p := f.packet(ms, false, 10)
			p.VLAN = vlan
			f.add(p)
		}
		require.Len(t, f.flush(), map[bool]int{false: 1, true: 3}[asked])
	}
}

func TestFeature11ProtocolsWithoutPorts(t *testing.T) {
	f := newFeed(Config{}, 89) // OSPF
	p := f.packet(0, false, 44)
	p.SrcPort, p.DstPort = 0, 0
	f.add(p)
	p = f.packet(0, false, 1000)
	p.Protocol, p.SrcPort, p.DstPort = packet.ProtoUDP, 0, 0
	p.Flags = packet.FlagFragment | packet.FlagFragmentLater
	f.add(p)
	r := f.flush()
	require.Len(t, r, 2)
	require.EqualValues(t, 89, r[0].Protocol)
	require.False(t, r[0].Fragment)
	require.True(t, r[1].Fragment, "a fragment whose first is unknown says so")
}

func TestFeature12DuplicatesAndReordering(t *testing.T) {
	build := func(copies int) telemetry.Record {
		f := newFeed(Config{}, packet.ProtoUDP)
		for i := range 40 {
			for range copies {
				f.add(f.packet(0, i%3 == 0, uint32(i*30)))
			}
			f.now += ms
		}
		return f.flush()[0]
	}
	one, two := build(1), build(2)
	require.Equal(t, 2*total(&one), total(&two))
	for i := range one.SizeHist {
		require.Equal(t, 2*one.SizeHist[i], two.SizeHist[i], "a mirrored duplicate doubles the histogram and keeps its shape")
	}
}

func TestFeature13HistogramMass(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 15, 16, 17, 200, 256, 257, 5000} {
		f := newFeed(Config{}, packet.ProtoUDP)
		want := map[int]uint32{}
		for range n {
			p := f.packet(int64(rng.ExpFloat64()*float64(100*us)), rng.IntN(2) == 0, 0)
			p.L3Len = uint32(rng.IntN(3) * 1000)
			want[SizeBin(p.L3Len)]++
			f.add(p)
		}
		r := f.flush()[0]
		require.EqualValues(t, n, sum(r.SizeHist[:]), "size mass")
		require.EqualValues(t, n-1, sum(r.DelayHist[:]), "delay mass")
		for b, c := range want {
			require.Equal(t, c, r.SizeHist[b])
		}
	}
}

func TestFeature13BinEdges(t *testing.T) {
	require.Equal(t, 0, SizeBin(0))
	require.Equal(t, 0, SizeBin(15))
	require.Equal(t, 1, SizeBin(16))
	require.Equal(t, 93, SizeBin(1503))
	require.Equal(t, 94, SizeBin(1504))
	require.Equal(t, 94, SizeBin(9000), "jumbo frames saturate")
	require.Equal(t, 94, SizeBin(math.MaxUint32))
	require.Equal(t, 0, DelayBin(0))
	require.Equal(t, 0, DelayBin(1000), "1 us is the start of bin 0")
	require.Equal(t, 0, DelayBin(1189))
	require.Equal(t, 1, DelayBin(1190))
	require.Equal(t, 4, DelayBin(2000))
	require.Equal(t, 3, DelayBin(1999))
	require.Equal(t, 40, DelayBin(1_024_000))
	require.Equal(t, telemetry.DelayBins-1, DelayBin(math.MaxInt64))
	edges := make([]int64, telemetry.DelayBins)
	for i := range edges {
		edges[i] = delayEdge[i]
		if i > 0 {
			require.Equal(t, i, DelayBin(edges[i]), "an edge belongs to its bin")
			require.Equal(t, i-1, DelayBin(edges[i]-1))
		}
	}
	require.True(t, sort.SliceIsSorted(edges, func(i, j int) bool { return edges[i] < edges[j] }))
}

// TestFeature12Reordering: the order of a flow's packets changes no count, sum, size bin or extreme.
func TestFeature12Reordering(t *testing.T) {
	build := func(order []int) telemetry.Record {
		f := newFeed(Config{}, packet.ProtoUDP)
		for _, i := range order {
			f.add(f.packet(ms, i%3 == 0, uint32(i*30)))
		}
		return f.flush()[0]
	}
	order := make([]int, 60)
	for i := range order {
		order[i] = i
	}
	want := build(order)
	rng := rand.New(rand.NewPCG(8, 8))
	for range 5 {
		rng.Shuffle(len(order)-2, func(i, j int) { order[i+2], order[j+2] = order[j+2], order[i+2] }) // the first packets name the initiator
		got := build(order)
		require.Equal(t, want.SizeHist, got.SizeHist)
		for d := range want.Dir {
			w, g := want.Dir[d], got.Dir[d]
			require.Equal(t, []any{w.Packets, w.WireBytes, w.L3Bytes, w.PayloadBytes, w.WireLenMin, w.WireLenMax, w.WireLenMean, w.WireLenStd},
				[]any{g.Packets, g.WireBytes, g.L3Bytes, g.PayloadBytes, g.WireLenMin, g.WireLenMax, g.WireLenMean, g.WireLenStd})
		}
	}
}

func TestTimesAtTheEndOfTheRange(t *testing.T) {
	f := newFeed(Config{IdleNs: math.MaxInt64, ActiveNs: math.MaxInt64}, packet.ProtoUDP)
	f.now = math.MaxInt64 - 10
	f.add(f.packet(0, false, 10))
	f.add(f.packet(5, false, 10))
	require.Len(t, f.flush(), 1, "a timeout that does not fit the clock does not cut")
}

func TestCutContinuesAfterTheRecordBefore(t *testing.T) {
	f := newFeed(Config{IdleNs: 10 * s, ActiveNs: 20 * s}, packet.ProtoUDP)
	f.add(f.packet(0, false, 10))
	for range 3 {
		f.add(f.packet(6*s, false, 10))
	}
	f.r.t.Tick((f.now/TickNs + 4) * TickNs)
	require.Len(t, f.r.records, 1)
	f.add(f.packet(-1*s, false, 10)) // older than what was cut
	r := f.flush()
	require.Len(t, r, 2)
	require.GreaterOrEqual(t, r[1].StartNs, r[0].EndNs)
	require.EqualValues(t, 1, r[1].TimeSteps)
}

type names []string

func (n *names) add(name string)                { *n = append(*n, name) }
func (n *names) Uint(name string, _ uint64)     { n.add(name) }
func (n *names) Int(name string, _ int64)       { n.add(name) }
func (n *names) Float(name string, _ float64)   { n.add(name) }
func (n *names) Bool(name string, _ bool)       { n.add(name) }
func (n *names) String(name string, _ string)   { n.add(name) }
func (n *names) Addr(name string, _ netip.Addr) { n.add(name) }
func (n *names) Hist(name string, _ []uint32)   { n.add(name) }
