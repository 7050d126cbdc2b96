package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// starts is a sink that keeps when records began.
type starts struct{ ns []int64 }

func (s *starts) Record(r *telemetry.Record) { s.ns = append(s.ns, r.StartNs) }
func (s *starts) Alert(*telemetry.Alert)     {}

// ordering is a pipeline without device, of two rings of one shard.
func ordering(limit int) (*Pipeline, *starts) {
	sink := &starts{}
	p := &Pipeline{cfg: Config{Detect: &detect.Config{}}, scoring: newScoring()}
	p.order = order{found: score.NewFindings(sink, "", p.cfg.Detect), limit: limit}
	for i := range 2 {
		p.rings = append(p.rings, &ring{number: i, abi: abi.Ring{Flags: abi.FlagRelay | abi.FlagNumbered}, shards: []*shard{{}}})
	}
	return p, sink
}

func (p *Pipeline) end(ring int, number uint64, timed bool, startSeq uint64) {
	h, f := &abi.Record{Kind: abi.RecordFlow, Number: number}, &abi.Flow{StartSeq: startSeq, StartNs: int64(startSeq)}
	if timed {
		h.Flags = abi.FlagTimed
	}
	p.finished(ring, p.rings[ring], p.rings[ring].shards[0], h, bytesOf(f))
}

func (p *Pipeline) tick(ring int, number uint64, ns int64) {
	p.ticked(p.rings[ring], p.rings[ring].shards[0], &abi.Record{Kind: abi.RecordTick, Number: number, TsNs: ns})
}

// TestEventsWaitForTheShardThatIsBehind: what time ends comes before its packet and in the order
// of the flows' starts.
func TestEventsWaitForTheShardThatIsBehind(t *testing.T) {
	p, sink := ordering(1000)
	p.end(0, 20, true, 9)
	p.end(0, 20, true, 3)
	p.tick(0, 20, 1e9)
	p.end(0, 20, false, 11)
	p.settle(false)
	require.Empty(t, sink.ns, "ring 1 has not passed the second")
	p.end(1, 15, false, 7)
	p.end(1, 20, true, 5)
	p.tick(1, 20, 1e9)
	p.settle(false)
	require.Equal(t, []int64{7, 3, 5, 9}, sink.ns)
	p.settle(true)
	require.Equal(t, []int64{7, 3, 5, 9, 11}, sink.ns)
	require.Zero(t, p.order.unordered)
}

// TestEventsThatWaitAreBounded: with a shard that does not come on they are acted on and counted.
func TestEventsThatWaitAreBounded(t *testing.T) {
	p, sink := ordering(8)
	for i := range uint64(20) {
		p.end(0, 100-i, false, i)
		if len(p.order.pending) >= p.order.limit {
			p.settle(false)
		}
	}
	require.Len(t, sink.ns, 16)
	require.Equal(t, uint64(16), p.order.unordered)
	p.settle(true)
	require.Len(t, sink.ns, 20)
	require.Equal(t, uint64(16), p.order.unordered)
}

// TestAPlaceThatHasAnotherFlowHasNoScores: whether the end of the one before was told or lost.
func TestAPlaceThatHasAnotherFlowHasNoScores(t *testing.T) {
	s, d := newScoring(), &shard{}
	f, g := &abi.Flow{Hash: 1, Born: [3]uint8{1}}, &abi.Flow{Hash: 1, Born: [3]uint8{2}}
	r := s.keep(d, 5, f)
	s.kept[r].start = 7
	s.kept[r].scores[0].Answer = 3
	same, ok := s.find(d, 5, f)
	require.True(t, ok)
	require.Equal(t, r, same)
	require.Nil(t, s.Scores(r, 8))
	_, ok = s.find(d, 5, g)
	require.False(t, ok)
	require.Empty(t, d.scored)
	r = s.keep(d, 5, g)
	require.Len(t, s.kept, 1, "places are used again")
	s.kept[r].start = 9
	require.Zero(t, s.Scores(r, 9)[0].Answer)
}

// BenchmarkEvents: what a flow costs the host that begins and ends, with detectors.
func BenchmarkEvents(b *testing.B) {
	p, sink := ordering(maxPending)
	h := &abi.Record{Kind: abi.RecordStart}
	key, number := &abi.Key{Protocol: 6, IPVersion: 4, PortB: 443}, uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		number++
		key.A[3], key.A[2], key.PortA, h.Number, h.TsNs = byte(number), byte(number>>8), uint16(number>>8), number, int64(number)*1000
		p.started(p.rings[number%2], h, bytesOf(key))
		p.end(int(number%2), number, false, number)
		if number%4096 == 0 {
			p.tick(0, number, h.TsNs)
			p.tick(1, number, h.TsNs)
			p.settle(false)
			sink.ns = sink.ns[:0]
		}
	}
}
