package flow

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestKeyMeetsInBothDirections(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		var in packet.Info
		in.IPVersion, in.Protocol = 4, packet.ProtoUDP
		in.Src, in.Dst = addr(rng.Uint32N(3)), addr(rng.Uint32N(3))
		in.SrcPort, in.DstPort = uint16(rng.IntN(3)), uint16(rng.IntN(3))
		back := in
		back.Src, back.Dst, back.SrcPort, back.DstPort = in.Dst, in.Src, in.DstPort, in.SrcPort
		var a, b Key
		fromB, backFromB := a.Set(&in, KeyOptions{}), b.Set(&back, KeyOptions{})
		require.Equal(t, a, b)
		require.Equal(t, a.Hash(7), b.Hash(7))
		if a.differ() {
			require.NotEqual(t, fromB, backFromB)
		}
	}
}

func TestKeyOptions(t *testing.T) {
	in := packet.Info{VLAN: 5, TunnelID: 9}
	var k Key
	k.Set(&in, KeyOptions{})
	require.Zero(t, k.VLAN)
	require.Zero(t, k.Tunnel)
	k.Set(&in, KeyOptions{VLAN: true, Tunnel: true})
	require.EqualValues(t, 5, k.VLAN)
	require.EqualValues(t, 9, k.Tunnel)
}

// TestEveryPacketIsInOneRecord is the accounting identity under eviction, cuts,
// ticks and clock jumps.
func TestEveryPacketIsInOneRecord(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		f := newFeed(Config{MaxFlows: 50 + rng.IntN(500), IdleNs: 5 * s, ActiveNs: 20 * s}, packet.ProtoTCP)
		n := 20000
		for range n {
			p := f.packet(rng.Int64N(20*ms)-5*ms, rng.IntN(2) == 0, rng.Uint32N(100))
			if rng.IntN(2000) == 0 {
				f.now += rng.Int64N(200*s) - 100*s
			}
			p.SrcPort = uint16(rng.IntN(1000))
			p.TCPFlags = uint8(rng.IntN(64))
			p.Info.Seq, p.Ack = rng.Uint32N(500), rng.Uint32N(500)
			if rng.IntN(100) == 0 {
				f.r.t.Tick(p.TimestampNs / TickNs * TickNs)
			}
			f.add(p)
		}
		require.LessOrEqual(t, f.r.t.Active(), f.r.t.cfg.MaxFlows)
		var packets, size uint64
		var binned [2][telemetry.SizeBins]uint32
		for _, r := range f.flush() {
			packets += total(&r)
			size += sum(r.SizeHist[:])
			require.Equal(t, total(&r)-1, sum(r.DelayHist[:]))
			for i, n := range r.SizeHist {
				binned[0][i] += n
			}
			for i, n := range r.DelayHist {
				binned[1][i] += n
			}
		}
		require.Equal(t, binned, f.r.binned, "Binned tells of every packet")
		require.EqualValues(t, n, packets)
		require.EqualValues(t, n, size)
		require.EqualValues(t, n, f.r.told[0], "Progress tells of every packet")
		st := f.r.t.Stats()
		require.EqualValues(t, n, st.Packets)
		require.EqualValues(t, n, st.Recorded)
		require.EqualValues(t, len(f.r.records), st.Records)
		require.Zero(t, f.r.t.Active())
	}
}

func TestEvictionTakesTheLowestValue(t *testing.T) {
	f := newFeed(Config{MaxFlows: 4}, packet.ProtoUDP)
	for i := range 4 {
		for range 10 - i { // the last flow has the fewest packets
			p := f.packet(ms, false, 10)
			p.SrcPort = uint16(i)
			f.add(p)
		}
	}
	p := f.packet(ms, false, 10)
	p.SrcPort = 100
	f.add(p)
	require.Len(t, f.r.records, 1)
	require.Equal(t, telemetry.EndEvicted, f.r.records[0].EndReason)
	require.EqualValues(t, 3, f.r.records[0].SrcPort)
	require.EqualValues(t, 1, f.r.t.Stats().Evicted)
}

func TestTickFollowsAClockThatGoesBack(t *testing.T) {
	f := newFeed(Config{IdleNs: 10 * s}, packet.ProtoUDP)
	base := t0 / TickNs
	f.r.t.Tick((base + 1000) * TickNs)
	f.r.t.Tick(base * TickNs)
	f.add(f.packet(0, false, 10))
	f.r.t.Tick((base + 11) * TickNs)
	require.Len(t, f.r.records, 1)
	require.Equal(t, telemetry.EndIdle, f.r.records[0].EndReason)
}

func TestTriggersAndHead(t *testing.T) {
	f := newFeed(Config{Head: true, HeadPackets: 16, Triggers: []uint64{2, 16, 300}}, packet.ProtoUDP)
	payload := []byte("0123456789")
	for i := range 400 {
		p := f.packet(ms, i%2 == 1, uint32(len(payload)))
		p.Frame, p.PayloadCap = payload, uint32(len(payload))
		f.add(p)
	}
	require.Equal(t, []uint64{2, 16, 300}, f.r.mature)
	require.NotNil(t, f.r.head)
	h := f.r.head
	require.EqualValues(t, 16, h.Packets)
	require.EqualValues(t, 48, h.PayloadLen[0])
	require.EqualValues(t, 48, h.PayloadLen[1])
	require.Equal(t, "0123456789012345", string(h.Payload[0][:16]), "bytes go on across packets")
	require.EqualValues(t, 50, h.Len[0])
	require.EqualValues(t, -50, h.Len[1])
	require.EqualValues(t, 0, h.Delay[0])
	require.EqualValues(t, DelayBin(ms)+1, h.Delay[1])
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	f := newFeed(Config{Head: true, HeadPackets: 16, Triggers: []uint64{8, 16}}, packet.ProtoTCP)
	packets := make([]*Packet, 0, 2000)
	for i := range 2000 {
		p := f.packet(us, i%2 == 0, 100)
		if i%2 == 0 {
			p.DstPort = uint16(i / 4)
		} else {
			p.SrcPort = uint16(i / 4)
		}
		p.FromB = p.Key.Set(&p.Info, KeyOptions{})
		p.Hash = p.Key.Hash(1)
		packets = append(packets, p)
		f.r.t.Add(p)
	}
	for range 300 { // into the widest histograms
		for _, p := range packets {
			f.r.t.Add(p)
		}
	}
	f.r.mature = f.r.mature[:0:cap(f.r.mature)]
	n := testing.AllocsPerRun(20, func() {
		for _, p := range packets {
			f.r.t.Add(p)
		}
	})
	require.Zero(t, n)
}

func TestStateFitsTheMemoryBudget(t *testing.T) {
	const index = 2 * 8 // two 8-byte slots a flow at the fullest
	small := int(unsafe.Sizeof(smallHist{}))
	require.LessOrEqual(t, StateBytes+index+192, 704, "short flow with head features")
	require.LessOrEqual(t, StateBytes+index+small, 704, "longer flow")
}

func BenchmarkAdd(b *testing.B) {
	for _, flows := range []int{1000, 100000} {
		b.Run(map[int]string{1000: "1k", 100000: "100k"}[flows], func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			t := NewTable(Config{}, &discard{})
			packets := make([]Packet, 1<<16)
			for i := range packets {
				p := &packets[i]
				p.IPVersion, p.Protocol = 4, packet.ProtoTCP
				p.Src, p.Dst = addr(rng.Uint32N(uint32(flows))), addr(1<<31)
				p.TCPFlags, p.L3Len, p.WireLen, p.PayloadLen = packet.TCPAck, 500, 514, 460
				p.TimestampNs = t0 + int64(i)
				p.FromB = p.Key.Set(&p.Info, KeyOptions{})
				p.Hash = p.Key.Hash(1)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				t.Add(&packets[i&(len(packets)-1)])
			}
		})
	}
}

type discard struct{}

func (discard) Started(Ref, *Packet)            {}
func (discard) Progress(Ref, uint64, uint64)    {}
func (discard) Binned(uint64, []uint8, []uint8) {}
func (discard) Mature(Ref)                      {}
func (discard) Ended(Ref, telemetry.EndReason)  {}
