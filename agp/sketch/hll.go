package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// HLL counts distinct values. Its serialised form is that of Apache DataSketches
// (serial version 1), so any engine that speaks it can merge what many hosts send.
//
// 2^lgK registers of one byte. As long as values came only through Add, the estimate is
// the historic inverse probability one, relative standard error sqrt(ln 2 / 2^lgK) = 0.833
// / sqrt(2^lgK) (Ting, KDD 2014; Cohen, KDD 2014); after a Merge it is computed from the
// registers alone, relative standard error 1.04 / sqrt(2^lgK) (Flajolet et al., AofA
// 2007), with Ertl's estimator (arXiv 1702.01284, algorithm 6), which needs no bias
// tables. DataSketches uses its composite estimator there: the registers agree exactly,
// estimates of merged sketches within a fraction of the error.
//
// The hash is MurmurHash3 x64 128 with seed 9001, not keyed: sketches of different hosts
// and engines merge only if all hash alike. The price is that someone who chooses the
// values can make the count wrong (low by using values with small ranks, high by using
// large ones). NewHLLKeyed is for counts that stay in one trust domain: same format,
// mergeable only under the same key.
type HLL struct {
	lgK   uint8
	keyed bool
	h     Hasher
	ooo   bool // registers were merged: the history behind hip is gone
	hip   float64
	kxq   [2]float64 // sum of 2^-register, registers below 32 and from 32
	reg   []uint8
}

// Limits of lgK, those of DataSketches.
const (
	minLgK = 4
	maxLgK = 21
)

// NewHLL makes an empty sketch of 2^lgK registers, lgK 4 to 21.
func NewHLL(lgK int) (*HLL, error) {
	if lgK < minLgK || lgK > maxLgK {
		return nil, fmt.Errorf("%w: lgK %d, want %d to %d", ErrParam, lgK, minLgK, maxLgK)
	}
	s := &HLL{lgK: uint8(lgK), reg: make([]uint8, 1<<lgK)}
	s.Reset()
	return s, nil
}

// NewHLLKeyed is NewHLL with a keyed hash; see the type.
func NewHLLKeyed(lgK int, key [16]byte) (*HLL, error) {
	s, err := NewHLL(lgK)
	if err != nil {
		return nil, err
	}
	s.keyed, s.h = true, NewHasher(key)
	return s, nil
}

// Reset forgets everything added.
func (s *HLL) Reset() {
	clear(s.reg)
	s.ooo, s.hip = false, 0
	s.kxq = [2]float64{float64(len(s.reg)), 0}
}

// LgK returns the parameter.
func (s *HLL) LgK() int { return int(s.lgK) }

// AddUint64 adds an integer; other engines see the int64 of the same bits.
func (s *HLL) AddUint64(v uint64) {
	if s.keyed {
		s.coupon(s.h.Pair(v, 1), s.h.Pair(v, 2))
		return
	}
	s.coupon(murmur64(v))
}

// Add adds bytes; other engines see the same bytes or the string of them. Empty input is
// not counted, as there.
func (s *HLL) Add(b []byte) {
	switch {
	case len(b) == 0:
	case s.keyed:
		v := s.h.Bytes(b)
		s.coupon(v, s.h.Uint64(v))
	default:
		s.coupon(murmur128(b))
	}
}

func (s *HLL) coupon(h1, h2 uint64) {
	s.update(uint32(h1)&(1<<26-1), uint8(min(bits.LeadingZeros64(h2), 62))+1)
}

func pow2neg(v uint8) float64 {
	return math.Float64frombits(uint64(1023-int(v)) << 52)
}

// update is the only place that raises a register.
func (s *HLL) update(addr uint32, v uint8) {
	p := &s.reg[addr&uint32(len(s.reg)-1)]
	old := *p
	if v <= old {
		return
	}
	s.hip += float64(len(s.reg)) / (s.kxq[0] + s.kxq[1])
	s.kxq[old>>5] -= pow2neg(old)
	s.kxq[v>>5] += pow2neg(v)
	*p = v
}

// Empty says whether nothing was added.
func (s *HLL) Empty() bool { return s.kxq[0] == float64(len(s.reg)) && s.kxq[1] == 0 }

// Estimate returns the number of distinct values.
func (s *HLL) Estimate() float64 {
	if !s.ooo {
		return s.hip
	}
	var c [64]float64
	for _, v := range s.reg {
		c[v]++
	}
	k := float64(len(s.reg))
	// tau of the share of saturated registers, then the sum by halves, then
	// sigma of the share of empty ones.
	z := k * tau(1-c[63]/k)
	for j := 62; j >= 1; j-- {
		z = 0.5 * (z + c[j])
	}
	z += k * sigma(c[0]/k)
	return k / (2 * math.Ln2) * k / z
}

func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	y, z := 1.0, x
	for {
		x *= x
		last := z
		z += x * y
		y += y
		if z == last {
			return z
		}
	}
}

func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		last := z
		y /= 2
		z -= (1 - x) * (1 - x) * y
		if z == last {
			return z / 3
		}
	}
}

// RSE returns the relative standard error of Estimate.
func (s *HLL) RSE() float64 {
	if s.ooo {
		return 1.04 / math.Sqrt(float64(len(s.reg)))
	}
	return math.Sqrt(math.Ln2 / float64(len(s.reg)))
}

// Merge adds o to s. If o has fewer registers, s shrinks to its size, as the
// union of DataSketches does: the sketch cannot be better than its worse input.
func (s *HLL) Merge(o *HLL) error {
	if s.keyed != o.keyed || s.h != o.h {
		return fmt.Errorf("%w: HLL key", ErrMismatch)
	}
	if o.Empty() {
		return nil
	}
	if s.Empty() && s.lgK == o.lgK {
		copy(s.reg, o.reg)
		s.ooo, s.hip, s.kxq = o.ooo, o.hip, o.kxq
		return nil
	}
	if o.lgK < s.lgK {
		k := 1 << o.lgK
		for i := k; i < len(s.reg); i++ {
			p := &s.reg[i&(k-1)]
			*p = max(*p, s.reg[i])
		}
		s.lgK, s.reg = o.lgK, s.reg[:k]
	}
	for i, v := range o.reg {
		p := &s.reg[i&(len(s.reg)-1)]
		*p = max(*p, v)
	}
	s.ooo = true
	s.sumRegisters()
	return nil
}

func (s *HLL) sumRegisters() {
	// In units of 2^-31 and 2^-63 the sums are whole numbers; a shift by 64 and more gives 0.
	var below, from uint64
	for _, v := range s.reg {
		below += 1 << (31 - v)
		from += 1 << (63 - v) & (1<<32 - 1)
	}
	s.kxq = [2]float64{float64(below) * pow2neg(31), float64(from) * pow2neg(63)}
}

// The DataSketches preamble, byte by byte.
const (
	hllPreList, hllPreSet, hllPreHLL = 2, 3, 10
	hllSerVer                        = 1
	hllFamily                        = 7
	hllFlagEmpty                     = 4
	hllFlagCompact                   = 8
	hllFlagOutOfOrder                = 16
	hllModeList, hllModeSet, hllHLL  = 0, 1, 2
	hllType4, hllType6, hllType8     = 0, 1, 2
	hllData                          = 40
)

// MarshalBinary writes the compact HLL_8 form, 40 + 2^lgK bytes, or 8 bytes for an empty sketch.
func (s *HLL) MarshalBinary() ([]byte, error) {
	if s.Empty() {
		return []byte{hllPreList, hllSerVer, hllFamily, s.lgK, 3, hllFlagEmpty | hllFlagCompact, 0, hllType8<<2 | hllModeList}, nil
	}
	b := make([]byte, hllData, hllData+len(s.reg))
	copy(b, []byte{hllPreHLL, hllSerVer, hllFamily, s.lgK, 0, hllFlagCompact, 0, hllType8<<2 | hllHLL})
	if s.ooo {
		b[5] |= hllFlagOutOfOrder
	}
	zeros := uint32(0)
	for _, v := range s.reg {
		if v == 0 {
			zeros++
		}
	}
	binary.LittleEndian.PutUint64(b[8:], math.Float64bits(s.hip))
	binary.LittleEndian.PutUint64(b[16:], math.Float64bits(s.kxq[0]))
	binary.LittleEndian.PutUint64(b[24:], math.Float64bits(s.kxq[1]))
	binary.LittleEndian.PutUint32(b[32:], zeros)
	return append(b, s.reg...), nil
}

// UnmarshalBinary reads any DataSketches HLL image: list, set, HLL_4, HLL_6 or
// HLL_8, compact or updatable. A key is not part of the image; a sketch made by
// NewHLLKeyed keeps its own. The receiver may be the zero value.
func (s *HLL) UnmarshalBinary(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("%w: HLL of %d bytes", ErrFormat, len(b))
	}
	pre, lgK, flags, mode := b[0], int(b[3]), b[5], b[7]
	if b[1] != hllSerVer || b[2] != hllFamily {
		return fmt.Errorf("%w: HLL serial version %d, family %d", ErrFormat, b[1], b[2])
	}
	if lgK < minLgK || lgK > maxLgK {
		return fmt.Errorf("%w: HLL lgK %d", ErrFormat, lgK)
	}
	typ := mode >> 2 & 3
	if typ > hllType8 {
		return fmt.Errorf("%w: HLL type %d", ErrFormat, typ)
	}
	n, err := NewHLL(lgK)
	if err != nil {
		return err
	}
	n.keyed, n.h = s.keyed, s.h
	switch cur := mode & 3; {
	case cur == hllModeList && pre == hllPreList:
		err = n.readCoupons(b[8:], int(b[6]), flags)
	case cur == hllModeSet && pre == hllPreSet && len(b) >= 12:
		err = n.readCoupons(b[12:], int(binary.LittleEndian.Uint32(b[8:])), flags)
	case cur == hllHLL && pre == hllPreHLL && len(b) >= hllData:
		err = n.readRegisters(b, typ)
	default:
		err = fmt.Errorf("%w: HLL mode %d with preamble %d in %d bytes", ErrFormat, cur, pre, len(b))
	}
	if err != nil {
		return err
	}
	*s = *n
	return nil
}

func (s *HLL) readCoupons(b []byte, count int, flags uint8) error {
	if flags&hllFlagEmpty != 0 {
		return nil
	}
	if len(b)%4 != 0 || count > len(b)/4 || (flags&hllFlagCompact != 0 && count != len(b)/4) {
		return fmt.Errorf("%w: HLL with %d coupons in %d bytes", ErrFormat, count, len(b))
	}
	seen := 0
	for ; len(b) > 0; b = b[4:] {
		c := binary.LittleEndian.Uint32(b)
		if c == 0 { // free slot of the updatable form
			continue
		}
		if c>>26 == 0 {
			return fmt.Errorf("%w: HLL coupon without value", ErrFormat)
		}
		s.update(c&(1<<26-1), uint8(c>>26))
		seen++
	}
	if seen != count {
		return fmt.Errorf("%w: HLL with %d coupons, says %d", ErrFormat, seen, count)
	}
	// The coupons tell more than the registers: how many different ones of 2^26 were drawn.
	const space = 1 << 26
	s.hip = -space * math.Log1p(-float64(count)/space)
	return nil
}

func (s *HLL) readRegisters(b []byte, typ uint8) error {
	k := len(s.reg)
	curMin := b[6]
	aux := int(binary.LittleEndian.Uint32(b[36:]))
	data := b[hllData:]
	size := map[uint8]int{hllType4: k / 2, hllType6: k*3/4 + 1, hllType8: k}[typ]
	if len(data) < size || curMin > 62 {
		return fmt.Errorf("%w: HLL with %d bytes of registers, want %d", ErrFormat, len(data), size)
	}
	switch typ {
	case hllType8:
		copy(s.reg, data[:size])
	case hllType6:
		for i := range s.reg {
			bit := i * 6
			s.reg[i] = uint8(binary.LittleEndian.Uint16(data[bit/8:])>>(bit%8)) & 63
		}
	case hllType4:
		exceptions := 0
		for i := range s.reg {
			v := data[i/2] >> (4 * (i & 1)) & 15
			if v == 15 {
				exceptions++
			}
			s.reg[i] = v + curMin
		}
		pairs := data[size:]
		if exceptions != aux || len(pairs)%4 != 0 || len(pairs)/4 < aux {
			return fmt.Errorf("%w: HLL_4 with %d exceptions, %d stored", ErrFormat, exceptions, aux)
		}
		found := 0
		for ; len(pairs) > 0; pairs = pairs[4:] {
			c := binary.LittleEndian.Uint32(pairs)
			slot := c & (1<<26 - 1)
			if c == 0 {
				continue
			}
			if int(slot) >= k || data[slot/2]>>(4*(slot&1))&15 != 15 {
				return fmt.Errorf("%w: HLL_4 exception for slot %d", ErrFormat, slot)
			}
			s.reg[slot] = uint8(c >> 26)
			found++
		}
		if found != aux {
			return fmt.Errorf("%w: HLL_4 with %d exceptions, %d found", ErrFormat, aux, found)
		}
	}
	for _, v := range s.reg {
		if v > 63 {
			return fmt.Errorf("%w: HLL register %d", ErrFormat, v)
		}
	}
	s.sumRegisters()
	s.ooo = b[5]&hllFlagOutOfOrder != 0
	s.hip = math.Float64frombits(binary.LittleEndian.Uint64(b[8:]))
	if !s.ooo && !(s.hip >= 0 && s.hip <= math.MaxFloat64) {
		return fmt.Errorf("%w: HLL accumulator %v", ErrFormat, s.hip)
	}
	return nil
}

// MurmurHash3 x64 128 (Austin Appleby, public domain), seed 9001.
const (
	murmurSeed = 9001
	murmurC1   = 0x87c37b91114253d5
	murmurC2   = 0x4cf5ad432745937f
)

func murmurFinal(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

func murmurEnd(h1, h2, n uint64) (uint64, uint64) {
	h1, h2 = h1^n, h2^n
	h1 += h2
	h2 += h1
	h1, h2 = murmurFinal(h1), murmurFinal(h2)
	h1 += h2
	return h1, h2 + h1
}

// murmur64 is murmur128 of the 8 little-endian bytes of v.
func murmur64(v uint64) (uint64, uint64) {
	return murmurEnd(murmurSeed^bits.RotateLeft64(v*murmurC1, 31)*murmurC2, murmurSeed, 8)
}

func murmur128(b []byte) (uint64, uint64) {
	h1, h2, n := uint64(murmurSeed), uint64(murmurSeed), uint64(len(b))
	for ; len(b) >= 16; b = b[16:] {
		k1, k2 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		h1 ^= bits.RotateLeft64(k1*murmurC1, 31) * murmurC2
		h1 = (bits.RotateLeft64(h1, 27)+h2)*5 + 0x52dce729
		h2 ^= bits.RotateLeft64(k2*murmurC2, 33) * murmurC1
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + 0x38495ab5
	}
	if len(b) > 0 {
		var t [16]byte
		copy(t[:], b)
		k1, k2 := binary.LittleEndian.Uint64(t[:]), binary.LittleEndian.Uint64(t[8:])
		h2 ^= bits.RotateLeft64(k2*murmurC2, 33) * murmurC1
		h1 ^= bits.RotateLeft64(k1*murmurC1, 31) * murmurC2
	}
	return murmurEnd(h1, h2, n)
}
