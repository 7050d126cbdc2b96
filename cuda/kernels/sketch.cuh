// Summaries of all traffic in fixed memory: agp/sketch on the device, with the same hashes and
// cells, so that what Go reads back is what it would have computed. Each sketch belongs to one
// warp; there are no atomics.
//
// Functions are called by all lanes of the warp together. A lane with "on" adds one thing of its
// own; lanes that meet in a cell are counted once, or go one after the other in the order of
// lanes, so that the result is that of one lane after the other. When a function has returned,
// all lanes see what it has done.
#ifndef AGP_SKETCH_CUH
#define AGP_SKETCH_CUH

#include "agp.h"
#include "key.cuh"
#include "warp.cuh"

namespace sketch {

const uint64_t mix_a = 0x9e3779b97f4a7c15u, mix_b = 0xd6e8feb86659fd93u, mix_c = 0xa0761d6478bd642fu;

// hasher is sketch.Hasher; its words come from there.
struct hasher {
	uint64_t k0, k1;

	AGP_DEVICE_MEMBER uint64_t word(uint64_t x) const { return key::fold(key::fold(x ^ k0, k1 ^ mix_a) ^ x ^ k1, mix_c); }
	AGP_DEVICE_MEMBER uint64_t pair(uint64_t x, uint64_t y) const {
		return key::fold(key::fold(x ^ k0, y ^ k1) ^ x, key::fold(y ^ mix_b ^ k0, k1 ^ mix_a) ^ mix_c);
	}
	// bytes is Bytes of n whole words.
	AGP_DEVICE_MEMBER uint64_t bytes(const uint64_t *w, uint32_t n) const {
		uint64_t s = k0 ^ n * 8 * mix_b;
		for (uint32_t i = 0; i < n; i += 2)
			s = key::fold(w[i] ^ s, (i + 1 < n ? w[i + 1] : 0) ^ k1) ^ w[i];
		return key::fold(s ^ mix_a, k0 ^ mix_c);
	}
};

AGP_DEVICE uint32_t below() { return (1u << warp::lane()) - 1; }
AGP_DEVICE uint32_t saturated(uint32_t a, uint32_t b) { return a + b >= a ? a + b : UINT32_MAX; }
AGP_DEVICE uint32_t scale(uint32_t h, uint32_t n) { return (uint32_t)((uint64_t)h * n >> 32); }

// peers are the lanes that want the same cell.
AGP_DEVICE uint32_t peers(bool on, const void *cell) { return warp::match(warp::all, on ? (uint64_t)cell : (uint64_t)warp::lane()); }
AGP_DEVICE bool first(bool on, uint32_t same) { return on && (uint32_t)ffs(same) == warp::lane(); }

AGP_DEVICE uint64_t sum(uint64_t v) {
	const uint32_t piece = (1u << 24) - 1; // of 32 lanes they add up to less than 2^32
	uint32_t low = warp::add(warp::all, (uint32_t)v & piece), mid = warp::add(warp::all, (uint32_t)(v >> 24) & piece), high = warp::add(warp::all, (uint32_t)(v >> 48));
	return low + ((uint64_t)mid << 24) + ((uint64_t)high << 48);
}

AGP_DEVICE void one_saturated(bool on, uint32_t *cell) {
	uint32_t same = peers(on, cell);
	if (first(on, same))
		*cell = saturated(*cell, (uint32_t)popc(same));
}

// add adds weights to cells.
AGP_DEVICE void add_saturated(bool on, uint32_t *cell, uint32_t weight) {
	uint32_t turn = (uint32_t)popc(peers(on, cell) & below());
	for (uint32_t now = 0; warp::ballot(warp::all, on && turn >= now); now++) {
		if (on && turn == now)
			*cell = saturated(*cell, weight);
		warp::sync(warp::all);
	}
}

// count_min is sketch.CountMin: rows times width counters.
struct count_min {
	hasher h;
	uint64_t *n;
	uint32_t *cells;
	uint32_t rows, width;

	AGP_DEVICE_MEMBER void add(bool on, uint64_t key, uint32_t weight) const {
		uint64_t all = sum(on ? weight : 0), x = 0;
		if (warp::lane() == 0)
			*n += all;
		for (uint32_t r = 0; r < rows; r++) {
			x = r & 1 ? x >> 32 : h.pair(key, r);
			add_saturated(on, cells + (uint64_t)r * width + (x & (width - 1)), weight);
		}
		warp::sync(warp::all);
	}
};

// entropy is sketch.Entropy.
struct entropy {
	hasher h;
	agp_entropy *s;
	uint32_t width;

	AGP_DEVICE_MEMBER void add(bool on, uint64_t key, uint32_t weight) const {
		uint64_t all = sum(on ? weight : 0);
		if (warp::lane() == 0)
			s->n += all;
		add_saturated(on, s->cells + (h.word(key) & (width - 1)), weight);
		warp::sync(warp::all);
	}
};

// quantiles is sketch.Quantiles. The bin of a number is looked up in a table that Go has made.
struct quantiles {
	agp_quantiles *s;
	const agp_quantile_table *t;

	// place is where the search for the bin of v has begun.
	struct place {
		uint64_t v, high;
		uint32_t i;
	};
	AGP_DEVICE_MEMBER place begin(uint64_t v) const {
		const uint64_t most = (uint64_t)1 << 63;
		v = v < most ? v : most;
		int e = bits(v);
		uint32_t i = e == 0 ? 0 : t->first[e][v << (64 - e) << 1 >> 58]; // zero has no bin
		return place{v, t->high[i], i};
	}
	// add adds what begin was called for: two steps, so that those of two sketches do not wait for each other.
	AGP_DEVICE_MEMBER void add(bool on, place at) const {
		while (on && at.v > at.high)
			at.high = t->high[++at.i];
		if (on)
			own::add(at.v == 0 ? &s->zero : &s->bins[at.i], 1);
		uint32_t n = (uint32_t)popc(warp::ballot(warp::all, on));
		if (warp::lane() == 0)
			own::add(&s->n, n);
	}
};

// hll is sketch.HLL: registers, and the sums of its estimate, which depend on the order in which
// registers rise.
struct hll {
	agp_hll *s;
	uint32_t registers;

	AGP_DEVICE_MEMBER static double power(uint32_t v) { // 2^-v
		uint64_t b = (uint64_t)(1023 - v) << 52;
		double d;
		__builtin_memcpy(&d, &b, sizeof d);
		return d;
	}

	AGP_DEVICE_MEMBER void coupon(bool on, uint64_t h1, uint64_t h2) const {
		uint8_t *r = s->reg + ((uint32_t)h1 & 0x3ffffff & (registers - 1));
		uint32_t zeros = 64 - (uint32_t)bits(h2), v = (zeros < 62 ? zeros : 62) + 1;
		bool up = on && v > *r;
		uint32_t left = warp::ballot(warp::all, up);
		if (left)
			warp::sync(warp::all); // all have looked
		for (; left; left &= left - 1) {
			uint32_t old = 0;
			if ((uint32_t)ffs(left) == warp::lane() && v > (old = *r)) {
				s->hip += (double)registers / (s->kxq[0] + s->kxq[1]);
				s->kxq[old >> 5] -= power(old);
				s->kxq[v >> 5] += power(v);
				*r = (uint8_t)v;
			}
			warp::sync(warp::all);
		}
	}

	AGP_DEVICE_MEMBER static uint64_t rotl(uint64_t v, int n) { return v << n | v >> (64 - n); }
	AGP_DEVICE_MEMBER static uint64_t last(uint64_t h) {
		h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
		h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
		return h ^ h >> 33;
	}
	// wide is MurmurHash3 x64 128 of a few bytes.
	struct wide {
		uint64_t h1, h2;
	};
	AGP_DEVICE_MEMBER static wide end(uint64_t h1, uint64_t h2, uint64_t n) {
		h1 ^= n, h2 ^= n;
		h1 += h2;
		h2 += h1;
		h1 = last(h1), h2 = last(h2);
		h1 += h2;
		return wide{h1, h2 + h1};
	}
	static const uint64_t c1 = 0x87c37b91114253d5u, c2 = 0x4cf5ad432745937fu, seed = 9001;

	// of8 hashes up to 8 bytes, with zeros behind them: AddUint64 hashes 8.
	AGP_DEVICE_MEMBER static wide of8(uint64_t v, uint32_t length) { return end(seed ^ rotl(v * c1, 31) * c2, seed, length); }
	AGP_DEVICE_MEMBER static wide of16(uint64_t v, uint64_t w) {
		uint64_t h1 = seed ^ rotl(v * c1, 31) * c2, h2;
		h1 = (rotl(h1, 27) + seed) * 5 + 0x52dce729;
		h2 = seed ^ rotl(w * c2, 33) * c1;
		h2 = (rotl(h2, 31) + h1) * 5 + 0x38495ab5;
		return end(h1, h2, 16);
	}
	AGP_DEVICE_MEMBER void add(bool on, wide v) const { coupon(on, v.h1, v.h2); }
};

// published is sketch.Published. Bloom words are halves of Go's.
struct published {
	hasher h;
	uint32_t *counters, *bloom;
	uint32_t width, bits;

	// add may be called with other memory in each lane.
	AGP_DEVICE_MEMBER void add(bool on, uint64_t flow, uint32_t bin) const {
		uint64_t k = h.pair(flow, bin), x = h.pair(k, 1), y = h.pair(k, 2), z = h.pair(k, 3), words = ((uint64_t)bits + 63) / 64 * 2;
		one_saturated(on, counters + scale((uint32_t)x, width));
		one_saturated(on, counters + width + scale((uint32_t)(x >> 32), width));
		one_saturated(on, counters + 2 * (uint64_t)width + scale((uint32_t)y, width));
		mark(on, 0, scale((uint32_t)(y >> 32), bits));
		mark(on, words, scale((uint32_t)z, bits));
		mark(on, 2 * words, scale((uint32_t)(z >> 32), bits));
		warp::sync(warp::all);
	}
	AGP_DEVICE_MEMBER void mark(bool on, uint64_t row, uint32_t bit) const {
		uint32_t *w = bloom + row + bit / 32, b = 1u << bit % 32;
		bool sets = on && !(*w & b);
		if (!warp::ballot(warp::all, sets))
			return;
		warp::sync(warp::all); // all have looked
		uint32_t turn = (uint32_t)popc(peers(sets, w) & below());
		for (uint32_t now = 0; warp::ballot(warp::all, sets && turn >= now); now++) {
			if (sets && turn == now)
				*w |= b;
			warp::sync(warp::all);
		}
	}
};

// blocked is sketch.Blocked: a flow has one line in each of 3 rows.
struct blocked {
	hasher h;
	agp_line *lines;
	uint32_t *carry; // 2 rows
	uint32_t width;

	// places are a flow's lines.
	struct places {
		uint32_t line[3];
	};
	AGP_DEVICE_MEMBER places lines_of(uint64_t flow) const {
		uint64_t x = h.pair(flow, 1), y = h.pair(flow, 2);
		return places{{(uint32_t)x & (width - 1), width + ((uint32_t)(x >> 32) & (width - 1)), 2 * width + ((uint32_t)y & (width - 1))}};
	}

	// add may be called with other memory and another flow in each lane.
	AGP_DEVICE_MEMBER void add(bool on, places at, uint32_t bin) const {
		bin = bin < AGP_BLOCKED_BINS ? bin : AGP_BLOCKED_BINS - 1;
		AGP_UNROLL
		for (int i = 0; i < 3; i++)
			row(on, at.line[i], bin);
		warp::sync(warp::all);
	}
	AGP_DEVICE_MEMBER void row(bool on, uint32_t line, uint32_t bin) const {
		uint8_t *cell = &lines[line].low[bin];
		uint32_t same = peers(on, cell);
		bool wraps = false;
		if (first(on, same)) {
			uint32_t v = *cell + (uint32_t)popc(same);
			*cell = (uint8_t)v;
			wraps = v > 255;
		}
		uint32_t left = warp::ballot(warp::all, wraps);
		if (__builtin_expect(left == 0, 1))
			return;
		uint64_t c = h.pair((uint64_t)line << 8 | bin, 3);
		for (; left; left &= left - 1) { // bits of one byte, and carries, can be those of others
			if ((uint32_t)ffs(left) == warp::lane()) {
				lines[line].wrapped[bin / 8] |= (uint8_t)(1u << bin % 8);
				uint32_t *i = carry + ((uint32_t)c & (width - 1)), *j = carry + width + ((uint32_t)(c >> 32) & (width - 1));
				*i = saturated(*i, 1);
				*j = saturated(*j, 1);
			}
			warp::sync(warp::all);
		}
	}
};

// top is sketch.TopK: Misra-Gries with batched reduction. The counters are those of Go after the
// same sequence of keys and weights, lane by lane.
struct top {
	hasher h;
	agp_top *s;
	agp_top_index *index; // mask + 1
	agp_top_key *keys;    // 2 * k
	uint64_t *counts;     // 2 * k
	uint32_t k, mask;

	// find returns the key's place in the index, or the free one where it belongs.
	AGP_DEVICE_MEMBER uint32_t find(const agp_top_key &key, uint32_t hash) const {
		for (uint32_t i = hash & mask;; i = (i + 1) & mask) {
			agp_top_index at = index[i];
			if (at.entry == 0)
				return i;
			if (at.hash != hash)
				continue;
			const uint64_t *w = keys[at.entry - 1].w;
			if (w[0] == key.w[0] && w[1] == key.w[1] && w[2] == key.w[2] && w[3] == key.w[3] && w[4] == key.w[4])
				return i;
		}
	}

	AGP_DEVICE_MEMBER void add(bool on, const agp_top_key &key, uint64_t weight) const {
		on = on && weight != 0;
		uint32_t left = warp::ballot(warp::all, on), used = s->used;
		if (!left)
			return;
		uint64_t all = sum(on ? weight : 0);
		if (warp::lane() == 0)
			s->n += all;
		uint32_t hash = (uint32_t)h.bytes(key.w, 5);
		bool misses = on && index[find(key, hash)].entry == 0;
		// When counters can run out, which keys come before matters: one lane after the other.
		bool room = used + (uint32_t)popc(warp::ballot(warp::all, misses)) <= 2 * k;
		while (left) {
			uint32_t turn = room ? left : left & (~left + 1);
			bool wait = on && (turn >> warp::lane() & 1);
			while (warp::ballot(warp::all, wait)) {
				agp_top_index *at = wait ? &index[find(key, hash)] : nullptr;
				uint32_t entry = wait ? at->entry : 0;
				bool go = first(wait, peers(wait, at));
				uint32_t fresh = warp::ballot(warp::all, go && entry == 0);
				warp::sync(warp::all); // all have looked
				if (fresh && used == 2 * k) {
					move();
					used = reduce(used);
					if (warp::lane() == 0)
						s->used = used;
					move();
					continue;
				}
				if (go) {
					if (entry == 0) {
						entry = used + (uint32_t)popc(fresh & below()) + 1;
						for (int i = 0; i < 5; i++)
							keys[entry - 1].w[i] = key.w[i];
						counts[entry - 1] = weight;
						*at = agp_top_index{hash, entry};
					} else {
						counts[entry - 1] += weight;
					}
					wait = false;
				}
				used += (uint32_t)popc(fresh);
				warp::sync(warp::all);
			}
			left &= ~turn;
		}
		if (warp::lane() == 0)
			s->used = used;
		warp::sync(warp::all);
	}

	// move tells the host, which may read meanwhile, that counters are being moved or no longer are.
	AGP_DEVICE_MEMBER void move() const {
		warp::sync(warp::all);
		if (warp::lane() == 0) {
			sys::release();
			s->moves++;
			sys::release();
		}
		warp::sync(warp::all);
	}

	// above is how many counts are at least v.
	AGP_DEVICE_MEMBER uint32_t above(uint32_t used, uint64_t v) const {
		uint32_t n = 0;
		for (uint32_t i = warp::lane(); i < used; i += AGP_LANES)
			n += counts[i] >= v;
		return warp::add(warp::all, n);
	}

	// reduce leaves at most k counters and returns how many.
	AGP_DEVICE_MEMBER uint32_t reduce(uint32_t used) const {
		uint64_t some = 0, cut = 0; // the (k+1)-th largest: the largest number that more than k counts reach
		for (uint32_t i = warp::lane(); i < used; i += AGP_LANES)
			some |= counts[i];
		for (int bit = (int)warp::max(warp::all, (uint32_t)bits(some)) - 1; bit >= 0; bit--) {
			uint64_t v = cut | (uint64_t)1 << bit;
			if (above(used, v) > k)
				cut = v;
		}
		for (uint32_t i = warp::lane(); i <= mask; i += AGP_LANES)
			index[i] = agp_top_index{0, 0};
		if (warp::lane() == 0)
			s->err += cut;
		uint32_t kept = 0;
		for (uint32_t base = 0; base < used; base += AGP_LANES) {
			uint32_t from = base + warp::lane();
			uint64_t n = from < used ? counts[from] : 0;
			bool stays = n > cut;
			agp_top_key key = {};
			for (int i = 0; stays && i < 5; i++)
				key.w[i] = keys[from].w[i];
			uint32_t staying = warp::ballot(warp::all, stays), to = kept + (uint32_t)popc(staying & below());
			warp::sync(warp::all); // all have read what may be written over
			uint32_t hash = (uint32_t)h.bytes(key.w, 5);
			for (int i = 0; stays && i < 5; i++)
				keys[to].w[i] = key.w[i];
			if (stays)
				counts[to] = n - cut;
			for (bool wait = stays; warp::ballot(warp::all, wait);) { // keys differ: a free place is enough
				uint32_t i = hash & mask;
				while (wait && index[i].entry != 0)
					i = (i + 1) & mask;
				bool go = first(wait, peers(wait, &index[i]));
				warp::sync(warp::all);
				if (go) {
					index[i] = agp_top_index{hash, to + 1};
					wait = false;
				}
				warp::sync(warp::all);
			}
			kept += (uint32_t)popc(staying);
		}
		return kept;
	}
};

} // namespace sketch

#endif
