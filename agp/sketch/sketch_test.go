package sketch

import (
	"cmp"
	"encoding"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func testKey(b byte) [16]byte { return [16]byte{b, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16} }

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// zipfKeys yields n keys of a skewed distribution over f values.
func zipfKeys(r *rand.Rand, n int, f uint64) []uint64 {
	z := rand.NewZipf(r, 1.2, 1, f-1)
	out := make([]uint64, n)
	for i := range out {
		out[i] = z.Uint64() * mixA // far apart, so that nothing depends on small integers
	}
	return out
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestHasherDependsOnKeyLengthAndEveryBit(t *testing.T) {
	a, b := NewHasher(testKey(1)), NewHasher(testKey(2))
	require.NotEqual(t, a.Uint64(1), b.Uint64(1))
	require.NotEqual(t, a.Bytes([]byte{0}), a.Bytes([]byte{0, 0}), "length is hashed")
	require.NotEqual(t, a.Pair(1, 2), a.Pair(2, 1))
	// Avalanche: each input bit flips each output bit about half of the time.
	r := rng(1)
	for name, f := range map[string]func(x uint64) uint64{
		"Uint64": a.Uint64,
		"Pair.x": func(x uint64) uint64 { return a.Pair(x, 7) },
		"Pair.y": func(x uint64) uint64 { return a.Pair(7, x) },
		"Bytes": func(x uint64) uint64 {
			var k Key
			binary.LittleEndian.PutUint64(k[24:], x)
			return a.Bytes(k[:])
		},
	} {
		const trials = 2000
		for in := range 64 {
			var flips [64]int
			for range trials {
				x := r.Uint64()
				d := f(x) ^ f(x^1<<in)
				for o := range flips {
					flips[o] += int(d >> o & 1)
				}
			}
			for o, n := range flips {
				require.InDelta(t, 0.5, float64(n)/trials, 0.08, "%s in %d out %d", name, in, o)
			}
		}
	}
}

func TestFeature15CountMinNeverUnderestimatesAndHoldsItsBound(t *testing.T) {
	s := must(NewCountMin(4, 1024, testKey(1)))
	truth := map[uint64]uint32{}
	for _, k := range zipfKeys(rng(2), 200_000, 50_000) {
		s.Add(k, 1)
		truth[k]++
	}
	excess, failure := s.Bound()
	bad := 0
	for k, n := range truth {
		e := s.Estimate(k)
		require.GreaterOrEqual(t, e, n)
		if float64(e-n) > excess {
			bad++
		}
	}
	require.LessOrEqual(t, float64(bad)/float64(len(truth)), failure)
	require.Equal(t, uint64(200_000), s.Total())
}

func TestCountMinSaturatesInsteadOfWrapping(t *testing.T) {
	s := must(NewCountMin(2, 16, testKey(1)))
	s.Add(5, math.MaxUint32)
	s.Add(5, 10)
	require.Equal(t, uint32(math.MaxUint32), s.Estimate(5))
	o := must(NewCountMin(2, 16, testKey(1)))
	o.Add(5, 7)
	require.NoError(t, s.Merge(o))
	require.Equal(t, uint32(math.MaxUint32), s.Estimate(5))
}

// features lets both layouts run the same tests.
type featureSketch interface {
	Add(flow uint64, bin int)
	Decode(flow uint64, out []uint32)
	Bound() (float64, float64)
	Reset()
	encoding.BinaryMarshaler
	encoding.BinaryUnmarshaler
}

func featureLayouts(scale int) map[string]featureSketch {
	return map[string]featureSketch{
		"published": must(NewPublished(95, 96*scale, 8*96*scale*2, testKey(1))),
		"blocked":   must(NewBlocked(scale, testKey(1))),
	}
}

type flowHist map[uint64]*[95]uint32

// trafficModel adds flows with few distinct sizes each, as real flows have.
func trafficModel(flows, packets int, add func(flow uint64, bin int)) flowHist {
	r := rng(3)
	z := rand.NewZipf(r, 1.3, 1, uint64(flows-1))
	truth := flowHist{}
	for range packets {
		f := (z.Uint64() + 1) * mixB
		bin := [4]int{0, int(f % 95), 3, 93}[r.IntN(4)]
		if truth[f] == nil {
			truth[f] = new([95]uint32)
		}
		truth[f][bin]++
		add(f, bin)
	}
	return truth
}

func TestFeature15SketchNeverMissesNorUndercountsAndHoldsItsBound(t *testing.T) {
	for name, s := range featureLayouts(1024) {
		t.Run(name, func(t *testing.T) {
			truth := trafficModel(5000, 300_000, s.Add)
			excess, failure := s.Bound()
			cells, bad := 0, 0
			out := make([]uint32, 95)
			for f, h := range truth {
				s.Decode(f, out)
				for bin, n := range h {
					require.GreaterOrEqual(t, out[bin], n, "an inserted pair is never missed nor undercounted")
					cells++
					if float64(out[bin]-n) > excess {
						bad++
					}
				}
			}
			require.LessOrEqual(t, float64(bad)/float64(cells), failure)
			s.Reset()
			s.Decode(mixB, out)
			require.Equal(t, make([]uint32, 95), out)
		})
	}
}

// The published artefact hashes bin 0 alike in every row; here a flow's rows must be independent at bin 0 as at any other.
func TestFeature15RowsAreIndependentAtLevelZero(t *testing.T) {
	s := must(NewPublished(95, 1<<20, 1<<20, testKey(1)))
	for _, bin := range []int{0, 1, 2, 94} {
		same := map[string]int{}
		const flows = 20_000
		for f := range uint64(flows) {
			c, b := s.place(f*mixA+1, bin)
			for i := 1; i < featureRows; i++ {
				// Equal offsets within the row, to 1/256 of the row.
				if (c[i]-uint32(i)*s.width)>>12 == c[0]>>12 {
					same[fmt.Sprint("counter", i)]++
				}
				if (b[i]-uint32(i)<<20)>>12 == b[0]>>12 {
					same[fmt.Sprint("bloom", i)]++
				}
			}
		}
		for what, n := range same {
			require.InDelta(t, flows/256.0, n, 5*math.Sqrt(flows/256.0), "bin %d %s", bin, what)
		}
		require.Len(t, same, 4)
	}
	// The tie of the published code: row i of bin q = row 0 of bin q * 2^i.
	tied := 0
	for f := range uint64(1000) {
		a, _ := s.place(f, 6)
		b, _ := s.place(f, 12)
		if a[1]-s.width == b[0] {
			tied++
		}
	}
	require.Less(t, tied, 3)
}

func TestPublishedEmptyBinsReadZeroAtTheStatedRate(t *testing.T) {
	s := must(NewPublished(95, 1024, 1<<15, testKey(1)))
	truth := trafficModel(5000, 200_000, s.Add)
	pairs, empty, phantom := 0, 0, 0
	out := make([]uint32, 95)
	for f, h := range truth {
		s.Decode(f, out)
		for bin, n := range h {
			if n > 0 {
				pairs++
				continue
			}
			empty++
			if out[bin] > 0 {
				phantom++
			}
		}
	}
	rate := math.Pow(1-math.Exp(-float64(pairs)/(1<<15)), 3)
	require.InDelta(t, rate, float64(phantom)/float64(empty), 0.2*rate)
}

func TestBlockedHistogramsAreExactAtTheStatedRate(t *testing.T) {
	s := must(NewBlocked(4096, testKey(1)))
	truth := trafficModel(4000, 300_000, s.Add)
	wrong := 0
	out := make([]uint32, 95)
	for f, h := range truth {
		s.Decode(f, out)
		if [95]uint32(out) != *h {
			wrong++
		}
	}
	load := float64(len(truth)) / 4096
	require.LessOrEqual(t, float64(wrong)/float64(len(truth)), math.Pow(1-math.Exp(-load), 3)*1.2)
}

func TestBlockedCountsBeyondEightBits(t *testing.T) {
	s := must(NewBlocked(64, testKey(1)))
	for range 100_000 {
		s.Add(1, 7)
	}
	out := make([]uint32, 96)
	s.Decode(1, out)
	require.Equal(t, uint32(100_000), out[7])
	o := must(NewBlocked(64, testKey(1)))
	for range 1000 {
		o.Add(1, 7)
	}
	require.NoError(t, s.Merge(o))
	s.Decode(1, out)
	require.Equal(t, uint32(101_000), out[7])
}

func TestFeatureBinsOutOfRangeSaturate(t *testing.T) {
	for name, s := range featureLayouts(64) {
		t.Run(name, func(t *testing.T) {
			s.Add(1, 1000)
			s.Add(1, -1)
			out := make([]uint32, 200)
			s.Decode(1, out)
			last := 94
			if name == "blocked" {
				last = BlockedBins - 1
			}
			require.Equal(t, uint32(1), out[last])
			require.Equal(t, uint32(1), out[0])
			require.Zero(t, out[199])
		})
	}
}

func TestTopKHoldsItsBoundInAnyOrder(t *testing.T) {
	for name, order := range map[string]func([]uint64){
		"random": func([]uint64) {},
		"sorted": slices.Sort[[]uint64],
		"heaviest first": func(v []uint64) {
			n := map[uint64]int{}
			for _, x := range v {
				n[x]++
			}
			slices.SortFunc(v, func(a, b uint64) int { return cmp.Or(n[b]-n[a], cmp.Compare(a, b)) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := must(NewTopK(64, testKey(1)))
			keys := zipfKeys(rng(4), 100_000, 1<<20)
			order(keys)
			truth := map[Key]uint64{}
			var total uint64
			for i, v := range keys {
				k := keyOf(v)
				w := uint64(i%3 + 1)
				s.Add(&k, w)
				truth[k] += w
				total += w
			}
			require.Equal(t, total, s.Total())
			require.LessOrEqual(t, s.Error(), total/65)
			for k, n := range truth {
				c := s.Count(&k)
				require.LessOrEqual(t, c, n)
				require.LessOrEqual(t, n, c+s.Error())
			}
			top := s.Top(nil, 64)
			require.Len(t, top, 64)
			require.IsNonIncreasing(t, counts(top))
		})
	}
}

func counts(e []TopEntry) (out []uint64) {
	for _, x := range e {
		out = append(out, x.Count)
	}
	return out
}

func keyOf(v uint64) (k Key) {
	binary.BigEndian.PutUint64(k[:], v)
	return k
}

func TestTopKOrderIsCountThenKeyWhateverTheHashKey(t *testing.T) {
	var first []TopEntry
	for seed := range byte(4) {
		s := must(NewTopK(8, testKey(seed)))
		for _, v := range []uint64{5, 3, 9, 1, 7} {
			k := keyOf(v)
			s.Add(&k, 40)
		}
		for v := range uint64(40) {
			k := keyOf(100 + v)
			s.Add(&k, v%4+1)
		}
		top := s.Top(nil, 5)
		require.Equal(t, keyOf(1), top[0].Key)
		if first == nil {
			first = top
		}
		require.Equal(t, first, top)
	}
}

// TestRawCountersMergeAsASketchDoes, and the merged counts keep the bound, whether counters have to go or not.
func TestRawCountersMergeAsASketchDoes(t *testing.T) {
	for _, keys := range []uint64{40, 1 << 14} {
		all, raw := must(NewTopK(64, testKey(1))), must(NewTopK(64, testKey(1)))
		truth, total, r := map[Key]uint64{}, uint64(0), rng(6)
		for range 5 {
			part := must(NewTopK(64, testKey(1)))
			for range 3000 {
				k := keyOf(uint64(float64(keys) * r.Float64() * r.Float64()))
				part.Add(&k, 2)
				truth[k] += 2
				total += 2
			}
			require.NoError(t, all.Merge(part))
			var words [][5]uint64
			for _, e := range part.entries {
				var w [5]uint64
				for j := range w {
					w[j] = binary.LittleEndian.Uint64(e.Key[8*j:])
				}
				words = append(words, w)
			}
			require.NoError(t, raw.MergeRaw(part.Total(), part.Error(), words, counts(part.entries)))
			require.Equal(t, must(all.MarshalBinary()), must(raw.MarshalBinary()))
		}
		require.Equal(t, total, raw.Total())
		require.Equal(t, keys > 64, raw.Error() > 0)
		require.LessOrEqual(t, raw.Error(), total/65)
		for k, n := range truth {
			c := raw.Count(&k)
			require.LessOrEqual(t, c, n)
			require.LessOrEqual(t, n, c+raw.Error())
		}
		before := must(raw.MarshalBinary())
		require.ErrorIs(t, raw.Load(1, 0, make([][5]uint64, 129), make([]uint64, 129)), ErrFormat)
		require.ErrorIs(t, raw.MergeRaw(1, 0, make([][5]uint64, 1), nil), ErrFormat)
		require.Equal(t, before, must(raw.MarshalBinary()), "what does not fit changes nothing")
	}
}

func TestNthLargest(t *testing.T) {
	r := rng(5)
	for range 300 {
		v := make([]uint64, 1+r.IntN(50))
		for i := range v {
			v[i] = r.Uint64N(20)
		}
		n := r.IntN(len(v))
		want := append([]uint64(nil), v...)
		got := nthLargest(v, n)
		larger, equal := 0, 0
		for _, x := range want {
			if x > got {
				larger++
			} else if x == got {
				equal++
			}
		}
		require.True(t, larger <= n && n < larger+equal)
	}
}

func TestEntropyIsALowerBoundWithinItsLoss(t *testing.T) {
	for _, distinct := range []int{1, 2, 1000, 8000} {
		s := must(NewEntropy(1<<16, testKey(1)))
		var h float64
		weights := make([]float64, distinct)
		var total float64
		for i := range weights {
			weights[i] = float64(1 + i%7)
			total += weights[i]
			s.Add(uint64(i)*mixC, uint32(weights[i]))
		}
		for _, w := range weights {
			h -= w / total * math.Log2(w/total)
		}
		require.LessOrEqual(t, s.Estimate(), h+1e-9)
		// The loss is a mean over keys; three times it is far beyond what one key shows.
		require.GreaterOrEqual(t, s.Estimate(), h-3*s.Loss(float64(distinct))-1e-9, "%d keys", distinct)
	}
	s := must(NewEntropy(256, testKey(1)))
	require.Zero(t, s.Estimate())
	for i := range uint64(1 << 18) {
		s.Add(i, 1)
	}
	require.LessOrEqual(t, s.Estimate(), s.Max())
	require.Greater(t, s.Estimate(), s.Max()-0.01)
}

// A merged sketch holds what one sketch over both inputs holds, and merging refuses other keys or sizes.
func TestMergeEqualsOneSketchOverBoth(t *testing.T) {
	keys := zipfKeys(rng(6), 20_000, 3000)
	half := len(keys) / 2
	marshal := func(s encoding.BinaryMarshaler) []byte { return must(s.MarshalBinary()) }
	t.Run("countmin", func(t *testing.T) {
		mk := func() *CountMin { return must(NewCountMin(4, 512, testKey(1))) }
		a, b, all := mk(), mk(), mk()
		for i, k := range keys {
			[]*CountMin{a, b}[i/half].Add(k, 1)
			all.Add(k, 1)
		}
		require.NoError(t, a.Merge(b))
		require.Equal(t, marshal(all), marshal(a))
		require.ErrorIs(t, a.Merge(must(NewCountMin(4, 512, testKey(9)))), ErrMismatch)
		require.ErrorIs(t, a.Merge(must(NewCountMin(3, 512, testKey(1)))), ErrMismatch)
		require.ErrorIs(t, a.Merge(must(NewCountMin(4, 256, testKey(1)))), ErrMismatch)
	})
	t.Run("published", func(t *testing.T) {
		mk := func() *Published { return must(NewPublished(95, 5000, 40_000, testKey(1))) }
		a, b, all := mk(), mk(), mk()
		for i, k := range keys {
			[]*Published{a, b}[i/half].Add(k, i%95)
			all.Add(k, i%95)
		}
		require.NoError(t, a.Merge(b))
		require.Equal(t, marshal(all), marshal(a))
		require.ErrorIs(t, a.Merge(must(NewPublished(95, 5001, 40_000, testKey(1)))), ErrMismatch)
		require.ErrorIs(t, a.Merge(must(NewPublished(95, 5000, 40_000, testKey(2)))), ErrMismatch)
	})
	t.Run("blocked", func(t *testing.T) {
		mk := func() *Blocked { return must(NewBlocked(64, testKey(1))) }
		a, b, all := mk(), mk(), mk()
		for i, k := range keys {
			[]*Blocked{a, b}[i/half].Add(k, i%5)
			all.Add(k, i%5)
		}
		require.NoError(t, a.Merge(b))
		require.Equal(t, marshal(all), marshal(a))
		require.ErrorIs(t, a.Merge(must(NewBlocked(32, testKey(1)))), ErrMismatch)
		require.ErrorIs(t, a.Merge(must(NewBlocked(64, testKey(2)))), ErrMismatch)
	})
	t.Run("entropy", func(t *testing.T) {
		mk := func() *Entropy { return must(NewEntropy(512, testKey(1))) }
		a, b, all := mk(), mk(), mk()
		for i, k := range keys {
			[]*Entropy{a, b}[i/half].Add(k, 1)
			all.Add(k, 1)
		}
		require.NoError(t, a.Merge(b))
		require.Equal(t, marshal(all), marshal(a))
		require.ErrorIs(t, a.Merge(must(NewEntropy(512, testKey(2)))), ErrMismatch)
	})
	t.Run("quantiles", func(t *testing.T) {
		a, b, all := NewQuantiles(), NewQuantiles(), NewQuantiles()
		for i, k := range keys {
			[]*Quantiles{a, b}[i/half].Add(float64(k >> 20))
			all.Add(float64(k >> 20))
		}
		require.NoError(t, a.Merge(b))
		require.Equal(t, marshal(all), marshal(a))
	})
	t.Run("topk bound", func(t *testing.T) {
		mk := func() *TopK { return must(NewTopK(32, testKey(1))) }
		a, b := mk(), mk()
		truth := map[Key]uint64{}
		for i, v := range keys {
			k := keyOf(v)
			[]*TopK{a, b}[i/half].Add(&k, 1)
			truth[k]++
		}
		require.NoError(t, a.Merge(b))
		require.Equal(t, uint64(len(keys)), a.Total())
		require.LessOrEqual(t, a.Error(), a.Total()/33)
		for k, n := range truth {
			require.LessOrEqual(t, a.Count(&k), n)
			require.LessOrEqual(t, n, a.Count(&k)+a.Error())
		}
		require.ErrorIs(t, a.Merge(must(NewTopK(31, testKey(1)))), ErrMismatch)
		require.ErrorIs(t, a.Merge(must(NewTopK(32, testKey(2)))), ErrMismatch)
	})
}

// codecs is one filled sketch per kind with an empty twin and one of another key.
type codec struct {
	name                string
	full, twin, another interface {
		encoding.BinaryMarshaler
		encoding.BinaryUnmarshaler
	}
}

func codecs() []codec {
	var out []codec
	mk := func(k byte) []codec {
		cm, pb, bl := must(NewCountMin(3, 64, testKey(k))), must(NewPublished(8, 50, 130, testKey(k))), must(NewBlocked(4, testKey(k)))
		tk, en := must(NewTopK(4, testKey(k))), must(NewEntropy(64, testKey(k)))
		return []codec{{name: "countmin", full: cm}, {name: "published", full: pb}, {name: "blocked", full: bl}, {name: "topk", full: tk}, {name: "entropy", full: en}}
	}
	full, twin, another := mk(1), mk(1), mk(2)
	for i, v := range zipfKeys(rng(7), 500, 100) {
		full[0].full.(*CountMin).Add(v, 1)
		full[1].full.(*Published).Add(v, i%8)
		full[2].full.(*Blocked).Add(v, i%3)
		k := keyOf(v)
		full[3].full.(*TopK).Add(&k, 1)
		full[4].full.(*Entropy).Add(v, 1)
	}
	for i := range full {
		out = append(out, codec{full[i].name, full[i].full, twin[i].full, another[i].full})
	}
	return out
}

func TestSerialisationRoundTripAndRefusals(t *testing.T) {
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			b := must(c.full.MarshalBinary())
			require.Equal(t, b, must(c.full.MarshalBinary()), "stable")
			require.NoError(t, c.twin.UnmarshalBinary(b))
			require.Equal(t, b, must(c.twin.MarshalBinary()))
			require.ErrorIs(t, c.another.UnmarshalBinary(b), ErrMismatch, "another key")
			for cut := range len(b) {
				if err := c.twin.UnmarshalBinary(b[:cut]); cut < len(b) {
					require.ErrorIs(t, err, ErrFormat)
				}
			}
			require.ErrorIs(t, c.twin.UnmarshalBinary(append(append([]byte(nil), b...), 0)), ErrFormat)
			newer := append([]byte(nil), b...)
			newer[4] = wireVersion + 1
			require.ErrorIs(t, c.twin.UnmarshalBinary(newer), ErrFormat)
			require.Equal(t, b, must(c.twin.MarshalBinary()), "a refused input changes nothing")
		})
	}
}

func TestConstructorsRefuseSizesOutOfRange(t *testing.T) {
	key := testKey(1)
	for name, f := range map[string]func() error{
		"rows":    func() error { _, err := NewCountMin(0, 64, key); return err },
		"width":   func() error { _, err := NewCountMin(4, 100, key); return err },
		"bins":    func() error { _, err := NewPublished(0, 1, 64, key); return err },
		"lines":   func() error { _, err := NewBlocked(3, key); return err },
		"k":       func() error { _, err := NewTopK(0, key); return err },
		"buckets": func() error { _, err := NewEntropy(1, key); return err },
		"lgK":     func() error { _, err := NewHLL(22); return err },
		"lgK low": func() error { _, err := NewHLLKeyed(3, key); return err },
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, f(), ErrParam) })
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	cm, pb, bl := must(NewCountMin(4, 64, testKey(1))), must(NewPublished(95, 512, 4096, testKey(1))), must(NewBlocked(16, testKey(1)))
	tk, en, hl, qu := must(NewTopK(8, testKey(1))), must(NewEntropy(64, testKey(1))), must(NewHLL(8)), NewQuantiles()
	out := make([]uint32, 96)
	b := []byte("192.0.2.1 and more than sixteen bytes")
	i := uint64(0)
	require.Zero(t, testing.AllocsPerRun(5000, func() {
		i++
		cm.Add(i, 1)
		pb.Add(i, int(i%95))
		bl.Add(i%3, 1)
		k := keyOf(i)
		tk.Add(&k, i%5)
		en.Add(i, 1)
		hl.AddUint64(i)
		hl.Add(b)
		qu.Add(float64(i))
		pb.Decode(i, out)
		bl.Decode(i, out)
	}))
}
