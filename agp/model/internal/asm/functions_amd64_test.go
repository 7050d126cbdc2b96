package asm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
)

func TestFunctionsAgainstMath(t *testing.T) {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA {
		t.Skip("no AVX2 with FMA")
	}
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		name    string
		f       func(dst, src *float32, n int)
		want    func(float64) float64
		lo, hi  float64
		special []float64
		relTo   float64 // differences are relative to max(this, |want|)
	}{
		{"exp", Exp, math.Exp, -87, 88.7, []float64{0, 1, -1, 88.72, 89, 1000, inf, -88, -1000, -inf, nan}, 1e-30},
		{"log", Log, math.Log, 1e-30, 1e30, []float64{1, 0, -1, inf, -inf, nan, 2, 0.5, math.Sqrt2 / 2, math.SmallestNonzeroFloat32 * (1 << 24), math.MaxFloat32}, 1},
		{"sigmoid", Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, -30, 30, []float64{0, 100, -100, inf, -inf, nan}, 1},
		{"tanh", Tanh, math.Tanh, -12, 12, []float64{0, 50, -50, inf, -inf, nan}, 1},
	} {
		var src []float32
		for _, x := range c.special {
			src = append(src, float32(x))
		}
		const n = 40000
		for i := range n {
			x := c.lo + (c.hi-c.lo)*float64(i)/n
			if c.lo > 0 { // positive: geometric
				x = c.lo * math.Pow(c.hi/c.lo, float64(i)/n)
			}
			src = append(src, float32(x))
		}
		for len(src)%8 != 0 {
			src = append(src, 1)
		}
		dst := make([]float32, len(src))
		c.f(&dst[0], &src[0], len(src))
		for i, x := range src {
			want := float32(c.want(float64(x)))
			got := dst[i]
			switch {
			case math.IsNaN(float64(want)):
				require.True(t, math.IsNaN(float64(got)), "%s(%g) = %g", c.name, x, got)
			case math.IsInf(float64(want), 0):
				require.Equal(t, want, got, "%s(%g)", c.name, x)
			default:
				d := math.Abs(float64(got)-float64(want)) / max(c.relTo, math.Abs(float64(want)))
				if !(d < 4e-7) {
					t.Fatalf("%s(%g) = %g, want %g", c.name, x, got, want)
				}
			}
		}
	}
}
