package agp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/inputs"
	"github.com/influxdata/telegraf/plugins/parsers/influx"
	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/plugins/runner"
)

func fullSnapshot() *telemetry.Snapshot {
	return &telemetry.Snapshot{
		TimeNs: 1,
		Engine: telemetry.EngineRow{
			Source: "pcap", Pipeline: "cpu", Models: []string{"app@1", "class@1"}, PacketsSeen: 100, PacketsRecorded: 90, PacketsActive: 7,
			Drops: map[string]uint64{"arp": 2, "truncated": 1}, Errors: map[string]uint64{"clock_back": 1}, Records: 9, Alerts: 1,
			FlowsActive: 3, PacketToScoreCount: 5, PacketToScoreP50Ns: 100, PacketToScoreP90Ns: 200, PacketToScoreP99Ns: 300,
			CPUSeconds: 1.5, RSSBytes: 1 << 20, UptimeNs: 5e9, QueueSkew: 1.5, MovedBuckets: 3, PipelineReason: "as configured",
		},
		Traffic: []telemetry.TrafficRow{{App: "tls", Class: "benign", Protocol: 6, Flows: 1, Packets: 10, Bytes: 1000, HandshakeSumNs: 5, HandshakeCount: 1}},
		Top: []telemetry.TopRow{
			{Metric: "flow_bytes", Rank: 1, Src: "10.0.0.1", Dst: "10.0.0.2", SrcPort: 1234, DstPort: 443, Protocol: "tcp", Value: 99, Error: 1},
			{Metric: "flow_bytes", Rank: 10, Src: "10.0.0.1", Value: 9},
		},
		Sketches: []telemetry.SketchRow{
			{Name: "sources", Kind: telemetry.SketchDistinct, Count: 5, Estimate: 4.2, ErrorBound: 0.02, WindowNs: 1e9, State: []byte{1, 2}, Encoding: "hll_datasketches"},
			{Name: "src_entropy", Kind: telemetry.SketchEntropy, Count: 5, Estimate: 2.1},
			{Name: "size", Kind: telemetry.SketchQuantile, Count: 5, P50: 1, P90: 2, P99: 3},
			{Name: "nothing", Kind: telemetry.SketchQuantile},
		},
		Steering: []telemetry.SteeringRow{{Interface: "eth0", Target: "engine", Packets: 10, Bytes: 20}},
		GPUs: []telemetry.GPURow{{
			UUID: "GPU-1", Name: "NVIDIA H200", PowerMilliwatts: new(uint64(81500)), EnergyMillijoules: new(uint64(1234567)), SMClockMHz: new(uint64(1980)),
			MemoryClockMHz: new(uint64(3201)), MemoryUsedBytes: new(uint64(1 << 30)), MemoryTotalBytes: new(uint64(139 << 30)),
			PCIeRXBytesPerSecond: new(uint64(1000)), PCIeTXBytesPerSecond: new(uint64(2000)), UtilizationPercent: new(uint64(100)),
			TemperatureCelsius: new(uint64(40)), EccCorrected: new(uint64(0)), EccUncorrected: new(uint64(0)), XidErrors: new(uint64(1)), LastXid: new(uint64(31)),
			Processes: new(uint64(1)), EngineMemoryBytes: new(uint64(1 << 29)), EngineWarps: new(uint64(16)), EngineSMs: new(uint64(4)),
			JoulesPerMillionPackets: new(2.5),
		}},
		Queues: []telemetry.QueueRow{{Queue: 3, Packets: 10, Bytes: 20, Drops: map[string]uint64{"arp": 2}, Depth: 1}, {Queue: 4, Depth: -1}},
	}
}

func running() supervise.Status { return supervise.Status{State: supervise.StateRunning, Up: true} }

func fullRecord() *telemetry.Record {
	r := &telemetry.Record{
		IPVersion: 4, Protocol: 6, Src: [16]byte{10, 0, 0, 1}, Dst: [16]byte{10, 0, 0, 2}, SrcPort: 1, DstPort: 2, VLANID: 3, TunnelID: 4,
		FirstReplyNs: 5, TCPHandshakeNs: 6, Coalesced: 2,
		Outputs: []telemetry.Output{{Field: "app", Label: "tls", Score: 0.5, Model: "app@1"}, {Field: "class", Label: "benign", Score: 0.5, Model: "class@1"}},
	}
	r.Dir[0] = telemetry.Half{Packets: 2, DelayMeanNs: 1.5}
	r.Dir[1] = r.Dir[0]
	r.SizeHist[2], r.DelayHist[0] = 4, 3
	return r
}

func collect(o ConverterOptions, f func(*Converter, telegraf.Accumulator)) []telegraf.Metric {
	if o.Interface == "" {
		o.Interface = "eth0"
	}
	var acc testutil.Accumulator
	f(NewConverter(o), &acc)
	return acc.GetTelegrafMetrics()
}

func allMetrics() []telegraf.Metric {
	now := time.Unix(1700000000, 0)
	return collect(ConverterOptions{Histograms: true, Source: "pcap", Pipeline: "cpu"}, func(c *Converter, acc telegraf.Accumulator) {
		st := running()
		st.LastError = "engine died"
		c.Metrics(fullSnapshot(), st, now, acc)
		c.Enforcement(enforce.Stats{}, now, acc)
		c.Record(fullRecord(), now, acc)
		c.Alert(&telemetry.Alert{TimeNs: 1, Kind: "port_scan", Src: "10.0.0.1", Dst: "10.0.0.2", SrcPort: 1, DstPort: 2, Protocol: 6, Count: 5, Threshold: 2, WindowNs: 1e9}, now, acc)
		c.Alert(&telemetry.Alert{TimeNs: 1, Kind: "classified", Class: "c2", Score: 0.9, Model: "class@1"}, now, acc)
	})
}

// shape lists measurement, tags and fields with their types: what dashboards
// and databases rely on. The file testdata/shape.txt must only ever gain lines.
func shape(metrics []telegraf.Metric) string {
	lines := map[string]bool{}
	for _, m := range metrics {
		for _, t := range m.TagList() {
			lines[m.Name()+" tag "+t.Key] = true
		}
		for _, f := range m.FieldList() {
			lines[fmt.Sprintf("%s field %s %T", m.Name(), f.Key, f.Value)] = true
		}
	}
	list := make([]string, 0, len(lines))
	for l := range lines {
		list = append(list, l)
	}
	slices.Sort(list)
	return strings.Join(list, "\n") + "\n"
}

func TestNamesAndTypesOfAllMetricsAreFrozen(t *testing.T) {
	want, err := os.ReadFile("testdata/shape.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), shape(allMetrics()))
}

// documented fails unless the README lists every line of a shape.
func documented(t *testing.T, shape string) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, part := range strings.Split(string(readme), "\n- agp_")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		sections["agp_"+strings.TrimSpace(name)] = body
	}
	types := map[string]string{"int64": "integer", "float64": "float", "bool": "boolean", "string": "string"}
	for _, line := range strings.Split(strings.TrimSpace(shape), "\n") {
		p := strings.Fields(line)
		body, ok := sections[p[0]]
		require.True(t, ok, p[0])
		name := p[2]
		for _, suffix := range []string{"_fwd", "_rev"} {
			name = strings.TrimSuffix(name, suffix)
		}
		for _, prefix := range []string{"drops_", "errors_"} {
			if strings.HasPrefix(name, prefix) {
				name = prefix + "REASON"
			}
		}
		if p[1] == "tag" {
			require.Contains(t, body, "    - "+name+" (", line)
		} else {
			require.Contains(t, body, "    - "+name+" ("+types[p[3]], line)
		}
	}
}

func TestReadmeListsEveryMeasurementTagAndFieldWithItsType(t *testing.T) {
	documented(t, shape(allMetrics()))
}

// faulty is an input with one point that is dropped and one error.
type faulty struct{}

func (faulty) SampleConfig() string                  { return "" }
func (faulty) Gather(acc telegraf.Accumulator) error { return nil }
func (faulty) Stop()                                 {}
func (faulty) Start(acc telegraf.Accumulator) error {
	acc.AddFields("no_fields", nil, nil)
	acc.AddError(errors.New("fault"))
	return nil
}

// runnerMetrics are those that the runner adds to a plugin's.
func runnerMetrics(t *testing.T) []telegraf.Metric {
	t.Helper()
	var out bytes.Buffer
	require.Zero(t, runner.Run(t.Context(), runner.Options{
		ConfigReader: strings.NewReader("[[inputs.agp]]\n  alias = \"east\"\n"),
		Inputs:       map[string]inputs.Creator{"agp": func() telegraf.Input { return faulty{} }},
		Stdin:        strings.NewReader(""), Stdout: &out, Stderr: io.Discard, Signals: make(chan os.Signal),
	}))
	return parse(t, out.String())
}

func parse(t *testing.T, lines string) []telegraf.Metric {
	t.Helper()
	p := &influx.Parser{}
	require.NoError(t, p.Init())
	metrics, err := p.Parse([]byte(lines))
	require.NoError(t, err)
	return metrics
}

func TestNamesAndTypesOfTheRunnersMetricsAreFrozenAndInTheReadme(t *testing.T) {
	want, err := os.ReadFile("testdata/runner_shape.txt")
	require.NoError(t, err)
	got := shape(runnerMetrics(t))
	require.Equal(t, string(want), got)
	documented(t, got)
}

// The example is real output: nothing in it that the code could not print.
func TestReadmeExampleHasOnlyWhatIsPrinted(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(readme), "## Example Output")
	require.True(t, ok)
	_, example, _ = strings.Cut(example, "```text\n")
	example, _, ok = strings.Cut(example, "```")
	require.True(t, ok)
	metrics := parse(t, example)
	known := shape(allMetrics()) + shape(runnerMetrics(t))
	var reasons []string
	for v := range packet.NumVerdicts {
		reasons = append(reasons, packet.Verdict(v).String())
	}
	for _, line := range strings.Split(strings.TrimSpace(shape(metrics)), "\n") {
		p := strings.Fields(line)
		if strings.HasPrefix(p[2], "drops_") {
			require.Contains(t, reasons, strings.TrimPrefix(p[2], "drops_"))
			continue
		}
		require.Contains(t, known, line+"\n")
	}
	names := map[string]bool{}
	for _, m := range metrics {
		names[m.Name()] = true
		if m.Name() == "agp_alert" {
			threshold := m.Fields()["threshold"].(float64)
			require.Contains(t, options.Thresholds(), options.Threshold{Name: m.Tags()["kind"], Default: threshold})
			require.GreaterOrEqual(t, float64(m.Fields()["count"].(int64)), threshold)
		}
		if m.Name() == "agp_engine" {
			n := func(name string) int64 { return m.Fields()[name].(int64) }
			require.Equal(t, n("packets_seen"), n("packets_recorded")+n("packets_active")+n("packets_lost")+n("drops"))
		}
	}
	for _, line := range strings.Split(known, "\n") {
		name, _, _ := strings.Cut(line, " ")
		// The demo uses no GPU.
		require.True(t, name == "" || name == "agp_gpu" || names[name], "no example of %s", name)
	}
}

func TestTagsAreEnumerationsAndAddressesAreFields(t *testing.T) {
	for _, m := range allMetrics() {
		for _, tag := range []string{"src", "dst", "src_port", "dst_port", "queue_depth", "model"} {
			require.False(t, m.HasTag(tag), "%s %s", m.Name(), tag)
		}
		for _, tag := range m.TagList() {
			require.NotEmpty(t, tag.Value, "%s %s", m.Name(), tag.Key)
			require.False(t, m.HasField(tag.Key), "%s %s is tag and field", m.Name(), tag.Key)
		}
		if m.Name() == "agp_gpu" { // serves whatever it serves
			require.Equal(t, map[string]string{"index": "0", "uuid": "GPU-1", "name": "NVIDIA H200"}, m.Tags())
			continue
		}
		require.Equal(t, "eth0", m.Tags()["interface"], m.Name())
	}
}

func TestReadingsThatAGPUDoesNotHaveAreLeftOut(t *testing.T) {
	s := &telemetry.Snapshot{GPUs: []telemetry.GPURow{{Index: 3, UUID: "MIG-1", Name: "slice", Lost: true, MemoryUsedBytes: new(uint64(0))}}}
	gpus := func(st supervise.Status) (list []telegraf.Metric) {
		for _, m := range collect(ConverterOptions{}, func(c *Converter, acc telegraf.Accumulator) { c.Metrics(s, st, time.Now(), acc) }) {
			if m.Name() == "agp_gpu" {
				list = append(list, m)
			}
		}
		return list
	}
	list := gpus(running())
	require.Len(t, list, 1)
	require.Equal(t, map[string]any{"lost": true, "memory_used_bytes": int64(0)}, list[0].Fields())
	require.Equal(t, "3", list[0].Tags()["index"])
	require.Empty(t, gpus(supervise.Status{State: supervise.StateRestarting}), "the readings are those of an engine that is gone")
}

func TestReadingsThatDoNotExistAreLeftOutOfMetrics(t *testing.T) {
	s := fullSnapshot()
	s.Engine.PacketToScoreCount = 0
	s.Sketches[0].Estimate = math.NaN()
	for _, m := range collect(ConverterOptions{}, func(c *Converter, acc telegraf.Accumulator) { c.Metrics(s, running(), time.Now(), acc) }) {
		require.False(t, m.HasField("packet_to_score_p50_ns"))
		require.False(t, m.HasField("distinct"), "not a number")
		switch {
		case m.Tags()["sketch"] == "nothing":
			require.False(t, m.HasField("p50"), "a quantile of nothing")
		case m.Tags()["queue"] == "4":
			require.False(t, m.HasField("depth"))
		}
	}
}

func TestEngineThatIsDownShowsCountersWithoutGauges(t *testing.T) {
	st := supervise.Status{State: supervise.StateRestarting, Restarts: 2, PacketsLost: 5}
	found := false
	for _, m := range collect(ConverterOptions{Source: "pcap", Pipeline: "cpu"}, func(c *Converter, acc telegraf.Accumulator) {
		c.Metrics(fullSnapshot(), st, time.Now(), acc)
		c.Metrics(&telemetry.Snapshot{}, st, time.Now(), acc)
	}) {
		require.NotContains(t, []string{"agp_top", "agp_sketch"}, m.Name())
		if m.Name() != "agp_engine" {
			continue
		}
		found = true
		require.Equal(t, map[string]string{"interface": "eth0", "source": "pcap", "pipeline": "cpu"}, m.Tags(), "the same series with and without a snapshot")
		require.Equal(t, false, m.Fields()["up"])
		require.Equal(t, int64(2), m.Fields()["restarts"])
		for _, gauge := range []string{"flows_active", "rss_bytes", "uptime_ns"} {
			require.False(t, m.HasField(gauge), gauge)
		}
	}
	require.True(t, found)
}

func TestRanksSortAsText(t *testing.T) {
	var ranks []string
	for _, m := range allMetrics() {
		if m.Name() == "agp_top" {
			ranks = append(ranks, m.Tags()["rank"])
		}
	}
	require.Equal(t, []string{"001", "010"}, ranks)
}

func TestCountersWrapInsteadOfChangingTheirType(t *testing.T) {
	s := &telemetry.Snapshot{Traffic: []telemetry.TrafficRow{{Protocol: 6, Bytes: math.MaxUint64}}}
	m := collect(ConverterOptions{}, func(c *Converter, acc telegraf.Accumulator) { c.Metrics(s, running(), time.Now(), acc) })[0]
	require.Equal(t, int64(math.MaxInt64), m.Fields()["bytes"])
}

// Points of one series and time overwrite each other in InfluxDB.
func TestEveryPointIsUnique(t *testing.T) {
	now := time.Unix(1700000000, 0)
	seen := map[string]bool{}
	for _, m := range collect(ConverterOptions{}, func(c *Converter, acc telegraf.Accumulator) {
		c.Metrics(fullSnapshot(), running(), now, acc)
		for range 1000 {
			c.Record(fullRecord(), now, acc)
			c.Alert(&telemetry.Alert{Kind: "scan"}, now.Add(-time.Second), acc)
		}
	}) {
		key := fmt.Sprint(m.Name(), m.Tags(), m.Time().UnixNano())
		require.False(t, seen[key], key)
		seen[key] = true
		require.WithinDuration(t, now, m.Time(), time.Millisecond)
	}
}

func TestSeriesCountStaysUnderTheLimitWithRandomTraffic(t *testing.T) {
	const limit = 50
	rng := rand.New(rand.NewPCG(1, 2))
	traffic := map[labels]*telemetry.TrafficRow{}
	var total uint64
	series := map[string]int64{}
	c := NewConverter(ConverterOptions{Interface: "eth0", SeriesLimit: limit})
	for range 20 {
		for range 100 {
			r := fullRecord()
			r.Protocol = uint8(rng.Uint32())
			r.Src, r.SrcPort = [16]byte{byte(rng.Uint32()), byte(rng.Uint32())}, uint16(rng.Uint32())
			app := fmt.Sprintf("app%d", rng.IntN(20))
			r.Outputs[0].Label = app
			k := labels{app, "benign", telemetry.ProtocolName(r.Protocol)}
			if traffic[k] == nil {
				traffic[k] = &telemetry.TrafficRow{App: k.app, Class: k.class, Protocol: r.Protocol}
			}
			traffic[k].Flows++
			total++
			var acc testutil.Accumulator
			c.Record(r, time.Now(), &acc)
			for _, m := range acc.GetTelegrafMetrics() {
				series[fmt.Sprint(m.Name(), m.Tags())] = 0
			}
		}
		s := &telemetry.Snapshot{}
		for _, r := range traffic {
			s.Traffic = append(s.Traffic, *r)
		}
		var acc testutil.Accumulator
		c.Metrics(s, running(), time.Now(), &acc)
		var sum int64
		for _, m := range acc.GetTelegrafMetrics() {
			if m.Name() == "agp_traffic" {
				key, flows := fmt.Sprint(m.Name(), m.Tags()), m.Fields()["flows"].(int64)
				require.GreaterOrEqual(t, flows, series[key], "a counter never steps back")
				series[key] = flows
				sum += flows
			}
		}
		require.EqualValues(t, total, sum, "what is beyond the limit is counted under other")
	}
	require.LessOrEqual(t, len(series), 2*(limit+1))
}

func TestLineStaysShort(t *testing.T) {
	s := fullSnapshot()
	s.Sketches[0].State = make([]byte, maxState+1)
	for _, m := range collect(ConverterOptions{}, func(c *Converter, acc telegraf.Accumulator) { c.Metrics(s, running(), time.Now(), acc) }) {
		if m.Name() == "agp_sketch" {
			require.False(t, m.HasField("state"), "a state that would make the line too long")
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	c := NewConverter(ConverterOptions{Interface: "eth0"})
	var acc testutil.NopAccumulator
	r := fullRecord()
	b.ReportAllocs()
	for b.Loop() {
		c.Record(r, time.Now(), &acc)
	}
}
