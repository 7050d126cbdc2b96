package model

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

func readFloats(t testing.TB, path string) []float32 {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return f
}

func planFile(t testing.TB, path string) *Plan {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return planBytes(t, b)
}

func planBytes(t testing.TB, b []byte) *Plan {
	g, err := parseONNX(b)
	require.NoError(t, err)
	p, err := compile(g)
	require.NoError(t, err)
	return p
}

// compare runs a model on every instruction set and checks it against the recorded answers: 1e-5, of
// the value where that is above 1.
func compare(t *testing.T, onnx string) {
	p := planFile(t, onnx)
	stem := strings.TrimSuffix(onnx, ".onnx")
	in, want := readFloats(t, stem+".in.f32"), readFloats(t, stem+".out.f32")
	n := len(in) / p.Inputs
	require.Equal(t, n*p.Inputs, len(in))
	require.Equal(t, n*p.Outputs, len(want))
	var vector []float32
	for _, isa := range ISAs() {
		e, err := NewExecutorISA(p, isa)
		require.NoError(t, err)
		got := make([]float32, len(want))
		e.Run(in, n, got)
		worst := 0.0
		for i, w := range want {
			d := math.Abs(float64(got[i]-w)) / max(1, math.Abs(float64(w)))
			if !(d <= 1e-5) {
				t.Fatalf("%s: flow %d output %d: %g, ONNX Runtime says %g", isa, i/p.Outputs, i%p.Outputs, got[i], w)
			}
			worst = max(worst, d)
		}
		t.Logf("%s: worst difference %.2g over %d flows", isa, worst, n)
		if isa == AVX2 {
			vector = got
		}
		if isa == AVX512 && vector != nil {
			sameBits(t, vector, got, "AVX2 and AVX-512 differ")
		}
	}
}

func sameBits(t *testing.T, want, got []float32, what ...any) {
	t.Helper()
	require.Equal(t, len(want), len(got))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("%v: element %d: %g and %g", what, i, want[i], got[i])
		}
	}
}

func TestChooseISA(t *testing.T) {
	all := []ISA{Go, AVX2, AVX512}
	for _, c := range []struct {
		have  []ISA
		limit string
		want  ISA
	}{
		{all, "", AVX512}, {all, "avx512", AVX512}, {all, "avx2", AVX2}, {all, "go", Go}, {all, "riscv", AVX512},
		{all[:2], "avx512", AVX2}, {all[:1], "avx2", Go}, {all[:1], "", Go},
	} {
		require.Equal(t, c.want, chooseISA(c.have, c.limit), "%v %q", c.have, c.limit)
	}
	_, err := NewExecutorISA(planFile(t, "testdata/golden/relu.onnx"), ISA(9))
	require.ErrorIs(t, err, ErrISA)
}

// guard moves the arena between two walls; the result says whether they still stand.
func (e *Executor) guard() func() bool {
	const wall = 4096
	n := len(e.arena)
	buf := alignedFloats(n + 2*wall)
	for i := range buf {
		buf[i] = 12345
	}
	e.arena = buf[wall : wall+n : wall+n]
	clear(e.arena)
	e.steps = nil
	for i := range e.plan.Layers {
		e.steps = append(e.steps, e.prepare(&e.plan.Layers[i]))
	}
	return func() bool {
		for i, v := range buf {
			if (i < wall || i >= wall+n) && v != 12345 {
				return false
			}
		}
		return true
	}
}

// Vector kernels may write past a value, never past the arena.
func TestKernelsStayInTheArena(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.onnx")
	require.NoError(t, err)
	for _, f := range files {
		p := planFile(t, f)
		for _, isa := range ISAs() {
			e, err := NewExecutorISA(p, isa)
			require.NoError(t, err)
			intact := e.guard()
			e.Run(make([]float32, 20*p.Inputs), 20, make([]float32, 20*p.Outputs))
			require.True(t, intact(), "%s %s", f, isa)
		}
	}
}

func TestExecutorMatchesRecordedONNXRuntime(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.onnx")
	require.NoError(t, err)
	require.Greater(t, len(files), 40)
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".onnx"), func(t *testing.T) { compare(t, f) })
	}
}

// TestExecutorMatchesONNXRuntime is the wide form of the recorded test: 10,000 random inputs per
// model, those that are shipped among them.
func TestExecutorMatchesONNXRuntime(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	dir := t.TempDir()
	py := testcap.Python(t, "numpy", "onnx", "onnxruntime")
	shipped, err := filepath.Glob("../../configs/models/*.onnx")
	require.NoError(t, err)
	require.Len(t, shipped, 2)
	args := append([]string{"../../tests/onnx/models.py", dir, "--n", "10000", "--add"}, shipped...)
	out, err := exec.Command(py, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	files, err := filepath.Glob(dir + "/*.onnx")
	require.NoError(t, err)
	require.Greater(t, len(files), 40)
	for _, f := range shipped {
		require.Contains(t, files, filepath.Join(dir, filepath.Base(f)))
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".onnx"), func(t *testing.T) {
			compare(t, f)
			if !slices.ContainsFunc(shipped, func(s string) bool { return filepath.Base(s) == filepath.Base(f) }) {
				return
			}
			// Inputs that all get one answer would compare little.
			p, answers, seen := planFile(t, f), readFloats(t, strings.TrimSuffix(f, ".onnx")+".out.f32"), map[int]bool{}
			require.Equal(t, 10_000*p.Outputs, len(answers))
			for i := 0; i < len(answers); i += p.Outputs {
				row := answers[i : i+p.Outputs]
				seen[slices.Index(row, slices.Max(row))] = true
			}
			t.Logf("%d of %d classes among the answers", len(seen), p.Outputs)
			require.Greater(t, len(seen), 1)
		})
	}
}

// The score of a flow must not depend on the flows beside it.
func TestExecutorResultDoesNotDependOnBatch(t *testing.T) {
	for _, name := range []string{"cnn159", "head", "softmax", "residual"} {
		p := planFile(t, "testdata/golden/"+name+".onnx")
		const n = 75
		rng := rand.New(rand.NewPCG(1, 2))
		in := make([]float32, n*p.Inputs)
		for i := range in {
			in[i] = float32(rng.IntN(200))
		}
		for _, isa := range ISAs() {
			e, err := NewExecutorISA(p, isa)
			require.NoError(t, err)
			want := make([]float32, n*p.Outputs)
			for i := range n {
				e.Run(in[i*p.Inputs:], 1, want[i*p.Outputs:])
			}
			for _, batch := range []int{2, 7, 8, 15, 16, 17, 32, 64, n} {
				got := make([]float32, n*p.Outputs)
				for i := 0; i < n; i += batch {
					e.Run(in[i*p.Inputs:], min(batch, n-i), got[i*p.Outputs:])
				}
				sameBits(t, want, got, name, isa, batch)
			}
		}
	}
}

func TestExecutorDoesNotAllocate(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.onnx")
	require.NoError(t, err)
	for _, f := range files {
		p := planFile(t, f)
		for _, isa := range ISAs() {
			e, err := NewExecutorISA(p, isa)
			require.NoError(t, err)
			in, out := make([]float32, 20*p.Inputs), make([]float32, 20*p.Outputs)
			require.Zero(t, testing.AllocsPerRun(5, func() { e.Run(in, 20, out) }), "%s %s", f, isa)
		}
	}
}

// The published network: 95 size bins, one sigmoid.
func BenchmarkClassCNN(b *testing.B) {
	benchmark(b, planBytes(b, cnn1D().encode()))
}

// A model over all 159 histogram inputs with log counts and 8 classes.
func BenchmarkClassCNN159(b *testing.B) { benchmark(b, planFile(b, "testdata/golden/cnn159.onnx")) }

func BenchmarkHeadCNN(b *testing.B) { benchmark(b, planFile(b, "testdata/golden/head.onnx")) }

func benchmark(b *testing.B, p *Plan) {
	const n = BatchSize
	in, out := make([]float32, n*p.Inputs), make([]float32, n*p.Outputs)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range in {
		in[i] = float32(rng.IntN(20))
	}
	for _, isa := range ISAs() {
		b.Run(isa.String(), func(b *testing.B) {
			e, err := NewExecutorISA(p, isa)
			require.NoError(b, err)
			for b.Loop() {
				e.Run(in, n, out)
			}
			s := b.Elapsed().Seconds()
			b.ReportMetric(n*float64(b.N)/s, "flows/s")
			b.ReportMetric(n*float64(b.N)*float64(p.FLOPs())/s/1e9, "GFLOP/s")
		})
	}
}
