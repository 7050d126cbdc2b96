package options

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatAModeCannotDoIsRefusedByKeyAndValue(t *testing.T) {
	everything := Wants{PipelineCPU, []string{"app.onnx"}, map[string]float64{"beacon": 1}, EmitAll, "blocked"}
	for _, mode := range []string{"", ModeFlow, ModeSequence} {
		require.NoError(t, CheckMode(mode, everything), mode)
	}
	for _, w := range []Wants{{}, {Pipeline: PipelineAuto, Flows: EmitNone}, {Pipeline: PipelineCUDA}} {
		require.NoError(t, CheckMode(ModeStateless, w))
	}
	err := CheckMode("fast", Wants{})
	require.ErrorIs(t, err, ErrMode)
	require.EqualError(t, err, `mode = "fast", allowed: "flow", "sequence", "stateless"`)
	for says, w := range map[string]Wants{
		`mode = "stateless": pipeline = "cpu", allowed: "auto", "cuda"`: {Pipeline: PipelineCPU},
		`mode = "stateless": models = [app.onnx], allowed: none`:        {Models: []string{"app.onnx"}},
		`mode = "stateless": detect = map[beacon:1], allowed: none`:     {Detect: map[string]float64{"beacon": 1}},
		`mode = "stateless": flows.emit = "all", allowed: "none"`:       {Flows: EmitAll},
		`mode = "stateless": sketch_feature = "blocked", allowed: ""`:   {SketchFeature: "blocked"},
	} {
		err := CheckMode(ModeStateless, w)
		require.ErrorIs(t, err, ErrMode)
		require.ErrorContains(t, err, says)
	}
}
