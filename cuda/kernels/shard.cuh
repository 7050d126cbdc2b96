// A state warp of a ring: takes packets from its queue, in order, and puts them into the flows of
// its shard.
#ifndef AGP_SHARD_CUH
#define AGP_SHARD_CUH

#include "fifo.cuh"
#include "ring.cuh"
#include "stateless.cuh"
#include "table.cuh"

// shard_scratch is what the warp needs in shared memory. The queue comes first: the receive warp
// finds it there.
struct alignas(16) shard_scratch {
	fifo in;
	uint32_t pad[2];
	staged flows[AGP_LANES];
	summary::known sketches;
	summary::waiting progresses;
	agp_shard own; // far memory would be asked again after every acquire
	agp_shard_stats stats;
};
static_assert(sizeof(shard_scratch) <= AGP_SHARD_SCRATCH, "the host allocates shared memory by this");

// store is what packets are put into.
template <bool extras, class store = table<extras>> struct shard {
	const agp_params *p;
	const agp_shard *r;
	agp_shard_state *st;
	shard_scratch *x;
	store flows;
	uint32_t turns;
	stats::stopwatch watch;

	// table is that of quantiles in shared memory.
	AGP_DEVICE_MEMBER void init(const agp_params *params, uint32_t ring, uint32_t number, shard_scratch *memory, const agp_quantile_table *table) {
		p = params;
		x = memory;
		const agp_ring *in = (const agp_ring *)params->rings + ring;
		stats::fetch(&x->own, (const agp_shard *)in->shards + number);
		r = &x->own;
		st = (agp_shard_state *)r->state;
		turns = 0;
		stats::fetch(&x->stats, &st->stats);
		if (extras && params->sketches) {
			agp_sketches *home = (agp_sketches *)r->sketches;
			stats::fetch((agp_sketches *)&x->sketches, home);
			if (warp::lane() == 0) {
				x->sketches.home = home;
				x->sketches.table = (uint64_t)table;
			}
			warp::sync(warp::all);
		}
		flows.init(params, in, ring, r, x->flows, &x->sketches, &x->progresses, &x->stats);
	}

	// report gives the host the records and counters and keeps the state for the next launch.
	AGP_DEVICE_MEMBER void report() {
		flows.publish();
		if (warp::lane() == 0) {
			st->out_head = flows.head;
			x->stats.heartbeat++;
		}
		warp::sync(warp::all);
		stats::give(r->stats, &st->stats, &x->stats);
	}

	// batch takes n items, from the one with the free-running number first on, and says whether one
	// of them was the last. There are more for the next batch.
	AGP_DEVICE_MEMBER bool batch(uint32_t first, uint32_t n, uint32_t more) {
		uint32_t l = warp::lane();
		const item *next = x->in.at(first + n + l);
		if (l < more && next->kind == item::packet)
			flows.expect(next->hash);
		const item *mine = x->in.at(first + l);
		uint32_t kind = l < n ? mine->kind : item::packet;
		flows.full = false;
		watch.start(++turns % 61 == 0, x->stats.cycles);
		// Packets between two ticks are added together.
		for (uint32_t from = 0; from < n;) {
			uint32_t others = warp::ballot(warp::all, l >= from && kind != item::packet);
			uint32_t to = others ? (uint32_t)ffs(others) : n;
			if constexpr (store::stateless) {
				flows.count(l >= from && l < to, *mine);
				watch.lap(1);
			} else if (to > from)
				add((to < 32 ? (1u << to) - 1 : warp::all) & ~((1u << from) - 1), first);
			from = to;
			if (!AGP_RARE(from != n))
				break;
			const item *i = x->in.at(first + from);
			if (i->kind == item::stop)
				return true;
			if (i->kind == item::flush) {
				flows.flush(i->ts_ns, i->number);
				return true;
			}
			flows.tick(i->ts_ns, i->number);
			from++;
		}
		watch.stop(&x->stats, n);
		return false;
	}

	// add puts the packets of the lanes in part into their flows: one lane for each flow, its
	// packets in order.
	AGP_DEVICE_MEMBER void add(uint32_t part, uint32_t first) {
		uint32_t l = warp::lane();
		const item *mine = x->in.at(first + l);
		bool wait = part >> l & 1;
		uint64_t hash = wait ? mine->hash : 0;
		while (warp::ballot(warp::all, wait)) {
			uint32_t peers = warp::match(warp::all, wait ? hash : (uint64_t)l << 1 | 1);
			peers &= warp::ballot(warp::all, wait);
			uint32_t lead = wait ? (uint32_t)ffs(peers) : l;
			// The same hash of another flow waits for the next round.
			bool same = wait && (lead == l || key::equal(x->in.at(first + lead)->key, mine->key));
			peers &= warp::ballot(warp::all, same);
			uint32_t rest = wait && lead == l ? peers : 0, i = 0;
			uint32_t place = rest ? flows.candidate(hash) : nowhere;
			flows.stage(place);
			if (rest)
				place = flows.confirm(place, mine->key, hash);
			watch.lap(0);
			while (warp::ballot(warp::all, rest != 0)) {
				bool on = rest != 0, from_b = false;
				agp_packet q = {};
				uint64_t number = 0, payload = 0;
				uint32_t parts = 0;
				if (on) {
					const item &m = *x->in.at(first + (uint32_t)ffs(rest));
					q = m.get();
					from_b = m.from_b != 0;
					number = m.number + i;
					payload = m.payload;
					parts = m.parts;
					if (AGP_RARE(parts > 1)) {
						agp_packet one; // so that q stays in registers
						flow::split(&one, q, i, parts);
						q = one;
					}
				}
				flows.add(on, mine->key, hash, q, from_b, parts > 1, number, payload, &place);
				if (on && ++i >= parts) {
					i = 0;
					rest &= rest - 1;
				}
			}
			watch.lap(1);
			flows.unstage(place);
			watch.lap(2);
			wait = wait && !same;
		}
	}

	AGP_DEVICE_MEMBER void run() {
		uint32_t quiet = 0, busy = 0, head = 0, tail = 0, looks = 0;
		report();
		for (;;) {
			if (head - tail < p->batch) {
				if (warp::lane() == 0)
					head = near::take32(&x->in.head);
				warp::sync(warp::all);
				head = warp::shfl(warp::all, head, 0);
			}
			uint32_t n = head - tail < p->batch ? head - tail : p->batch;
			if (n == 0) {
				if (AGP_RARE(++quiet % QUIET == 0 || quiet == 64))
					report();
				pause(20);
				continue;
			}
			quiet = 0;
			// A batch takes hardly less time with few packets than with many.
			if (n < p->batch && looks++ < p->fill) {
				pause(20);
				continue;
			}
			looks = 0;
			bool last = batch(tail, n, head - tail - n < p->batch ? head - tail - n : p->batch);
			tail += n;
			warp::sync(warp::all);
			if (AGP_RARE(last)) {
				flows.learn();
				report();
				return;
			}
			if (warp::lane() == 0)
				near::give32(&x->in.tail, tail);
			if (AGP_RARE(++busy % 256 == 0))
				report();
		}
	}
};

#endif
