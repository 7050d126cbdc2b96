package runner

import (
	"sync/atomic"
	"time"
)

// reason says why a metric or a field was not written.
type reason int

const (
	dropQueueFull reason = iota
	dropOutputClosed
	dropStopped
	dropNoFields
	dropInvalidName
	dropSeriesTooLong
	dropTimeRange
	dropFieldNotFinite
	dropFieldType
	dropFieldKey
	dropFieldTooLong
	reasons
)

// reasonNames are the values of the tag "reason". The ones that start with
// field_ count fields, the others count metrics.
var reasonNames = [reasons]string{
	dropQueueFull:      "queue_full",
	dropOutputClosed:   "output_closed",
	dropStopped:        "stopped",
	dropNoFields:       "no_fields",
	dropInvalidName:    "invalid_name",
	dropSeriesTooLong:  "series_too_long",
	dropTimeRange:      "time_range",
	dropFieldNotFinite: "field_not_finite",
	dropFieldType:      "field_type",
	dropFieldKey:       "field_key",
	dropFieldTooLong:   "field_too_long",
}

// stats are the runner's own counters. All of them only grow while Run lasts
// and may be touched from any goroutine.
type stats struct {
	metrics   atomic.Uint64 // accepted for standard output
	bytes     atomic.Uint64
	adjusted  atomic.Uint64 // moved by at least 1 ns to stay unique
	wrapped   atomic.Uint64 // uint64 fields above 2^63-1
	gathers   atomic.Uint64
	errors    atomic.Uint64 // reported by the plugin or found while parsing
	lastError atomic.Int64  // ns since 1970, 0 if none
	drops     [reasons]atomic.Uint64
}

func (s *stats) drop(r reason) { s.drops[r].Add(1) }

func (s *stats) failed(now time.Time) {
	s.errors.Add(1)
	s.lastError.Store(now.UnixNano())
}

// dropped returns the metrics dropped for any reason.
func (s *stats) dropped() uint64 {
	var n uint64
	for r := range dropFieldNotFinite {
		n += s.drops[r].Load()
	}
	return n
}

// serializeErrors returns the metrics and fields that have no line protocol.
func (s *stats) serializeErrors() uint64 {
	var n uint64
	for r := dropNoFields; r < reasons; r++ {
		n += s.drops[r].Load()
	}
	return n
}
