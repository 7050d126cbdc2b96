package htmlreport

import (
	"math/bits"
	"slices"
	"time"
)

// points is the most that a plot over time has.
const points = 240

// maxSeries bounds the names that are told apart while counting.
const maxSeries = 64

// other is the series of all names beyond that.
const other = "other"

// widths of a point; each divides the next, so that points can be joined.
var widths = []int64{
	int64(time.Millisecond), int64(2 * time.Millisecond), int64(10 * time.Millisecond), int64(20 * time.Millisecond),
	int64(100 * time.Millisecond), int64(200 * time.Millisecond), int64(time.Second), int64(2 * time.Second),
	int64(10 * time.Second), int64(20 * time.Second), int64(time.Minute), int64(2 * time.Minute), int64(10 * time.Minute),
	int64(20 * time.Minute), int64(time.Hour), int64(2 * time.Hour), int64(6 * time.Hour), int64(24 * time.Hour),
}

// timeline are bytes by name and time. Its points become wider as the time that it covers
// grows.
type timeline struct {
	width     int64 // ns of a point
	low, high int64 // first and last point, in widths since the epoch
	series    map[string]map[int64]uint64
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// add spreads bytes evenly over the time from first to last; the sum stays exact.
func (t *timeline) add(name string, first, last int64, bytes uint64) {
	last = max(first, last)
	t.cover(first, last)
	s := t.series[name]
	if s == nil {
		if len(t.series) >= maxSeries {
			name = other
		}
		if s = t.series[name]; s == nil {
			s = map[int64]uint64{}
			t.series[name] = s
		}
	}
	span := uint64(last) - uint64(first)
	end := floorDiv(last, t.width)
	var given uint64
	for p := floorDiv(first, t.width); p < end; p++ {
		hi, lo := bits.Mul64(bytes, uint64((p+1)*t.width)-uint64(first))
		until, _ := bits.Div64(hi, lo, span)
		s[p] += until - given
		given = until
	}
	s[end] += bytes - given
}

// cover makes room for a time.
func (t *timeline) cover(first, last int64) {
	if t.series == nil {
		t.series, t.width = map[string]map[int64]uint64{}, widths[0]
		t.low, t.high = floorDiv(first, t.width), floorDiv(last, t.width)
	}
	t.low, t.high = min(t.low, floorDiv(first, t.width)), max(t.high, floorDiv(last, t.width))
	for t.high-t.low >= points {
		factor := int64(4)
		if i := slices.Index(widths, t.width); i >= 0 && i+1 < len(widths) {
			factor = widths[i+1] / t.width
		}
		t.width *= factor
		t.low, t.high = floorDiv(t.low, factor), floorDiv(t.high, factor)
		for name, s := range t.series {
			joined := make(map[int64]uint64, len(s))
			for p, n := range s {
				joined[floorDiv(p, factor)] += n
			}
			t.series[name] = joined
		}
	}
}
