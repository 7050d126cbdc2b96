package agp

import (
	"cmp"
	"encoding"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/influxdata/telegraf"

	"github.com/agp-net/telegraf-agp/agp/sketch"
)

// Measurements and fields of inputs.agp.
const (
	sketches = "agp_sketch"
	tops     = "agp_top"
)

// maxState bounds the state of a sketch, base64: inputs.agp sends 16 KiB at most.
const maxState = 32 << 10

// merge holds what has come since the last Reset.
type merge struct {
	cfg    *AGP
	groups map[string]*group
	series int // in all groups

	late, invalid, refused int64
}

// group is what is merged into one.
type group struct {
	tags     map[string]string
	hosts    map[string]struct{}
	sketches map[string]map[string]*state // by name of the sketch, and by source
	tops     map[string]map[string]*list  // by name of the list, and by source
}

// state is the latest reading of one sketch of one source.
type state struct {
	at       time.Time
	encoding string
	window   int64
	raw      string
}

// list is the latest list of one source.
type list struct {
	at   time.Time
	rows map[key]row
}

type row struct{ value, bound int64 }

// key is what a list counts.
type key struct {
	src, dst, protocol string
	srcPort, dstPort   int64
}

func newMerge(cfg *AGP) *merge { return &merge{cfg: cfg, groups: map[string]*group{}} }

// add takes a metric. Others than those of inputs.agp, and sketches without state, are none of its business.
func (m *merge) add(in telegraf.Metric) {
	switch in.Name() {
	case sketches:
		m.addSketch(in)
	case tops:
		m.addTop(in)
	}
}

// place finds where a metric belongs: its group, and its source by all other tags but those. It is nil
// if there is no room for a new group.
func (m *merge) place(in telegraf.Metric, those ...string) (g *group, source string) {
	var id, rest strings.Builder
	tags := map[string]string{}
	for _, t := range in.TagList() { // sorted
		to := &rest
		switch {
		case slices.Contains(those, t.Key):
			continue
		case slices.Contains(m.cfg.GroupBy, t.Key):
			tags[t.Key] = t.Value
			to = &id
		}
		to.WriteString(strconv.Quote(t.Key) + strconv.Quote(t.Value))
	}
	g = m.groups[id.String()]
	if g == nil && m.series < m.cfg.MaxSources {
		g = &group{tags: tags, hosts: map[string]struct{}{}, sketches: map[string]map[string]*state{}, tops: map[string]map[string]*list{}}
		m.groups[id.String()] = g
	}
	return g, rest.String()
}

// series returns what a group has of a source under a name, and makes it if there is room.
func series[T any](m *merge, g *group, of map[string]map[string]*T, name, source string) (v *T, isNew bool) {
	if g != nil && of[name][source] != nil {
		return of[name][source], false
	}
	if g == nil || m.series >= m.cfg.MaxSources {
		m.refused++
		return nil, false
	}
	m.series++
	g.hosts[source] = struct{}{}
	if of[name] == nil {
		of[name] = map[string]*T{}
	}
	v = new(T)
	of[name][source] = v
	return v, true
}

func (m *merge) addSketch(in telegraf.Metric) {
	raw, ok := text(in, "state")
	if !ok {
		return
	}
	name, _ := in.GetTag("sketch")
	encoding, _ := text(in, "state_encoding")
	if name == "" || len(raw) > maxState || newSketch(encoding) == nil {
		m.invalid++
		return
	}
	g, source := m.place(in, "sketch")
	if g == nil {
		m.refused++
		return
	}
	st, _ := series(m, g, g.sketches, name, source)
	switch {
	case st == nil:
		return
	case in.Time().Before(st.at):
		m.late++
		return
	}
	window, _ := number(in, "window_ns")
	*st = state{at: in.Time(), encoding: encoding, window: window, raw: raw}
}

func (m *merge) addTop(in telegraf.Metric) {
	name, _ := in.GetTag("metric")
	value, ok := number(in, "value")
	bound, bounded := number(in, "error")
	if name == "" || !ok || !bounded || value < 0 || bound < 0 {
		m.invalid++
		return
	}
	g, source := m.place(in, "metric", "rank")
	if g == nil {
		m.refused++
		return
	}
	l, isNew := series(m, g, g.tops, name, source)
	switch {
	case l == nil:
		return
	case isNew || in.Time().After(l.at): // a list changes as a whole
		l.at, l.rows = in.Time(), map[key]row{}
	case in.Time().Before(l.at):
		m.late++
		return
	}
	var k key
	k.src, _ = text(in, "src")
	k.dst, _ = text(in, "dst")
	k.protocol, _ = text(in, "protocol")
	k.srcPort, _ = number(in, "src_port")
	k.dstPort, _ = number(in, "dst_port")
	if _, known := l.rows[k]; !known && len(l.rows) >= maxRows {
		m.refused++
		return
	}
	l.rows[k] = row{value, bound}
}

// maxRows is the longest list of inputs.agp.
const maxRows = 999

func text(in telegraf.Metric, name string) (string, bool) {
	v, _ := in.GetField(name)
	s, ok := v.(string)
	return s, ok
}

func number(in telegraf.Metric, name string) (int64, bool) {
	v, _ := in.GetField(name)
	n, ok := v.(int64)
	return n, ok
}

// merged is a sketch that others are added to.
type merged interface {
	encoding.BinaryMarshaler
	// add merges a serialised sketch.
	add(raw []byte) error
	fields(f map[string]any)
}

// newSketch returns an empty one, nil if the encoding is not known.
func newSketch(encoding string) merged {
	switch encoding {
	case "hll_datasketches":
		return &distinct{}
	case "ddsketch_proto":
		return &quantiles{sketch.NewQuantiles()}
	}
	return nil
}

const lgK = 12

var errCoarse = errors.New("a coarse sketch")

type distinct struct{ *sketch.HLL }

func (d *distinct) add(raw []byte) error {
	h := &sketch.HLL{}
	if err := h.UnmarshalBinary(raw); err != nil {
		return err
	}
	if h.LgK() < lgK { // a union is as coarse as the coarsest
		return fmt.Errorf("%w: 2^%d registers, those of inputs.agp have 2^%d", errCoarse, h.LgK(), lgK)
	}
	if d.HLL == nil {
		d.HLL = h
		return nil
	}
	return d.Merge(h)
}

func (d *distinct) fields(f map[string]any) {
	if d.HLL == nil || d.Empty() {
		return
	}
	f["distinct"], f["error_bound"] = d.Estimate(), d.RSE()
}

type quantiles struct{ *sketch.Quantiles }

func (q *quantiles) add(raw []byte) error {
	o := sketch.NewQuantiles()
	if err := o.UnmarshalBinary(raw); err != nil {
		return err
	}
	return q.Merge(o)
}

func (q *quantiles) fields(f map[string]any) {
	n := q.Count()
	f["count"] = int64(min(n, 1<<62))
	if n == 0 {
		return
	}
	for name, p := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99} {
		if v, err := q.Quantile(p); err == nil {
			f[name] = v
		}
	}
	f["error_bound"] = sketch.QuantilesAccuracy
}

// push adds what is merged to acc.
func (m *merge) push(acc telegraf.Accumulator) {
	now := time.Now()
	for _, id := range sorted(m.groups) {
		g := m.groups[id]
		for _, name := range sorted(g.sketches) {
			m.pushSketch(acc, now, g, name)
		}
		for _, name := range sorted(g.tops) {
			m.pushTop(acc, now, g, name)
		}
		acc.AddGauge("agp_fleet", map[string]any{"sources": int64(len(g.hosts))}, g.tags, now)
	}
	acc.AddFields("agp_fleet_input", map[string]any{"series": int64(m.series), "late": m.late, "invalid": m.invalid, "refused": m.refused}, nil, now)
}

func (m *merge) pushSketch(acc telegraf.Accumulator, now time.Time, g *group, name string) {
	of := g.sketches[name]
	encoding := usual(of)
	all := newSketch(encoding)
	n, window, same := 0, int64(0), true
	for _, source := range sorted(of) { // in an order, so that estimates do not depend on that of a map
		s := of[source]
		raw, err := base64.StdEncoding.DecodeString(s.raw)
		if err == nil && s.encoding != encoding {
			err = fmt.Errorf("%w: %s and %s", errMixed, encoding, s.encoding)
		}
		if err == nil {
			err = all.add(raw)
		}
		if err != nil {
			m.invalid++
			m.cfg.Log.Warnf("Sketch %q of %s is left out: %v", name, source, err)
			continue
		}
		if n == 0 {
			window = s.window
		}
		same = same && s.window == window
		n++
	}
	if n == 0 {
		return
	}
	f := map[string]any{"sources": int64(n)}
	all.fields(f)
	if same && window > 0 {
		f["window_ns"] = window
	}
	if m.cfg.SketchState {
		if raw, err := all.MarshalBinary(); err == nil && base64.StdEncoding.EncodedLen(len(raw)) <= maxState {
			f["state"], f["state_encoding"] = base64.StdEncoding.EncodeToString(raw), encoding
		}
	}
	acc.AddGauge("agp_fleet_sketch", f, with(g.tags, "sketch", name), now)
}

// usual is the encoding that most have, so that one who differs spoils nothing.
func usual(of map[string]*state) (encoding string) {
	count := map[string]int{}
	for _, s := range of {
		count[s.encoding]++
	}
	for _, e := range sorted(count) {
		if count[e] > count[encoding] {
			encoding = e
		}
	}
	return encoding
}

var errMixed = errors.New("sketches of two kinds with one name")

// sum is a key in all lists.
type sum struct {
	key
	value, bound int64
	sources      int64
}

// pushTop adds lists by key. A host whose list does not show a key may have had as much of it as of its
// last one.
func (m *merge) pushTop(acc telegraf.Accumulator, now time.Time, g *group, name string) {
	sums := map[key]*sum{}
	hidden := int64(0)
	for _, l := range g.tops[name] {
		least := int64(1<<63 - 1)
		for _, r := range l.rows {
			least = min(least, plus(r.value, r.bound))
		}
		hidden = plus(hidden, least) // a list has at least one row
		for k, r := range l.rows {
			s := sums[k]
			if s == nil {
				s = &sum{key: k}
				sums[k] = s
			}
			s.value, s.bound, s.sources = plus(s.value, r.value), plus(s.bound, r.bound-least), s.sources+1
		}
	}
	all := make([]*sum, 0, len(sums))
	for _, s := range sums {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *sum) int {
		return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst), cmp.Compare(a.protocol, b.protocol),
			cmp.Compare(a.srcPort, b.srcPort), cmp.Compare(a.dstPort, b.dstPort))
	})
	for i, s := range all[:min(len(all), m.cfg.TopK)] {
		f := map[string]any{"value": s.value, "error": max(0, plus(hidden, s.bound)), "sources": s.sources}
		for name, v := range map[string]string{"src": s.src, "dst": s.dst, "protocol": s.protocol} {
			if v != "" {
				f[name] = v
			}
		}
		for name, v := range map[string]int64{"src_port": s.srcPort, "dst_port": s.dstPort} {
			if v != 0 {
				f[name] = v
			}
		}
		acc.AddGauge("agp_fleet_top", f, with(with(g.tags, "metric", name), "rank", fmt.Sprintf("%03d", i+1)), now)
	}
}

// plus saturates: what is added comes from elsewhere.
func plus(a, b int64) int64 {
	if b > 0 && a > 1<<63-1-b {
		return 1<<63 - 1
	}
	return a + b
}

func with(tags map[string]string, name, value string) map[string]string {
	out := map[string]string{name: value}
	for k, v := range tags {
		out[k] = v
	}
	return out
}

func sorted[T any](m map[string]T) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
