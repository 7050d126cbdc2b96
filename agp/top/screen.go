package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

const (
	past      = 240 // rates that a sparkline remembers
	maxNames  = 100 // names that have a sparkline
	nameWidth = 18
	rateWidth = 11
)

// Screen is what is known of an engine. Its zero value has seen nothing.
type Screen struct {
	view    *control.View
	packets history // per second
	bits    history
	classes rates // bits per second
	apps    rates
	metric  int    // of the top list that is shown
	trouble string // why there is nothing new, "" if there is
	last    totals
	started bool // last is filled
	paused  bool
}

// totals are the counters of the view before.
type totals struct {
	at             time.Time
	packets, bytes uint64
	classes, apps  map[string]uint64
}

// history is the recent past of one rate, the newest last.
type history []float64

func (h *history) add(v float64) {
	if len(*h) == past {
		copy(*h, (*h)[1:])
		*h = (*h)[:past-1]
	}
	*h = append(*h, v)
}

func (h history) now() float64 {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1]
}

// rates by name.
type rates map[string]*history

// add takes the counters of all names now and before. A name that is new has been silent for
// as many rates as others had before, so that what stands below each other is of one time.
func (r *rates) add(now, before map[string]uint64, seconds float64, silent int) {
	if *r == nil {
		*r = rates{}
	}
	for name := range now {
		if (*r)[name] == nil && len(*r) < maxNames {
			h := make(history, silent, past)
			(*r)[name] = &h
		}
	}
	for name, h := range *r {
		h.add(8 * float64(now[name]-min(now[name], before[name])) / seconds)
	}
}

// Update takes in a view.
func (s *Screen) Update(v *control.View) {
	s.trouble = ""
	now := totals{at: v.Time, packets: v.Snapshot.Engine.PacketsSeen, classes: map[string]uint64{}, apps: map[string]uint64{}}
	for i := range v.Snapshot.Queues {
		now.bytes += v.Snapshot.Queues[i].Bytes
	}
	for i := range v.Snapshot.Traffic {
		r := &v.Snapshot.Traffic[i]
		now.classes[cmp.Or(r.Class, "(none)")] += r.Bytes
		now.apps[cmp.Or(r.App, "(none)")] += r.Bytes
	}
	if seconds := now.at.Sub(s.last.at).Seconds(); s.started && seconds > 0 {
		s.packets.add(float64(now.packets-min(now.packets, s.last.packets)) / seconds)
		s.bits.add(8 * float64(now.bytes-min(now.bytes, s.last.bytes)) / seconds)
		silent := len(s.packets) - 1
		s.classes.add(now.classes, s.last.classes, seconds, silent)
		s.apps.add(now.apps, s.last.apps, seconds, silent)
	}
	s.last, s.started = now, true
	if !s.paused {
		s.view = v
	}
}

// Lost says why no views come; what was seen stays.
func (s *Screen) Lost(err error) { s.trouble = err.Error() }

// NextMetric shows the next list of top talkers.
func (s *Screen) NextMetric() { s.metric++ }

// Pause keeps the picture until it is called again.
func (s *Screen) Pause() { s.paused = !s.paused }

var (
	bold  = lipgloss.NewStyle().Bold(true)
	title = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.BrightCyan)
	faint = lipgloss.NewStyle().Foreground(lipgloss.BrightBlack)
	spark = lipgloss.NewStyle().Foreground(lipgloss.Green)
	alarm = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.BrightRed)
)

// section is a title and as many of its lines as there is room for.
type section struct {
	title string
	lines []string
}

// Render returns at most height lines of at most width cells each.
func (s *Screen) Render(width, height int) string {
	if width <= 0 || height <= 0 {
		return ""
	}
	lines := s.head(width)
	if s.view != nil && height > len(lines) {
		room := height - len(lines)
		if width >= 110 {
			left := (width - 2) / 2
			lines = append(lines, beside(
				fit([]section{s.rated("BEHAVIOUR", s.classes, left), s.rated("APPLICATIONS", s.apps, left), s.queues(left)}, room),
				fit([]section{s.top(width - left - 2), s.alerts(), s.latency(), s.gpus()}, room), left)...)
		} else {
			lines = append(lines, fit([]section{
				s.rated("BEHAVIOUR", s.classes, width), s.rated("APPLICATIONS", s.apps, width), s.top(width), s.alerts(), s.queues(width), s.latency(), s.gpus(),
			}, room)...)
		}
	}
	lines = lines[:min(len(lines), height)]
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], width, "")
	}
	return strings.Join(lines, "\n")
}

// fit gives each section a title and then one line after the other, as long as there is room.
func fit(sections []section, room int) (lines []string) {
	given := make([]int, len(sections))
	for more := true; more; {
		more = false
		for i := range sections {
			cost := 1
			if given[i] == 0 {
				cost = 2 // with the title
			}
			if given[i] < len(sections[i].lines) && room >= cost {
				given[i]++
				room -= cost
				more = true
			}
		}
	}
	for i := range sections {
		if given[i] > 0 {
			lines = append(append(lines, title.Render(sections[i].title)), sections[i].lines[:given[i]]...)
		}
	}
	return lines
}

// beside joins two columns, of which the left one has this width.
func beside(left, right []string, width int) []string {
	lines := make([]string, max(len(left), len(right)))
	for i := range lines {
		var l, r string
		if i < len(left) {
			l = ansi.Truncate(left[i], width, "")
		}
		if i < len(right) {
			r = right[i]
		}
		lines[i] = l + strings.Repeat(" ", width-ansi.StringWidth(l)+2) + r
	}
	return lines
}

// clean is a name from outside, padded or cut to a width.
func clean(name string, width int) string {
	name = ansi.Truncate(telemetry.Printable(name), width, "~")
	return name + strings.Repeat(" ", width-ansi.StringWidth(name))
}

var prefixes = []string{"", "k", "M", "G", "T", "P"}

func scaled(v float64, unit string) string {
	i := 0
	for ; v >= 999.5 && i < len(prefixes)-1; i++ {
		v /= 1000
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	if v < 99.95 && (i > 0 || v != float64(int64(v))) {
		text = strconv.FormatFloat(v, 'f', 1, 64)
	}
	return text + " " + prefixes[i] + unit
}

var blocks = []rune(" ▁▂▃▄▅▆▇█")

// sparkline draws the end of a history; its highest point is a full block.
func sparkline(h history, width int) string {
	h = h[max(0, len(h)-max(width, 0)):]
	highest := 0.0
	for _, v := range h {
		highest = max(highest, v)
	}
	line := make([]rune, len(h))
	for i, v := range h {
		n := 0
		if v > 0 {
			n = max(1, int(v/highest*float64(len(blocks)-1)+0.5)) // what exists is seen
		}
		line[i] = blocks[n]
	}
	return spark.Render(string(line))
}

func (s *Screen) head(width int) []string {
	v := s.view
	if v == nil {
		return []string{title.Render("telegraf-agp top") + "  " + cmp.Or(telemetry.Printable(s.trouble), "waiting for the engine")}
	}
	e := &v.Snapshot.Engine
	state := bold.Render(telemetry.Printable(v.State))
	if v.State != "running" && v.State != "finished" {
		state = alarm.Render(telemetry.Printable(v.State))
	}
	first := fmt.Sprintf("%s  %s  %s  %s", title.Render("telegraf-agp top"), bold.Render(telemetry.Printable(v.Interface)), state, time.Duration(e.UptimeNs).Round(time.Second))
	if s.paused {
		first += "  " + alarm.Render("paused")
	}
	lines := []string{
		first,
		fmt.Sprintf("%s %s, models %s, %d restarts, cpu %.1f s, memory %s", telemetry.Printable(e.Source), telemetry.Printable(e.Pipeline),
			telemetry.Printable(cmp.Or(strings.Join(e.Models, " "), "none")), v.Restarts, e.CPUSeconds, scaled(float64(e.RSSBytes), "B")),
	}
	if s.trouble != "" {
		lines = append(lines, alarm.Render(telemetry.Printable(s.trouble)))
	}
	if v.LastError != "" {
		lines = append(lines, alarm.Render("last failure: "+telemetry.Printable(v.LastError)))
	}
	rate := func(name string, h history, unit string) string {
		text := "-"
		if len(h) > 0 {
			text = scaled(h.now(), unit)
		}
		return fmt.Sprintf("%-*s %*s %s", nameWidth, name, rateWidth, text, sparkline(h, width-nameWidth-rateWidth-2))
	}
	return append(lines,
		rate("packets", s.packets, "pkt/s"), rate("traffic", s.bits, "bit/s"),
		fmt.Sprintf("%d packets, %d records, %d flows active, %d alerts", e.PacketsSeen, e.Records, e.FlowsActive, e.Alerts))
}

// rated is a list of names by their present rate.
func (s *Screen) rated(name string, r rates, width int) section {
	sec := section{title: name}
	names := slices.Sorted(maps.Keys(r))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(sum(*r[b]), sum(*r[a])) })
	for _, n := range names {
		sec.lines = append(sec.lines, fmt.Sprintf("%s %*s %s", clean(n, nameWidth), rateWidth, scaled(r[n].now(), "bit/s"), sparkline(*r[n], width-nameWidth-rateWidth-2)))
	}
	return sec
}

func sum(h history) (total float64) {
	for _, v := range h {
		total += v
	}
	return total
}

func (s *Screen) top(width int) section {
	var metrics []string
	for i := range s.view.Snapshot.Top {
		if m := s.view.Snapshot.Top[i].Metric; !slices.Contains(metrics, m) {
			metrics = append(metrics, m)
		}
	}
	if len(metrics) == 0 {
		return section{}
	}
	metric := metrics[s.metric%len(metrics)]
	sec := section{title: "TOP " + telemetry.Printable(metric)}
	for i := range s.view.Snapshot.Top {
		r := &s.view.Snapshot.Top[i]
		if r.Metric != metric {
			continue
		}
		unit := ""
		if strings.HasSuffix(metric, "_bytes") {
			unit = "B"
		}
		sec.lines = append(sec.lines, fmt.Sprintf("%2d %s %*s", r.Rank, clean(r.Who(), max(10, width-rateWidth-4)), rateWidth, strings.TrimSpace(scaled(float64(r.Value), unit))))
	}
	return sec
}

func (s *Screen) alerts() section {
	sec := section{title: "ALERTS"}
	for i := len(s.view.Alerts) - 1; i >= 0; i-- {
		a := &s.view.Alerts[i]
		sec.lines = append(sec.lines, fmt.Sprintf("%s %s %s -> %s, %d", time.Unix(0, a.TimeNs).UTC().Format("15:04:05"),
			alarm.Render(clean(strings.TrimSpace(a.Kind+" "+a.Class), nameWidth)),
			telemetry.Printable(telemetry.Endpoint(a.Src, a.SrcPort)), telemetry.Printable(telemetry.Endpoint(a.Dst, a.DstPort)), a.Count))
	}
	if len(sec.lines) == 0 {
		sec.lines = []string{faint.Render("none")}
	}
	return sec
}

// queues are drops by reason and then the queues that have dropped or wait most.
func (s *Screen) queues(width int) section {
	sec := section{title: "QUEUES AND DROPS"}
	e := &s.view.Snapshot.Engine
	var depth int64
	for i := range s.view.Snapshot.Queues {
		depth += max(0, s.view.Snapshot.Queues[i].Depth)
	}
	sec.lines = append(sec.lines, fmt.Sprintf("%d queues, %d waiting, %d lost with engines, %d records and alerts suppressed", len(s.view.Snapshot.Queues), depth, s.view.PacketsLost, e.Suppressed))
	for _, counts := range []map[string]uint64{e.Drops, e.Errors} {
		names := slices.Sorted(maps.Keys(counts))
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
		for _, n := range names {
			sec.lines = append(sec.lines, fmt.Sprintf("%s %*d", clean(n, min(2*nameWidth, max(1, width-rateWidth-1))), rateWidth, counts[n]))
		}
	}
	return sec
}

func (s *Screen) latency() section {
	sec := section{title: "LATENCY"}
	e := &s.view.Snapshot.Engine
	add := func(name string, p50, p90, p99 float64) {
		d := func(ns float64) time.Duration { return roundTime(time.Duration(ns)) }
		sec.lines = append(sec.lines, fmt.Sprintf("%s p50 %s, p90 %s, p99 %s", clean(name, nameWidth), d(p50), d(p90), d(p99)))
	}
	if e.PacketToScoreCount > 0 {
		add("packet to score", e.PacketToScoreP50Ns, e.PacketToScoreP90Ns, e.PacketToScoreP99Ns)
	}
	for i := range s.view.Snapshot.Sketches {
		r := &s.view.Snapshot.Sketches[i]
		if r.Kind == telemetry.SketchQuantile && r.Count > 0 && strings.HasSuffix(r.Name, "_ns") {
			add(strings.ReplaceAll(strings.TrimSuffix(r.Name, "_ns"), "_", " "), r.P50, r.P90, r.P99)
		}
	}
	return sec
}

// roundTime leaves three digits.
func roundTime(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

func (s *Screen) gpus() section {
	sec := section{title: "GPU"}
	for i := range s.view.Snapshot.GPUs {
		g := &s.view.Snapshot.GPUs[i]
		line := fmt.Sprintf("%d %s", g.Index, telemetry.Printable(g.Name))
		if g.Lost {
			line += " " + alarm.Render("lost")
		}
		reading := func(p *uint64, format string, unit float64) {
			if p != nil { // what the GPU does not have is left out
				line += fmt.Sprintf(format, float64(*p)/unit)
			}
		}
		reading(g.UtilizationPercent, ", %.0f %% busy", 1)
		reading(g.PowerMilliwatts, ", %.0f W", 1e3)
		reading(g.TemperatureCelsius, ", %.0f C", 1)
		reading(g.MemoryUsedBytes, ", %.1f GB used", 1e9)
		reading(g.EngineSMs, ", %.0f SMs", 1)
		reading(g.EngineWarps, ", %.0f warps", 1)
		if g.JoulesPerMillionPackets != nil {
			line += fmt.Sprintf(", %.2f J per million packets", *g.JoulesPerMillionPackets)
		}
		sec.lines = append(sec.lines, line)
	}
	return sec
}
