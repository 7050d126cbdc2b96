package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// What a device needs to fill sketches of this package (cuda/kernels/sketch.cuh), and Load
// functions that take what it has filled: cells as they lie there, of a sketch with the same
// parameters and key. A device hands over memory that only its own code writes; sizes are
// checked, and what an estimate could not live with.

// Words are the two words of the hash, which a device computes with. They are as secret as the key.
func (h Hasher) Words() (k0, k1 uint64) { return h.k0, h.k1 }

// QuantileTable returns how Quantiles finds the bin of a whole number v > 0, at most 2^63: from
// first[bits.Len64(v)*64 + the next 6 bits] on, the first bin i with v <= high[i].
func QuantileTable() (first []uint16, high []uint64) {
	t := wholeBins()
	for i := range t.first {
		first = append(first, t.first[i][:]...)
	}
	return first, t.high
}

// Load replaces the content of s.
func (s *CountMin) Load(n uint64, cells []uint32) error {
	if len(cells) != len(s.cells) {
		return fmt.Errorf("%w: %d counters", ErrMismatch, len(cells))
	}
	s.n = n
	copy(s.cells, cells)
	return nil
}

// Load replaces the content of s.
func (s *Entropy) Load(n uint64, cells []uint32) error {
	if len(cells) != len(s.cells) {
		return fmt.Errorf("%w: %d counters", ErrMismatch, len(cells))
	}
	s.n = n
	copy(s.cells, cells)
	return nil
}

// Load replaces the content of s.
func (s *Quantiles) Load(n, zero uint64, bins []uint64) error {
	if len(bins) != len(s.bins) {
		return fmt.Errorf("%w: %d bins", ErrMismatch, len(bins))
	}
	s.n, s.zero = float64(n), float64(zero)
	for i, c := range bins {
		s.bins[i] = float64(c)
	}
	return nil
}

// Load replaces the content of s.
func (s *HLL) Load(hip float64, kxq [2]float64, registers []uint8) error {
	if len(registers) != len(s.reg) {
		return fmt.Errorf("%w: %d registers", ErrMismatch, len(registers))
	}
	for _, v := range registers {
		if v > 63 {
			return fmt.Errorf("%w: HLL register %d", ErrFormat, v)
		}
	}
	if !(hip >= 0 && hip <= math.MaxFloat64) {
		return fmt.Errorf("%w: HLL accumulator %v", ErrFormat, hip)
	}
	copy(s.reg, registers)
	s.ooo, s.hip, s.kxq = false, hip, kxq
	return nil
}

// Load replaces the content of s.
func (s *Published) Load(n uint64, counters []uint32, bloom []uint64) error {
	if len(counters) != len(s.counters) || len(bloom) != len(s.bloom) {
		return fmt.Errorf("%w: %d counters, %d words", ErrMismatch, len(counters), len(bloom))
	}
	s.n = n
	copy(s.counters, counters)
	copy(s.bloom, bloom)
	return nil
}

// BlockedLine is the size of a line of Blocked, with what fills it up.
const BlockedLine = 128

// Load replaces the content of s. lines are 3 * width lines of BlockedLine bytes.
func (s *Blocked) Load(n uint64, lines []byte, carry []uint32) error {
	if len(lines) != len(s.lines)*BlockedLine || len(carry) != 2*int(s.width) {
		return fmt.Errorf("%w: %d bytes of lines, %d carries", ErrMismatch, len(lines), len(carry))
	}
	s.n = n
	for i := range s.lines {
		p := lines[i*BlockedLine:]
		copy(s.lines[i].low[:], p)
		copy(s.lines[i].wrapped[:], p[BlockedBins:])
	}
	copy(s.carry[0], carry)
	copy(s.carry[1], carry[s.width:])
	return nil
}

// Load replaces the content of s by counters in any order. Keys, which differ, are the words of Key,
// little endian.
func (s *TopK) Load(n, bound uint64, keys [][5]uint64, counts []uint64) error {
	if err := s.fits(len(keys), len(counts)); err != nil {
		return err
	}
	s.Reset()
	return s.MergeRaw(n, bound, keys, counts)
}

func (s *TopK) fits(keys, counts int) error {
	if keys != counts || keys > 2*s.k {
		return fmt.Errorf("%w: %d keys, %d counts, at most %d", ErrFormat, keys, counts, 2*s.k)
	}
	return nil
}

// MergeRaw is Merge with what Load takes.
func (s *TopK) MergeRaw(n, bound uint64, keys [][5]uint64, counts []uint64) error {
	if err := s.fits(len(keys), len(counts)); err != nil {
		return err
	}
	own := len(s.entries)
	for i := range keys {
		var k Key
		for j, w := range keys[i] {
			binary.LittleEndian.PutUint64(k[8*j:], w)
		}
		if counts[i] > 0 {
			s.join(&k, s.hash(&k), counts[i])
		}
	}
	s.joined(own, n, bound)
	return nil
}
