package cpu

import (
	"fmt"
	"sync"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// worker owns one queue. mu is held while a batch is processed but for the time
// that the worker waits for the collector, so that a snapshot sees the state
// between two callbacks of the table and never waits for the sink.
type worker struct {
	p    *Pipeline
	id   int
	in   chan *work
	free chan *events
	out  *events
	at   score.Position // of what is happening now

	segment flow.Packet // of a frame that is several on the wire

	mu       sync.Mutex
	table    *flow.Table
	sketches *summary.Sketches
	scorer   *score.Scorer
	counters queueCounters
}

type queueCounters struct {
	packets, bytes uint64
}

func newWorker(p *Pipeline, id int) (*worker, error) {
	w := &worker{p: p, id: id, in: make(chan *work, 2), free: make(chan *events, 4)}
	for range cap(w.free) {
		w.free <- &events{queue: id}
	}
	w.out = <-w.free
	w.table = flow.NewTable(p.cfg.Flow, w)
	w.scorer = score.New(w, &p.answers)
	w.use(p.models.Load())
	var err error
	if w.sketches, err = summary.New(&p.cfg.Sketch, p.cfg.Key); err != nil {
		err = fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return w, err
}

func (w *worker) run() {
	for b := range w.in {
		w.batch(b)
		b.release(w.p.free)
	}
}

func (w *worker) batch(b *work) {
	w.mu.Lock()
	w.use(w.p.models.Load())
	w.scorer.Taken = b.taken
	w.at = score.Position{Seq: b.first}
	w.exchange(b.moves)
	ticks := b.ticks
	mine := b.queues[w.id]
	for n, i := range mine {
		w.prefetch(b, mine, n)
		for len(ticks) > 0 && ticks[0].before <= int(i) {
			w.tick(ticks[0])
			ticks = ticks[1:]
		}
		w.add(&b.packets[i])
	}
	for _, t := range ticks {
		w.tick(t)
	}
	if b.flush {
		w.at = score.Position{Seq: b.seq}
		w.table.Flush(b.nowNs)
	}
	w.scorer.Flush()
	w.sketches.Flush()
	w.mu.Unlock()
	w.send(score.Last(b.seq))
}

// How many packets ahead of Add the index and the state are asked for.
const (
	prefetchIndex = 16
	prefetchState = 8
)

func (w *worker) prefetch(b *work, mine []uint16, n int) {
	if n+prefetchIndex < len(mine) {
		w.table.PrefetchIndex(b.packets[mine[n+prefetchIndex]].Hash)
	}
	if n+prefetchState < len(mine) {
		w.table.PrefetchState(b.packets[mine[n+prefetchState]].Hash)
	}
}

func (w *worker) add(k *flow.Packet) {
	n := k.Segments()
	if n == 1 {
		w.one(k)
		return
	}
	for i := range n {
		k.Segment(&w.segment, i, n)
		w.one(&w.segment)
	}
}

func (w *worker) one(k *flow.Packet) {
	w.at = score.Position{Seq: k.Seq, Packet: true}
	w.counters.packets++
	w.counters.bytes += uint64(k.WireLen)
	_, delay := w.table.Add(k)
	w.sketches.Packet(k.L3Len, delay)
}

func (w *worker) tick(t tick) {
	w.at = score.Position{Seq: t.seq}
	w.table.Tick(t.ns)
	w.sketches.Tick(t.ns)
	if w.id == 0 { // time is the same for all queues: one tells the collector
		w.at = score.Ticked(t.seq)
		w.room()
		w.out.ticks = append(w.out.ticks, t.ns)
		w.event(eventTick, int32(len(w.out.ticks)-1))
	}
}

// event appends to out; room was made before.
func (w *worker) event(kind eventKind, index int32) {
	w.out.list = append(w.out.list, event{w.at, kind, index})
}

// room sends out on if it cannot take the events of one more callback. Indices
// into out stay valid until the next call.
func (w *worker) room() {
	if len(w.out.list)+eventsPerCallback > eventsPerBatch {
		w.scorer.Flush()
		w.mu.Unlock()
		w.send(w.at)
		w.mu.Lock()
	}
}

func (w *worker) send(mark score.Position) {
	w.out.mark = mark
	w.p.collector.in <- w.out
	w.out = <-w.free
	w.out.reset()
}

// Started implements flow.Handler.
func (w *worker) Started(r flow.Ref, k *flow.Packet) {
	w.room()
	e := w.table.Endpoints(r)
	w.sketches.Start(&e.Src, &e.Dst, e.DstPort, k)
	s := detect.FlowStart{
		Seq: k.Seq, TimeNs: k.TimestampNs, Src: e.Src, Dst: e.Dst, SrcPort: e.SrcPort, DstPort: e.DstPort,
		IPVersion: k.IPVersion, Protocol: k.Protocol, WireLen: k.WireLen,
	}
	if k.Protocol == packet.ProtoTCP {
		s.TCPFlags = k.TCPFlags
	}
	w.out.starts = append(w.out.starts, s)
	w.event(eventStart, int32(len(w.out.starts)-1))
}

// Progress implements flow.Handler.
func (w *worker) Progress(r flow.Ref, packets, bytes uint64) {
	e := w.table.Endpoints(r)
	w.sketches.Progress(&e, packets, bytes)
}

// Binned implements flow.Handler.
func (w *worker) Binned(hash uint64, size, delay []uint8) {
	w.sketches.Binned(hash, size, delay)
}

// Mature implements flow.Handler.
func (w *worker) Mature(r flow.Ref) {
	if w.p.cfg.Observe != nil {
		w.p.cfg.Observe(w.table, r, false)
	}
	w.room()
	w.mature(r)
}

// Ended implements flow.Handler.
func (w *worker) Ended(r flow.Ref, reason telemetry.EndReason) {
	if !w.at.Packet {
		w.at.Start = w.table.StartSeq(r)
	}
	if w.p.cfg.Observe != nil {
		w.p.cfg.Observe(w.table, r, true)
	}
	w.room()
	rec, i := w.out.record()
	w.table.Record(r, reason, rec)
	rec.Queue, rec.Interface = uint16(w.id), w.p.cfg.Interface
	w.ended(r, reason, rec, i)
	w.event(eventEnd, i)
}
