// Package gpu measures the packet path of a device that is fed by the NIC model on the same
// device. It starts no goroutine of its own; times are seconds of the host's clock.
package gpu

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
)

// Test is one measurement.
type Test struct {
	Rings, Warps int    // rings per block
	Shards       int    // state warps per ring
	Feeders      int    // warps of the NIC model per ring
	Flows        int    // per ring
	NewPer1024   int    // packets in 1024 that are the first of a flow
	Prefill      bool   // the rings are full before they are read
	Packets      uint64 // per ring
	FrameLen     int    // without FCS
}

// Result of a Test.
type Result struct {
	Seconds             float64
	Sent, Seen, Started uint64 // packets, packets in flows, flows
	Records, Lost       uint64 // written and for which there was no room
	// Cycles of a batch by stage, see abi.Stats and abi.ShardStats, and packets of a state warp's.
	Receive, State [abi.Stages]float64
	StatePackets   float64
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

type memory struct {
	g    cuda.Device
	held []cuda.Addr
	err  error
}

func (m *memory) alloc(n int) cuda.Addr {
	if m.err != nil {
		return 0
	}
	a, err := m.g.Alloc(n)
	m.err = err
	m.held = append(m.held, a)
	return a
}

func (m *memory) mapped(n int) cuda.Mapped {
	if m.err != nil {
		return cuda.Mapped{Bytes: make([]byte, n)}
	}
	b, err := m.g.AllocMapped(n)
	m.err = err
	m.held = append(m.held, b.Addr)
	return b
}

func (m *memory) free() {
	for _, a := range m.held {
		_ = m.g.Free(a)
	}
}

// Measure runs a test.
func Measure(g cuda.Device, t Test) (res Result, err error) {
	m := &memory{g: g}
	defer m.free()
	const logRecords, pitch = 22, 128
	logRQ := uint32(12)
	if t.Prefill {
		for logRQ = 12; 1<<logRQ < t.Packets; logRQ++ {
		}
	}
	buckets := (t.Flows/t.Shards*3/2+64)/abi.Ways + 1
	places := buckets * abi.Ways
	control, nicControl, sent := m.mapped(64), m.mapped(64), m.mapped(8*t.Rings)
	var table []byte
	stats := make([]*abi.Stats, t.Rings)
	var shardStats []*abi.ShardStats
	for i := range t.Rings {
		db := m.alloc(4096)
		cq := m.alloc(64 << (logRQ + 1))
		shared := m.mapped(4096 + 8192)
		stats[i] = (*abi.Stats)(unsafe.Pointer(&shared.Bytes[4096]))
		var shards []byte
		for range t.Shards {
			own := m.mapped(4096)
			shardStats = append(shardStats, (*abi.ShardStats)(unsafe.Pointer(&own.Bytes[1024])))
			d := abi.Shard{
				Tags: m.alloc(4 * places), Due: m.alloc(4 * places), Flows: m.alloc(448 * places), Hists: m.alloc(640 * places),
				State: m.alloc(int(unsafe.Sizeof(abi.ShardState{}))), Stats: own.Addr + 1024, Buckets: uint32(buckets),
				Out: abi.Out{Buf: m.alloc(1 << logRecords), Head: own.Addr, Tail: own.Addr + 128, LogSize: logRecords},
			}
			shards = append(shards, bytesOf(&d)...)
		}
		r := abi.Ring{
			CQ: cq, CQDB: db, RQDB: db + 128, Payload: m.alloc(pitch << logRQ),
			LogCQ: logRQ + 1, LogRQ: logRQ, Pitch: pitch,
			Fragments: m.alloc(56 * 8 << 7), State: m.alloc(int(unsafe.Sizeof(abi.RingState{}))), Stats: shared.Addr + 4096, Resets: shared.Addr + 256,
			Shards: m.alloc(len(shards)), LogFragments: 7,
		}
		if m.err != nil {
			return res, m.err
		}
		table = append(table, bytesOf(&r)...)
		if err := g.Write(r.Shards, shards); err != nil {
			return res, err
		}
		if err := g.Write(cq, bytes.Repeat([]byte{0xff}, 64<<(logRQ+1))); err != nil {
			return res, err
		}
		var word [4]byte
		mlx5.StoreBE32(word[:], mlx5.RQDoorbell(1<<logRQ))
		if err := g.Write(db+128, word[:]); err != nil {
			return res, err
		}
	}
	rings := m.alloc(len(table))
	if m.err != nil {
		return res, m.err
	}
	if err := g.Write(rings, table); err != nil {
		return res, err
	}
	params := abi.Params{
		Control: control.Addr, Rings: rings, Count: uint32(t.Rings), Batch: 32, IdleNs: 60e9, ActiveNs: 300e9, LingerNs: 10e9,
		Seed: 12345, Limit: t.Packets, Shards: uint32(t.Shards), PerBlock: uint32(t.Warps),
	}
	feeders := max(t.Feeders, 4)
	nic := abi.NIC{
		Control: nicControl.Addr, Rings: rings, Sent: sent.Addr, Count: uint32(t.Rings), Warps: uint32(feeders), Flows: uint32(t.Flows),
		FrameLen: uint32(t.FrameLen), Packets: t.Packets, Seed: 7, StartNs: 1_700_000_000_000_000_000, GapNs: 100, NewPer1024: uint32(t.NewPer1024),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if t.Prefill {
		nic.Prefill = 1
		run, err := g.Launch("agp_nic_send", t.Rings*feeders, 1, 0, bytesOf(&nic))
		if err == nil {
			err = run.Wait(ctx)
		}
		if err != nil {
			return res, err
		}
	}
	begin := time.Now()
	warps, sharedBytes := cuda.Block(t.Warps, t.Shards)
	consumer, err := g.Launch("agp_rings", (t.Rings+t.Warps-1)/t.Warps, warps, sharedBytes, bytesOf(&params))
	if err != nil {
		return res, err
	}
	if !t.Prefill {
		producer, err := g.Launch("agp_nic_send", t.Rings*feeders/4, 4, 0, bytesOf(&nic))
		if err != nil {
			return res, err
		}
		defer func() { _ = producer.Wait(context.Background()) }()
	}
	if err := consumer.Wait(ctx); err != nil {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&control.Bytes[0])), abi.CommandStop)
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&nicControl.Bytes[0])), abi.CommandStop)
		_ = consumer.Wait(context.Background())
		return res, fmt.Errorf("%+v: ring 0 %+v: %w", t, *stats[0], err)
	}
	res = Result{Seconds: time.Since(begin).Seconds(), Sent: t.Packets * uint64(t.Rings)}
	for _, s := range stats {
		res.Seen += s.Drops[0]
		for i := range res.Receive {
			res.Receive[i] += float64(s.Cycles[i]) / float64(max(s.Timed, 1)) / float64(len(stats))
		}
	}
	for _, s := range shardStats {
		res.Started += s.Started
		res.Records += s.Records
		res.Lost += s.LostRecords
		for i := range res.State {
			res.State[i] += float64(s.Cycles[i]) / float64(max(s.Timed, 1)) / float64(len(shardStats))
		}
		res.StatePackets += float64(s.TimedPackets) / float64(max(s.Timed, 1)) / float64(len(shardStats))
	}
	return res, nil
}
