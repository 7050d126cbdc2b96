package agp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/metric"
	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	input "github.com/agp-net/telegraf-agp/plugins/inputs/agp"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

func plugin(t *testing.T, change func(*AGP)) *AGP {
	t.Helper()
	a := New()
	a.Log = testutil.Logger{}
	if change != nil {
		change(a)
	}
	require.NoError(t, a.Init())
	return a
}

// pushed is what a plugin says.
func pushed(a *AGP) *testutil.Accumulator {
	acc := &testutil.Accumulator{}
	a.Push(acc)
	return acc
}

// one is the only point of a name with these tags.
func one(t *testing.T, acc *testutil.Accumulator, name string, tags map[string]string) map[string]any {
	t.Helper()
	var found []map[string]any
	for _, m := range acc.Metrics {
		if m.Measurement == name && fmt.Sprint(m.Tags) == fmt.Sprint(tags) {
			found = append(found, m.Fields)
		}
	}
	require.Len(t, found, 1, "%s %v", name, tags)
	return found[0]
}

// share is the part of an input's flows that one host of several sees.
type share struct {
	source.Source
	part, of int
	parser   packet.Parser
}

func (s *share) Next(b *source.Batch) (int, error) {
	_, err := s.Source.Next(b)
	kept := b.Frames[:0]
	for i := range b.Frames {
		f := &b.Frames[i]
		var p flow.Packet
		if s.parser.Parse(f.LinkType, f.Data, f.WireLen, &p.Info) != packet.OK {
			continue
		}
		p.Key.Set(&p.Info, flow.KeyOptions{})
		if int(p.Key.Hash(1)%uint64(s.of)) == s.part {
			kept = append(kept, *f)
		}
	}
	b.Frames = kept
	return len(kept), err
}

type discard struct{}

func (discard) Record(*telemetry.Record) {}
func (discard) Alert(*telemetry.Alert)   {}

// readings are the metrics that a host sends of its part of a capture.
func readings(t *testing.T, path, host string, part, of, topK int) []telegraf.Metric {
	t.Helper()
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	p, err := cpu.New(cpu.Config{Source: &share{Source: src, part: part, of: of}, Sink: discard{}, Queues: 2, Sketch: cpu.SketchConfig{TopK: topK, Serialize: true}})
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	var s telemetry.Snapshot
	p.Snapshot(&s)
	acc := &testutil.Accumulator{}
	input.NewConverter(input.ConverterOptions{Interface: "eth0"}).Metrics(&s, supervise.Status{Up: true}, time.Now(), acc)
	var list []telegraf.Metric
	for _, m := range acc.GetTelegrafMetrics() {
		m.AddTag("host", host)
		list = append(list, m)
	}
	require.NotEmpty(t, list)
	return list
}

func capture(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, traffic.Bench(7, 60_000, 5_000).WritePcap(&b))
	path := filepath.Join(t.TempDir(), "fleet.pcap")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// TestMergedReadingsAreThoseOfOneHostThatSawEverything: distinct counts have the registers of one
// sketch, quantiles its bins, and heavy hitters agree within their bounds.
func TestMergedReadingsAreThoseOfOneHostThatSawEverything(t *testing.T) {
	path := capture(t)
	const hosts, topK = 4, 20
	a := plugin(t, func(a *AGP) { a.TopK, a.SketchState = topK, true })
	for i := range hosts {
		list := readings(t, path, fmt.Sprint("host", i), i, hosts, topK)
		for range 2 { // each interval again
			for _, m := range list {
				a.Add(m)
			}
		}
	}
	acc := pushed(a)
	require.EqualValues(t, hosts, one(t, acc, "agp_fleet", map[string]string{})["sources"])
	require.Equal(t, map[string]any{"series": int64(hosts * (4 + 4 + 5)), "late": int64(0), "invalid": int64(0), "refused": int64(0)}, one(t, acc, "agp_fleet_input", map[string]string{}))
	exact, values := map[string]int64{}, map[string]int64{} // of one host with long lists
	states, tops := 0, 0
	for _, m := range readings(t, path, "all", 0, 1, 999) {
		switch m.Name() {
		case "agp_sketch":
			name, _ := m.GetTag("sketch")
			raw, ok := text(m, "state")
			if !ok {
				continue
			}
			states++
			got := one(t, acc, "agp_fleet_sketch", map[string]string{"sketch": name})
			require.EqualValues(t, hosts, got["sources"])
			encoding, _ := text(m, "state_encoding")
			require.Equal(t, encoding, got["state_encoding"])
			switch want := newSketch(encoding).(type) {
			case *distinct:
				have := &sketch.HLL{}
				require.NoError(t, want.add(decoded(t, raw)))
				require.NoError(t, have.UnmarshalBinary(decoded(t, got["state"].(string))))
				require.NoError(t, have.Merge(want.HLL)) // the same registers: nothing is new
				require.InEpsilon(t, 1+have.Estimate(), 1+got["distinct"].(float64), 1e-9)
				truth, _ := m.GetField("distinct")
				require.InEpsilon(t, 1+truth.(float64), 1+got["distinct"].(float64), 3*0.01625, name)
			case *quantiles:
				require.NoError(t, want.add(decoded(t, raw)))
				f := map[string]any{}
				want.fields(f)
				for k, v := range f {
					require.Equal(t, v, got[k], "%s %s", name, k)
				}
			}
		case "agp_top":
			tops++
			list, _ := m.GetTag("metric")
			f := m.Fields()
			id := fmt.Sprint(list, f["src"], f["dst"], f["protocol"], f["src_port"], f["dst_port"])
			exact[id], values[id] = f["value"].(int64), f["error"].(int64)
		}
	}
	require.Equal(t, 4+4, states)
	require.NotZero(t, tops)
	compared := 0
	for _, m := range acc.Metrics {
		if m.Measurement != "agp_fleet_top" {
			continue
		}
		f := m.Fields
		id := fmt.Sprint(m.Tags["metric"], f["src"], f["dst"], f["protocol"], f["src_port"], f["dst_port"])
		value, ok := exact[id]
		require.True(t, ok, id)
		require.LessOrEqual(t, f["value"].(int64), value+values[id], id)
		require.GreaterOrEqual(t, f["value"].(int64)+f["error"].(int64), value, id)
		compared++
	}
	require.Equal(t, 5*topK, compared)
}

func decoded(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	require.NoError(t, err)
	return b
}

var start = time.Unix(1_800_000_000, 0)

func top(host, list, rank, src string, value, bound int64, after time.Duration) telegraf.Metric {
	return metric.New("agp_top", map[string]string{"host": host, "interface": "eth0", "metric": list, "rank": rank},
		map[string]any{"src": src, "value": value, "error": bound}, start.Add(after))
}

// TestListsReplaceEachOther: of each host the latest counts, as a whole; what comes late is counted.
func TestListsReplaceEachOther(t *testing.T) {
	a := plugin(t, nil)
	for _, m := range []telegraf.Metric{
		top("a", "src_bytes", "001", "192.0.2.1", 50, 0, 0), top("a", "src_bytes", "002", "192.0.2.2", 40, 0, 0),
		top("a", "src_bytes", "001", "192.0.2.3", 100, 5, time.Second),
		top("a", "src_bytes", "001", "192.0.2.1", 60, 0, 0), // late
		top("b", "src_bytes", "001", "192.0.2.3", 10, 1, 0), top("b", "src_bytes", "002", "192.0.2.4", 7, 1, 0),
	} {
		a.Add(m)
	}
	acc := pushed(a)
	tags := func(rank string) map[string]string { return map[string]string{"metric": "src_bytes", "rank": rank} }
	require.Equal(t, map[string]any{"src": "192.0.2.3", "value": int64(110), "error": int64(6), "sources": int64(2)}, one(t, acc, "agp_fleet_top", tags("001")))
	// Host a may have had 105 of it.
	require.Equal(t, map[string]any{"src": "192.0.2.4", "value": int64(7), "error": int64(106), "sources": int64(1)}, one(t, acc, "agp_fleet_top", tags("002")))
	require.EqualValues(t, 1, one(t, acc, "agp_fleet_input", map[string]string{})["late"])
	a.Reset()
	require.Len(t, pushed(a).Metrics, 1, "a new period knows nothing of the one before")
}

// TestGroupsAreKeptApart by the tags of group_by, and metrics without one are a group of their own.
func TestGroupsAreKeptApart(t *testing.T) {
	a := plugin(t, func(a *AGP) { a.GroupBy = []string{"site"} })
	for host, site := range map[string]string{"a": "x", "b": "x", "c": "y", "d": ""} {
		m := top(host, "src_bytes", "001", "192.0.2.1", 5, 0, 0)
		if site != "" {
			m.AddTag("site", site)
		}
		a.Add(m)
	}
	acc := pushed(a)
	for site, want := range map[string]int64{"x": 2, "y": 1} {
		require.Equal(t, want, one(t, acc, "agp_fleet", map[string]string{"site": site})["sources"])
		require.Equal(t, 5*want, one(t, acc, "agp_fleet_top", map[string]string{"site": site, "metric": "src_bytes", "rank": "001"})["value"])
	}
	require.Equal(t, int64(1), one(t, acc, "agp_fleet", map[string]string{})["sources"])
}

// TestWhatIsNoReadingIsCounted and does no harm.
func TestWhatIsNoReadingIsCounted(t *testing.T) {
	a := plugin(t, func(a *AGP) { a.MaxSources = 5 })
	state := func(host, sketch, encoding, raw string) telegraf.Metric {
		return metric.New("agp_sketch", map[string]string{"host": host, "sketch": sketch}, map[string]any{"state": raw, "state_encoding": encoding}, start)
	}
	good := sketch.NewQuantiles()
	good.AddUint(7)
	raw, err := good.MarshalBinary()
	require.NoError(t, err)
	counter := func(lgK int) []byte {
		h, err := sketch.NewHLL(lgK)
		require.NoError(t, err)
		h.AddUint64(1)
		b, err := h.MarshalBinary()
		require.NoError(t, err)
		return b
	}
	few, fine := counter(6), counter(13)
	for _, m := range []telegraf.Metric{
		metric.New("cpu", nil, map[string]any{"usage": 1.0}, start),
		metric.New("agp_sketch", map[string]string{"sketch": "src_entropy"}, map[string]any{"entropy_bits": 1.0}, start), // has no state
		metric.New("agp_top", map[string]string{"metric": "src_bytes"}, map[string]any{"value": "many"}, start),
		top("a", "src_bytes", "001", "192.0.2.1", -1, 0, 0),
		state("a", "size", "zip", "AAAA"),
		state("a", "", "ddsketch_proto", "AAAA"),
		state("a", "size", "ddsketch_proto", strings.Repeat("A", maxState+1)),
		state("a", "size", "ddsketch_proto", "not base64"),
		state("b", "size", "hll_datasketches", "AAAA"),
		state("b1", "sources", "hll_datasketches", base64.StdEncoding.EncodeToString(few)),
		state("b2", "sources", "hll_datasketches", base64.StdEncoding.EncodeToString(fine)),
		state("c", "size", "ddsketch_proto", base64.StdEncoding.EncodeToString(raw)),
		state("d", "size", "ddsketch_proto", base64.StdEncoding.EncodeToString(raw)), // one too many
	} {
		a.Add(m)
	}
	acc := pushed(a)
	require.Equal(t, map[string]any{"series": int64(5), "late": int64(0), "invalid": int64(5 + 3), "refused": int64(1)}, one(t, acc, "agp_fleet_input", map[string]string{}))
	got := one(t, acc, "agp_fleet_sketch", map[string]string{"sketch": "size"})
	require.Equal(t, int64(1), got["sources"])
	require.InEpsilon(t, 7, got["p50"], 0.01)
	require.Equal(t, int64(1), one(t, acc, "agp_fleet_sketch", map[string]string{"sketch": "sources"})["sources"])
}

// TestMistakesInTheConfigurationAreNamed by key, value and what is allowed.
func TestMistakesInTheConfigurationAreNamed(t *testing.T) {
	for says, change := range map[string]func(*AGP){
		"top_k = 0, allowed: 1 to 999":             func(a *AGP) { a.TopK = 0 },
		"max_sources = -1, allowed: 1 to 10000000": func(a *AGP) { a.MaxSources = -1 },
		`group_by = ["rank"], allowed`:             func(a *AGP) { a.GroupBy = []string{"rank"} },
	} {
		a := New()
		change(a)
		err := a.Init()
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, says)
	}
}

// TestSampleConfigIsThePluginsDefaults: telegraf reads it, also with every option switched on.
func TestSampleConfigIsThePluginsDefaults(t *testing.T) {
	c := config.NewConfig()
	require.NoError(t, c.LoadConfigData([]byte(sampleConfig), "sample.conf"))
	require.Len(t, c.Aggregators, 1)
	got := *c.Aggregators[0].Aggregator.(*AGP)
	got.Log, got.merge = nil, nil
	require.Equal(t, *New(), got)
	c = config.NewConfig()
	require.NoError(t, c.LoadConfigData([]byte(strings.ReplaceAll(sampleConfig, "\n  # ", "\n  ")), "sample.conf"))
	require.Equal(t, []string{"site"}, c.Aggregators[0].Aggregator.(*AGP).GroupBy)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```toml @sample.conf\n"+sampleConfig+"```\n")
}

// addresses is the state of a host that saw n addresses from 10.0.x on.
func addresses(t *testing.T, from, n int) []byte {
	t.Helper()
	h, err := sketch.NewHLL(lgK)
	require.NoError(t, err)
	for i := from; i < from+n; i++ {
		h.Add([]byte{10, 0, byte(i >> 8), byte(i)})
	}
	b, err := h.MarshalBinary()
	require.NoError(t, err)
	return b
}

// TestTheExampleOfTheREADMEIsAState: the bytes and what they mean.
func TestTheExampleOfTheREADMEIsAState(t *testing.T) {
	raw, err := os.ReadFile("README.md")
	require.NoError(t, err)
	b := addresses(t, 0, 5000)
	require.Contains(t, string(raw), "```text\n"+hex.Dump(b[:40])+"```\n")
	float := func(at int) string {
		return fmt.Sprintf("%.4f", math.Float64frombits(binary.LittleEndian.Uint64(b[at:])))
	}
	require.Contains(t, string(raw), "| 8 to 15 | "+float(8)+" |")
	require.Contains(t, string(raw), "| 16 to 31 | "+float(16)+", "+float(24)+" |")
	require.Contains(t, string(raw), fmt.Sprintf("| 32 to 35 | %d |", binary.LittleEndian.Uint32(b[32:])))
}

// TestThePythonOfTheREADMEMergesAsTheAggregatorDoes with the library of DataSketches.
func TestThePythonOfTheREADMEMergesAsTheAggregatorDoes(t *testing.T) {
	py := testcap.Python(t, "datasketches")
	raw, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, code, ok := strings.Cut(string(raw), "```python\n")
	require.True(t, ok)
	code, _, _ = strings.Cut(code, "```")
	a := plugin(t, nil)
	var states []string
	for i, host := range []string{"a", "b", "c"} {
		s := base64.StdEncoding.EncodeToString(addresses(t, 4000*i, 5000))
		states = append(states, s)
		a.Add(metric.New("agp_sketch", map[string]string{"host": host, "sketch": "sources"}, map[string]any{"state": s, "state_encoding": "hll_datasketches"}, start))
	}
	out, err := exec.Command(py, "-c", fmt.Sprintf("states = %q.split()\n%s", strings.Join(states, " "), code)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	want, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	require.NoError(t, err)
	got := one(t, pushed(a), "agp_fleet_sketch", map[string]string{"sketch": "sources"})
	require.InEpsilon(t, want, got["distinct"], 0.25*got["error_bound"].(float64)) // the same registers, another estimator
	require.InEpsilon(t, 13_000, want, 0.05)
}
