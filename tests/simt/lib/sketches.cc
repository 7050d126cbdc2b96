// sketches ORDER runs the kernels of sketches.cu, in a build with a sanitizer, on things that
// meet in few cells, and prints a sum of every sketch's state.
#include "sketches.cu"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 1500 };

static uint8_t *make(size_t n) {
	uint8_t *p = (uint8_t *)aligned_alloc(64, (n + 63) / 64 * 64);
	if (!p) abort();
	memset(p, 0, (n + 63) / 64 * 64);
	return p;
}

static uint64_t random64() {
	static uint64_t x = 88172645463325252u;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x;
}

int main(int argc, char **argv) {
	item *items = (item *)make(ITEMS * sizeof(item));
	for (int i = 0; i < ITEMS; i++) {
		uint64_t k = random64() % (i % 3 ? 12 : 4000);
		items[i] = item{{k * sketch::mix_a, k % 96, k, 0, k >> 3}, random64() % 17};
	}
	agp_quantile_table *table = (agp_quantile_table *)make(sizeof *table);
	for (uint64_t &high : table->high) high = UINT64_MAX; // all of a cell is in its first bin
	for (int e = 0; e < 65; e++)
		for (int c = 0; c < 64; c++) table->first[e][c] = (uint16_t)(e * 33 + c / 2);
	struct {
		const char *kernel;
		size_t bytes[5];
		uint32_t size[3];
	} const runs[] = {
		{"sketch_count_min", {8, 4 * 5 * 16}, {5, 16}},
		{"sketch_entropy", {8 + 4 * 32}, {32}},
		{"sketch_quantiles", {sizeof(agp_quantiles), 0}, {}},
		{"sketch_hll", {24 + 64}, {64}},
		{"sketch_published", {4 * 3 * 10, 8 * 3 * 2}, {10, 100}},
		{"sketch_blocked", {3 * 2 * sizeof(agp_line), 2 * 2 * 4}, {2}},
		{"sketch_top", {sizeof(agp_top), 32 * sizeof(agp_top_index), 16 * sizeof(agp_top_key), 16 * 8}, {8, 31}},
	};
	for (auto &r : runs) {
		sketch_params p = {};
		p.k0 = 12345, p.k1 = 67890;
		p.items = (uint64_t)items;
		p.count = ITEMS;
		memcpy(p.size, r.size, sizeof p.size);
		for (int i = 0; i < 5; i++)
			if (r.bytes[i]) p.state[i] = (uint64_t)make(r.bytes[i]);
		if (!strcmp(r.kernel, "sketch_quantiles")) p.state[1] = (uint64_t)table;
		if (!strcmp(r.kernel, "sketch_hll")) ((agp_hll *)p.state[0])->kxq[0] = 64;
		void *handle;
		simt_seed(argc > 1 ? strtoull(argv[1], nullptr, 10) : 1);
		if (simt_launch(r.kernel, 1, 1, &p, sizeof p, &handle)) return 1;
		simt_wait(handle, -1);
		simt_release(handle);
		uint64_t sum = 0;
		for (int i = 0; i < 5; i++)
			for (size_t b = 0; b < r.bytes[i]; b++) sum = (sum ^ ((const uint8_t *)p.state[i])[b]) * 0x100000001b3u;
		printf("%s %016llx\n", r.kernel, (unsigned long long)sum);
		for (int i = 0; i < 5; i++)
			if (r.bytes[i]) free((void *)p.state[i]);
	}
	free(items);
	free(table);
}
