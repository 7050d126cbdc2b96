// Histogram bins, as agp/flow defines them.
#ifndef AGP_BINS_CUH
#define AGP_BINS_CUH

#include "agp.h"
#include "warp.cuh"

namespace bins {

// edge[i] is the smallest delay in ns of bin i: ceil(1000 * 2^(i/4)), edge 0 is 0. A test
// compares all bins with those of Go.
AGP_CONST uint32_t edge[AGP_DELAY_BINS] = {
	0, 1190, 1415, 1682, 2000, 2379, 2829, 3364,
	4000, 4757, 5657, 6728, 8000, 9514, 11314, 13455,
	16000, 19028, 22628, 26909, 32000, 38055, 45255, 53818,
	64000, 76110, 90510, 107635, 128000, 152219, 181020, 215270,
	256000, 304438, 362039, 430539, 512000, 608875, 724078, 861078,
	1024000, 1217749, 1448155, 1722156, 2048000, 2435497, 2896310, 3444312,
	4096000, 4870993, 5792619, 6888624, 8192000, 9741985, 11585238, 13777247,
	16384000, 19483970, 23170476, 27554494, 32768000, 38967939, 46340951, 55108988,
};

// lowest[n] is the lowest bin that a delay of n significant bits can be in.
AGP_CONST uint8_t lowest[65] = {
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 8, 12, 16,
	20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 63, 63, 63, 63, 63,
	63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
	63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
	63,
};

AGP_DEVICE uint8_t delay(int64_t ns) {
	if (ns < edge[1])
		return 0;
	int b = lowest[bits((uint64_t)ns)];
	while (b + 1 < AGP_DELAY_BINS && ns >= edge[b + 1])
		b++;
	return (uint8_t)b;
}

AGP_DEVICE uint8_t size(uint32_t l3) { return l3 / 16 < AGP_SIZE_BINS - 1 ? (uint8_t)(l3 / 16) : (uint8_t)(AGP_SIZE_BINS - 1); }

} // namespace bins

#endif
