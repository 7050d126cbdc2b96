package options

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// How packets are processed. The CPU pipeline knows no difference between ModeFlow and ModeSequence,
// and has no ModeStateless: it keeps flows always.
const (
	ModeFlow      = "flow"
	ModeSequence  = "sequence"  // on a GPU, several warps take the packets of a queue in turns
	ModeStateless = "stateless" // on a GPU, packets are counted and forgotten
)

// Modes lists them.
func Modes() []string { return []string{ModeFlow, ModeSequence, ModeStateless} }

// NeedsGPU says that the processor is no choice where no GPU suffices, and which option makes it so.
func NeedsGPU(pipeline, mode string) (why string, needs bool) {
	switch {
	case mode == ModeStateless:
		return fmt.Sprintf("mode = %q", mode), true
	case pipeline == PipelineCUDA:
		return fmt.Sprintf("pipeline = %q", pipeline), true
	}
	return "", false
}

// ErrMode wraps every complaint about a mode.
var ErrMode = errors.New("mode")

// Wants are the options that not every mode can do.
type Wants struct {
	Pipeline      string
	Models        []string // files that were asked for
	Detect        map[string]float64
	Flows         string // which records to emit, "" is none
	SketchFeature string
}

// CheckMode refuses an unknown mode, "" is ModeFlow, and what a mode cannot do.
func CheckMode(mode string, w Wants) error {
	if mode != "" && !slices.Contains(Modes(), mode) {
		return fmt.Errorf(`%w = %q, allowed: "%s"`, ErrMode, mode, strings.Join(Modes(), `", "`))
	}
	if mode != ModeStateless {
		return nil
	}
	var errs []error
	refuse := func(is bool, key string, value any, allowed string) {
		if is {
			errs = append(errs, fmt.Errorf("%w = %q: %s = %v, allowed: %s", ErrMode, mode, key, value, allowed))
		}
	}
	refuse(w.Pipeline == PipelineCPU, "pipeline", `"cpu"`, `"auto", "cuda"; the processor keeps flows always`)
	refuse(len(w.Models) > 0, "models", w.Models, "none; there are no flows to score")
	refuse(len(w.Detect) > 0, "detect", w.Detect, "none; there are no flows to look at")
	refuse(w.Flows != "" && w.Flows != EmitNone, "flows.emit", fmt.Sprintf("%q", w.Flows), `"none"; there are no records`)
	refuse(w.SketchFeature != "", "sketch_feature", fmt.Sprintf("%q", w.SketchFeature), `""; there are no histograms of flows`)
	return errors.Join(errs...)
}
