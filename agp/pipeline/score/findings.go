package score

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/pipeline/sums"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Findings takes what all queues of a pipeline have found, in one order: it feeds the detectors
// and the sink, and adds up.
type Findings struct {
	Sum      *sums.Sum
	Alerts   uint64
	Detector *detect.Detector // nil: none

	sink pipeline.Sink
	name string
}

// NewFindings makes Findings for a sink and an interface. detectors may be nil.
func NewFindings(sink pipeline.Sink, name string, detectors *detect.Config) *Findings {
	f := &Findings{Sum: sums.New(), sink: sink, name: name}
	if detectors != nil {
		f.Detector = detect.New(*detectors, f.Alert)
	}
	return f
}

// Alert passes an alert on.
func (f *Findings) Alert(a *telemetry.Alert) {
	f.Alerts++
	a.Interface = f.name
	f.sink.Alert(a)
}

// Record takes a flow that has ended.
func (f *Findings) Record(r *telemetry.Record) {
	f.Sum.Add(r)
	if f.Detector != nil {
		f.Detector.FlowEnd(r)
	}
	f.sink.Record(r)
}

// Counters fills in what is of one moment: the traffic rows add up to what is in records.
func (f *Findings) Counters(s *telemetry.Snapshot) {
	e := &s.Engine
	e.PacketsRecorded, e.Records, e.Alerts, e.Evictions = f.Sum.Packets, f.Sum.Records, f.Alerts, f.Sum.Evicted
	s.Traffic = f.Sum.AppendRows(s.Traffic)
}

// Rows fills in what the detectors have held back and the quantiles of first reply and handshake.
func (f *Findings) Rows(s *telemetry.Snapshot, serialize bool) {
	if f.Detector != nil {
		s.Engine.Suppressed = f.Detector.Stats().Suppressed
	}
	s.Sketches = append(s.Sketches,
		summary.QuantileRow("first_reply_ns", f.Sum.FirstReply, 0, serialize),
		summary.QuantileRow("tcp_handshake_ns", f.Sum.Handshake, 0, serialize))
}

// Models fills in which models are in force.
func Models(e *telemetry.EngineRow, set *model.Set) {
	for _, m := range set.Models() {
		e.Models = append(e.Models, m.ID())
	}
}

// Latency fills in how long flows waited for their scores.
func Latency(e *telemetry.EngineRow, ns *sketch.Quantiles) {
	if n := ns.Count(); n > 0 {
		e.PacketToScoreCount = uint64(n)
		e.PacketToScoreP50Ns, e.PacketToScoreP90Ns, e.PacketToScoreP99Ns = summary.Quantile(ns, 0.5), summary.Quantile(ns, 0.9), summary.Quantile(ns, 0.99)
	}
}

// Position orders events over all queues: by packet number, what time brought
// about before what the packet itself did, flows ended by time in start order.
// Two queues never have events of one position.
type Position struct {
	Seq    uint64
	Packet bool
	Start  uint64
}

// Less says whether a comes before b.
func (a Position) Less(b Position) bool {
	if a.Seq != b.Seq {
		return a.Seq < b.Seq
	}
	if a.Packet != b.Packet {
		return b.Packet
	}
	return a.Start < b.Start
}

// Ticked is the position of a tick itself, after all that it has brought about.
func Ticked(seq uint64) Position { return Position{Seq: seq, Start: math.MaxUint64} }

// Last is the position after all that packet seq has brought about.
func Last(seq uint64) Position { return Position{seq, true, math.MaxUint64} }
