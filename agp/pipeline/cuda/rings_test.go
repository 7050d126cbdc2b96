package cuda_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// TestATableHasRoomForTheFlowsItIsFor: none is evicted when as many are there as there may be.
func TestATableHasRoomForTheFlowsItIsFor(t *testing.T) {
	for _, flows := range []int{1 << 8, 1 << 12, 1 << 16} {
		traffic, err := model.NewTraffic(model.Profile{Seed: 1, Packets: uint64(flows), SYNFlood: 1}) // each another flow
		require.NoError(t, err)
		sink := &counting{}
		p, err := cuda.New(cuda.Config{
			Device: simt.Device(t), Source: traffic, Sink: sink, Rings: 2, Shards: 2, LogRQ: 9, LogRecords: 16, Lossless: true, Patience: 2 * time.Minute,
			Flow: flow.Config{MaxFlows: flows},
		})
		require.NoError(t, err)
		require.NoError(t, p.Run(t.Context()))
		started, evicted := 0, 0
		for ring := range 2 {
			_, shards := p.Counters(ring)
			for _, d := range shards {
				started += int(d.Started)
				evicted += int(d.Evicted)
			}
		}
		require.NoError(t, p.Close())
		require.Equal(t, flows, started)
		require.Zero(t, evicted, "of %d", flows)
	}
}

// TestQueuesInTheDevicesMemory: the host sees no byte of them, and several rings share a
// multiprocessor; nothing is lost.
func TestQueuesInTheDevicesMemory(t *testing.T) {
	dev, sink := simt.Device(t), &counting{}
	var feed *producer
	p, err := cuda.New(cuda.Config{
		Device: dev, Sink: sink, Rings: 3, PerBlock: 2, Shards: 2, LogRQ: 7, Pitch: 128, LogRecords: 16, Lossless: true, Patience: 2 * time.Minute,
		Flow: flow.Config{MaxFlows: 1 << 12}, OnDevice: true,
		Port: func(queues []mlx5.Queue) (_ cuda.Feeder, err error) {
			for _, q := range queues {
				require.Empty(t, q.CQ)
				require.Empty(t, q.RQDB)
				require.NotZero(t, q.Addr)
			}
			feed, err = newProducer(dev, queues, abi.NIC{Warps: 2, Packets: 4096, Flows: 100, FrameLen: 60, Seed: 1, StartNs: 1_700_000_000_000_000_000, GapNs: 1000, PerFlow: 6})
			return feed, err
		},
	})
	require.NoError(t, err)
	blocks, warps := p.Grid()
	require.Equal(t, []int{2, 6}, []int{blocks, warps})
	params, rings, shards := p.Memory()
	require.EqualValues(t, 3, params.Count)
	require.Len(t, rings, 3)
	require.Len(t, shards[2], 2)
	require.NoError(t, p.Run(t.Context()))
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Equal(t, []uint64{3 * 4096, 3 * 4096, 0}, []uint64{feed.total(), s.Engine.PacketsRecorded, uint64(s.Missing())})
	var started uint64
	for i := range rings {
		st, parts := p.Counters(i)
		require.EqualValues(t, 4096, st.Frames)
		for _, d := range parts {
			started += d.Started
		}
	}
	// 100 flows of 6 packets side by side: 6 whole sets of each ring, and a seventh of which 4096 - 3600 packets are sent.
	require.EqualValues(t, 3*(6*100+100), started)
	require.Equal(t, started, sink.records)
	require.NoError(t, p.Close())
	feed.free(t)
}

func TestRingsThatCannotBe(t *testing.T) {
	port := func([]mlx5.Queue) (cuda.Feeder, error) { return nil, nil }
	for name, c := range map[string]cuda.Config{
		"relay into the device's memory": {OnDevice: true},
		"too many warps in a block":      {Port: port, PerBlock: 3, Shards: 4},
		"less than one in a block":       {Port: port, PerBlock: -1},
		"too many shards":                {Port: port, Shards: abi.Shards + 1},
	} {
		_, err := cuda.New(c)
		require.ErrorIs(t, err, cuda.ErrConfig, name)
	}
}
