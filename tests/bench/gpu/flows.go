package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// errSum says that the records do not contain what was sent.
var errSum = errors.New("records do not add up")

// FlowTest is a measurement of new flows per second: each has all its packets, ends, and its record is
// read by the host.
type FlowTest struct {
	Shape          // Flows: that the tables have room for
	Feeders    int // warps of the NIC model per ring
	PerFlow    int // packets of a flow: from 5 on, connections, else UDP
	Open       int // flows of a ring that are sent side by side
	Packets    uint64
	GapNs      uint32 // between packets of a ring in their own time, in which a flow ends after EndNs
	EndNs      int64
	Pace       uint32
	LogRecords uint8 // bytes of a record ring
}

// FlowResult is what came of it.
type FlowResult struct {
	Seconds       float64
	Packets       uint64 // sent
	Flows         uint64 // sent
	Records       uint64 // that the device has written until the last packet was taken
	Bytes         uint64 // of these
	Closed        uint64 // records of connections that were closed, in the end
	Lost, Evicted uint64 // without room in a record ring, or in the table
	Late          uint64
	Batches       Result        // times of a batch
	CPU           time.Duration // of the process, until then
}

// Rate is flows per second.
func (r *FlowResult) Rate() float64 { return float64(r.Flows) / r.Seconds }

// reader takes the records of a ring's shards, each as it comes, and adds their packets up.
type reader struct {
	shards                          []recordRing
	records, packets, bytes, closed atomic.Uint64
}

type recordRing struct {
	buf        []byte
	head, tail *uint64
}

// take takes what is there.
func (r *reader) take() (n int) {
	for _, s := range r.shards {
		tail, head := *s.tail, atomic.LoadUint64(s.head)
		from, packets, closed := tail, uint64(0), uint64(0)
		for records := 0; tail != head; {
			m := s.buf[tail&uint64(len(s.buf)-1):]
			h := (*abi.Record)(unsafe.Pointer(&m[0]))
			tail += uint64(h.Size)
			if h.Kind == abi.RecordFlow {
				f := (*abi.Flow)(unsafe.Pointer(&m[unsafe.Sizeof(*h)]))
				packets += f.Dir[0].Packets + f.Dir[1].Packets
				if telemetry.EndReason(h.Reason) == telemetry.EndTCP {
					closed++
				}
				n++
				records++
			}
			if records%256 == 255 || tail == head { // room goes back before all is read
				atomic.StoreUint64(s.tail, tail)
			}
		}
		r.packets.Add(packets)
		r.closed.Add(closed)
		r.bytes.Add(tail - from)
	}
	r.records.Add(uint64(n))
	return n
}

// run takes records until it is told to stop and there are no more.
func (r *reader) run(stop *atomic.Bool) {
	for {
		last := stop.Load()
		if n := r.take(); n > 0 {
			continue
		}
		if last {
			return
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// readers puts the record rings of all shards into memory that the host reads.
func (b *bed) readers(logRecords uint8) []*reader {
	const line = 128
	list := make([]*reader, len(b.shards))
	for i := range b.shards {
		list[i] = &reader{}
		for j := range b.shards[i] {
			m := b.mapped(4096 + 1<<logRecords)
			list[i].shards = append(list[i].shards, recordRing{m.Bytes[4096:], (*uint64)(unsafe.Pointer(&m.Bytes[0])), (*uint64)(unsafe.Pointer(&m.Bytes[line]))})
			b.shards[i][j].Out = abi.Out{Buf: m.Addr + 4096, Head: m.Addr, Tail: m.Addr + line, LogSize: uint32(logRecords)}
		}
	}
	return list
}

// NewFlows runs a test. The error is one of the sums: what was sent is in records, to the packet.
func NewFlows(g cuda.Device, t FlowTest) (res FlowResult, err error) {
	b, err := newBed(g, t.Shape, func(c *cuda.Config) { c.Flow.IdleNs, c.Flow.LingerNs = t.EndNs, t.EndNs })
	if err != nil {
		return res, err
	}
	defer func() {
		if late := b.close(); err == nil {
			err = late
		}
	}()
	readers := b.readers(t.LogRecords)
	rings, err := b.table()
	if err != nil {
		return res, err
	}
	feeder := b.newNIC(rings, t.Rings, max(t.Feeders, feedersPerBlock), abi.NIC{
		Flows: uint32(t.Open), FrameLen: uint32(t.FrameLen), Packets: t.Packets, GapNs: t.GapNs, PerFlow: uint32(t.PerFlow), Pace: t.Pace,
	})
	// For the end: the device waits for the host then.
	for i := range b.rings {
		b.rings[i].Flags |= abi.FlagLossless
	}
	first := b.params.Rings
	waits, err := b.table()
	if err != nil {
		return res, err
	}
	b.params.Rings = first

	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for _, r := range readers {
		wg.Go(func() { r.run(&stop) })
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cpu, begin := processTime(), time.Now()
	consumer, err := b.serve(t.Packets)
	if err != nil {
		return res, err
	}
	producer, err := feeder.launch(g)
	if err != nil {
		b.tell(abi.CommandStop, 0)
		return res, errors.Join(err, consumer.Wait(context.Background()))
	}
	err = b.ending(ctx, "flows", consumer, feeder)
	res.Seconds, res.CPU = time.Since(begin).Seconds(), processTime()-cpu
	if err = errors.Join(err, producer.Wait(context.Background())); err != nil {
		return res, err
	}
	var counted Result
	b.count(&counted)
	res.Batches = counted
	res.Packets, res.Late = t.Packets*uint64(t.Rings), feeder.waited()
	row := uint64(t.Open * t.PerFlow)
	res.Flows = (t.Packets/row*uint64(t.Open) + min(t.Packets%row, uint64(t.Open))) * uint64(t.Rings)
	res.Records, res.Lost, res.Evicted = counted.Records, counted.Lost, counted.Evicted
	for _, r := range readers {
		res.Bytes += r.bytes.Load()
	}

	// What is still in the tables.
	b.params.Rings = waits
	b.tell(abi.CommandFlush, startNs+int64(t.Packets)*int64(t.GapNs))
	flush, err := b.serve(0)
	if err == nil {
		err = b.ending(ctx, "flush", flush, nil)
	}
	if err != nil {
		return res, err
	}
	stop.Store(true)
	wg.Wait()
	var records, packets uint64
	for _, r := range readers {
		records += r.records.Load()
		packets += r.packets.Load()
		res.Closed += r.closed.Load()
	}
	var all Result
	b.count(&all)
	switch {
	case all.Seen != res.Packets:
		err = fmt.Errorf("%w: %d packets were sent, %d are in flows", errSum, res.Packets, all.Seen)
	case records != all.Records:
		err = fmt.Errorf("%w: the device has written %d records, the host has read %d", errSum, all.Records, records)
	case all.Lost == 0 && packets != res.Packets:
		err = fmt.Errorf("%w: %d packets were sent, %d are in records and none was lost", errSum, res.Packets, packets)
	case all.Lost == 0 && all.Evicted == 0 && records != res.Flows:
		err = fmt.Errorf("%w: %d flows were sent and none was evicted or lost, the host has read %d records", errSum, res.Flows, records)
	}
	return res, err
}

// processTime is what the process has used of the CPUs.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
