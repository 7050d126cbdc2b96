// A management library of one GPU whose answers are made of the arguments, to see
// that these arrive. 70 processes compute: more than are first asked for.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *handle;
static int gpu;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 3 ? "Not Supported" : "other"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *d) { *d = &gpu; return i == 0 ? 0 : 2; }
int nvmlDeviceGetHandleByUUID(const char *u, handle *d) { *d = &gpu; return strcmp(u, "GPU-1") ? 6 : 0; }
int nvmlDeviceGetIndex(handle d, unsigned *i) { *i = d == &gpu ? 4 : 0; return 0; }
int nvmlDeviceGetUUID(handle d, char *s, unsigned n) { snprintf(s, n, "%s", d == &gpu ? "GPU-1" : "wrong"); return 0; }
int nvmlDeviceGetName(handle d, char *s, unsigned n) { snprintf(s, n, "GPU in %u", n); return 0; }
int nvmlDeviceGetPowerUsage(handle d, unsigned *v) { *v = 81000; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(handle d, unsigned long long *v) { *v = 1ull << 40; return 0; }
int nvmlDeviceGetClockInfo(handle d, int k, unsigned *v) { *v = 1000 * k; return 0; }
int nvmlDeviceGetMemoryInfo(handle d, unsigned long long *v) { v[0] = 30; v[1] = 20; v[2] = 10; return 0; }
int nvmlDeviceGetPcieThroughput(handle d, int k, unsigned *v) { *v = 5 + k; return 0; }
int nvmlDeviceGetUtilizationRates(handle d, unsigned *v) { v[0] = 99; v[1] = 3; return 0; }
int nvmlDeviceGetTemperature(handle d, int k, unsigned *v) { *v = 40 + k; return 0; }
int nvmlDeviceGetTotalEccErrors(handle d, int k, int volatile_, unsigned long long *v) { *v = 100 + 10 * k + volatile_; return 0; }

struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *n, struct process *p) {
	if (*n < 70) {
		*n = 70;
		return 7;
	}
	*n = 70;
	for (unsigned i = 0; i < 70; i++)
		p[i] = (struct process){1000 + i, 1ull << 33 | i, 1, 2};
	return 0;
}

struct event { handle d; unsigned long long kind, data; unsigned gi, ci; };
static int set, left = 2;
int nvmlEventSetCreate(handle *s) { *s = &set; return 0; }
int nvmlDeviceRegisterEvents(handle d, unsigned long long kinds, handle s) { return d == &gpu && kinds == 8 && s == &set ? 0 : 2; }
int nvmlEventSetWait_v2(handle s, struct event *e, unsigned ms) {
	if (s != &set || ms != 0 || left == 0)
		return 10;
	*e = (struct event){&gpu, 8, 30 + left--, 7, 7};
	return 0;
}
int nvmlEventSetFree(handle s) { return s == &set ? 0 : 2; }
