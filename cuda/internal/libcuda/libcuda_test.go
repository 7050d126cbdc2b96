//go:build linux && (amd64 || arm64)

package libcuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// build compiles testdata/libcuda.c.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	out, err := exec.Command(testcap.Program(t, "gcc"), "-Wall", "-Werror", "-Wno-format-truncation", "-shared", "-fPIC", "-o", path, "testdata/libcuda.c").CombinedOutput() //nolint:gosec // a compiler
	require.NoError(t, err, "%s", out)
	return path
}

// TestArgumentsArriveAsTheDriverHasThem calls every function of a library that notes
// its arguments.
func TestArgumentsArriveAsTheDriverHasThem(t *testing.T) {
	path := build(t)
	d, err := open([]string{filepath.Join(t.TempDir(), "absent.so"), path})
	require.NoError(t, err)
	lib, err := purego.Dlopen(path, purego.RTLD_NOW)
	require.NoError(t, err)
	var trace func() string
	purego.RegisterLibFunc(&trace, lib, "trace")
	seen := 0
	noted := func(want string) {
		t.Helper()
		all := trace()
		require.Equal(t, want, strings.TrimSuffix(all[seen:], "\n"))
		seen = len(all)
	}
	ok := func(r api.Result) {
		t.Helper()
		require.Equal(t, api.Success, r)
	}

	ok(d.Init())
	noted("cuInit 0")
	v, r := d.DriverGetVersion()
	ok(r)
	require.EqualValues(t, 13000, v)
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY: out of memory", d.GetErrorName(2)+": "+d.GetErrorString(2))
	require.Empty(t, d.GetErrorName(12345)+d.GetErrorString(12345))
	n, r := d.DeviceGetCount()
	ok(r)
	require.EqualValues(t, 2, n)
	dev, r := d.DeviceGet(1)
	ok(r)
	require.EqualValues(t, 101, dev)
	_, r = d.DeviceGet(-1)
	require.Equal(t, api.InvalidDevice, r)
	noted("cuDeviceGet 1\ncuDeviceGet -1")
	name, r := d.DeviceGetName(101)
	ok(r)
	require.Equal(t, "name of 101 in 256", name)
	u, r := d.DeviceGetUuid(101)
	ok(r)
	require.EqualValues(t, 101, u[15])
	u, r = d.DeviceGetUuidV2(101)
	ok(r)
	require.EqualValues(t, 102, u[15])
	bus, r := d.DeviceGetPCIBusID(101)
	ok(r)
	require.Equal(t, "bus of 101 in 32", bus)
	mem, r := d.DeviceTotalMem(101)
	ok(r)
	require.EqualValues(t, 1<<40+101, mem)
	v, r = d.DeviceGetAttribute(api.DirectRDMAOrdering, 101)
	ok(r)
	require.EqualValues(t, 118101, v)

	ok(d.DevicePrimaryCtxSetFlags(101, 20))
	ctx, r := d.DevicePrimaryCtxRetain(101)
	ok(r)
	ok(d.CtxSetCurrent(ctx))
	ok(d.CtxPushCurrent(ctx))
	popped, r := d.CtxPopCurrent()
	ok(r)
	require.EqualValues(t, 0xc1, popped)
	ok(d.DevicePrimaryCtxRelease(101))
	noted("cuDevicePrimaryCtxSetFlags 101 20\ncuCtxSetCurrent 0xc000000065\ncuCtxPushCurrent 0xc000000065\ncuDevicePrimaryCtxRelease 101")
	limit, r := d.CtxGetLimit(5)
	ok(r)
	require.EqualValues(t, 1029, limit)

	free, total, r := d.MemGetInfo()
	ok(r)
	require.Equal(t, [2]uint64{1, 2}, [2]uint64{free, total})
	p, r := d.MemAlloc(256)
	ok(r)
	require.EqualValues(t, 0x700000000100, p)
	_, r = d.MemAlloc(1 << 41)
	require.Equal(t, api.OutOfMemory, r)
	ok(d.MemFree(p))
	h, r := d.MemHostAlloc(64, 3)
	ok(r)
	require.Equal(t, "memory of the host", api.Text(unsafe.Slice((*byte)(h), 64)))
	dp, r := d.MemHostGetDevicePointer(h)
	ok(r)
	require.EqualValues(t, 0xd1, dp)
	ok(d.MemFreeHost(h))
	fd, r := d.MemGetHandleForAddressRange(p, 4096)
	ok(r)
	require.EqualValues(t, 77, fd)
	noted("cuMemFree 700000000100\ncuMemHostAlloc 64 3\ncuMemHostGetDevicePointer 1 0\ncuMemFreeHost 1\ncuMemGetHandleForAddressRange 700000000100 4096 1 0")

	s, r := d.StreamCreate(1)
	ok(r)
	require.EqualValues(t, 0x5001, s)
	ok(d.MemsetD8Async(p, 0xa5, 1<<33, s))
	src, dst := []byte("payload"), make([]byte, 4)
	ok(d.MemcpyHtoDAsync(p, unsafe.Pointer(&src[0]), 7, s))
	ok(d.MemcpyDtoHAsync(unsafe.Pointer(&dst[0]), p, 4, s))
	require.Equal(t, "xxxx", string(dst))
	ok(d.Memcpy2DAsync(&api.Rows{Src: unsafe.Pointer(&src[0]), Dst: p, SrcPitch: 4, DstPitch: 64, Width: 3, Count: 2}, s))
	require.Equal(t, api.NotReady, d.StreamQuery(s))
	ok(d.StreamSynchronize(s))
	ok(d.StreamDestroy(s))
	noted("cuMemsetD8Async 700000000100 165 8589934592 0x5001\ncuMemcpyHtoDAsync 700000000100 payload 0x5001\ncuMemcpyDtoHAsync 700000000100 0x5001\n" +
		"cuMemcpy2DAsync 0,0 1 pay 0 (nil) 4 to 0,0 2 (nil) 700000000100 (nil) 64: 3 x 2 0x5001\ncuStreamSynchronize 0x5001\ncuStreamDestroy 0x5001")

	e, r := d.EventCreate(2)
	ok(r)
	require.EqualValues(t, 0xe002, e)
	ok(d.EventRecord(e, s))
	ok(d.EventQuery(e))
	ok(d.EventSynchronize(e))
	ms, r := d.EventElapsedTime(1, e)
	ok(r)
	require.InDelta(t, 1.5, ms, 0)
	ok(d.EventDestroy(e))
	noted("cuEventRecord 0xe002 0x5001\ncuEventQuery 0xe002\ncuEventSynchronize 0xe002\ncuEventElapsedTime 0x1 0xe002\ncuEventDestroy 0xe002")

	log := api.NewLog()
	m, r := d.ModuleLoadDataEx([]byte("good\x00"), log)
	ok(r)
	require.Equal(t, "info, line 3; fatal", api.Text(log.Info)+", "+api.Text(log.Error))
	_, r = d.ModuleLoadDataEx([]byte("bad\x00"), log)
	require.Equal(t, api.InvalidPTX, r)
	_, r = d.ModuleLoadDataEx(nil, log)
	require.Equal(t, api.InvalidValue, r)
	f, r := d.ModuleGetFunction(m, "agp_rings")
	ok(r)
	require.Equal(t, api.NotSupported, d.FuncLoad(f), "this library is too old for it")
	v, r = d.FuncGetAttribute(api.FuncRegisters, f)
	ok(r)
	require.EqualValues(t, 14, v)
	ok(d.FuncSetAttribute(f, api.FuncMaxDynamicShared, 65536))
	off, size, r := d.FuncGetParamInfo(f, 1)
	ok(r)
	require.Equal(t, [2]uint64{8, 101}, [2]uint64{off, size})
	n, r = d.OccupancyMaxActiveBlocksPerMultiprocessor(f, 128, 4096)
	ok(r)
	require.EqualValues(t, 4, n)
	ok(d.ModuleUnload(m))
	options := " 3 4=8192 5 6=16384 12=1\n"
	noted("cuModuleLoadDataEx good" + options + "cuModuleLoadDataEx bad" + options +
		"cuModuleGetFunction 0x3000 agp_rings\ncuFuncGetAttribute 0xf000\ncuFuncSetAttribute 0xf000 8 65536\noccupancy 0xf000 128 4096\ncuModuleUnload 0x3000")

	a, b := int32(-5), int32(6)
	c := &api.Config{Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, SharedBytes: 7, Stream: 0x5001}
	args := []unsafe.Pointer{unsafe.Pointer(&a), unsafe.Pointer(&b)}
	ok(d.LaunchKernel(f, c, args))
	c.Cooperative = true
	ok(d.LaunchKernel(f, c, args))
	c.Cluster, c.MemSyncDomain = 2, 1
	ok(d.LaunchKernel(f, c, args))
	noted("cuLaunchKernel 0xf000 1,2,3 4,5,6 7 0x5001 -5 6 1\n" +
		"cuLaunchKernelEx 0xf000 1,2,3 4,5,6 7 0x5001 -5 1 2=1,0,0\n" +
		"cuLaunchKernelEx 0xf000 1,2,3 4,5,6 7 0x5001 -5 1 2=1,0,0 4=2,1,1 10=1,0,0")

	log = api.NewLog()
	l, r := d.LinkCreate(log)
	ok(r)
	runtime.GC() // what the library keeps stays where it is
	ok(d.LinkAddData(l, api.InputPTX, []byte("ptx"), "main"))
	require.Equal(t, "linking", api.Text(log.Info))
	require.Equal(t, api.InvalidValue, d.LinkAddData(l, api.InputPTX, nil, "main"))
	cubin, r := d.LinkComplete(l)
	ok(r)
	require.Equal(t, "cubin", string(cubin))
	ok(d.LinkDestroy(l))
	require.Empty(t, d.pins)
	noted("cuLinkAddData 0x1000 1 ptx main 0 1" + options + "cuLinkComplete 0x1000\ncuLinkDestroy 0x1000")
}

func TestLibraryThatIsAbsentBrokenOrTooOld(t *testing.T) {
	dir := t.TempDir()
	_, err := open([]string{filepath.Join(dir, "libcuda.so.1")})
	require.ErrorIs(t, err, ErrAbsent)
	require.EqualError(t, err, ErrAbsent.Error())
	broken := filepath.Join(dir, "broken.so")
	require.NoError(t, os.WriteFile(broken, []byte("no library"), 0o600))
	_, err = open([]string{broken})
	require.ErrorIs(t, err, ErrAbsent)
	require.ErrorContains(t, err, "broken.so: ")
	_, err = open([]string{"libc.so.6"})
	require.ErrorIs(t, err, ErrTooOld)
	require.ErrorContains(t, err, "it lacks cuInit")
	require.NotContains(t, err.Error(), "cuLaunchKernelEx", "not needed")
}

// TestNumbersAreThoseOfTheHeader reads cuda.h where the compiler of the device code is.
func TestNumbersAreThoseOfTheHeader(t *testing.T) {
	list, err := filepath.Glob("../../../build/venv-cuda/lib/python*/site-packages/nvidia/cu13/include/cuda.h")
	require.NoError(t, err)
	if len(list) == 0 {
		testcap.Missing(t, "no cuda.h (make cuda)")
	}
	header, err := os.ReadFile(list[0])
	require.NoError(t, err)
	number := func(name string) int {
		m := regexp.MustCompile(`\b` + name + `\s*=?\s*(0x[0-9a-f]+|\d+)`).FindSubmatch(header)
		require.NotNil(t, m, name)
		n, err := strconv.ParseInt(string(m[1]), 0, 32)
		require.NoError(t, err)
		return int(n)
	}
	for r, name := range api.Names {
		require.Equal(t, number(name), int(r), name)
	}
	for name, v := range map[string]int{
		"DEVICE_ATTRIBUTE_CLOCK_RATE": int(api.ClockRateKHz), "DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": int(api.Multiprocessors),
		"DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY": int(api.CanMapHostMemory), "DEVICE_ATTRIBUTE_COMPUTE_MODE": int(api.ComputeModeOf),
		"DEVICE_ATTRIBUTE_ECC_ENABLED": int(api.EccEnabled), "DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": int(api.MemoryClockRateKHz),
		"DEVICE_ATTRIBUTE_L2_CACHE_SIZE": int(api.L2CacheBytes), "DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR": int(api.MaxThreadsPerSM),
		"DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": int(api.ComputeMajor), "DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": int(api.ComputeMinor),
		"DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH": int(api.CooperativeLaunch), "DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": int(api.MaxSharedBytesPerBlock),
		"DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED": int(api.DirectRDMA), "DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": int(api.DirectRDMAFlush),
		"DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING": int(api.DirectRDMAOrdering), "DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED": int(api.DMABuf),
		"FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": int(api.FuncMaxThreads), "FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": int(api.FuncSharedBytes),
		"FUNC_ATTRIBUTE_CONST_SIZE_BYTES": int(api.FuncConstBytes), "FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": int(api.FuncLocalBytes),
		"FUNC_ATTRIBUTE_NUM_REGS": int(api.FuncRegisters), "FUNC_ATTRIBUTE_PTX_VERSION": int(api.FuncPTXVersion),
		"FUNC_ATTRIBUTE_BINARY_VERSION": int(api.FuncBinaryVersion), "FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": int(api.FuncMaxDynamicShared),
		"CTX_SCHED_BLOCKING_SYNC": api.CtxBlockingSync, "CTX_MAP_HOST": api.CtxMapHost, "CTX_LMEM_RESIZE_TO_MAX": api.CtxKeepLocal,
		"MEMHOSTALLOC_PORTABLE": api.HostPortable, "MEMHOSTALLOC_DEVICEMAP": api.HostDeviceMap,
		"STREAM_NON_BLOCKING": api.StreamNonBlocking, "EVENT_DISABLE_TIMING": api.EventNoTiming, "LIMIT_STACK_SIZE": api.LimitStackSize,
		"MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD": api.HandleDMABuf, "JIT_INPUT_CUBIN": int(api.InputCubin), "JIT_INPUT_PTX": int(api.InputPTX),
		"JIT_INFO_LOG_BUFFER": jitInfoLog, "JIT_INFO_LOG_BUFFER_SIZE_BYTES": jitInfoLogSize, "JIT_ERROR_LOG_BUFFER": jitErrorLog,
		"JIT_ERROR_LOG_BUFFER_SIZE_BYTES": jitErrorLogSize, "JIT_LOG_VERBOSE": jitLogVerbose, "MEMORYTYPE_HOST": memoryHost, "MEMORYTYPE_DEVICE": memoryDevice,
		"LAUNCH_ATTRIBUTE_COOPERATIVE": launchCooperative, "LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": launchCluster, "LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN": launchMemSyncDomain,
	} {
		require.Equal(t, number("CU_"+name), v, name)
	}
}
