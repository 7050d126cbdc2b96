package score

import (
	"sync"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// answer is what a flow.Score stands for.
type answer struct{ model, label string }

// Answers number what models say, for flow.Score; one table for all scorers of a pipeline,
// because flows go from one to another. Sets change rarely, so it stays small. Its zero value is
// empty.
type Answers struct {
	mu     sync.Mutex
	list   []telemetry.Output // only appended to; number - 1 is the index
	number map[answer]uint16
}

// intern returns the number of an answer, 0 if all are used up (thousands of swaps).
func (a *Answers) intern(out telemetry.Output) uint16 {
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

func (a *Answers) all() []telemetry.Output {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.list
}
