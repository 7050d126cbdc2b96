// What a model sees of how a flow begins: a port of collect in agp/flow. One lane works on one
// head at a time; nothing here is a collective.
#ifndef AGP_HEAD_CUH
#define AGP_HEAD_CUH

#include "flow.cuh"

namespace head {

// open begins a head.
AGP_DEVICE void open(agp_head *h, uint8_t protocol) {
	flow::clear(h, sizeof *h);
	h->protocol = protocol;
}

// copy appends n bytes, which come from a slot that another device has written.
AGP_DEVICE void copy(uint8_t *to, uint64_t from, uint32_t n) {
	for (uint32_t i = 0; i < n;) {
		words w = take16((from + i) & ~(uint64_t)15);
		for (uint32_t at = (uint32_t)(from + i) & 15; at < 16 && i < n; at++, i++)
			to[i] = (uint8_t)(w.w[at / 4] >> at % 4 * 8);
	}
}

// collect adds a packet before it is added to its flow; payload is where what was captured of its
// content is.
AGP_OUTLINE void collect(agp_head *h, const agp_flow &f, const agp_packet &p, bool sender_b, uint64_t payload) {
	int d = flow::direction(f, sender_b);
	if (h->packets < AGP_HEAD_PACKETS) {
		int32_t n = p.l3_len < INT16_MAX ? (int32_t)p.l3_len : INT16_MAX;
		h->len[h->packets] = (int16_t)(d ? -n : n);
		int64_t delay = (int64_t)((uint64_t)p.ts_ns - (uint64_t)f.last_ns);
		if (flow::packets(f) > 0)
			h->delay[h->packets] = (uint8_t)(bins::delay(delay < 0 ? 0 : delay) + 1);
		h->packets++;
	}
	uint32_t have = h->payload_len[d], left = AGP_HEAD_PAYLOAD - have;
	if (left && p.payload_cap) {
		uint32_t n = p.payload_cap < left ? p.payload_cap : left;
		copy(h->payload[d] + have, payload + p.payload_off, n);
		h->payload_len[d] = (uint8_t)(have + n);
	}
}

} // namespace head

#endif
