package model

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func golden(t testing.TB, name string) *Model {
	b, err := os.ReadFile("testdata/golden/" + name + ".onnx")
	require.NoError(t, err)
	m, err := LoadBytes(b)
	require.NoError(t, err)
	return m
}

func twoModels(t testing.TB) *Set {
	set, err := NewSet(golden(t, "cnn159"), golden(t, "head"))
	require.NoError(t, err)
	return set
}

func TestSet(t *testing.T) {
	set := twoModels(t)
	require.True(t, set.Needs(Histogram))
	require.True(t, set.Needs(HeadSet))
	require.False(t, set.Needs(Summary))
	require.Equal(t, []uint64{4, 8, 16, 32, 64, 128}, set.Triggers())
	require.Equal(t, Mask(0b10), set.Hit(4))
	require.Equal(t, Mask(0b11), set.Hit(8))
	require.Equal(t, Mask(0b01), set.Hit(32))
	require.Zero(t, set.Hit(5))
	require.Zero(t, set.End(3))
	require.Equal(t, Mask(0b10), set.End(5))
	require.Equal(t, Mask(0b11), set.End(1000))
	require.EqualValues(t, 16, set.LastTrigger(HeadSet))
	require.EqualValues(t, 128, set.LastTrigger(Histogram))
	require.Zero(t, set.LastTrigger(Summary))

	for _, none := range []*Set{nil, {}} {
		require.False(t, none.Needs(HeadSet))
		require.Zero(t, none.Hit(8)|none.End(8))
		require.Empty(t, none.Triggers())
		require.Empty(t, none.Models())
	}

	_, err := NewSet(golden(t, "head"), golden(t, "head"))
	require.ErrorIs(t, err, ErrDuplicate)
}

type flowFeatures struct {
	size  [telemetry.SizeBins]uint32
	delay [telemetry.DelayBins]uint32
	head  Head
}

func (f *flowFeatures) features() Features {
	return Features{Size: &f.size, Delay: &f.delay, Head: &f.head}
}

func randomFlows(n int) []flowFeatures {
	rng := rand.New(rand.NewPCG(5, 6))
	flows := make([]flowFeatures, n)
	for i := range flows {
		f := &flows[i]
		for range 40 {
			f.size[rng.IntN(len(f.size))]++
			f.delay[rng.IntN(len(f.delay))]++
		}
		f.head = Head{PayloadLen: [2]uint8{uint8(rng.IntN(49)), uint8(rng.IntN(49))}, Packets: uint8(rng.IntN(17)), Protocol: 6}
		for j := range f.head.Payload[0] {
			f.head.Payload[0][j], f.head.Payload[1][j] = uint8(rng.IntN(256)), uint8(rng.IntN(256))
		}
		for j := range f.head.Len {
			f.head.Len[j], f.head.Delay[j] = int16(rng.IntN(3000)-1500), uint8(rng.IntN(65))
		}
	}
	return flows
}

// One flow alone or 64 together, all models or some: the same answers, bit for bit.
func TestScorerResultDoesNotDependOnBatch(t *testing.T) {
	set := twoModels(t)
	flows := randomFlows(200)
	masks := make([]Mask, len(flows))
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range masks {
		masks[i] = Mask(rng.IntN(4))
	}
	run := func(batch int) [][]telemetry.Output {
		s := NewScorer()
		s.Use(set)
		var all [][]telemetry.Output
		flush := func() {
			s.Run()
			for i := range s.Len() {
				all = append(all, append([]telemetry.Output{}, s.Outputs(i)...))
			}
			s.Reset()
		}
		for i := range flows {
			require.Equal(t, s.Len(), s.Add(masks[i], flows[i].features()))
			if s.Len() == batch {
				flush()
			}
		}
		flush()
		return all
	}
	want := run(1)
	fields := map[string]int{}
	for i, outs := range want {
		n := 0
		for b := range 2 {
			if masks[i]&(1<<b) != 0 {
				require.Equal(t, []string{"class", "app"}[b], outs[n].Field)
				fields[outs[n].Field]++
				n++
			}
		}
		require.Len(t, outs, n)
	}
	require.Greater(t, fields["class"], 50)
	require.Greater(t, fields["app"], 50)
	for _, batch := range []int{2, 7, 16, 31, 32, BatchSize} {
		require.Equal(t, want, run(batch), "batch %d", batch)
	}
}

func TestScorerNeedsOnlyTheFeaturesOfTheMask(t *testing.T) {
	s := NewScorer()
	s.Use(twoModels(t))
	var h Head
	s.Add(0b10, Features{Head: &h})
	s.Add(0, Features{})
	s.Add(^Mask(0b11), Features{}) // models that the set does not have
	s.Run()
	require.Len(t, s.Outputs(0), 1)
	require.Equal(t, "app", s.Outputs(0)[0].Field)
	require.Empty(t, s.Outputs(1))
	require.Empty(t, s.Outputs(2))
}

func TestScorerSwitchesSets(t *testing.T) {
	s := NewScorer()
	s.Run()
	s.Use(twoModels(t))
	exec := s.runs[1].exec
	head := s.runs[1].model
	flows := randomFlows(1)
	s.Add(3, flows[0].features())
	s.Run()
	want := s.Outputs(0)[1]

	only, err := NewSet(head)
	require.NoError(t, err)
	s.Use(only)
	require.Same(t, exec, s.runs[0].exec, "a model that stays keeps its executor")
	require.Zero(t, s.Len())
	s.Add(1, flows[0].features())
	s.Run()
	require.Equal(t, want, s.Outputs(0)[0])

	s.Use(nil)
	s.Add(1, Features{})
	s.Run()
	require.Empty(t, s.Outputs(0))
}

func TestScorerDoesNotAllocate(t *testing.T) {
	s := NewScorer()
	s.Use(twoModels(t))
	flows := randomFlows(BatchSize)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		for i := range flows {
			s.Add(Mask(i%4), flows[i].features())
		}
		s.Run()
		for i := range flows {
			_ = s.Outputs(i)
		}
		s.Reset()
	}))
}

// What the packet path pays per scored flow, features to labels, both kinds of model.
func BenchmarkScorer(b *testing.B) {
	s := NewScorer()
	s.Use(twoModels(b))
	flows := randomFlows(BatchSize)
	for b.Loop() {
		for i := range flows {
			s.Add(3, flows[i].features())
		}
		s.Run()
		s.Reset()
	}
	b.ReportMetric(BatchSize*float64(b.N)/b.Elapsed().Seconds(), "flows/s")
}
