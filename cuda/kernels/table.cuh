// The flows of one shard and its record ring. One warp owns them; its lanes work together, each
// on a flow of its own. Functions of struct table are called by all lanes.
//
// A flow lies in one of two buckets of AGP_WAYS places each. Its tag there is never 0; a tag
// that is alike is confirmed by the whole key. A place keeps its flow until the flow ends.
#ifndef AGP_TABLE_CUH
#define AGP_TABLE_CUH

#include "flow.cuh"
#include "head.cuh"
#include "summary.cuh"

const uint32_t nowhere = 0xffffffffu;

// due_at is the second at which a deadline is past.
AGP_DEVICE uint32_t due_at(int64_t deadline) {
	int64_t s = deadline < 0 ? 0 : deadline / second_ns + 1;
	return s < 0xffffffff ? (uint32_t)s : 0xffffffffu;
}

// While a batch is added, each lane's flow is in shared memory: its state is 14 sectors, and
// a lane that went to the device's memory for each would wait most of the time. All flows of a
// batch come and go together. Lanes that read the same field do not meet in a bank more than
// two at a time.
struct staged {
	agp_flow f;
	uint32_t pad[4];
};

// cause is what brings messages about.
struct cause {
	uint64_t number;
	int64_t ts_ns;
	bool timed;
};

// extras: there is more than records, agp_params says what.
template <bool extras> struct table {
	static const bool stateless = false;
	const agp_params *p;
	const agp_shard *r;
	agp_shard_stats *s; // in shared memory, written by lane 0
	staged *x;    // in shared memory, one for each lane
	summary::known *known; // in shared memory as well
	summary::waiting *w;
	uint32_t *tags, *due;
	agp_flow *flows;
	agp_hist *hists;
	agp_head *heads;
	uint32_t ring, flags, buckets; // flags of the ring
	uint64_t head, tail; // of the record ring
	bool full;           // found full in this batch
	bool ending;         // all flows are being flushed

	AGP_DEVICE_MEMBER void init(const agp_params *params, const agp_ring *in, uint32_t number, const agp_shard *of, staged *room, summary::known *sketches, summary::waiting *progresses, agp_shard_stats *stats) {
		p = params;
		r = of;
		ring = number;
		flags = in->flags;
		agp_shard_state *state = (agp_shard_state *)of->state;
		s = stats;
		x = room;
		known = sketches;
		w = progresses;
		if (warp::lane() == 0)
			w->n = 0;
		full = ending = false;
		head = state->out_head;
		tail = sys::load64(of->out.tail);
		tags = (uint32_t *)of->tags;
		due = (uint32_t *)of->due;
		flows = (agp_flow *)of->flows;
		hists = (agp_hist *)of->hists;
		heads = (agp_head *)of->heads;
		buckets = of->buckets;
	}

	AGP_DEVICE_MEMBER static uint32_t tag(uint64_t hash) { return (uint32_t)(hash >> 24) | 1; }
	AGP_DEVICE_MEMBER uint32_t first(uint64_t hash) const { return (uint32_t)((uint64_t)(uint32_t)hash * buckets >> 32) * AGP_WAYS; }
	AGP_DEVICE_MEMBER uint32_t second(uint64_t hash) const { return (uint32_t)((uint64_t)((uint32_t)(hash >> 27) * 0x9e3779b1u) * buckets >> 32) * AGP_WAYS; }

	// hits returns which places of the two buckets have the flow's tag.
	AGP_DEVICE_MEMBER uint32_t hits(uint64_t hash) const {
		uint32_t at[2] = {first(hash), second(hash)}, want = tag(hash), found = 0;
		words w[4] = {load16(tags + at[0]), load16(tags + at[0] + 4), load16(tags + at[1]), load16(tags + at[1] + 4)};
		AGP_UNROLL
		for (int i = 0; i < 16; i++)
			found |= (w[i / 4].w[i % 4] == want ? 1u : 0u) << i;
		return found;
	}
	AGP_DEVICE_MEMBER uint32_t nth(uint64_t hash, uint32_t i) const { return (i < AGP_WAYS ? first(hash) : second(hash)) + i % AGP_WAYS; }

	// candidate returns the place of what is most likely the flow, or nowhere.
	AGP_DEVICE_MEMBER uint32_t candidate(uint64_t hash) const {
		uint32_t found = hits(hash);
		return found ? nth(hash, (uint32_t)ffs(found)) : nowhere;
	}

	// expect brings to L2 what a lane will look at soon.
	AGP_DEVICE_MEMBER void expect(uint64_t hash) const {
		hint(tags + first(hash));
		hint(tags + second(hash));
	}

	// confirm returns the place of a flow of which the candidate was staged, or nowhere. It is no
	// collective.
	AGP_DEVICE_MEMBER uint32_t confirm(uint32_t place, const agp_key &k, uint64_t hash) {
		staged *mine = &x[warp::lane()];
		if (place == nowhere || key::equal(mine->f.key, k))
			return place;
		for (uint32_t found = hits(hash); found; found &= found - 1) { // two flows with one tag
			place = nth(hash, (uint32_t)ffs(found));
			if (key::equal(flows[place].key, k)) {
				for (uint32_t i = 0; i < sizeof(agp_flow); i += 16)
					store16((char *)&mine->f + i, load16((const char *)&flows[place] + i));
				return place;
			}
		}
		return nowhere;
	}

	// stage brings the flow of each lane that has one to shared memory.
	AGP_DEVICE_MEMBER void stage(uint32_t place) {
		copies::load(&x[warp::lane()].f, &flows[place == nowhere ? 0 : place], sizeof(agp_flow), place != nowhere);
		copies::arrived();
	}

	// unstage brings it back.
	AGP_DEVICE_MEMBER void unstage(uint32_t place) {
		copies::store(&flows[place == nowhere ? 0 : place], &x[warp::lane()].f, sizeof(agp_flow), place != nowhere);
		warp::sync(warp::all);
	}

	// room returns a free place for a flow, in the bucket that has more of them, or, if there is
	// none, the place of the least valuable flow and full = true. It is no collective.
	AGP_DEVICE_MEMBER uint32_t room(uint64_t hash, bool *full) const {
		uint32_t at[2] = {first(hash), second(hash)};
		uint32_t free[2] = {0, 0};
		for (int b = 0; b < 2; b++)
			for (int i = 0; i < AGP_WAYS; i++)
				free[b] |= (tags[at[b] + i] == 0 ? 1u : 0u) << i;
		int b = popc(free[1]) > popc(free[0]) ? 1 : 0;
		*full = free[b] == 0;
		if (!*full)
			return at[b] + (uint32_t)ffs(free[b]);
		uint32_t victim = at[0];
		for (int i = 1; i < 2 * AGP_WAYS; i++) {
			uint32_t place = at[i / AGP_WAYS] + (uint32_t)i % AGP_WAYS;
			if (flow::less(flows[place], flows[victim]))
				victim = place;
		}
		return victim;
	}

	// flushing says whether the host still wants all records.
	AGP_DEVICE_MEMBER bool flushing() const {
		uint32_t c = 0;
		if (warp::lane() == 0)
			c = sys::load32(p->control);
		return warp::shfl(warp::all, c, 0) == AGP_FLUSH;
	}

	// reserve makes room for n bytes in the record ring and returns where they begin, or says
	// that the host has not read enough. A lossless ring waits for the host; so does any at the end,
	// when no packet has to wait for it, until the host wants no more.
	AGP_DEVICE_MEMBER bool reserve(uint32_t n, uint64_t *at) {
		uint64_t size = (uint64_t)1 << r->out.log_size;
		uint64_t left = size - (head & (size - 1)), need = left < n ? left + n : n;
		while (head + need - tail > size) {
			if (full)
				return false;
			uint64_t seen = 0;
			if (warp::lane() == 0)
				seen = sys::load64(r->out.tail);
			seen = warp::shfl(warp::all, seen, 0);
			sys::acquire(); // the host has read what it gives back
			warp::sync(warp::all);
			bool moved = seen != tail;
			tail = seen;
			if (!moved) {
				if (!(flags & AGP_LOSSLESS) && !(ending && flushing())) {
					full = true; // the host's memory is far: it is asked once a batch
					return false;
				}
				publish(); // the host may wait for what is there
				pause(1000);
			}
		}
		if (left < n) {
			if (warp::lane() < 4)
				store16((char *)(r->out.buf + (head & (size - 1))) + warp::lane() * 16,
				        warp::lane() == 0 ? words{{(uint32_t)left, ring | (uint32_t)AGP_SKIP << 16, 0, 0}} : words{{0, 0, 0, 0}});
			head += left;
		}
		*at = r->out.buf + (head & (size - 1));
		head += n;
		return true;
	}

	// publish shows the host all records so far.
	AGP_DEVICE_MEMBER void publish() {
		warp::sync(warp::all);
		if (warp::lane() == 0) {
			sys::release();
			sys::store64(r->out.head, head);
		}
		warp::sync(warp::all);
	}

	// header is what a lane, 0 to 3, writes of an agp_record. by and goes_on are those of lane from.
	AGP_DEVICE_MEMBER words header(uint32_t size, uint32_t kind, uint32_t why, uint32_t place, uint32_t parts, uint32_t more, uint32_t wire, bool goes_on, const cause &by, uint32_t from) const {
		uint32_t flags = 0;
		uint64_t number = 0, ts = 0;
		if (extras && p->messages) {
			flags = warp::shfl(warp::all, (by.timed ? (uint32_t)AGP_TIMED : 0) | (goes_on ? (uint32_t)AGP_GOES_ON : 0), from);
			number = warp::shfl(warp::all, by.number, from);
			ts = warp::shfl(warp::all, (uint64_t)by.ts_ns, from);
		}
		uint32_t l = warp::lane();
		if (l == 0)
			return words{{size, ring | kind << 16 | why << 24, extras && p->messages ? place : 0, parts | flags << 8 | more}};
		if (extras && l == 1)
			return words{{(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)ts, (uint32_t)(ts >> 32)}};
		return words{{extras && l == 2 ? wire : 0, 0, 0, 0}};
	}

	// write puts a flow into the record ring. by and goes_on are those of lane from, the rest is of
	// all lanes.
	AGP_DEVICE_MEMBER bool write(uint32_t kind, uint32_t why, const agp_flow *f, uint32_t at, bool goes_on, const cause &by, uint32_t from) {
		bool counters = f->tier != 0, begins = extras && (f->bits & flow::head);
		uint32_t size = (uint32_t)(sizeof(agp_record) + sizeof(agp_flow) + (counters ? sizeof(agp_hist) : 0) + (begins ? sizeof(agp_head) : 0));
		uint64_t to;
		if (!reserve(size, &to))
			return false;
		uint32_t l = warp::lane();
		words w = header(size, kind, why, at, (counters ? (uint32_t)AGP_PART_HIST : 0) | (begins ? (uint32_t)AGP_PART_HEAD : 0), 0, 0, goes_on, by, from);
		if (l >= 4)
			w = load16((const char *)f + (l - 4) * 16);
		store16((char *)to + l * 16, w);
		to += 512;
		if (counters) {
			const char *h = (const char *)&hists[at];
			store16((char *)to + l * 16, load16(h + l * 16));
			if (l < 8)
				store16((char *)to + 512 + l * 16, load16(h + 512 + l * 16));
			to += sizeof(agp_hist);
		}
		if (begins && l < sizeof(agp_head) / 16)
			store16((char *)to + l * 16, load16((const char *)&heads[at] + l * 16));
		return true;
	}

	// starts says that the flows of the lanes that want it have begun, with the packet in them.
	AGP_DEVICE_MEMBER void starts(bool want, uint32_t place, const cause &by) {
		warp::sync(warp::all);
		for (uint32_t left = warp::ballot(warp::all, want); left; left &= left - 1) {
			uint32_t from = (uint32_t)ffs(left), at = warp::shfl(warp::all, place, from), l = warp::lane();
			const agp_flow *f = &x[from].f;
			const uint32_t size = sizeof(agp_record) + 64;
			uint64_t to;
			if (!reserve(size, &to)) {
				if (l == 0)
					s->lost_starts++;
				continue;
			}
			uint32_t more = (f->bits & flow::from_b ? 1u << 16 : 0) | (uint32_t)(f->dir[0].tcp_flags | f->dir[1].tcp_flags) << 24;
			words w = header(size, AGP_START, 0, at, 0, more, (uint32_t)(f->dir[0].wire_bytes + f->dir[1].wire_bytes), false, by, from);
			if (l >= 4)
				w = l < 7 ? load16((const char *)&f->key + (l - 4) * 16) : words{{0, 0, 0, 0}};
			if (l < size / 16)
				store16((char *)to + l * 16, w);
		}
		warp::sync(warp::all);
	}

	// matures says that flows have come to a trigger.
	AGP_DEVICE_MEMBER void matures(bool want, uint32_t place, const cause &by) {
		warp::sync(warp::all);
		for (uint32_t left = warp::ballot(warp::all, want); left; left &= left - 1) {
			uint32_t from = (uint32_t)ffs(left), at = warp::shfl(warp::all, place, from);
			if (!write(AGP_MATURE, 0, &x[from].f, at, false, by, from) && warp::lane() == 0)
				s->lost_matures++;
		}
		warp::sync(warp::all);
	}

	// ticks says that all that a time has brought about has been said.
	AGP_DEVICE_MEMBER void ticks(const cause &by) {
		uint64_t to;
		if (!reserve(sizeof(agp_record), &to)) {
			if (warp::lane() == 0)
				s->lost_ticks++;
			return;
		}
		words w = header(sizeof(agp_record), AGP_TICK, 0, 0, 0, 0, 0, false, by, 0);
		if (warp::lane() < 4)
			store16((char *)to + warp::lane() * 16, w);
	}

	// triggered says whether a packet count is one at which flows are scored.
	AGP_DEVICE_MEMBER bool triggered(uint64_t n) const {
		for (uint32_t i = 0; i < p->trigger_count && p->triggers[i] <= n; i++)
			if (p->triggers[i] == n)
				return true;
		return false;
	}

	// tell does for models and detectors what a packet that was added gives reason to.
	AGP_DEVICE_MEMBER void tell(bool on, bool opened, uint32_t place, agp_flow *f, const cause &by) {
		if (on && opened)
			for (int i = 0; i < 3; i++)
				f->born[i] = (uint8_t)(by.number >> 8 * i);
		if ((p->messages & AGP_MESSAGE_EVENTS) && warp::ballot(warp::all, on && opened))
			starts(on && opened, place, by);
		uint64_t n = on ? flow::packets(*f) : 0;
		bool ripe = on && triggered(n);
		if (warp::ballot(warp::all, ripe))
			matures(ripe, place, by);
		if (on && n >= p->head_packets)
			f->bits &= (uint16_t)~flow::head;
	}

	// emit writes a record for the flow of each lane that wants one: the one it has staged, or that
	// in its place. It returns the lanes whose flows are done with; where there is no room for a record, it
	// is lost, unless the flow can stay.
	AGP_DEVICE_MEMBER uint32_t emit(bool want, uint32_t place, uint8_t reason, bool goes_on, bool from_stage, bool stays, const cause &by) {
		uint32_t done = 0;
		warp::sync(warp::all);
		for (uint32_t left = warp::ballot(warp::all, want); left; left &= left - 1) {
			uint32_t from = (uint32_t)ffs(left);
			uint32_t at = warp::shfl(warp::all, place, from), why = warp::shfl(warp::all, (uint32_t)reason, from);
			const agp_flow *f = from_stage ? &x[from].f : &flows[at];
			uint64_t packets = flow::packets(*f);
			bool written = write(AGP_FLOW, why, f, at, goes_on, by, from);
			if (!written && stays)
				continue;
			done |= 1u << from;
			if (!written) {
				if (warp::lane() == 0) {
					s->lost_records++;
					s->lost_packets += packets;
					s->lost_bytes += f->dir[0].wire_bytes + f->dir[1].wire_bytes;
				}
				continue;
			}
			if (warp::lane() == 0) {
				s->records++;
				s->recorded += packets;
			}
		}
		warp::sync(warp::all);
		if (extras && p->sketches)
			summary::ended(known, p->sketches, w, done >> warp::lane() & 1, from_stage ? &x[warp::lane()].f : &flows[want ? place : 0]);
		return done;
	}

	// drop frees the places of the lanes that say so.
	AGP_DEVICE_MEMBER void drop(bool want, uint32_t place) {
		if (want)
			tags[place] = 0;
		uint32_t n = (uint32_t)popc(warp::ballot(warp::all, want));
		if (warp::lane() == 0)
			s->active -= n;
		warp::sync(warp::all);
	}

	// add puts one packet of each active lane into its flow, which is staged. Lanes have packets of
	// different flows; place is where the lane's flow is, or nowhere.
	AGP_DEVICE_MEMBER void add(bool on, const agp_key &k, uint64_t hash, const agp_packet &q, bool sender_b, bool coalesced, uint64_t seq, uint64_t payload, uint32_t *place) {
		const cause by = {seq, q.ts_ns, false};
		// What time or a new connection ends, ends before the packet is added.
		uint8_t reason = 0;
		bool out = false, cuts = false;
		agp_flow *f = &x[warp::lane()].f;
		if (on && *place != nowhere) {
			if (q.ts_ns > flow::deadline(*f, *p, &reason)) {
				out = true;
				cuts = reason == flow::active && q.ts_ns - f->last_ns <= p->idle_ns;
			}
			if ((!out || cuts) && q.protocol == flow::TCP && flow::new_connection(*f, q, flow::direction(*f, sender_b))) {
				reason = out ? reason : (uint8_t)flow::tcp_end;
				out = true;
				cuts = false;
			}
		}
		if (AGP_RARE(warp::ballot(warp::all, out))) {
			emit(out && !(f->bits & flow::empty), *place, reason, cuts, true, false, by);
			if (cuts)
				flow::cut(f);
			drop(out && !cuts, *place);
			if (out && !cuts)
				*place = nowhere;
		}
		uint32_t backs = 0;
		for (bool wait = on; warp::ballot(warp::all, wait);) {
			bool opened = insert(wait && *place == nowhere, k, hash, q, sender_b, by, place);
			// Before anything else is evicted, so that every flow in the table has a packet.
			bool ready = wait && *place != nowhere, back = false;
			int64_t before = ready ? f->last_ns : 0;
			if (uint32_t left = warp::ballot(warp::all, ready && flow::folds(*f))) {
				warp::sync(warp::all); // all look at what a lane has written to its flow
				for (; left; left &= left - 1) {
					uint32_t from = (uint32_t)ffs(left);
					flow::fold(&x[from].f, &hists[warp::shfl(warp::all, *place, from)]);
				}
				warp::sync(warp::all);
			}
			if (ready) {
				if (extras && p->head_packets && (f->bits & flow::head))
					head::collect(&heads[*place], *f, q, sender_b, payload);
				uint32_t bits = f->bits;
				back = flow::update(f, q, sender_b, opened, coalesced, seq);
				if (opened || ((f->bits ^ bits) & flow::closed)) {
					uint8_t why;
					uint32_t when = due_at(flow::deadline(*f, *p, &why));
					if (opened || when < due[*place])
						due[*place] = when;
				}
				wait = false;
			}
			backs += (uint32_t)popc(warp::ballot(warp::all, back));
			if (extras && p->sketches)
				summary::packet(known, p->sketches, w, ready, f, q.l3_len, q.ts_ns, before, opened);
			if (extras && p->messages)
				tell(ready, opened, *place, f, by);
		}
		if (AGP_RARE(backs) && warp::lane() == 0)
			s->time_steps += backs;
	}

	// insert opens flows for as many of the lanes in need as can have one without getting in each
	// other's way, and says for which. A lane whose flow had to go is told by its place.
	AGP_DEVICE_MEMBER bool insert(bool need, const agp_key &k, uint64_t hash, const agp_packet &q, bool sender_b, const cause &cause_of, uint32_t *place) {
		if (!AGP_RARE(warp::ballot(warp::all, need)))
			return false;
		warp::sync(warp::all); // room compares flows to which others have added
		bool full = false;
		uint32_t at = need ? room(hash, &full) : nowhere;
		if (warp::ballot(warp::all, full)) { // who goes is decided by what all have now
			unstage(*place);
			if (need)
				at = room(hash, &full);
		}
		uint32_t same = warp::match(warp::all, need ? at / AGP_WAYS : 0x80000000u | warp::lane());
		bool go = need && (uint32_t)ffs(same) == warp::lane();
		uint32_t evicts = warp::ballot(warp::all, go && full);
		if (evicts) { // one at a time: the victims of two may be one
			uint32_t by = (uint32_t)ffs(evicts), gone = warp::shfl(warp::all, at, by);
			go = go && (!full || warp::lane() == by);
			emit(warp::lane() == by && !(flows[gone].bits & flow::empty), gone, flow::evicted, false, false, false, cause_of);
			drop(warp::lane() == by, gone);
			if (warp::lane() == 0)
				s->evicted++;
			if (*place == gone)
				*place = nowhere;
		}
		warp::sync(warp::all); // others have looked for room and for flows
		if (go) {
			*place = at;
			tags[at] = tag(hash);
			flow::open(&x[warp::lane()].f, k, hash, q, sender_b);
			if (extras && p->head_packets) {
				x[warp::lane()].f.bits |= flow::head;
				head::open(&heads[at], q.protocol);
			}
		}
		uint32_t n = (uint32_t)popc(warp::ballot(warp::all, go));
		if (warp::lane() == 0) {
			s->active += n;
			s->started += n;
		}
		warp::sync(warp::all);
		return go;
	}

	// learn brings the sketches up to date.
	AGP_DEVICE_MEMBER void learn() {
		if (extras && p->sketches)
			summary::learn(known, p->sketches, w);
	}

	// tick lets time pass: flows whose deadline is before now end. now is a multiple of a second.
	AGP_DEVICE_MEMBER void tick(int64_t now, uint64_t number) {
		const cause by = {number, now, true};
		expire(now, by);
		learn();
		if (extras && p->sketches)
			summary::tick(known, now);
		if (extras && (p->messages & AGP_MESSAGE_EVENTS))
			ticks(by);
	}
	AGP_DEVICE_MEMBER void expire(int64_t now, const cause &by) {
		uint32_t sec = now < 0 ? 0 : now / second_ns < 0xffffffff ? (uint32_t)(now / second_ns) : 0xffffffffu;
		uint32_t n = buckets * AGP_WAYS;
		if (s->active == 0)
			return;
		// Flows for whose records there is no room end at the next tick.
		for (uint32_t base = 0; base < n && !full; base += AGP_LANES) {
			uint32_t at = base + warp::lane();
			bool look = at < n && tags[at] != 0 && due[at] <= sec;
			if (!warp::ballot(warp::all, look))
				continue;
			uint8_t reason = 0;
			bool out = false, cuts = false;
			if (look) {
				const agp_flow &f = flows[at];
				out = flow::deadline(f, *p, &reason) < now;
				cuts = out && reason == flow::active && now - f.last_ns <= p->idle_ns;
			}
			bool wants = out && !(flows[out ? at : 0].bits & flow::empty);
			if (!(emit(wants, at, reason, cuts, false, true, by) >> warp::lane() & 1) && wants)
				out = cuts = false;
			if (cuts)
				flow::cut(&flows[at]);
			drop(out && !cuts, at);
			if (look && (!out || cuts)) {
				uint8_t why;
				due[at] = due_at(flow::deadline(flows[at], *p, &why));
			}
		}
		warp::sync(warp::all);
	}

	// flush ends every flow. now is the latest time of the whole input: what was due before it
	// ends for its own reason.
	AGP_DEVICE_MEMBER void flush(int64_t now, uint64_t number) {
		const cause by = {number, now, true};
		full = false;
		ending = true;
		uint32_t n = buckets * AGP_WAYS;
		for (uint32_t base = 0; base < n; base += AGP_LANES) {
			uint32_t at = base + warp::lane();
			bool out = at < n && tags[at] != 0;
			if (!warp::ballot(warp::all, out))
				continue;
			uint8_t reason = 0;
			bool full = false;
			if (out) {
				const agp_flow &f = flows[at];
				if (flow::deadline(f, *p, &reason) >= now && reason != flow::tcp_end)
					reason = flow::flushed;
				full = !(f.bits & flow::empty);
			}
			emit(full, at, reason, false, false, false, by);
			drop(out, at);
		}
	}
};

#endif
