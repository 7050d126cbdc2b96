// A libcuda whose functions note their arguments, to see that they arrive as the
// driver's binary interface has them. Every call adds one line to what "trace" returns.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char text[1 << 16];
const char *trace(void) { return text; }

#define NOTE(...) snprintf(text + strlen(text), sizeof text - strlen(text), __VA_ARGS__)

typedef void *handle;
typedef uint64_t ptr;
typedef unsigned int uint;

int cuInit(uint flags) { NOTE("cuInit %u\n", flags); return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuGetErrorName(int r, const char **s) { *s = r == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL; return *s ? 0 : 1; }
int cuGetErrorString(int r, const char **s) { *s = r == 2 ? "out of memory" : NULL; return *s ? 0 : 1; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { NOTE("cuDeviceGet %d\n", i); *d = i + 100; return i < 0 ? 101 : 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "name of %d in %d", d, n); return 0; }
int cuDeviceGetUuid(char *u, int d) { memset(u, d, 16); return 0; }
int cuDeviceGetUuid_v2(char *u, int d) { memset(u, d + 1, 16); return 0; }
int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "bus of %d in %d", d, n); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (1ull << 40) + d; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a * 1000 + d; return 0; }
int cuDevicePrimaryCtxSetFlags_v2(int d, uint f) { NOTE("cuDevicePrimaryCtxSetFlags %d %u\n", d, f); return 0; }
int cuDevicePrimaryCtxRetain(handle *c, int d) { *c = (handle)(0xc000000000ull + d); return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { NOTE("cuDevicePrimaryCtxRelease %d\n", d); return 0; }
int cuCtxSetCurrent(handle c) { NOTE("cuCtxSetCurrent %p\n", c); return 0; }
int cuCtxPushCurrent_v2(handle c) { NOTE("cuCtxPushCurrent %p\n", c); return 0; }
int cuCtxPopCurrent_v2(handle *c) { *c = (handle)0xc1; return 0; }
int cuCtxGetLimit(size_t *v, int l) { *v = 1024 + l; return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 1; *t = 2; return 0; }
int cuMemAlloc_v2(ptr *p, size_t n) { *p = n + 0x700000000000ull; return n > 1ull << 40 ? 2 : 0; }
int cuMemFree_v2(ptr p) { NOTE("cuMemFree %llx\n", (unsigned long long)p); return 0; }
static char host[64] = "memory of the host";
int cuMemHostAlloc(void **p, size_t n, uint f) { NOTE("cuMemHostAlloc %zu %u\n", n, f); *p = host; return 0; }
int cuMemFreeHost(void *p) { NOTE("cuMemFreeHost %d\n", p == host); return 0; }
int cuMemHostGetDevicePointer_v2(ptr *d, void *p, uint f) { NOTE("cuMemHostGetDevicePointer %d %u\n", p == host, f); *d = 0xd1; return 0; }
int cuMemGetHandleForAddressRange(void *h, ptr p, size_t n, int t, unsigned long long f) {
	NOTE("cuMemGetHandleForAddressRange %llx %zu %d %llu\n", (unsigned long long)p, n, t, f);
	*(int *)h = 77;
	return 0;
}
int cuMemsetD8Async(ptr p, unsigned char v, size_t n, handle s) { NOTE("cuMemsetD8Async %llx %d %zu %p\n", (unsigned long long)p, v, n, s); return 0; }
int cuMemcpyHtoDAsync_v2(ptr d, const void *s, size_t n, handle h) { NOTE("cuMemcpyHtoDAsync %llx %.*s %p\n", (unsigned long long)d, (int)n, (const char *)s, h); return 0; }
int cuMemcpyDtoHAsync_v2(void *d, ptr s, size_t n, handle h) { NOTE("cuMemcpyDtoHAsync %llx %p\n", (unsigned long long)s, h); memset(d, 'x', n); return 0; }
struct copy2d {
	size_t src_x, src_y; uint src_type; const char *src_host; ptr src_device; handle src_array; size_t src_pitch;
	size_t dst_x, dst_y; uint dst_type; void *dst_host; ptr dst_device; handle dst_array; size_t dst_pitch;
	size_t width, height;
};
int cuMemcpy2DAsync_v2(const struct copy2d *c, handle h) {
	NOTE("cuMemcpy2DAsync %zu,%zu %u %.*s %llx %p %zu to %zu,%zu %u %p %llx %p %zu: %zu x %zu %p\n", c->src_x, c->src_y, c->src_type, (int)c->width, c->src_host, (unsigned long long)c->src_device, c->src_array,
		c->src_pitch, c->dst_x, c->dst_y, c->dst_type, c->dst_host, (unsigned long long)c->dst_device, c->dst_array, c->dst_pitch, c->width, c->height, h);
	return 0;
}
int cuStreamCreate(handle *s, uint f) { *s = (handle)(uintptr_t)(0x5000 + f); return 0; }
int cuStreamDestroy_v2(handle s) { NOTE("cuStreamDestroy %p\n", s); return 0; }
int cuStreamQuery(handle s) { return s == (handle)0x5001 ? 600 : 0; }
int cuStreamSynchronize(handle s) { NOTE("cuStreamSynchronize %p\n", s); return 0; }
int cuEventCreate(handle *e, uint f) { *e = (handle)(uintptr_t)(0xe000 + f); return 0; }
int cuEventDestroy_v2(handle e) { NOTE("cuEventDestroy %p\n", e); return 0; }
int cuEventRecord(handle e, handle s) { NOTE("cuEventRecord %p %p\n", e, s); return 0; }
int cuEventQuery(handle e) { NOTE("cuEventQuery %p\n", e); return 0; }
int cuEventSynchronize(handle e) { NOTE("cuEventSynchronize %p\n", e); return 0; }
int cuEventElapsedTime(float *ms, handle a, handle b) { NOTE("cuEventElapsedTime %p %p\n", a, b); *ms = 1.5f; return 0; }

// Logs: of options with these numbers, values are pointers or sizes in their place.
static void complain(uint n, int *names, void **values, const char *info, const char *error) {
	for (uint i = 0; i < n; i++) {
		NOTE(" %d", names[i]);
		if (names[i] == 3 || names[i] == 5)
			strcpy(values[i], names[i] == 3 ? info : error);
		else
			NOTE("=%zu", (size_t)values[i]);
		if (names[i] == 4 || names[i] == 6)
			values[i] = (void *)(size_t)7; // how much was written
	}
	NOTE("\n");
}
int cuModuleLoadDataEx(handle *m, const void *image, uint n, int *names, void **values) {
	NOTE("cuModuleLoadDataEx %s", (const char *)image);
	complain(n, names, values, "info", "line 3; fatal");
	*m = (handle)0x3000;
	return strcmp(image, "bad") ? 0 : 218;
}
int cuModuleUnload(handle m) { NOTE("cuModuleUnload %p\n", m); return 0; }
int cuModuleGetFunction(handle *f, handle m, const char *name) { NOTE("cuModuleGetFunction %p %s\n", m, name); *f = (handle)0xf000; return 0; }
int cuFuncGetAttribute(int *v, int a, handle f) { NOTE("cuFuncGetAttribute %p\n", f); *v = a + 10; return 0; }
int cuFuncSetAttribute(handle f, int a, int v) { NOTE("cuFuncSetAttribute %p %d %d\n", f, a, v); return 0; }
int cuFuncGetParamInfo(handle f, size_t i, size_t *o, size_t *s) { *o = 8 * i; *s = 100 + i; return f == (handle)0xf000 && i < 2 ? 0 : 1; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, handle f, int t, size_t s) { NOTE("occupancy %p %d %zu\n", f, t, s); *n = 4; return 0; }
int cuLaunchKernel(handle f, uint gx, uint gy, uint gz, uint bx, uint by, uint bz, uint shared, handle s, void **params, void **extra) {
	NOTE("cuLaunchKernel %p %u,%u,%u %u,%u,%u %u %p %d %d %d\n", f, gx, gy, gz, bx, by, bz, shared, s, *(int *)params[0], *(int *)params[1], extra == NULL);
	return 0;
}
struct attribute { int id; char pad[4]; union { char pad[64]; int i; struct { uint x, y, z; } dim; } value; };
struct config { uint gx, gy, gz, bx, by, bz, shared; handle stream; struct attribute *attrs; uint n; };
int cuLaunchKernelEx(const struct config *c, handle f, void **params, void **extra) {
	NOTE("cuLaunchKernelEx %p %u,%u,%u %u,%u,%u %u %p %d %d", f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, *(int *)params[0], extra == NULL);
	for (uint i = 0; i < c->n; i++)
		NOTE(" %d=%u,%u,%u", c->attrs[i].id, c->attrs[i].value.dim.x, c->attrs[i].value.dim.y, c->attrs[i].value.dim.z);
	NOTE("\n");
	return 0;
}
static int *kept; static void **keptValues; static uint keptN;
int cuLinkCreate_v2(uint n, int *names, void **values, handle *l) { kept = names; keptValues = values; keptN = n; *l = (handle)0x1000; return 0; }
int cuLinkAddData_v2(handle l, int t, void *d, size_t n, const char *name, uint o, int *names, void **values) {
	NOTE("cuLinkAddData %p %d %.*s %s %u %d", l, t, (int)n, (char *)d, name, o, names == NULL && values == NULL);
	complain(keptN, kept, keptValues, "linking", "no error");
	return 0;
}
int cuLinkComplete(handle l, void **cubin, size_t *n) { NOTE("cuLinkComplete %p\n", l); *cubin = "cubin"; *n = 5; return 0; }
int cuLinkDestroy(handle l) { NOTE("cuLinkDestroy %p\n", l); return 0; }
