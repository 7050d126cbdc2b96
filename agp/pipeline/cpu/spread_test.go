package cpu

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
)

// TestRecordsDoNotDependOnMovedBuckets: buckets change their worker at random between
// batches, and every record and alert is what one queue gives.
func TestRecordsDoNotDependOnMovedBuckets(t *testing.T) {
	models := shipped(t)
	for seed := range uint64(6) {
		list := traffic(200+seed, 20000)
		cfg := Config{Source: &frames{list: list}, Queues: 1, Models: models, Flow: flow.Config{IdleNs: 1e12, ActiveNs: 1e13}}
		if seed%2 == 0 {
			cfg.Flow = flow.Config{}
		}
		want, _ := run(t, cfg)
		cfg.Source, cfg.Queues, cfg.Batch = &frames{list: list}, 2+int(seed), 64
		got := &lines{}
		cfg.Sink = got
		p, err := New(cfg)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(seed, 9))
		var moved atomic.Int64
		p.balance = func(s *spread) (moves []move) {
			for b := range flow.Buckets {
				if to := rng.IntN(cfg.Queues); rng.IntN(3) == 0 && to != int(s.owner[b]) {
					moves = s.move(moves, b, to)
					moved.Add(1)
				}
			}
			return moves
		}
		require.NoError(t, p.Run(t.Context()))
		require.Greater(t, moved.Load(), int64(1000))
		sameLines(t, want.records, got.records, "records, seed %d", seed)
		sameLines(t, want.alerts, got.alerts, "alerts")
	}
}

func TestPlanMovesLoadToTheIdlestWorkerAndReportsTheSkew(t *testing.T) {
	var s spread
	s.init(4)
	for b := range 16 { // all of worker 0
		s.load[b] = 1000
	}
	moves := s.plan(1.2)
	require.InDelta(t, 4, s.skew, 1e-9)
	require.Len(t, moves, 3)
	for i, m := range moves {
		require.Zero(t, m.from)
		require.Equal(t, i+1, m.to)
		require.Equal(t, 4, m.buckets.Len())
		for b := range flow.Buckets {
			require.Equal(t, m.buckets.Has(b), int(s.owner[b]) == m.to && b < 16)
		}
	}
	for b := range 16 {
		s.load[b] = 1000
	}
	require.Empty(t, s.plan(1.2))
	require.InDelta(t, 1, s.skew, 1e-9)
}

func TestPlanLeavesOneHeavyFlowAndSmallNumbersAlone(t *testing.T) {
	var s spread
	s.init(2)
	s.load[3] = 100_000
	require.Empty(t, s.plan(1.2), "a bucket that is the whole load")
	require.InDelta(t, 2, s.skew, 1e-9)
	s.load[3], s.load[4] = packetsPerLook/2-1, packetsPerLook/2
	require.Empty(t, s.plan(1.2))
	s.load[3], s.load[4] = 10_000, 10_000
	require.Empty(t, s.plan(0), "no limit")
}

// TestRebalanceEvensOutTheQueues: flows whose hashes all fall to one of two queues end up
// on both, and the snapshot says so.
func TestRebalanceEvensOutTheQueues(t *testing.T) {
	list := traffic(7, 60_000)
	for i := range list {
		list[i].TimestampNs = 1_700_000_000_000_000_000 + int64(i)*1e5
	}
	for _, limit := range []float64{0, 1.1} {
		p, err := New(Config{Source: &frames{list: list}, Sink: &lines{}, Queues: 2, Batch: 64, RebalanceSkew: limit})
		require.NoError(t, err)
		for b := range flow.Buckets { // as if all hashes fell into a quarter of the space
			p.spread.owner[b] = uint16(max(0, b-250) / 3)
		}
		require.NoError(t, p.Run(t.Context()))
		s := snapshotOf(p)
		busy, idle := max(s.Queues[0].Packets, s.Queues[1].Packets), min(s.Queues[0].Packets, s.Queues[1].Packets)
		if limit == 0 {
			require.Greater(t, busy, 10*idle)
			require.Zero(t, s.Engine.MovedBuckets)
			require.Greater(t, s.Engine.QueueSkew, 1.8)
			continue
		}
		require.Less(t, busy, 2*idle)
		require.NotZero(t, s.Engine.MovedBuckets)
		require.Less(t, s.Engine.QueueSkew, 1.3)
		require.Zero(t, s.Missing())
	}
}
