package cuda_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// onCPU and onDevice run a capture and return the last snapshot.
func onCPU(t *testing.T, path string, queues int, c summary.Config) (s telemetry.Snapshot) {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	p, err := cpu.New(cpu.Config{Source: src, Sink: &lines{}, Queues: queues, Sketch: c})
	require.NoError(t, err)
	_ = p.Run(context.Background()) // a file that ends early
	p.Snapshot(&s)
	return s
}

func onDevice(t *testing.T, dev cuda.Device, path string, rings int, c summary.Config, see func(p *cuda.Pipeline)) (s telemetry.Snapshot) {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	shards := 2
	if rings == 1 { // the reference has one sketch of all flows
		shards = 1
	}
	p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: dev, Source: src, Sink: &lines{}, Rings: rings, Shards: shards, LogRQ: 8, LogRecords: 16, Lossless: true,
		Flow: flow.Config{MaxFlows: 1 << 16}, Sketch: &c})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	_ = p.Run(context.Background())
	p.Snapshot(&s)
	see(p)
	return s
}

// TestEveryCaptureGivesTheSketchesOfTheReference: all rows, with the sketches' states, are those
// of the CPU pipeline, for one ring and several, over all time and in windows.
func TestEveryCaptureGivesTheSketchesOfTheReference(t *testing.T) {
	dev := simt.Device(t)
	for i, path := range testcap.All(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			n := []int{1, 3}[i%2]
			c := summary.Config{TopK: 50, Serialize: true, WindowNs: []int64{0, 0, 10e9}[i%3]}
			want := onCPU(t, path, n, c)
			got := onDevice(t, dev, path, n, c, func(*cuda.Pipeline) {})
			require.Zero(t, got.Engine.Errors["sketch_read"])
			sameTop(t, want.Top, got.Top)
			require.Len(t, got.Sketches, len(want.Sketches))
			for i := range want.Sketches {
				w, g := &want.Sketches[i], &got.Sketches[i]
				switch w.Kind {
				case telemetry.SketchDistinct:
					sameHistory(t, w, g, n)
				case telemetry.SketchEntropy: // the bound is for the estimated number of keys
					require.InEpsilon(t, 1+w.ErrorBound, 1+g.ErrorBound, 1e-5)
					g.ErrorBound = w.ErrorBound
				}
				require.Equal(t, *w, *g, w.Name)
			}
		})
	}
}

// sameHistory: registers do not depend on an order, but an estimate from their history does. Flows
// that begin in one batch and want places beside each other begin one after the other, not always
// in the order of their packets. A sketch that was merged from several has no history, and which
// have is different where a ring's flows are parted again: then the estimates differ by less than
// one standard error of 4096 registers.
func sameHistory(t *testing.T, want, got *telemetry.SketchRow, rings int) {
	t.Helper()
	bound := orderBound(want)
	if rings > 1 {
		bound = 1.04 / 64 * (1 + want.Estimate)
		got.ErrorBound = want.ErrorBound
		if len(want.State) > 16 && len(got.State) > 16 {
			got.State[5] = want.State[5] // whether there is a history
		}
	}
	require.InDelta(t, want.Estimate, got.Estimate, bound)
	got.Estimate = want.Estimate
	if len(want.State) > 16 && len(got.State) > 16 {
		copy(got.State[8:16], want.State[8:16])
	}
}

// orderBound is by how much the order of the flows in each batch can change an estimate from history.
//
// The estimate is the sum, over all updates of a register, of m/q: m registers, and q the sum of
// 2^-register over them until then, which falls from m. Two orders of one batch have the same q before
// it and behind it. If the batch updates no register twice, they have as many addends, all from
// m/q before to m/q behind, and the first is the same: they differ by at most 31 times what m/q grows
// by. Over all batches that is 31 * (m/q - 1), with the q of the end, which the state has. Two values
// of a batch that update one register are one addend or two. An update has such a neighbour behind it
// in 31 / (2m) of cases, so that all such addends are that share of the estimate, or one of them more.
//
// The sum itself is of doubles, without what a fused multiplication could change: its error is below
// 2^-53 of the estimate for each update.
func orderBound(r *telemetry.SketchRow) float64 {
	const m, neighbours = 4096, abi.Lanes - 1
	if len(r.State) < 40 {
		return 0 // nothing was added
	}
	q := math.Float64frombits(binary.LittleEndian.Uint64(r.State[16:])) + math.Float64frombits(binary.LittleEndian.Uint64(r.State[24:]))
	if r.Estimate < 1.5 { // one value has no order
		return 1e-9
	}
	return neighbours*(m/q-1) + m/q + r.Estimate*neighbours/(2*m)
}

// TestTheBoundOfAnOrderHolds for values that come in another order within each batch.
func TestTheBoundOfAnOrderHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 31, 200, 3000, 40000} {
		least := math.Inf(1)
		for range 20 {
			values := make([]uint64, n)
			for i := range values {
				values[i] = rng.Uint64()
			}
			row := func() (r telemetry.SketchRow) {
				h, err := sketch.NewHLL(summary.HLLLgK)
				require.NoError(t, err)
				for _, v := range values {
					h.AddUint64(v)
				}
				r.Estimate = h.Estimate()
				r.State, err = h.MarshalBinary()
				require.NoError(t, err)
				return r
			}
			want := row()
			for batch := range slices.Chunk(values, abi.Lanes) {
				rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			}
			got := row()
			require.Equal(t, want.State[16:], got.State[16:], "registers")
			require.InDelta(t, want.Estimate, got.Estimate, orderBound(&want), "%d values", n)
			least = min(least, orderBound(&want)/want.Estimate)
		}
		require.Less(t, least, 1.04/64+1/float64(n), "a standard error of the registers alone, and a value")
	}
}

// sameTop: lists are equal if all keys had a counter. Else it depends on the order in which flows
// end at one time which of them go, and the two answers about a key must agree within their errors.
func sameTop(t *testing.T, want, got []telemetry.TopRow) {
	t.Helper()
	type key struct{ metric, src, dst, protocol, ports string }
	lists := func(rows []telemetry.TopRow) (of map[string][]telemetry.TopRow, by map[key]telemetry.TopRow) {
		of, by = map[string][]telemetry.TopRow{}, map[key]telemetry.TopRow{}
		for _, r := range rows {
			of[r.Metric] = append(of[r.Metric], r)
			by[key{r.Metric, r.Src, r.Dst, r.Protocol, fmt.Sprint(r.SrcPort, r.DstPort)}] = r
		}
		return of, by
	}
	wantLists, wantRows := lists(want)
	gotLists, gotRows := lists(got)
	for metric, rows := range wantLists {
		if rows[0].Error == 0 {
			require.Equal(t, rows, gotLists[metric])
		}
	}
	both := 0
	for k, g := range gotRows {
		if w, ok := wantRows[k]; ok {
			both++
			require.LessOrEqual(t, g.Value, w.Value+w.Error, "%+v", k)
			require.LessOrEqual(t, w.Value, g.Value+g.Error, "%+v", k)
		}
	}
	require.True(t, both > 0 || len(want) == 0)
}

// TestHistogramsOfAllFlowsAreThoseOfTheReference: the per-flow histograms that a ring keeps, in
// both layouts, are those of the CPU pipeline's sketch after the same flows.
func TestHistogramsOfAllFlowsAreThoseOfTheReference(t *testing.T) {
	dev := simt.Device(t)
	for _, layout := range []string{"blocked", "published"} {
		for i, path := range testcap.All(t) {
			if i%8 != 0 {
				continue
			}
			t.Run(layout+" "+filepath.Base(path), func(t *testing.T) {
				want, err := summary.NewFeatures(layout, [16]byte{})
				require.NoError(t, err)
				feed(t, path, want)
				onDevice(t, dev, path, 1, summary.Config{Feature: layout}, func(p *cuda.Pipeline) {
					got, err := p.Features(0, 0)
					require.NoError(t, err)
					require.Equal(t, states(t, want), states(t, got))
				})
			})
		}
	}
}

// histograms is a sink that adds the histograms of all records to sketches.
type histograms struct {
	add func(flow uint64, size, delay int)
}

func (h histograms) Alert(*telemetry.Alert) {}
func (h histograms) Record(r *telemetry.Record) {
	in := packet.Info{Src: r.Src, Dst: r.Dst, SrcPort: r.SrcPort, DstPort: r.DstPort, Protocol: r.Protocol, IPVersion: r.IPVersion}
	var k flow.Key
	k.Set(&in, flow.KeyOptions{})
	hash := k.Hash(0)
	for bin, n := range r.SizeHist {
		for range n {
			h.add(hash, bin, -1)
		}
	}
	for bin, n := range r.DelayHist {
		for range n {
			h.add(hash, -1, bin)
		}
	}
}

// feed adds the histograms of all flows of a capture to sketches.
func feed(t *testing.T, path string, to summary.Features) {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	type adder interface{ Add(flow uint64, bin int) }
	var sizes, delays adder
	switch f := to.(type) {
	case *summary.Blocked:
		sizes, delays = f.Sizes, f.Delays
	case *summary.Published:
		sizes, delays = f.Sizes, f.Delays
	}
	p, err := cpu.New(cpu.Config{Source: src, Queues: 1, Sink: histograms{func(flow uint64, size, delay int) {
		if size >= 0 {
			sizes.Add(flow, size)
		} else {
			delays.Add(flow, delay)
		}
	}}})
	require.NoError(t, err)
	_ = p.Run(context.Background())
}

func states(t *testing.T, f summary.Features) (all [][]byte) {
	var list []interface{ MarshalBinary() ([]byte, error) }
	switch f := f.(type) {
	case *summary.Blocked:
		list = append(list, f.Sizes, f.Delays)
	case *summary.Published:
		list = append(list, f.Sizes, f.Delays)
	}
	for _, s := range list {
		b, err := s.MarshalBinary()
		require.NoError(t, err)
		all = append(all, b)
	}
	require.Len(t, all, 2)
	return all
}

// TestSketchesAreReadWhileTheDeviceAddsToThem: no reading is of counters on the move, and none
// says more than there was in the end.
func TestSketchesAreReadWhileTheDeviceAddsToThem(t *testing.T) {
	path := testcap.All(t)[0]
	for _, p := range testcap.All(t) {
		if strings.Contains(p, "synflood.spoofed") { // more keys than counters
			path = p
		}
	}
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: simt.Device(t), Source: src, Sink: &lines{}, Rings: 1, Shards: 2, LogRQ: 8, LogRecords: 16, Lossless: true,
		Flow: flow.Config{MaxFlows: 1 << 16}, Sketch: &summary.Config{TopK: 1000}})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(context.Background())
	}()
	defer func() { <-done }() // before its memory goes
	var all []telemetry.Snapshot
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		var s telemetry.Snapshot
		p.Snapshot(&s)
		require.Zero(t, s.Engine.Errors["sketch_read"])
		all = append(all, s)
	}
	last := all[len(all)-1]
	most := map[string]uint64{}
	for _, r := range last.Top {
		most[r.Metric+" "+r.Src] = r.Value + r.Error
	}
	count := func(s *telemetry.Snapshot) uint64 {
		for _, r := range s.Sketches {
			if r.Name == "size" {
				return r.Count
			}
		}
		return 0
	}
	before := uint64(0)
	for i := range all {
		require.GreaterOrEqual(t, count(&all[i]), before)
		before = count(&all[i])
		for _, r := range all[i].Top {
			if limit, ok := most[r.Metric+" "+r.Src]; ok && r.Src != "" && r.Dst == "" {
				require.LessOrEqual(t, r.Value, limit, "%+v", r)
			}
		}
	}
	require.NotZero(t, before)
	t.Logf("%d readings", len(all))
}
