package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// ErrConfig wraps every complaint about a configuration.
var ErrConfig = errors.New("engine configuration")

// maxPending bounds the events of each kind that wait for the plugin.
const maxPending = 8192

// emitter is the pipeline's sink. It copies what the emission rules let through
// and holds it until the sender takes it.
type emitter struct {
	mode     string
	every    uint64
	lossless bool // without a rate limit a file source waits for the plugin instead of losing events; guarded by mu
	now      func() time.Time
	finding  func(*telemetry.Output) bool // whether a behaviour is worth an alert; set before the pipeline runs

	mu         sync.Mutex
	room       sync.Cond // signalled by take and close
	wake       chan struct{}
	records    []*agppb.FlowRecord
	alerts     []*agppb.Alert
	recordRate bucket
	alertRate  bucket
	count      uint64
	suppressed uint64
	closed     bool
}

var _ pipeline.Sink = (*emitter)(nil)

func newEmitter(conf *agppb.Emit, fileSource bool, now func() time.Time) (*emitter, error) {
	mode := conf.GetFlows()
	if mode == "" {
		mode = options.EmitNone
	}
	if !slices.Contains(options.EmitModes(), mode) {
		return nil, fmt.Errorf("%w: flows.emit = %q, allowed are %q", ErrConfig, mode, options.EmitModes())
	}
	rate := conf.GetMaxPerSecond()
	if rate < 0 || rate != rate {
		return nil, fmt.Errorf("%w: flows.max_per_second = %v, allowed are 0 (no limit) and more", ErrConfig, rate)
	}
	e := &emitter{
		mode: mode, every: uint64(max(conf.GetSampleEvery(), 1)), lossless: fileSource && rate == 0, now: now,
		finding:    func(*telemetry.Output) bool { return false },
		wake:       make(chan struct{}, 1),
		recordRate: bucket{rate: rate}, alertRate: bucket{rate: rate},
	}
	e.room.L = &e.mu
	return e, nil
}

// Record implements pipeline.Sink.
func (e *emitter) Record(r *telemetry.Record) {
	switch e.mode {
	case options.EmitNone:
		return
	case options.EmitAlerts:
		if !e.suspicious(r) {
			return
		}
	case options.EmitSampled:
		e.count++ // the pipeline calls from one goroutine at a time
		if (e.count-1)%e.every != 0 {
			return
		}
	}
	if e.admit(&e.recordRate, func() bool { return len(e.records) < maxPending }) {
		e.records = append(e.records, wire.RecordToProto(r))
		e.release(len(e.records))
	}
}

// Alert implements pipeline.Sink.
func (e *emitter) Alert(a *telemetry.Alert) {
	if e.admit(&e.alertRate, func() bool { return len(e.alerts) < maxPending }) {
		e.alerts = append(e.alerts, wire.AlertToProto(a))
		e.release(len(e.alerts))
	}
}

// suspicious says that a behaviour model found something.
func (e *emitter) suspicious(r *telemetry.Record) bool {
	for i := range r.Outputs {
		if e.finding(&r.Outputs[i]) {
			return true
		}
	}
	return false
}

// admit returns true with mu held if one more event may wait, else it counts it.
func (e *emitter) admit(rate *bucket, room func() bool) bool {
	e.mu.Lock()
	if !rate.take(e.now) {
		e.suppressed++
		e.mu.Unlock()
		return false
	}
	for e.lossless && !room() && !e.closed {
		e.room.Wait()
	}
	if !room() {
		e.suppressed++
		e.mu.Unlock()
		return false
	}
	return true
}

// release ends what admit began and wakes the sender when a batch is worth it.
func (e *emitter) release(waiting int) {
	e.mu.Unlock()
	if waiting == maxBatch {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// take hands over what waits.
func (e *emitter) take() ([]*agppb.FlowRecord, []*agppb.Alert) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, a := e.records, e.alerts
	e.records, e.alerts = nil, nil
	e.room.Broadcast()
	return r, a
}

// draining makes a live source lossless too: no traffic waits any more for what is flushed.
func (e *emitter) draining() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lossless = e.recordRate.rate == 0
}

// close releases a waiting pipeline: nobody will call take any more.
func (e *emitter) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.room.Broadcast()
}

func (e *emitter) suppressedCount() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.suppressed
}

// bucket is a token bucket that holds one second's worth. Rate 0 has no limit.
type bucket struct {
	rate   float64 // per second
	tokens float64
	last   time.Time
}

func (b *bucket) take(now func() time.Time) bool {
	if b.rate == 0 {
		return true
	}
	size := max(b.rate, 1)
	t := now()
	if b.last.IsZero() {
		b.tokens = size
	} else if d := t.Sub(b.last); d > 0 {
		b.tokens = min(size, b.tokens+d.Seconds()*b.rate)
	}
	b.last = t
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
