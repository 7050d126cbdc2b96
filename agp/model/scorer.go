package model

import (
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// BatchSize is how many flows a Scorer holds before they must be scored.
const BatchSize = 64

// Features are the inputs of one flow; what the set does not need may be nil.
type Features struct {
	Size    *[telemetry.SizeBins]uint32
	Delay   *[telemetry.DelayBins]uint32
	Head    *Head
	Summary *FlowSummary
}

// Scorer collects flows and scores them together with the models of a set. It
// belongs to one goroutine. The work of a worker is:
//
//	if set := registry.Set(); set != scorer.Set() { score what is pending; scorer.Use(set) }
//	slot := scorer.Add(mask, features)     // remember which flow has the slot
//	if scorer.Full() { scorer.Run(); for each slot: scorer.Outputs(slot); scorer.Reset() }
//
// Only Use allocates.
type Scorer struct {
	set     *Set
	isa     ISA
	runs    []modelRun
	n       int
	masks   [BatchSize]Mask
	rows    [featureSets][]float32 // BatchSize vectors of each needed feature set
	readers [featureSets]Mask      // models that read it
	outs    []telemetry.Output     // BatchSize x models
}

type modelRun struct {
	model *Model
	exec  *Executor
	in    []float32 // rows of the flows that this model scores, when that is not all of them
	out   []float32
	slots [BatchSize]int
}

// NewScorer makes a scorer without models that will use the fastest kernels allowed.
func NewScorer() *Scorer { return &Scorer{isa: DefaultISA()} }

// Set returns the set in use.
func (s *Scorer) Set() *Set { return s.set }

// Use makes the following flows be scored with another set, which may be nil.
// Pending flows are dropped, so run them first. Models that stay keep their memory.
func (s *Scorer) Use(set *Set) {
	old := s.runs
	s.set, s.n, s.runs = set, 0, nil
	for _, m := range set.Models() {
		run := modelRun{model: m}
		for i := range old {
			if old[i].model == m {
				run = old[i]
			}
		}
		if run.exec == nil {
			exec, err := NewExecutorISA(m.plan, s.isa)
			if err != nil {
				panic(err) // the constructor took an ISA that this machine has
			}
			run.exec = exec
			run.in = make([]float32, BatchSize*m.plan.Inputs)
			run.out = make([]float32, BatchSize*m.plan.Outputs)
		}
		s.runs = append(s.runs, run)
	}
	s.readers = [featureSets]Mask{}
	for i, m := range set.Models() {
		s.readers[m.Features] |= 1 << i
	}
	for f := range s.rows {
		fs := FeatureSet(f)
		switch {
		case !set.Needs(fs):
			s.rows[f] = nil
		case s.rows[f] == nil:
			s.rows[f] = make([]float32, BatchSize*fs.Inputs())
		}
	}
	s.outs = make([]telemetry.Output, BatchSize*len(s.runs))
}

// Len is the number of pending flows.
func (s *Scorer) Len() int { return s.n }

// Full says that the batch must be run and reset before the next Add.
func (s *Scorer) Full() bool { return s.n == BatchSize }

// Add copies the features of a flow, to be scored by the models of the mask, and
// returns its slot. It panics if the batch is full or a feature that these models
// read is nil.
func (s *Scorer) Add(mask Mask, f Features) int {
	slot := s.n
	if mask&s.readers[Histogram] != 0 {
		HistogramVector(s.rows[Histogram][slot*HistogramInputs:], f.Size, f.Delay)
	}
	if mask&s.readers[HeadSet] != 0 {
		f.Head.Vector(s.rows[HeadSet][slot*HeadInputs:])
	}
	if mask&s.readers[Summary] != 0 {
		f.Summary.Vector(s.rows[Summary][slot*SummaryInputs:])
	}
	s.masks[slot] = mask & (1<<len(s.runs) - 1)
	s.n++
	return slot
}

// Reset empties the batch.
func (s *Scorer) Reset() { s.n = 0 }

// Run scores all pending flows; then Outputs may be read until Reset or Use.
func (s *Scorer) Run() {
	for i := range s.runs {
		s.runs[i].run(s, Mask(1)<<i, i)
	}
}

func (r *modelRun) run(s *Scorer, bit Mask, model int) {
	n := 0
	for slot := range s.n {
		if s.masks[slot]&bit != 0 {
			r.slots[n] = slot
			n++
		}
	}
	if n == 0 {
		return
	}
	in, width := s.rows[r.model.Features], r.model.plan.Inputs
	if n < s.n {
		for i, slot := range r.slots[:n] {
			copy(r.in[i*width:(i+1)*width], in[slot*width:])
		}
		in = r.in
	}
	r.exec.Run(in, n, r.out)
	k := r.model.plan.Outputs
	for i, slot := range r.slots[:n] {
		// The outputs of a slot are in the order of the models that scored it.
		at := slot*len(s.runs) + bits.OnesCount32(uint32(s.masks[slot]&(bit-1)))
		s.outs[at] = r.model.answer(r.out[i*k : (i+1)*k])
	}
}

// Outputs returns the answers for a slot, one per model of its mask in the order
// of the set. Valid until the next Reset, Run or Use.
func (s *Scorer) Outputs(slot int) []telemetry.Output {
	at := slot * len(s.runs)
	return s.outs[at : at+bits.OnesCount32(uint32(s.masks[slot]))]
}

// answer turns the outputs of the graph into a label and the probability of the best class.
func (m *Model) answer(p []float32) telemetry.Output {
	best, score := 0, p[0]
	if len(p) == 1 { // one sigmoid for two classes
		best = 1
		if score < 0.5 {
			best, score = 0, 1-score
		}
	}
	for i, v := range p[1:] {
		if v > score {
			best, score = i+1, v
		}
	}
	label := m.Classes[best]
	if !(score >= m.Threshold) {
		label = Unknown
	}
	return telemetry.Output{Field: m.Field, Label: label, Score: min(score, 1), Model: m.id}
}
