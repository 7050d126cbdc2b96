// How packets get from a ring's receive warp to its state warps: a queue in shared memory for
// each of them, in order of arrival, with time and the end of the work among them.
#ifndef AGP_FIFO_CUH
#define AGP_FIFO_CUH

#include "key.cuh"

// item is a packet, or something that comes between packets. Its size keeps lanes that read the
// same field of items in a row out of each other's banks.
struct item {
	enum : uint8_t { packet, tick, stop, flush };

	agp_key key;
	int64_t ts_ns; // of a tick and a flush: the time
	uint64_t hash, number;
	uint64_t payload; // address of what was captured of it, if a model wants it
	uint32_t wire_len, l3_len, payload_len, parts;
	uint32_t seq, ack;
	uint16_t window, segment_size;
	uint8_t tcp_flags, flags, side, kind;
	uint8_t from_b; // the sender is endpoint B
	uint8_t pad[3];
	uint32_t payload_cap; // bytes there

	AGP_DEVICE_MEMBER void set(const agp_packet &p) {
		ts_ns = p.ts_ns;
		wire_len = p.wire_len;
		l3_len = p.l3_len;
		payload_len = p.payload_len;
		seq = p.seq;
		ack = p.ack;
		window = p.window;
		segment_size = p.segment_size;
		tcp_flags = p.tcp_flags;
		flags = p.flags;
		side = p.side;
	}
	// get is what flows are made of; endpoints are in the key.
	AGP_DEVICE_MEMBER agp_packet get() const {
		agp_packet p = {};
		p.ts_ns = ts_ns;
		p.wire_len = wire_len;
		p.l3_len = l3_len;
		p.payload_len = payload_len;
		p.payload_cap = payload_cap; // as payload: only where the receive warp has extras
		p.seq = seq;
		p.ack = ack;
		p.window = window;
		p.segment_size = segment_size;
		p.tcp_flags = tcp_flags;
		p.flags = flags;
		p.side = side;
		p.protocol = key.protocol;
		p.ip_version = key.ip_version;
		p.src_port = key.port_a;
		p.dst_port = key.port_b;
		return p;
	}
};
static_assert(sizeof(item) == 120, "an even number of words that is no multiple of four");

// fifo has one writer and one reader. head and tail count items and wrap.
struct fifo {
	enum { size = 64 };
	item items[size];
	uint32_t head, tail;

	AGP_DEVICE_MEMBER item *at(uint32_t i) { return &items[i % size]; }
};
static_assert(sizeof(fifo) == AGP_QUEUE, "tests know what belongs to two warps by this");

#endif
