package agp

import (
	"encoding/base64"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/influxdata/telegraf"

	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// DefaultSeriesLimit is how many combinations of app, class and protocol get
// series of their own.
const DefaultSeriesLimit = 800

// maxState keeps a line below the 32 KiB that telegraf's readers take for granted.
const maxState = 16 << 10

// other stands for every value beyond the series limit.
const other = "other"

// ConverterOptions of a Converter. Source and Pipeline are used until the engine
// has said what it runs.
type ConverterOptions struct {
	Interface   string
	Source      string
	Pipeline    string
	SeriesLimit int  // default DefaultSeriesLimit
	Histograms  bool // size_hist and delay_hist as text fields of agp_flow
}

// Converter turns telemetry into telegraf metrics. Safe for concurrent use.
type Converter struct {
	o ConverterOptions
	// points keeps the maps of flow records, which come in numbers. Accumulators
	// copy what they are given.
	points sync.Pool

	mu       sync.Mutex
	admitted map[labels]bool // sticky: a counter never moves between series
	lastNs   int64
	steered  map[steeringKey]uint64 // frames at the last call
}

// labels are the bounded tags of a flow.
type labels struct{ app, class, protocol string }

// NewConverter returns a converter.
func NewConverter(o ConverterOptions) *Converter {
	if o.SeriesLimit <= 0 {
		o.SeriesLimit = DefaultSeriesLimit
	}
	c := &Converter{o: o, admitted: make(map[labels]bool), steered: make(map[steeringKey]uint64)}
	c.points.New = func() any {
		return &point{fields: make(map[string]any, 64), tags: make(map[string]string, 4)}
	}
	return c
}

// admit returns l, or other in all parts if l is one too many.
func (c *Converter) admit(l labels) labels {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.admitted[l] {
		return l
	}
	if len(c.admitted) >= c.o.SeriesLimit {
		return labels{other, other, other}
	}
	c.admitted[l] = true
	return l
}

// unique returns t, or the next nanosecond that no event has used yet: events of
// one series and time would overwrite each other in InfluxDB.
func (c *Converter) unique(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastNs = max(c.lastNs+1, t.UnixNano())
	return time.Unix(0, c.lastNs)
}

// i63 is v as InfluxDB 1.x can store it.
func i63(v uint64) int64 { return int64(v & math.MaxInt64) }

func (l labels) tags(iface string) map[string]string {
	tags := make(map[string]string, 4)
	l.set(tags, iface)
	return tags
}

func (l labels) set(tags map[string]string, iface string) {
	tags["interface"], tags["protocol"] = iface, l.protocol
	if l.app != "" {
		tags["app"] = l.app
	}
	if l.class != "" {
		tags["class"] = l.class
	}
}

// Metrics adds the points of one snapshot: agp_traffic, agp_top, agp_sketch,
// agp_queue, agp_steering, agp_gpu and agp_engine.
func (c *Converter) Metrics(s *telemetry.Snapshot, st supervise.Status, now time.Time, acc telegraf.Accumulator) {
	c.traffic(s, now, acc)
	if st.Up || st.State == supervise.StateFinished || st.State == supervise.StateStopped {
		c.top(s, now, acc)
		c.sketches(s, now, acc)
	}
	c.queues(s, now, acc)
	c.steering(s, now, acc)
	if st.Up {
		gpus(s, now, acc)
	}
	c.engine(s, &st, now, acc)
}

// Summaries adds agp_top and agp_sketch alone: all that there is of flows which others have metered.
func (c *Converter) Summaries(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	c.top(s, now, acc)
	c.sketches(s, now, acc)
}

func (c *Converter) traffic(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	rest := telemetry.TrafficRow{}
	overflow := false
	for i := range s.Traffic {
		r := &s.Traffic[i]
		want := labels{r.App, r.Class, telemetry.ProtocolName(r.Protocol)}
		got := c.admit(want)
		if got != want {
			overflow = true
			rest.Add(r)
			continue
		}
		acc.AddCounter("agp_traffic", trafficFields(r), got.tags(c.o.Interface), now)
	}
	if overflow {
		acc.AddCounter("agp_traffic", trafficFields(&rest), labels{other, other, other}.tags(c.o.Interface), now)
	}
}

func trafficFields(r *telemetry.TrafficRow) map[string]any {
	return map[string]any{
		"flows": i63(r.Flows), "packets": i63(r.Packets), "bytes": i63(r.Bytes),
		"tcp_retransmits": i63(r.Retransmits), "tcp_out_of_order": i63(r.OutOfOrder), "tcp_zero_windows": i63(r.ZeroWindows),
		"connections_open": i63(r.ConnectionsOpen), "connections_failed": i63(r.ConnectionsFailed),
		"first_reply_ns_sum": i63(r.FirstReplySumNs), "first_reply_count": i63(r.FirstReplyCount),
		"tcp_handshake_ns_sum": i63(r.HandshakeSumNs), "tcp_handshake_count": i63(r.HandshakeCount),
	}
}

func (c *Converter) top(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	for i := range s.Top {
		r := &s.Top[i]
		fields := map[string]any{"value": i63(r.Value), "error": i63(r.Error)}
		text(fields, "src", r.Src)
		text(fields, "dst", r.Dst)
		text(fields, "protocol", r.Protocol)
		if r.SrcPort != 0 {
			fields["src_port"] = int64(r.SrcPort)
		}
		if r.DstPort != 0 {
			fields["dst_port"] = int64(r.DstPort)
		}
		rank := strconv.Itoa(int(r.Rank))
		if len(rank) < 3 {
			rank = "000"[len(rank):] + rank // sorts as text; lists have at most 999 entries
		}
		acc.AddGauge("agp_top", fields, map[string]string{"interface": c.o.Interface, "metric": r.Metric, "rank": rank}, now)
	}
}

func text(fields map[string]any, name, v string) {
	if v != "" {
		fields[name] = v
	}
}

// finite leaves out what no store accepts.
func finite(fields map[string]any, name string, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		fields[name] = v
	}
}

func (c *Converter) sketches(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	for i := range s.Sketches {
		r := &s.Sketches[i]
		fields := map[string]any{}
		if r.Kind != telemetry.SketchDistinct { // a distinct counter does not count what it is given
			fields["count"] = i63(r.Count)
		}
		if r.WindowNs > 0 {
			fields["window_ns"] = r.WindowNs
		}
		if r.Count > 0 {
			finite(fields, "error_bound", r.ErrorBound)
			switch r.Kind {
			case telemetry.SketchDistinct:
				finite(fields, "distinct", r.Estimate)
			case telemetry.SketchEntropy:
				finite(fields, "entropy_bits", r.Estimate)
			case telemetry.SketchQuantile:
				finite(fields, "p50", r.P50)
				finite(fields, "p90", r.P90)
				finite(fields, "p99", r.P99)
			}
		}
		if n := len(r.State); n > 0 && n <= maxState {
			fields["state"] = base64.StdEncoding.EncodeToString(r.State)
			fields["state_encoding"] = r.Encoding
		}
		if len(fields) == 0 {
			continue // a distinct counter of nothing
		}
		acc.AddGauge("agp_sketch", fields, map[string]string{"interface": c.o.Interface, "sketch": r.Name}, now)
	}
}

func (c *Converter) queues(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	for i := range s.Queues {
		q := &s.Queues[i]
		fields := map[string]any{"packets": i63(q.Packets), "bytes": i63(q.Bytes)}
		counts(fields, "drops", q.Drops)
		if q.Depth >= 0 {
			fields["depth"] = q.Depth
		}
		tags := map[string]string{"interface": c.o.Interface, "queue": strconv.Itoa(int(q.Queue))}
		acc.AddCounter("agp_queue", fields, tags, now)
	}
}

// gpus leaves out what a GPU does not say.
func gpus(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		fields := map[string]any{"lost": g.Lost}
		for name, v := range map[string]*uint64{
			"sm_clock_mhz": g.SMClockMHz, "memory_clock_mhz": g.MemoryClockMHz,
			"memory_used_bytes": g.MemoryUsedBytes, "memory_total_bytes": g.MemoryTotalBytes,
			"pcie_rx_bytes_per_second": g.PCIeRXBytesPerSecond, "pcie_tx_bytes_per_second": g.PCIeTXBytesPerSecond,
			"utilization_percent": g.UtilizationPercent, "temperature_celsius": g.TemperatureCelsius,
			"ecc_corrected": g.EccCorrected, "ecc_uncorrected": g.EccUncorrected, "xid_errors": g.XidErrors, "last_xid": g.LastXid,
			"processes": g.Processes, "engine_memory_bytes": g.EngineMemoryBytes, "engine_warps": g.EngineWarps, "engine_sms": g.EngineSMs,
		} {
			if v != nil {
				fields[name] = i63(*v)
			}
		}
		for name, v := range map[string]*uint64{"power_watts": g.PowerMilliwatts, "energy_joules": g.EnergyMillijoules} {
			if v != nil {
				fields[name] = float64(*v) / 1000
			}
		}
		if v := g.JoulesPerMillionPackets; v != nil {
			finite(fields, "joules_per_million_packets", *v)
		}
		acc.AddFields("agp_gpu", fields, map[string]string{"index": strconv.Itoa(int(g.Index)), "uuid": g.UUID, "name": g.Name}, now)
	}
}

// counts adds prefix (the sum) and prefix_reason for each reason.
func counts(fields map[string]any, prefix string, by map[string]uint64) {
	var sum uint64
	for reason, n := range by {
		sum += n
		fields[prefix+"_"+reason] = i63(n)
	}
	fields[prefix] = i63(sum)
}

func (c *Converter) engine(s *telemetry.Snapshot, st *supervise.Status, now time.Time, acc telegraf.Accumulator) {
	e := &s.Engine
	tags := map[string]string{"interface": c.o.Interface, "source": c.o.Source, "pipeline": c.o.Pipeline}
	if e.Source != "" {
		tags["source"] = e.Source
	}
	if e.Pipeline != "" {
		tags["pipeline"] = e.Pipeline
	}
	fields := map[string]any{
		"up": st.Up, "state": string(st.State), "restarts": i63(st.Restarts),
		"packets_lost": i63(st.PacketsLost), "flows_lost": i63(st.FlowsLost),
		"packets_seen": i63(e.PacketsSeen), "packets_recorded": i63(e.PacketsRecorded),
		"records": i63(e.Records), "alerts": i63(e.Alerts), "evictions": i63(e.Evictions), "inferences": i63(e.Inferences),
		"time_steps": i63(e.TimeSteps), "suppressed": i63(e.Suppressed), "cpu_seconds": e.CPUSeconds, "moved_buckets": i63(e.MovedBuckets),
		"skipped_fields": i63(e.SkippedFields + st.SkippedFields), "refused_events": i63(st.RefusedEvents),
		"logs_suppressed": i63(st.LogsSuppressed),
	}
	if e.QueueSkew > 0 {
		finite(fields, "queue_skew", e.QueueSkew)
	}
	counts(fields, "drops", e.Drops)
	counts(fields, "errors", e.Errors)
	if st.LastError != "" {
		fields["last_error"] = st.LastError
	}
	text(fields, "pipeline_reason", e.PipelineReason)
	if len(e.Models) > 0 {
		fields["models"] = strings.Join(e.Models, " ")
	}
	if st.Up && e.UptimeNs > 0 { // gauges of a process that has reported
		fields["uptime_ns"] = e.UptimeNs
		fields["rss_bytes"] = i63(e.RSSBytes)
		fields["state_bytes"] = i63(e.StateBytes)
	}
	if st.Up || st.State == supervise.StateFinished || st.State == supervise.StateStopped {
		fields["flows_active"] = i63(e.FlowsActive)
		fields["packets_active"] = i63(e.PacketsActive)
	}
	if e.PacketToScoreCount > 0 {
		finite(fields, "packet_to_score_p50_ns", e.PacketToScoreP50Ns)
		finite(fields, "packet_to_score_p90_ns", e.PacketToScoreP90Ns)
		finite(fields, "packet_to_score_p99_ns", e.PacketToScoreP99Ns)
	}
	acc.AddFields("agp_engine", fields, tags, now)
}

// Record adds r as agp_flow, at t or as soon after it as is unique.
func (c *Converter) Record(r *telemetry.Record, t time.Time, acc telegraf.Accumulator) {
	p := c.points.Get().(*point)
	p.labels, p.iface, p.histograms = labels{}, c.o.Interface, c.o.Histograms
	telemetry.Visit(r, p)
	c.admit(p.labels).set(p.tags, p.iface)
	acc.AddFields("agp_flow", p.fields, p.tags, c.unique(t))
	clear(p.fields)
	clear(p.tags)
	c.points.Put(p)
}

// Alert adds a as agp_alert, at t or as soon after it as is unique.
func (c *Converter) Alert(a *telemetry.Alert, t time.Time, acc telegraf.Accumulator) {
	p := point{fields: make(map[string]any, 16), iface: c.o.Interface, alert: true}
	telemetry.VisitAlert(a, &p)
	tags := map[string]string{"interface": p.iface, "kind": p.kind}
	if p.labels.class != "" {
		tags["class"] = p.labels.class
	}
	acc.AddFields("agp_alert", p.fields, tags, c.unique(t))
}

// point collects the readings of one record or alert: enumerations become tags,
// everything else fields.
type point struct {
	fields     map[string]any
	tags       map[string]string
	labels     labels
	iface      string
	kind       string
	alert      bool
	histograms bool
}

var _ telemetry.Visitor = (*point)(nil)

func (p *point) Uint(name string, v uint64)   { p.fields[name] = i63(v) }
func (p *point) Int(name string, v int64)     { p.fields[name] = v }
func (p *point) Float(name string, v float64) { p.fields[name] = v }
func (p *point) Bool(name string, v bool)     { p.fields[name] = v }

func (p *point) Addr(name string, v netip.Addr) { p.fields[name] = v.String() }

func (p *point) String(name, v string) {
	switch {
	case name == "interface":
		p.iface = v
	case name == "class":
		p.labels.class = v
	case name == "kind" && p.alert:
		p.kind = v
	case name == "app" && !p.alert:
		p.labels.app = v
	case name == "protocol" && !p.alert:
		p.labels.protocol = v
	default:
		p.fields[name] = v
	}
}

// Hist writes the bins up to the last that is not 0, separated by commas.
func (p *point) Hist(name string, bins []uint32) {
	if !p.histograms {
		return
	}
	n := len(bins)
	for n > 0 && bins[n-1] == 0 {
		n--
	}
	if n == 0 {
		return // one packet has no delay
	}
	buf := make([]byte, 0, 2*n)
	for i, b := range bins[:n] {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = strconv.AppendUint(buf, uint64(b), 10)
	}
	p.fields[name] = string(buf)
}
