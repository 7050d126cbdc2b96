package sketch

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantilesAddUintIsAdd(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(v uint64) {
		a, b := NewQuantiles(), NewQuantiles()
		a.Add(float64(v))
		b.AddUint(v)
		require.Equal(t, a, b, "%d", v)
	}
	for v := range uint64(3000) {
		check(v)
	}
	for range 3000 {
		check(rng.Uint64() >> rng.IntN(64) >> 11 << rng.IntN(11)) // exact as float64
	}
	check(1 << 63)
	s := NewQuantiles()
	s.AddUint(1<<64 - 1)
	require.EqualValues(t, 1, s.bins[len(s.bins)-1])
}

func BenchmarkQuantilesAddUint(b *testing.B) {
	s := NewQuantiles()
	v := uint64(12345)
	for range b.N {
		v = v*6364136223846793005 + 1442695040888963407
		s.AddUint(v >> 40)
	}
}
