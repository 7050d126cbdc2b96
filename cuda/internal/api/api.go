package api

import "unsafe"

// Handle is an opaque pointer of the driver: CUcontext, CUmodule, CUfunction,
// CUstream, CUevent or CUlinkState.
type Handle uintptr

// Attribute is a CUdevice_attribute.
type Attribute int32

// Attributes of a device.
const (
	ClockRateKHz           Attribute = 13
	Multiprocessors        Attribute = 16
	CanMapHostMemory       Attribute = 19
	ComputeModeOf          Attribute = 20
	EccEnabled             Attribute = 32
	MemoryClockRateKHz     Attribute = 36
	L2CacheBytes           Attribute = 38
	MaxThreadsPerSM        Attribute = 39
	ComputeMajor           Attribute = 75
	ComputeMinor           Attribute = 76
	CooperativeLaunch      Attribute = 95
	MaxSharedBytesPerBlock Attribute = 97 // with opt-in
	DirectRDMA             Attribute = 116
	DirectRDMAFlush        Attribute = 117
	DirectRDMAOrdering     Attribute = 118
	DMABuf                 Attribute = 124
)

// FuncAttribute is a CUfunction_attribute.
type FuncAttribute int32

// Attributes of a function.
const (
	FuncMaxThreads       FuncAttribute = 0
	FuncSharedBytes      FuncAttribute = 1
	FuncConstBytes       FuncAttribute = 2
	FuncLocalBytes       FuncAttribute = 3
	FuncRegisters        FuncAttribute = 4
	FuncPTXVersion       FuncAttribute = 5
	FuncBinaryVersion    FuncAttribute = 6
	FuncMaxDynamicShared FuncAttribute = 8
)

// Flags of functions.
const (
	CtxBlockingSync = 0x04 // waits sleep
	CtxMapHost      = 0x08
	CtxKeepLocal    = 0x10 // local memory that a launch needed is kept

	HostPortable  = 1
	HostDeviceMap = 2

	StreamNonBlocking = 1
	EventNoTiming     = 2

	LimitStackSize = 0
	HandleDMABuf   = 1
)

// Config is how a kernel is launched.
type Config struct {
	Grid, Block   [3]uint32
	SharedBytes   uint32
	Stream        Handle
	Cooperative   bool
	Cluster       uint32 // blocks of a cluster in x, 0: none
	MemSyncDomain uint32 // CUlaunchMemSyncDomain: 0 default, 1 remote
}

// Rows are copied by a two-dimensional copy: so many, each Width bytes, that begin Pitch
// bytes after each other on either side.
type Rows struct {
	Src                unsafe.Pointer // page-locked
	Dst                uint64
	SrcPitch, DstPitch uint64
	Width, Count       uint64
}

// InputType is a CUjitInputType.
type InputType int32

// Input types of LinkAddData.
const (
	InputCubin InputType = 0
	InputPTX   InputType = 1
)

// Driver are the functions that package cuda needs. Implementations are safe
// for use by several threads. The current context is one of the calling thread,
// so a caller holds its thread.
type Driver interface {
	Init() Result
	DriverGetVersion() (int32, Result)
	GetErrorName(Result) string
	GetErrorString(Result) string

	DeviceGetCount() (int32, Result)
	DeviceGet(ordinal int32) (int32, Result)
	DeviceGetName(dev int32) (string, Result)
	DeviceGetUuid(dev int32) ([16]byte, Result)   // of the GPU
	DeviceGetUuidV2(dev int32) ([16]byte, Result) // of the MIG slice, if it is one
	DeviceGetPCIBusID(dev int32) (string, Result)
	DeviceTotalMem(dev int32) (uint64, Result)
	DeviceGetAttribute(a Attribute, dev int32) (int32, Result)

	DevicePrimaryCtxSetFlags(dev int32, flags uint32) Result
	DevicePrimaryCtxRetain(dev int32) (Handle, Result)
	DevicePrimaryCtxRelease(dev int32) Result
	CtxSetCurrent(Handle) Result
	CtxPushCurrent(Handle) Result
	CtxPopCurrent() (Handle, Result)
	CtxGetLimit(limit int32) (uint64, Result)

	MemGetInfo() (free, total uint64, r Result)
	MemAlloc(n uint64) (uint64, Result)
	MemFree(p uint64) Result
	MemHostAlloc(n uint64, flags uint32) (unsafe.Pointer, Result)
	MemFreeHost(p unsafe.Pointer) Result
	MemHostGetDevicePointer(p unsafe.Pointer) (uint64, Result)
	MemGetHandleForAddressRange(p, n uint64) (fd int32, r Result)
	MemsetD8Async(p uint64, v byte, n uint64, stream Handle) Result
	MemcpyHtoDAsync(dst uint64, src unsafe.Pointer, n uint64, stream Handle) Result
	MemcpyDtoHAsync(dst unsafe.Pointer, src uint64, n uint64, stream Handle) Result
	Memcpy2DAsync(r *Rows, stream Handle) Result // host to device

	StreamCreate(flags uint32) (Handle, Result)
	StreamDestroy(Handle) Result
	StreamQuery(Handle) Result
	StreamSynchronize(Handle) Result

	EventCreate(flags uint32) (Handle, Result)
	EventDestroy(Handle) Result
	EventRecord(event, stream Handle) Result
	EventQuery(Handle) Result
	EventSynchronize(Handle) Result
	EventElapsedTime(start, end Handle) (ms float32, r Result)

	ModuleLoadDataEx(image []byte, log *Log) (Handle, Result)
	ModuleUnload(Handle) Result
	ModuleGetFunction(module Handle, name string) (Handle, Result)
	FuncLoad(Handle) Result
	FuncGetAttribute(a FuncAttribute, f Handle) (int32, Result)
	FuncSetAttribute(f Handle, a FuncAttribute, v int32) Result
	FuncGetParamInfo(f Handle, i uint64) (offset, size uint64, r Result)
	OccupancyMaxActiveBlocksPerMultiprocessor(f Handle, threads int32, shared uint64) (int32, Result)
	LaunchKernel(f Handle, c *Config, args []unsafe.Pointer) Result

	LinkCreate(log *Log) (Handle, Result)
	LinkAddData(h Handle, t InputType, data []byte, name string) Result
	LinkComplete(h Handle) ([]byte, Result) // a copy
	LinkDestroy(Handle) Result
}

// Log receives what the compiler in the driver has to say. It belongs to one
// load or link from the call that is given it until that is over, for a link
// until LinkDestroy.
type Log struct {
	Info, Error []byte // NUL-terminated
}

// NewLog returns a log with room for what matters of most messages.
func NewLog() *Log { return &Log{Info: make([]byte, 8<<10), Error: make([]byte, 16<<10)} }

// Text returns a C string.
func Text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
