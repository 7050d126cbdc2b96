package sketch

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

func TestMurmurOfIntegerEqualsMurmurOfItsBytes(t *testing.T) {
	r := rng(1)
	for range 1000 {
		v := r.Uint64()
		b := []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 32), byte(v >> 40), byte(v >> 48), byte(v >> 56)}
		a1, a2 := murmur64(v)
		b1, b2 := murmur128(b)
		require.Equal(t, [2]uint64{b1, b2}, [2]uint64{a1, a2})
	}
}

func TestHLLErrorIsWhatItSays(t *testing.T) {
	const lgK, trials = 10, 60
	for _, n := range []int{10, 100, 1000, 20_000} {
		var sumHip, sumMerged, merr float64
		for trial := range trials {
			a, b := must(NewHLL(lgK)), must(NewHLL(lgK))
			for i := range n {
				v := uint64(trial)<<32 | uint64(i)
				a.AddUint64(v)
				a.AddUint64(v) // repeats do not count
				if i%2 == 0 {
					b.AddUint64(v)
				}
			}
			e := a.Estimate()/float64(n) - 1
			sumHip += e * e
			require.NoError(t, b.Merge(a))
			m := b.Estimate()/float64(n) - 1
			sumMerged += m * m
			merr = b.RSE()
		}
		a := must(NewHLL(lgK))
		// 1.4: a sample standard deviation of 60 trials stays below that in practice.
		require.Less(t, math.Sqrt(sumHip/trials), 1.4*a.RSE(), "n=%d", n)
		require.Less(t, math.Sqrt(sumMerged/trials), 1.4*merr, "n=%d merged", n)
	}
}

func TestHLLMergeIsUnionAndFoldsToTheSmaller(t *testing.T) {
	a, b, all := must(NewHLL(12)), must(NewHLL(12)), must(NewHLL(12))
	for i := range uint64(50_000) {
		if i < 30_000 {
			a.AddUint64(i)
		}
		if i >= 20_000 {
			b.AddUint64(i)
		}
		all.AddUint64(i)
	}
	require.NoError(t, a.Merge(b))
	require.Equal(t, all.reg, a.reg)
	require.InEpsilon(t, 50_000, a.Estimate(), 4*a.RSE())

	small := must(NewHLL(8))
	for i := range uint64(50_000) {
		small.AddUint64(i)
	}
	require.NoError(t, a.Merge(small))
	require.Equal(t, 8, a.LgK())
	require.Equal(t, small.reg, a.reg)
	empty := must(NewHLL(4))
	require.NoError(t, a.Merge(empty))
	require.Equal(t, 8, a.LgK(), "an empty sketch does not cost precision")

	require.ErrorIs(t, a.Merge(must(NewHLLKeyed(8, testKey(1)))), ErrMismatch)
}

func TestHLLKeyedDiffersByKeyAndCounts(t *testing.T) {
	a, b := must(NewHLLKeyed(12, testKey(1))), must(NewHLLKeyed(12, testKey(2)))
	for i := range uint64(10_000) {
		a.AddUint64(i)
		b.Add([]byte(fmt.Sprint(i)))
	}
	require.InEpsilon(t, 10_000, a.Estimate(), 4*a.RSE())
	require.InEpsilon(t, 10_000, b.Estimate(), 4*b.RSE())
	require.ErrorIs(t, a.Merge(b), ErrMismatch)
}

func TestHLLSerialisationRefusesWhatIsNotOne(t *testing.T) {
	s := must(NewHLL(6))
	for i := range uint64(500) {
		s.AddUint64(i)
	}
	good := must(s.MarshalBinary())
	var back HLL
	require.NoError(t, back.UnmarshalBinary(good))
	require.Equal(t, good, must(back.MarshalBinary()))
	require.Equal(t, s.Estimate(), back.Estimate())
	for cut := range len(good) {
		require.ErrorIs(t, back.UnmarshalBinary(good[:cut]), ErrFormat, "cut at %d", cut)
	}
	for at, v := range map[int]byte{0: 9, 1: 2, 2: 8, 3: 22, 6: 63, 7: 3 << 2, 15: 0xff, 40: 64} {
		bad := append([]byte(nil), good...)
		bad[at] = v
		require.ErrorIs(t, back.UnmarshalBinary(bad), ErrFormat, "byte %d", at)
	}
	empty := must(must(NewHLL(6)).MarshalBinary())
	require.Len(t, empty, 8)
	require.NoError(t, back.UnmarshalBinary(empty))
	require.True(t, back.Empty())
}

// crossScript reads our sketches as hex, answers with its estimates and with sketches of its own in every form it can write.
const crossScript = `
import sys, json
import datasketches as d
q = json.load(sys.stdin)
out = {"ours": [], "forms": []}
for h in q["ours"]:
    out["ours"].append(d.hll_sketch.deserialize(bytes.fromhex(h)).get_estimate())
u = d.hll_union(q["lgk"])
for h in q["ours"]:
    u.update(d.hll_sketch.deserialize(bytes.fromhex(h)))
r = u.get_result(d.tgt_hll_type.HLL_8)
out["union"] = r.get_estimate()
out["union_image"] = r.serialize_compact().hex()
for n in q["sizes"]:
    for t in (d.tgt_hll_type.HLL_4, d.tgt_hll_type.HLL_6, d.tgt_hll_type.HLL_8):
        s = d.hll_sketch(q["lgk"], t)
        for i in range(n):
            s.update(i) if i % 2 == 0 else s.update("10.0.%d.%d" % (i >> 8, i & 255))
        e = d.hll_union(q["lgk"]); e.update(s)
        for c in (True, False):
            b = s.serialize_compact() if c else s.serialize_updatable()
            out["forms"].append({"n": n, "type": str(t), "compact": c, "image": b.hex(), "estimate": s.get_estimate()})
json.dump(out, sys.stdout)
`

func TestHLLAgreesWithDataSketches(t *testing.T) {
	py := testcap.Python(t, "datasketches")
	const lgK = 11
	sizes := []int{0, 1, 5, 7, 8, 40, 150, 1000, 30_000, 300_000}
	add := func(s *HLL, n int) {
		for i := range n {
			if i%2 == 0 {
				s.AddUint64(uint64(i))
			} else {
				s.Add(fmt.Appendf(nil, "10.0.%d.%d", i>>8, i&255))
			}
		}
	}
	query := map[string]any{"lgk": lgK, "sizes": sizes}
	var images []string
	all := must(NewHLL(lgK))
	var ours []*HLL
	for k, n := range sizes {
		s := must(NewHLL(lgK))
		add(s, n)
		for i := range n { // values that the others do not have, for the union
			s.AddUint64(uint64(k)<<40 | uint64(i)<<1 | 1)
		}
		ours = append(ours, s)
		images = append(images, hex.EncodeToString(must(s.MarshalBinary())))
		require.NoError(t, all.Merge(s))
	}
	query["ours"] = images
	in := must(json.Marshal(query))
	cmd := exec.Command(py, "-c", crossScript)
	stdin := must(cmd.StdinPipe())
	go func() {
		_, _ = stdin.Write(in)
		_ = stdin.Close()
	}()
	raw, err := cmd.Output()
	require.NoError(t, err)
	var got struct {
		Ours       []float64
		Union      float64
		UnionImage string `json:"union_image"`
		Forms      []struct {
			N        int
			Type     string
			Compact  bool
			Image    string
			Estimate float64
		}
	}
	require.NoError(t, json.Unmarshal(raw, &got))
	for i, s := range ours {
		require.InDelta(t, s.Estimate(), got.Ours[i], 1e-9*s.Estimate(), "Go to Python, %d values", sizes[i])
	}
	// Merged: same registers, another estimator.
	require.InEpsilon(t, got.Union, all.Estimate(), 0.25*all.RSE())
	var u HLL
	require.NoError(t, u.UnmarshalBinary(must(hex.DecodeString(got.UnionImage))))
	require.Equal(t, all.reg, u.reg, "union here and there")
	for _, f := range got.Forms {
		name := fmt.Sprintf("%d values %s compact=%v", f.N, f.Type, f.Compact)
		var s HLL
		require.NoError(t, s.UnmarshalBinary(must(hex.DecodeString(f.Image))), name)
		require.InDelta(t, f.Estimate, s.Estimate(), 1e-4*f.Estimate, "Python to Go, %s", name)
		mine := must(NewHLL(lgK))
		add(mine, f.N)
		require.Equal(t, mine.reg, s.reg, "same values, same registers: %s", name)
	}
}
