package runner

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/influxdata/telegraf"
)

const (
	// chunkSize is the most that goes into one write, and what makes a write
	// worth its while.
	chunkSize = 64 << 10
	// flushInterval is the longest a metric waits for company.
	flushInterval = 100 * time.Millisecond
	// idleInterval without a new metric flushes what there is.
	idleInterval = 10 * time.Millisecond
)

// queue holds encoded lines between the plugin and standard output. Any
// goroutine may add; exactly one runs write.
type queue struct {
	stats *stats
	max   int           // bytes; one metric may exceed it
	stall time.Duration // patience with a reader that does not read

	// chunks counts completed writes: the reader's progress.
	chunks atomic.Uint64

	mu      sync.Mutex
	enc     encoder
	buf     []byte // complete lines
	metrics uint64 // in buf
	room    chan struct{}
	stalled bool // the reader made no progress for stall; reset by progress
	urgent  bool // write without waiting for more
	closed  bool // no further metrics
	failed  bool // standard output is gone

	kick chan struct{}
	done chan struct{} // closed when write has returned
	pipe *pipe         // of write; valid after done
	err  error         // of write; valid after done
}

func newQueue(s *stats, size int, stall time.Duration) *queue {
	return &queue{
		stats: s,
		max:   size,
		stall: stall,
		enc:   encoder{stats: s, unique: newUnique(uniqueWindow), limit: maxLine},
		room:  make(chan struct{}),
		kick:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
}

func (q *queue) addFields(name string, tags map[string]string, fields map[string]any, t time.Time, counter, wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.admit(wait) {
		q.enc.fromMaps(tags, fields)
		q.append(name, t, counter)
	}
}

func (q *queue) addMetric(m telegraf.Metric, t time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.admit(true) {
		return false
	}
	q.enc.fromMetric(m)
	return q.append(m.Name(), t, m.Type() == telegraf.Counter)
}

func (q *queue) append(name string, t time.Time, counter bool) bool {
	before := len(q.buf)
	var ok bool
	if q.buf, ok = q.enc.encode(q.buf, name, t, counter); !ok {
		return false
	}
	q.metrics++
	q.stats.metrics.Add(1)
	q.stats.bytes.Add(uint64(len(q.buf) - before))
	if before == 0 || before < chunkSize && len(q.buf) >= chunkSize {
		q.wake()
	}
	return true
}

func (q *queue) wake() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// admit reports whether a metric may be appended, else it counts the drop. With
// wait it waits for room while the reader makes progress. Called and returns
// with mu held; releases it while it waits.
func (q *queue) admit(wait bool) bool {
	for {
		switch {
		case q.failed:
			q.stats.drop(dropOutputClosed)
			return false
		case q.closed:
			q.stats.drop(dropStopped)
			return false
		case len(q.buf) < q.max:
			return true
		case !wait || q.stalled:
			q.stats.drop(dropQueueFull)
			return false
		}
		room := q.room
		before := q.chunks.Load()
		q.mu.Unlock()
		timer := time.NewTimer(q.stall)
		select {
		case <-room:
			q.mu.Lock()
		case <-timer.C:
			q.mu.Lock()
			if q.chunks.Load() == before && len(q.buf) >= q.max {
				q.stalled = true
			}
		}
		timer.Stop()
	}
}

// waitRoom waits until the queue has room or quit is closed. Unlike admit it has
// no limit of patience: the caller wants back-pressure.
func (q *queue) waitRoom(quit <-chan struct{}) {
	for {
		q.mu.Lock()
		room := q.room
		free := len(q.buf) < q.max || q.closed || q.failed
		q.mu.Unlock()
		if free {
			return
		}
		select {
		case <-room:
		case <-quit:
			return
		}
	}
}

// flush asks for a write of what is there now.
func (q *queue) flush() {
	q.mu.Lock()
	q.urgent = len(q.buf) > 0
	q.mu.Unlock()
	q.wake()
}

// close refuses further metrics; write returns once it has written the rest.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	close(q.room)
	q.room = make(chan struct{})
	q.mu.Unlock()
	q.wake()
}

func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.buf)
}

// write moves lines to w until the queue is closed and empty or w fails.
func (q *queue) write(w io.Writer) {
	defer close(q.done)
	q.pipe = openPipe(w)
	var (
		spare []byte
		since time.Time // when the oldest waiting line was first seen
		last  int       // bytes waiting at the last look
	)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		q.mu.Lock()
		n, closed := len(q.buf), q.closed
		if n == 0 {
			q.mu.Unlock()
			if closed {
				return
			}
			<-q.kick
			since, last = time.Now(), 0
			continue
		}
		if n < chunkSize && !closed && !q.urgent && n != last && time.Since(since) < flushInterval {
			q.mu.Unlock()
			last = n
			timer.Reset(idleInterval)
			select {
			case <-timer.C:
			case <-q.kick:
				last = 0
			}
			continue
		}
		batch, metrics := q.buf, q.metrics
		q.buf, q.metrics, q.urgent = spare[:0], 0, false
		close(q.room)
		q.room = make(chan struct{})
		q.mu.Unlock()

		if q.err = q.writeChunks(w, batch); q.err != nil {
			q.mu.Lock()
			q.stats.drops[dropOutputClosed].Add(metrics + q.metrics)
			q.failed, q.buf, q.metrics = true, nil, 0
			close(q.room)
			q.room = make(chan struct{})
			q.mu.Unlock()
			return
		}
		spare, since, last = batch, time.Now(), 0
	}
}

// errOutput marks failures of standard output.
var errOutput = errors.New("standard output failed")

func (q *queue) writeChunks(w io.Writer, b []byte) error {
	for len(b) > 0 {
		q.pipe.pace()
		n, err := w.Write(b[:min(len(b), chunkSize)])
		if err != nil {
			return errors.Join(errOutput, err)
		}
		b = b[n:]
		q.chunks.Add(1)
		q.mu.Lock()
		q.stalled = false
		q.mu.Unlock()
	}
	return nil
}
