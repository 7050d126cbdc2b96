package cpu

import (
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// scorer runs the models of one worker. Flows are scored in batches; until a
// batch has run, its answers are owed to an active flow or to a record that is
// already on its way to the collector.
type scorer struct {
	w      *worker
	models *model.Scorer
	owed   [model.BatchSize]owed
	known  []telemetry.Output // as much of the pipeline's answers as was needed so far
	number map[answer]uint16  // of those that this worker has given

	taken      time.Time // when the batch at hand came from the source
	inferences uint64
	latency    *sketch.Quantiles // ns from taken to the answer
}

// answer is what a flow.Score stands for.
type answer struct{ model, label string }

// answers number what models say, for flow.Score; one table for all workers, because flows
// go from one to another. Sets change rarely, so it stays small.
type answers struct {
	mu     sync.Mutex
	list   []telemetry.Output // only appended to; number - 1 is the index
	number map[answer]uint16
}

// intern returns the number of an answer, 0 if all are used up (thousands of swaps).
func (a *answers) intern(out telemetry.Output) uint16 {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := answer{out.Model, out.Label}
	if n, ok := a.number[k]; ok {
		return n
	}
	if len(a.list) == 1<<16-1 {
		return 0
	}
	a.list = append(a.list, out)
	n := uint16(len(a.list))
	if a.number == nil {
		a.number = map[answer]uint16{}
	}
	a.number[k] = n
	return n
}

func (a *answers) all() []telemetry.Output {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.list
}

// owed says who gets the answers of a slot.
type owed struct {
	ref    flow.Ref
	start  uint64
	record int32 // in the worker's out, -1: the active flow
	alert  int32 // in the worker's out, filled if the answer is a finding
	mask   model.Mask
	seen   evidence
}

// evidence is what an alert says of its flow: the state that was scored, not the
// one when the batch has run.
type evidence struct {
	ends           flow.Endpoints
	startNs, endNs int64
	packets        uint64
	confirmed      bool
}

func newScorer(w *worker) *scorer {
	return &scorer{w: w, models: model.NewScorer(), number: map[answer]uint16{}, latency: sketch.NewQuantiles()}
}

// use takes a set over; nothing is owed between batches.
func (s *scorer) use(set *model.Set) {
	if set == s.models.Set() {
		return
	}
	s.models.Use(set)
	if s.w.p.cfg.Observe == nil {
		s.w.table.Collect(set.Needs(model.HeadSet), set.LastTrigger(model.HeadSet), set.Triggers())
	}
}

// speaks takes out of the mask the models without evidence: no head features, or
// no payload byte among them.
func (s *scorer) speaks(mask model.Mask, head *model.Head) model.Mask {
	if head != nil && head.PayloadLen[0]|head.PayloadLen[1] != 0 {
		return mask
	}
	for i, m := range s.models.Set().Models() {
		if m.Features == model.HeadSet {
			mask &^= 1 << i
		}
	}
	return mask
}

var noHead model.Head

func (s *scorer) evidence(r flow.Ref) evidence {
	t := s.w.table
	start, end := t.Span(r)
	return evidence{t.Endpoints(r), start, end, t.Packets(r), t.Confirmed(r)}
}

// mature is called when an active flow reaches a trigger.
func (s *scorer) mature(r flow.Ref) {
	t := s.w.table
	head := t.Head(r)
	mask := s.speaks(s.models.Set().Hit(t.Packets(r)), head)
	if mask == 0 {
		return
	}
	if head == nil {
		head = &noHead
	}
	var size [telemetry.SizeBins]uint32
	var delay [telemetry.DelayBins]uint32
	t.Histograms(r, &size, &delay)
	s.add(mask, model.Features{Size: &size, Delay: &delay, Head: head}, owed{ref: r, start: t.StartSeq(r), record: -1, seen: s.evidence(r)})
}

// ended is called with the record of a flow that ends: what the flow is owed goes
// to the record, which is scored again unless its last packet was a trigger.
func (s *scorer) ended(r flow.Ref, reason telemetry.EndReason, rec *telemetry.Record, index int32) {
	t := s.w.table
	if reason == telemetry.EndActive {
		s.flush() // the flow may go on and then keeps what it is owed
	}
	scores := t.Outputs(r)
	for i := range scores {
		if a := &scores[i]; a.Answer != 0 {
			o := *s.answer(a.Answer)
			o.Score = a.Score
			rec.Outputs = append(rec.Outputs, o)
		}
	}
	start := t.StartSeq(r)
	for i := range s.models.Len() {
		if o := &s.owed[i]; o.record < 0 && o.start == start {
			o.record = index
		}
	}
	n := t.Packets(r)
	head := t.Head(r)
	set := s.models.Set()
	mask := s.speaks(set.End(n)&^set.Hit(n), head)
	if mask == 0 {
		return
	}
	if head == nil {
		head = &noHead
	}
	s.add(mask, model.Features{Size: &rec.SizeHist, Delay: &rec.DelayHist, Head: head}, owed{start: start, record: index, seen: s.evidence(r)})
}

// add queues one flow. Its alert has a place in the order of events now and
// content, if any, after the batch has run.
func (s *scorer) add(mask model.Mask, f model.Features, o owed) {
	out := s.w.out
	out.alerts = append(out.alerts, telemetry.Alert{})
	o.alert, o.mask = int32(len(out.alerts)-1), mask
	s.owed[s.models.Add(mask, f)] = o
	if s.models.Full() {
		s.flush()
	}
	s.w.event(eventAlert, o.alert)
}

// flush scores what is queued and hands the answers out.
func (s *scorer) flush() {
	n := s.models.Len()
	if n == 0 {
		return
	}
	s.models.Run()
	ns := float64(time.Since(s.taken))
	models := s.models.Set().Models()
	for slot := range n {
		o := &s.owed[slot]
		outputs := s.models.Outputs(slot)
		s.inferences += uint64(len(outputs))
		s.latency.Add(ns)
		k := 0
		for i, m := range models {
			if o.mask&(1<<i) != 0 {
				s.give(o, m, outputs[k])
				k++
			}
		}
	}
	s.models.Reset()
}

// give hands one answer to the flow or record. A class that is a finding raises
// an alert when the flow gets it, not each time it is confirmed.
func (s *scorer) give(o *owed, m *model.Model, out telemetry.Output) {
	before := ""
	if o.record >= 0 {
		rec := &s.w.out.records[o.record]
		before = put(rec, out)
		if m.Alert(out.Label) && before != out.Label {
			s.alert(o, m, out)
		}
		return
	}
	score := s.slot(o, out.Field)
	if score == nil {
		return
	}
	if score.Answer != 0 {
		before = s.answer(score.Answer).Label
	}
	score.Answer, score.Score = s.intern(out), out.Score
	if m.Alert(out.Label) && before != out.Label {
		s.alert(o, m, out)
	}
}

// put sets the output of a field and returns the label it replaces.
func put(rec *telemetry.Record, out telemetry.Output) (before string) {
	for i := range rec.Outputs {
		if rec.Outputs[i].Field == out.Field {
			before = rec.Outputs[i].Label
			rec.Outputs[i] = out
			return before
		}
	}
	rec.Outputs = append(rec.Outputs, out)
	return ""
}

// slot finds the flow's place for a field's answer: its own, or a free one.
func (s *scorer) slot(o *owed, field string) *flow.Score {
	if !s.w.table.Valid(o.ref, o.start) {
		return nil
	}
	scores := s.w.table.Outputs(o.ref)
	var free *flow.Score
	for i := range scores {
		switch a := scores[i].Answer; {
		case a == 0:
			if free == nil {
				free = &scores[i]
			}
		case s.answer(a).Field == field:
			return &scores[i]
		}
	}
	return free
}

// answer returns what a number stands for.
func (s *scorer) answer(n uint16) *telemetry.Output {
	if int(n) > len(s.known) { // another worker's
		s.known = s.w.p.answers.all()
	}
	return &s.known[n-1]
}

func (s *scorer) intern(out telemetry.Output) uint16 {
	k := answer{out.Model, out.Label}
	n, ok := s.number[k]
	if !ok {
		n = s.w.p.answers.intern(out)
		s.number[k] = n
	}
	return n
}

// alertClassified is the kind of alerts that models raise.
const alertClassified = "classified"

func (s *scorer) alert(o *owed, m *model.Model, out telemetry.Output) {
	e := &o.seen
	v := e.ends.IPVersion
	s.w.out.alerts[o.alert] = telemetry.Alert{
		TimeNs: e.endNs, Kind: alertClassified, Class: out.Label,
		Src: telemetry.Addr(v, &e.ends.Src).String(), Dst: telemetry.Addr(v, &e.ends.Dst).String(),
		SrcPort: e.ends.SrcPort, DstPort: e.ends.DstPort, Protocol: e.ends.Protocol,
		Count: e.packets, Threshold: float64(m.Threshold), Score: float64(out.Score),
		WindowNs: e.endNs - e.startNs, Model: out.Model, Confirmed: e.confirmed,
	}
}
