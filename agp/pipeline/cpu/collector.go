package cpu

import (
	"math"
	"sync"

	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
)

// collector puts the events of all queues into one order and acts on them. mu is
// held while it acts, so that a snapshot sees whole events.
type collector struct {
	p     *Pipeline
	in    chan *events
	lanes []lane

	mu    sync.Mutex
	found *score.Findings
}

// lane is what one queue has sent and the collector has not yet acted on.
type lane struct {
	fifo []*events
	next int // next event of fifo[0]
	mark score.Position
}

func newCollector(p *Pipeline) *collector {
	return &collector{p: p, in: make(chan *events, 2*p.cfg.Queues), lanes: make([]lane, p.cfg.Queues), found: score.NewFindings(p.cfg.Sink, p.cfg.Interface, &p.cfg.Detect)}
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
	c.found.Detector.Flush(c.p.clock.NowNs)
	c.mu.Unlock()
}

// head returns the position of the lane's next event, or how far it is known to have none.
func (l *lane) head() (at score.Position, ready bool) {
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
		best, bound := -1, score.Last(math.MaxUint64)
		var first score.Position
		for i := range c.lanes {
			at, ready := c.lanes[i].head()
			switch {
			case best >= 0 && !at.Less(first):
				if at.Less(bound) {
					bound = at
				}
			case ready:
				if best >= 0 && first.Less(bound) {
					bound = first
				}
				best, first = i, at
			case best >= 0:
				return // a lane without events may still send something earlier
			default:
				if at.Less(bound) {
					bound = at
				}
			}
		}
		if best < 0 || bound.Less(first) {
			return
		}
		l := &c.lanes[best]
		for len(l.fifo) > 0 {
			e := l.fifo[0]
			for l.next < len(e.list) && !bound.Less(e.list[l.next].at) {
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
		c.found.Detector.FlowStart(&e.starts[v.index])
	case eventEnd:
		c.found.Record(&e.records[v.index])
	case eventAlert:
		if a := &e.alerts[v.index]; a.Kind != "" {
			c.found.Alert(a)
		}
	case eventTick:
		c.found.Detector.Tick(e.ticks[v.index])
	}
}
