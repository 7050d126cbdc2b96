// The receive warp of a ring: takes completions in order, batch by batch, and hands the packets to
// the ring's state warps. See mlx5-queues for the rules of the rings.
#ifndef AGP_RING_CUH
#define AGP_RING_CUH

#include "cqe.cuh"
#include "fifo.cuh"
#include "flow.cuh"
#include "fragment.cuh"
#include "parse.cuh"
#include "stats.cuh"

// window is how much of a frame is brought close before it is parsed. Rows of it are an odd number
// of 16 bytes, so that lanes that copy do not meet in one bank.
const uint32_t WINDOW = 96, ROW = WINDOW / 4 + 4;
// LOOKS is how many batches the warp looks ahead for: one fence serves all that it finds.
enum { LOOKS = 8 };
// ASKS is after how many batches the host is asked what it wants. Its memory is far: the answer is
// looked at a batch later, when it has come.
enum { ASKS = 64 };

const int64_t clock_back_ns = 60000000000;

// idle_slack_ns is how much later than its time a packet may be taken.
const int64_t idle_slack_ns = 1000000000;

// receiver_scratch is what the warp needs in shared memory.
struct alignas(16) receiver_scratch {
	uint32_t head[2][AGP_LANES][ROW]; // of this batch and of the next one
	agp_ring ring;                    // far memory would be asked again after every acquire
	agp_stats stats;
};
static_assert(sizeof(receiver_scratch) <= AGP_RECEIVER_SCRATCH, "the host allocates shared memory by this");

// extras: state warps may look at payload, agp_params says whether.
template <bool extras> struct receiver {
	const agp_params *p;
	const agp_ring *r;
	agp_ring_state *st;
	receiver_scratch *x;
	fifo *to;      // of shard 0; the others follow at a distance of AGP_SHARD_SCRATCH
	uint32_t head;   // lane i: items written for shard i
	uint32_t tail;   // lane i: items that shard i was last seen to have taken
	uint64_t ci, wqes, seq;
	uint64_t done_ci, done_wqes; // may be given back once
	uint32_t done;               // lane i: shard i has taken so many items
	bool late;                   // they were not yet given back
	uint64_t known; // completions up to it are ready
	int64_t clock_ns, step;
	// Counted since the last report, for this lane.
	uint64_t bytes;
	uint32_t frames, packets, bad_length;
	// The batch that comes next, whose frames are on their way to head[half].
	cqe::entry next;
	uint32_t next_n, half, turns;
	stats::stopwatch watch;

	AGP_DEVICE_MEMBER void init(const agp_params *params, uint32_t number, receiver_scratch *memory, fifo *first) {
		p = params;
		x = memory;
		stats::fetch(&x->ring, (const agp_ring *)params->rings + number);
		r = &x->ring;
		st = (agp_ring_state *)r->state;
		to = first;
		head = tail = done = 0;
		late = false;
		stats::fetch(&x->stats, &st->stats);
		ci = known = st->ci;
		bytes = frames = packets = bad_length = next_n = half = turns = 0;
		wqes = st->wqes;
		seq = st->seq;
		done_ci = ci;
		done_wqes = wqes;
		clock_ns = st->clock_ns;
		step = st->step;
		if (warp::lane() == 0)
			x->stats.launches++;
		warp::sync(warp::all); // before the first report writes them
	}

	AGP_DEVICE_MEMBER fifo *shard(uint32_t i) const { return (fifo *)((char *)to + i * AGP_SHARD_SCRATCH); }

	// room waits until every shard has room for as many items as lane i wants of shard i.
	AGP_DEVICE_MEMBER void room(uint32_t want) {
		bool one = warp::lane() < p->shards;
		for (uint32_t spins = 0; AGP_RARE(warp::ballot(warp::all, one && head + want - tail > fifo::size)); spins++) {
			if (spins)
				pause(20);
			if (one)
				tail = near::take32(&shard(warp::lane())->tail);
		}
		warp::sync(warp::all); // other lanes write where there is room
	}

	// publish shows the shards what was written for them: lane i has written add items for shard i.
	AGP_DEVICE_MEMBER void publish(uint32_t add) {
		warp::sync(warp::all);
		head += add;
		if (warp::lane() < p->shards && add)
			near::give32(&shard(warp::lane())->head, head);
	}

	// tell puts something into the queues of all shards.
	AGP_DEVICE_MEMBER void tell(uint8_t kind, int64_t ns, uint64_t number) {
		bool one = warp::lane() < p->shards;
		room(one);
		if (one) {
			item *i = shard(warp::lane())->at(head);
			i->kind = kind;
			i->ts_ns = ns;
			i->number = number;
		}
		publish(one);
	}

	// report gives the host the counters and keeps the state for the next launch.
	AGP_DEVICE_MEMBER void report(uint32_t status) {
		agp_stats *s = &x->stats;
		uint32_t f = warp::add(warp::all, frames), g = warp::add(warp::all, packets), b = warp::add(warp::all, bad_length);
		uint64_t sum = bytes;
		for (uint32_t by = AGP_LANES / 2; by; by /= 2)
			sum += warp::shfl(warp::all, sum, warp::lane() ^ by);
		bytes = frames = packets = bad_length = 0;
		if (warp::lane() == 0) {
			s->cqes = ci;
			s->frames += f;
			s->bytes += sum;
			s->drops[0] += g;
			s->bad_length += b;
			st->ci = ci;
			st->wqes = wqes;
			st->seq = seq;
			st->clock_ns = clock_ns;
			st->step = step;
			s->clock_ns = (uint64_t)clock_ns;
			s->status = status;
			s->heartbeat++;
		}
		warp::sync(warp::all);
		stats::give(r->stats, &st->stats, s);
	}

	// look begins to look for entries behind those that are known: each lane for some that follow each
	// other. found waits for what it saw.
	struct looks {
		uint32_t own[LOOKS];
	};
	AGP_DEVICE_MEMBER looks look() const {
		looks w;
		AGP_UNROLL
		for (uint32_t k = 0; k < LOOKS; k++)
			w.own[k] = sys::load8(cqe::owner_at(*r, known + warp::lane() * LOOKS + k));
		return w;
	}
	AGP_DEVICE_MEMBER void found(const looks &w) {
		uint64_t first = known + warp::lane() * LOOKS;
		uint32_t mine = 0;
		AGP_UNROLL
		for (uint32_t k = 0; k < LOOKS; k++)
			mine += mine == k && cqe::owned(*r, first + k, w.own[k]) ? 1 : 0;
		int gap = ffs(warp::ballot(warp::all, mine < LOOKS)), last = gap < 0 ? AGP_LANES - 1 : gap;
		uint32_t n = (uint32_t)last * LOOKS + warp::shfl(warp::all, mine, (uint32_t)last);
		if (AGP_RARE(n == 0))
			return;
		sys::acquire(); // for what all lanes saw: each may read what another one looked for
		warp::sync(warp::all);
		known += n;
	}

	// ready returns how many entries may be taken.
	AGP_DEVICE_MEMBER uint32_t ready() {
		if (AGP_RARE(known == ci))
			found(look());
		uint64_t n = known - ci;
		return n < p->batch ? (uint32_t)n : p->batch;
	}

	// takes says whether an entry stands for a receive WQE.
	AGP_DEVICE_MEMBER static bool takes(const cqe::entry &e) { return e.kind == cqe::packet || e.kind == cqe::fault; }

	// bring begins to bring the heads of frames close, whose entries are in e and whose receive WQEs
	// begin with the one of index first.
	AGP_DEVICE_MEMBER void bring(const cqe::entry &e, uint32_t n, uint64_t first, uint32_t to) {
		uint32_t l = warp::lane();
		uint32_t takers = warp::all;
		if (AGP_RARE(warp::ballot(warp::all, l < n && e.kind != cqe::packet)))
			takers = warp::ballot(warp::all, l < n && takes(e));
		if (l < n && e.kind == cqe::packet) {
			uint64_t from = slot(first + (uint32_t)popc(takers & ((1u << l) - 1)));
			uint32_t *row = x->head[to][l], len = captured(e);
			AGP_UNROLL
			for (uint32_t i = 0; i < WINDOW; i += 16)
				if (i < len)
					copies::fetch(row + i / 4, from + i);
		}
	}
	AGP_DEVICE_MEMBER uint64_t slot(uint64_t index) const { return r->payload + (index & (((uint64_t)1 << r->log_rq) - 1)) * r->pitch; }
	AGP_DEVICE_MEMBER uint32_t captured(const cqe::entry &e) const { return e.byte_cnt < r->pitch ? e.byte_cnt : r->pitch; }

	// batch takes the n entries that come next, or as many as were brought. It says in n how many,
	// and returns what has become of the ring.
	AGP_DEVICE_MEMBER uint32_t batch(uint32_t *count) {
		uint32_t l = warp::lane(), status = AGP_RUNNING, n = *count;
		watch.start(++turns % 61 == 0, x->stats.cycles);
		cqe::entry e = next;
		if (AGP_RARE(next_n == 0)) {
			e = cqe::entry{};
			e.kind = cqe::unknown;
			if (l < n)
				e = cqe::decode(*r, cqe::fetch(*r, ci + l));
			bring(e, n, wqes, half);
		} else {
			n = *count = next_n;
		}
		uint32_t mine = half, ahead = known - ci - n < p->batch ? (uint32_t)(known - ci - n) : p->batch;
		half ^= 1;
		next_n = 0;
		copies::arrived(); // before the next loads are on their way: it would wait for them too
		cqe::raw later = cqe::fetch(*r, ci + (l < ahead ? n + l : 0)); // of all lanes, so that none waits for it here
		bool few = known - ci - n <= p->batch;
		looks more = {};
		if (AGP_RARE(few))
			more = look();
		// Nearly always all entries are of packets, in order.
		uint64_t index = wqes + l;
		uint32_t taken = n, times = 0;
		if (AGP_RARE(warp::ballot(warp::all, l < n && (e.kind != cqe::packet || e.wqe != (uint32_t)(index & 0xffff))))) {
			uint32_t takers = warp::ballot(warp::all, l < n && takes(e));
			index = wqes + (uint32_t)popc(takers & ((1u << l) - 1));
			status = check(e, count, index);
			n = *count;
			taken = (uint32_t)popc(takers & (n < 32 ? (1u << n) - 1 : warp::all));
			times = warp::ballot(warp::all, l < n && e.kind == cqe::time);
			faults(e, n);
		}
		wqes += taken;
		watch.lap(0);
		agp_packet packet = {}, *q = &packet;
		uint8_t verdict = 0xff;
		if (l < n && e.kind == cqe::packet) {
			uint32_t len = captured(e);
			view f = {(const uint8_t *)x->head[mine][l], len < WINDOW ? len : WINDOW, slot(index), len};
			q->ts_ns = (int64_t)e.time;
			verdict = parse(e.link, f, e.wire_len, p->decap, q);
			q->segment_size = (uint16_t)e.segment_size;
			q->side = (uint8_t)e.side;
			if (e.tci >= 0) {
				q->wire_len += 4;
				if (e.tci & 0xfff)
					q->vlan = (uint16_t)(e.tci & 0xfff);
			}
		}
		uint32_t good = warp::ballot(warp::all, verdict == 0);
		if (AGP_RARE(warp::ballot(warp::all, l < n && (verdict != 0 || (q->flags & AGP_FRAGMENT))))) {
			for (uint32_t left = warp::ballot(warp::all, verdict == 0 && (q->flags & AGP_FRAGMENT)); left; left &= left - 1) {
				if ((uint32_t)ffs(left) == l) {
					agp_packet whole = *q; // so that q stays in registers
					resolve((agp_fragment *)r->fragments, r->log_fragments, &whole);
					*q = whole;
				}
				warp::sync(warp::all);
			}
			for (uint32_t left = warp::ballot(warp::all, l < n && e.kind == cqe::packet && verdict != 0); left; left &= left - 1) {
				if ((uint32_t)ffs(left) == l)
					x->stats.drops[verdict % AGP_VERDICTS]++;
				warp::sync(warp::all);
			}
		}
		if (ahead && status == AGP_RUNNING) {
			next = cqe::entry{};
			next.kind = cqe::unknown;
			if (l < ahead)
				next = cqe::decode(*r, later);
			bring(next, ahead, wqes, half);
			next_n = ahead;
		}
		watch.lap(1);
		agp_key k = {};
		uint64_t hash = 0;
		uint32_t parts = 0;
		if (verdict == 0) {
			q->pad = key::set(&k, *q, p->key);
			hash = key::hash(k, p->seed);
			parts = flow::segments(*q);
		}
		tally(n, e, verdict, *q, parts);
		watch.lap(2);
		// Packets between two ticks are added together.
		for (uint32_t from = 0; from < n;) {
			int64_t tick = 0;
			bool ticks = false;
			uint32_t to = edge(from, n, good, times, e, q, &tick, &ticks);
			uint32_t part = (to < 32 ? (1u << to) - 1 : warp::all) & ~((1u << from) - 1) & good;
			if (part)
				add(part, *q, k, hash, parts, e.number, slot(index));
			if (AGP_RARE(ticks))
				tell(item::tick, tick, warp::shfl(warp::all, e.number, to & 31));
			from = to;
			if (from < n && (times >> from & 1))
				from++; // the tick's own entry
		}
		if (AGP_RARE(few))
			found(more);
		watch.lap(3);
		watch.stop(&x->stats, n);
		ci += n;
		return status;
	}

	// check looks for what cannot be gone on with: it ends the batch, before it or with it if it was
	// taken. It says so in count, and returns what becomes of the ring. index is that of the lane's WQE.
	AGP_DEVICE_MEMBER uint32_t check(const cqe::entry &e, uint32_t *count, uint64_t index) {
		uint32_t l = warp::lane(), n = *count;
		bool wrong = takes(e) && e.wqe != (uint32_t)(index & 0xffff);
		bool fatal = e.kind == cqe::fault && (e.syndrome == 2 || e.syndrome == 4 || e.syndrome == 5);
		uint32_t stop = warp::ballot(warp::all, l < n && (wrong || fatal || e.kind == cqe::compressed));
		if (!stop)
			return AGP_RUNNING;
		uint32_t at = (uint32_t)ffs(stop);
		uint32_t kind = warp::shfl(warp::all, e.kind, at), off = warp::shfl(warp::all, (uint32_t)wrong, at);
		*count = at;
		if (kind == cqe::compressed)
			return AGP_COMPRESSED;
		if (off)
			return AGP_DESYNC;
		*count = at + 1;
		return AGP_RESET;
	}

	// faults counts error completions and other entries without a packet.
	AGP_DEVICE_MEMBER void faults(const cqe::entry &e, uint32_t n) {
		agp_stats *s = &x->stats;
		for (uint32_t left = warp::ballot(warp::all, warp::lane() < n && e.kind == cqe::fault); left; left &= left - 1) {
			if ((uint32_t)ffs(left) == warp::lane()) {
				s->errors[e.syndrome % AGP_SYNDROMES]++;
				s->vendor = e.vendor;
			}
			warp::sync(warp::all);
		}
		uint32_t odd = (uint32_t)popc(warp::ballot(warp::all, warp::lane() < n && e.kind == cqe::unknown));
		if (odd && warp::lane() == 0)
			s->errors[0] += odd;
	}

	// tally counts the frames of a batch.
	AGP_DEVICE_MEMBER void tally(uint32_t n, const cqe::entry &e, uint8_t verdict, const agp_packet &q, uint32_t parts) {
		bool frame = warp::lane() < n && e.kind == cqe::packet, good = verdict == 0;
		frames += good ? parts : frame ? 1 : 0;
		packets += good ? parts : 0;
		bytes += frame ? e.wire_len : 0;
		bad_length += good && (q.flags & AGP_BAD_LENGTH) ? 1 : 0;
	}

	// edge returns where the packets from a place on end that no tick parts, moves the clock, and
	// says what tick comes then.
	AGP_DEVICE_MEMBER uint32_t edge(uint32_t from, uint32_t n, uint32_t good, uint32_t times, const cqe::entry &e, const agp_packet *q, int64_t *tick, bool *ticks) {
		if (AGP_RARE(r->flags & AGP_RELAY)) {
			uint32_t next = times & ~((1u << from) - 1);
			uint32_t to = next ? (uint32_t)ffs(next) : n;
			uint64_t at = warp::shfl(warp::all, e.time, to < 32 ? to : 0);
			int64_t newest = latest(from, to, good, q);
			if (newest > clock_ns)
				clock_ns = newest;
			if (to < n) {
				*ticks = true;
				*tick = (int64_t)at;
				step = *tick / second_ns;
			}
			return to;
		}
		bool mine = warp::lane() >= from && warp::lane() < n && (good >> warp::lane() & 1);
		int64_t ts = q->ts_ns;
		// Nearly always the second goes on and no packet is far behind.
		bool calm = ts >= step * second_ns && ts < (step + 1) * second_ns;
		if (!AGP_RARE(warp::ballot(warp::all, mine && !calm))) {
			int64_t newest = step * second_ns + warp::max(warp::all, mine ? (uint32_t)(ts - step * second_ns) : 0);
			if (newest > clock_ns)
				clock_ns = newest;
			return n;
		}
		for (uint32_t i = from; i < n; i++) {
			if (!(good >> i & 1))
				continue;
			int64_t t = (int64_t)warp::shfl(warp::all, (uint64_t)ts, i);
			if (t < clock_ns && t > clock_ns - clock_back_ns)
				continue;
			// A tick comes before its packet: what is before that is added first.
			int64_t then = t / second_ns;
			if (then != step && i > from && (good & ((1u << i) - 1) & ~((1u << from) - 1)))
				return split(i, then, t, tick, ticks);
			if (t < clock_ns && warp::lane() == 0)
				x->stats.clock_backs++;
			clock_ns = t;
			if (then != step) {
				step = then;
				tell(item::tick, step * second_ns, 0);
			}
		}
		return n;
	}
	// split ends the packets before i, which brings a tick.
	AGP_DEVICE_MEMBER uint32_t split(uint32_t i, int64_t then, int64_t t, int64_t *tick, bool *ticks) {
		if (t < clock_ns && warp::lane() == 0)
			x->stats.clock_backs++;
		clock_ns = t;
		step = then;
		*tick = then * second_ns;
		*ticks = true;
		return i;
	}

	// latest is the highest time of the good packets from..to.
	AGP_DEVICE_MEMBER int64_t latest(uint32_t from, uint32_t to, uint32_t good, const agp_packet *q) const {
		bool mine = warp::lane() >= from && warp::lane() < to && (good >> warp::lane() & 1);
		uint64_t v = mine ? (uint64_t)q->ts_ns ^ 0x8000000000000000u : 0;
		uint32_t high = warp::max(warp::all, (uint32_t)(v >> 32));
		uint32_t low = warp::max(warp::all, (uint32_t)(v >> 32) == high ? (uint32_t)v : 0);
		return (int64_t)(((uint64_t)high << 32 | low) ^ 0x8000000000000000u);
	}

	// add hands the packets of the lanes in part to the shards.
	AGP_DEVICE_MEMBER void add(uint32_t part, const agp_packet &q, const agp_key &k, uint64_t hash, uint32_t parts, uint64_t number, uint64_t slot) {
		uint32_t l = warp::lane(), below = (1u << l) - 1;
		bool mine = part >> l & 1;
		uint32_t many = warp::ballot(warp::all, mine && parts > 1);
		uint64_t first = seq + 1 + (uint32_t)popc(part & below);
		uint32_t all = (uint32_t)popc(part);
		if (AGP_RARE(many)) { // numbers count the frames on the wire
			uint64_t sum = mine ? parts : 0;
			for (uint32_t by = 1; by < AGP_LANES; by *= 2) {
				uint64_t other = warp::shfl_up(warp::all, sum, by);
				sum += l >= by ? other : 0;
			}
			first = seq + 1 + sum - (mine ? parts : 0);
			all = (uint32_t)warp::shfl(warp::all, sum, AGP_LANES - 1);
		}
		// Bits that neither the choice of a ring nor, but for some, the tag depends on.
		uint32_t in = (uint32_t)(hash >> 48 & 0xff) * p->shards >> 8, before = 0, want = 0;
		for (uint32_t i = 0; i < p->shards; i++) {
			uint32_t of = warp::ballot(warp::all, mine && in == i);
			want = l == i ? (uint32_t)popc(of) : want;
			before = in == i ? (uint32_t)popc(of & below) : before;
		}
		room(want);
		uint32_t at = warp::shfl(warp::all, head, in) + before;
		if (mine) {
			item *i = shard(in)->at(at);
			i->set(q);
			i->key = k;
			i->hash = hash;
			i->number = r->flags & AGP_NUMBERED ? number : first;
			if (extras) {
				i->payload = slot + q.payload_off;
				i->payload_cap = q.payload_cap;
			}
			i->parts = parts;
			i->kind = item::packet;
			i->from_b = q.pad;
		}
		publish(want);
		seq += all;
	}

	// credit gives what was taken back: first the completion queue, then the receive queue. Where
	// shards look at payload, it is what was taken until the last time, unless it is to be all:
	// they have hardly to be waited for then.
	AGP_DEVICE_MEMBER void credit(bool whole) {
		if (!extras || !p->head_packets) {
			give(ci, wqes);
			return;
		}
		if (!whole) {
			passed();
			give(done_ci, done_wqes);
		}
		done = head;
		done_ci = ci;
		done_wqes = wqes;
		late = !whole;
		if (whole) {
			passed();
			give(ci, wqes);
		}
	}
	// passed waits until the shards have taken what they were given until done.
	AGP_DEVICE_MEMBER void passed() {
		bool one = warp::lane() < p->shards;
		while (warp::ballot(warp::all, one && (int32_t)(tail - done) < 0)) {
			if (one)
				tail = near::take32(&shard(warp::lane())->tail);
			pause(20);
		}
	}
	AGP_DEVICE_MEMBER void give(uint64_t cqes, uint64_t slots) {
		warp::sync(warp::all);
		if (warp::lane() == 0) {
			sys::release();
			sys::store32(r->cq_db, swap32((uint32_t)(cqes & 0xffffff)));
			if (r->log_cq == r->log_rq) // else there is always room for all completions
				sys::release();
			sys::store32(r->rq_db, swap32((uint32_t)((slots + ((uint64_t)1 << r->log_rq)) & 0xffff)));
		}
		warp::sync(warp::all);
	}

	// command reads what the host wants.
	AGP_DEVICE_MEMBER uint32_t command() const {
		uint32_t c = 0;
		if (warp::lane() == 0) {
			c = sys::load32(p->control);
			sys::acquire();
		}
		return warp::shfl(warp::all, c, 0);
	}

	// drain takes what is left of a queue that was in error: completions of flushed WQEs.
	AGP_DEVICE_MEMBER void drain() {
		for (uint32_t n = ready(); n; n = ready()) {
			cqe::entry e = {};
			if (warp::lane() < n)
				e = cqe::decode(*r, cqe::fetch(*r, ci + warp::lane()));
			faults(e, n);
			ci += n;
			if (warp::lane() == 0) {
				sys::release();
				sys::store32(r->cq_db, swap32((uint32_t)(ci & 0xffffff)));
			}
			warp::sync(warp::all);
		}
	}

	// reset waits until the host has taken the receive queue to the reset state, drains it and says
	// so; only then the host makes it ready, and its WQEs count from 0 again. The completion queue
	// goes on. false: the host wants the kernel to end first.
	AGP_DEVICE_MEMBER bool reset(uint32_t status) {
		report(status);
		for (;;) {
			uint32_t seen = warp::shfl(warp::all, sys::load32(r->resets), 0);
			if (seen != st->resets) {
				sys::acquire();
				warp::sync(warp::all);
				if (warp::lane() == 0) {
					st->resets = seen;
					x->stats.resets = seen;
				}
				drain();
				wqes = 0;
				done_ci = ci;
				done_wqes = 0;
				report(AGP_RUNNING);
				return true;
			}
			if (command() != AGP_RUN) {
				if (status == AGP_RESET)
					drain();
				return false;
			}
			pause(1000);
		}
	}

	// pass lets time pass while no packet comes, up to what the host says less some slack: what
	// was sent before has come by then. It tells the shards whole seconds, as packets do. Of the
	// relay's rings the relay tells them.
	AGP_DEVICE_MEMBER void pass() {
		if (r->flags & AGP_RELAY)
			return;
		int64_t now = (int64_t)warp::shfl(warp::all, sys::load64(p->control + 16), 0) - idle_slack_ns;
		if (now <= clock_ns || now / second_ns <= step)
			return;
		step = now / second_ns;
		clock_ns = step * second_ns > clock_ns ? step * second_ns : clock_ns;
		tell(item::tick, step * second_ns, 0);
	}

	// stop and flush are the last that the shards hear.
	AGP_DEVICE_MEMBER void stop(uint32_t status) {
		tell(item::stop, 0, 0);
		report(status);
	}
	AGP_DEVICE_MEMBER void flush() {
		tell(item::flush, (int64_t)sys::load64(p->control + 8), UINT64_MAX);
		report(AGP_FLUSHED);
	}

	// left is the status that the kernel before has left: it could not wait until the host had reset the
	// queue, if that is to be done.
	AGP_DEVICE_MEMBER uint32_t left() const {
		uint32_t status = x->stats.status == AGP_RESET ? AGP_RESET : AGP_RUNNING;
		warp::sync(warp::all); // all have looked
		return status;
	}

	AGP_DEVICE_MEMBER void run() {
		uint32_t quiet = 0, busy = 0, owed = 0, wants = AGP_RUN, status = AGP_RUNNING; // wants: of lane 0
		uint32_t credit_every = 1u << r->log_rq >> 2; // fences are dear
		if (credit_every > 1024)
			credit_every = 1024;
		uint64_t end = p->limit ? p->limit : UINT64_MAX;
		status = left();
		report(status);
		for (;;) {
			if (AGP_RARE(status != AGP_RUNNING)) {
				if (!reset(status)) {
					if (command() == AGP_FLUSH && status == AGP_RESET)
						flush();
					else
						stop(status);
					return;
				}
				status = AGP_RUNNING;
			}
			uint32_t n = ready();
			if (AGP_RARE(n == 0)) {
				if (owed || (extras && late)) {
					credit(true);
					owed = 0;
				}
				if (++quiet % 64 == 0) {
					uint32_t want = command();
					if (want == AGP_STOP) {
						stop(AGP_STOPPED);
						return;
					}
					if (want == AGP_FLUSH && ready() == 0) {
						flush();
						return;
					}
					if (quiet % QUIET == 0)
						pass();
					if (quiet % QUIET == 0 || quiet == 64)
						report(AGP_RUNNING);
				}
				pause(20);
				continue;
			}
			quiet = 0;
			status = batch(&n);
			owed += n;
			busy++;
			// One branch: each that is not taken at once waits for its instructions.
			if (!AGP_RARE(owed >= credit_every || status != AGP_RUNNING || ci >= end || busy % ASKS < 2))
				continue;
			if (owed >= credit_every || status != AGP_RUNNING) {
				credit(status != AGP_RUNNING);
				owed = 0;
			}
			if (status != AGP_RUNNING)
				continue;
			if (ci >= end) {
				stop(AGP_STOPPED);
				return;
			}
			if (busy % 1024 == 0)
				report(AGP_RUNNING);
			if (busy % ASKS == 1 && warp::shfl(warp::all, wants, 0) == AGP_STOP) {
				credit(true); // all room that there is for what comes before the next launch
				stop(AGP_STOPPED);
				return;
			}
			if (busy % ASKS == 0 && warp::lane() == 0)
				wants = sys::load32(p->control);
		}
	}
};

#endif
