// The host side of cuda/kernels/warp.cuh: what a warp's instructions and the device's memory
// model mean, for a C++ compiler.
//
// Every lane is a coroutine, every warp an operating system thread. A lane runs until it meets
// a collective (a function with a mask) and waits there until all lanes of the mask have come;
// which lane goes on next is drawn from a seed, so that results that depend on an order which
// nothing enforces differ from seed to seed. What the device leaves undefined ends the process
// with a message that names the places: lanes of one mask at different collectives, a mask
// without its caller or with a lane that has returned, a value from a lane outside the mask, an
// address that is not aligned.
//
// Device addresses are host addresses. System-scope accesses are relaxed atomics, and fences are
// fences. Under ThreadSanitizer every lane is a thread of its own, and only what the device's
// memory model calls synchronisation is one: warp::sync and warp::barrier, and a release and an
// acquire around accesses of namespace sys to the same place. Shuffles, votes, matches and
// reductions order nothing, as on the device.
#ifndef AGP_SIMT_H
#define AGP_SIMT_H

#include <stddef.h>
#include <stdint.h>

#define AGP_DEVICE static inline
#define AGP_DEVICE_MEMBER inline
#define AGP_OUTLINE static __attribute__((noinline, unused))
#define AGP_CONST static const

#define AGP_KERNEL(name, type, arg)                                                                      \
	static void name(const type &arg);                                                                   \
	static void simt_call_##name(const void *p) { name(*(const type *)p); }                              \
	static const simt::kernel simt_kernel_##name(#name, simt_call_##name, sizeof(type), WARPS_PER_BLOCK); \
	static void name(const type &arg)
#define AGP_SHARED(type, name, count)   \
	static char simt_tag_##name;        \
	type *const name = (type *)simt::shared(&simt_tag_##name, sizeof(type) * (count))

#define SIMT_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace simt {

enum operation : uint32_t { SYNC, BARRIER, BALLOT, SHFL, SHFL_UP, MATCH, ADD, MAX, MIN };

// here is where the calling lane is.
struct here {
	uint32_t lane, index, local;
};
extern __thread here *current __attribute__((tls_model("initial-exec")));

struct kernel {
	kernel(const char *name, void (*call)(const void *), size_t size, uint32_t warps);
	const char *name;
	void (*call)(const void *);
	size_t size;
	uint32_t warps; // of a block, at most
	const kernel *next;
};

uint64_t collective(operation op, uint32_t mask, uint64_t value, uint32_t arg, const char *file, int line);
void *shared(const void *tag, size_t size);
void pause(uint32_t ns);
uint64_t cycles();
void later(void *to, const void *from);
bool due(void **to, const void **from);
[[noreturn]] void misaligned(uint64_t p, uint32_t size, const char *file, int line);

// touch comes before an access of namespace sys: a lane that only looks at memory gives way to
// others after a while, since lanes of a warp make progress independently.
void touch();

// What ThreadSanitizer is told of relaxed accesses and fences; nothing without it.
#if defined(__SANITIZE_THREAD__) || defined(SIMT_TSAN)
void loaded(uint64_t p);
void storing(uint64_t p);
void acquire();
void release();
void unseen(void *to, const void *from, int words);
bool polled(uint64_t p);
#else
static inline void loaded(uint64_t) {}
static inline void storing(uint64_t) {}
static inline void acquire() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void release() { __atomic_thread_fence(__ATOMIC_RELEASE); }
#endif

template <class T> static inline T load(uint64_t p, const char *file, int line) {
	typedef T __attribute__((may_alias)) alias;
	if (__builtin_expect(p % sizeof(T) != 0, 0)) misaligned(p, sizeof(T), file, line);
	touch();
	T v = __atomic_load_n((const alias *)p, __ATOMIC_RELAXED);
	loaded(p);
	return v;
}
template <class T> static inline void store(uint64_t p, T v, const char *file, int line) {
	typedef T __attribute__((may_alias)) alias;
	if (__builtin_expect(p % sizeof(T) != 0, 0)) misaligned(p, sizeof(T), file, line);
	storing(p);
	__atomic_store_n((alias *)p, v, __ATOMIC_RELAXED);
}

} // namespace simt

namespace warp {

const uint32_t all = 0xffffffffu;

AGP_DEVICE uint32_t lane() { return simt::current->lane; }
// index is the number of the warp in the grid.
AGP_DEVICE uint32_t index() { return simt::current->index; }
// local is the number of the warp in its block.
AGP_DEVICE uint32_t local() { return simt::current->local; }

AGP_DEVICE void sync(uint32_t mask, SIMT_AT) { simt::collective(simt::SYNC, mask, 0, 0, file, line); }
AGP_DEVICE void barrier(SIMT_AT) { simt::collective(simt::BARRIER, all, 0, 0, file, line); }
AGP_DEVICE uint32_t ballot(uint32_t mask, bool v, SIMT_AT) { return (uint32_t)simt::collective(simt::BALLOT, mask, v, 0, file, line); }
AGP_DEVICE uint32_t shfl(uint32_t mask, uint32_t v, uint32_t from, SIMT_AT) { return (uint32_t)simt::collective(simt::SHFL, mask, v, from, file, line); }
AGP_DEVICE uint64_t shfl(uint32_t mask, uint64_t v, uint32_t from, SIMT_AT) { return simt::collective(simt::SHFL, mask, v, from, file, line); }
AGP_DEVICE uint64_t shfl_up(uint32_t mask, uint64_t v, uint32_t by, SIMT_AT) { return simt::collective(simt::SHFL_UP, mask, v, by, file, line); }
AGP_DEVICE uint32_t match(uint32_t mask, uint32_t v, SIMT_AT) { return (uint32_t)simt::collective(simt::MATCH, mask, v, 0, file, line); }
AGP_DEVICE uint32_t match(uint32_t mask, uint64_t v, SIMT_AT) { return (uint32_t)simt::collective(simt::MATCH, mask, v, 0, file, line); }
AGP_DEVICE uint32_t add(uint32_t mask, uint32_t v, SIMT_AT) { return (uint32_t)simt::collective(simt::ADD, mask, v, 0, file, line); }
AGP_DEVICE uint32_t max(uint32_t mask, uint32_t v, SIMT_AT) { return (uint32_t)simt::collective(simt::MAX, mask, v, 0, file, line); }
AGP_DEVICE uint32_t min(uint32_t mask, uint32_t v, SIMT_AT) { return (uint32_t)simt::collective(simt::MIN, mask, v, 0, file, line); }

} // namespace warp

AGP_DEVICE int popc(uint32_t v) { return __builtin_popcount(v); }
// ffs is the index of the lowest bit, -1 if there is none.
AGP_DEVICE int ffs(uint32_t v) { return v ? __builtin_ctz(v) : -1; }
// bits is the number of significant bits.
AGP_DEVICE int bits(uint64_t v) { return v ? 64 - __builtin_clzll(v) : 0; }
AGP_DEVICE uint64_t mulhi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
AGP_DEVICE uint32_t swap32(uint32_t v) { return __builtin_bswap32(v); }
AGP_DEVICE void pause(uint32_t ns) { simt::pause(ns); }

namespace sys {

AGP_DEVICE uint8_t load8(uint64_t p, SIMT_AT) { return simt::load<uint8_t>(p, file, line); }
AGP_DEVICE uint32_t load32(uint64_t p, SIMT_AT) { return simt::load<uint32_t>(p, file, line); }
AGP_DEVICE uint64_t load64(uint64_t p, SIMT_AT) { return simt::load<uint64_t>(p, file, line); }
AGP_DEVICE void store32(uint64_t p, uint32_t v, SIMT_AT) { simt::store<uint32_t>(p, v, file, line); }
AGP_DEVICE void store64(uint64_t p, uint64_t v, SIMT_AT) { simt::store<uint64_t>(p, v, file, line); }
#ifdef SIMT_NO_ACQUIRE // a fault for tests
AGP_DEVICE void acquire() {}
#else
AGP_DEVICE void acquire() { simt::acquire(); }
#endif
#ifdef SIMT_NO_RELEASE // a fault for tests
AGP_DEVICE void release() {}
#else
AGP_DEVICE void release() { simt::release(); }
#endif

} // namespace sys

namespace near {

AGP_DEVICE uint32_t take32(const uint32_t *p, SIMT_AT) {
	uint32_t v = simt::load<uint32_t>((uint64_t)p, file, line);
	simt::acquire();
	return v;
}
AGP_DEVICE void give32(uint32_t *p, uint32_t v, SIMT_AT) {
	simt::release();
	simt::store<uint32_t>((uint64_t)p, v, file, line);
}

} // namespace near

namespace own {

AGP_DEVICE void add(uint32_t *p, uint32_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
AGP_DEVICE void add(uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

} // namespace own

AGP_DEVICE void hint(const void *) {}

// words is 16 bytes, loaded and stored at once; p is a multiple of 16.
struct words {
	uint32_t w[4];
};
AGP_DEVICE words load16(const void *p, SIMT_AT) {
	if (__builtin_expect((uint64_t)p % 16 != 0, 0)) simt::misaligned((uint64_t)p, 16, file, line);
	words v;
	__builtin_memcpy(&v, p, sizeof v);
	return v;
}
// take16 loads what another device has written, give16 stores it. To ThreadSanitizer, the last
// word stands for all four, which become visible at once, and take16 is a plain access: relaxed
// ones race with nothing, but what is taken without an order to who has written it is not worth
// taking. The 16 bytes whose owner a lane of the warp has polled are the order themselves:
// the rest of the entry tells whether there was one.
AGP_DEVICE words take16(uint64_t p, SIMT_AT) {
	if (__builtin_expect(p % 16 != 0, 0)) simt::misaligned(p, 16, file, line);
#ifdef __SANITIZE_THREAD__
	words v;
	simt::unseen(v.w, (const void *)p, 4);
	if (!simt::polled(p)) v.w[3] = *(const uint32_t __attribute__((may_alias)) *)(p + 12);
	return v;
#else
	return words{{sys::load32(p), sys::load32(p + 4), sys::load32(p + 8), sys::load32(p + 12)}};
#endif
}
AGP_DEVICE void give16(uint64_t p, words v, SIMT_AT) {
	if (__builtin_expect(p % 16 != 0, 0)) simt::misaligned(p, 16, file, line);
#ifdef __SANITIZE_THREAD__
	simt::unseen((void *)p, v.w, 3);
#else
	for (int i = 0; i < 3; i++) sys::store32(p + 4 * i, v.w[i]);
#endif
	sys::store32(p + 12, v.w[3]);
}
// The copies of a lane are made when it waits for them.
namespace copies {
AGP_DEVICE void load(void *shared, const void *global, uint32_t n, bool on, SIMT_AT) {
	warp::sync(warp::all, file, line);
	if (__builtin_expect(((uint64_t)shared | (uint64_t)global | n) % 16 != 0, 0)) simt::misaligned((uint64_t)shared | (uint64_t)global | n, 16, file, line);
	for (uint32_t i = 0; on && i < n; i += 16) simt::later((char *)shared + i, (const char *)global + i);
}
AGP_DEVICE void fetch(void *shared, uint64_t global, SIMT_AT) {
	if (__builtin_expect(((uint64_t)shared | global) % 16 != 0, 0)) simt::misaligned((uint64_t)shared | global, 16, file, line);
	simt::later(shared, (const void *)global);
}
AGP_DEVICE void arrived(SIMT_AT) {
	void *to;
	const void *from;
	while (simt::due(&to, &from)) __builtin_memcpy(to, from, 16);
	warp::sync(warp::all, file, line);
}
AGP_DEVICE void store(void *global, const void *shared, uint32_t n, bool on, SIMT_AT) {
	warp::sync(warp::all, file, line);
	if (__builtin_expect(((uint64_t)shared | (uint64_t)global | n) % 16 != 0, 0)) simt::misaligned((uint64_t)shared | (uint64_t)global | n, 16, file, line);
	if (on) __builtin_memcpy(global, shared, n);
}
} // namespace copies
// cycles goes on by one with every look.
AGP_DEVICE uint64_t cycles() { return simt::cycles(); }
AGP_DEVICE void store16(void *p, words v, SIMT_AT) {
	if (__builtin_expect((uint64_t)p % 16 != 0, 0)) simt::misaligned((uint64_t)p, 16, file, line);
	__builtin_memcpy(p, &v, sizeof v);
}

#undef SIMT_AT

// What a host program sees, see simt.cc.
extern "C" {
// simt_launch starts blocks x warps warps of a kernel, which read a copy of params. It answers
// 0 and a handle, or one of SIMT_*.
int simt_launch(const char *kernel, uint32_t blocks, uint32_t warps, const void *params, size_t size, void **handle);
// simt_wait answers 0 if the kernel has returned, 1 if it has not within timeout_ns; forever if
// that is negative. Several threads may wait.
int simt_wait(void *handle, int64_t timeout_ns);
// simt_release frees a handle whose kernel has returned.
void simt_release(void *handle);
// simt_seed is what launches after it draw the order of lanes from.
void simt_seed(uint64_t seed);
}

enum { SIMT_OK = 0, SIMT_KERNEL = 1, SIMT_SIZE = 2, SIMT_GRID = 3, SIMT_THREADS = 4 };

#endif
