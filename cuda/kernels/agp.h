// What host and device agree on: plain structs, little endian, every field at its natural
// alignment, no pointer but as 64-bit device address. agp/pipeline/cuda mirrors them in Go; a
// test there compares sizes and offsets with what this header says.
//
// Times are ns since the Unix epoch of the packets' clock, lengths are bytes, counters are
// monotonic. Fields named "pad" are zero.
#ifndef AGP_H
#define AGP_H

#include <stdint.h>

enum {
	AGP_LANES = 32,
	AGP_SIZE_BINS = 95,
	AGP_DELAY_BINS = 64,
	AGP_BINNED = 16, // packets whose bins a flow keeps before they are counted
	AGP_WAYS = 8,    // flows per bucket
	AGP_VERDICTS = 64,
	AGP_SYNDROMES = 64,
	AGP_PROTOCOLS = 256,
	AGP_SHARDS = 7,  // state warps of a ring, at most
	AGP_RECEIVERS = 4, // receive warps of a ring that take turns, at most
	AGP_WARPS = 8,   // of a block, at most: more would have too few registers each
	// Shared memory: of a ring's receive warp, of each of its state warps, and of a block at most.
	AGP_RECEIVER_SCRATCH = 8464,
	AGP_SHARD_SCRATCH = 24736,
	AGP_QUEUE = 7688, // from the receive warp, at the begin of a state warp's
	AGP_TABLE_SCRATCH = 25792, // of a block: for all its warps, if there are sketches of quantiles
	AGP_BLOCK_SCRATCH = 232448,
	AGP_TRIGGERS = 128,   // packet counts at which flows are scored, at most
	AGP_HEAD_PAYLOAD = 48, // bytes of each direction
	AGP_HEAD_PACKETS = 16,
	AGP_STAGES = 4, // of a batch whose time is taken, see agp_stats and agp_shard_stats
};

// agp_packet is packet.Info and what flow.Packet adds to it.
typedef struct {
	int64_t ts_ns;
	uint64_t src[2], dst[2]; // bytes in network order; IPv4 has 4 of them, the rest is 0
	uint32_t wire_len, l3_len, payload_len, payload_off, payload_cap;
	uint32_t tunnel_id, fragment_id, seq, ack;
	uint16_t src_port, dst_port, window, vlan;
	uint8_t ip_version, protocol, tcp_flags, flags;
	uint16_t segment_size; // source.Frame.SegmentSize
	uint8_t side;          // source.Frame.Side
	uint8_t pad;
} agp_packet; // 96 bytes

// Bits of agp_packet.flags: packet.Flags.
enum {
	AGP_FRAGMENT = 1,
	AGP_FRAGMENT_LATER = 2,
	AGP_TUNNEL = 4,
	AGP_TRUNCATED = 8,
	AGP_BAD_LENGTH = 16,
};

// Bits of agp_config.decap: packet.Decap.
enum { AGP_VXLAN = 1, AGP_GRE = 2, AGP_GENEVE = 4, AGP_GTPU = 8 };

// Bits of agp_config.key: flow.KeyOptions.
enum { AGP_KEY_VLAN = 1, AGP_KEY_TUNNEL = 2 };

// agp_fragment is one remembered first fragment, see packet.FragmentTable.
typedef struct {
	uint64_t src[2], dst[2];
	int64_t seen_ns;
	uint32_t id, tunnel;
	uint16_t sport, dport, vlan;
	uint8_t version; // 0: the entry is free
	uint8_t protocol;
} agp_fragment; // 56 bytes

// agp_key is flow.Key.
typedef struct {
	uint64_t a[2], b[2];
	uint16_t port_a, port_b;
	uint32_t tunnel;
	uint16_t vlan;
	uint8_t protocol, ip_version;
	uint32_t pad;
} agp_key; // 48 bytes

// agp_half and agp_tcp_half are one direction of a flow.
typedef struct {
	uint64_t packets, wire_bytes, l3_bytes, payload_bytes;
	uint64_t wire_sq;                  // sum of squared wire lengths
	uint64_t delay_sq_hi, delay_sq_lo; // 128-bit sum of squared delays
	int64_t first_ns, last_ns, delay_min, delay_max;
	uint32_t wire_min, wire_max, retransmits, out_of_order, zero_windows;
	uint8_t tcp_flags, pad[3];
} agp_half; // 112 bytes

typedef struct {
	int64_t next_seq_ns;
	uint32_t next_seq, max_seq, last_ack, isn, fin_seq;
	uint16_t window;
	int8_t dup_acks;
	uint8_t seen;
} agp_tcp_half; // 32 bytes

// agp_flow is one active flow, the state of agp/flow.
typedef struct {
	agp_key key;
	uint64_t hash;
	int64_t last_ns, start_ns;
	uint64_t start_seq; // number of the record's first packet in its ring
	uint16_t bits;
	uint8_t tier;    // whether there are histogram counters
	uint8_t side[2]; // source.Frame.Side of the directions
	uint8_t born[3]; // number of the packet that opened it, modulo 2^24; only if agp_params.messages
	uint32_t time_steps, syn_retransmits, coalesced;
	uint32_t told_bytes; // that heavy hitters know of, modulo 2^32; packets are those to the last AGP_PROGRESS
	int64_t syn_ns, handshake_ns, rtt_ns;
	agp_half dir[2];
	agp_tcp_half tcp[2];
	uint8_t bins[2][AGP_BINNED]; // size and delay bins of the packets not yet counted
} agp_flow; // 448 bytes

// agp_hist are the counters of a flow of more than AGP_BINNED packets.
typedef struct {
	uint32_t size[AGP_SIZE_BINS], delay[AGP_DELAY_BINS], pad;
} agp_hist; // 640 bytes

// agp_head is model.Head: what a model sees of how a flow begins.
typedef struct {
	uint8_t payload[2][AGP_HEAD_PAYLOAD];
	uint8_t payload_len[2], packets, protocol;
	int16_t len[AGP_HEAD_PACKETS];
	uint8_t delay[AGP_HEAD_PACKETS];
	uint8_t pad[44];
} agp_head; // 192 bytes

// Kinds of what a record ring carries, each an agp_record and what is said here.
enum {
	AGP_SKIP = 0,   // only fills the ring's end
	AGP_FLOW = 1,   // a flow has ended: agp_flow and the parts that the header names
	AGP_MATURE = 2, // a flow has come to a trigger: the same
	AGP_START = 3,  // a flow has begun: its agp_key and 16 bytes of nothing
	AGP_TICK = 4,   // time has come to ts_ns, and all that it ends has been said: nothing
};

// Parts that follow an agp_flow, in this order: agp_hist and agp_head.
enum { AGP_PART_HIST = 1, AGP_PART_HEAD = 2 };

// Bits of agp_record.flags.
enum {
	AGP_TIMED = 1,   // time brought it about, before packet number
	AGP_GOES_ON = 2, // the flow does: only its record has ended
};

// agp_record begins every message. What is behind reason but parts is only there with agp_params.messages.
typedef struct {
	uint32_t size; // of all of it, a multiple of 64
	uint16_t ring;
	uint8_t kind;
	uint8_t reason; // telemetry.EndReason
	uint32_t place; // of the flow in its shard: it keeps it until it ends
	uint8_t parts, flags;
	uint8_t from_b, tcp_flags; // AGP_START: the initiator is endpoint B; flags of the first packet
	uint64_t number;           // of the packet that brought it about
	int64_t ts_ns;             // of that packet, or the time that has come
	uint32_t wire_len;         // AGP_START: of the first packet
	uint8_t pad[28];
} agp_record; // 64 bytes

// agp_out is a record ring. The device writes head, the host tail, both free-running bytes.
typedef struct {
	uint64_t buf;      // 1 << log_size bytes, mapped host memory
	uint64_t head;     // address of a uint64, mapped host memory
	uint64_t tail;     // address of a uint64, mapped host memory
	uint32_t log_size; // at least 12
	uint32_t pad;
} agp_out; // 32 bytes

// Flags of a ring.
enum {
	AGP_RELAY = 1,    // the relay writes the CQEs, see agp/mlx5 for what it puts where
	AGP_LOSSLESS = 2, // the device waits for room in the record ring
	AGP_NUMBERED = 4, // CQEs have the number of the packet in the whole input, see agp/mlx5
};

// How the time of a CQE is written.
enum {
	AGP_TIME_NS = 0,        // ns since the epoch
	AGP_TIME_REAL = 1,      // seconds in the upper half, ns in the lower
	AGP_TIME_FREE = 2,      // ticks of a free-running clock: base_ns + ((ticks - base_ticks) * mult >> shift)
};

// agp_counts are the frames that agp_packets has counted: of IPv4, then of IPv6, by IP protocol.
typedef struct {
	uint64_t packets[2 * AGP_PROTOCOLS], bytes[2 * AGP_PROTOCOLS]; // wire lengths
} agp_counts;

// agp_shard is a part of the flows of a ring, by their hash: what one state warp owns. The host
// fills it in before a launch; the device only reads it.
typedef struct {
	uint64_t tags;     // uint32[AGP_WAYS * buckets], 0: free
	uint64_t due;      // uint32[AGP_WAYS * buckets], second in which to look at the flow
	uint64_t flows;    // agp_flow[AGP_WAYS * buckets]
	uint64_t hists;    // agp_hist[AGP_WAYS * buckets]
	uint64_t state;    // agp_shard_state
	uint64_t stats;    // agp_shard_stats, mapped host memory
	uint64_t sketches; // agp_sketches
	uint64_t heads;    // agp_head[AGP_WAYS * buckets], 0: there are none
	uint64_t counts;   // agp_counts, of agp_packets: it has neither tags, due, flows, hists nor heads
	uint32_t buckets, pad;
	agp_out out;
} agp_shard; // 112 bytes

// agp_ring is a receive queue and its completion queue in mlx5 layout, and the flows that
// come by it. The host fills it in before a launch; the device only reads it.
typedef struct {
	uint64_t cq;      // CQEs of 64 bytes
	uint64_t cq_db;   // its doorbell record, two big-endian words
	uint64_t rq_db;   // that of the receive queue
	uint64_t payload; // slot of receive WQE i at payload + i * pitch
	uint32_t log_cq, log_rq, pitch, flags;
	uint32_t time_format, time_shift;
	uint64_t time_mult, time_base_ticks;
	int64_t time_base_ns;
	uint64_t fragments; // agp_fragment[8 << log_fragments]
	uint64_t state;     // agp_ring_state
	uint64_t stats;     // agp_stats, mapped host memory
	uint64_t resets;    // uint32 in mapped host memory: how often the host has reset the queue
	uint64_t shards;    // agp_shard[agp_params.shards]
	uint32_t log_fragments, pad;
} agp_ring;

// What has become of a ring.
enum {
	AGP_IDLE = 0,
	AGP_RUNNING = 1,
	AGP_STOPPED = 2,  // at a batch edge, on command
	AGP_FLUSHED = 3,  // all flows have ended, on command
	AGP_RESET = 4,    // an error CQE needs the queue reset by the host: syndrome 2, 4 or 5
	AGP_DESYNC = 5,   // CQE and receive queue disagree: a fault of what writes them
	AGP_COMPRESSED = 6, // a compressed CQE, which was not asked for
};

// agp_stats of a ring: its receive warp writes it, now and then and before it stops. version is
// odd while it does.
typedef struct {
	uint64_t version;
	uint64_t heartbeat; // reports
	uint64_t launches;  // of kernels that have come to this ring
	uint64_t clock_ns;  // of the packets
	uint32_t status;    // AGP_RUNNING ...
	uint32_t vendor;    // vendor syndrome of the last error CQE
	uint64_t cqes, frames, bytes; // frames on the wire, and their wire lengths
	uint64_t drops[AGP_VERDICTS]; // frames by packet.Verdict; [0] are those in flows
	uint64_t errors[AGP_SYNDROMES]; // error CQEs by syndrome
	uint64_t clock_backs, bad_length;
	uint64_t resets; // of the queue, that the device has seen
	// One batch in 61 is timed: device clock cycles to read completions and payload, to parse, to
	// count and hash, and until the packets are with the state warps.
	uint64_t timed, timed_packets, cycles[AGP_STAGES];
} agp_stats;

// agp_ring_state is what a ring's receive warp is between launches.
typedef struct {
	uint64_t ci;       // CQEs consumed
	uint64_t wqes;     // receive WQEs consumed: the next CQE must name this one, modulo 2^16
	uint64_t seq;      // packets in flows
	int64_t clock_ns;  // latest time of a packet, or one that went back by more than a minute
	int64_t step;      // clock in seconds, the last for which timeouts were looked at
	uint32_t resets;   // that the device has seen
	uint32_t pad;
	agp_stats stats;   // what was written of it last
} agp_ring_state;

// agp_shard_stats of a shard: its state warp writes it as agp_stats is written.
typedef struct {
	uint64_t version, heartbeat;
	uint64_t records, recorded; // records written, and packets in them; packets that agp_packets has counted
	uint64_t lost_records, lost_packets, lost_bytes; // for which the record ring had no room
	uint64_t lost_matures, lost_starts, lost_ticks; // messages, likewise
	uint64_t started, evicted, active, time_steps;
	// One batch in 61 is timed: to find the flows, to add, to write back.
	uint64_t timed, timed_packets, cycles[AGP_STAGES];
} agp_shard_stats;

// agp_shard_state is what a shard is between launches.
typedef struct {
	uint64_t out_head; // of the record ring
	agp_shard_stats stats;
} agp_shard_state;

// Commands.
enum { AGP_RUN = 0, AGP_STOP = 1, AGP_FLUSH = 2 };

// agp_control is in mapped host memory; the host writes it. A kernel has one of its own: the next may
// be launched, and wait for its turn, before the one that runs is told to stop.
typedef struct {
	uint32_t command;
	uint32_t pad;
	int64_t flush_ns; // latest time of the whole input, for AGP_FLUSH
	int64_t now_ns;   // the time, now and then, for rings that get no packets; 0: only packets tell it
} agp_control;

// agp_params is the kernel's only argument, by value. A block has per_block rings, and for each of
// them a receive warp, or the receivers of agp_sequence, and then its state warps.
typedef struct {
	uint64_t control; // agp_control
	uint64_t rings;   // agp_ring[count]
	uint32_t count;
	uint32_t batch; // packets that a warp takes at a time, 1 to 32
	uint32_t decap, key;
	int64_t idle_ns, active_ns, linger_ns;
	uint64_t seed;  // of flow.Key.Hash
	uint64_t limit; // CQEs of a ring after which its warp ends with AGP_STOPPED, 0: none
	uint32_t sketches;  // AGP_SKETCH_*
	uint32_t shards;    // state warps of a ring, 1 to AGP_SHARDS
	uint32_t per_block; // rings of a block
	uint32_t messages;  // AGP_MESSAGE_*
	uint64_t head_packets; // as many packets of a flow are seen by models that want its head; 0: none does
	uint32_t trigger_count;
	uint32_t receivers; // receive warps of a ring, for agp_sequence; 1 to AGP_RECEIVERS
	uint32_t fill;      // how often a state warp looks again for a whole batch before it takes what is there
	uint32_t pad;
	uint64_t triggers[AGP_TRIGGERS]; // packet counts at which a flow is scored, ascending
} agp_params;

// Bits of agp_params.messages.
enum {
	AGP_MESSAGE_CAUSES = 1, // headers say what brought them about; always there with one of the others
	AGP_MESSAGE_EVENTS = 2, // AGP_START and AGP_TICK
};

// The state of the sketches of cuda/kernels/sketch.cuh; agp/sketch explains them.
enum {
	AGP_QUANTILE_BINS = 2184,
	AGP_BLOCKED_BINS = 96,
	// Sizes in the packet path: those of agp/pipeline/summary.
	AGP_HLL_REGISTERS = 4096,
	AGP_ENTROPY_WIDTH = 16384,
	AGP_TOP_K = 1024,
	AGP_BLOCKED_WIDTH = 8192,
	AGP_PUBLISHED_WIDTH = 87381,
	AGP_PUBLISHED_BITS = 5592405,
	AGP_PROGRESS = 64, // packets after which heavy hitters and entropies learn of a flow
};

typedef struct {
	uint64_t n, zero;
	uint64_t bins[AGP_QUANTILE_BINS];
} agp_quantiles;

// agp_quantile_table is what sketch.QuantileTable gives.
typedef struct {
	uint16_t first[65][64];
	uint64_t high[AGP_QUANTILE_BINS];
} agp_quantile_table;

typedef struct {
	double hip, kxq[2];
	uint8_t reg[AGP_HLL_REGISTERS];
} agp_hll;

typedef struct {
	uint64_t n;
	uint32_t cells[AGP_ENTROPY_WIDTH];
} agp_entropy;

// agp_line is one line of sketch.Blocked.
typedef struct {
	uint8_t low[AGP_BLOCKED_BINS], wrapped[AGP_BLOCKED_BINS / 8], pad[20];
} agp_line; // 128 bytes

typedef struct {
	uint64_t n, err;
	uint32_t used;
	uint32_t moves; // odd while counters are moved
} agp_top;
typedef struct {
	uint32_t hash, entry; // number of the entry + 1; 0: free
} agp_top_index;
typedef struct {
	uint64_t w[5];
} agp_top_key;
typedef struct {
	agp_top head;
	agp_top_index index[4 * AGP_TOP_K];
	agp_top_key keys[2 * AGP_TOP_K];
	uint64_t counts[2 * AGP_TOP_K];
} agp_top_list;

// agp_blocked and agp_published are the histograms of all flows in one of the two layouts.
typedef struct {
	agp_line lines[3 * AGP_BLOCKED_WIDTH];
	uint32_t carry[2 * AGP_BLOCKED_WIDTH];
} agp_blocked;
typedef struct {
	uint32_t counters[3 * AGP_PUBLISHED_WIDTH], pad;
	uint64_t bloom[3 * ((AGP_PUBLISHED_BITS + 63) / 64)];
} agp_published;

// agp_summary is summary.Summary: one window's sketches of one ring, in the order of the lists there.
typedef struct {
	int64_t start_ns, end_ns;
	agp_quantiles size, delay;
	agp_hll distinct[4];
	agp_entropy entropy[2];
	agp_top_list top[5];
} agp_summary;

// Bits of agp_params.sketches.
enum {
	AGP_SKETCH_QUANTILES = 1, // of L3 lengths and delays
	AGP_SKETCH_DISTINCT = 2,
	AGP_SKETCH_TOP = 4,
	AGP_SKETCH_ENTROPY = 8,
	AGP_SKETCH_BLOCKED = 16,
	AGP_SKETCH_PUBLISHED = 32,
};

// agp_sketches are those of a ring, in device memory.
typedef struct {
	uint64_t k0, k1;     // sketch.Hasher.Words
	int64_t window_ns;   // 0: one window since the start
	uint64_t table;      // agp_quantile_table
	uint64_t summary[2]; // agp_summary: with windows, the running and the last whole one
	uint64_t feature[2]; // agp_blocked or agp_published, of sizes and of delays
	uint64_t counted[2]; // packets in them
	uint32_t now, pad;   // which summary is the running one
} agp_sketches;

// agp_nic is the argument of the kernels that play the port: the NIC model on the device. Ring i
// gets packets from warps i*warps .. i*warps+warps-1, each a batch of 32 in turn.
typedef struct {
	uint64_t control; // agp_control: AGP_STOP ends it
	uint64_t rings;   // agp_ring[count]
	uint64_t sent;    // uint64[count], packets of each ring when it has ended; mapped host memory
	uint64_t late;    // uint64[count * warps], 0: none. Of each warp, the batches that were due before
	                  // there was credit for them: a port would have dropped them. Mapped host memory
	uint32_t count, warps;
	uint32_t flows;     // of each ring
	uint32_t frame_len; // without FCS, 60 to the pitch
	uint64_t packets;   // of each ring, 0: until it is told to stop
	uint64_t seed;
	int64_t start_ns;
	uint32_t gap_ns;      // between packets of a ring, in their own time
	uint32_t pace;        // clock cycles of the device per batch of 32, 0: as fast as there is credit
	uint32_t new_per_1024; // packets in 1024 that begin another flow in the place of one
	uint32_t prefill;      // not 0: write without credit, before the rings are read
	uint32_t per_flow;     // packets of a flow from its first to its last, 0: without end
	uint32_t pad;
} agp_nic;

#endif
