package cuda_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	nic "github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// sequence is a sink that keeps records and alerts as text, in their order, without what depends
// on the number of queues.
type sequence struct{ list []string }

func (s *sequence) Record(r *telemetry.Record) {
	c := *r
	c.Queue = 0
	line := telemetry.AppendJSON(nil, &c)
	if r.Confirmed {
		line = append(line, " confirmed"...)
	}
	s.list = append(s.list, string(line))
}

func (s *sequence) Alert(a *telemetry.Alert) {
	s.list = append(s.list, string(telemetry.AppendAlertJSON(nil, a)))
}

func shipped(t testing.TB, names ...string) *model.Set {
	var all []*model.Model
	for _, name := range names {
		m, err := model.Load("../../../configs/models/" + name + ".onnx")
		require.NoError(t, err)
		all = append(all, m)
	}
	s, err := model.NewSet(all...)
	require.NoError(t, err)
	return s
}

// synthetic writes a profile as a capture and returns its path.
func synthetic(t testing.TB, name string, c *traffic.Capture) string {
	var b bytes.Buffer
	require.NoError(t, c.WritePcap(&b))
	path := filepath.Join(t.TempDir(), name+".pcap")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// scored runs a capture on the CPU, with models and detectors.
func scored(t testing.TB, path string, set *model.Set) (list []string, s telemetry.Snapshot) {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	l := &sequence{}
	p, err := cpu.New(cpu.Config{Source: src, Sink: l, Queues: 1, Models: set, Interface: "eth0"})
	require.NoError(t, err)
	_ = p.Run(context.Background()) // a file that ends early
	p.Snapshot(&s)
	return l.list, s
}

func same(t testing.TB, want, got []string) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			t.Fatalf("line %d of %d and %d:\nwant %s\ngot  %s", i, len(want), len(got), cut(want[i], got[i]), cut(got[i], want[i]))
		}
	}
	require.Len(t, got, len(want))
}

// TestEveryCaptureGivesTheScoresAndFindingsOfTheReference: records with what models say, alerts
// of models and of detectors, all in one order, for any number of rings and shards.
func TestEveryCaptureGivesTheScoresAndFindingsOfTheReference(t *testing.T) {
	dev := simt.Device(t)
	set := shipped(t, "app", "class")
	paths := []string{synthetic(t, "demo", traffic.Demo(3)), synthetic(t, "bench", traffic.Bench(5, 6000, 200))}
	paths = append(paths, testcap.All(t)...)
	answers, alerts := 0, uint64(0)
	for i, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, wantSnap := scored(t, path, set)
			src, err := pcap.Open([]string{path}, pcap.Options{})
			require.NoError(t, err)
			defer src.Close()
			l := &sequence{}
			p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: dev, Source: src, Sink: l, Rings: []int{1, 2, 3, 5}[i%4], Shards: 1 + i%3, LogRQ: 6, LogRecords: 16, Lossless: true,
				Flow: flow.Config{MaxFlows: 1 << 16}, Batch: []int{32, 32, 7}[i%3], Models: set, Detect: &detect.Config{}, Interface: "eth0"})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			if err := p.Run(context.Background()); err != nil {
				t.Log(err) // a file that ends early
			}
			same(t, want, l.list)
			var s telemetry.Snapshot
			p.Snapshot(&s)
			require.Zero(t, s.Missing())
			require.Equal(t, wantSnap.Engine.Inferences, s.Engine.Inferences)
			require.Equal(t, wantSnap.Engine.PacketToScoreCount, s.Engine.PacketToScoreCount)
			require.Equal(t, wantSnap.Engine.Alerts, s.Engine.Alerts)
			require.Equal(t, wantSnap.Engine.Suppressed, s.Engine.Suppressed)
			require.Equal(t, wantSnap.Engine.Models, s.Engine.Models)
			require.Equal(t, wantSnap.Traffic, s.Traffic)
			require.Zero(t, s.Engine.Errors["events_out_of_order"])
			answers += int(s.Engine.Inferences)
			alerts += s.Engine.Alerts
		})
	}
	require.Greater(t, answers, 1000)
	require.Greater(t, alerts, uint64(20))
}

// plain is what does not depend on models: records without answers, alerts of detectors.
type plain struct{ sequence }

func (s *plain) Record(r *telemetry.Record) {
	c := *r
	c.Outputs = nil
	s.sequence.Record(&c)
}

func (s *plain) Alert(a *telemetry.Alert) {
	if a.Kind != "classified" {
		s.sequence.Alert(a)
	}
}

// TestModelsAreExchangedWhileFlowsGoOn: no packet, flow or finding of a detector is lost or comes
// twice however often sets come and go, with other needs each time.
func TestModelsAreExchangedWhileFlowsGoOn(t *testing.T) {
	dev := simt.Device(t)
	sets := []*model.Set{shipped(t, "app", "class"), shipped(t, "class"), nil, shipped(t, "app")}
	for _, path := range []string{synthetic(t, "demo", traffic.Demo(3)), find(t, "wechat.pcap")} {
		src, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		want := &plain{}
		ref, err := cpu.New(cpu.Config{Source: src, Sink: want, Queues: 1})
		require.NoError(t, err)
		require.NoError(t, ref.Run(context.Background()))
		require.NoError(t, src.Close())

		src, err = pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		got := &plain{}
		var p *cuda.Pipeline
		n, took := 0, 0
		in := swapping{src, func() {
			set := sets[n%len(sets)]
			n++
			p.SwapModels(set)
			for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
				var s telemetry.Snapshot
				p.Snapshot(&s)
				if len(s.Engine.Models) == len(set.Models()) {
					took++
					break
				}
			}
		}}
		p, err = cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: dev, Source: in, Sink: got, Rings: 2, Shards: 2, LogRQ: 8, LogRecords: 14, Lossless: true, Flow: flow.Config{MaxFlows: 1 << 14}, Detect: &detect.Config{}})
		require.NoError(t, err)
		require.NoError(t, p.Run(context.Background()))
		same(t, want.list, got.list)
		var s telemetry.Snapshot
		p.Snapshot(&s)
		require.Zero(t, s.Missing())
		require.NotZero(t, s.Engine.Inferences)
		require.Zero(t, s.Engine.Errors["models_refused"])
		require.Equal(t, n, took)
		require.Greater(t, n, 2)
		require.NoError(t, p.Close())
		require.NoError(t, src.Close())
		t.Logf("%s: %d exchanges, %d inferences", filepath.Base(path), n, s.Engine.Inferences)
	}
}

// TestScoresOutliveACut: records of a flow that the active timeout cuts have what its head said,
// and flows that end by time do so in the reference's order.
func TestScoresOutliveACut(t *testing.T) {
	set := shipped(t, "app", "class")
	dev := simt.Device(t)
	short := flow.Config{IdleNs: 3e9, ActiveNs: 2e9, LingerNs: 1e9, MaxFlows: 1 << 16}
	for _, path := range []string{synthetic(t, "demo", traffic.Demo(3)), find(t, "wechat.pcap"), find(t, "ssh.pcap")} {
		src, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		want := &sequence{}
		ref, err := cpu.New(cpu.Config{Source: src, Sink: want, Queues: 1, Models: set, Flow: short})
		require.NoError(t, err)
		require.NoError(t, ref.Run(context.Background()))
		require.NoError(t, src.Close())

		src, err = pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		got := &sequence{}
		p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: dev, Source: src, Sink: got, Rings: 3, Shards: 2, LogRQ: 6, LogRecords: 12, Lossless: true, Flow: short, Models: set, Detect: &detect.Config{}})
		require.NoError(t, err)
		require.NoError(t, p.Run(context.Background()))
		same(t, want.list, got.list)
		require.Contains(t, strings.Join(got.list, "\n"), `"end_reason":"active"`)
		require.NoError(t, p.Close())
		require.NoError(t, src.Close())
	}
}

// TestWithoutDetectorsNothingWaits: records and answers are the same, in whatever order.
func TestWithoutDetectorsNothingWaits(t *testing.T) {
	set := shipped(t, "app", "class")
	path := synthetic(t, "bench", traffic.Bench(6, 6000, 300))
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	want, _ := scored(t, path, set)
	got := &sequence{}
	p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: simt.Device(t), Source: src, Sink: got, Rings: 3, Shards: 2, LogRQ: 6, LogRecords: 12, Lossless: true, Models: set, Interface: "eth0", Flow: flow.Config{MaxFlows: 1 << 14}})
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	records := func(list []string) (out []string) {
		for _, l := range list {
			if strings.Contains(l, `"type":"flow"`) || strings.Contains(l, `"kind":"classified"`) {
				out = append(out, l)
			}
		}
		slices.Sort(out)
		return out
	}
	same(t, records(want), records(got.list))
	require.NoError(t, p.Close())
}

// TestAPortsFlowsAreScoredAndItsFindingsAreThoseOfTheReference: rings that count packets each for
// itself; what one ring says of its flows is in order, and detectors find the same.
func TestAPortsFlowsAreScoredAndItsFindingsAreThoseOfTheReference(t *testing.T) {
	set := shipped(t, "app", "class")
	for name, prof := range profiles {
		for _, rings := range []int{1, 3} {
			t.Run(name, func(t *testing.T) {
				frames, err := nic.NewTraffic(prof)
				require.NoError(t, err)
				want := &sequence{}
				ref, err := cpu.New(cpu.Config{Source: frameList{frames}, Sink: want, Queues: 1, Models: set})
				require.NoError(t, err)
				require.NoError(t, ref.Run(context.Background()))
				got := &sequence{}
				_, _, s, err := through(t, nic.Config{Seed: 9}, nil, prof, rings, func(c *cuda.Config) { c.Sink, c.Models, c.Detect = got, set, &detect.Config{} })
				require.NoError(t, err)
				require.Zero(t, s.Missing())
				slices.Sort(want.list)
				slices.Sort(got.list)
				same(t, want.list, got.list)
			})
		}
	}
}

// TestWhatAFullRecordRingLosesIsCounted: messages by their kind, records by their packets.
func TestWhatAFullRecordRingLosesIsCounted(t *testing.T) {
	src, err := pcap.Open([]string{synthetic(t, "bench", traffic.Bench(8, 20000, 2000))}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	p, err := cuda.New(cuda.Config{Patience: 2 * time.Minute, Device: simt.Device(t), Source: src, Sink: &slow{pause: 200 * time.Microsecond}, Rings: 1, Shards: 2, LogRecords: 12,
		Flow: flow.Config{MaxFlows: 1 << 14, IdleNs: 1e9}, Models: shipped(t, "app", "class"), Detect: &detect.Config{}})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NoError(t, p.Run(context.Background()))
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Zero(t, s.Missing())
	e := &s.Engine
	require.NotZero(t, e.Drops["record_ring_full"])
	require.NotZero(t, e.Errors["lost_scores"])
	require.NotZero(t, e.Errors["lost_flow_starts"])
	require.Equal(t, e.PacketsSeen, e.PacketsRecorded+e.Drops["record_ring_full"])
}

// TestMoreTriggersThanTheDeviceHas is said when the pipeline is made.
func TestMoreTriggersThanTheDeviceHas(t *testing.T) {
	var many []*model.Model
	for i := range 3 {
		m := *shipped(t, "class").Models()[0]
		m.Field, m.Triggers = string(rune('a'+i)), nil
		for n := range uint64(60) {
			m.Triggers = append(m.Triggers, 1+60*uint64(i)+n)
		}
		many = append(many, &m)
	}
	set, err := model.NewSet(many...)
	require.NoError(t, err)
	_, err = cuda.New(cuda.Config{Device: simt.Device(t), Sink: &sequence{}, Rings: 1, LogRQ: 6, Models: set, Flow: flow.Config{MaxFlows: 1 << 10}})
	require.ErrorIs(t, err, cuda.ErrConfig)
	require.ErrorContains(t, err, "180 different triggers")
}
