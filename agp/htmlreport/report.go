package htmlreport

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// What is shown of what can be many.
const (
	maxFiles   = 20
	maxAlerts  = 200
	maxKinds   = 64
	maxTraffic = 60
	maxTop     = 20 // entries of a list
	maxReasons = 64
)

// unscored is the series of records that no model has spoken about.
const unscored = "(none)"

// Builder collects. Its zero value is ready.
type Builder struct {
	class, app, protocol timeline
	size                 [telemetry.SizeBins]uint64
	delay                [telemetry.DelayBins]uint64
	alerts               []telemetry.Alert
	kinds                map[string]uint64
	any                  bool
	first, last          int64
}

// Record implements pipeline.Sink.
func (b *Builder) Record(r *telemetry.Record) {
	class, app := unscored, unscored
	for i := range r.Outputs {
		switch o := &r.Outputs[i]; o.Field {
		case "class":
			class = o.Label
		case "app":
			app = o.Label
		}
	}
	bytes := r.Dir[telemetry.Fwd].WireBytes + r.Dir[telemetry.Rev].WireBytes
	b.class.add(class, r.StartNs, r.EndNs, bytes)
	b.app.add(app, r.StartNs, r.EndNs, bytes)
	b.protocol.add(telemetry.ProtocolName(r.Protocol), r.StartNs, r.EndNs, bytes)
	for i, n := range r.SizeHist {
		b.size[i] += uint64(n)
	}
	for i, n := range r.DelayHist {
		b.delay[i] += uint64(n)
	}
	if !b.any {
		b.any, b.first, b.last = true, r.StartNs, r.EndNs
	}
	b.first, b.last = min(b.first, r.StartNs), max(b.last, r.EndNs)
}

// Alert implements pipeline.Sink.
func (b *Builder) Alert(a *telemetry.Alert) {
	if len(b.alerts) < maxAlerts {
		b.alerts = append(b.alerts, *a)
	}
	if b.kinds == nil {
		b.kinds = map[string]uint64{}
	}
	kind := a.Kind
	if _, known := b.kinds[kind]; !known && len(b.kinds) >= maxKinds {
		kind = other
	}
	b.kinds[kind]++
}

// Run says what was run.
type Run struct {
	Files   []string
	Version string
	Note    string // what is wrong with the run, "" if nothing is
}

// Write writes the page. s is the last snapshot of the pipeline, seconds what the run took.
func (b *Builder) Write(w io.Writer, run Run, s *telemetry.Snapshot, seconds float64) error {
	return page.Execute(w, b.view(run, s, seconds))
}

// count is a number with its exact value for programs and its text for people.
type count struct {
	Name  string
	Value uint64
	Text  string
}

func number(name string, v uint64) count { return count{name, v, thousands(v)} }

func volume(name string, v uint64) count { return count{name, v, scaled(float64(v), "B")} }

// scaled is a number with three digits and a decimal prefix.
func scaled(v float64, unit string) string {
	for _, prefix := range []string{"", "k", "M", "G", "T", "P"} {
		if v < 999.5 {
			return strconv.FormatFloat(v, 'g', 3, 64) + " " + prefix + unit
		}
		v /= 1000
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + " E" + unit
}

func thousands(v uint64) string {
	s := strconv.FormatUint(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

type alertRow struct {
	Time, Kind, Class, Src, Dst, Protocol string
	Count                                 count
}

type topList struct {
	Metric string
	Rows   []topRow
}

type topRow struct {
	Rank  uint16
	Who   string
	Value count
}

type trafficRow struct {
	App, Class, Protocol  string
	Flows, Packets, Bytes count
}

// view is what the page shows.
type view struct {
	Run           Run
	MoreFiles     int
	Engine        string
	Why, Models   string
	From, To      string
	Totals        []count
	Drops, Errors []count
	Plots         []*plot
	Histograms    []*histogram
	Traffic       []trafficRow
	MoreTraffic   *trafficRow
	Top           []topList
	Kinds         []count
	Alerts        []alertRow
	MoreAlerts    uint64
	Seconds       string
}

func (b *Builder) view(run Run, s *telemetry.Snapshot, seconds float64) *view {
	sum := telemetry.Summarize(s, seconds)
	v := &view{
		Engine: telemetry.Printable(s.Engine.Pipeline), Why: telemetry.Printable(s.Engine.PipelineReason), Models: telemetry.Printable(strings.Join(s.Engine.Models, ", ")),
		Seconds: strconv.FormatFloat(seconds, 'f', 2, 64),
		Drops:   reasons(sum.Drops), Errors: reasons(sum.Errors),
	}
	v.Run = Run{Version: telemetry.Printable(run.Version), Note: telemetry.Printable(run.Note)}
	for _, f := range run.Files[:min(len(run.Files), maxFiles)] {
		v.Run.Files = append(v.Run.Files, telemetry.Printable(f))
	}
	v.MoreFiles = len(run.Files) - len(v.Run.Files)
	var dropped uint64
	for _, n := range sum.Drops {
		dropped += n
	}
	v.Totals = []count{
		number("packets_seen", sum.PacketsSeen), number("packets_recorded", sum.PacketsRecorded), number("packets_dropped", dropped),
		number("records", sum.Records), number("alerts", sum.Alerts),
	}
	if b.any {
		v.From, v.To = moment(b.first), moment(b.last)
	}
	v.Plots = []*plot{
		b.class.plot("class", "Behaviour over time"), b.app.plot("app", "Applications over time"), b.protocol.plot("protocol", "IP protocols over time"),
	}
	v.Histograms = []*histogram{
		newHistogram("size", "Packet sizes", "bytes of L3 length", b.size[:], func(i int) string { return strconv.Itoa(16 * i) }),
		newHistogram("delay", "Delay between packets of a flow", "time", b.delay[:], func(i int) string { return delayText(flow.DelayEdge(i)) }),
	}
	v.traffic(s.Traffic)
	v.top(s.Top)
	v.alerts(b, sum.Alerts)
	return v
}

func moment(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02 15:04:05.000 UTC") }

// delayText is a short time for an axis.
func delayText(ns int64) string {
	d := time.Duration(ns)
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 100*unit {
			return d.Round(unit).String()
		}
	}
	return d.String()
}

// reasons are a map by falling count. There are as many as the program has names for.
func reasons(m map[string]uint64) []count {
	var list []count
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, number(telemetry.Printable(name), m[name]))
	}
	slices.SortStableFunc(list, func(a, b count) int { return cmp.Compare(b.Value, a.Value) })
	if len(list) > maxReasons {
		rest := number(other, 0)
		for _, c := range list[maxReasons-1:] {
			rest = number(other, rest.Value+c.Value)
		}
		list = append(list[:maxReasons-1], rest)
	}
	return list
}

func (v *view) traffic(rows []telemetry.TrafficRow) {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b telemetry.TrafficRow) int { return cmp.Compare(b.Bytes, a.Bytes) })
	show := func(r *telemetry.TrafficRow) trafficRow {
		return trafficRow{
			telemetry.Printable(r.App), telemetry.Printable(r.Class), telemetry.ProtocolName(r.Protocol),
			number("flows", r.Flows), number("packets", r.Packets), volume("bytes", r.Bytes),
		}
	}
	var rest telemetry.TrafficRow
	for i := range rows {
		if i < maxTraffic {
			v.Traffic = append(v.Traffic, show(&rows[i]))
			continue
		}
		rest.Add(&rows[i])
	}
	if len(rows) > maxTraffic {
		more := show(&rest)
		more.App, more.Protocol = fmt.Sprintf("%d more rows", len(rows)-maxTraffic), ""
		v.MoreTraffic = &more
	}
}

func (v *view) top(rows []telemetry.TopRow) {
	for i := range rows {
		r := &rows[i]
		metric := telemetry.Printable(r.Metric)
		if n := len(v.Top); n == 0 || v.Top[n-1].Metric != metric {
			v.Top = append(v.Top, topList{Metric: metric})
		}
		list := &v.Top[len(v.Top)-1]
		if len(list.Rows) >= maxTop {
			continue
		}
		value := number("top", r.Value)
		if strings.HasSuffix(r.Metric, "_bytes") {
			value = volume("top", r.Value)
		}
		list.Rows = append(list.Rows, topRow{r.Rank, telemetry.Printable(r.Who()), value})
	}
}

func (v *view) alerts(b *Builder, total uint64) {
	for _, kind := range slices.Sorted(maps.Keys(b.kinds)) {
		v.Kinds = append(v.Kinds, number(telemetry.Printable(kind), b.kinds[kind]))
	}
	for i := range b.alerts {
		a := &b.alerts[i]
		v.Alerts = append(v.Alerts, alertRow{
			Time: moment(a.TimeNs), Kind: telemetry.Printable(a.Kind), Class: telemetry.Printable(a.Class),
			Src: telemetry.Printable(telemetry.Endpoint(a.Src, a.SrcPort)), Dst: telemetry.Printable(telemetry.Endpoint(a.Dst, a.DstPort)),
			Protocol: telemetry.ProtocolName(a.Protocol), Count: number("count", a.Count),
		})
	}
	v.MoreAlerts = total - min(total, uint64(len(v.Alerts)))
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))
