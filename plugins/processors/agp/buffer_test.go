package agp

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// oneWay is a direction as an exporter reports it.
func oneWay(src, dst byte, sp, dp uint16, packets, bytes uint64, start, end int64) *seen {
	return &seen{
		info: packet.Info{IPVersion: 4, Protocol: packet.ProtoTCP, Src: [16]byte{10, 0, 0, src}, Dst: [16]byte{10, 0, 0, dst}, SrcPort: sp, DstPort: dp},
		dir:  [2]half{{packets: packets, bytes: bytes}}, start: start, end: end, source: "a", sampling: 1,
	}
}

// Whatever comes in whatever order: each metric is new, the other direction, a continuation or a
// duplicate; packets that went in come out or are of duplicates; a turn never has more than half the limit;
// what comes out is in the order of starts.
func TestEveryPacketLeavesTheBufferOnce(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := newBuffer(64)
		var in, out, repeated, records, opened uint64
		release := func() {
			last := int64(-1 << 62)
			flows := b.turn()
			require.LessOrEqual(t, len(flows), 32)
			for _, h := range flows {
				require.GreaterOrEqual(t, h.start(), last)
				require.LessOrEqual(t, h.start(), h.end())
				last = h.start()
				out += h.dir[0].packets + h.dir[1].packets
				records++
			}
		}
		for range 2000 {
			start := r.Int64N(100)
			s := oneWay(byte(r.IntN(6)), byte(r.IntN(6)), uint16(r.IntN(3)), uint16(r.IntN(3)), 1+r.Uint64N(3), 40, start, start+r.Int64N(20))
			s.source = string(rune('a' + r.IntN(2)))
			if s.both = r.IntN(4) == 0; s.both {
				s.dir[1] = half{packets: 1, bytes: 40}
			}
			if b.full() {
				release()
			}
			n := s.dir[0].packets + s.dir[1].packets
			before := b.packets()
			switch b.add(s) {
			case duplicate:
				require.Equal(t, before, b.packets())
			case fresh:
				opened++
			case continued, paired:
				require.Greater(t, b.packets(), before)
			}
			in += n
			repeated += n - (b.packets() - before)
			require.LessOrEqual(t, b.len(), 64)
		}
		release()
		release()
		require.Zero(t, b.len())
		require.Equal(t, in, out+repeated)
		require.Equal(t, opened, records)
		require.Positive(t, repeated)
	}
}

func (b *buffer) packets() (n uint64) {
	for _, half := range []map[flow.Key]*held{b.young, b.old} {
		for _, h := range half {
			n += h.dir[0].packets + h.dir[1].packets
		}
	}
	return n
}

func TestWhatIsADuplicate(t *testing.T) {
	first := oneWay(1, 2, 5000, 80, 3, 200, 100, 200)
	for _, c := range []struct {
		name   string
		change func(*seen)
		want   verdict
	}{
		{"the same again", func(*seen) {}, duplicate},
		{"another exporter, a part of the time, other counts", func(s *seen) { s.source, s.start, s.end, s.dir[0].bytes = "b", 190, 300, 7 }, duplicate},
		{"another exporter, later", func(s *seen) { s.source, s.start, s.end = "b", 201, 300 }, continued},
		{"other counts", func(s *seen) { s.dir[0].packets = 4 }, continued},
		{"other times", func(s *seen) { s.end = 201 }, continued},
		{"another port", func(s *seen) { s.info.SrcPort = 5001 }, fresh},
		{"another protocol", func(s *seen) { s.info.Protocol = packet.ProtoUDP }, fresh},
		{"the way back", func(s *seen) {
			i := &s.info
			i.Src, i.Dst, i.SrcPort, i.DstPort = i.Dst, i.Src, i.DstPort, i.SrcPort
		}, paired},
	} {
		b := newBuffer(64)
		require.Equal(t, fresh, b.add(first))
		b.turn() // it is found in both halves
		s := *first
		c.change(&s)
		require.Equal(t, c.want, b.add(&s), c.name)
	}
}

// Flags as plain numbers, which -1 and -2 can stand beside.
const (
	fFin = 0x01
	fSyn = 0x02
	fRst = 0x04
	fAck = 0x10
)

func TestWhoBeganIsFound(t *testing.T) {
	for _, c := range []struct {
		name           string
		flags, back    int // of 10.0.0.1:p to 10.0.0.2:q and of the way back; -1: not exported, -2: no such packets
		p, q           uint16
		start, backing int64
		want           string
	}{
		{"SYN that is refused", fSyn, fRst | fAck, 80, 5000, 1, 1, "1>2"},
		{"SYN alone, from a low port", fSyn, -2, 80, 5000, 1, 0, "1>2"},
		{"SYN+ACK alone", fSyn | fAck, -2, 80, 5000, 1, 0, "2>1"},
		{"who refuses was asked", fRst | fAck, fSyn, 5000, 80, 1, 1, "2>1"},
		{"connection, the earlier start", fSyn | fAck, fSyn | fAck | fFin, 80, 5000, 1, 2, "1>2"},
		{"connection, the earlier start of the other", fSyn | fAck, fSyn | fAck, 5000, 80, 2, 1, "2>1"},
		{"connection, equal starts: the higher port", fSyn | fAck, fSyn | fAck, 5000, 80, 1, 1, "1>2"},
		{"connection, equal starts: the higher port of the other", fSyn | fAck, fSyn | fAck, 80, 5000, 1, 1, "2>1"},
		{"no flags, equal all: who came first", -1, -1, 5000, 5000, 1, 1, "1>2"},
		{"a server's side alone", fAck | fSyn | fFin, -2, 80, 5000, 1, 0, "2>1"},
		{"a client's side alone", fAck | fSyn | fFin, -2, 5000, 80, 1, 0, "1>2"},
	} {
		for _, ends := range [][2]byte{{1, 2}, {2, 1}} { // whichever is the lower address
			b, n := newBuffer(64), uint64(3)
			s := oneWay(ends[0], ends[1], c.p, c.q, n, 52, c.start, c.start)
			s.dir[0].flags, s.dir[0].hasFlags = uint8(max(c.flags, 0)), c.flags >= 0
			b.add(s)
			if c.back != -2 {
				s = oneWay(ends[1], ends[0], c.q, c.p, n, 52, c.backing, c.backing)
				s.dir[0].flags, s.dir[0].hasFlags = uint8(max(c.back, 0)), c.back >= 0
				b.add(s)
			}
			b.turn()
			var r telemetry.Record
			b.turn()[0].record(&r)
			name := map[byte]string{ends[0]: "1", ends[1]: "2"}
			require.Equal(t, c.want, name[r.Src[3]]+">"+name[r.Dst[3]], "%s, %v", c.name, ends)
		}
	}
}

// An exporter may say that the answer came first; one packet with SYN and ACK is an answer all the same.
func TestAcceptingTakesOnePacket(t *testing.T) {
	for _, ends := range [][2]byte{{1, 2}, {2, 1}} {
		b := newBuffer(64)
		for _, s := range []*seen{oneWay(ends[0], ends[1], 80, 5000, 1, 60, 1, 1), oneWay(ends[1], ends[0], 5000, 80, 2, 112, 2, 2)} {
			s.dir[0].flags, s.dir[0].hasFlags = fSyn|fAck, true
			b.add(s)
		}
		b.turn()
		var r telemetry.Record
		b.turn()[0].record(&r)
		require.EqualValues(t, 80, r.DstPort)
	}
}

// Headers are no payload: what only acknowledges, asks or refuses has none, what carries data has.
func TestPayloadIsWhatHeadersLeave(t *testing.T) {
	for _, c := range []struct {
		name           string
		version, proto uint8
		flags          uint8
		packets, bytes uint64
		want           uint64
	}{
		{"SYN", 4, packet.ProtoTCP, fSyn, 1, 60, 0},
		{"SYN repeated", 4, packet.ProtoTCP, fSyn, 3, 180, 0},
		{"RST", 4, packet.ProtoTCP, fRst | fAck, 1, 40, 0},
		{"connection without a word", 4, packet.ProtoTCP, fSyn | fAck | fFin, 4, 60 + 3*52, 0},
		{"the same with 500 bytes", 4, packet.ProtoTCP, fSyn | fAck | fFin, 5, 60 + 4*52 + 500, 484},
		{"SYN over IPv6", 6, packet.ProtoTCP, fSyn, 1, 80, 0},
		{"DNS query", 4, packet.ProtoUDP, 0, 1, 28 + 33, 33},
		{"DNS query over IPv6", 6, packet.ProtoUDP, 0, 1, 48 + 33, 33},
		{"echo", 4, packet.ProtoICMP, 0, 2, 2 * 84, 2 * 56},
		{"another protocol", 4, 47, 0, 1, 120, 100},
	} {
		d := direction{half: half{packets: c.packets, bytes: c.bytes, flags: c.flags, hasFlags: true}}
		var h telemetry.Half
		d.fill(&h, c.version, c.proto)
		require.Equal(t, c.want, h.PayloadBytes, c.name)
		require.GreaterOrEqual(t, h.WireBytes, c.packets*minFrame, c.name)
	}
}

func TestClocksOfExportersComeToOneTime(t *testing.T) {
	now := came.UnixNano()
	at := func(d time.Duration) int64 { return now + int64(d) }
	c := newClocks()
	good := seen{source: "good", start: at(-30 * time.Minute), end: at(-10 * time.Minute)}
	want := good
	c.set(&good, now)
	require.Equal(t, want, good, "an hour is what an active timeout may take")

	wrong := seen{source: "wrong", start: at(48 * time.Hour), end: at(49 * time.Hour)}
	c.set(&wrong, now)
	require.Equal(t, at(-time.Hour), wrong.start)
	require.Equal(t, now, wrong.end, "as if it had ended when it came")
	wrong = seen{source: "wrong", start: at(49 * time.Hour), end: at(49*time.Hour + 10*time.Second)}
	c.set(&wrong, at(12*time.Second))
	require.Equal(t, now, wrong.start, "the same shift: intervals stay")
	require.Equal(t, at(10*time.Second), wrong.end)
	require.Zero(t, c.steps)

	up := seen{source: "v9", relative: true, start: 1e9, end: 5e9}
	c.set(&up, now)
	require.Equal(t, at(-4*time.Second), up.start)
	up = seen{source: "v9", relative: true, start: 1e9, end: 2e9} // started again, two hours later
	c.set(&up, at(2*time.Hour))
	require.Equal(t, at(2*time.Hour), up.end)
	require.EqualValues(t, 1, c.steps)

	for i := range 5000 {
		s := seen{source: fmt.Sprint(i), relative: true, start: 1, end: 1}
		c.set(&s, now)
	}
	require.LessOrEqual(t, len(c.offset), maxClocks+1)
}
