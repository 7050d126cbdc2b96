package pcap

import (
	"math"
	"math/bits"
)

const second = 1_000_000_000 // ns

// timescale turns the ticks of one pcapng interface into ns since the epoch.
type timescale struct {
	mul    uint64 // ns per tick are mul/div/2^shift
	div    uint64
	shift  uint
	offset int64 // ns
}

// newTimescale takes if_tsresol and if_tsoffset. The upper bit of the resolution
// says that the rest is a negative power of 2 instead of 10.
func newTimescale(tsresol uint8, tsoffset int64) timescale {
	t := timescale{mul: 1, div: 1}
	switch exp := tsresol & 0x7f; {
	case tsresol&0x80 != 0:
		t.mul, t.shift = second, uint(exp)
	case exp <= 9:
		t.mul = pow10(9 - exp)
	case exp <= 9+19:
		t.div = pow10(exp - 9)
	default: // even 2^64 ticks are less than 2 ns
		t.mul = 0
	}
	switch {
	case tsoffset > math.MaxInt64/second:
		t.offset = math.MaxInt64
	case tsoffset < math.MinInt64/second:
		t.offset = math.MinInt64
	default:
		t.offset = tsoffset * second
	}
	return t
}

func pow10(n uint8) uint64 {
	p := uint64(1)
	for range n {
		p *= 10
	}
	return p
}

// ns converts; what does not fit is clamped.
func (t *timescale) ns(ticks uint64) int64 {
	hi, lo := bits.Mul64(ticks, t.mul)
	switch {
	case t.shift >= 64:
		hi, lo = 0, hi>>(t.shift-64)
	case t.shift > 0:
		hi, lo = hi>>t.shift, lo>>t.shift|hi<<(64-t.shift)
	}
	if t.div != 1 {
		lo /= t.div // then mul is 1 and hi is 0
	}
	if hi != 0 || lo > math.MaxInt64 {
		lo = math.MaxInt64
	}
	return addClamped(int64(lo), t.offset)
}

// addClamped adds a value that is not negative and one of any sign.
func addClamped(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
