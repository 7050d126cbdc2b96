package model

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestFeatureVectorLayouts(t *testing.T) {
	var size [telemetry.SizeBins]uint32
	var delay [telemetry.DelayBins]uint32
	size[0], size[94], delay[0], delay[63] = 1, 2, 3, 4
	v := make([]float32, HistogramInputs)
	HistogramVector(v, &size, &delay)
	require.Equal(t, []float32{1, 2, 3, 4}, []float32{v[0], v[94], v[95], v[158]})

	h := Head{PayloadLen: [2]uint8{2, 48}, Packets: 3, Protocol: 17}
	h.Payload[0][0], h.Payload[0][1], h.Payload[0][2] = 22, 3, 99 // the third was not filled
	h.Payload[1][47] = 255
	h.Len = [HeadPackets]int16{60, -1500, 40, 7}
	h.Delay = [HeadPackets]uint8{0, 64, 1, 9}
	v = make([]float32, HeadInputs)
	for i := range v {
		v[i] = 1e9 // what an earlier flow left
	}
	h.Vector(v)
	require.Len(t, v, 129)
	require.Equal(t, []float32{22, 3, -1, -1}, v[:4])
	require.Equal(t, []float32{0, 255}, v[94:96])
	require.Equal(t, []float32{60, -1500, 40, 0}, v[96:100])
	require.Equal(t, []float32{0, 64, 1, 0}, v[112:116])
	require.Equal(t, []float32{0, 17}, v[127:])

	s := FlowSummary{Packets: [2]uint64{4, 0}, Bytes: [2]uint64{600, 0}, DurationNs: 2_500_000_000, TCPFlags: [2]uint8{0x12, 0}, Protocol: 6}
	v = make([]float32, SummaryInputs)
	s.Vector(v)
	require.Equal(t, []float32{4, 0, 600, 0, 150, 0, 2.5, 18, 0, 6}, v)

	buf := make([]float32, HistogramInputs)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		HistogramVector(buf, &size, &delay)
		h.Vector(buf)
		s.Vector(buf)
	}))
}

func TestFeatureSetNames(t *testing.T) {
	for f := Histogram; f < featureSets; f++ {
		g, err := ParseFeatureSet(f.String())
		require.NoError(t, err)
		require.Equal(t, f, g)
		require.Positive(t, f.Inputs())
	}
	_, err := ParseFeatureSet("none")
	require.ErrorIs(t, err, ErrMetadata)
	require.Zero(t, FeatureSet(0).Inputs())
}

func TestModelMustFitItsMetadata(t *testing.T) {
	bias := []float32{0, 0, 0}
	for name, c := range map[string]struct {
		m    *testModel
		want error
		says string
	}{
		"other feature set": {classifier(HeadSet, bias, map[string]string{"agp.feature_set": "histogram"}), ErrShape, "129 inputs"},
		"other class count": {classifier(HeadSet, bias, map[string]string{"agp.classes": `["a","b"]`}), ErrShape, "3 outputs"},
		"no metadata":       {func() *testModel { m := classifier(HeadSet, bias, nil); m.meta = nil; return m }(), ErrMetadata, "agp.name"},
		"logits": {func() *testModel {
			m := classifier(HeadSet, bias, nil)
			m.nodes[1] = nodeMsg("Tanh", "tail", []string{"s"}, []string{"y"})
			return m
		}(), ErrMetadata, "Softmax"},
		"not finite": {classifier(HeadSet, []float32{float32(math.NaN()), 0, 0}, nil), ErrTrial, "not a probability"},
		"overflow":   {classifier(HeadSet, []float32{3e38, 0, -3e38}, nil), nil, ""},
	} {
		_, err := LoadBytes(c.m.encode())
		if c.want == nil {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.want, name)
		require.Contains(t, err.Error(), c.says, name)
	}
}

func TestLoadRefusesWhatIsNotAFile(t *testing.T) {
	_, err := Load(t.TempDir())
	require.ErrorIs(t, err, ErrFormat)
	_, err = Load(filepath.Join(t.TempDir(), "absent.onnx"))
	require.ErrorIs(t, err, os.ErrNotExist)
	large := filepath.Join(t.TempDir(), "large.onnx")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, maxFileBytes+1)) // sparse
	_, err = Load(large)
	require.ErrorIs(t, err, ErrTooLarge)
	require.Contains(t, err.Error(), "large.onnx")
}

func load(t testing.TB, m *testModel) *Model {
	out, err := LoadBytes(m.encode())
	require.NoError(t, err)
	return out
}

func TestAnswers(t *testing.T) {
	m := load(t, classifier(HeadSet, []float32{0, 0, 0}, map[string]string{"agp.threshold": "0.6", "agp.benign": `["a"]`}))
	require.Equal(t, telemetry.Output{Field: "class", Label: "b", Score: 0.7, Model: "test@1"}, m.answer([]float32{0.1, 0.7, 0.2}))
	require.Equal(t, Unknown, m.answer([]float32{0.1, 0.55, 0.35}).Label)
	require.True(t, m.Alert("b"))
	require.False(t, m.Alert("a"), "benign")
	require.False(t, m.Alert(Unknown))

	// The published network has one sigmoid for two classes.
	b, err := os.ReadFile("testdata/golden/cnn159.onnx")
	require.NoError(t, err)
	m, err = LoadBytes(b)
	require.NoError(t, err)
	two := *m
	two.Classes, two.Threshold = []string{"benign", "attack"}, 0.9
	require.Equal(t, "attack", two.answer([]float32{0.95}).Label)
	require.Equal(t, telemetry.Output{Field: "class", Label: "benign", Score: 0.98, Model: "cnn159@1"}, two.answer([]float32{0.02}))
	require.Equal(t, Unknown, two.answer([]float32{0.6}).Label)
}

func TestSigmoidOfTwoClassesLoads(t *testing.T) {
	m := cnn1D()
	m.in = valueMsg("x", -1, HistogramInputs)
	m.init(intTensor("zero", []int64{1}, []int64{0})).init(intTensor("end", []int64{1}, []int64{95})).init(intTensor("axis", []int64{1}, []int64{1}))
	m.nodes[0] = nodeMsg("Reshape", "r", []string{"bins", "shape"}, []string{"t"})
	m.node("Slice", []string{"x", "zero", "end", "axis"}, "bins")
	m.meta = map[string]string{"agp.name": "psd", "agp.version": "1", "agp.feature_set": "histogram", "agp.field": "class", "agp.classes": `["benign","attack"]`}
	out := load(t, m)
	require.Equal(t, 13393, out.Plan().Params)
	require.Equal(t, 2*163464, out.Plan().FLOPs(), "without what pooling drops")
	require.Equal(t, FinalSigmoid, out.Plan().Final)
}

func TestPlanFusesAndReusesMemory(t *testing.T) {
	p := planBytes(t, cnn1D().encode())
	var kinds []string
	for _, l := range p.Layers {
		switch o := l.Op.(type) {
		case *Conv:
			require.True(t, o.Relu)
			require.Greater(t, o.Pool, 1)
			kinds = append(kinds, "conv")
		case *Dense:
			kinds = append(kinds, "dense")
		case *Unary:
			kinds = append(kinds, o.Kind.String())
		default:
			kinds = append(kinds, "other")
		}
	}
	require.Equal(t, []string{"conv", "conv", "conv", "dense", "dense", "dense", "dense", "sigmoid"}, kinds)
	total := 0
	for i, v := range p.Values {
		total += v.Rows + v.Slack
		require.LessOrEqual(t, v.Offset+v.Rows+v.Slack, p.Arena, "value %d", i)
	}
	require.Less(t, p.Arena, total)

	// Values that are alive together must not overlap.
	born, dies := make([]int, len(p.Values)), make([]int, len(p.Values))
	for i, l := range p.Layers {
		born[l.Out] = i
		for _, v := range l.In {
			dies[v] = i
		}
	}
	dies[p.Out] = len(p.Layers)
	for a := range p.Values {
		for b := range a {
			if born[a] > dies[b] || born[b] > dies[a] {
				continue
			}
			va, vb := p.Values[a], p.Values[b]
			require.True(t, va.Offset >= vb.Offset+vb.Rows+vb.Slack || vb.Offset >= va.Offset+va.Rows+va.Slack, "values %d and %d", a, b)
		}
	}
}
