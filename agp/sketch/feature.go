package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/internal/hugepage"
	"github.com/agp-net/telegraf-agp/agp/internal/prefetch"
)

// Per-flow histograms of all flows in fixed memory, after SketchFeature (Kim,
// Mirnajafizadeh, Kim, Jang, Nyang, NDSS 2025): a flow owns virtual counters,
// one per histogram bin, in an array that all flows share. Published has the
// layout of the published artefact, Blocked keeps a flow's bins together.
//
// Both take a 64-bit hash of the flow key made by the caller with its own key.
// Two flows with the same 64-bit hash are one flow here; among n flows that
// happens with probability n^2 / 2^65.

const featureRows = 3

// Published is the layout of the artefact: a Bloom filter in 3 partitions says
// whether a flow ever hit a bin, a 3-row count-min says how often; both have
// the key (flow, bin).
//
// With N packets, counters of width w and n distinct (flow, bin) pairs in
// partitions of b bits: an inserted bin is always found and never
// underestimated; its excess is <= e/w * N with probability 1 - exp(-3); an
// empty bin reads non-zero with probability at most (1 - exp(-n/b))^3.
//
// Row, level and flow enter the hash as separate words. The published code
// shifts them into one (level << (8+row)), which gives bin 0 the same hash in
// all three rows and ties row i of bin q to row 0 of bin q*2^i.
type Published struct {
	h        Hasher
	bins     int
	width    uint32 // counters per row
	bits     uint32 // bits per Bloom partition
	n        uint64
	counters []uint32
	bloom    []uint64
}

// NewPublished makes a sketch of bins per flow, width counters per row and bits
// per Bloom partition. The artefact's 3 MB are 95, 87381, 5592405.
func NewPublished(bins, width, bits int, key [16]byte) (*Published, error) {
	if bins < 1 || bins > 1<<16 || width < 1 || width > 1<<30 || bits < 64 || bits > 1<<31 {
		return nil, fmt.Errorf("%w: %d bins, %d counters, %d bits", ErrParam, bins, width, bits)
	}
	words := (bits + 63) / 64
	return &Published{
		h: NewHasher(key), bins: bins, width: uint32(width), bits: uint32(bits),
		counters: make([]uint32, featureRows*width),
		bloom:    make([]uint64, featureRows*words),
	}, nil
}

// place returns the three counter indices and the three bit positions of a bin.
func (s *Published) place(flow uint64, bin int) (c, b [featureRows]uint32) {
	k := s.h.Pair(flow, uint64(bin))
	x, y, z := s.h.Pair(k, 1), s.h.Pair(k, 2), s.h.Pair(k, 3)
	words := uint32(len(s.bloom) / featureRows * 64)
	c[0] = scale(uint32(x), s.width)
	c[1] = s.width + scale(uint32(x>>32), s.width)
	c[2] = 2*s.width + scale(uint32(y), s.width)
	b[0] = scale(uint32(y>>32), s.bits)
	b[1] = words + scale(uint32(z), s.bits)
	b[2] = 2*words + scale(uint32(z>>32), s.bits)
	return c, b
}

// Add counts one packet of a flow; a bin beyond the last counts in the last.
func (s *Published) Add(flow uint64, bin int) {
	bin = clampBin(bin, s.bins)
	c, b := s.place(flow, bin)
	for i := range c {
		p := &s.counters[c[i]]
		*p = satAdd(*p, 1)
		s.bloom[b[i]/64] |= 1 << (b[i] % 64)
	}
	s.n++
}

// Decode fills out with the flow's histogram; len(out) may be less than the bins.
func (s *Published) Decode(flow uint64, out []uint32) {
	for bin := range out {
		out[bin] = 0
		if bin >= s.bins {
			continue
		}
		c, b := s.place(flow, bin)
		seen := s.bloom[b[0]/64] >> (b[0] % 64) & (s.bloom[b[1]/64] >> (b[1] % 64)) & (s.bloom[b[2]/64] >> (b[2] % 64)) & 1
		if seen == 1 {
			out[bin] = min(s.counters[c[0]], s.counters[c[1]], s.counters[c[2]])
		}
	}
}

// Bound returns the excess that one bin exceeds with at most the given probability, for
// the current total.
func (s *Published) Bound() (excess, failure float64) {
	return math.E / float64(s.width) * float64(s.n), math.Exp(-featureRows)
}

// Merge adds o to s.
func (s *Published) Merge(o *Published) error {
	if s.bins != o.bins || s.width != o.width || s.bits != o.bits || s.h != o.h {
		return fmt.Errorf("%w: feature sketch", ErrMismatch)
	}
	for i, v := range o.counters {
		s.counters[i] = satAdd(s.counters[i], v)
	}
	for i, v := range o.bloom {
		s.bloom[i] |= v
	}
	s.n += o.n
	return nil
}

// Reset forgets everything added.
func (s *Published) Reset() {
	clear(s.counters)
	clear(s.bloom)
	s.n = 0
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *Published) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, wireHeader+40+4*len(s.counters)+8*len(s.bloom))
	b = writeHeader(b, 'P')
	for _, v := range []uint64{uint64(s.bins), uint64(s.width), uint64(s.bits), s.h.fingerprint(), s.n} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = appendU32s(b, s.counters)
	for _, v := range s.bloom {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b, nil
}

// UnmarshalBinary replaces the content of s, which must have been made with the same
// parameters and key.
func (s *Published) UnmarshalBinary(b []byte) error {
	r := newReader(b, 'P')
	r.expect("bins", uint64(s.bins))
	r.expect("width", uint64(s.width))
	r.expect("bits", uint64(s.bits))
	r.expect("key fingerprint", s.h.fingerprint())
	n := r.u64()
	r.exactly(4*len(s.counters) + 8*len(s.bloom))
	if r.err != nil {
		return r.err
	}
	s.n = n
	r.u32s(s.counters)
	for i := range s.bloom {
		s.bloom[i] = r.u64()
	}
	return nil
}

// BlockedBins is the number of bins in a line of Blocked.
const BlockedBins = 96

// blockedLine is 128 bytes, two cache lines or one GPU transaction: 96 counters
// modulo 256 and a bit per counter that says whether it ever wrapped.
type blockedLine struct {
	low     [BlockedBins]uint8
	wrapped [BlockedBins / 8]uint8
	_       [128 - BlockedBins - BlockedBins/8]uint8
}

// Blocked hashes a flow to one 128-byte line in each of 3 rows; the bin is the
// offset in the line. Decode reads 3 lines where Published reads up to 6 cells
// per bin. Counters are 8 bits; their carries go to a side table.
//
// A collision is one of whole flows. With F flows and w lines per row a
// histogram is exact with probability at least 1 - (1 - exp(-F/w))^3; otherwise
// it holds, bin by bin, the smallest of what the colliding flows left. A bin is
// never underestimated, and its excess is <= e/w * N_bin with probability
// 1 - exp(-3), where N_bin counts the packets of all flows in that bin (each
// column is a count-min of its own). Carries are counted in 2 rows of w side
// counters: with C cells that wrapped, a wrapped cell reads 256 or more too high
// with probability at most (C/w)^2; cells below 256 are not concerned.
type Blocked struct {
	h     Hasher
	width uint32 // lines per row, power of two
	n     uint64
	lines []blockedLine
	carry [2][]uint32 // multiples of 256 of wrapped cells
}

// NewBlocked makes a sketch of width lines (a power of two) in each of 3 rows:
// 392 x width bytes.
func NewBlocked(width int, key [16]byte) (*Blocked, error) {
	if width < 2 || width > 1<<26 || width&(width-1) != 0 {
		return nil, fmt.Errorf("%w: width %d, want a power of two from 2 to 2^26", ErrParam, width)
	}
	s := &Blocked{
		h: NewHasher(key), width: uint32(width),
		lines: make([]blockedLine, featureRows*width),
		carry: [2][]uint32{make([]uint32, width), make([]uint32, width)},
	}
	hugepage.Advise(s.lines)
	return s, nil
}

// Lines are the places of one flow in any Blocked of one width and key, so that
// several histograms of a flow cost one hash.
type Lines [featureRows]uint32

// Lines returns the places of a flow.
func (s *Blocked) Lines(flow uint64) (l Lines) {
	mask := s.width - 1
	x, y := s.h.Pair(flow, 1), s.h.Pair(flow, 2)
	l[0] = uint32(x) & mask
	l[1] = s.width + uint32(x>>32)&mask
	l[2] = 2*s.width + uint32(y)&mask
	return l
}

// Add counts one packet of a flow; a bin beyond the last counts in the last.
func (s *Blocked) Add(flow uint64, bin int) {
	s.AddAt(s.Lines(flow), []uint8{uint8(clampBin(bin, BlockedBins))})
}

// AddAt is Add for some packets of a flow whose places are known.
func (s *Blocked) AddAt(lines Lines, bins []uint8) {
	for _, l := range lines {
		p := &s.lines[l]
		for _, b := range bins {
			bin := min(int(b), BlockedBins-1)
			if p.low[bin]++; p.low[bin] == 0 {
				s.wrap(l, bin)
			}
		}
	}
	s.n += uint64(len(bins))
}

// Prefetch asks for the counters that AddAt will touch.
func (s *Blocked) Prefetch(lines Lines) {
	for _, l := range lines {
		prefetch.Line(unsafe.Pointer(&s.lines[l].low[0]))
		prefetch.Line(unsafe.Pointer(&s.lines[l].low[64]))
	}
}

// wrap notes that a cell has passed 255.
func (s *Blocked) wrap(line uint32, bin int) {
	s.lines[line].wrapped[bin/8] |= 1 << (bin % 8)
	i, j := s.carryIndex(line, bin)
	s.carry[0][i] = satAdd(s.carry[0][i], 1)
	s.carry[1][j] = satAdd(s.carry[1][j], 1)
}

func (s *Blocked) carryIndex(line uint32, bin int) (uint32, uint32) {
	x := s.h.Pair(uint64(line)<<8|uint64(bin), 3)
	return uint32(x) & (s.width - 1), uint32(x>>32) & (s.width - 1)
}

func (s *Blocked) cell(line uint32, bin int) uint32 {
	p := &s.lines[line]
	v := uint32(p.low[bin])
	if p.wrapped[bin/8]>>(bin%8)&1 == 0 {
		return v
	}
	i, j := s.carryIndex(line, bin)
	if c := min(s.carry[0][i], s.carry[1][j]); c < 1<<24 {
		return c<<8 + v
	}
	return ^uint32(0)
}

// Decode fills out with the flow's histogram; bins beyond the line read 0.
func (s *Blocked) Decode(flow uint64, out []uint32) {
	l := s.Lines(flow)
	for bin := range out {
		out[bin] = 0
		if bin < BlockedBins {
			out[bin] = min(s.cell(l[0], bin), s.cell(l[1], bin), s.cell(l[2], bin))
		}
	}
}

// Bound returns the excess that one bin exceeds with at most the given
// probability, for the current total and no knowledge of the bin's share.
func (s *Blocked) Bound() (excess, failure float64) {
	return math.E / float64(s.width) * float64(s.n), math.Exp(-featureRows)
}

// Merge adds o to s.
func (s *Blocked) Merge(o *Blocked) error {
	if s.width != o.width || s.h != o.h {
		return fmt.Errorf("%w: blocked feature sketch", ErrMismatch)
	}
	for r := range s.carry {
		for i, v := range o.carry[r] {
			s.carry[r][i] = satAdd(s.carry[r][i], v)
		}
	}
	for l := range o.lines {
		p := &o.lines[l]
		for i, v := range p.wrapped {
			s.lines[l].wrapped[i] |= v
		}
		for bin, v := range p.low {
			if q := &s.lines[l].low[bin]; *q+v < v {
				s.wrap(uint32(l), bin)
			}
			s.lines[l].low[bin] += v
		}
	}
	s.n += o.n
	return nil
}

// Reset forgets everything added.
func (s *Blocked) Reset() {
	clear(s.lines)
	clear(s.carry[0])
	clear(s.carry[1])
	s.n = 0
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *Blocked) MarshalBinary() ([]byte, error) {
	const cells = BlockedBins + BlockedBins/8
	b := make([]byte, 0, wireHeader+24+cells*len(s.lines)+8*int(s.width))
	b = writeHeader(b, 'B')
	for _, v := range []uint64{uint64(s.width), s.h.fingerprint(), s.n} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for i := range s.lines {
		b = append(b, s.lines[i].low[:]...)
		b = append(b, s.lines[i].wrapped[:]...)
	}
	return appendU32s(appendU32s(b, s.carry[0]), s.carry[1]), nil
}

// UnmarshalBinary replaces the content of s, which must have been made with the same
// parameters and key.
func (s *Blocked) UnmarshalBinary(b []byte) error {
	const cells = BlockedBins + BlockedBins/8
	r := newReader(b, 'B')
	r.expect("width", uint64(s.width))
	r.expect("key fingerprint", s.h.fingerprint())
	n := r.u64()
	r.exactly(cells*len(s.lines) + 8*int(s.width))
	if r.err != nil {
		return r.err
	}
	s.n = n
	for i := range s.lines {
		copy(s.lines[i].low[:], r.b)
		copy(s.lines[i].wrapped[:], r.b[BlockedBins:])
		r.b = r.b[cells:]
	}
	r.u32s(s.carry[0])
	r.u32s(s.carry[1])
	return nil
}

func clampBin(bin, bins int) int {
	return max(0, min(bin, bins-1))
}
