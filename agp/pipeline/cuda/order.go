package cuda

import (
	"math"
	"slices"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// maxPending is how many events wait for shards that have not come as far. With more, those that
// wait are acted on as they are, and counted.
const maxPending = 1 << 16

// maxFree is how many records and alerts are kept to be used again.
const maxFree = 1 << 12

type eventKind uint8

const (
	eventStart eventKind = iota
	eventEnd
	eventAlert // of a kind; without one the flow turned out harmless
	eventTick
)

type event struct {
	at     score.Position
	kind   eventKind
	record *telemetry.Record
	alert  *telemetry.Alert
	start  detect.FlowStart
	ns     int64
}

// order puts what shards tell into the order of the CPU pipeline: detectors see flows of all
// shards. The shards say when a second has passed for them; what all of them have passed is sorted
// and acted on. Without detectors nothing waits.
type order struct {
	found     *score.Findings
	pending   []event
	limit     int
	done      score.Position // acted on until here
	unordered uint64

	records []*telemetry.Record // free
	alerts  []*telemetry.Alert  // free
}

func (o *order) record() *telemetry.Record {
	if n := len(o.records); n > 0 {
		r := o.records[n-1]
		o.records = o.records[:n-1]
		return r
	}
	return &telemetry.Record{}
}

func (o *order) alert() *telemetry.Alert {
	if n := len(o.alerts); n > 0 {
		a := o.alerts[n-1]
		o.alerts = o.alerts[:n-1]
		*a = telemetry.Alert{}
		return a
	}
	return &telemetry.Alert{}
}

func (o *order) add(e event) { o.pending = append(o.pending, e) }

// drain acts on everything until a position, in order.
func (o *order) drain(until score.Position) {
	if len(o.pending) == 0 {
		return
	}
	slices.SortStableFunc(o.pending, func(a, b event) int {
		switch {
		case a.at.Less(b.at):
			return -1
		case b.at.Less(a.at):
			return 1
		}
		return 0
	})
	n := 0
	for n < len(o.pending) && !until.Less(o.pending[n].at) {
		o.act(&o.pending[n])
		n++
	}
	o.pending = slices.Delete(o.pending, 0, n)
}

func (o *order) act(e *event) {
	switch e.kind {
	case eventStart:
		o.found.Detector.FlowStart(&e.start)
	case eventEnd:
		o.found.Record(e.record)
		if len(o.records) < maxFree {
			o.records = append(o.records, e.record)
		}
	case eventAlert:
		if e.alert.Kind != "" {
			o.found.Alert(e.alert)
		}
		if len(o.alerts) < maxFree {
			o.alerts = append(o.alerts, e.alert)
		}
	case eventTick:
		o.found.Detector.Tick(e.ns)
	}
}

// unique tells packet numbers of rings apart that count each for itself.
func (r *ring) unique(seq uint64) uint64 {
	if r.abi.Flags&abi.FlagNumbered != 0 {
		return seq
	}
	return uint64(r.number)<<56 | seq&(1<<56-1)
}

// position is where a message about a flow belongs: by the number of its packet in the whole input
// or, where rings count each for itself, by time. f is nil for a start.
func (r *ring) position(h *abi.Record, f *abi.Flow) score.Position {
	at := score.Position{Seq: h.Number, Packet: h.Flags&abi.FlagTimed == 0}
	numbered := r.abi.Flags&abi.FlagNumbered != 0
	if !numbered && h.Number != math.MaxUint64 { // that is the end of the input
		at.Seq = uint64(h.TsNs)
	}
	switch {
	case at.Packet && !numbered:
		at.Start = r.unique(h.Number)
	case at.Packet:
	case numbered:
		at.Start = f.StartSeq
	default:
		at.Start = uint64(f.StartNs)
	}
	return at
}

// started takes the first packet of a flow.
func (p *Pipeline) started(r *ring, h *abi.Record, m []byte) {
	f := at[abi.Key](m)
	s := detect.FlowStart{
		Seq: h.Number, TimeNs: h.TsNs, Src: f.A, Dst: f.B, SrcPort: f.PortA, DstPort: f.PortB,
		IPVersion: f.IPVersion, Protocol: f.Protocol, TCPFlags: h.TCPFlags, WireLen: h.WireLen,
	}
	if h.FromB != 0 {
		s.Src, s.Dst, s.SrcPort, s.DstPort = s.Dst, s.Src, s.DstPort, s.SrcPort
	}
	p.order.add(event{at: r.position(h, nil), kind: eventStart, start: s})
}

// ticked takes the time of a shard. That of the first one is the detectors'.
func (p *Pipeline) ticked(r *ring, d *shard, h *abi.Record) {
	at := score.Ticked(h.Number)
	if r.abi.Flags&abi.FlagNumbered == 0 {
		at.Seq = uint64(h.TsNs)
	}
	if d.mark.Less(at) {
		d.mark = at
	}
	if d == p.rings[0].shards[0] {
		p.order.add(event{at: at, kind: eventTick, ns: h.TsNs})
	}
}

// settle acts on what no shard can precede any more. all: nothing else will come.
func (p *Pipeline) settle(all bool) {
	p.scoring.flush()
	o := &p.order
	bound := score.Last(math.MaxUint64)
	if p.cfg.Detect != nil && !all {
		for _, r := range p.rings {
			for _, d := range r.shards {
				if d.mark.Less(bound) {
					bound = d.mark
				}
			}
		}
		if !o.done.Less(bound) {
			if len(o.pending) >= o.limit {
				o.unordered += uint64(len(o.pending))
				o.drain(score.Last(math.MaxUint64))
			}
			return
		}
		o.done = bound
	}
	o.drain(bound)
}
