package model

import (
	"fmt"
	"slices"
)

// Mask says which models of a Set are meant, bit i for model i.
type Mask uint32

// MaxModels is how many models a set may have.
const MaxModels = 32

// Set is an immutable list of models that run together. A nil *Set and the zero Set have none.
type Set struct {
	models   []*Model
	triggers []uint64
	masks    []Mask // beside triggers
	needs    [featureSets]bool
}

// NewSet makes a set. Each record field may be filled by one model only.
func NewSet(models ...*Model) (*Set, error) {
	if len(models) > MaxModels {
		return nil, fmt.Errorf("%w: %d models, at most %d", ErrTooLarge, len(models), MaxModels)
	}
	s := &Set{models: slices.Clone(models)}
	fields := map[string]*Model{}
	at := map[uint64]Mask{}
	for i, m := range models {
		if other := fields[m.Field]; other != nil {
			return nil, fmt.Errorf("%w: %s and %s both fill %s", ErrDuplicate, other.ID(), m.ID(), m.Field)
		}
		fields[m.Field] = m
		s.needs[m.Features] = true
		for _, t := range m.Triggers {
			at[t] |= 1 << i
		}
	}
	for t := range at {
		s.triggers = append(s.triggers, t)
	}
	slices.Sort(s.triggers)
	for _, t := range s.triggers {
		s.masks = append(s.masks, at[t])
	}
	return s, nil
}

// Models returns the list; do not change it.
func (s *Set) Models() []*Model {
	if s == nil {
		return nil
	}
	return s.models
}

// Needs says whether a model reads this feature set.
func (s *Set) Needs(f FeatureSet) bool { return s != nil && int(f) < len(s.needs) && s.needs[f] }

// Triggers returns the packet counts at which any model scores a flow, ascending; do not change it.
func (s *Set) Triggers() []uint64 {
	if s == nil {
		return nil
	}
	return s.triggers
}

// Hit returns the models that score a flow when it reaches this packet count.
func (s *Set) Hit(packets uint64) Mask {
	if s != nil {
		for i, t := range s.triggers {
			if t == packets {
				return s.masks[i]
			}
		}
	}
	return 0
}

// End returns the models that score a flow that ends with this packet count.
func (s *Set) End(packets uint64) Mask {
	var m Mask
	for i, mod := range s.Models() {
		if packets >= mod.MinPackets {
			m |= 1 << i
		}
	}
	return m
}

// LastTrigger is the highest trigger of the models that read f, 0 if there is none.
func (s *Set) LastTrigger(f FeatureSet) uint64 {
	var last uint64
	for _, m := range s.Models() {
		if m.Features == f {
			last = max(last, m.Triggers[len(m.Triggers)-1])
		}
	}
	return last
}
