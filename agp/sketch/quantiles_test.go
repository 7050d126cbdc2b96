package sketch

import (
	"math"
	"slices"
	"testing"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/mapping"
	"github.com/DataDog/sketches-go/ddsketch/pb/sketchpb"
	"github.com/DataDog/sketches-go/ddsketch/store"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

var someQuantiles = []float64{0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1}

func sample(n int) []float64 {
	r := rng(11)
	out := make([]float64, n)
	for i := range out {
		out[i] = math.Floor(math.Exp(r.Float64() * 30))
		if i%50 == 0 {
			out[i] = 0
		}
	}
	return out
}

func TestQuantilesAreWithinOnePercent(t *testing.T) {
	s, v := NewQuantiles(), sample(20_000)
	for _, x := range v {
		require.True(t, s.Add(x))
	}
	slices.Sort(v)
	for _, q := range someQuantiles {
		exact := v[int(q*float64(len(v)-1))]
		got, err := s.Quantile(q)
		require.NoError(t, err)
		require.InDelta(t, exact, got, QuantilesAccuracy*exact+1e-9, "q=%v", q)
	}
}

func TestQuantilesEdges(t *testing.T) {
	s := NewQuantiles()
	_, err := s.Quantile(0.5)
	require.ErrorIs(t, err, ErrEmpty)
	require.False(t, s.Add(math.NaN()))
	require.Zero(t, s.Count())
	for _, v := range []float64{-5, math.Inf(-1), 0, 0.5} {
		require.True(t, s.Add(v))
	}
	got, err := s.Quantile(1)
	require.NoError(t, err)
	require.Zero(t, got)
	require.True(t, s.Add(math.Inf(1)))
	require.True(t, s.Add(math.MaxFloat64))
	got, err = s.Quantile(1)
	require.NoError(t, err)
	require.InEpsilon(t, float64(quantilesMax), got, QuantilesAccuracy)
	_, err = s.Quantile(1.5)
	require.ErrorIs(t, err, ErrParam)
	_, err = s.Quantile(math.NaN())
	require.ErrorIs(t, err, ErrParam)
}

func TestQuantilesAndSketchesGoReadEachOther(t *testing.T) {
	m := must(mapping.NewLogarithmicMapping(QuantilesAccuracy))
	theirs := ddsketch.NewDDSketch(m, store.NewDenseStore(), store.NewDenseStore())
	ours := NewQuantiles()
	for _, v := range sample(10_000) {
		require.NoError(t, theirs.Add(v))
		ours.Add(v)
	}
	// Ours, read by sketches-go.
	var msg sketchpb.DDSketch
	require.NoError(t, proto.Unmarshal(must(ours.MarshalBinary()), &msg))
	read := must(ddsketch.FromProto(&msg))
	require.Equal(t, theirs.GetCount(), read.GetCount())
	// Theirs, dense and sparse, read by us.
	sparse := ddsketch.NewDDSketch(m, store.NewSparseStore(), store.NewSparseStore())
	require.NoError(t, sparse.MergeWith(theirs))
	for name, d := range map[string]*ddsketch.DDSketch{"dense": theirs, "sparse": sparse} {
		back := NewQuantiles()
		require.NoError(t, back.UnmarshalBinary(must(proto.Marshal(d.ToProto()))), name)
		require.Equal(t, ours.bins, back.bins, "%s: same bins", name)
		require.Equal(t, ours.zero, back.zero)
		require.Equal(t, must(ours.MarshalBinary()), must(back.MarshalBinary()))
	}
	for _, q := range someQuantiles {
		a, b, c := must(theirs.GetValueAtQuantile(q)), must(read.GetValueAtQuantile(q)), must(ours.Quantile(q))
		require.Equal(t, a, b)
		require.InDelta(t, a, c, 1e-9*a)
	}
	// Merging there with what came from here.
	require.NoError(t, theirs.MergeWith(read))
	require.Equal(t, 20_000.0, theirs.GetCount())
}

func TestQuantilesRefuseWhatIsNotOne(t *testing.T) {
	s := NewQuantiles()
	s.Add(5)
	before := must(s.MarshalBinary())
	other := must(mapping.NewLogarithmicMapping(0.02))
	cubic := must(mapping.NewCubicallyInterpolatedMapping(QuantilesAccuracy))
	for name, c := range map[string]struct {
		msg *sketchpb.DDSketch
		err error
	}{
		"no mapping":       {&sketchpb.DDSketch{}, ErrFormat},
		"other accuracy":   {&sketchpb.DDSketch{Mapping: other.ToProto()}, ErrMismatch},
		"other mapping":    {&sketchpb.DDSketch{Mapping: cubic.ToProto()}, ErrMismatch},
		"negative count":   {&sketchpb.DDSketch{Mapping: s.m.ToProto(), ZeroCount: -1}, ErrFormat},
		"NaN count":        {&sketchpb.DDSketch{Mapping: s.m.ToProto(), PositiveValues: &sketchpb.Store{BinCounts: map[int32]float64{3: math.NaN()}}}, ErrFormat},
		"count overflowes": {&sketchpb.DDSketch{Mapping: s.m.ToProto(), ZeroCount: math.MaxFloat64, PositiveValues: &sketchpb.Store{ContiguousBinCounts: []float64{math.MaxFloat64}}}, ErrFormat},
	} {
		require.ErrorIs(t, s.UnmarshalBinary(must(proto.Marshal(c.msg))), c.err, name)
	}
	require.ErrorIs(t, s.UnmarshalBinary([]byte{0xff}), ErrFormat)
	require.Equal(t, before, must(s.MarshalBinary()), "a refused input changes nothing")
	// Far bins and negative values are kept, in the bins at the ends.
	far := &sketchpb.DDSketch{Mapping: s.m.ToProto(),
		PositiveValues: &sketchpb.Store{BinCounts: map[int32]float64{math.MaxInt32: 2, math.MinInt32: 3}},
		NegativeValues: &sketchpb.Store{BinCounts: map[int32]float64{7: 1}}}
	require.NoError(t, s.UnmarshalBinary(must(proto.Marshal(far))))
	require.Equal(t, 6.0, s.Count())
	require.Equal(t, 4.0, s.zero)
}
