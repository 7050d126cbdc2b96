package agp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/metric"
	"github.com/influxdata/telegraf/plugins/inputs/suricata"
	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

var came = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const class = "../../../configs/models/class.onnx"

// plugin is one without models that turns its buffer only when it stops or is full.
func plugin(t *testing.T, change func(*AGP)) (*AGP, *testutil.Accumulator) {
	t.Helper()
	a := New()
	a.Log, a.Models = testutil.Logger{Name: "agp"}, []string{"none"}
	a.PairTimeout, a.ReportInterval = config.Duration(time.Hour), config.Duration(time.Hour)
	if change != nil {
		change(a)
	}
	require.NoError(t, a.Init())
	acc := &testutil.Accumulator{}
	require.NoError(t, a.Start(acc))
	return a, acc
}

// netflow is a metric as telegraf's netflow input makes it of IPFIX.
func netflow(src, dst string, flags string, packets, bytes uint64, start time.Time, last time.Duration) telegraf.Metric {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return metric.New("netflow", map[string]string{"source": "192.0.2.1", "version": "IPFIX"}, map[string]any{
		"src": s.Addr().String(), "dst": d.Addr().String(), "src_port": uint64(s.Port()), "dst_port": uint64(d.Port()), "protocol": "tcp",
		"in_packets": packets, "in_bytes": bytes, "tcp_flags": "........" + flags,
		"flow_start_ms": uint64(start.UnixMilli()), "flow_end_ms": uint64(start.Add(last).UnixMilli()),
	}, came)
}

// scan is the two directions of refused connections to n ports.
func scan(n int) (list []telegraf.Metric) {
	for i := range n {
		from, to := fmt.Sprintf("192.0.2.66:%d", 40000+i), fmt.Sprintf("10.1.0.200:%d", 1+i)
		at := came.Add(time.Duration(i)*10*time.Millisecond - time.Minute)
		list = append(list, netflow(to, from, "...A.R..", 1, 40, at, 0), netflow(from, to, "......S.", 1, 60, at, 0))
	}
	return list
}

func named(acc *testutil.Accumulator, name string) []telegraf.Metric {
	return slices.DeleteFunc(acc.GetTelegrafMetrics(), func(m telegraf.Metric) bool { return m.Name() != name })
}

// alerts are "kind src dst port" of all that were emitted.
func alerts(acc *testutil.Accumulator) (list []string) {
	for _, m := range named(acc, "agp_alert") {
		kind, _ := m.GetTag("kind")
		f := m.Fields()
		list = append(list, strings.ReplaceAll(fmt.Sprintf("%v %v %v %v", kind, f["src"], f["dst"], f["dst_port"]), "<nil>", "-"))
	}
	return list
}

// counted is a field of the last agp_processor.
func counted(t *testing.T, acc *testutil.Accumulator, field string) int64 {
	t.Helper()
	list := named(acc, "agp_processor")
	require.NotEmpty(t, list)
	v, ok := list[len(list)-1].GetField(field)
	require.True(t, ok, field)
	return v.(int64)
}

func feed(t *testing.T, a *AGP, acc telegraf.Accumulator, list ...telegraf.Metric) {
	t.Helper()
	for _, m := range list {
		require.NoError(t, a.Add(m, acc))
	}
}

func TestScanInNetflowRaisesOneAlertAboutTheScanner(t *testing.T) {
	a, acc := plugin(t, nil)
	feed(t, a, acc, scan(20)...)
	a.Stop()
	require.Equal(t, []string{"port_scan 192.0.2.66 10.1.0.200 -"}, alerts(acc))
	require.EqualValues(t, 40, counted(t, acc, "flows"))
	require.EqualValues(t, 20, counted(t, acc, "flows_paired"))
	require.EqualValues(t, 20, counted(t, acc, "flows_analysed"))
	require.Zero(t, counted(t, acc, "flows_waiting"))
	require.EqualValues(t, 1, counted(t, acc, "alerts"))
}

// What the detectors find in starts and ends of flows is found in flows that were metered elsewhere.
func TestKindsThatFlowsShow(t *testing.T) {
	at := func(i int, pace time.Duration) time.Time { return came.Add(time.Duration(i)*pace - 30*time.Minute) }
	udp := func(m telegraf.Metric) telegraf.Metric {
		m.AddField("protocol", "udp")
		m.RemoveField("tcp_flags")
		return m
	}
	for kind, flows := range map[string]func(i int) []telegraf.Metric{
		"syn_flood - 203.0.113.5 443": func(i int) []telegraf.Metric {
			return []telegraf.Metric{netflow(fmt.Sprintf("11.0.%d.%d:2000", i/250, i%250), "203.0.113.5:443", "......S.", 1, 60, at(i, 10*time.Millisecond), 0)}
		},
		"syn_ack_reflection - 10.0.0.5 -": func(i int) []telegraf.Metric {
			return []telegraf.Metric{netflow(fmt.Sprintf("11.0.%d.%d:443", i/250, i%250), fmt.Sprintf("10.0.0.5:%d", 2000+i), "...A..S.", 3, 180, at(i, 10*time.Millisecond), 0)}
		},
		"amplification - 10.0.0.5 -": func(i int) []telegraf.Metric {
			return []telegraf.Metric{udp(netflow(fmt.Sprintf("11.0.%d.%d:123", i/250, i%250), "10.0.0.5:80", "", 10, 4680, at(i, 10*time.Millisecond), 0))}
		},
		"host_scan 10.0.0.66 - 445": func(i int) []telegraf.Metric {
			return []telegraf.Metric{netflow(fmt.Sprintf("10.0.0.66:%d", 30000+i), fmt.Sprintf("10.1.%d.%d:445", i/250, i%250), "......S.", 3, 180, at(i, 50*time.Millisecond), 7*time.Second)}
		},
		"stealth_scan 10.0.0.66 10.1.0.1 -": func(i int) []telegraf.Metric {
			return []telegraf.Metric{netflow(fmt.Sprintf("10.0.0.66:%d", 30000+i), fmt.Sprintf("10.1.0.1:%d", 1+i%9), "..U.P..F", 1, 40, at(i, 50*time.Millisecond), 0)}
		},
		"beacon 10.0.0.33 203.0.113.7 443": func(i int) []telegraf.Metric {
			me, there := fmt.Sprintf("10.0.0.33:%d", 30000+i), "203.0.113.7:443"
			return []telegraf.Metric{netflow(there, me, "...AP.SF", 7, 1400, at(i, 5*time.Second), time.Second), netflow(me, there, "...AP.SF", 9, 1500, at(i, 5*time.Second), time.Second)}
		},
		"dns_tunnel 10.0.0.33 203.0.113.53 53": func(i int) []telegraf.Metric {
			me, there := fmt.Sprintf("10.0.0.33:%d", 30000+i), "203.0.113.53:53"
			return []telegraf.Metric{udp(netflow(me, there, "", 1, 28+200, at(i, 100*time.Millisecond), 0)), udp(netflow(there, me, "", 1, 28+220, at(i, 100*time.Millisecond), 0))}
		},
	} {
		a, acc := plugin(t, nil)
		for i := range 300 {
			feed(t, a, acc, flows(i)...)
		}
		a.Stop()
		require.Equal(t, []string{kind}, alerts(acc))
	}
}

func TestClientsOfServicesAreNoScanners(t *testing.T) {
	a, acc := plugin(t, nil)
	for i := range 40 {
		client, server := fmt.Sprintf("10.1.0.7:%d", 50000+i), fmt.Sprintf("203.0.113.%d:443", 1+i)
		at := came.Add(time.Duration(i-60) * time.Second)
		feed(t, a, acc, netflow(client, server, "...AP.SF", 9, 1800, at, time.Second), netflow(server, client, "...AP.SF", 11, 9000, at, time.Second))
	}
	a.Stop()
	require.Empty(t, alerts(acc))
	top := named(acc, "agp_top")
	require.NotEmpty(t, top)
	found := false
	for _, m := range top {
		if name, _ := m.GetTag("metric"); name == "src_bytes" {
			found = true
			require.Equal(t, "10.1.0.7", m.Fields()["src"], "the client is the initiator of all")
		}
	}
	require.True(t, found)
	for _, m := range named(acc, "agp_sketch") {
		if name, _ := m.GetTag("sketch"); name == "destinations" {
			require.InDelta(t, 40, m.Fields()["distinct"], 2)
		}
	}
}

// Everything leaves in its order, also what is no flow or cannot be read, and tracked metrics are
// accepted or rejected downstream once: the plugin itself does neither.
func TestMetricsPassUnchangedInOrderAndOnce(t *testing.T) {
	a, acc := plugin(t, func(a *AGP) { a.MaxFlows = 1024 })
	var want []telegraf.Metric
	delivered := 0
	for i := range 5000 {
		m := netflow(fmt.Sprintf("10.%d.%d.1:4000", i/250, i%250), "10.255.0.1:80", "......S.", 1, 60, came, 0)
		switch i % 5 {
		case 1:
			m = metric.New("cpu", nil, map[string]any{"i": i}, came)
		case 2:
			m.AddField("dst", "nowhere")
		}
		want = append(want, m.Copy())
		tracked, _ := metric.WithTracking(m, func(telegraf.DeliveryInfo) { delivered++ })
		feed(t, a, acc, tracked)
	}
	require.Zero(t, delivered)
	a.Stop()
	require.Zero(t, delivered, "nobody downstream has decided")
	got := slices.DeleteFunc(acc.GetTelegrafMetrics(), func(m telegraf.Metric) bool { return strings.HasPrefix(m.Name(), "agp_") })
	testutil.RequireMetricsEqual(t, want, got)
	require.EqualValues(t, 1000, counted(t, acc, "refused_address"))
	require.EqualValues(t, 3000, counted(t, acc, "flows"))
	require.EqualValues(t, 5000, counted(t, acc, "metrics"))
}

func TestTrackedMetricsAreAcceptedByWhoTakesThem(t *testing.T) {
	a, _ := plugin(t, nil)
	acc := &accepting{}
	states := map[bool]int{}
	for _, m := range scan(20) {
		tracked, _ := metric.WithTracking(m, func(d telegraf.DeliveryInfo) { states[d.Delivered()]++ })
		feed(t, a, acc, tracked)
	}
	a.Stop()
	require.Equal(t, map[bool]int{true: 40}, states)
}

// accepting takes metrics as an output does.
type accepting struct{ testutil.NopAccumulator }

func (*accepting) AddMetric(m telegraf.Metric) { m.Accept() }

func TestDuplicatesAreCountedAndNotAnalysed(t *testing.T) {
	a, acc := plugin(t, nil)
	list := scan(14) // one port fewer than is a scan
	feed(t, a, acc, list...)
	for _, m := range list { // the same exporter again, and another one on the path, a little later
		feed(t, a, acc, m.Copy())
		other := m.Copy()
		other.AddTag("source", "192.0.2.2")
		feed(t, a, acc, other)
	}
	a.Stop()
	require.EqualValues(t, 56, counted(t, acc, "flows_duplicate"))
	require.EqualValues(t, 14, counted(t, acc, "flows_analysed"))
	require.Empty(t, alerts(acc))
}

func TestFlowsThatGoOnAreAddedUp(t *testing.T) {
	a, acc := plugin(t, nil)
	for i := range 3 {
		feed(t, a, acc, netflow("10.0.0.1:50000", "203.0.113.1:443", "...A....", 100, 100_000, came.Add(time.Duration(i-9)*time.Minute), 59*time.Second))
	}
	require.EqualValues(t, 2, a.count.continued)
	var r telemetry.Record
	require.Len(t, a.buffer.young, 1)
	for _, h := range a.buffer.young {
		h.record(&r)
	}
	require.EqualValues(t, 300, r.Dir[telemetry.Fwd].Packets)
	require.EqualValues(t, 300_000, r.Dir[telemetry.Fwd].L3Bytes)
	require.Equal(t, 2*time.Minute+59*time.Second, time.Duration(r.EndNs-r.StartNs))
	a.Stop()
	require.EqualValues(t, 1, counted(t, acc, "flows_analysed"))
}

func TestLateFlowsAreCountedAndNotAnalysed(t *testing.T) {
	a, acc := plugin(t, nil)
	feed(t, a, acc, netflow("10.0.0.1:50000", "203.0.113.1:443", "...A....", 1, 100, came, 0))
	a.turn()
	a.turn()
	require.Equal(t, came.UnixNano(), a.analysis.now)
	feed(t, a, acc,
		netflow("10.0.0.2:50000", "203.0.113.1:443", "...A....", 1, 100, came.Add(-5*time.Minute), 0), // just in time
		netflow("10.0.0.3:50000", "203.0.113.1:443", "...A....", 1, 100, came.Add(-5*time.Minute-time.Second), 0))
	a.Stop()
	require.EqualValues(t, 1, counted(t, acc, "flows_late"))
	require.EqualValues(t, 2, counted(t, acc, "flows_analysed"))
}

func TestSampledFlowsCountForWhatTheyStandAndRaiseNoAlert(t *testing.T) {
	a, acc := plugin(t, nil)
	for _, m := range scan(40) {
		m.AddField("sampling_interval", uint64(100))
		feed(t, a, acc, m)
	}
	a.Stop()
	require.Empty(t, alerts(acc))
	require.EqualValues(t, 80, counted(t, acc, "flows_sampled"))
	require.Zero(t, counted(t, acc, "flows_analysed"))
	for _, m := range named(acc, "agp_top") {
		name, _ := m.GetTag("metric")
		rank, _ := m.GetTag("rank")
		if name == "src_bytes" && rank == "001" {
			require.EqualValues(t, 40*(74+60)*100, m.Fields()["value"])
		}
	}
}

// A full buffer releases flows early; none is lost.
func TestMemoryIsBoundedAndNoFlowIsLost(t *testing.T) {
	a, acc := plugin(t, func(a *AGP) { a.MaxFlows = 1024 })
	for i := range 10_000 {
		feed(t, a, acc, netflow(fmt.Sprintf("10.%d.%d.1:4000", i/250, i%250), "10.255.0.1:80", "......S.", 1, 60, came, 0))
		require.LessOrEqual(t, a.buffer.len(), 1024)
	}
	require.Positive(t, a.buffer.len())
	a.Stop()
	require.EqualValues(t, 10_000, counted(t, acc, "flows_analysed"))
	require.GreaterOrEqual(t, counted(t, acc, "flows_early"), int64(8000))
	require.Contains(t, alerts(acc), "syn_flood - 10.255.0.1 80")
}

func TestTurnsComeByTheClock(t *testing.T) {
	a, acc := plugin(t, func(a *AGP) {
		a.PairTimeout, a.ReportInterval = config.Duration(100*time.Millisecond), config.Duration(time.Second)
	})
	feed(t, a, acc, scan(20)...)
	require.Eventually(t, func() bool { return len(named(acc, "agp_alert")) == 1 && len(named(acc, "agp_processor")) > 0 }, 10*time.Second, 10*time.Millisecond)
	a.Stop()
	n := len(acc.GetTelegrafMetrics())
	time.Sleep(250 * time.Millisecond)
	require.Len(t, acc.GetTelegrafMetrics(), n, "nothing after Stop")
}

// Events in the documented format of Suricata, through telegraf's own input.
func TestSuricataEventsRaiseTheAlertsOfTheirContent(t *testing.T) {
	a, acc := plugin(t, nil)
	socket := filepath.Join(t.TempDir(), "eve.sock")
	in := &suricata.Suricata{Source: socket, Version: "2", Log: testutil.Logger{Quiet: true}}
	require.NoError(t, in.Init())
	events := &testutil.Accumulator{}
	require.NoError(t, in.Start(events))
	defer in.Stop()
	eve, err := os.ReadFile("testdata/eve.json")
	require.NoError(t, err)
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	_, err = conn.Write(eve)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	n := strings.Count(string(eve), "\n")
	events.Wait(n)
	feed(t, a, acc, events.GetTelegrafMetrics()...)
	a.Stop()
	require.ElementsMatch(t, []string{
		"port_scan 10.2.0.66 10.2.0.5 -",
		"brute_force 198.51.100.9 10.2.0.7 22",
	}, alerts(acc))
	require.EqualValues(t, n-1, counted(t, acc, "flows"), "all but the DNS event")
	require.EqualValues(t, n-1, counted(t, acc, "flows_analysed"))
	require.Zero(t, counted(t, acc, "refused"))
}

func TestCloudLogsAreReadByAMapping(t *testing.T) {
	a, acc := plugin(t, func(a *AGP) {
		a.Mappings = []Mapping{{
			Measurement: "vpc_flow", Tags: map[string]string{"status": "OK"}, Src: "srcaddr", Dst: "dstaddr", SrcPort: "srcport", DstPort: "dstport", Protocol: "protocol",
			Packets: "packets", Bytes: "bytes", TCPFlags: "tcp_flags", Start: "start", End: "end", TimeFormat: "unix", Source: "eni",
		}}
	})
	line := func(src, dst string, sp, dp, flags int, status string) telegraf.Metric {
		return metric.New("vpc_flow", map[string]string{"status": status, "eni": "eni-1"}, map[string]any{
			"srcaddr": src, "dstaddr": dst, "srcport": int64(sp), "dstport": float64(dp), "protocol": "6", "packets": int64(1), "bytes": "44",
			"tcp_flags": int64(flags), "start": came.Unix() - 70, "end": came.Unix() - 60,
		}, came)
	}
	for port := range 20 {
		feed(t, a, acc, line("198.51.100.4", "10.0.0.9", 50000+port, port+1, 2, "OK"), line("10.0.0.9", "198.51.100.4", port+1, 50000+port, 4, "OK"),
			line("198.51.100.5", "10.0.0.9", 50000+port, port+1, 2, "NODATA"))
	}
	a.Stop()
	require.Equal(t, []string{"port_scan 198.51.100.4 10.0.0.9 -"}, alerts(acc))
	require.EqualValues(t, 40, counted(t, acc, "flows"))
}

// A metric with our histograms gets what the model says of them, and an alert if that is a finding.
func TestHistogramsAreClassifiedAsTheModelDoes(t *testing.T) {
	m, err := model.Load(class)
	require.NoError(t, err)
	set, err := model.NewSet(m)
	require.NoError(t, err)
	scorer := model.NewScorer()
	scorer.Use(set)
	a, acc := plugin(t, func(a *AGP) { a.Models = []string{class} })
	want, findings := []telemetry.Output{}, 0
	for i := range 60 {
		var r telemetry.Record
		for k := range 200 {
			r.SizeHist[(2+i+k%(1+i%3))%telemetry.SizeBins]++
			if k > 0 {
				r.DelayHist[(i*7+k%2*4)%telemetry.DelayBins]++
			}
		}
		scorer.Reset()
		slot := scorer.Add(1, model.Features{Size: &r.SizeHist, Delay: &r.DelayHist})
		scorer.Run()
		out := scorer.Outputs(slot)[0]
		want = append(want, out)
		if m.Alert(out.Label) {
			findings++
		}
		text := func(bins []uint32) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(bins), " ", ","), "[]") }
		feed(t, a, acc, metric.New("agp_flow", map[string]string{"protocol": "tcp"}, map[string]any{
			"size_hist": text(r.SizeHist[:]), "delay_hist": text(r.DelayHist[:]), "src": "10.0.0.1", "dst": "203.0.113.1", "src_port": int64(5), "dst_port": int64(6),
			"packets_fwd": int64(200), "packets_rev": int64(0), "l3_bytes_fwd": int64(1), "l3_bytes_rev": int64(0),
			"start_ns": came.UnixNano(), "end_ns": came.UnixNano(),
		}, came))
	}
	a.Stop()
	got := named(acc, "agp_flow")
	require.Len(t, got, len(want))
	labels := map[string]bool{}
	for i, m := range got {
		label, _ := m.GetTag("class")
		labels[label] = true
		require.Equal(t, want[i].Label, label)
		require.InDelta(t, want[i].Score, m.Fields()["class_score"], 1e-6)
		require.Equal(t, want[i].Model, m.Fields()["class_model"])
	}
	require.Greater(t, len(labels), 1, "inputs that differ")
	require.EqualValues(t, len(want), counted(t, acc, "scored"))
	require.Positive(t, findings)
	require.Len(t, alerts(acc), findings)
	require.Contains(t, alerts(acc)[0], "classified 10.0.0.1 203.0.113.1 6")
	require.Zero(t, counted(t, acc, "flows"), "the engine had detectors of its own")
}

func TestMetricsWithAnAnswerOrBadHistogramsStayAsTheyAre(t *testing.T) {
	a, acc := plugin(t, func(a *AGP) { a.Models = []string{class} })
	hist := strings.Repeat("9,", 40) + "9"
	list := []telegraf.Metric{
		metric.New("agp_flow", map[string]string{"class": "c2"}, map[string]any{"size_hist": hist, "delay_hist": hist}, came),
		metric.New("agp_flow", nil, map[string]any{"size_hist": "1,x"}, came),
		metric.New("agp_flow", nil, map[string]any{"size_hist": strings.Repeat("1,", 95) + "1"}, came),
		metric.New("agp_flow", nil, map[string]any{"size_hist": int64(4)}, came),
		metric.New("agp_flow", nil, map[string]any{"size_hist": "1,1"}, came), // too few packets
	}
	var want []telegraf.Metric
	for _, m := range list {
		want = append(want, m.Copy())
	}
	feed(t, a, acc, list...)
	a.Stop()
	testutil.RequireMetricsEqual(t, want, named(acc, "agp_flow"))
	require.Zero(t, counted(t, acc, "scored"))
	require.EqualValues(t, 3, counted(t, acc, "refused_histogram"))
}

func TestSampleConfigStatesTheDefaultsAndEveryOption(t *testing.T) {
	c := config.NewConfig()
	require.NoError(t, c.LoadConfigData([]byte(sampleConfig), "sample.conf"))
	require.Len(t, c.Processors, 1)
	all := strings.ReplaceAll(strings.ReplaceAll(sampleConfig, "  # # ", "  # "), "  #   # ", "  #   ")
	for _, line := range []string{"  # ", "  #   "} {
		all = strings.ReplaceAll(all, "\n"+line, "\n  ")
	}
	all = strings.ReplaceAll(all, "\n  ## ", "\n  # ")
	kept := []string{}
	for line := range strings.Lines(all) {
		if text := strings.TrimSpace(line); strings.HasPrefix(text, "[") || strings.Contains(text, " = ") && !strings.HasPrefix(text, "#") {
			kept = append(kept, line)
		}
	}
	c = config.NewConfig()
	require.NoError(t, c.LoadConfigData([]byte(strings.Join(kept, "")), "all.conf"), strings.Join(kept, ""))
	a := New()
	for key, want := range map[string]any{
		"interface": a.Interface, "report_interval": "10s", "pair_timeout": "10s", "late_after": "5m", "max_flows": a.MaxFlows,
		"top_k": a.TopK, "sketch_window": "1m", "sketch_state": a.SketchState,
	} {
		text := fmt.Sprint(want)
		if s, ok := want.(string); ok {
			text = fmt.Sprintf("%q", s)
		}
		require.Contains(t, sampleConfig, "\n  # "+key+" = "+text+"\n")
	}
}

func TestReadmeShowsTheSampleConfig(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```toml @sample.conf\n"+sampleConfig+"```\n")
}

func TestMistakesNameKeyValueAndWhatIsAllowed(t *testing.T) {
	mapping := func(change func(*Mapping)) func(*AGP) {
		return func(a *AGP) {
			m := known[len(known)-1]
			change(&m)
			a.Mappings = []Mapping{m}
		}
	}
	for _, c := range []struct {
		change func(*AGP)
		want   []string
	}{
		{func(a *AGP) { a.PairTimeout = 0 }, []string{"pair_timeout = 0s", "100ms to 1h"}},
		{func(a *AGP) { a.ReportInterval = -1 }, []string{"report_interval = -1ns", "1s to 1h"}},
		{func(a *AGP) { a.LateAfter = config.Duration(25 * time.Hour) }, []string{"late_after = 25h", "1s to 24h"}},
		{func(a *AGP) { a.MaxFlows = 5 }, []string{"max_flows = 5", "1024 to 4194304"}},
		{func(a *AGP) { a.TopK = 0 }, []string{"top_k = 0", "1 to 999"}},
		{func(a *AGP) { a.SketchWindow = 1 }, []string{"sketch_window = 1ns", "1s to 24h"}},
		{func(a *AGP) { a.Interface = "" }, []string{`interface = ""`, "a name"}},
		{func(a *AGP) { a.Detect = map[string]float64{"port_scam": 1} }, []string{"port_scam", "port_scan"}},
		{func(a *AGP) { a.Detect = map[string]float64{"covert_timing": 1} }, []string{"detect.covert_timing = 1", "the times of packets"}},
		{func(a *AGP) { a.Models = []string{"missing.onnx"} }, []string{"models[0]", "missing.onnx"}},
		{func(a *AGP) { a.Models = []string{"../../../configs/models/app.onnx"} }, []string{"models[0]", `"head"`, "payload", `"histogram"`}},
		{mapping(func(m *Mapping) { m.Src = " " }), []string{`mapping[0].src = " "`}},
		{mapping(func(m *Mapping) { m.TimeFormat = "iso" }), []string{`mapping[0].time_format = "iso"`, "unix_ms", "rfc3339"}},
		{mapping(func(m *Mapping) { m.TimeFormat = "" }), []string{`mapping[0].time_format = ""`}},
		{mapping(func(m *Mapping) { m.ReplyBytes = "" }), []string{"mapping[0].reply_packets", "both"}},
	} {
		a := New()
		a.Log, a.Models = testutil.Logger{}, []string{"none"}
		c.change(a)
		err := a.Init()
		require.ErrorIs(t, err, ErrConfig, c.want)
		for _, w := range c.want {
			require.ErrorContains(t, err, w)
		}
	}
}

func TestDetectorsThatNeedPacketsAreKnownOnes(t *testing.T) {
	for name := range needPackets {
		require.Contains(t, options.ThresholdNames(), name)
	}
}
