package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// LoadTest runs the pipeline as the engine does, fed by the NIC model's kernel.
type LoadTest struct {
	Shape
	Feeders   int
	Pace      uint32
	Packets   uint64        // per ring
	Telemetry time.Duration // between snapshots; 0: none
	Handovers int           // of the kernel, spread evenly over Length
	Length    time.Duration // about as long as the packets last
	AtEnd     func()        // called under full load, when its CPU time has been taken
}

// LoadResult is what came of it.
type LoadResult struct {
	Seconds         float64 // of full load, for which CPU was taken
	Fed             float64 // seconds until all was sent
	Sent, Seen      uint64
	Late, Missing   uint64 // batches that were due before there was credit; packets that are nowhere
	CPU             time.Duration
	Snapshots       int
	SnapshotCPU     time.Duration   // part of CPU: during snapshots
	Gaps            []time.Duration // of the handovers
	RSS             uint64          // bytes, under full load
	DeviceAllocated uint64          // bytes of the pipeline's own
	RecordRings     uint64          // bytes in host memory
	Batches         Result          // times of a batch
}

// port is the NIC model's kernel as what feeds a pipeline.
type port struct {
	memory
	*nic
	t       *LoadTest
	started chan struct{} // closed when it runs
	res     *LoadResult

	snapshotCPU atomic.Int64
}

func newPort(g cuda.Device, queues []mlx5.Queue, t *LoadTest, res *LoadResult) (*port, error) {
	p := &port{memory: memory{g: g}, t: t, started: make(chan struct{}), res: res}
	var table []byte
	for i := range queues {
		q := &queues[i]
		o := q.Offsets()
		base := cuda.Addr(q.Addr - o.Payload)
		table = append(table, bytesOf(&abi.Ring{
			CQ: base + cuda.Addr(o.CQ), CQDB: base + cuda.Addr(o.CQDB), RQDB: base + cuda.Addr(o.RQDB), Payload: cuda.Addr(q.Addr),
			LogCQ: uint32(q.LogCQ), LogRQ: uint32(q.LogRQ), Pitch: q.Pitch,
		})...)
	}
	p.nic = p.newNIC(p.write(table), len(queues), max(t.Feeders, feedersPerBlock), abi.NIC{
		Flows: uint32(t.Flows), FrameLen: uint32(t.FrameLen), Packets: t.Packets, GapNs: 100, Pace: t.Pace,
	})
	return p, p.err
}

// Run implements cuda.Feeder.
func (p *port) Run(ctx context.Context) error {
	run, err := p.launch(p.g)
	if err != nil {
		return err
	}
	cpu, begin := processTime(), time.Now()
	close(p.started)
	ending := time.NewTimer(p.t.Length * 9 / 10)
	defer ending.Stop()
	taken := false
	take := func() {
		if taken {
			return
		}
		taken = true
		p.res.CPU, p.res.Seconds = processTime()-cpu, time.Since(begin).Seconds()
		p.res.SnapshotCPU = time.Duration(p.snapshotCPU.Load())
		p.res.RSS = resident()
		if p.t.AtEnd != nil {
			p.t.AtEnd()
		}
	}
	for {
		select {
		case <-ending.C:
			take()
			continue
		case <-ctx.Done():
			p.stop()
			<-run.Done()
		case <-run.Done():
		}
		take()
		p.res.Fed = time.Since(begin).Seconds()
		return errors.Join(context.Cause(ctx), run.Wait(context.Background()))
	}
}

// ClockNs implements cuda.Feeder.
func (p *port) ClockNs() int64 { return startNs + int64(p.t.Packets)*int64(p.params.GapNs) }

// Stats implements cuda.Feeder.
func (p *port) Stats() source.Stats { return source.Stats{} }

// Interrupt implements cuda.Feeder.
func (p *port) Interrupt() { p.stop() }

// Stop is not needed: the model's kernel makes no errors.
func (p *port) Stop(int) error { return cuda.ErrRing }

// Start is not needed.
func (p *port) Start(int) error { return cuda.ErrRing }

// counts is a sink that counts.
type counts struct{ records, packets atomic.Uint64 }

func (c *counts) Record(r *telemetry.Record) {
	c.records.Add(1)
	c.packets.Add(r.Dir[0].Packets + r.Dir[1].Packets)
}
func (*counts) Alert(*telemetry.Alert) {}

// Load runs a test.
func Load(g cuda.Device, t LoadTest) (res LoadResult, err error) {
	var feeder *port
	sink := &counts{}
	c := t.config(g, func(queues []mlx5.Queue) (_ cuda.Feeder, err error) {
		feeder, err = newPort(g, queues, &t, &res)
		return feeder, err
	})
	c.Sink, c.LogRecords, c.Lossless, c.Patience = sink, 0, true, patience
	p, err := cuda.New(c)
	defer func() {
		if feeder != nil {
			err = errors.Join(err, feeder.free())
		}
	}()
	if err != nil {
		return res, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	beside, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() { failed = feeder.beside(beside, p) })
	err = p.Run(ctx)
	end()
	wg.Wait()
	if err = errors.Join(err, failed); err == nil {
		var s telemetry.Snapshot
		p.Snapshot(&s)
		res.Sent, res.Seen, res.Late = t.Packets*uint64(t.Rings), s.Engine.PacketsSeen, feeder.waited()
		res.Missing = res.Sent - sink.packets.Load()
		res.DeviceAllocated = s.Engine.StateBytes
		_, rings, shards := p.Memory()
		(&bed{p: p, rings: rings}).count(&res.Batches)
		for i := range shards {
			for j := range shards[i] {
				res.RecordRings += 1 << shards[i][j].Out.LogSize
			}
		}
		if m := s.Missing(); m != 0 {
			err = fmt.Errorf("%w: the pipeline's own sum misses %d packets", errSum, m)
		}
	}
	return res, errors.Join(err, p.Close())
}

// beside takes snapshots and exchanges the kernel while the pipeline runs.
func (p *port) beside(ctx context.Context, pipe *cuda.Pipeline) error {
	select {
	case <-p.started:
	case <-ctx.Done():
		return nil
	}
	var snapshots, handovers <-chan time.Time
	if p.t.Telemetry > 0 {
		t := time.NewTicker(p.t.Telemetry)
		defer t.Stop()
		snapshots = t.C
	}
	if p.t.Handovers > 0 {
		t := time.NewTicker(p.t.Length / time.Duration(p.t.Handovers+1))
		defer t.Stop()
		handovers = t.C
	}
	var s telemetry.Snapshot
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-snapshots:
			before := processTime()
			pipe.Snapshot(&s)
			p.res.Snapshots++
			p.snapshotCPU.Add(int64(processTime() - before))
		case <-handovers:
			gap, err := pipe.Handover(ctx, nil)
			if ctx.Err() != nil || errors.Is(err, cuda.ErrEnded) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("handover: %w", err)
			}
			if p.res.Gaps = append(p.res.Gaps, gap); len(p.res.Gaps) == p.t.Handovers {
				handovers = nil
			}
		}
	}
}

// resident is the memory of the process in bytes.
func resident() uint64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(f[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}
