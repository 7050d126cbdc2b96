// Counters that the host reads while the kernel runs.
#ifndef AGP_STATS_CUH
#define AGP_STATS_CUH

#include "agp.h"
#include "warp.cuh"

namespace stats {

// give writes s, which begins with its version, to mapped host memory, and to keep for the next
// launch. All lanes call it.
template <class T> AGP_DEVICE void give(uint64_t to, T *keep, T *s) {
	if (warp::lane() == 0) {
		s->version++; // odd
		sys::store64(to, s->version);
		sys::release();
	}
	warp::sync(warp::all);
	for (uint32_t i = warp::lane() * 8; i < sizeof *s; i += AGP_LANES * 8) {
		uint64_t v = *(const uint64_t *)((const char *)s + i);
		*(uint64_t *)((char *)keep + i) = v;
		if (i >= 8)
			sys::store64(to + i, v);
	}
	warp::sync(warp::all);
	if (warp::lane() == 0) {
		sys::release();
		s->version++;
		keep->version = s->version;
		sys::store64(to, s->version);
	}
	warp::sync(warp::all);
}

// fetch brings a struct of whole words close, to shared memory. All lanes call it.
template <class T> AGP_DEVICE void fetch(T *to, const T *from) {
	static_assert(sizeof(T) % 8 == 0, "whole words");
	for (uint32_t i = warp::lane() * 8; i < sizeof *to; i += AGP_LANES * 8)
		*(uint64_t *)((char *)to + i) = *(const uint64_t *)((const char *)from + i);
	warp::sync(warp::all);
}

// stopwatch takes the time of the stages of some batches, in cycles of the device's clock.
struct stopwatch {
	uint64_t *to; // null: not this time
	uint64_t last;

	AGP_DEVICE_MEMBER void start(bool on, uint64_t *stages) {
		to = on && warp::lane() == 0 ? stages : nullptr;
		if (AGP_RARE(to != nullptr))
			last = cycles();
	}
	AGP_DEVICE_MEMBER void lap(int stage) {
		if (AGP_RARE(to != nullptr)) {
			uint64_t now = cycles();
			to[stage] += now - last;
			last = now;
		}
	}
	// stop counts the batch.
	template <class T> AGP_DEVICE_MEMBER void stop(T *s, uint32_t packets) {
		if (AGP_RARE(to != nullptr)) {
			s->timed++;
			s->timed_packets += packets;
		}
	}
};

} // namespace stats

#endif
