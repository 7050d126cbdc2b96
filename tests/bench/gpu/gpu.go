package gpu

import (
	"context"
	"time"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
)

// Test is a measurement of packets per second.
type Test struct {
	Shape
	Feeders    int    // warps of the NIC model per ring
	NewPer1024 int    // packets in 1024 that are the first of a flow
	Prefill    bool   // the rings are full before they are read
	Packets    uint64 // per ring
	Pace       uint32 // 0: as fast as there is credit
	Alone      bool   // nobody takes the packets: what the NIC model's kernel does by itself
	// Around is called when everything runs, and when it has ended.
	Around func(running bool)
}

// Result of a Test.
type Result struct {
	Seconds             float64
	Sent, Seen, Started uint64 // packets, packets in flows, flows
	Records, Lost       uint64 // written and for which there was no room
	Evicted             uint64
	Late                uint64 // batches that were due before there was credit
	// Cycles of a batch by stage, see abi.Stats and abi.ShardStats, and packets of a state warp's.
	Receive, State [abi.Stages]float64
	StatePackets   float64
}

// Rate is packets per second.
func (r *Result) Rate() float64 {
	if r.Seconds == 0 {
		return 0
	}
	return float64(r.Seen) / r.Seconds
}

// Measure runs a test.
func Measure(g cuda.Device, t Test) (res Result, err error) {
	b, err := newBed(g, t.Shape, nil)
	if err != nil {
		return res, err
	}
	defer func() {
		if late := b.close(); err == nil {
			err = late
		}
	}()
	if t.Prefill {
		logRQ := uint32(12)
		for 1<<logRQ < t.Packets {
			logRQ++
		}
		if err := b.queues(logRQ, logRQ, b.alloc); err != nil {
			return res, err
		}
	}
	rings, err := b.table()
	if err != nil {
		return res, err
	}
	feeder := b.newNIC(rings, t.Rings, max(t.Feeders, feedersPerBlock), abi.NIC{
		Flows: uint32(t.Flows), FrameLen: uint32(t.FrameLen), Packets: t.Packets, GapNs: 100, NewPer1024: uint32(t.NewPer1024), Pace: t.Pace,
	})
	if b.err != nil {
		return res, b.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if t.Prefill || t.Alone {
		feeder.params.Prefill = 1
	}
	if t.Prefill {
		run, err := feeder.launch(g)
		if err == nil {
			err = b.ending(ctx, "prefilling", run, feeder)
		}
		if err != nil {
			return res, err
		}
	}
	begin := time.Now()
	var last, producer cuda.Run
	if !t.Alone {
		if last, err = b.serve(t.Packets); err != nil {
			return res, err
		}
	}
	if !t.Prefill {
		if producer, err = feeder.launch(g); err != nil {
			b.tell(abi.CommandStop, 0)
			if last != nil {
				_ = last.Wait(context.Background())
			}
			return res, err
		}
		defer func() {
			if late := producer.Wait(context.Background()); err == nil {
				err = late
			}
			res.Late = feeder.waited()
		}()
	}
	if t.Alone {
		last = producer
	}
	if t.Around != nil {
		t.Around(true)
	}
	if err := b.ending(ctx, "packets", last, feeder); err != nil {
		return res, err
	}
	res = Result{Seconds: time.Since(begin).Seconds(), Sent: t.Packets * uint64(t.Rings)}
	if t.Around != nil {
		t.Around(false)
	}
	b.count(&res)
	if t.Alone {
		res.Seen = res.Sent
	}
	return res, nil
}

// count reads the device's counters.
func (b *bed) count(res *Result) {
	for i := range b.rings {
		s, shards := b.p.Counters(i)
		res.Seen += s.Drops[0]
		mean(res.Receive[:], s.Cycles[:], s.Timed, len(b.rings))
		for _, d := range shards {
			res.Started += d.Started
			res.Records += d.Records
			res.Lost += d.LostRecords
			res.Evicted += d.Evicted
			mean(res.State[:], d.Cycles[:], d.Timed, len(b.rings)*len(shards))
			res.StatePackets += float64(d.TimedPackets) / float64(max(d.Timed, 1)) / float64(len(b.rings)*len(shards))
		}
	}
}

// mean adds one of so many to the mean cycles of a batch.
func mean(to []float64, cycles []uint64, timed uint64, of int) {
	for i := range to {
		to[i] += float64(cycles[i]) / float64(max(timed, 1)) / float64(of)
	}
}

// Polling lets the kernel look for packets that do not come, and calls during meanwhile.
func Polling(g cuda.Device, s Shape, during func()) (err error) {
	b, err := newBed(g, s, nil)
	if err != nil {
		return err
	}
	defer func() {
		if late := b.close(); err == nil {
			err = late
		}
	}()
	if _, err := b.table(); err != nil {
		return err
	}
	run, err := b.serve(0)
	if err != nil {
		return err
	}
	during()
	b.tell(abi.CommandStop, 0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.ending(ctx, "polling", run, nil)
}
