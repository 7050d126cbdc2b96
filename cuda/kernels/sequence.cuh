// Several receive warps of one ring, which take its batches in turns: reading, parsing and hashing go
// on side by side, and what depends on the order of packets is done by one warp after the other, in
// the order of the ring. For one ring, or traffic that a port cannot spread.
//
// Two turns go round, each by the number of the batch: who has the first may claim entries, who has
// the second may hand packets to the shards. A warp that has both is alone: nobody else has claimed
// entries that are not yet handed over. Only then it does what concerns the whole ring: it resets the
// queue, stops, flushes, and says that nothing comes. A batch that finds something wrong leaves a
// status behind, for which the batches that were claimed after it are put back.
#ifndef AGP_SEQUENCE_CUH
#define AGP_SEQUENCE_CUH

#include "ring.cuh"

// order is what the receive warps of a ring share. By lane is what receiver has in registers by lane.
struct order {
	uint32_t claim, hand; // number of the batch whose turn it is, modulo 2^32
	uint32_t status;      // AGP_RUNNING; AGP_IDLE: all is over; else what is to be dealt with
	uint32_t owed, busy, late;
	uint64_t claimed, known;                     // of who claims
	uint64_t ci, wqes, seq, done_ci, done_wqes; // of who hands over, as all that follows
	int64_t clock_ns, step;
	uint64_t bytes[AGP_LANES];
	uint32_t frames[AGP_LANES], packets[AGP_LANES], bad_length[AGP_LANES];
	uint32_t head[AGP_LANES], tail[AGP_LANES], done[AGP_LANES];
	uint64_t cycles[AGP_RECEIVERS][AGP_STAGES]; // of a batch that is timed
};

// sequencer is one of the warps. They share what receiver_scratch has of the ring; each has rows for
// heads of its own.
struct sequencer : receiver<true> {
	order *t;
	uint32_t (*rows)[ROW];
	uint32_t which, number; // of the warp, and of its batch
	uint32_t owed, busy;    // since room was given back, and batches
	uint32_t wants;         // of lane 0: what the host wanted when it was last asked
	bool asked, alone;

	// shared is where the turns are: none of these warps needs rows for a next batch.
	AGP_DEVICE_MEMBER static order *shared(char *room) {
		receiver_scratch *first = (receiver_scratch *)room;
		static_assert(sizeof(order) <= sizeof first->head[1], "there is room");
		return (order *)first->head[1];
	}

	AGP_DEVICE_MEMBER void start(const agp_params *params, uint32_t ring, uint32_t warp, char *room, fifo *first) {
		t = shared(room);
		which = number = warp;
		rows = ((receiver_scratch *)(room + warp * AGP_RECEIVER_SCRATCH))->head[0];
		asked = alone = false;
		if (warp::lane() < AGP_STAGES)
			t->cycles[which][warp::lane()] = 0;
		if (which == 0) {
			init(params, ring, (receiver_scratch *)room, first);
			uint32_t status = left();
			report(status);
			owed = busy = 0;
			if (warp::lane() == 0)
				t->claimed = t->known = ci;
			save(status);
			warp::sync(warp::all);
			return;
		}
		p = params;
		x = (receiver_scratch *)room;
		r = &x->ring;
		to = first;
		st = (agp_ring_state *)((const agp_ring *)params->rings + ring)->state;
	}

	AGP_DEVICE_MEMBER uint32_t taken(const uint32_t *word) const { return warp::shfl(warp::all, warp::lane() == 0 ? near::take32(word) : 0, 0); }

	// await waits for a turn, pass gives it to the next batch.
	AGP_DEVICE_MEMBER void await(const uint32_t *turn) {
		for (uint32_t spins = 0; taken(turn) != number; spins++)
			if (spins)
				pause(20);
		warp::sync(warp::all); // what lane 0 has taken is for all
	}
	AGP_DEVICE_MEMBER void pass_on(uint32_t *turn) {
		warp::sync(warp::all);
		if (warp::lane() == 0)
			near::give32(turn, number + 1);
	}

	// load and save: what one batch leaves to the next, of who has the turn to hand over.
	AGP_DEVICE_MEMBER void load() {
		uint32_t l = warp::lane();
		ci = t->ci;
		wqes = t->wqes;
		seq = t->seq;
		done_ci = t->done_ci;
		done_wqes = t->done_wqes;
		late = t->late != 0;
		owed = t->owed;
		busy = t->busy;
		clock_ns = t->clock_ns;
		step = t->step;
		bytes = t->bytes[l];
		frames = t->frames[l];
		packets = t->packets[l];
		bad_length = t->bad_length[l];
		head = t->head[l];
		tail = t->tail[l];
		done = t->done[l];
	}
	AGP_DEVICE_MEMBER void save(uint32_t status) {
		uint32_t l = warp::lane();
		warp::sync(warp::all); // all lanes have loaded
		t->bytes[l] = bytes;
		t->frames[l] = frames;
		t->packets[l] = packets;
		t->bad_length[l] = bad_length;
		t->head[l] = head;
		t->tail[l] = tail;
		t->done[l] = done;
		if (l == 0) {
			t->ci = ci;
			t->wqes = wqes;
			t->seq = seq;
			t->done_ci = done_ci;
			t->done_wqes = done_wqes;
			t->late = late;
			t->owed = owed;
			t->busy = busy;
			t->clock_ns = clock_ns;
			t->step = step;
			near::give32(&t->status, status); // who claims looks at it without the turn
		}
	}

	// claim waits for entries, from ci on, and returns how many the batch has. 0: the ring has come to
	// its end.
	AGP_DEVICE_MEMBER uint32_t claim() {
		await(&t->claim);
		ci = t->claimed;
		known = t->known;
		uint32_t n = 0, status = AGP_RUNNING;
		for (uint32_t quiet = 0;;) {
			if (!alone) {
				status = taken(&t->status);
				if (AGP_RARE(status == AGP_IDLE))
					break;
			}
			n = status == AGP_RUNNING ? ready() : 0;
			if (!AGP_RARE(n == 0))
				break;
			if (!alone && taken(&t->hand) == number) {
				warp::sync(warp::all);
				load(); // ci among it: batches that were put back are claimed again
				alone = true;
				status = taken(&t->status);
				continue;
			}
			if (alone && (status == AGP_RUNNING ? idle(++quiet) : settle(&status))) {
				save(AGP_IDLE);
				break;
			}
			pause(20);
		}
		warp::sync(warp::all); // all lanes have read
		if (warp::lane() == 0) {
			t->claimed = ci + n;
			t->known = known;
			if (alone && n)
				near::give32(&t->status, AGP_RUNNING);
		}
		pass_on(&t->claim);
		return n;
	}

	// idle is for when there is nothing to take. true: the ring has come to its end.
	AGP_DEVICE_MEMBER bool idle(uint32_t quiet) {
		if (owed || late) {
			credit(true);
			owed = 0;
		}
		if (quiet % 64)
			return false;
		uint32_t want = command();
		if (want == AGP_STOP) {
			stop(AGP_STOPPED);
			return true;
		}
		if (want == AGP_FLUSH && ready() == 0) {
			flush();
			return true;
		}
		if (quiet % QUIET == 0)
			pass();
		if (quiet % QUIET == 0 || quiet == 64)
			report(AGP_RUNNING);
		return false;
	}

	// settle deals with the status that a batch has left. true: the ring has come to its end.
	AGP_DEVICE_MEMBER bool settle(uint32_t *status) {
		if (*status == AGP_STOPPED) {
			stop(AGP_STOPPED);
			return true;
		}
		if (!reset(*status)) {
			if (command() == AGP_FLUSH && *status == AGP_RESET)
				flush();
			else
				stop(*status);
			return true;
		}
		*status = AGP_RUNNING;
		return false;
	}

	// fetch begins to bring the heads of frames close. Which receive WQE an entry stands for it says
	// itself; whether that is the one whose turn it is, is seen when the batch is handed over.
	AGP_DEVICE_MEMBER void fetch(const cqe::entry &e, bool packet) {
		if (packet) {
			uint64_t from = slot(e.wqe);
			uint32_t *row = rows[warp::lane()], len = captured(e);
			AGP_UNROLL
			for (uint32_t i = 0; i < WINDOW; i += 16)
				if (i < len)
					copies::fetch(row + i / 4, from + i);
		}
	}

	// what is known of a lane's packet before its turn comes.
	struct mine {
		cqe::entry e;
		agp_packet q;
		agp_key k;
		uint64_t hash;
		uint32_t parts;
		uint8_t verdict;
	};
	AGP_DEVICE_MEMBER void identify(mine *m) {
		m->q.pad = key::set(&m->k, m->q, p->key);
		m->hash = key::hash(m->k, p->seed);
		m->parts = flow::segments(m->q);
	}

	// take does what does not depend on the order of packets.
	AGP_DEVICE_MEMBER void take(mine *m, uint32_t n) {
		uint32_t l = warp::lane();
		watch.start((number + 1) % 61 == 0, t->cycles[which]);
		*m = mine{};
		m->e.kind = cqe::unknown;
		m->verdict = 0xff;
		if (l < n)
			m->e = cqe::decode(*r, cqe::fetch(*r, ci + l));
		bool packet = l < n && m->e.kind == cqe::packet;
		fetch(m->e, packet);
		copies::arrived();
		watch.lap(0);
		if (packet) {
			const cqe::entry &e = m->e;
			uint32_t len = captured(e);
			view f = {(const uint8_t *)rows[l], len < WINDOW ? len : WINDOW, slot(e.wqe), len};
			agp_packet *q = &m->q;
			q->ts_ns = (int64_t)e.time;
			m->verdict = parse(e.link, f, e.wire_len, p->decap, q);
			q->segment_size = (uint16_t)e.segment_size;
			q->side = (uint8_t)e.side;
			if (e.tci >= 0) {
				q->wire_len += 4;
				if (e.tci & 0xfff)
					q->vlan = (uint16_t)(e.tci & 0xfff);
			}
		}
		watch.lap(1);
		if (m->verdict == 0)
			identify(m);
		watch.lap(2);
	}

	// hand does the rest of a batch, and returns what becomes of the ring.
	AGP_DEVICE_MEMBER uint32_t hand(mine *m, uint32_t n) {
		uint32_t l = warp::lane(), status = AGP_RUNNING, times = 0, accepted = n;
		const cqe::entry &e = m->e;
		uint64_t index = wqes + l;
		if (AGP_RARE(warp::ballot(warp::all, l < n && (e.kind != cqe::packet || e.wqe != (uint32_t)(index & 0xffff))))) {
			uint32_t takers = warp::ballot(warp::all, l < n && takes(e));
			index = wqes + (uint32_t)popc(takers & ((1u << l) - 1));
			status = check(e, &n, index);
			accepted = (uint32_t)popc(takers & (n < 32 ? (1u << n) - 1 : warp::all));
			times = warp::ballot(warp::all, l < n && e.kind == cqe::time);
			faults(e, n);
			if (l >= n)
				m->verdict = 0xff;
		}
		wqes += accepted;
		uint32_t good = warp::ballot(warp::all, m->verdict == 0);
		if (AGP_RARE(warp::ballot(warp::all, l < n && (m->verdict != 0 || (m->q.flags & AGP_FRAGMENT))))) {
			for (uint32_t left = warp::ballot(warp::all, m->verdict == 0 && (m->q.flags & AGP_FRAGMENT)); left; left &= left - 1) {
				if ((uint32_t)ffs(left) == l) {
					agp_packet whole = m->q; // so that it stays in registers
					resolve((agp_fragment *)r->fragments, r->log_fragments, &whole);
					m->q = whole;
					identify(m);
				}
				warp::sync(warp::all);
			}
			for (uint32_t left = warp::ballot(warp::all, l < n && e.kind == cqe::packet && m->verdict != 0); left; left &= left - 1) {
				if ((uint32_t)ffs(left) == l)
					x->stats.drops[m->verdict % AGP_VERDICTS]++;
				warp::sync(warp::all);
			}
		}
		tally(n, e, m->verdict, m->q, m->parts);
		for (uint32_t from = 0; from < n;) {
			int64_t tick = 0;
			bool ticks = false;
			uint32_t to = edge(from, n, good, times, e, &m->q, &tick, &ticks);
			uint32_t part = (to < 32 ? (1u << to) - 1 : warp::all) & ~((1u << from) - 1) & good;
			if (part)
				add(part, m->q, m->k, m->hash, m->parts, e.number, slot(index));
			if (AGP_RARE(ticks))
				tell(item::tick, tick, warp::shfl(warp::all, e.number, to & 31));
			from = to;
			if (from < n && (times >> from & 1))
				from++; // the tick's own entry
		}
		watch.lap(3);
		if (AGP_RARE(watch.to != nullptr))
			for (uint32_t i = 0; i < AGP_STAGES; i++) {
				x->stats.cycles[i] += watch.to[i];
				watch.to[i] = 0;
			}
		watch.stop(&x->stats, n);
		ci += n;
		return after(n, status);
	}

	// after is what is due between batches.
	AGP_DEVICE_MEMBER uint32_t after(uint32_t n, uint32_t status) {
		uint32_t every = 1u << r->log_rq >> 2; // fences are dear
		if (every > 1024)
			every = 1024;
		owed += n;
		busy++;
		if (AGP_RARE(asked)) {
			asked = false;
			if (status == AGP_RUNNING && warp::shfl(warp::all, wants, 0) == AGP_STOP)
				status = AGP_STOPPED;
		}
		if (status == AGP_RUNNING && p->limit && ci >= p->limit)
			status = AGP_STOPPED;
		if (AGP_RARE(owed >= every || status != AGP_RUNNING)) {
			credit(status != AGP_RUNNING);
			owed = 0;
		}
		if (AGP_RARE(busy % 1024 == 0))
			report(AGP_RUNNING);
		if (AGP_RARE(busy % ASKS == 0)) { // the answer is looked at when the warp has its next turn
			asked = true;
			if (warp::lane() == 0)
				wants = sys::load32(p->control);
		}
		return status;
	}

	AGP_DEVICE_MEMBER void serve() {
		for (;; number += p->receivers) {
			uint32_t n = claim();
			if (AGP_RARE(n == 0))
				return;
			mine m;
			take(&m, n);
			if (!alone) {
				await(&t->hand);
				load();
			}
			alone = false;
			uint32_t status = taken(&t->status);
			if (!AGP_RARE(status != AGP_RUNNING))
				save(hand(&m, n));
			pass_on(&t->hand);
		}
	}
};

#endif
