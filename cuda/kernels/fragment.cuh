// The ports of first fragments, so that later fragments of the same datagram join its flow: what
// packet.FragmentTable does, with the same buckets and the same victims. A table is
// agp_fragment[AGP_WAYS << log_buckets], all 0 at first, in the memory of one warp; its lanes
// call resolve one after the other, in the order of the packets.
#ifndef AGP_FRAGMENT_CUH
#define AGP_FRAGMENT_CUH

#include "agp.h"
#include "warp.cuh"

namespace fragment {

// LIFETIME_NS is packet.FragmentLifetimeNs.
const int64_t LIFETIME_NS = 30000000000;

AGP_DEVICE uint64_t mix(uint64_t a, uint64_t b) { return mulhi(a, b) ^ (a * b); }

AGP_DEVICE uint64_t hash(const agp_packet &p) {
	const uint64_t k0 = 0x9e3779b97f4a7c15, k1 = 0xd6e8feb86659fd93;
	uint64_t h = mix(p.src[0] ^ k0, p.dst[0] ^ k1);
	h = mix(h ^ p.src[1], p.dst[1] ^ k0);
	return mix(h ^ (uint64_t)p.fragment_id << 32 ^ p.tunnel_id, k1);
}

// is reports whether the entry belongs to the packet's datagram.
AGP_DEVICE bool is(const agp_fragment &e, const agp_packet &p) {
	return e.id == p.fragment_id && e.version == p.ip_version && e.src[0] == p.src[0] && e.src[1] == p.src[1] &&
	       e.dst[0] == p.dst[0] && e.dst[1] == p.dst[1] && e.tunnel == p.tunnel_id && e.vlan == p.vlan &&
	       (e.protocol == p.protocol || e.version == 6);
}

// find is resolve for a fragment.
AGP_OUTLINE bool find(agp_fragment *table, uint32_t log_buckets, agp_packet *p) {
	uint64_t mask = ((uint64_t)1 << log_buckets) - 1;
	agp_fragment *bucket = table + (hash(*p) & mask) * AGP_WAYS;
	if (p->flags & AGP_FRAGMENT_LATER) {
		for (int i = 0; i < AGP_WAYS; i++) {
			const agp_fragment &e = bucket[i];
			// Times of a broken clock wrap around, as they do in Go.
			if (is(e, *p) && (int64_t)((uint64_t)p->ts_ns - (uint64_t)e.seen_ns) <= LIFETIME_NS) {
				p->src_port = e.sport;
				p->dst_port = e.dport;
				p->protocol = e.protocol;
				return true;
			}
		}
		return false;
	}
	int victim = 0;
	for (int i = 0; i < AGP_WAYS; i++) {
		const agp_fragment &e = bucket[i], &v = bucket[victim];
		if (is(e, *p)) {
			victim = i;
			break;
		}
		if (v.version != 0 && (e.version == 0 || e.seen_ns < v.seen_ns))
			victim = i;
	}
	agp_fragment &e = bucket[victim];
	e.src[0] = p->src[0];
	e.src[1] = p->src[1];
	e.dst[0] = p->dst[0];
	e.dst[1] = p->dst[1];
	e.seen_ns = p->ts_ns;
	e.id = p->fragment_id;
	e.tunnel = p->tunnel_id;
	e.sport = p->src_port;
	e.dport = p->dst_port;
	e.vlan = p->vlan;
	e.version = p->ip_version;
	e.protocol = p->protocol;
	return true;
}

} // namespace fragment

// resolve completes a fragment. The ports of a first fragment are remembered; a later one gets
// them, and the result says whether it could. Of IPv6, a later fragment gets the protocol too,
// because its own header may name an extension header instead. A packet that is no fragment is
// known as it is.
AGP_DEVICE bool resolve(agp_fragment *table, uint32_t log_buckets, agp_packet *p) {
	if (!(p->flags & AGP_FRAGMENT))
		return true;
	agp_packet q = *p; // a copy, so that a caller may keep p in registers
	bool known = fragment::find(table, log_buckets, &q);
	p->src_port = q.src_port;
	p->dst_port = q.dst_port;
	p->protocol = q.protocol;
	return known;
}

#endif
