package cpu

import (
	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

type eventKind uint8

const (
	eventStart eventKind = iota // index into starts
	eventEnd                    // index into records
	eventAlert                  // index into alerts; skipped if the score turned out benign
	eventTick                   // at is in ticks
)

type event struct {
	at    score.Position
	kind  eventKind
	index int32
}

// events is a part of what one worker did, in order.
type events struct {
	queue   int
	list    []event
	starts  []detect.FlowStart
	records []telemetry.Record
	nRecs   int // records[:nRecs] are in use; the others keep their memory
	alerts  []telemetry.Alert
	ticks   []int64
	mark    score.Position // the worker sends nothing before this position any more
}

// eventsPerBatch bounds what one events value holds, and so the memory of a run.
const (
	eventsPerBatch    = 256
	eventsPerCallback = 2 // a record and its alert
)

func (e *events) reset() {
	e.list, e.starts, e.alerts, e.ticks, e.nRecs = e.list[:0], e.starts[:0], e.alerts[:0], e.ticks[:0], 0
}

func (e *events) record() (*telemetry.Record, int32) {
	if e.nRecs == len(e.records) {
		e.records = append(e.records, telemetry.Record{Outputs: make([]telemetry.Output, 0, flow.MaxOutputs)})
	}
	e.nRecs++
	return &e.records[e.nRecs-1], int32(e.nRecs - 1)
}
