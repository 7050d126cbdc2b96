// Package pipeline says what every packet pipeline offers to the engine; the
// implementations are pipeline/cpu (the reference) and pipeline/cuda.
package pipeline

import (
	"context"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Sink receives what a pipeline finds. It is called from one goroutine at a
// time, in a deterministic order for a given input; arguments are only valid
// during the call.
type Sink interface {
	Record(*telemetry.Record)
	Alert(*telemetry.Alert)
}

// Pipeline turns a source into records, alerts and counters.
type Pipeline interface {
	// Run processes the source until it ends or ctx is cancelled, then flushes
	// every open flow exactly once. It is called once.
	Run(ctx context.Context) error
	// Snapshot fills s with all counters, top lists and sketches. Safe from any goroutine, also after Run.
	Snapshot(s *telemetry.Snapshot)
	// SwapModels makes the given models (nil: none) score from now on. Flows keep their state.
	SwapModels(*model.Set)
}
