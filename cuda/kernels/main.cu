// The kernels of the packet path.
#include "nic.cuh"
#include "ring.cuh"

// agp_rings serves ring i with warp i until the host wants it to end.
AGP_KERNEL(agp_rings, agp_params, params) {
	AGP_SHARED_LAUNCH(scratch, memory);
	if (warp::index() >= params.count)
		return;
	poller<false> ring;
	ring.init(&params, warp::index(), &memory[warp::local()]);
	ring.run();
}

// agp_rings_sketched does so with sketches of all traffic.
AGP_KERNEL(agp_rings_sketched, agp_params, params) {
	AGP_SHARED_LAUNCH(scratch, memory);
	if (warp::index() >= params.count)
		return;
	poller<true> ring;
	ring.init(&params, warp::index(), &memory[warp::local()]);
	ring.run();
}

// agp_nic_send plays the port of rings that it shares with agp_rings.
AGP_KERNEL(agp_nic_send, agp_nic, params) {
	nic::send(params, warp::index() / params.warps, warp::index() % params.warps);
}
