// The kernels of the packet path.
#include "nic.cuh"
#include "sequence.cuh"
#include "shard.cuh"

static_assert(sizeof(agp_quantile_table) <= AGP_TABLE_SCRATCH, "the host allocates shared memory by this");

// serve gives each ring of a block its warps until the host wants them to end. There is no
// meeting point for the whole block after the first.
template <bool extras, bool sequence = false, class store = table<extras>> AGP_DEVICE void serve(const agp_params &params, char *memory) {
	uint32_t receivers = sequence ? params.receivers : 1;
	uint32_t warps = receivers + params.shards, mine = warp::local() / warps, role = warp::local() % warps;
	uint32_t ring = warp::index() / (warps * params.per_block) * params.per_block + mine;
	char *room = memory + mine * (receivers * AGP_RECEIVER_SCRATCH + params.shards * AGP_SHARD_SCRATCH);
	shard_scratch *shards = (shard_scratch *)(room + receivers * AGP_RECEIVER_SCRATCH);
	agp_quantile_table *table = (agp_quantile_table *)(memory + params.per_block * (receivers * AGP_RECEIVER_SCRATCH + params.shards * AGP_SHARD_SCRATCH));
	if (warp::lane() == 0 && role >= receivers) {
		fifo *in = &((shard_scratch *)((char *)shards + (role - receivers) * AGP_SHARD_SCRATCH))->in;
		in->head = in->tail = 0;
	}
	if (sequence && warp::lane() == 0 && role == 0)
		sequencer::shared(room)->claim = sequencer::shared(room)->hand = 0;
	if (extras && (params.sketches & AGP_SKETCH_QUANTILES)) { // the rings' tables are the same
		const agp_shard *any = (const agp_shard *)((const agp_ring *)params.rings)->shards;
		const char *from = (const char *)((const agp_sketches *)any->sketches)->table;
		for (uint32_t i = (warp::local() * AGP_LANES + warp::lane()) * 16; i < sizeof *table; i += params.per_block * warps * AGP_LANES * 16)
			store16((char *)table + i, load16(from + i));
	}
	warp::barrier();
	if (ring >= params.count)
		return;
	if constexpr (sequence) {
		if (role < receivers) {
			sequencer w;
			w.start(&params, ring, role, room, &shards->in);
			w.serve();
			return;
		}
	}
	if (!sequence && role == 0) {
		receiver<extras && !store::stateless> w;
		w.init(&params, ring, (receiver_scratch *)room, &shards->in);
		w.run();
	} else {
		shard<extras, store> w;
		w.init(&params, ring, role - receivers, (shard_scratch *)((char *)shards + (role - receivers) * AGP_SHARD_SCRATCH), table);
		w.run();
	}
}

AGP_KERNEL(agp_rings, agp_params, params) {
	AGP_SHARED_LAUNCH(memory, AGP_BLOCK_SCRATCH);
	serve<false>(params, memory);
}

// agp_rings_sketched does so with all that agp_params asks for besides records: sketches of all traffic,
// what models see of flows, messages of what happens to them.
AGP_KERNEL(agp_rings_sketched, agp_params, params) {
	AGP_SHARED_LAUNCH(memory, AGP_BLOCK_SCRATCH);
	serve<true>(params, memory);
}

// agp_sequence does all that too, with agp_params.receivers warps that take each ring's packets in turns.
AGP_KERNEL(agp_sequence, agp_params, params) {
	AGP_SHARED_LAUNCH(memory, AGP_BLOCK_SCRATCH);
	serve<true, true>(params, memory);
}

// agp_packets counts packets and knows no flows: of what agp_params asks for there are sketches, but of
// their features.
AGP_KERNEL(agp_packets, agp_params, params) {
	AGP_SHARED_LAUNCH(memory, AGP_BLOCK_SCRATCH);
	serve<true, false, counts>(params, memory);
}

// agp_nic_send plays the port of rings that it shares with agp_rings.
AGP_KERNEL(agp_nic_send, agp_nic, params) {
	nic::send(params, warp::index() / params.warps, warp::index() % params.warps);
}
