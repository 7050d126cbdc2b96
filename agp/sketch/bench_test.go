package sketch

import (
	"fmt"
	"testing"
)

func BenchmarkHasher(b *testing.B) {
	h := NewHasher(testKey(1))
	var k Key
	b.Run("uint64", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			sink += h.Uint64(uint64(i))
		}
	})
	b.Run("key", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			k[0] = byte(i)
			sink += h.Bytes(k[:])
		}
	})
}

var sink uint64

func BenchmarkAdd(b *testing.B) {
	keys := zipfKeys(rng(1), 1<<16, 1<<20)
	each := func(name string, f func(i int, v uint64)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f(i, keys[i&(1<<16-1)])
			}
		})
	}
	cm := must(NewCountMin(4, 1<<16, testKey(1)))
	each("countmin-4x65536", func(_ int, v uint64) { cm.Add(v, 1) })
	pb := must(NewPublished(95, 87381, 5592405, testKey(1)))
	each("published-3MB", func(i int, v uint64) { pb.Add(v, i%95) })
	bl := must(NewBlocked(8192, testKey(1)))
	each("blocked-3MB", func(i int, v uint64) { bl.Add(v, i%95) })
	hl := must(NewHLL(12))
	each("hll-uint64", func(_ int, v uint64) { hl.AddUint64(v) })
	addr := make([]byte, 16)
	each("hll-16-bytes", func(i int, _ uint64) { addr[0] = byte(i); addr[1] = byte(i >> 8); hl.Add(addr) })
	qu := NewQuantiles()
	each("quantiles", func(_ int, v uint64) { qu.Add(float64(v >> 30)) })
	en := must(NewEntropy(1<<16, testKey(1)))
	each("entropy-65536", func(_ int, v uint64) { en.Add(v, 1) })
	tk := must(NewTopK(1024, testKey(1)))
	each("topk-1024-zipf", func(_ int, v uint64) { k := keyOf(v); tk.Add(&k, 1) })
	tk.Reset()
	each("topk-1024-all-different", func(i int, _ uint64) { k := keyOf(uint64(i) * mixA); tk.Add(&k, 1) })
}

func BenchmarkDecode(b *testing.B) {
	out := make([]uint32, 95)
	for name, s := range map[string]featureSketch{
		"published": must(NewPublished(95, 87381, 5592405, testKey(1))),
		"blocked":   must(NewBlocked(8192, testKey(1))),
	} {
		trafficModel(50_000, 500_000, s.Add)
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				s.Decode(uint64(i%50_000+1)*mixB, out)
			}
		})
	}
}

// BenchmarkFeatureLayouts prints how far the histograms of both layouts are from
// the truth in about the same memory (3 MB), over the number of flows.
func BenchmarkFeatureLayouts(b *testing.B) {
	if b.N > 1 {
		return // the table is made once
	}
	fmt.Printf("\n%-10s %8s %9s | %-9s %12s %12s %14s\n", "layout", "flows", "packets", "memory", "exact hists", "exact bins", "mean L1/packet")
	for _, flows := range []int{2000, 10_000, 50_000, 200_000} {
		for _, name := range []string{"published", "blocked"} {
			var s featureSketch = must(NewBlocked(8192, testKey(1)))
			bytes := 392 * 8192
			if name == "published" {
				s = must(NewPublished(95, 87381, 5592405, testKey(1)))
				bytes = 3*87381*4 + 3*5592405/8
			}
			packets := flows * 13 // the demo trace of the artefact: 2.6 M packets, 200 k flows
			truth := trafficModel(flows, packets, s.Add)
			exactHist, exactBin, bins := 0, 0, 0
			var l1, n float64
			out := make([]uint32, 95)
			for f, h := range truth {
				s.Decode(f, out)
				same := true
				for bin, c := range h {
					bins++
					n += float64(c)
					if out[bin] == c {
						exactBin++
					} else {
						same = false
						l1 += float64(out[bin] - c)
					}
				}
				if same {
					exactHist++
				}
			}
			fmt.Printf("%-10s %8d %9d | %6.2f MB %11.2f%% %11.3f%% %14.4f\n", name, len(truth), packets, float64(bytes)/1e6,
				100*float64(exactHist)/float64(len(truth)), 100*float64(exactBin)/float64(bins), l1/n)
		}
	}
}
