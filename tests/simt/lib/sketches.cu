// Kernels that give a warp's lanes things to add to one sketch: item i to lane i % 32.
#include "sketch.cuh"

struct item {
	uint64_t w[5];
	uint64_t weight; // 0: the lane has nothing
};

// sketch_params: what a kernel does not need is 0.
struct sketch_params {
	uint64_t k0, k1;
	uint64_t items; // item[count]
	uint64_t state[5];
	uint32_t count, size[3];
};

#define AGP_EACH(p, name)                                                      \
	for (uint32_t at = 0; at < p.count; at += AGP_LANES)                        \
		for (bool once = true, on = at + warp::lane() < p.count; once; once = false) \
			for (const item name = on ? ((const item *)p.items)[at + warp::lane()] : item{}; once; once = false)

AGP_KERNEL(sketch_count_min, sketch_params, p) {
	sketch::count_min s = {{p.k0, p.k1}, (uint64_t *)p.state[0], (uint32_t *)p.state[1], p.size[0], p.size[1]};
	AGP_EACH(p, i) s.add(on && i.weight, i.w[0], (uint32_t)i.weight);
}
AGP_KERNEL(sketch_entropy, sketch_params, p) {
	sketch::entropy s = {{p.k0, p.k1}, (agp_entropy *)p.state[0], p.size[0]};
	AGP_EACH(p, i) s.add(on && i.weight, i.w[0], (uint32_t)i.weight);
}
AGP_KERNEL(sketch_quantiles, sketch_params, p) {
	sketch::quantiles s = {(agp_quantiles *)p.state[0], (const agp_quantile_table *)p.state[1]};
	AGP_EACH(p, i) s.add(on && i.weight, s.begin(i.w[0]));
}
// weight is the length in bytes.
AGP_KERNEL(sketch_hll, sketch_params, p) {
	sketch::hll s = {(agp_hll *)p.state[0], p.size[0]};
	AGP_EACH(p, i) s.add(on && i.weight, i.weight <= 8 ? sketch::hll::of8(i.w[0], (uint32_t)i.weight) : sketch::hll::of16(i.w[0], i.w[1]));
}
AGP_KERNEL(sketch_published, sketch_params, p) {
	sketch::published s = {{p.k0, p.k1}, (uint32_t *)p.state[0], (uint32_t *)p.state[1], p.size[0], p.size[1]};
	AGP_EACH(p, i) s.add(on && i.weight, i.w[0], (uint32_t)i.w[1]);
}
AGP_KERNEL(sketch_blocked, sketch_params, p) {
	sketch::blocked s = {{p.k0, p.k1}, (agp_line *)p.state[0], (uint32_t *)p.state[1], p.size[0]};
	AGP_EACH(p, i) s.add(on && i.weight, s.lines_of(i.w[0]), (uint32_t)i.w[1]);
}
AGP_KERNEL(sketch_top, sketch_params, p) {
	sketch::top s = {{p.k0, p.k1}, (agp_top *)p.state[0], (agp_top_index *)p.state[1], (agp_top_key *)p.state[2], (uint64_t *)p.state[3], p.size[0], p.size[1]};
	AGP_EACH(p, i) s.add(on, agp_top_key{{i.w[0], i.w[1], i.w[2], i.w[3], i.w[4]}}, i.weight);
}
