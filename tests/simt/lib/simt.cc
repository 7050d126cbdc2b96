// The emulator: lanes as coroutines, warps as threads, blocks with a barrier and shared memory.
//
// It is compiled without instrumentation, also into sanitized builds: what it does is not what
// is looked at. SIMT_ASAN and SIMT_TSAN say which sanitizer the rest was built for.
#include "simt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

static const uint32_t LANES = 32;
static const uint32_t COPIES = 128;          // that a lane has not waited for
static const size_t PAGE = 65536; // no smaller than any machine's
static const size_t STACK = 4 * PAGE;
static const uint32_t ARRAYS = 64;           // shared arrays of a block
static const size_t SHARED = 232448;         // bytes of them, a Hopper block's
static const uint32_t NAP = 50000, NAP_EACH = 25000, LONG_NAP = 1000000; // ns
static const uint32_t POLLED = 64;           // looks that a lane remembers
static const uint32_t BUSY = 1024;           // switches between two naps of a warp that has work

struct context {
	void *sp;
#if !defined(__x86_64__) && !defined(__aarch64__)
	void *portable; // ucontext_t
#endif
};

struct lane {
	context ctx;
	const char *file;
	int line;
	operation op;
	uint32_t mask;
	uint32_t copies;
	void *to[COPIES];
	const void *from[COPIES];
	char *stack; // lowest address
#ifdef SIMT_ASAN
	void *fake;
#endif
#ifdef SIMT_TSAN
	void *fiber, *before, *after; // itself; what its acquire fences wait for; what its release fences cover
	char fence[2];
	bool released;
	uint64_t polled[POLLED]; // the 16 bytes that it has looked at last, in turn
	uint32_t polls;
#endif
};

struct launch;

struct block {
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t warps, arrived; // warps that have not returned, those at the barrier
	uint64_t round;
	volatile int lock; // of what follows
	uint32_t arrays;
	const void *tags[ARRAYS];
	size_t at[ARRAYS];
	size_t used;
	char *memory;
};

struct warp_state {
	here place; // first: current points to it
	uint32_t runnable, waiting, paused, live;
	uint32_t budget;   // accesses until the lane gives way
	uint32_t switches; // since the last nap
	uint32_t nap, asked;
	uint64_t random;
	uint64_t looks; // at the clock
	launch *of;
	block *in;
	pthread_t thread;
	context main;
	char *stacks;
#ifdef SIMT_ASAN
	void *fake;
	const void *bottom;
	size_t size;
#endif
#ifdef SIMT_TSAN
	void *fiber;
	char meet[LANES], done;
#endif
	uint32_t whole; // lanes that wait in a collective of all lanes, and in which
	operation whole_op;
	int whole_line;
	const char *whole_file;
	alignas(64) uint64_t value[LANES];
	uint64_t result[LANES];
	uint32_t arg[LANES];
	lane lanes[LANES];
};

struct launch {
	const kernel *what;
	void *params;
	uint64_t seed;
	uint32_t blocks, warps;
	block *block_list;
	warp_state *warp_list;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t left;
	int go; // 1: run, -1: give up
};

__thread here *current __attribute__((tls_model("initial-exec")));
static const kernel *kernels;
static uint64_t seed_of_next = 1;

kernel::kernel(const char *n, void (*c)(const void *), size_t s, uint32_t w) : name(n), call(c), size(s), warps(w), next(kernels) { kernels = this; }

static inline warp_state &self() { return *(warp_state *)current; }

static inline uint32_t draw(warp_state &w) {
	w.random = w.random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(w.random >> 32);
}

// What ends the process.

static const char *const names[] = {"sync", "barrier", "ballot", "shfl", "shfl_up", "match", "add", "max", "min"};

static const char *base(const char *file) {
	const char *slash = strrchr(file, '/');
	return slash ? slash + 1 : file;
}

static void start_of_message(warp_state &w, const char *what) { fprintf(stderr, "simt: kernel %s, warp %u: %s\n", w.of->what->name, w.place.index, what); }

static void tell(warp_state &w, uint32_t i) {
	lane &l = w.lanes[i];
	fprintf(stderr, "simt:   lane %u in %s(%08x) at %s:%d\n", i, names[l.op], l.mask, base(l.file), l.line);
}

[[noreturn]] static void stop() {
	fflush(stderr);
	abort();
}

[[noreturn]] static void misuse(warp_state &w, const char *what, uint32_t a, uint32_t b) {
	start_of_message(w, what);
	tell(w, a);
	if (b != a && (w.live >> b & 1)) tell(w, b);
	if (b != a && !(w.live >> b & 1)) fprintf(stderr, "simt:   lane %u has returned, last in %s at %s:%d\n", b, w.lanes[b].file ? names[w.lanes[b].op] : "nothing", w.lanes[b].file ? base(w.lanes[b].file) : "its start", w.lanes[b].line);
	stop();
}

[[noreturn]] void misaligned(uint64_t p, uint32_t size, const char *file, int line) {
	warp_state &w = self();
	start_of_message(w, "misaligned address");
	fprintf(stderr, "simt:   lane %u accesses %u bytes at %#llx at %s:%d\n", w.place.lane, size, (unsigned long long)p, base(file), line);
	stop();
}

// Context switch: what a called function keeps goes to the stack, and the stack pointer is
// exchanged.

#if defined(__x86_64__)
extern "C" void simt_switch(context *from, context *to);
asm(R"(
	.text
	.type simt_switch, @function
simt_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq (%rsi), %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	retq
	.size simt_switch, . - simt_switch
)");
static void prepare(context &c, char *top, void (*entry)()) {
	uint64_t *sp = (uint64_t *)top; // a multiple of 16
	*--sp = 0; // the address that entry would return to: the stack is aligned as after a call
	*--sp = (uint64_t)entry;
	for (int i = 0; i < 6; i++) *--sp = 0;
	c.sp = sp;
}
#elif defined(__aarch64__)
extern "C" void simt_switch(context *from, context *to);
asm(R"(
	.text
	.type simt_switch, %function
simt_switch:
	sub sp, sp, #160
	stp x19, x20, [sp, #0]
	stp x21, x22, [sp, #16]
	stp x23, x24, [sp, #32]
	stp x25, x26, [sp, #48]
	stp x27, x28, [sp, #64]
	stp x29, x30, [sp, #80]
	stp d8, d9, [sp, #96]
	stp d10, d11, [sp, #112]
	stp d12, d13, [sp, #128]
	stp d14, d15, [sp, #144]
	mov x9, sp
	str x9, [x0]
	ldr x9, [x1]
	mov sp, x9
	ldp x19, x20, [sp, #0]
	ldp x21, x22, [sp, #16]
	ldp x23, x24, [sp, #32]
	ldp x25, x26, [sp, #48]
	ldp x27, x28, [sp, #64]
	ldp x29, x30, [sp, #80]
	ldp d8, d9, [sp, #96]
	ldp d10, d11, [sp, #112]
	ldp d12, d13, [sp, #128]
	ldp d14, d15, [sp, #144]
	add sp, sp, #160
	ret
	.size simt_switch, . - simt_switch
)");
static void prepare(context &c, char *top, void (*entry)()) {
	uint64_t *sp = (uint64_t *)(top - 160);
	memset(sp, 0, 160);
	sp[11] = (uint64_t)entry; // x30
	c.sp = sp;
}
#else
#include <ucontext.h>
static void simt_switch(context *from, context *to) {
	ucontext_t here;
	from->portable = &here;
	swapcontext(&here, (ucontext_t *)to->portable);
}
static void prepare(context &c, char *top, void (*entry)()) {
	// It lies above the lane's stack, in the page that the lane's offset leaves free.
	ucontext_t *u = (ucontext_t *)(top - sizeof(ucontext_t) - 64);
	getcontext(u);
	u->uc_stack.ss_sp = top - STACK / 2;
	u->uc_stack.ss_size = STACK / 2 - sizeof(ucontext_t) - 128;
	u->uc_link = nullptr;
	makecontext(u, entry, 0);
	c.portable = u;
}
#endif

// enter tells the sanitizers that lane n goes on.

static inline void enter(warp_state &w, uint32_t n, void **fake) {
	w.place.lane = n;
	w.switches++;
#ifdef SIMT_ASAN
	__sanitizer_start_switch_fiber(fake, w.lanes[n].stack, STACK);
#endif
#ifdef SIMT_TSAN
	__tsan_switch_to_fiber(w.lanes[n].fiber, __tsan_switch_to_fiber_no_sync);
#endif
	(void)fake;
}

#ifdef SIMT_ASAN
static void entered(void *fake) { __sanitizer_finish_switch_fiber(fake, nullptr, nullptr); }
#endif

// idle is what a warp does of which no lane can go on: sleep if they have asked for it.
static void idle(warp_state &w) {
	if (!w.paused) {
		start_of_message(w, "lanes wait for each other");
		for (uint32_t i = 0; i < LANES; i++)
			if (w.waiting >> i & 1) tell(w, i);
		stop();
	}
	// One that finds nothing again and again sleeps longer: there may be many more warps than cores.
	uint64_t longest = NAP + (uint64_t)NAP_EACH * w.of->blocks * w.of->warps;
	if (longest > LONG_NAP) longest = LONG_NAP;
	w.nap = w.switches > BUSY ? NAP : w.nap * 2 < longest ? w.nap * 2 : (uint32_t)longest;
	w.switches = 0;
	uint32_t ns = w.asked > w.nap ? w.asked : w.nap;
	w.asked = 0;
	timespec t = {ns / 1000000000, (long)(ns % 1000000000)};
	nanosleep(&t, nullptr);
	w.runnable = w.paused;
	w.paused = 0;
}

// next lets another lane, or the same, go on.
static inline void next(warp_state &w) {
	uint32_t me = w.place.lane;
	if (!w.runnable) idle(w);
	uint32_t r = draw(w), by = r & 31;
	uint32_t turned = w.runnable >> by | w.runnable << (-by & 31);
	uint32_t n = (__builtin_ctz(turned) + by) & 31;
	w.budget = 64 + (r >> 22);
	if (n == me) return;
#ifdef SIMT_ASAN
	enter(w, n, &w.lanes[me].fake);
	simt_switch(&w.lanes[me].ctx, &w.lanes[n].ctx);
	entered(w.lanes[me].fake);
#else
	enter(w, n, nullptr);
	simt_switch(&w.lanes[me].ctx, &w.lanes[n].ctx);
#endif
}

// exit_lane is the end of a lane: its stack is not used again.
[[noreturn]] static void exit_lane(warp_state &w) {
	uint32_t me = w.place.lane, bit = 1u << me;
	w.live &= ~bit;
	w.runnable &= ~bit;
	for (uint32_t i = 0; i < LANES; i++)
		if ((w.waiting >> i & 1) && (w.lanes[i].mask & bit)) misuse(w, "a lane of the mask has returned", i, me);
#ifdef SIMT_TSAN
	__tsan_release(&w.done);
#endif
	if (w.live) {
		next(w);
	} else {
#ifdef SIMT_ASAN
		__sanitizer_start_switch_fiber(nullptr, w.bottom, w.size);
#endif
#ifdef SIMT_TSAN
		__tsan_switch_to_fiber(w.fiber, 0);
#endif
		simt_switch(&w.lanes[me].ctx, &w.main);
	}
	abort();
}

static void start_lane() {
	warp_state &w = self();
#ifdef SIMT_ASAN
	const void *bottom;
	size_t size;
	__sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
	if (!w.bottom) w.bottom = bottom, w.size = size; // the first comes from the thread's own stack
#endif
	w.of->what->call(w.of->params);
	exit_lane(w);
}

// barrier waits for the other warps of the block.
static void wait_for_block(block &b, bool leave) {
	pthread_mutex_lock(&b.mutex);
	if (leave) b.warps--;
	else b.arrived++;
	if (b.arrived >= b.warps) {
		b.arrived = 0;
		b.round++;
		pthread_cond_broadcast(&b.cond);
	} else if (!leave) {
		uint64_t round = b.round;
		while (b.round == round) pthread_cond_wait(&b.cond, &b.mutex);
	}
	pthread_mutex_unlock(&b.mutex);
}

#ifdef SIMT_TSAN
// merge makes all lanes of the mask know what each knew.
static void merge(warp_state &w, uint32_t mask, bool block) {
	char *meet = &w.meet[__builtin_ctz(mask)];
	if (block) {
		__tsan_acquire(meet);
		wait_for_block(*w.in, false);
		__tsan_release(meet);
	}
	void *me = w.lanes[w.place.lane].fiber;
	for (uint32_t m = mask; m; m &= m - 1) {
		__tsan_switch_to_fiber(w.lanes[__builtin_ctz(m)].fiber, __tsan_switch_to_fiber_no_sync);
		__tsan_acquire(meet);
	}
	__tsan_switch_to_fiber(me, __tsan_switch_to_fiber_no_sync);
}
#endif

// source is the lane whose value a shuffle gives to lane i.
static inline uint32_t source(warp_state &w, operation op, uint32_t i) {
	if (op == SHFL) return w.arg[i] & 31;
	return w.arg[i] > i ? i : i - w.arg[i];
}

// complete computes the results of a collective to which all lanes of the mask have come. EACH
// is over the lanes of the mask: a loop of known length is one of vectors.
template <bool ALL> static inline void complete(warp_state &w, operation op, uint32_t mask) {
	uint64_t v = 0;
#define EACH(i) for (uint32_t m = ALL ? 0 : mask, i = ALL ? 0 : __builtin_ctz(m); ALL ? i < LANES : m != 0; ALL ? (void)i++ : (void)(m &= m - 1, i = m ? __builtin_ctz(m) : 0))
	switch (op) {
	case SYNC:
#ifdef SIMT_TSAN
		merge(w, mask, false);
#endif
		return;
	case BARRIER:
#ifdef SIMT_TSAN
		merge(w, mask, true);
#else
		wait_for_block(*w.in, false);
#endif
		return;
	case BALLOT:
		EACH(i) v |= w.value[i] << i;
		break;
	case ADD:
		EACH(i) v += w.value[i];
		break;
	case MAX:
		EACH(i) v = w.value[i] > v ? w.value[i] : v;
		break;
	case MIN:
		v = ~0ull;
		EACH(i) v = w.value[i] < v ? w.value[i] : v;
		break;
	case SHFL:
	case SHFL_UP:
		EACH(i) {
			uint32_t from = source(w, op, i);
			if (!ALL && !(mask >> from & 1)) misuse(w, "a value from a lane outside the mask", i, from);
			w.result[i] = w.value[from];
		}
		return;
	case MATCH:
		for (uint32_t left = mask; left;) {
			uint64_t value = w.value[__builtin_ctz(left)];
			uint32_t same = 0;
			EACH(i) same |= (uint32_t)(w.value[i] == value) << i;
			for (uint32_t m = same; m; m &= m - 1) w.result[__builtin_ctz(m)] = same;
			left &= ~same;
		}
		return;
	}
	EACH(i) w.result[i] = v;
#undef EACH
}

// complete_if completes the collective that lane me has come to, if it is the last. A lane may
// wait for others that first meet among themselves.
static inline void complete_if(warp_state &w, uint32_t me) {
	lane &l = w.lanes[me];
	uint32_t mask = l.mask;
	if ((w.waiting & mask) != mask) return;
	for (uint32_t m = mask; m; m &= m - 1)
		if (w.lanes[__builtin_ctz(m)].mask != mask) return;
	for (uint32_t m = mask; m; m &= m - 1) {
		lane &o = w.lanes[__builtin_ctz(m)];
		if (o.op != l.op || o.line != l.line || (o.file != l.file && strcmp(o.file, l.file))) misuse(w, "lanes of one mask at different collectives", me, __builtin_ctz(m));
	}
	complete<false>(w, l.op, mask);
	w.waiting &= ~mask;
	w.runnable |= mask;
}

// whole is complete_if for a mask of all lanes, which is what most have.
static inline void whole(warp_state &w, uint32_t me) {
	lane &l = w.lanes[me];
	if (w.whole++ == 0) {
		w.whole_op = l.op;
		w.whole_line = l.line;
		w.whole_file = l.file;
	} else if (w.whole_op != l.op || w.whole_line != l.line || (w.whole_file != l.file && strcmp(w.whole_file, l.file))) {
		uint32_t other = 0;
		while (other == me || !(w.waiting >> other & 1) || w.lanes[other].mask != warp::all) other++;
		misuse(w, "lanes of one mask at different collectives", me, other);
	}
	if (w.whole < LANES) return;
	w.whole = 0;
	complete<true>(w, l.op, warp::all);
	w.waiting = 0;
	w.runnable = warp::all;
}

uint64_t collective(operation op, uint32_t mask, uint64_t value, uint32_t arg, const char *file, int line) {
	warp_state &w = self();
	uint32_t me = w.place.lane, bit = 1u << me;
	lane &l = w.lanes[me];
	l.op = op;
	l.mask = mask;
	l.file = file;
	l.line = line;
	w.value[me] = value;
	w.arg[me] = arg;
	if (__builtin_expect(!(mask & bit), 0)) misuse(w, "a mask without its caller", me, me);
	if (__builtin_expect(mask & ~w.live, 0)) misuse(w, "a lane of the mask has returned", me, __builtin_ctz(mask & ~w.live));
#ifdef SIMT_TSAN
	if (op == SYNC || op == BARRIER) __tsan_release(&w.meet[__builtin_ctz(mask)]);
#endif
	w.runnable &= ~bit;
	w.waiting |= bit;
	if (mask == warp::all) whole(w, me);
	else complete_if(w, me);
	next(w);
	return w.result[me];
}

void pause(uint32_t ns) {
	warp_state &w = self();
	uint32_t bit = 1u << w.place.lane;
	w.runnable &= ~bit;
	w.paused |= bit;
	if (ns > w.asked) w.asked = ns;
	next(w);
}

// later leaves in place of what a lane has not waited for what nobody has written.
void later(void *to, const void *from) {
	warp_state &w = self();
	lane &l = w.lanes[w.place.lane];
	if (l.copies == COPIES) {
		start_of_message(w, "more copies than the emulator remembers");
		stop();
	}
	memset(to, 0xa5, 16);
	l.to[l.copies] = to;
	l.from[l.copies++] = from;
}

bool due(void **to, const void **from) {
	lane &l = self().lanes[self().place.lane];
	if (!l.copies) return false;
	*to = l.to[--l.copies];
	*from = l.from[l.copies];
	return true;
}

uint64_t cycles() { return ++self().looks; }

void touch() {
	warp_state &w = self();
	if (__builtin_expect(--w.budget != 0, 1)) return;
	w.runnable |= w.paused;
	w.paused = 0;
	next(w);
}

void *shared(const void *tag, size_t size) {
	warp_state &w = self();
	block &b = *w.in;
	while (__atomic_exchange_n(&b.lock, 1, __ATOMIC_ACQUIRE)) {
	}
	uint32_t i = 0;
	while (i < b.arrays && b.tags[i] != tag) i++;
	if (i == b.arrays) {
		if (i == ARRAYS || size > SHARED - b.used) {
			start_of_message(w, "more shared memory than a block has");
			stop();
		}
		b.tags[i] = tag;
		b.at[i] = b.used;
		b.used += (size + 127) / 128 * 128;
		b.arrays++;
	}
	void *p = b.memory + b.at[i];
	__atomic_store_n(&b.lock, 0, __ATOMIC_RELEASE);
	return p;
}

#ifdef SIMT_TSAN
// Fences: an acquire fence synchronises with the release whose value an earlier relaxed load
// has read, and a release fence lets later relaxed stores publish what was before it. Two
// fibers of the lane stand for these two sets. A byte may be read of a word that was written, so
// that the aligned eight bytes stand for all that are in them; hosts use the exact address.

static void become(void *fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }

void loaded(uint64_t p) {
	lane &l = self().lanes[self().place.lane];
	l.polled[l.polls++ % POLLED] = p & ~15ull;
	if (!l.before) l.before = __tsan_create_fiber(0);
	become(l.before);
	__tsan_acquire((void *)p);
	if (p % 8) __tsan_acquire((void *)(p - p % 8));
	become(l.fiber);
}

void acquire() {
	lane &l = self().lanes[self().place.lane];
	if (!l.before) return;
	become(l.before);
	__tsan_release(&l.fence[0]);
	become(l.fiber);
	__tsan_acquire(&l.fence[0]);
}

void release() {
	lane &l = self().lanes[self().place.lane];
	if (!l.after) l.after = __tsan_create_fiber(0);
	__tsan_release(&l.fence[1]);
	become(l.after);
	__tsan_acquire(&l.fence[1]);
	become(l.fiber);
	l.released = true;
}

void unseen(void *to, const void *from, int words) {
	for (int i = 0; i < words; i++) __atomic_store_n((uint32_t *)to + i, __atomic_load_n((const uint32_t *)from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

bool polled(uint64_t p) {
	for (const lane &l : self().lanes)
		for (uint64_t at : l.polled)
			if (at == p) return true;
	return false;
}

void storing(uint64_t p) {
	lane &l = self().lanes[self().place.lane];
	if (!l.released) return;
	become(l.after);
	__tsan_release((void *)p);
	if (p % 8) __tsan_release((void *)(p - p % 8));
	become(l.fiber);
}
#endif

static void run_warp(warp_state &w) {
	size_t pitch = STACK + PAGE; // a page below each stack is not mapped
	w.stacks = (char *)mmap(nullptr, pitch * LANES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w.stacks == MAP_FAILED) {
		start_of_message(w, "no memory for stacks");
		stop();
	}
	for (uint32_t i = 0; i < LANES; i++) {
		lane &l = w.lanes[i];
		l.stack = w.stacks + i * pitch + PAGE;
		if (mprotect(l.stack, STACK, PROT_READ | PROT_WRITE)) {
			start_of_message(w, "no memory for stacks");
			stop();
		}
		// Stacks that begin at the same place of their pages would share their sets of the cache.
		prepare(l.ctx, l.stack + STACK - i * 192 - 64, start_lane);
#ifdef SIMT_TSAN
		l.fiber = __tsan_create_fiber(0);
#endif
	}
	w.runnable = w.live = warp::all;
	w.nap = NAP;
	w.random = w.of->seed * 0x9e3779b97f4a7c15u + w.place.index;
	for (int i = 0; i < 4; i++) draw(w);
	current = &w.place;
	uint32_t first = draw(w) & 31;
	w.budget = 64;
#ifdef SIMT_TSAN
	w.fiber = __tsan_get_current_fiber();
#endif
#ifdef SIMT_ASAN
	enter(w, first, &w.fake);
	simt_switch(&w.main, &w.lanes[first].ctx);
	entered(w.fake);
	__asan_unpoison_memory_region(w.stacks, pitch * LANES);
#else
	enter(w, first, nullptr);
	simt_switch(&w.main, &w.lanes[first].ctx);
#endif
#ifdef SIMT_TSAN
	__tsan_acquire(&w.done);
	for (uint32_t i = 0; i < LANES; i++) {
		__tsan_destroy_fiber(w.lanes[i].fiber);
		if (w.lanes[i].before) __tsan_destroy_fiber(w.lanes[i].before);
		if (w.lanes[i].after) __tsan_destroy_fiber(w.lanes[i].after);
	}
#endif
	munmap(w.stacks, pitch * LANES);
	wait_for_block(*w.in, true);
}

static void *warp_thread(void *arg) {
	warp_state &w = *(warp_state *)arg;
	launch &l = *w.of;
	pthread_mutex_lock(&l.mutex);
	while (!l.go) pthread_cond_wait(&l.cond, &l.mutex);
	int go = l.go;
	pthread_mutex_unlock(&l.mutex);
	if (go > 0) run_warp(w);
	pthread_mutex_lock(&l.mutex);
	if (--l.left == 0) pthread_cond_broadcast(&l.cond);
	pthread_mutex_unlock(&l.mutex);
	return nullptr;
}

static void init(pthread_mutex_t &m, pthread_cond_t &c) {
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&m, nullptr);
	pthread_cond_init(&c, &attr);
	pthread_condattr_destroy(&attr);
}

static void free_launch(launch *l) {
	for (uint32_t i = 0; i < l->blocks; i++) {
		block &b = l->block_list[i];
		pthread_mutex_destroy(&b.mutex);
		pthread_cond_destroy(&b.cond);
		free(b.memory);
	}
	pthread_mutex_destroy(&l->mutex);
	pthread_cond_destroy(&l->cond);
	free(l->block_list);
	free(l->warp_list);
	free(l->params);
	free(l);
}

} // namespace simt

using namespace simt;

extern "C" {

void simt_seed(uint64_t seed) { __atomic_store_n(&seed_of_next, seed, __ATOMIC_RELAXED); }

int simt_launch(const char *name, uint32_t blocks, uint32_t warps, const void *params, size_t size, void **handle) {
	const kernel *k = kernels;
	while (k && strcmp(k->name, name)) k = k->next;
	if (!k) return SIMT_KERNEL;
	if (size != k->size) return SIMT_SIZE;
	if (!blocks || !warps || warps > k->warps || (uint64_t)blocks * warps > 65536) return SIMT_GRID;

	launch *l = (launch *)calloc(1, sizeof *l);
	l->what = k;
	l->seed = __atomic_load_n(&seed_of_next, __ATOMIC_RELAXED);
	l->blocks = blocks;
	l->warps = warps;
	l->params = aligned_alloc(64, (size + 63) / 64 * 64);
	memcpy(l->params, params, size);
	init(l->mutex, l->cond);
	l->block_list = (block *)calloc(blocks, sizeof(block));
	l->warp_list = (warp_state *)aligned_alloc(64, (size_t)blocks * warps * sizeof(warp_state));
	memset(l->warp_list, 0, (size_t)blocks * warps * sizeof(warp_state));
	for (uint32_t i = 0; i < blocks; i++) {
		block &b = l->block_list[i];
		init(b.mutex, b.cond);
		b.warps = warps;
		b.memory = (char *)aligned_alloc(128, SHARED);
		memset(b.memory, 0xa5, SHARED);
	}

	// Signals are for the program that this is part of, not for threads that it does not know.
	sigset_t every, old;
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &old);
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	uint32_t n = 0;
	l->left = blocks * warps;
	for (; n < blocks * warps; n++) {
		warp_state &w = l->warp_list[n];
		w.of = l;
		w.in = &l->block_list[n / warps];
		w.place.index = n;
		w.place.local = n % warps;
		if (pthread_create(&w.thread, &attr, warp_thread, &w)) break;
	}
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, nullptr);

	bool all = n == blocks * warps;
	pthread_mutex_lock(&l->mutex);
	l->left = n;
	l->go = all ? 1 : -1;
	pthread_cond_broadcast(&l->cond);
	pthread_mutex_unlock(&l->mutex);
	if (!all) {
		for (uint32_t i = 0; i < n; i++) pthread_join(l->warp_list[i].thread, nullptr);
		free_launch(l);
		return SIMT_THREADS;
	}
	*handle = l;
	return SIMT_OK;
}

int simt_wait(void *handle, int64_t timeout_ns) {
	launch &l = *(launch *)handle;
	timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	if (timeout_ns > 0) {
		until.tv_sec += timeout_ns / 1000000000;
		until.tv_nsec += timeout_ns % 1000000000;
		if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&l.mutex);
	int rc = 0;
	while (l.left && rc != ETIMEDOUT) rc = timeout_ns < 0 ? pthread_cond_wait(&l.cond, &l.mutex) : pthread_cond_timedwait(&l.cond, &l.mutex, &until);
	int running = l.left != 0;
	pthread_mutex_unlock(&l.mutex);
	return running;
}

void simt_release(void *handle) {
	launch *l = (launch *)handle;
	for (uint32_t i = 0; i < l->blocks * l->warps; i++) pthread_join(l->warp_list[i].thread, nullptr);
	free_launch(l);
}
}
