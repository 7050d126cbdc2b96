// Histogram bins, as agp/flow defines them.
#ifndef AGP_BINS_CUH
#define AGP_BINS_CUH

#include "agp.h"
#include "warp.cuh"

namespace bins {

// Bin 4*k+j begins at ceil(1000 * 2^(k + j/4)) ns, bin 0 at 0. The numbers are those of k = 15,
// from which the others follow exactly: ceil(ceil(x) / n) = ceil(x / n). A test compares all bins
// with those of Go.
AGP_DEVICE uint8_t delay(int64_t ns) {
	if (ns >= 55108988)
		return AGP_DELAY_BINS - 1;
	if (ns < 1000)
		return 0;
	int k = bits((uint64_t)ns) - 10;
	if (ns < (int64_t)1000 << k)
		k--;
	int shift = 15 - k;
	uint32_t v = (uint32_t)ns, round = (1u << shift) - 1;
	return (uint8_t)(4 * k + (v >= (38967939u + round) >> shift) + (v >= (46340951u + round) >> shift) + (v >= (55108988u + round) >> shift));
}

AGP_DEVICE uint8_t size(uint32_t l3) { return l3 / 16 < AGP_SIZE_BINS - 1 ? (uint8_t)(l3 / 16) : (uint8_t)(AGP_SIZE_BINS - 1); }

} // namespace bins

#endif
