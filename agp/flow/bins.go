package flow

import (
	"math"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// delayEdge[i] is the smallest delay in ns of bin i: ceil(1000 * 2^(i/4)), edge 0 is 0.
var delayEdge [telemetry.DelayBins]int64

// delayFirst[n] is the lowest bin that a delay of n significant bits can be in.
var delayFirst [65]uint8

func init() {
	for i := 1; i < telemetry.DelayBins; i++ {
		delayEdge[i] = int64(math.Ceil(1000 * math.Exp2(float64(i)/4)))
	}
	for n := 1; n <= 64; n++ {
		low := uint64(1) << (n - 1)
		b := 0
		for b+1 < telemetry.DelayBins && uint64(delayEdge[b+1]) <= low {
			b++
		}
		delayFirst[n] = uint8(b)
	}
}

// DelayBin returns the histogram bin of an inter-packet delay in ns: 4 bins per
// octave from 1 us; bin 0 holds everything below 2^(1/4) us, the last saturates.
func DelayBin(ns int64) int {
	if ns < delayEdge[1] {
		return 0
	}
	b := int(delayFirst[bits.Len64(uint64(ns))])
	for b+1 < telemetry.DelayBins && ns >= delayEdge[b+1] {
		b++
	}
	return b
}

// SizeBin returns the histogram bin of an L3 length: 16 bytes per bin, the last saturates.
func SizeBin(l3 uint32) int {
	return int(min(l3/16, telemetry.SizeBins-1))
}

// DelayEdge returns the smallest delay in ns of a histogram bin.
func DelayEdge(bin int) int64 { return delayEdge[bin] }
