package score

import (
	"time"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Places is where a pipeline keeps what scores are for.
type Places interface {
	// Scores are those that an active flow has; nil if the record that began with packet start
	// has ended.
	Scores(r flow.Ref, start uint64) *[flow.MaxOutputs]flow.Score
	// Record and Alert are those with the numbers that Add was given.
	Record(i int32) *telemetry.Record
	Alert(i int32) *telemetry.Alert
}

// Active says that scores are for an active flow, not for a record.
const Active = -1

// Scorer runs the models of a pipeline or a part of it. Flows are scored in batches; until a
// batch has run, its answers are owed to an active flow or to a record that is already on its
// way.
type Scorer struct {
	places  Places
	answers *Answers
	models  *model.Scorer
	owed    [model.BatchSize]Owed
	known   []telemetry.Output // as much of the answers as was needed so far
	number  map[answer]uint16  // of those that this scorer has given

	Taken      time.Time // when what is scored now came
	Inferences uint64
	Latency    *sketch.Quantiles // ns from Taken to the answer
}

// Owed says who gets the answers for a flow, and what an alert would say of it.
type Owed struct {
	Ref    flow.Ref
	Start  uint64 // number of the record's first packet
	Record int32  // Active: the active flow
	Alert  int32  // filled if the answer is a finding
	Seen   Evidence
	mask   model.Mask
}

// Evidence is what an alert says of its flow: the state that was scored, not the
// one when the batch has run.
type Evidence struct {
	Ends           flow.Endpoints
	StartNs, EndNs int64
	Packets        uint64
	Confirmed      bool
}

// New makes a scorer without models.
func New(places Places, answers *Answers) *Scorer {
	return &Scorer{places: places, answers: answers, models: model.NewScorer(), number: map[answer]uint16{}, Latency: sketch.NewQuantiles()}
}

// Use takes a set over and says whether it is another one. Nothing may be owed.
func (s *Scorer) Use(set *model.Set) bool {
	if set == s.models.Set() {
		return false
	}
	s.models.Use(set)
	return true
}

// speaks takes out of the mask the models without evidence: no head features, or
// no payload byte among them.
func (s *Scorer) speaks(mask model.Mask, head *model.Head) model.Mask {
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

// Mature returns the models that score an active flow that has come to so many packets.
func (s *Scorer) Mature(packets uint64, head *model.Head) model.Mask {
	return s.speaks(s.models.Set().Hit(packets), head)
}

// End returns the models that score a flow that ends: not again those of whose triggers its last
// packet was one.
func (s *Scorer) End(packets uint64, head *model.Head) model.Mask {
	set := s.models.Set()
	return s.speaks(set.End(packets)&^set.Hit(packets), head)
}

// Ended takes the record of a flow that ends: it gets what the flow has and what is owed to it.
// scores may be nil.
func (s *Scorer) Ended(start uint64, reason telemetry.EndReason, scores *[flow.MaxOutputs]flow.Score, rec *telemetry.Record, index int32) {
	if reason == telemetry.EndActive {
		s.Flush() // the flow may go on and then keeps what it is owed
	}
	for i := 0; scores != nil && i < len(scores); i++ {
		if a := &scores[i]; a.Answer != 0 {
			o := *s.answer(a.Answer)
			o.Score = a.Score
			rec.Outputs = append(rec.Outputs, o)
		}
	}
	for i := range s.models.Len() {
		if o := &s.owed[i]; o.Record == Active && o.Start == start {
			o.Record = index
		}
	}
}

var noHead model.Head

// Add queues a flow for the models of the mask. f.Head may be nil.
func (s *Scorer) Add(mask model.Mask, f model.Features, o Owed) {
	if f.Head == nil {
		f.Head = &noHead
	}
	o.mask = mask
	s.owed[s.models.Add(mask, f)] = o
	if s.models.Full() {
		s.Flush()
	}
}

// Flush scores what is queued and hands the answers out.
func (s *Scorer) Flush() {
	n := s.models.Len()
	if n == 0 {
		return
	}
	s.models.Run()
	ns := float64(time.Since(s.Taken))
	models := s.models.Set().Models()
	for slot := range n {
		o := &s.owed[slot]
		outputs := s.models.Outputs(slot)
		s.Inferences += uint64(len(outputs))
		s.Latency.Add(ns)
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
func (s *Scorer) give(o *Owed, m *model.Model, out telemetry.Output) {
	before := ""
	if o.Record != Active {
		before = put(s.places.Record(o.Record), out)
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
func (s *Scorer) slot(o *Owed, field string) *flow.Score {
	scores := s.places.Scores(o.Ref, o.Start)
	if scores == nil {
		return nil
	}
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
func (s *Scorer) answer(n uint16) *telemetry.Output {
	if int(n) > len(s.known) { // another scorer's
		s.known = s.answers.all()
	}
	return &s.known[n-1]
}

func (s *Scorer) intern(out telemetry.Output) uint16 {
	k := answer{out.Model, out.Label}
	n, ok := s.number[k]
	if !ok {
		n = s.answers.intern(out)
		s.number[k] = n
	}
	return n
}

// alertClassified is the kind of alerts that models raise.
const alertClassified = "classified"

func (s *Scorer) alert(o *Owed, m *model.Model, out telemetry.Output) {
	e := &o.Seen
	v := e.Ends.IPVersion
	*s.places.Alert(o.Alert) = telemetry.Alert{
		TimeNs: e.EndNs, Kind: alertClassified, Class: out.Label,
		Src: telemetry.Addr(v, &e.Ends.Src).String(), Dst: telemetry.Addr(v, &e.Ends.Dst).String(),
		SrcPort: e.Ends.SrcPort, DstPort: e.Ends.DstPort, Protocol: e.Ends.Protocol,
		Count: e.Packets, Threshold: float64(m.Threshold), Score: float64(out.Score),
		WindowNs: e.EndNs - e.StartNs, Model: out.Model, Confirmed: e.Confirmed,
	}
}
