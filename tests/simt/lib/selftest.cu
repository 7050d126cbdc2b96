// Kernels that test the emulator itself.
#include "warp.cuh"

// intrinsics: every lane calls everything once per round, with the lanes of its own group.
struct intrinsics_in {
	uint64_t wide, other;
	uint32_t mask, value, from, by;
};
struct intrinsics_out {
	uint64_t shfl64, shfl_up, mulhi;
	uint32_t ballot, shfl, match, match64, add, max, min, swap32;
	int32_t popc, ffs, bits;
	uint32_t lane, index, local;
};
struct intrinsics_params {
	uint64_t in, out; // [warps][rounds][32]
	uint32_t rounds, pad;
};
AGP_KERNEL(intrinsics, intrinsics_params, p) {
	uint32_t lane = warp::lane();
	for (uint32_t r = 0; r < p.rounds; r++) {
		uint64_t at = ((uint64_t)warp::index() * p.rounds + r) * 32 + lane;
		const intrinsics_in &i = ((const intrinsics_in *)p.in)[at];
		intrinsics_out &o = ((intrinsics_out *)p.out)[at];
		o.ballot = warp::ballot(i.mask, i.value & 1);
		o.shfl = warp::shfl(i.mask, i.value, i.from);
		o.shfl64 = warp::shfl(i.mask, i.wide, i.from);
		o.shfl_up = warp::shfl_up(i.mask, i.wide, i.by);
		o.match = warp::match(i.mask, i.value);
		o.match64 = warp::match(i.mask, i.wide);
		o.add = warp::add(i.mask, i.value);
		o.max = warp::max(i.mask, i.value);
		o.min = warp::min(i.mask, i.value);
		warp::sync(i.mask);
		o.popc = popc(i.value);
		o.ffs = ffs(i.value);
		o.bits = bits(i.wide);
		o.mulhi = mulhi(i.wide, i.other);
		o.swap32 = swap32(i.value);
		o.lane = lane;
		o.index = warp::index();
		o.local = warp::local();
	}
}

// misuse: what the device leaves undefined.
struct misuse_params {
	uint32_t which, pad;
};
AGP_KERNEL(misuse, misuse_params, p) {
	uint32_t lane = warp::lane();
	switch (p.which) {
	case 0: // lanes of one mask at different collectives
		if (lane == 7) warp::sync(warp::all);
		else warp::ballot(warp::all, true);
		break;
	case 1: // the same function at two places
		if (lane & 1) warp::add(warp::all, 1);
		else
			warp::add(warp::all, 2);
		break;
	case 2: // a lane of the mask has returned
		if (lane == 3) return;
		warp::sync(warp::all);
		break;
	case 3: // a mask without its caller
		warp::sync(warp::all & ~(1u << 5));
		break;
	case 4: // a value from a lane outside the mask
		warp::shfl(lane < 16 ? 0xffffu : 0xffff0000u, lane, 20);
		break;
	case 5: // lanes wait for each other
		if (lane < 2) warp::sync(3);
		else if (lane == 2) warp::sync(7);
		if (lane < 2) warp::sync(1u << lane | 4);
		break;
	case 6: { // an address that is not aligned
		uint64_t v[2] = {1, 2};
		sys::load32((uint64_t)v + 2);
		break;
	}
	case 7: {
		uint64_t v[4] = {1, 2, 3, 4};
		load16((void *)(((uint64_t)v + 15) / 16 * 16 + 8));
		break;
	}
	case 8: { // more shared memory than there is
		AGP_SHARED(uint8_t, much, 300000);
		much[lane] = 1;
		break;
	}
	}
}

// exchange: every lane writes a word and reads its neighbour's.
struct exchange_params {
	uint64_t out; // uint32[32]
	uint32_t synced, pad;
};
AGP_KERNEL(exchange, exchange_params, p) {
	AGP_SHARED(uint32_t, words, 32);
	uint32_t lane = warp::lane();
	words[lane] = 100;
	warp::sync(warp::all);
	words[lane] = lane;
	// A shuffle makes lanes meet, but orders no memory.
	if (p.synced == 1) warp::sync(warp::all);
	if (p.synced == 2) warp::shfl(warp::all, lane, 0);
	((uint32_t *)p.out)[lane] = words[(lane + 1) & 31];
}

// messages: the first warp publishes, the second reads.
struct messages_params {
	uint64_t flag, data; // uint32, uint64[32]
	uint64_t out;        // uint64[32]
	uint32_t count;
	uint8_t no_release, no_acquire, no_sync, late;
};
AGP_KERNEL(messages, messages_params, p) {
	uint32_t lane = warp::lane();
	uint64_t *data = (uint64_t *)p.data;
	for (uint32_t i = 1; i <= p.count; i++) {
		if (warp::index() == 0) {
			if (i > 1) {
				while (sys::load32(p.flag + 4) != i - 1) pause(100);
				sys::acquire();
				warp::sync(warp::all);
			}
			if (!p.late) data[lane] = (uint64_t)i << 32 | lane;
			if (!p.no_sync) warp::sync(warp::all);
			else warp::ballot(warp::all, true);
			if (lane == 0) {
				if (!p.no_release) sys::release();
				if (p.late) data[0] = i; // after the fence
				sys::store32(p.flag, i);
			}
		} else {
			while (sys::load32(p.flag) != i) pause(100);
			if (!p.no_acquire) sys::acquire();
			((uint64_t *)p.out)[lane] += data[lane ^ 1];
			warp::sync(warp::all);
			if (lane == 0) {
				sys::release();
				sys::store32(p.flag + 4, i);
			}
		}
	}
}

// rows: every warp of a block fills a row of shared memory, and after a barrier each reads a
// column; half of the lanes leave before the last round.
struct rows_params {
	uint64_t out; // uint32[warps]
	uint32_t warps, synced;
};
AGP_KERNEL(rows, rows_params, p) {
	AGP_SHARED(uint32_t, table, WARPS_PER_BLOCK * 32);
	uint32_t lane = warp::lane(), row = warp::local();
	table[row * 32 + lane] = warp::index() * 1000 + lane;
	if (p.synced) warp::barrier();
	uint32_t sum = 0;
	if (lane < p.warps) sum = table[lane * 32 + row];
	sum = warp::add(warp::all, sum);
	if (lane & 1) return;
	uint32_t mask = 0x55555555;
	sum = warp::max(mask, sum + lane) - 30;
	if (lane == 0) ((uint32_t *)p.out)[warp::index()] = sum;
}

// echo answers every word that the host writes until it is 0.
struct echo_params {
	uint64_t in, out; // uint64
};
AGP_KERNEL(echo, echo_params, p) {
	uint64_t last = ~0ull;
	for (;;) {
		uint64_t v = warp::shfl(warp::all, sys::load64(p.in), 0);
		if (v == last) {
			pause(1000);
			continue;
		}
		last = v;
		if (warp::lane() == 0) {
			sys::release();
			sys::store64(p.out, v + 1);
		}
		if (v == 0) return;
	}
}

// spin: a lane waits for another of its warp, without a collective and without a pause.
struct spin_params {
	uint64_t word; // uint32
};
AGP_KERNEL(spin, spin_params, p) {
	if (warp::lane() == 0) sys::store32(p.word, 1);
	else
		while (sys::load32(p.word) == 0) {
		}
	if (warp::lane() == 9) {
		sys::store32(p.word, 2);
	} else if (warp::lane() == 8) {
		while (sys::load32(p.word) != 2) pause(10);
	}
}

// turns is for the speed of collectives.
struct turns_params {
	uint64_t out; // uint32
	uint32_t count, pad;
};
AGP_KERNEL(turns, turns_params, p) {
	uint32_t v = warp::lane();
	for (uint32_t i = 0; i < p.count; i++) v = warp::shfl(warp::all, v, v + i) + 1;
	v = warp::add(warp::all, v);
	if (warp::lane() == 0) *(uint32_t *)p.out = v;
}

// stray writes past what it was given, for AddressSanitizer.
struct stray_params {
	uint64_t out;
	uint32_t count, pad;
};
AGP_KERNEL(stray, stray_params, p) {
	((uint8_t *)p.out)[p.count - 32 + warp::lane() + 1] = 1;
}

// overflow adds to a signed number, for UndefinedBehaviorSanitizer.
AGP_KERNEL(overflow, turns_params, p) {
	int32_t v = 0x7fffff00 + (int32_t)p.count * (int32_t)warp::lane();
	v = (int32_t)warp::max(warp::all, (uint32_t)v);
	if (warp::lane() == 0) *(int32_t *)p.out = v;
}
