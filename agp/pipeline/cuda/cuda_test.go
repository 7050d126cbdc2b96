package cuda_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// lines is a sink that keeps records as text, without what depends on the number of queues.
type lines struct{ records []string }

func (l *lines) Record(r *telemetry.Record) {
	c := *r
	c.Queue, c.Outputs = 0, nil
	l.records = append(l.records, string(telemetry.AppendJSON(nil, &c)))
}
func (l *lines) Alert(*telemetry.Alert) {}

func (l *lines) sorted() []string {
	slices.Sort(l.records)
	return l.records
}

func reference(t *testing.T, path string) ([]string, telemetry.Snapshot) {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	l := &lines{}
	p, err := cpu.New(cpu.Config{Source: src, Sink: l, Queues: 1})
	require.NoError(t, err)
	_ = p.Run(context.Background()) // a file that ends early
	var s telemetry.Snapshot
	p.Snapshot(&s)
	return l.sorted(), s
}

// TestEveryCaptureGivesTheRecordsOfTheReference: byte for byte, for any number of rings and shards.
func TestEveryCaptureGivesTheRecordsOfTheReference(t *testing.T) {
	dev := simt.Device(t)
	for i, path := range testcap.All(t) {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			want, wantSnap := reference(t, path)
			src, err := pcap.Open([]string{path}, pcap.Options{})
			require.NoError(t, err)
			defer src.Close()
			l := &lines{}
			rings := []int{1, 2, 3, 5, 16, 64}[i%6]
			p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: dev, Source: src, Sink: l, Rings: rings, Shards: []int{1, 2, 4, 3}[i%4], LogRQ: 8, Pitch: 2048, LogRecords: 16, Lossless: true, Flow: flow.Config{MaxFlows: 1 << 16}, Batch: []int{32, 1, 7}[i%3]})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			_ = p.Run(context.Background())
			got := l.sorted()
			for i := range min(len(want), len(got)) {
				if want[i] != got[i] {
					t.Fatalf("record %d of %d and %d:\nwant %s\ngot  %s", i, len(want), len(got), cut(want[i], got[i]), cut(got[i], want[i]))
				}
			}
			require.Len(t, got, len(want))
			var s telemetry.Snapshot
			p.Snapshot(&s)
			require.Zero(t, s.Missing())
			require.Zero(t, s.Engine.PacketsActive)
			require.Equal(t, wantSnap.Engine.PacketsSeen, s.Engine.PacketsSeen)
			require.ElementsMatch(t, wantSnap.Traffic, s.Traffic)
		})
	}
}

// cut shortens a line to where it differs from the other.
func cut(a, b string) string {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	from := strings.LastIndexByte(a[:i], ',') + 1
	return a[:min(len(a), 140)] + " ... " + a[max(0, from-40):min(len(a), i+200)]
}

// swapping is a source that has the kernel exchanged before each batch, while frames of the one
// before are in the rings.
type swapping struct {
	source.Source
	swap func()
}

func (s swapping) Next(b *source.Batch) (int, error) {
	s.swap()
	return s.Source.Next(b)
}

// TestHandoverLosesNothing: the kernel is exchanged again and again while frames wait in the
// rings; the records are those of the reference. The gaps are printed.
func TestHandoverLosesNothing(t *testing.T) {
	for _, name := range []string{"wechat.pcap", "synscan.pcap", "tor.pcap"} {
		path := find(t, name)
		want, _ := reference(t, path)
		src, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		l := &lines{}
		var p *cuda.Pipeline
		var gaps []time.Duration
		in := swapping{src, func() {
			var load func() error // every other kernel is launched before the one before has ended
			if len(gaps)%2 == 1 {
				load = func() error { return nil }
			}
			gap, err := p.Handover(context.Background(), load)
			assert.NoError(t, err)
			gaps = append(gaps, gap)
		}}
		p, err = cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: simt.Device(t), Source: in, Sink: l, Rings: 3, Shards: 2, LogRQ: 9, Pitch: 2048, LogRecords: 14, Lossless: true, Flow: flow.Config{MaxFlows: 1 << 14}})
		require.NoError(t, err)
		require.NoError(t, p.Run(context.Background()))
		require.Equal(t, want, l.sorted(), name)
		require.Greater(t, len(gaps), 2)
		slices.Sort(gaps)
		t.Logf("%s: %d handovers, median gap %v, longest %v", name, len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
		var s telemetry.Snapshot
		p.Snapshot(&s)
		require.Zero(t, s.Missing())
		require.NoError(t, p.Close())
		require.NoError(t, src.Close())
	}
}

func find(t *testing.T, name string) string {
	for _, path := range testcap.All(t) {
		if filepath.Base(path) == name {
			return path
		}
	}
	t.Fatalf("no capture %s", name)
	return ""
}
