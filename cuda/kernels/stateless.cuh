// Packets that are counted and forgotten: what a state warp has in the place of flows where none are
// asked for. There are no records. Counters and sketches belong to the warp, in the device's memory,
// where the host reads and adds them up.
//
// Nothing here depends on the order of packets. Of a packet the source is who has sent it, whoever
// began.
#ifndef AGP_STATELESS_CUH
#define AGP_STATELESS_CUH

#include "fifo.cuh"
#include "table.cuh"

// counts has the place of table in a shard.
struct counts {
	static const bool stateless = true;

	agp_counts *c;
	agp_shard_stats *s; // in shared memory, written by lane 0
	summary::known *known;
	summary::waiting *w;
	uint32_t sketches;
	bool full;     // as in table
	uint64_t head; // as in table

	AGP_DEVICE_MEMBER void init(const agp_params *params, const agp_ring *, uint32_t, const agp_shard *of, staged *, summary::known *all, summary::waiting *progresses, agp_shard_stats *stats) {
		c = (agp_counts *)of->counts;
		s = stats;
		known = all;
		w = progresses;
		sketches = params->sketches;
		head = ((const agp_shard_state *)of->state)->out_head;
		if (warp::lane() == 0)
			w->n = 0;
		warp::sync(warp::all);
	}

	AGP_DEVICE_MEMBER void expect(uint64_t) const {}
	AGP_DEVICE_MEMBER void publish() const {}
	AGP_DEVICE_MEMBER void learn() const {}
	AGP_DEVICE_MEMBER void flush(int64_t, uint64_t) const {}
	AGP_DEVICE_MEMBER void tick(int64_t ns, uint64_t) const {
		if (sketches)
			summary::tick(known, ns);
	}

	// count adds a packet of each lane.
	AGP_DEVICE_MEMBER void count(bool on, const item &m) const {
		agp_packet q = on ? m.get() : agp_packet{};
		uint32_t parts = on ? m.parts : 0, mine = (q.ip_version == 6 ? 256u : 0u) + q.protocol;
		uint64_t bytes = (uint64_t)parts * (q.wire_len - q.payload_len) + q.payload_len;
		for (uint32_t left = warp::ballot(warp::all, on); left;) {
			uint32_t which = warp::shfl(warp::all, mine, (uint32_t)ffs(left));
			bool same = on && mine == which;
			left &= ~warp::ballot(warp::all, same);
			uint64_t n = sketch::sum(same ? parts : 0), sum = sketch::sum(same ? bytes : 0);
			if (warp::lane() == 0) {
				own::add(&c->packets[which], n);
				own::add(&c->bytes[which], sum);
				s->recorded += n;
			}
		}
		if (sketches & AGP_SKETCH_QUANTILES)
			sizes(on, q, parts);
		if (sketches & (summary::progresses | summary::starts))
			ends(on, m, parts, bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX);
	}
	AGP_DEVICE_MEMBER void sizes(bool on, const agp_packet &whole, uint32_t parts) const {
		sketch::quantiles to = {&summary::running(known)->size, (const agp_quantile_table *)known->table};
		for (uint32_t i = 0; warp::ballot(warp::all, on && i < parts); i++) {
			agp_packet one = whole;
			if (on && i < parts && parts > 1)
				flow::split(&one, whole, i, parts);
			to.add(on && i < parts, to.begin(one.l3_len));
		}
	}
	AGP_DEVICE_MEMBER void ends(bool on, const item &m, uint32_t parts, uint32_t bytes) const {
		uint32_t all = warp::ballot(warp::all, on);
		if (on) {
			const agp_key &k = m.key;
			const uint64_t *a = m.from_b ? k.b : k.a, *b = m.from_b ? k.a : k.b;
			summary::ends e = {{a[0], a[1]}, {b[0], b[1]}, m.from_b ? k.port_b : k.port_a, m.from_b ? k.port_a : k.port_b, k.protocol, k.ip_version};
			w->of[popc(all & sketch::below())] = summary::progress{m.hash, e, bytes, (uint16_t)(parts < UINT16_MAX ? parts : UINT16_MAX), true};
		}
		if (warp::lane() == 0)
			w->n = (uint32_t)popc(all);
		warp::sync(warp::all);
		summary::learn(known, sketches, w);
	}
};

#endif
