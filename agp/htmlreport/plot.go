package htmlreport

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Of a plot, in units of its view box.
const (
	plotLeft, plotTop     = 4.0, 26.0
	plotWidth, plotHeight = 712.0, 180.0
)

// colours is how many series a plot tells apart; the last is for all others.
const colours = 9

// plot is a timeline as stacked bars.
type plot struct {
	ID, Title string
	Series    []series
	X         []tick
	Y         []tick
	Point     string // time of one point
}

type series struct {
	Colour int
	Name   string
	Bytes  count
	Path   string
}

type tick struct {
	At   string
	Text string
}

func coordinate(v float64) string { return fmt.Sprintf("%.1f", v) }

// plot draws the largest series and the sum of the others.
func (t *timeline) plot(id, title string) *plot {
	p := &plot{ID: id, Title: title}
	type whole struct {
		name  string
		sum   uint64
		bytes map[int64]uint64
	}
	var all []whole
	for _, name := range slices.Sorted(maps.Keys(t.series)) {
		w := whole{name: name, bytes: t.series[name]}
		for _, n := range w.bytes {
			w.sum += n
		}
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b whole) int { return cmp.Compare(b.sum, a.sum) })
	if len(all) > colours {
		rest := whole{name: fmt.Sprintf("%d others", len(all)-colours+1), bytes: map[int64]uint64{}}
		for _, w := range all[colours-1:] {
			rest.sum += w.sum
			for point, n := range w.bytes {
				rest.bytes[point] += n
			}
		}
		all = append(all[:colours-1], rest)
	}
	if len(all) == 0 {
		return p
	}
	var highest uint64
	for point := t.low; point <= t.high; point++ {
		var n uint64
		for _, w := range all {
			n += w.bytes[point]
		}
		highest = max(highest, n)
	}
	step := plotWidth / float64(t.high-t.low+1)
	height := func(n uint64) float64 { return plotHeight * float64(n) / float64(max(highest, 1)) }
	below := map[int64]uint64{}
	for i, w := range all {
		var path strings.Builder
		for point := t.low; point <= t.high; point++ {
			n := w.bytes[point]
			if n == 0 {
				continue
			}
			bottom := plotTop + plotHeight - height(below[point])
			below[point] += n
			top := plotTop + plotHeight - height(below[point])
			fmt.Fprintf(&path, "M%.1f %.1fh%.2fV%.1fh-%.2fz", plotLeft+float64(point-t.low)*step, bottom, step, top, step)
		}
		p.Series = append(p.Series, series{i, telemetry.Printable(w.name), volume("bytes", w.sum), path.String()})
	}
	seconds := float64(t.width) / 1e9
	for _, share := range []float64{0, 0.5, 1} {
		p.Y = append(p.Y, tick{coordinate(plotTop + plotHeight*(1-share)), scaled(share*float64(highest)*8/seconds, "bit/s")})
		// The end of the last point, not its start.
		at := float64(t.low) + share*float64(t.high-t.low+1)
		p.X = append(p.X, tick{coordinate(plotLeft + plotWidth*share), time.Unix(0, int64(at*float64(t.width))).UTC().Format(t.format())})
	}
	p.Point = time.Duration(t.width).String()
	return p
}

// format is how exact the times of the axis have to be.
func (t *timeline) format() string {
	switch span := (t.high - t.low + 1) * t.width; {
	case span > int64(48*time.Hour):
		return "2006-01-02"
	case span > int64(10*time.Minute):
		return "01-02 15:04"
	case span > int64(10*time.Second):
		return "15:04:05"
	}
	return "15:04:05.000"
}

// histogram is a plot of counts by bin.
type histogram struct {
	ID, Title, Unit string
	Total           count
	Bars            []bar
	X               []tick
	Y               []tick
}

type bar struct {
	Bin           int
	Count         uint64
	X, Y, W, H    string
	From, Packets string
}

func newHistogram(id, title, unit string, bins []uint64, from func(int) string) *histogram {
	h := &histogram{ID: id, Title: title, Unit: unit}
	var sum, highest uint64
	for _, n := range bins {
		sum += n
		highest = max(highest, n)
	}
	h.Total = number(id+"_total", sum)
	if sum == 0 {
		return h
	}
	step := plotWidth / float64(len(bins))
	for i, n := range bins {
		if n == 0 {
			continue
		}
		high := max(0.5, plotHeight*float64(n)/float64(highest)) // what exists is seen
		h.Bars = append(h.Bars, bar{
			i, n, coordinate(plotLeft + float64(i)*step), coordinate(plotTop + plotHeight - high), coordinate(step * 0.9), coordinate(high), from(i), thousands(n),
		})
	}
	for _, share := range []float64{0, 0.5, 1} {
		h.Y = append(h.Y, tick{coordinate(plotTop + plotHeight*(1-share)), thousands(uint64(share * float64(highest)))})
	}
	for i := 0; i < len(bins); i += len(bins) / 5 {
		h.X = append(h.X, tick{coordinate(plotLeft + float64(i)*step), from(i)})
	}
	return h
}
