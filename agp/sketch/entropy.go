package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// Entropy estimates the Shannon entropy, in bits, of a distribution such as that
// of source addresses over packets: the entropy of the counts in w hashed
// buckets. Adding is one increment, so sketches merge by addition.
//
// Putting keys together never raises entropy, so Estimate <= H. The mean loss over the
// hash key is at most (F-1)/w bits with F distinct keys: a bucket's loss is at most the
// sum over its pairs of (p_i+p_j) h(p_i/(p_i+p_j)) <= p_i+p_j, because -x log x - y log y
// + (x+y) log (x+y) is concave in x and 0 at 0, hence subadditive; every pair shares a
// bucket with probability 1/w. The limit follows: with many more keys than buckets the
// estimate saturates at log2 w.
type Entropy struct {
	h     Hasher
	n     uint64
	cells []uint32
}

// NewEntropy makes a sketch of width buckets, a power of two from 2 to 2^24.
func NewEntropy(width int, key [16]byte) (*Entropy, error) {
	if width < 2 || width > 1<<24 || width&(width-1) != 0 {
		return nil, fmt.Errorf("%w: width %d, want a power of two from 2 to 2^24", ErrParam, width)
	}
	return &Entropy{h: NewHasher(key), cells: make([]uint32, width)}, nil
}

// Add counts n occurrences of key.
func (s *Entropy) Add(key uint64, n uint32) {
	p := &s.cells[s.h.Uint64(key)&uint64(len(s.cells)-1)]
	*p = satAdd(*p, n)
	s.n += uint64(n)
}

// Estimate returns the entropy in bits; 0 if nothing was added.
func (s *Entropy) Estimate() float64 {
	var sum, total float64
	for _, c := range s.cells {
		if c > 1 {
			sum += float64(c) * math.Log2(float64(c))
		}
		total += float64(c)
	}
	if total == 0 {
		return 0
	}
	return max(0, math.Log2(total)-sum/total)
}

// Loss returns the mean by which Estimate is short for the given number of distinct keys.
func (s *Entropy) Loss(distinct float64) float64 {
	return max(0, distinct-1) / float64(len(s.cells))
}

// Max returns the value that Estimate cannot exceed.
func (s *Entropy) Max() float64 { return float64(bits.TrailingZeros(uint(len(s.cells)))) }

// Total returns the sum of all counts added.
func (s *Entropy) Total() uint64 { return s.n }

// Merge adds o to s.
func (s *Entropy) Merge(o *Entropy) error {
	if len(s.cells) != len(o.cells) || s.h != o.h {
		return fmt.Errorf("%w: entropy", ErrMismatch)
	}
	for i, v := range o.cells {
		s.cells[i] = satAdd(s.cells[i], v)
	}
	s.n += o.n
	return nil
}

// Reset forgets everything added.
func (s *Entropy) Reset() {
	clear(s.cells)
	s.n = 0
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *Entropy) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, wireHeader+24+4*len(s.cells))
	b = writeHeader(b, 'E')
	for _, v := range []uint64{uint64(len(s.cells)), s.h.fingerprint(), s.n} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return appendU32s(b, s.cells), nil
}

// UnmarshalBinary replaces the content of s, which must have been made with the same width and key.
func (s *Entropy) UnmarshalBinary(b []byte) error {
	r := newReader(b, 'E')
	r.expect("width", uint64(len(s.cells)))
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
