// Flow keys: flow.Key of agp/flow.
#ifndef AGP_KEY_CUH
#define AGP_KEY_CUH

#include "agp.h"
#include "warp.cuh"

namespace key {

// order makes a word whose bytes are in network order comparable as a number.
AGP_DEVICE uint64_t order(uint64_t v) { return (uint64_t)swap32((uint32_t)v) << 32 | swap32((uint32_t)(v >> 32)); }

// set makes k the key of a packet and reports whether the packet's sender is endpoint B.
AGP_DEVICE bool set(agp_key *k, const agp_packet &p, uint32_t options) {
	bool same = p.src[0] == p.dst[0] && p.src[1] == p.dst[1];
	bool above = p.src[0] != p.dst[0] ? order(p.src[0]) > order(p.dst[0]) : order(p.src[1]) > order(p.dst[1]);
	bool from_b = same ? p.src_port > p.dst_port : above;
	for (int i = 0; i < 2; i++) {
		k->a[i] = from_b ? p.dst[i] : p.src[i];
		k->b[i] = from_b ? p.src[i] : p.dst[i];
	}
	k->port_a = from_b ? p.dst_port : p.src_port;
	k->port_b = from_b ? p.src_port : p.dst_port;
	k->tunnel = options & AGP_KEY_TUNNEL ? p.tunnel_id : 0;
	k->vlan = options & AGP_KEY_VLAN ? p.vlan : 0;
	k->protocol = p.protocol;
	k->ip_version = p.ip_version;
	k->pad = 0;
	return from_b;
}

AGP_DEVICE bool equal(const agp_key &x, const agp_key &y) {
	return x.a[0] == y.a[0] && x.b[0] == y.b[0] && x.port_a == y.port_a && x.port_b == y.port_b && x.protocol == y.protocol &&
	       x.ip_version == y.ip_version && x.a[1] == y.a[1] && x.b[1] == y.b[1] && x.tunnel == y.tunnel && x.vlan == y.vlan;
}

// differ reports whether the endpoints can be told apart.
AGP_DEVICE bool differ(const agp_key &k) { return k.port_a != k.port_b || k.a[0] != k.b[0] || k.a[1] != k.b[1]; }

AGP_DEVICE uint64_t fold(uint64_t a, uint64_t b) { return mulhi(a, b) ^ a * b; }

// hash is flow.Key.Hash.
AGP_DEVICE uint64_t hash(const agp_key &k, uint64_t seed) {
	uint64_t s0 = seed ^ 0x9e3779b97f4a7c15u;
	uint64_t s1 = (seed << 23 | seed >> 41) ^ 0xd6e8feb86659fd93u;
	uint64_t h = fold(k.a[0] ^ s0, k.a[1] ^ s1);
	h ^= fold(k.b[0] ^ s1 ^ 0xa0761d6478bd642fu, k.b[1] ^ s0 ^ 0xe7037ed1a0b428dbu);
	uint64_t w = k.port_a | (uint64_t)k.port_b << 16 | (uint64_t)k.tunnel << 32;
	uint64_t v = k.vlan | (uint64_t)k.protocol << 16 | (uint64_t)k.ip_version << 24;
	return fold(h ^ w, s1 ^ v << 13 ^ 0x8ebc6af09c88c6e3u) ^ fold(h + w, s0 ^ v ^ 0x589965cc75374cc3u);
}

} // namespace key

#endif
