// The only place where a warp's instructions and the memory model are named. The host build
// (tests/simt) gives the same functions, with lanes in lock step, so that everything above is
// one source for both.
//
// Functions with a mask are called by all lanes of the mask together and by no other. A lane is
// a thread of a warp; blocks are one-dimensional, of whole warps.
#ifndef AGP_WARP_CUH
#define AGP_WARP_CUH

#include <stdint.h>

// AGP_RARE is a condition that hardly ever holds: what follows from it is put out of the way of the
// rest, since instructions are fetched in lines.
#define AGP_RARE(x) __builtin_expect(!!(x), 0)

enum { WARPS_PER_BLOCK = 8 }; // at most

// QUIET is after how many polls without work a warp gives the host a sign of life: some milliseconds
// on a GPU. On the host, where a poll takes as long as a thread waits for its turn, it is much less.
#ifdef __CUDACC__
const uint32_t QUIET = 8192;
#else
const uint32_t QUIET = 64;
#endif

#ifdef __CUDACC__

#define AGP_DEVICE static __device__ __forceinline__
#define AGP_DEVICE_MEMBER __device__ __forceinline__
#define AGP_OUTLINE static __device__ __noinline__
#define AGP_CONST static __device__ const
#define AGP_UNROLL _Pragma("unroll")
// A kernel has one argument, a struct, of at most WARPS_PER_BLOCK warps a block. AGP_SHARED
// declares memory of the block inside it.
#define AGP_KERNEL(name, type, arg) extern "C" __global__ void __launch_bounds__(32 * WARPS_PER_BLOCK, 1) name(const __grid_constant__ type arg)
#define AGP_SHARED(type, name, count) __shared__ type name[count]
// AGP_SHARED_LAUNCH is memory whose size the launch says, at most max bytes.
#define AGP_SHARED_LAUNCH(name, max) extern __shared__ __align__(16) char name[]

namespace warp {

const uint32_t all = 0xffffffffu;

AGP_DEVICE uint32_t lane() {
	uint32_t l;
	asm("mov.u32 %0, %%laneid;" : "=r"(l));
	return l;
}
// index is the number of the warp in the grid.
AGP_DEVICE uint32_t index() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }
// local is the number of the warp in its block.
AGP_DEVICE uint32_t local() { return threadIdx.x / 32; }

// sync also orders the memory accesses of its lanes; the others order nothing.
AGP_DEVICE void sync(uint32_t mask) { __syncwarp(mask); }
// barrier is for all lanes of all warps of the block that have not returned.
AGP_DEVICE void barrier() { __syncthreads(); }
AGP_DEVICE uint32_t ballot(uint32_t mask, bool v) { return __ballot_sync(mask, v); }
AGP_DEVICE uint32_t shfl(uint32_t mask, uint32_t v, uint32_t from) { return __shfl_sync(mask, v, from); }
AGP_DEVICE uint64_t shfl(uint32_t mask, uint64_t v, uint32_t from) { return __shfl_sync(mask, (unsigned long long)v, from); }
AGP_DEVICE uint64_t shfl_up(uint32_t mask, uint64_t v, uint32_t by) { return __shfl_up_sync(mask, (unsigned long long)v, by); }
AGP_DEVICE uint32_t match(uint32_t mask, uint32_t v) { return __match_any_sync(mask, v); }
AGP_DEVICE uint32_t match(uint32_t mask, uint64_t v) { return __match_any_sync(mask, (unsigned long long)v); }
AGP_DEVICE uint32_t add(uint32_t mask, uint32_t v) { return __reduce_add_sync(mask, v); }
AGP_DEVICE uint32_t max(uint32_t mask, uint32_t v) { return __reduce_max_sync(mask, v); }
AGP_DEVICE uint32_t min(uint32_t mask, uint32_t v) { return __reduce_min_sync(mask, v); }

} // namespace warp

AGP_DEVICE int popc(uint32_t v) { return __popc(v); }
// ffs is the index of the lowest bit, -1 if there is none.
AGP_DEVICE int ffs(uint32_t v) { return __ffs(v) - 1; }
// bits is the number of significant bits.
AGP_DEVICE int bits(uint64_t v) { return 64 - __clzll(v); }
AGP_DEVICE uint64_t mulhi(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
AGP_DEVICE uint32_t swap32(uint32_t v) { return __byte_perm(v, 0, 0x0123); }
AGP_DEVICE void pause(uint32_t ns) { __nanosleep(ns); }

// What others write or read while the kernel runs: system scope, never from L1.
namespace sys {

AGP_DEVICE uint8_t load8(uint64_t p) {
	uint32_t v;
	asm volatile("ld.relaxed.sys.global.L1::no_allocate.u8 %0, [%1];" : "=r"(v) : "l"(p));
	return (uint8_t)v;
}
AGP_DEVICE uint32_t load32(uint64_t p) {
	uint32_t v;
	asm volatile("ld.relaxed.sys.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
	return v;
}
AGP_DEVICE uint64_t load64(uint64_t p) {
	uint64_t v;
	asm volatile("ld.relaxed.sys.global.L1::no_allocate.u64 %0, [%1];" : "=l"(v) : "l"(p));
	return v;
}
AGP_DEVICE void store32(uint64_t p, uint32_t v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
AGP_DEVICE void store64(uint64_t p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
AGP_DEVICE void acquire() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
AGP_DEVICE void release() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

} // namespace sys

// What warps of a block tell each other in shared memory: who takes a word sees what was written
// before it was given.
namespace near {

AGP_DEVICE uint32_t take32(const uint32_t *p) {
	uint32_t v;
	asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
AGP_DEVICE void give32(uint32_t *p, uint32_t v) { asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

} // namespace near

// Counters in the device's memory that no other warp changes: they are added to without waiting
// for what they were, and lanes may meet in one.
namespace own {

AGP_DEVICE void add(uint32_t *p, uint32_t v) { asm volatile("red.relaxed.cta.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
AGP_DEVICE void add(uint64_t *p, uint64_t v) { asm volatile("red.relaxed.cta.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }

} // namespace own

// hint asks for memory around p to be brought to L2.
AGP_DEVICE void hint(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// words is 16 bytes, loaded and stored at once; p is a multiple of 16.
struct words {
	uint32_t w[4];
};
// take16 loads what another device has written: it may not come from L1.
AGP_DEVICE words take16(uint64_t p) {
	words v;
	asm volatile("ld.relaxed.sys.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
	return v;
}
// give16 stores what another device will read. The halves of what two calls store become visible
// in any order unless a release is between them.
AGP_DEVICE void give16(uint64_t p, words v) {
	asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
// cycles is a clock of the multiprocessor.
AGP_DEVICE uint64_t cycles() {
	uint64_t v;
	asm volatile("mov.u64 %0, %%clock64;" : "=l"(v));
	return v;
}
// Copies of whole rows between the device's memory and shared memory, for all lanes of a warp at
// once: each lane has one row of n bytes, a constant and a multiple of 16. Bulk copies of
// capability 9.0 are no help: the lanes' copies would be issued one after the other.
namespace copies {

// load begins to copy. What lanes have stored before is in it; what is in shared memory is lost.
AGP_DEVICE void load(void *shared, const void *global, const uint32_t n, bool on) {
	__threadfence_block();
	warp::sync(warp::all);
	uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
	if (on) {
		AGP_UNROLL
		for (uint32_t i = 0; i < n; i += 16)
			asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"((const char *)global + i) : "memory");
	}
}
// fetch begins to copy 16 bytes that another device has written: not by way of L1. It is no
// collective.
AGP_DEVICE void fetch(void *shared, uint64_t global) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}
// arrived waits for what load and fetch have begun.
AGP_DEVICE void arrived() {
	asm volatile("cp.async.wait_all;" ::: "memory");
	warp::sync(warp::all);
}
// store copies back what the lanes have written before. It is there after a sync.
AGP_DEVICE void store(void *global, const void *shared, const uint32_t n, bool on) {
	warp::sync(warp::all);
	if (on) {
		AGP_UNROLL
		for (uint32_t i = 0; i < n; i += 16)
			*(uint4 *)((char *)global + i) = *(const uint4 *)((const char *)shared + i);
	}
}

} // namespace copies

AGP_DEVICE words load16(const void *p) {
	uint4 v = *(const uint4 *)p;
	return words{{v.x, v.y, v.z, v.w}};
}
AGP_DEVICE void store16(void *p, words v) { *(uint4 *)p = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]); }

#else
#include "simt.h"
#define AGP_UNROLL
#define AGP_SHARED_LAUNCH(name, max) AGP_SHARED(char, name, max)
#endif

#endif
