// litmus NAME [FAULT] runs one of the emulator's test kernels, in a build with a sanitizer, and
// prints what it computed. FAULT is the field of the parameters that leaves a fence or a sync out.
#include "selftest.cu"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

template <class T> static void run(const char *kernel, uint32_t blocks, uint32_t warps, const T &params) {
	for (uint64_t seed = 1; seed <= 8; seed++) {
		simt_seed(seed);
		void *handle;
		int rc = simt_launch(kernel, blocks, warps, &params, sizeof params, &handle);
		if (rc) {
			printf("launch: %d\n", rc);
			exit(1);
		}
		simt_wait(handle, -1);
		simt_release(handle);
	}
}

int main(int argc, char **argv) {
	const char *name = argc > 1 ? argv[1] : "", *fault = argc > 2 ? argv[2] : "";
	uint64_t sum = 0;
	if (!strcmp(name, "messages")) {
		// Each location has its own allocation.
		uint32_t *flag = (uint32_t *)calloc(2, 4);
		uint64_t *data = (uint64_t *)calloc(32, 8), *out = (uint64_t *)calloc(32, 8);
		for (int i = 0; i < 4; i++) {
			memset(flag, 0, 8);
			messages_params p = {(uint64_t)flag, (uint64_t)data, (uint64_t)out, 100, 0, 0, 0, 0};
			p.no_release = !strcmp(fault, "no_release");
			p.no_acquire = !strcmp(fault, "no_acquire");
			p.no_sync = !strcmp(fault, "no_sync");
			p.late = !strcmp(fault, "late");
			void *handle;
			simt_seed(i + 1);
			if (simt_launch("messages", 1, 2, &p, sizeof p, &handle)) return 1;
			simt_wait(handle, -1);
			simt_release(handle);
		}
		for (int i = 0; i < 32; i++) sum += out[i];
		free(flag), free(data), free(out);
	} else if (!strcmp(name, "exchange")) {
		uint32_t *out = (uint32_t *)calloc(32, 4);
		run("exchange", 1, 1, exchange_params{(uint64_t)out, !strcmp(fault, "no_sync") ? 0u : !strcmp(fault, "shuffle") ? 2u : 1u, 0});
		for (int i = 0; i < 32; i++) sum += out[i];
		free(out);
	} else if (!strcmp(name, "rows")) {
		uint32_t *out = (uint32_t *)calloc(8, 4);
		run("rows", 2, 4, rows_params{(uint64_t)out, 4, strcmp(fault, "no_barrier") ? 1u : 0u});
		for (int i = 0; i < 8; i++) sum += out[i];
		free(out);
	} else if (!strcmp(name, "spin")) {
		uint32_t *word = (uint32_t *)calloc(1, 4);
		spin_params p = {(uint64_t)word};
		void *handle;
		if (simt_launch("spin", 1, 1, &p, sizeof p, &handle)) return 1;
		simt_wait(handle, -1);
		simt_release(handle);
		sum = *word;
		free(word);
	} else if (!strcmp(name, "stray")) {
		uint8_t *out = (uint8_t *)calloc(1, 64);
		run("stray", 1, 1, stray_params{(uint64_t)out, *fault ? 64u : 63u, 0});
		sum = out[63];
		free(out);
	} else if (!strcmp(name, "overflow")) {
		int32_t *out = (int32_t *)calloc(1, 4);
		run("overflow", 1, 1, turns_params{(uint64_t)out, *fault ? 10u : 1u, 0});
		sum = *out;
		free(out);
	} else {
		return 2;
	}
	printf("%llu\n", (unsigned long long)sum);
	return 0;
}
