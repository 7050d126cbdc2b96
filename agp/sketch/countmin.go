package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

const maxRows = 8

// CountMin estimates how often a key was added.
//
// d rows of w counters; Add increments one counter per row, Estimate is the
// smallest. With N added in total: truth <= estimate always, and
// estimate - truth <= e/w * N with probability at least 1 - exp(-d) over the
// hash key (Cormode and Muthukrishnan, J. Algorithms 55, 2005, theorem 1).
// Counters are 32 bits and saturate: the maximum means "at least this".
// Updates are plain, not conservative: only then is the sketch linear, so that
// Merge gives what one sketch over both inputs would hold.
type CountMin struct {
	h     Hasher
	rows  int
	width uint32 // power of two
	n     uint64
	cells []uint32 // row-major
}

// NewCountMin makes a sketch of rows (1 to 8) x width (a power of two from 2 to 2^28) counters.
func NewCountMin(rows, width int, key [16]byte) (*CountMin, error) {
	if rows < 1 || rows > maxRows {
		return nil, fmt.Errorf("%w: %d rows, want 1 to %d", ErrParam, rows, maxRows)
	}
	if width < 2 || width > 1<<28 || width&(width-1) != 0 {
		return nil, fmt.Errorf("%w: width %d, want a power of two from 2 to 2^28", ErrParam, width)
	}
	return &CountMin{h: NewHasher(key), rows: rows, width: uint32(width), cells: make([]uint32, rows*width)}, nil
}

// Add counts n occurrences of key.
func (s *CountMin) Add(key uint64, n uint32) {
	s.n += uint64(n)
	mask := uint64(s.width - 1)
	base := 0
	var x uint64
	for r := 0; r < s.rows; r++ {
		// One 64-bit hash serves two rows.
		if r&1 == 0 {
			x = s.h.Pair(key, uint64(r))
		} else {
			x >>= 32
		}
		p := &s.cells[base+int(x&mask)]
		*p = satAdd(*p, n)
		base += int(s.width)
	}
}

// Estimate returns the count of key, never less than the truth.
func (s *CountMin) Estimate(key uint64) uint32 {
	mask := uint64(s.width - 1)
	base := 0
	least := ^uint32(0)
	var x uint64
	for r := 0; r < s.rows; r++ {
		if r&1 == 0 {
			x = s.h.Pair(key, uint64(r))
		} else {
			x >>= 32
		}
		least = min(least, s.cells[base+int(x&mask)])
		base += int(s.width)
	}
	return least
}

// Total returns the sum of all counts added.
func (s *CountMin) Total() uint64 { return s.n }

// Bound returns the error of the comment for the current total: an estimate
// exceeds the truth by more than excess with probability at most failure.
func (s *CountMin) Bound() (excess, failure float64) {
	return math.E / float64(s.width) * float64(s.n), math.Exp(-float64(s.rows))
}

// Merge adds o to s.
func (s *CountMin) Merge(o *CountMin) error {
	if s.rows != o.rows || s.width != o.width || s.h != o.h {
		return fmt.Errorf("%w: count-min", ErrMismatch)
	}
	for i, v := range o.cells {
		s.cells[i] = satAdd(s.cells[i], v)
	}
	s.n += o.n
	return nil
}

// Reset forgets everything added.
func (s *CountMin) Reset() {
	clear(s.cells)
	s.n = 0
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *CountMin) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, wireHeader+32+4*len(s.cells))
	b = writeHeader(b, 'C')
	b = binary.LittleEndian.AppendUint64(b, uint64(s.rows))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.width))
	b = binary.LittleEndian.AppendUint64(b, s.h.fingerprint())
	b = binary.LittleEndian.AppendUint64(b, s.n)
	return appendU32s(b, s.cells), nil
}

// UnmarshalBinary replaces the content of s, which must have been made with the same
// parameters and key.
func (s *CountMin) UnmarshalBinary(b []byte) error {
	r := newReader(b, 'C')
	r.expect("rows", uint64(s.rows))
	r.expect("width", uint64(s.width))
	r.expect("key fingerprint", s.h.fingerprint())
	n := r.u64()
	r.exactly(4 * len(s.cells))
	if r.err != nil {
		return r.err
	}
	s.n = n
	r.u32s(s.cells)
	return nil
}
