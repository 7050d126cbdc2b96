// The kernels of the packet path.
#include "ring.cuh"

// agp_rings serves ring i with warp i until the host wants it to end.
AGP_KERNEL(agp_rings, agp_params, params) {
	AGP_SHARED(scratch, memory, WARPS_PER_BLOCK);
	if (warp::index() >= params.count)
		return;
	poller ring;
	ring.init(&params, warp::index(), &memory[warp::local()]);
	ring.run();
}
