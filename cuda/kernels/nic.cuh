// The NIC model on the device: warps that write what a ConnectX port would, into rings that are
// in the device's memory. It goes by the rules of the receive side alone: credit from the RQ
// doorbell record, room from the CQ's, payload before completion, the owner bit last.
//
// Packet n of a ring is the same for any number of warps: over IPv4, TCP of one of the ring's
// flows in either direction, or whole flows beside each other, connections or UDP.
//
// With a pace, a batch is due at its time whether there is credit or not. It waits for credit, so
// that nothing is lost, but it is counted: a port would have dropped it.
#ifndef AGP_NIC_CUH
#define AGP_NIC_CUH

#include "agp.h"
#include "warp.cuh"

namespace nic {

AGP_DEVICE uint64_t mix(uint64_t v) {
	v ^= v >> 32;
	v *= 0xd6e8feb86659fd93u;
	v ^= v >> 32;
	v *= 0xd6e8feb86659fd93u;
	return v ^ v >> 32;
}

AGP_DEVICE uint32_t be16(uint32_t v) { return (v & 0xff) << 8 | (v >> 8 & 0xff); }

// segment is what a TCP packet is beside its addresses.
struct segment {
	uint32_t seq, ack, payload, flags;
	bool back;
};

const uint32_t FIN = 1, SYN = 2, ACK = 16, WHOLE = 5; // packets of the shortest connection

// connection is packet at of a connection of n: the handshake, data in turn, the end of both
// directions.
AGP_DEVICE segment connection(uint32_t at, uint32_t n, uint32_t isn, uint32_t peer, uint32_t payload) {
	uint32_t data = n - WHOLE, ahead = isn + 1 + payload * ((data + 1) / 2), behind = peer + 1 + payload * (data / 2);
	if (at == 0)
		return segment{isn, 0, 0, SYN, false};
	if (at == 1)
		return segment{peer, isn + 1, 0, SYN | ACK, true};
	if (at == n - 3)
		return segment{ahead, behind, 0, FIN | ACK, false};
	if (at == n - 2)
		return segment{behind, ahead + 1, 0, FIN | ACK, true};
	if (at == n - 1)
		return segment{ahead + 1, behind + 1, 0, ACK, false};
	uint32_t turn = (at - 2) / 2, forth = isn + 1 + payload * turn, back = peer + 1 + payload * turn;
	if (at % 2)
		return segment{back, forth + payload, payload, ACK, true};
	return segment{forth, back, payload, ACK, false};
}

// frame makes the first 64 bytes of packet n of a ring.
AGP_DEVICE void frame(const agp_nic &p, uint32_t ring, uint64_t n, uint32_t w[16]) {
	uint64_t h = mix(p.seed + n * 0x9e3779b97f4a7c15u);
	uint32_t flow = (uint32_t)(h % p.flows), generation = 0, at = 0;
	if (p.per_flow) { // a packet of each flow in turn
		uint64_t row = n / p.flows;
		flow = (uint32_t)(n % p.flows);
		generation = (uint32_t)(row / p.per_flow);
		at = (uint32_t)(row % p.per_flow);
	} else if (p.new_per_1024)
		generation = (uint32_t)(n * p.new_per_1024 / 1024 / p.flows); // all places have a new flow in turn
	uint64_t id = mix(p.seed ^ ((uint64_t)ring << 56 ^ (uint64_t)generation << 24 ^ flow));
	uint32_t client = 0x0a000000 | (flow & 0xffffff), server = 0xc0000000 | (uint32_t)(id & 0xffffff) | (ring & 0x3f) << 24;
	uint32_t cport = 1024 + (uint32_t)(id >> 32) % 60000, sport = 443;
	uint32_t payload = p.frame_len - 54;
	bool udp = p.per_flow && p.per_flow < WHOLE;
	segment s = {(uint32_t)(n * payload) + 1, (uint32_t)id | 1, payload, ACK, (bool)(h >> 63)};
	if (udp)
		s = segment{0, 0, payload + 12, 0, (bool)(at & 1)}; // a shorter header
	else if (p.per_flow)
		s = connection(at, p.per_flow, (uint32_t)id, (uint32_t)(id >> 20), payload);
	uint32_t l3 = 20 + (udp ? 8 : 20) + s.payload;
	uint32_t src = s.back ? server : client, dst = s.back ? client : server, sp = s.back ? sport : cport, dp = s.back ? cport : sport;
	// Ethernet 14, IPv4 20, TCP 20 or UDP 8: fields straddle words because of the 14.
	w[0] = 0x22222202;
	w[1] = 0x11022222;
	w[2] = 0x11111111;
	w[3] = 0x08 | 0x45u << 16;                       // type, version
	w[4] = be16(l3) | be16((uint32_t)n & 0xffff) << 16; // length, identification
	w[5] = 0x40u | 64u << 16 | (udp ? 17u : 6u) << 24; // don't fragment, TTL, protocol
	w[6] = (swap32(src) & 0xffff) << 16;               // checksum 0
	w[7] = swap32(src) >> 16 | (swap32(dst) & 0xffff) << 16;
	w[8] = swap32(dst) >> 16 | be16(sp) << 16;
	if (udp) {
		w[9] = be16(dp) | be16(l3 - 20) << 16;
		w[10] = w[11] = w[12] = 0;
	} else {
		w[9] = be16(dp) | (swap32(s.seq) & 0xffff) << 16;
		w[10] = swap32(s.seq) >> 16 | (swap32(s.ack) & 0xffff) << 16;
		w[11] = swap32(s.ack) >> 16 | 0x50u << 16 | s.flags << 24;
		w[12] = be16(0x1000);
	}
	w[13] = w[14] = w[15] = (uint32_t)n;
}

// credit is how many packets of a ring may have been sent in all.
AGP_DEVICE uint64_t credit(const agp_ring &r, uint64_t sent) {
	uint32_t posted = swap32(sys::load32(r.rq_db)) & 0xffff, taken = swap32(sys::load32(r.cq_db)) & 0xffffff;
	sys::acquire();
	uint64_t by_rq = sent + ((posted - (uint32_t)sent) & 0xffff);
	uint64_t behind = (sent - taken) & 0xffffff; // completions that nobody has taken
	uint64_t by_cq = sent + (((uint64_t)1 << r.log_cq) - behind);
	return by_rq < by_cq ? by_rq : by_cq;
}

AGP_DEVICE void tell(const agp_nic &p, uint32_t ring, uint32_t which, uint64_t late) {
	if (p.late && warp::lane() == 0)
		sys::store64(p.late + 8 * ((uint64_t)ring * p.warps + which), late);
}

AGP_DEVICE void send(const agp_nic &p, uint32_t ring, uint32_t which) {
	if (ring >= p.count)
		return;
	const agp_ring &r = ((const agp_ring *)p.rings)[ring];
	uint32_t l = warp::lane();
	uint64_t n = which * 32, may = 0, turn = 0;
	bool stop = false;
	uint64_t began = cycles(), late = 0;
	while (!stop && (p.packets == 0 || n < p.packets)) {
		if (p.pace) {
			uint64_t due = began + (turn * p.warps + which) * p.pace;
			while (cycles() < due)
				pause(20);
			warp::sync(warp::all);
		}
		for (uint32_t spins = 0; may < n + 32 && !stop && !p.prefill; spins++) {
			// The other warps may be ahead or behind by some batches: a difference of 16 bits is read
			// from the oldest packet that can be without credit.
			uint64_t from = n - (n < 32 * p.warps ? n : 32 * p.warps);
			uint64_t seen = 0;
			uint32_t halt = 0;
			if (l == 0) {
				seen = credit(r, from);
				if (spins % 64 == 63)
					halt = sys::load32(p.control) == AGP_STOP;
			}
			may = warp::shfl(warp::all, seen, 0);
			stop = warp::shfl(warp::all, halt, 0);
			if (may < n + 32) {
				late += spins == 0;
				pause(20);
			}
		}
		if (stop)
			break;
		warp::sync(warp::all); // the credit is that of all lanes
		turn++;
		uint64_t i = n + l;
		uint32_t w[16];
		frame(p, ring, i, w);
		uint64_t slot = r.payload + (i & (((uint64_t)1 << r.log_rq) - 1)) * r.pitch;
		for (int j = 0; j < 4; j++)
			give16(slot + 16 * j, words{{w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]}});
		for (uint32_t at = 64; at < p.frame_len; at += 16)
			give16(slot + at, words{{(uint32_t)i, at, 0, 0}});
		uint64_t ts = (uint64_t)p.start_ns + i * p.gap_ns;
		uint64_t cqe = r.cq + (i & (((uint64_t)1 << r.log_cq) - 1)) * 64;
		uint32_t owner = (uint32_t)(i >> r.log_cq & 1);
		give16(cqe, words{{0, 0, 0, 0}});
		give16(cqe + 16, words{{0, 0, 0, 0x1800u}});
		give16(cqe + 32, words{{0, 0, 0, swap32(p.frame_len)}});
		sys::release();
		give16(cqe + 48, words{{swap32((uint32_t)(ts >> 32)), swap32((uint32_t)ts), 0, (be16((uint32_t)i & 0xffff)) | 0x20u << 24 | owner << 24}});
		n += 32 * p.warps;
		if ((turn & 63) == 0) {
			uint32_t halt = l == 0 && sys::load32(p.control) == AGP_STOP;
			stop = warp::shfl(warp::all, halt, 0);
			tell(p, ring, which, late);
		}
	}
	tell(p, ring, which, late);
	if (l == 0 && which == 0 && p.sent)
		sys::store64(p.sent + 8 * ring, n < p.packets || p.packets == 0 ? n : p.packets);
}

} // namespace nic

#endif
