package simt

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// The device's sketches (cuda/kernels/sketch.cuh) against those of agp/sketch: the same things,
// then the same bytes. Sketches are small here, so that lanes meet in cells all the time.

const sketches = "tests/simt/lib/sketches.cu"

type item struct {
	W      [5]uint64
	Weight uint64
}

type sketchParams struct {
	K0, K1, Items uint64
	State         [5]uint64
	Count         uint32
	Size          [3]uint32
}

var sketchKey = [16]byte{3, 1, 4, 1, 5, 9}

func openSketches(t testing.TB) *Library {
	t.Helper()
	testcap.Program(t, compiler)
	l, err := OpenSources(sketches)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// fill runs a kernel over items.
func fill(t *testing.T, l *Library, kernel string, items []item, p sketchParams) {
	t.Helper()
	in, addr := alloc[item](t, l, len(items))
	copy(in, items)
	p.Items, p.Count = addr, uint32(len(items))
	p.K0, p.K1 = sketch.NewHasher(sketchKey).Words()
	require.NoError(t, Call(deadline(t), l, kernel, 1, 1, p))
}

type marshaler interface{ MarshalBinary() ([]byte, error) }

func sameBytes(t *testing.T, want, got marshaler) {
	t.Helper()
	w, err := want.MarshalBinary()
	require.NoError(t, err)
	g, err := got.MarshalBinary()
	require.NoError(t, err)
	require.Equal(t, w, g)
}

// draw makes items: few words or many, now and then a lane without any.
func draw(seed uint64, n int, keys uint64, weight func(r *rand.Rand) uint64) []item {
	r := rand.New(rand.NewPCG(seed, 2))
	items := make([]item, n)
	for i := range items {
		if r.IntN(10) == 0 {
			continue
		}
		k := uint64(float64(keys) * math.Pow(r.Float64(), 4))
		items[i] = item{W: [5]uint64{k * 0x9e3779b97f4a7c15, k % 3, k, 0, k >> 3}, Weight: weight(r)}
	}
	return items
}

func small(r *rand.Rand) uint64 { return 1 + r.Uint64N(64) }

func TestDeviceCountMinIsThatOfGo(t *testing.T) {
	l := openSketches(t)
	for rows := 1; rows <= 8; rows++ {
		width := 2 << rows
		want, err := sketch.NewCountMin(rows, width, sketchKey)
		require.NoError(t, err)
		items := draw(uint64(rows), 3000+rows, 500, func(r *rand.Rand) uint64 { // some saturate
			if r.IntN(50) == 0 {
				return math.MaxUint32 - r.Uint64N(3)
			}
			return small(r)
		})
		for _, i := range items {
			if i.Weight > 0 {
				want.Add(i.W[0], uint32(i.Weight))
			}
		}
		n, a := alloc[uint64](t, l, 1)
		cells, b := alloc[uint32](t, l, rows*width)
		fill(t, l, "sketch_count_min", items, sketchParams{State: [5]uint64{a, b}, Size: [3]uint32{uint32(rows), uint32(width)}})
		got, err := sketch.NewCountMin(rows, width, sketchKey)
		require.NoError(t, err)
		require.NoError(t, got.Load(n[0], cells))
		sameBytes(t, want, got)
	}
}

func TestDeviceEntropyIsThatOfGo(t *testing.T) {
	l := openSketches(t)
	const width = 64
	want, err := sketch.NewEntropy(width, sketchKey)
	require.NoError(t, err)
	items := draw(1, 5000, 300, small)
	for _, i := range items {
		if i.Weight > 0 {
			want.Add(i.W[0], uint32(i.Weight))
		}
	}
	m, a := alloc[byte](t, l, 8+4*width)
	fill(t, l, "sketch_entropy", items, sketchParams{State: [5]uint64{a}, Size: [3]uint32{width}})
	cells := make([]uint32, width)
	for i := range cells {
		cells[i] = binary.LittleEndian.Uint32(m[8+4*i:])
	}
	got, err := sketch.NewEntropy(width, sketchKey)
	require.NoError(t, err)
	require.NoError(t, got.Load(binary.LittleEndian.Uint64(m), cells))
	sameBytes(t, want, got)
}

func TestDeviceQuantilesAreThoseOfGo(t *testing.T) {
	l := openSketches(t)
	first, high := sketch.QuantileTable()
	table, b := alloc[byte](t, l, 2*len(first)+8*len(high))
	for i, v := range first {
		binary.LittleEndian.PutUint16(table[2*i:], v)
	}
	for i, v := range high {
		binary.LittleEndian.PutUint64(table[2*len(first)+8*i:], v)
	}
	r := rand.New(rand.NewPCG(1, 3))
	var items []item
	add := func(v uint64) { items = append(items, item{W: [5]uint64{v}, Weight: 1}) }
	for _, v := range high { // every edge
		add(v)
		add(v + 1)
	}
	for range 5000 {
		add(r.Uint64() >> r.IntN(64))
		add(1500)
		if r.IntN(4) == 0 {
			items = append(items, item{})
		}
	}
	add(0)
	add(math.MaxUint64)
	want := sketch.NewQuantiles()
	for _, i := range items {
		if i.Weight > 0 {
			want.AddUint(i.W[0])
		}
	}
	s, a := alloc[uint64](t, l, 2+len(high))
	fill(t, l, "sketch_quantiles", items, sketchParams{State: [5]uint64{a, b}})
	got := sketch.NewQuantiles()
	require.NoError(t, got.Load(s[0], s[1], s[2:]))
	require.Equal(t, want.Count(), got.Count())
	sameBytes(t, want, got)
}

func loadHLL(t *testing.T, lgK int, m []byte) *sketch.HLL {
	got, err := sketch.NewHLL(lgK)
	require.NoError(t, err)
	float := func(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(m[8*i:])) }
	require.NoError(t, got.Load(float(0), [2]float64{float(1), float(2)}, m[24:]))
	return got
}

// TestDeviceHLLIsThatOfGo: registers and estimate, for bytes of addresses and for integers.
func TestDeviceHLLIsThatOfGo(t *testing.T) {
	l := openSketches(t)
	for _, lgK := range []int{4, 8, 12} {
		want, err := sketch.NewHLL(lgK)
		require.NoError(t, err)
		items := draw(uint64(lgK), 6000, 1<<20, func(r *rand.Rand) uint64 { return []uint64{4, 8, 16}[r.IntN(3)] })
		for i := range items {
			var b [16]byte
			if items[i].Weight == 4 {
				items[i].W[0] &= math.MaxUint32
			}
			binary.LittleEndian.PutUint64(b[:], items[i].W[0])
			binary.LittleEndian.PutUint64(b[8:], items[i].W[1])
			switch {
			case items[i].Weight == 0:
			case items[i].Weight == 8:
				want.AddUint64(items[i].W[0])
			default:
				want.Add(b[:items[i].Weight])
			}
		}
		m, a := alloc[byte](t, l, 24+1<<lgK)
		binary.LittleEndian.PutUint64(m[8:], math.Float64bits(float64(int(1)<<lgK)))
		fill(t, l, "sketch_hll", items, sketchParams{State: [5]uint64{a}, Size: [3]uint32{1 << lgK}})
		got := loadHLL(t, lgK, m)
		require.Equal(t, want.Estimate(), got.Estimate())
		sameBytes(t, want, got)
	}
}

func TestDevicePublishedFeatureIsThatOfGo(t *testing.T) {
	l := openSketches(t)
	for _, c := range []struct{ width, bits int }{{7, 64}, {100, 1000}, {1024, 4097}} {
		want, err := sketch.NewPublished(95, c.width, c.bits, sketchKey)
		require.NoError(t, err)
		items := draw(uint64(c.width), 8000, 200, small)
		n := uint64(0)
		for i := range items {
			items[i].W[1] = items[i].Weight
			if items[i].Weight > 0 {
				want.Add(items[i].W[0], int(items[i].W[1]))
				n++
			}
		}
		counters, a := alloc[uint32](t, l, 3*c.width)
		bloom, b := alloc[uint64](t, l, 3*((c.bits+63)/64))
		fill(t, l, "sketch_published", items, sketchParams{State: [5]uint64{a, b}, Size: [3]uint32{uint32(c.width), uint32(c.bits)}})
		got, err := sketch.NewPublished(95, c.width, c.bits, sketchKey)
		require.NoError(t, err)
		require.NoError(t, got.Load(n, counters, bloom))
		sameBytes(t, want, got)
	}
}

// TestDeviceBlockedFeatureIsThatOfGo: with cells that pass 255 many times.
func TestDeviceBlockedFeatureIsThatOfGo(t *testing.T) {
	l := openSketches(t)
	for _, width := range []int{2, 16, 1024} {
		want, err := sketch.NewBlocked(width, sketchKey)
		require.NoError(t, err)
		items := draw(uint64(width), 30000, 40, small)
		n := uint64(0)
		for i := range items {
			items[i].W[1] = items[i].Weight * 3 / 2 // up to 96: the last counts in the one before
			if items[i].Weight > 0 {
				want.Add(items[i].W[0], int(items[i].W[1]))
				n++
			}
		}
		lines, a := alloc[byte](t, l, 3*width*sketch.BlockedLine)
		carry, b := alloc[uint32](t, l, 2*width)
		fill(t, l, "sketch_blocked", items, sketchParams{State: [5]uint64{a, b}, Size: [3]uint32{uint32(width)}})
		got, err := sketch.NewBlocked(width, sketchKey)
		require.NoError(t, err)
		require.NoError(t, got.Load(n, lines, carry))
		require.NotZero(t, carry)
		sameBytes(t, want, got)
	}
}

// TestDeviceTopKIsThatOfGo: the same counters and error, whether counters suffice or are reduced
// again and again.
func TestDeviceTopKIsThatOfGo(t *testing.T) {
	l := openSketches(t)
	for _, c := range []struct {
		k       int
		keys    uint64
		reduces bool
	}{{1, 50, true}, {10, 20, false}, {10, 1000, true}, {100, 5000, true}, {1024, 100000, true}} {
		want, err := sketch.NewTopK(c.k, sketchKey)
		require.NoError(t, err)
		items := draw(uint64(c.k), 12000, c.keys, func(r *rand.Rand) uint64 { return r.Uint64() >> (20 + r.IntN(44)) })
		for _, i := range items {
			var k sketch.Key
			for j, w := range i.W {
				binary.LittleEndian.PutUint64(k[8*j:], w)
			}
			want.Add(&k, i.Weight)
		}
		size := 4
		for size < 4*c.k {
			size *= 2
		}
		state, a := alloc[uint64](t, l, 3)
		_, b := alloc[uint64](t, l, size)
		keys, d := alloc[[5]uint64](t, l, 2*c.k)
		counts, e := alloc[uint64](t, l, 2*c.k)
		fill(t, l, "sketch_top", items, sketchParams{State: [5]uint64{a, b, d, e}, Size: [3]uint32{uint32(c.k), uint32(size - 1)}})
		got, err := sketch.NewTopK(c.k, sketchKey)
		require.NoError(t, err)
		used := uint32(state[2])
		require.NoError(t, got.Load(state[0], state[1], keys[:used], counts[:used]))
		require.Equal(t, c.reduces, want.Error() > 0)
		require.Equal(t, want.Error(), got.Error())
		require.LessOrEqual(t, got.Error(), got.Total()/uint64(c.k+1))
		sameBytes(t, want, got)
	}
}

// TestSketchesAreCleanUnderSanitizers: addresses, undefined behaviour and data races, with the
// same state in every build and order of lanes.
func TestSketchesAreCleanUnderSanitizers(t *testing.T) {
	testcap.Program(t, compiler)
	var want []byte
	for order, s := range []Sanitizer{Plain, Plain, Address, Thread} {
		got, err := Run(deadline(t), "tests/simt/lib/sketches.cc", s, strconv.Itoa(order+1))
		require.NoError(t, err)
		if want == nil {
			want = got
		}
		require.Equal(t, string(want), string(got), "%s, order %d", s, order)
	}
	require.Equal(t, 7, strings.Count(string(want), "\n"))
}
