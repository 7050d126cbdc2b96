package sketch

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"

	"github.com/DataDog/sketches-go/ddsketch/mapping"
	"github.com/DataDog/sketches-go/ddsketch/pb/sketchpb"
	"google.golang.org/protobuf/proto"
)

// ErrEmpty says that there is no quantile because nothing was added.
var ErrEmpty = errors.New("sketch is empty")

// Quantiles is a DDSketch (Masson, Rim, Lee, VLDB 2019) over [1, 2^63]: a
// returned quantile is within 1 % of a value of that rank, for values in the range.
// Bin i holds (gamma^(i-1), gamma^i] with gamma = 1.01 / 0.99; 2,184 bins are
// allocated once. Values below 1, which includes negative ones, count as 0; values
// above 2^63 count in the last bin. NaN is refused by Add (returns false).
//
// The serialised form is the DDSketch protobuf of github.com/DataDog/sketches-go
// with its logarithmic mapping, so existing stores can merge it.
type Quantiles struct {
	m    *mapping.LogarithmicMapping
	t    *wholeTable
	zero float64
	n    float64
	bins []float64 // whole numbers unless merged from elsewhere; exact to 2^53
}

// QuantilesAccuracy is the relative accuracy of Quantiles.
const QuantilesAccuracy = 0.01

const quantilesMax = 1 << 63

// NewQuantiles makes an empty sketch.
func NewQuantiles() *Quantiles {
	s := newQuantiles()
	s.t = wholeBins()
	return s
}

func newQuantiles() *Quantiles {
	m, err := mapping.NewLogarithmicMapping(QuantilesAccuracy)
	if err != nil {
		panic(err) // the accuracy is a constant of this package
	}
	return &Quantiles{m: m, bins: make([]float64, m.Index(quantilesMax)+1)}
}

// Add counts one value.
func (s *Quantiles) Add(v float64) bool {
	switch {
	case v >= 1:
		s.bins[min(s.m.Index(min(v, quantilesMax)), len(s.bins)-1)]++
	case v < 1:
		s.zero++
	default:
		return false
	}
	s.n++
	return true
}

// AddUint counts one whole number: Add without the logarithm, for the packet path.
// The bin is the same as Add's for numbers that a float64 can hold.
func (s *Quantiles) AddUint(v uint64) {
	s.n++
	if v == 0 {
		s.zero++
		return
	}
	v = min(v, quantilesMax)
	e := bits.Len64(v)
	t := s.t
	i := t.first[e][v<<(64-e)<<1>>(64-wholeCellBits)]
	for v > t.high[i] {
		i++
	}
	s.bins[i]++
}

// wholeTable finds the bin of a whole number by its leading bits. A cell of
// 2^-6 octaves is narrower than a bin, so the search takes at most two steps.
type wholeTable struct {
	first [65][1 << wholeCellBits]uint16 // by length in bits and the next bits: bin of the cell's smallest number
	high  []uint64                       // largest whole number of a bin
}

const wholeCellBits = 6

var wholeBins = sync.OnceValue(func() *wholeTable {
	s := newQuantiles()
	t := &wholeTable{high: make([]uint64, len(s.bins))}
	for i := range t.high {
		// The mapping's own answer decides at the edge, not its bound. Steps begin
		// with what a float64 of that size can tell apart.
		v := uint64(s.m.LowerBound(i + 1))
		ulp := uint64(1) << max(0, bits.Len64(v)-53)
		for v > 0 && s.m.Index(float64(v)) > i {
			v -= min(v, ulp)
		}
		for step := ulp; step > 0; step /= 2 {
			for v+step <= quantilesMax && s.m.Index(float64(v+step)) <= i {
				v += step
			}
		}
		t.high[i] = v
	}
	t.high[len(t.high)-1] = quantilesMax
	i := 0
	for e := 1; e <= 64; e++ {
		for c := range t.first[e] {
			v := uint64(1)<<(e-1) | uint64(c)<<(64-wholeCellBits)>>(65-e)
			for t.high[i] < min(v, quantilesMax) { // beyond it is only quantilesMax itself
				i++
			}
			t.first[e][c] = uint16(i)
		}
	}
	return t
})

// Count returns how many values were added.
func (s *Quantiles) Count() float64 { return s.n }

// Quantile returns the value of rank q*(n-1), q from 0 to 1.
func (s *Quantiles) Quantile(q float64) (float64, error) {
	if !(q >= 0 && q <= 1) {
		return 0, fmt.Errorf("%w: quantile %v", ErrParam, q)
	}
	if s.n == 0 {
		return 0, ErrEmpty
	}
	rank := q * (s.n - 1)
	sum := s.zero
	if sum > rank {
		return 0, nil
	}
	last := 0
	for i, c := range s.bins {
		if c == 0 {
			continue
		}
		last = i
		if sum += c; sum > rank {
			break
		}
	}
	return s.m.Value(last), nil
}

// Merge adds o to s.
func (s *Quantiles) Merge(o *Quantiles) error {
	if len(s.bins) != len(o.bins) || !s.m.Equals(o.m) {
		return fmt.Errorf("%w: quantiles", ErrMismatch)
	}
	for i, c := range o.bins {
		s.bins[i] += c
	}
	s.zero += o.zero
	s.n += o.n
	return nil
}

// Reset forgets everything added.
func (s *Quantiles) Reset() {
	clear(s.bins)
	s.zero, s.n = 0, 0
}

// Proto returns the DDSketch message.
func (s *Quantiles) Proto() *sketchpb.DDSketch {
	lo, hi := 0, len(s.bins)
	for lo < hi && s.bins[lo] == 0 {
		lo++
	}
	for hi > lo && s.bins[hi-1] == 0 {
		hi--
	}
	pos := &sketchpb.Store{}
	if lo < hi {
		pos.ContiguousBinIndexOffset = int32(lo)
		pos.ContiguousBinCounts = append([]float64(nil), s.bins[lo:hi]...)
	}
	return &sketchpb.DDSketch{
		Mapping: s.m.ToProto(), PositiveValues: pos, NegativeValues: &sketchpb.Store{}, ZeroCount: s.zero,
	}
}

// MarshalBinary writes the DDSketch protobuf; equal sketches give equal bytes.
func (s *Quantiles) MarshalBinary() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(s.Proto())
}

// UnmarshalBinary replaces the content of s by a DDSketch protobuf with the same
// mapping. Bins outside the range of s move to its zero or last bin, and negative values
// count as zero, as in Add.
func (s *Quantiles) UnmarshalBinary(b []byte) error {
	var m sketchpb.DDSketch
	if err := proto.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	im, err := mapping.FromProto(m.Mapping)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if !s.m.Equals(im) {
		return fmt.Errorf("%w: DDSketch mapping", ErrMismatch)
	}
	n := NewQuantiles()
	add := func(i int64, c float64) {
		switch {
		case !(c >= 0 && c <= math.MaxFloat64):
			err = fmt.Errorf("%w: DDSketch count %v", ErrFormat, c)
		case i < 0:
			n.zero += c
		default:
			n.bins[min(i, int64(len(n.bins)-1))] += c
		}
		n.n += c
	}
	each := func(st *sketchpb.Store, f func(int64, float64)) {
		for i, c := range st.GetBinCounts() {
			f(int64(i), c)
		}
		for i, c := range st.GetContiguousBinCounts() {
			f(int64(st.GetContiguousBinIndexOffset())+int64(i), c)
		}
	}
	each(m.PositiveValues, add)
	each(m.NegativeValues, func(_ int64, c float64) { add(-1, c) })
	add(-1, m.ZeroCount)
	if err != nil {
		return err
	}
	if math.IsInf(n.n, 0) {
		return fmt.Errorf("%w: DDSketch count overflows", ErrFormat)
	}
	*s = *n
	return nil
}
