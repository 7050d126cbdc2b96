package cpu

import (
	"math"
	"sync"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/pipeline/sums"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// collector puts the events of all queues into one order and acts on them. mu is
// held while it acts, so that a snapshot sees whole events.
type collector struct {
	p     *Pipeline
	in    chan *events
	lanes []lane

	mu       sync.Mutex
	detector *detect.Detector
	sum      *sums.Sum
	alerts   uint64
}

// lane is what one queue has sent and the collector has not yet acted on.
type lane struct {
	fifo []*events
	next int // next event of fifo[0]
	mark position
}

func newCollector(p *Pipeline) (*collector, error) {
	c := &collector{p: p, in: make(chan *events, 2*p.cfg.Queues), lanes: make([]lane, p.cfg.Queues), sum: sums.New()}
	c.detector = detect.New(p.cfg.Detect, c.alert)
	return c, nil
}

func (c *collector) run() {
	for e := range c.in {
		l := &c.lanes[e.queue]
		l.fifo = append(l.fifo, e)
		c.mu.Lock()
		c.drain()
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.detector.Flush(c.p.clock.NowNs)
	c.mu.Unlock()
}

// head returns the position of the lane's next event, or how far it is known to have none.
func (l *lane) head() (at position, ready bool) {
	if len(l.fifo) > 0 {
		return l.fifo[0].list[l.next].at, true
	}
	return l.mark, false
}

// settle gives finished parts back to their worker.
func (c *collector) settle(l *lane) {
	for len(l.fifo) > 0 && l.next == len(l.fifo[0].list) {
		e := l.fifo[0]
		l.mark, l.next = e.mark, 0
		l.fifo = append(l.fifo[:0], l.fifo[1:]...)
		c.p.workers[e.queue].free <- e
	}
}

// drain acts on all events that no queue can precede any more.
func (c *collector) drain() {
	for i := range c.lanes {
		c.settle(&c.lanes[i])
	}
	for {
		best, bound := -1, position{math.MaxUint64, true, math.MaxUint64}
		var first position
		for i := range c.lanes {
			at, ready := c.lanes[i].head()
			switch {
			case best >= 0 && !at.less(first):
				if at.less(bound) {
					bound = at
				}
			case ready:
				if best >= 0 && first.less(bound) {
					bound = first
				}
				best, first = i, at
			case best >= 0:
				return // a lane without events may still send something earlier
			default:
				if at.less(bound) {
					bound = at
				}
			}
		}
		if best < 0 || bound.less(first) {
			return
		}
		l := &c.lanes[best]
		for len(l.fifo) > 0 {
			e := l.fifo[0]
			for l.next < len(e.list) && !bound.less(e.list[l.next].at) {
				c.act(e, &e.list[l.next])
				l.next++
			}
			if l.next < len(e.list) {
				break
			}
			c.settle(l)
		}
	}
}

func (c *collector) act(e *events, v *event) {
	switch v.kind {
	case eventStart:
		c.detector.FlowStart(&e.starts[v.index])
	case eventEnd:
		c.end(&e.records[v.index])
	case eventAlert:
		if a := &e.alerts[v.index]; a.Kind != "" {
			c.alert(a)
		}
	case eventTick:
		c.detector.Tick(e.ticks[v.index])
	}
}

func (c *collector) alert(a *telemetry.Alert) {
	c.alerts++
	a.Interface = c.p.cfg.Interface
	c.p.cfg.Sink.Alert(a)
}

func (c *collector) end(r *telemetry.Record) {
	c.sum.Add(r)
	c.detector.FlowEnd(r)
	c.p.cfg.Sink.Record(r)
}
