// The host that programs of this folder play: it owns the rings, in one thread, without Go.
// Memory is allocated piece by piece, and what lies behind a frame in its slot may not be read.
#ifndef AGP_HOST_H
#define AGP_HOST_H

#include "main.cu"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

typedef struct {
	uint64_t order; // seed of the lanes' order
	uint64_t seed;  // of the flows' hash
	int64_t idle_ns, active_ns, linger_ns, flush_ns;
	uint32_t rings, log_rq, pitch, batch, buckets, log_records, decap, key, flags, per_block;
	uint32_t early; // a fault of the host: completions before their payload
	uint32_t sketches; // AGP_SKETCH_*
	uint32_t shards;
	uint32_t models; // not 0: heads, triggers and events
	uint32_t receivers; // not 0: that many in turns, of agp_sequence
	uint32_t stateless; // not 0: agp_packets
} run_config;

typedef struct {
	int64_t ts_ns;
	uint32_t ring, captured, wire_len;
	uint16_t link, segment_size;
	uint8_t side, tick, pad[6];
} run_frame;

template <class T> static T *make(size_t n = 1) {
	T *p = (T *)aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64);
	if (!p) abort();
	memset((void *)p, 0, (n * sizeof(T) + 63) / 64 * 64);
	return p;
}

static uint16_t be16(uint16_t v) { return __builtin_bswap16(v); }
static uint32_t be32(uint32_t v) { return __builtin_bswap32(v); }
template <class T> static void put(uint8_t *p, T v) { memcpy(p, &v, sizeof v); }

static void fail(const char *what) {
	fprintf(stderr, "run: %s\n", what);
	_exit(3);
}

struct host_ring {
	agp_ring *dev;
	uint64_t cq, wq; // entries written
	uint64_t tail[AGP_SHARDS];

	// room reports whether an entry can be written, with a slot or without.
	bool room(bool slot) const {
		uint32_t ci = be32(__atomic_load_n((uint32_t *)dev->cq_db, __ATOMIC_ACQUIRE));
		uint32_t posted = be32(__atomic_load_n((uint32_t *)dev->rq_db, __ATOMIC_ACQUIRE));
		if ((((uint32_t)cq - ci) & 0xffffff) >= 1u << dev->log_cq) return false;
		return !slot || (uint16_t)(posted - (uint32_t)wq) != 0;
	}

	void write(const run_frame &f, const uint8_t *data, bool early) {
		uint8_t *c = (uint8_t *)dev->cq + (cq & ((1ull << dev->log_cq) - 1)) * 64;
		uint8_t e[64] = {};
		put(e + 0x02, be16(f.link));
		e[0x04] = f.side;
		put(e + 0x06, be16(f.segment_size));
		put(e + 0x24, be32(f.wire_len));
		put(e + 0x2c, be32(f.captured));
		put(e + 0x30, __builtin_bswap64((uint64_t)f.ts_ns));
		if (!f.tick) {
			put(e + 0x3c, be16((uint16_t)wq));
			uint8_t *slot = (uint8_t *)dev->payload + (wq & ((1ull << dev->log_rq) - 1)) * dev->pitch;
			if (early) {
				complete(c, e, f.tick);
				cq--;
			}
			ASAN_UNPOISON_MEMORY_REGION(slot, dev->pitch);
			memcpy(slot, data, f.captured);
			uint32_t used = (f.captured + 15) / 16 * 16; // what loads of 16 bytes reach
			if (used < dev->pitch) ASAN_POISON_MEMORY_REGION(slot + used, dev->pitch - used);
			wq++;
		}
		if (!early || f.tick) complete(c, e, f.tick);
		else cq++;
	}

	void complete(uint8_t *c, const uint8_t *e, bool tick) {
		memcpy(c, e, 63);
		uint8_t owner = cq >> dev->log_cq & 1;
		__atomic_store_n(c + 63, (uint8_t)((tick ? cqe::no_packet : cqe::send) << 4 | owner), __ATOMIC_RELEASE);
		cq++;
	}

	// take prints the records of a shard that are there and returns their number.
	int take(uint32_t shard) {
		int n = 0;
		const agp_out &out = ((const agp_shard *)dev->shards)[shard].out;
		uint64_t head = __atomic_load_n((uint64_t *)out.head, __ATOMIC_ACQUIRE), mask = (1ull << out.log_size) - 1;
		for (uint64_t &at = tail[shard]; at != head; n++) {
			const uint8_t *p = (const uint8_t *)out.buf + (at & mask);
			const agp_record *r = (const agp_record *)p;
			if (r->kind != AGP_SKIP) {
				char line[2 * (sizeof(agp_record) + sizeof(agp_flow) + sizeof(agp_hist) + sizeof(agp_head)) + 1];
				if (r->size > sizeof line / 2) fail("a record of more than it can have");
				for (uint32_t i = 0; i < r->size; i++) { // a flow's place depends on which packets came in one batch
					uint8_t v = i / 4 == offsetof(agp_record, place) / 4 ? 0 : p[i];
					line[2 * i] = "0123456789abcdef"[v >> 4];
					line[2 * i + 1] = "0123456789abcdef"[v & 15];
				}
				line[2 * r->size] = '\n';
				fwrite(line, 1, 2 * r->size + 1, stdout);
			}
			at += r->size;
			__atomic_store_n((uint64_t *)out.tail, at, __ATOMIC_RELEASE);
		}
		return n;
	}
};

struct host {
	run_config c;
	agp_control *control;
	agp_ring *rings;
	host_ring *ring;
	agp_params p;

	// sketches makes those of a shard. Where a number's bin is makes no difference here.
	uint64_t sketches() {
		agp_quantile_table *t = make<agp_quantile_table>();
		for (int e = 0; e < 65; e++)
			for (int i = 0; i < 64; i++) t->first[e][i] = (uint16_t)(e * 33 + i / 2);
		for (uint64_t &high : t->high) high = UINT64_MAX;
		agp_sketches *s = make<agp_sketches>();
		s->k0 = 0x0123456789abcdef, s->k1 = 0xfedcba9876543210;
		s->window_ns = 3000000000;
		s->table = (uint64_t)t;
		for (int i = 0; i < 2; i++) {
			agp_summary *m = make<agp_summary>();
			for (agp_hll &d : m->distinct) d.kxq[0] = AGP_HLL_REGISTERS;
			s->summary[i] = (uint64_t)m;
			s->feature[i] = c.sketches & AGP_SKETCH_BLOCKED ? (uint64_t)make<agp_blocked>() : (uint64_t)make<agp_published>();
		}
		return (uint64_t)s;
	}

	struct sums {
		uint64_t sum = 0;
		void add(uint64_t p, size_t n) {
			for (size_t i = 0; i < n; i++) sum = (sum ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
		}
	};

	// sum of the sketches of a shard.
	uint64_t sum(const agp_shard &r) const {
		sums h;
		const agp_sketches *s = (const agp_sketches *)r.sketches;
		for (int i = 0; i < 2; i++) {
			h.add(s->summary[i], sizeof(agp_summary));
			h.add(s->feature[i], c.sketches & AGP_SKETCH_BLOCKED ? sizeof(agp_blocked) : sizeof(agp_published));
		}
		h.add((uint64_t)s->counted, sizeof s->counted);
		return h.sum;
	}

	// counted is the sum of a shard's counters and of those of its sketches that no order changes.
	uint64_t counted(const agp_shard &r) const {
		sums h;
		h.add(r.counts, sizeof(agp_counts));
		const agp_sketches *s = (const agp_sketches *)r.sketches;
		for (int i = 0; i < 2; i++) {
			const agp_summary *m = (const agp_summary *)s->summary[i];
			h.add((uint64_t)&m->size, sizeof m->size);
			h.add((uint64_t)m->entropy, sizeof m->entropy);
			for (const agp_hll &d : m->distinct) h.add((uint64_t)d.reg, sizeof d.reg);
		}
		return h.sum;
	}

	explicit host(const run_config &config) : c(config) {
		rings = make<agp_ring>(c.rings);
		control = make<agp_control>();
		ring = make<host_ring>(c.rings);
		size_t places = (size_t)AGP_WAYS * c.buckets;
		for (uint32_t i = 0; i < c.rings; i++) {
			agp_ring &r = rings[i];
			r.log_rq = c.log_rq;
			r.log_cq = c.log_rq + 1;
			r.pitch = c.pitch;
			r.flags = c.flags;
			r.cq = (uint64_t)make<uint8_t>((size_t)64 << r.log_cq);
			memset((void *)r.cq, 0xff, (size_t)64 << r.log_cq);
			r.cq_db = (uint64_t)make<uint32_t>(2);
			r.rq_db = (uint64_t)make<uint32_t>(2);
			*(uint32_t *)r.rq_db = be32(1u << c.log_rq);
			r.payload = (uint64_t)make<uint8_t>((size_t)c.pitch << c.log_rq);
			r.log_fragments = 7;
			r.fragments = (uint64_t)make<agp_fragment>(8 << r.log_fragments);
			r.state = (uint64_t)make<agp_ring_state>();
			r.stats = (uint64_t)make<agp_stats>();
			r.resets = (uint64_t)make<uint32_t>();
			agp_shard *shards = make<agp_shard>(c.shards);
			r.shards = (uint64_t)shards;
			for (uint32_t k = 0; k < c.shards; k++) {
				agp_shard &d = shards[k];
				d.buckets = c.buckets;
				if (c.stateless) {
					d.counts = (uint64_t)make<agp_counts>();
				} else {
					d.tags = (uint64_t)make<uint32_t>(places);
					d.due = (uint64_t)make<uint32_t>(places);
					d.flows = (uint64_t)make<agp_flow>(places);
					d.hists = (uint64_t)make<agp_hist>(places);
				}
				d.state = (uint64_t)make<agp_shard_state>();
				d.stats = (uint64_t)make<agp_shard_stats>();
				if (c.sketches) d.sketches = sketches();
				if (c.models) d.heads = (uint64_t)make<agp_head>(places);
				d.out.log_size = c.log_records;
				d.out.buf = (uint64_t)make<uint8_t>((size_t)1 << c.log_records);
				d.out.head = (uint64_t)make<uint64_t>();
				d.out.tail = (uint64_t)make<uint64_t>();
			}
			ring[i].dev = &r;
		}
		p = {};
		p.control = (uint64_t)control;
		p.rings = (uint64_t)rings;
		p.count = c.rings;
		p.batch = c.batch;
		p.decap = c.decap;
		p.key = c.key;
		p.idle_ns = c.idle_ns;
		p.active_ns = c.active_ns;
		p.linger_ns = c.linger_ns;
		p.seed = c.seed;
		p.sketches = c.sketches;
		p.shards = c.shards;
		p.per_block = c.per_block;
		p.receivers = c.receivers;
		p.fill = 2;
		if (c.models) {
			p.messages = AGP_MESSAGE_CAUSES | AGP_MESSAGE_EVENTS;
			p.head_packets = 16;
			for (uint64_t n : {1, 4, 16, 17}) p.triggers[p.trigger_count++] = n;
		}
	}

	void *launch() {
		simt_seed(c.order);
		void *handle;
		const char *kernel = c.stateless ? "agp_packets" : c.receivers ? "agp_sequence" : c.sketches || c.models ? "agp_rings_sketched" : "agp_rings";
		uint32_t warps = (c.receivers ? c.receivers : 1) + c.shards;
		if (simt_launch(kernel, (c.rings + c.per_block - 1) / c.per_block, c.per_block * warps, &p, sizeof p, &handle)) fail("launch");
		return handle;
	}

	int take() {
		int n = 0;
		for (uint32_t i = 0; i < c.rings; i++)
			for (uint32_t k = 0; k < c.shards; k++) n += ring[i].take(k);
		return n;
	}

	// finish ends all flows and prints what the rings have counted.
	void finish(void *handle) {
		__atomic_store_n((uint64_t *)&control->flush_ns, (uint64_t)c.flush_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&control->command, (uint32_t)AGP_FLUSH, __ATOMIC_RELEASE);
		for (bool ended = false; !ended;) {
			ended = simt_wait(handle, 100000) == 0;
			take();
		}
		simt_release(handle);
		for (uint32_t i = 0; i < c.rings; i++) {
			const agp_stats &s = *(const agp_stats *)rings[i].stats;
			uint64_t dropped = 0;
			for (int v = 1; v < AGP_VERDICTS; v++) dropped += s.drops[v];
			agp_shard_stats all = {};
			const agp_shard *shards = (const agp_shard *)rings[i].shards;
			for (uint32_t k = 0; k < c.shards; k++) {
				const agp_shard_stats &d = *(const agp_shard_stats *)shards[k].stats;
				all.recorded += d.recorded;
				all.lost_packets += d.lost_packets;
				all.records += d.records;
				all.evicted += d.evicted;
				all.active += d.active;
				if (c.sketches) printf("%016llx\n", (unsigned long long)(c.stateless ? counted(shards[k]) : sum(shards[k])));
			}
			printf("ring %u", s.status);
			for (uint64_t v : {s.frames, s.bytes, all.recorded, dropped, all.lost_packets, all.records, all.evicted, all.active}) printf(" %llu", (unsigned long long)v);
			printf("\n");
		}
		fflush(stdout);
		_exit(0); // what the run used is not looked for as leaks
	}
};

#endif
