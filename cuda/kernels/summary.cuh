// What a ring keeps of all its traffic, as agp/pipeline/summary does: which sketches learn what
// of packets, flows and time. All functions are called by all lanes, of which each has a flow of
// its own; they are out of line, so that a path without sketches is not longer for them.
#ifndef AGP_SUMMARY_CUH
#define AGP_SUMMARY_CUH

#include "flow.cuh"
#include "sketch.cuh"

namespace summary {

enum { features = AGP_SKETCH_BLOCKED | AGP_SKETCH_PUBLISHED, progresses = AGP_SKETCH_TOP | AGP_SKETCH_ENTROPY, starts = AGP_SKETCH_DISTINCT | AGP_SKETCH_TOP };
enum { src_bytes, dst_bytes, dst_port_bytes, flow_bytes, src_flows };

struct ends {
	uint64_t src[2], dst[2];
	uint16_t src_port, dst_port;
	uint8_t protocol, ip_version;
};

AGP_DEVICE ends endpoints(const agp_flow &f) {
	const agp_key &k = f.key;
	bool b = (f.bits & flow::from_b) != 0;
	return ends{{b ? k.b[0] : k.a[0], b ? k.b[1] : k.a[1]}, {b ? k.a[0] : k.b[0], b ? k.a[1] : k.b[1]}, b ? k.port_b : k.port_a, b ? k.port_a : k.port_b, k.protocol, k.ip_version};
}

// known is agp_sketches in shared memory, with its table there as well: far memory would be asked
// for every packet. What changes is written to its home too.
struct known : agp_sketches {
	agp_sketches *home;
};

AGP_DEVICE agp_summary *running(const agp_sketches *s) { return (agp_summary *)s->summary[s->now]; }
AGP_DEVICE sketch::hasher hash(const agp_sketches *s) { return sketch::hasher{s->k0, s->k1}; }

// heavy adds to a list of heavy hitters.
AGP_OUTLINE void heavy(const agp_sketches *s, uint32_t list, bool on, agp_top_key k, uint64_t weight) {
	agp_top_list *l = &running(s)->top[list];
	sketch::top t = {hash(s), &l->head, l->index, l->keys, l->counts, AGP_TOP_K, 4 * AGP_TOP_K - 1};
	t.add(on, k, weight);
}

AGP_DEVICE uint64_t big(uint16_t port) { return (uint16_t)(port << 8 | port >> 8); } // as bytes in network order

// progress is what a flow has carried since the last progress, no packets: it begins. Or it is a packet
// of no flow.
struct progress {
	uint64_t hash;
	ends between;
	uint32_t bytes;
	uint16_t packets;
	bool distinct; // what it is between may not have been seen
};

// progresses wait in shared memory until there are enough of them: few lanes at a time come to one,
// and all lanes wait for memory as long as one does. They are added in their order.
struct waiting {
	uint32_t n, pad[3];
	progress of[AGP_LANES];
};

// learn adds the progresses that wait.
AGP_OUTLINE void learn(const agp_sketches *s, uint32_t what, waiting *w) {
	bool on = warp::lane() < w->n;
	progress p = on ? w->of[warp::lane()] : progress{};
	warp::sync(warp::all); // all have looked
	if (warp::lane() == 0)
		w->n = 0;
	const ends &e = p.between;
	uint64_t protocol = e.protocol, version = e.ip_version, bytes = p.bytes;
	bool begins = on && p.packets == 0, distinct = on && p.distinct;
	if ((what & AGP_SKETCH_DISTINCT) && warp::ballot(warp::all, distinct)) {
		agp_hll *d = running(s)->distinct;
		for (uint32_t i = 0; i < 4; i++) {
			const uint64_t *a = i == 0 ? e.src : e.dst;
			sketch::hll::wide w;
			if (i < 2)
				w = version == 4 ? sketch::hll::of8(a[0] & UINT32_MAX, 4) : sketch::hll::of16(a[0], a[1]);
			else
				w = sketch::hll::of8(i == 2 ? protocol << 16 | e.dst_port : p.hash, 8);
			sketch::hll{&d[i], AGP_HLL_REGISTERS}.add(distinct, w);
		}
	}
	if (what & AGP_SKETCH_TOP) {
		heavy(s, src_flows, begins, agp_top_key{{e.src[0], e.src[1], version, 0, 0}}, 1);
		heavy(s, src_bytes, on, agp_top_key{{e.src[0], e.src[1], version, 0, 0}}, bytes);
		heavy(s, dst_bytes, on, agp_top_key{{e.dst[0], e.dst[1], version, 0, 0}}, bytes);
		heavy(s, dst_port_bytes, on, agp_top_key{{big(e.dst_port) | protocol << 16, 0, 0, 0, 0}}, bytes);
		heavy(s, flow_bytes, on, agp_top_key{{e.src[0], e.src[1], e.dst[0], e.dst[1], big(e.src_port) | big(e.dst_port) << 16 | protocol << 32 | version << 40}}, bytes);
	}
	if (what & AGP_SKETCH_ENTROPY) {
		sketch::hasher h = hash(s);
		agp_entropy *n = running(s)->entropy;
		sketch::entropy{h, &n[0], AGP_ENTROPY_WIDTH}.add(on, h.pair(e.src[0], e.src[1]), p.packets);
		sketch::entropy{h, &n[1], AGP_ENTROPY_WIDTH}.add(on, h.pair(e.dst[0], e.dst[1]), p.packets);
	}
	warp::sync(warp::all);
}

// advance notes what flows have carried since the last progress, or that they begin.
AGP_OUTLINE void advance(const agp_sketches *s, uint32_t what, waiting *w, bool on, const agp_flow *f, uint32_t packets) {
	uint32_t those = warp::ballot(warp::all, on);
	if (!those)
		return;
	uint32_t at = w->n + (uint32_t)popc(those & sketch::below()), left = w->n + (uint32_t)popc(those);
	warp::sync(warp::all); // all have looked
	// Always as many at once: what is added together does not depend on when packets came.
	for (bool put = on;; at -= AGP_LANES, left -= AGP_LANES) {
		if (put && at < AGP_LANES) {
			w->of[at] = progress{f->hash, endpoints(*f), packets ? (uint32_t)(f->dir[0].wire_bytes + f->dir[1].wire_bytes) - f->told_bytes : 0, (uint16_t)packets, packets == 0};
			put = false;
		}
		if (warp::lane() == 0)
			w->n = left < AGP_LANES ? left : AGP_LANES;
		warp::sync(warp::all);
		if (left < AGP_LANES)
			return;
		learn(s, what, w);
	}
}

// binned adds the last bins of flows with n packets: half of the lanes take the sizes of a flow,
// half its delays.
AGP_OUTLINE void binned(const known *s, uint32_t what, bool on, const agp_flow *f, uint64_t n) {
	uint32_t half = warp::lane() / AGP_BINNED, i = warp::lane() % AGP_BINNED, count = (uint32_t)((n - 1) % AGP_BINNED) + 1;
	uint32_t skips = n <= AGP_BINNED ? 1 : 0; // the record's first packet has no delay
	uint64_t hash = on ? f->hash : 0;
	sketch::hasher keyed = summary::hash(s);
	agp_blocked *all = (agp_blocked *)s->feature[half];
	sketch::blocked b = {keyed, all->lines, all->carry, AGP_BLOCKED_WIDTH};
	sketch::blocked::places mine = {};
	if (what & AGP_SKETCH_BLOCKED)
		mine = b.lines_of(hash);
	warp::sync(warp::all); // others look at what a lane has written to its flow
	for (uint32_t left = warp::ballot(warp::all, on); left; left &= left - 1) {
		uint32_t from = (uint32_t)ffs(left), bins = warp::shfl(warp::all, count, from), skip = warp::shfl(warp::all, skips, from);
		const agp_flow *g = (const agp_flow *)warp::shfl(warp::all, (uint64_t)f, from);
		bool adds = i < bins && !(half && i < skip);
		uint32_t bin = adds ? g->bins[half][i] : 0;
		if (what & AGP_SKETCH_BLOCKED) {
			sketch::blocked::places at;
			for (int j = 0; j < 3; j++)
				at.line[j] = warp::shfl(warp::all, mine.line[j], from);
			b.add(adds, at, bin);
		} else {
			agp_published *m = (agp_published *)s->feature[half];
			sketch::published{keyed, m->counters, (uint32_t *)m->bloom, AGP_PUBLISHED_WIDTH, AGP_PUBLISHED_BITS}.add(adds, warp::shfl(warp::all, hash, from), bin);
		}
		uint32_t counted = warp::ballot(warp::all, adds);
		if (i == 0)
			own::add(&s->home->counted[half], (uint32_t)popc(counted >> half * AGP_BINNED & 0xffff));
	}
	warp::sync(warp::all);
}

// packet adds what is known of a packet after it has been put into a flow. before is the flow's
// time until then.
AGP_OUTLINE void packet(const known *s, uint32_t what, waiting *w, bool on, agp_flow *f, uint32_t l3_len, int64_t ts_ns, int64_t before, bool opened) {
	uint64_t n = on ? flow::packets(*f) : 1;
	if (what & AGP_SKETCH_QUANTILES) {
		agp_summary *r = running(s);
		const agp_quantile_table *t = (const agp_quantile_table *)s->table;
		int64_t delay = (int64_t)((uint64_t)ts_ns - (uint64_t)before);
		sketch::quantiles sizes = {&r->size, t}, delays = {&r->delay, t};
		sketch::quantiles::place size = sizes.begin(l3_len), after = delays.begin(delay < 0 ? 0 : (uint64_t)delay);
		sizes.add(on, size);
		delays.add(on && n > 1, after);
	}
	if ((what & starts) && warp::ballot(warp::all, on && opened))
		advance(s, what, w, on && opened, f, 0);
	bool tells = on && n % AGP_PROGRESS == 0;
	if ((what & progresses) && warp::ballot(warp::all, tells)) {
		advance(s, what, w, tells, f, AGP_PROGRESS);
		if (tells)
			f->told_bytes = (uint32_t)(f->dir[0].wire_bytes + f->dir[1].wire_bytes);
	}
	bool full = on && n % AGP_BINNED == 0;
	if ((what & features) && warp::ballot(warp::all, full))
		binned(s, what, full, f, n);
}

// ended adds what is left of flows whose record ends.
AGP_OUTLINE void ended(const known *s, uint32_t what, waiting *w, bool on, const agp_flow *f) {
	if (!warp::ballot(warp::all, on))
		return;
	uint64_t n = on ? flow::packets(*f) : 1;
	uint32_t packets = (uint32_t)(n % AGP_PROGRESS);
	if (what & progresses)
		advance(s, what, w, on && packets, f, packets);
	if (what & features)
		binned(s, what, on && n % AGP_BINNED, f, n);
}

// tick closes a window when time enters the next one.
AGP_OUTLINE void tick(known *s, int64_t ns) {
	agp_summary *r = running(s);
	int64_t since = r->start_ns, w = s->window_ns;
	if (since == 0)
		since = ns;
	bool closes = w > 0 && ns / w != since / w;
	uint32_t next = closes ? 1 - s->now : s->now;
	warp::sync(warp::all); // all have looked
	if (closes) {
		r = (agp_summary *)s->summary[next];
		if (warp::lane() == 0) { // the host may be reading it: it looks again whether this has changed
			r->start_ns = 0;
			sys::release();
		}
		warp::sync(warp::all);
		for (uint64_t i = warp::lane() * 8; i < sizeof *r; i += AGP_LANES * 8)
			*(uint64_t *)((char *)r + i) = 0;
		since = ns;
		warp::sync(warp::all);
	}
	if (warp::lane() == 0) {
		running(s)->end_ns = ns;
		for (int i = 0; closes && i < 4; i++)
			r->distinct[i].kxq[0] = AGP_HLL_REGISTERS;
		r->start_ns = since;
		r->end_ns = ns;
		s->now = s->home->now = next;
	}
	warp::sync(warp::all);
}

} // namespace summary

#endif
