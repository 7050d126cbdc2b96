// Completion queue entries in mlx5 layout: mlx5 PRM, and agp/mlx5 for what the relay puts where.
#ifndef AGP_CQE_CUH
#define AGP_CQE_CUH

#include "agp.h"
#include "warp.cuh"

namespace cqe {

enum { no_packet = 6, send = 2, send_imm = 3, send_inv = 4, error = 14, invalid = 15 };
enum kind : uint32_t { packet, time, fault, compressed, unknown };

// entry is what the device needs of a CQE, in host byte order.
struct entry {
	uint32_t kind;
	uint32_t wqe;      // index of the receive WQE, 16 bits
	uint32_t byte_cnt; // bytes in the slot
	uint32_t wire_len;
	uint32_t link, segment_size, side;
	uint32_t syndrome, vendor;
	int32_t tci; // of a VLAN tag that was taken out of the frame, -1: none
	uint64_t time;
	uint64_t number; // of the packet in the whole input, 0 if it has none
};

// owner_at is where the byte with the owner of the entry with the free-running index i is.
AGP_DEVICE uint64_t owner_at(const agp_ring &r, uint64_t i) { return r.cq + (i & (((uint64_t)1 << r.log_cq) - 1)) * 64 + 63; }

// owned reports whether that byte gives the entry to the software. After an acquire, what the port
// wrote before it can be read.
AGP_DEVICE bool owned(const agp_ring &r, uint64_t i, uint32_t op_own) { return op_own >> 4 != invalid && (op_own & 1) == (uint32_t)(i >> r.log_cq & 1); }

// raw is an entry as it was loaded, so that its decoding need not wait for the loads at once.
struct raw {
	words high, low, rest; // rest: what only the relay or only a port writes
};

// fetch loads an entry that is ready. The half with the owner is read first.
AGP_DEVICE raw fetch(const agp_ring &r, uint64_t i) {
	uint64_t at = r.cq + (i & (((uint64_t)1 << r.log_cq) - 1)) * 64;
	raw w;
	// The third word is not asked for: its register would be given to something else at once,
	// which would wait for the load.
	uint64_t time = sys::load64(at + 48);
	w.high = words{{(uint32_t)time, (uint32_t)(time >> 32), 0, sys::load32(at + 60)}};
	w.low = take16(at + 32);
	w.rest = take16(r.flags & AGP_RELAY ? at : at + 16);
	return w;
}

AGP_DEVICE uint64_t numbered(const words &first) { return (uint64_t)swap32(first.w[2]) << 32 | swap32(first.w[3]); }

// decode reads an entry.
AGP_DEVICE entry decode(const agp_ring &r, const raw &w) {
	const words &high = w.high, &low = w.low;
	uint32_t op_own = high.w[3] >> 24, op = op_own >> 4;
	entry e = {};
	e.wqe = swap32(high.w[3]) >> 16;
	e.byte_cnt = e.wire_len = swap32(low.w[3]);
	e.tci = -1;
	e.link = 1;
	if (AGP_RARE((op_own >> 2 & 3) == 3 && op != error)) {
		e.kind = compressed;
		return e;
	}
	if (AGP_RARE(op == error || op == 13)) {
		e.kind = fault;
		e.syndrome = high.w[1] >> 24;
		e.vendor = high.w[1] >> 16 & 0xff;
		return e;
	}
	uint32_t t_hi = swap32(high.w[0]), t_lo = swap32(high.w[1]);
	uint64_t raw = (uint64_t)t_hi << 32 | t_lo;
	if (r.time_format == AGP_TIME_REAL)
		raw = (uint64_t)t_hi * 1000000000u + t_lo;
	else if (r.time_format == AGP_TIME_FREE) {
		// The clock has 63 bits; a packet can be older than the base. mult is a 32-bit fraction.
		int64_t d = (int64_t)((raw - r.time_base_ticks) << 1) >> 1;
		uint64_t u = d < 0 ? (uint64_t)-d : (uint64_t)d;
		uint64_t ns = mulhi(u, r.time_mult) << (64 - r.time_shift) | u * r.time_mult >> r.time_shift;
		raw = (uint64_t)r.time_base_ns + (d < 0 ? (uint64_t)0 - ns : ns);
	}
	e.time = raw;
	if (AGP_RARE(op == no_packet)) {
		e.kind = time;
		if (r.flags & AGP_NUMBERED)
			e.number = numbered(w.rest);
		return e;
	}
	if (AGP_RARE(op < send || op > send_inv)) {
		e.kind = unknown;
		return e;
	}
	e.kind = packet;
	if (r.flags & AGP_RELAY) {
		e.link = swap32(w.rest.w[0]) & 0xffff;
		e.side = w.rest.w[1] & 0xff;
		e.segment_size = swap32(w.rest.w[1]) & 0xffff;
		e.wire_len = swap32(low.w[1]);
		e.number = numbered(w.rest);
	} else {
		if (w.rest.w[3] >> 8 & 1)
			e.tci = (int32_t)(swap32(w.rest.w[3]) & 0xffff);
	}
	return e;
}

} // namespace cqe

#endif
