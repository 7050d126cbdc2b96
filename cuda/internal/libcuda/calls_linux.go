//go:build linux && (amd64 || arm64)

package libcuda

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// driver implements api.Driver. Safe for concurrent use.
type driver struct {
	fn [functions]uintptr

	mu   sync.Mutex
	pins map[api.Handle]*pinned // logs of links that are not destroyed
}

// call passes what the arguments point to as it is: purego's pragma keeps it
// where it is only in the very call that converts it, so that every method below
// converts in its call of call, which has the pragma as well.
//
//go:uintptrescapes
func (d *driver) call(f fn, args ...uintptr) api.Result {
	if d.fn[f] == 0 {
		return api.NotSupported
	}
	r, _, _ := purego.SyscallN(d.fn[f], args...)
	return api.Result(int32(r))
}

// goString copies a C string of the library.
func goString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

func (d *driver) Init() api.Result { return d.call(cuInit, 0) }

func (d *driver) DriverGetVersion() (int32, api.Result) {
	var v int32
	r := d.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&v)))
	return v, r
}

func (d *driver) GetErrorName(code api.Result) string {
	var p *byte
	if d.call(cuGetErrorName, uintptr(code), uintptr(unsafe.Pointer(&p))) != api.Success {
		return ""
	}
	return goString(p)
}

func (d *driver) GetErrorString(code api.Result) string {
	var p *byte
	if d.call(cuGetErrorString, uintptr(code), uintptr(unsafe.Pointer(&p))) != api.Success {
		return ""
	}
	return goString(p)
}

func (d *driver) DeviceGetCount() (int32, api.Result) {
	var n int32
	r := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n)))
	return n, r
}

func (d *driver) DeviceGet(ordinal int32) (int32, api.Result) {
	var dev int32
	r := d.call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return dev, r
}

func (d *driver) DeviceGetName(dev int32) (string, api.Result) {
	buf := new([256]byte)
	r := d.call(cuDeviceGetName, uintptr(unsafe.Pointer(buf)), uintptr(len(buf)), uintptr(dev))
	return api.Text(buf[:]), r
}

func (d *driver) DeviceGetUuid(dev int32) ([16]byte, api.Result) {
	u := new([16]byte)
	r := d.call(cuDeviceGetUuid, uintptr(unsafe.Pointer(u)), uintptr(dev))
	return *u, r
}

func (d *driver) DeviceGetUuidV2(dev int32) ([16]byte, api.Result) {
	u := new([16]byte)
	r := d.call(cuDeviceGetUuidV2, uintptr(unsafe.Pointer(u)), uintptr(dev))
	return *u, r
}

func (d *driver) DeviceGetPCIBusID(dev int32) (string, api.Result) {
	buf := new([32]byte)
	r := d.call(cuDeviceGetPCIBusID, uintptr(unsafe.Pointer(buf)), uintptr(len(buf)), uintptr(dev))
	return api.Text(buf[:]), r
}

func (d *driver) DeviceTotalMem(dev int32) (uint64, api.Result) {
	var n uint64
	r := d.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(dev))
	return n, r
}

func (d *driver) DeviceGetAttribute(a api.Attribute, dev int32) (int32, api.Result) {
	var v int32
	r := d.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev))
	return v, r
}

func (d *driver) DevicePrimaryCtxSetFlags(dev int32, flags uint32) api.Result {
	return d.call(cuDevicePrimaryCtxSetFlags, uintptr(dev), uintptr(flags))
}

func (d *driver) DevicePrimaryCtxRetain(dev int32) (api.Handle, api.Result) {
	var h api.Handle
	r := d.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&h)), uintptr(dev))
	return h, r
}

func (d *driver) DevicePrimaryCtxRelease(dev int32) api.Result {
	return d.call(cuDevicePrimaryCtxRelease, uintptr(dev))
}

func (d *driver) CtxSetCurrent(h api.Handle) api.Result { return d.call(cuCtxSetCurrent, uintptr(h)) }

func (d *driver) CtxPushCurrent(h api.Handle) api.Result { return d.call(cuCtxPushCurrent, uintptr(h)) }

func (d *driver) CtxPopCurrent() (api.Handle, api.Result) {
	var h api.Handle
	r := d.call(cuCtxPopCurrent, uintptr(unsafe.Pointer(&h)))
	return h, r
}

func (d *driver) CtxGetLimit(limit int32) (uint64, api.Result) {
	var n uint64
	r := d.call(cuCtxGetLimit, uintptr(unsafe.Pointer(&n)), uintptr(limit))
	return n, r
}

func (d *driver) MemGetInfo() (free, total uint64, r api.Result) {
	v := new([2]uint64)
	r = d.call(cuMemGetInfo, uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1])))
	return v[0], v[1], r
}

func (d *driver) MemAlloc(n uint64) (uint64, api.Result) {
	var p uint64
	r := d.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, r
}

func (d *driver) MemFree(p uint64) api.Result { return d.call(cuMemFree, uintptr(p)) }

func (d *driver) MemHostAlloc(n uint64, flags uint32) (unsafe.Pointer, api.Result) {
	var p unsafe.Pointer
	r := d.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), uintptr(flags))
	return p, r
}

func (d *driver) MemFreeHost(p unsafe.Pointer) api.Result { return d.call(cuMemFreeHost, uintptr(p)) }

func (d *driver) MemHostGetDevicePointer(p unsafe.Pointer) (uint64, api.Result) {
	var dp uint64
	r := d.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&dp)), uintptr(p), 0)
	return dp, r
}

func (d *driver) MemGetHandleForAddressRange(p, n uint64) (int32, api.Result) {
	fd := int32(-1)
	r := d.call(cuMemGetHandleForAddressRange, uintptr(unsafe.Pointer(&fd)), uintptr(p), uintptr(n), api.HandleDMABuf, 0)
	return fd, r
}

func (d *driver) MemsetD8Async(p uint64, v byte, n uint64, stream api.Handle) api.Result {
	return d.call(cuMemsetD8Async, uintptr(p), uintptr(v), uintptr(n), uintptr(stream))
}

func (d *driver) MemcpyHtoDAsync(dst uint64, src unsafe.Pointer, n uint64, stream api.Handle) api.Result {
	return d.call(cuMemcpyHtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(stream))
}

func (d *driver) MemcpyDtoHAsync(dst unsafe.Pointer, src, n uint64, stream api.Handle) api.Result {
	return d.call(cuMemcpyDtoHAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(stream))
}

// Kinds of memory: CUmemorytype.
const (
	memoryHost   = 1
	memoryDevice = 2
)

// copy2D is CUDA_MEMCPY2D.
type copy2D struct {
	srcX, srcY uintptr
	srcType    uint32
	_          uint32
	srcHost    unsafe.Pointer
	srcDevice  uint64
	srcArray   uintptr
	srcPitch   uintptr
	dstX, dstY uintptr
	dstType    uint32
	_          uint32
	dstHost    unsafe.Pointer
	dstDevice  uint64
	dstArray   uintptr
	dstPitch   uintptr
	width      uintptr
	height     uintptr
}

func (d *driver) Memcpy2DAsync(r *api.Rows, stream api.Handle) api.Result {
	c := &copy2D{
		srcType: memoryHost, srcHost: r.Src, srcPitch: uintptr(r.SrcPitch),
		dstType: memoryDevice, dstDevice: r.Dst, dstPitch: uintptr(r.DstPitch),
		width: uintptr(r.Width), height: uintptr(r.Count),
	}
	return d.call(cuMemcpy2DAsync, uintptr(unsafe.Pointer(c)), uintptr(stream))
}

func (d *driver) StreamCreate(flags uint32) (api.Handle, api.Result) {
	var h api.Handle
	r := d.call(cuStreamCreate, uintptr(unsafe.Pointer(&h)), uintptr(flags))
	return h, r
}

func (d *driver) StreamDestroy(h api.Handle) api.Result { return d.call(cuStreamDestroy, uintptr(h)) }

func (d *driver) StreamQuery(h api.Handle) api.Result { return d.call(cuStreamQuery, uintptr(h)) }

func (d *driver) StreamSynchronize(h api.Handle) api.Result {
	return d.call(cuStreamSynchronize, uintptr(h))
}

func (d *driver) EventCreate(flags uint32) (api.Handle, api.Result) {
	var h api.Handle
	r := d.call(cuEventCreate, uintptr(unsafe.Pointer(&h)), uintptr(flags))
	return h, r
}

func (d *driver) EventDestroy(h api.Handle) api.Result { return d.call(cuEventDestroy, uintptr(h)) }

func (d *driver) EventRecord(event, stream api.Handle) api.Result {
	return d.call(cuEventRecord, uintptr(event), uintptr(stream))
}

func (d *driver) EventQuery(h api.Handle) api.Result { return d.call(cuEventQuery, uintptr(h)) }

func (d *driver) EventSynchronize(h api.Handle) api.Result {
	return d.call(cuEventSynchronize, uintptr(h))
}

func (d *driver) EventElapsedTime(start, end api.Handle) (float32, api.Result) {
	var ms float32
	r := d.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), uintptr(start), uintptr(end))
	return ms, r
}

// Options of the compiler: CUjit_option.
const (
	jitInfoLog      = 3
	jitInfoLogSize  = 4
	jitErrorLog     = 5
	jitErrorLogSize = 6
	jitLogVerbose   = 12
	jitOptions      = 5
)

// options are the arrays that a load or a link is given. A size lies where a
// pointer would, and the driver writes the size used there.
type options struct {
	names  [jitOptions]int32
	values [jitOptions]uintptr
}

// pinned is what the driver may touch until a link is destroyed.
type pinned struct {
	pin runtime.Pinner
	opt *options
}

func pinLog(log *api.Log) *pinned {
	p := &pinned{opt: new(options)}
	p.pin.Pin(p.opt)
	p.pin.Pin(&log.Info[0])
	p.pin.Pin(&log.Error[0])
	p.opt.names = [jitOptions]int32{jitInfoLog, jitInfoLogSize, jitErrorLog, jitErrorLogSize, jitLogVerbose}
	p.opt.values = [jitOptions]uintptr{
		uintptr(unsafe.Pointer(&log.Info[0])), uintptr(len(log.Info)),
		uintptr(unsafe.Pointer(&log.Error[0])), uintptr(len(log.Error)), 1,
	}
	return p
}

func (d *driver) ModuleLoadDataEx(image []byte, log *api.Log) (api.Handle, api.Result) {
	if len(image) == 0 {
		return 0, api.InvalidValue
	}
	p := pinLog(log)
	defer p.pin.Unpin()
	var h api.Handle
	r := d.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&image[0])), jitOptions,
		uintptr(unsafe.Pointer(&p.opt.names)), uintptr(unsafe.Pointer(&p.opt.values)))
	return h, r
}

func (d *driver) ModuleUnload(h api.Handle) api.Result { return d.call(cuModuleUnload, uintptr(h)) }

func (d *driver) ModuleGetFunction(module api.Handle, name string) (api.Handle, api.Result) {
	var h api.Handle
	c := append([]byte(name), 0)
	r := d.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&h)), uintptr(module), uintptr(unsafe.Pointer(&c[0])))
	return h, r
}

func (d *driver) FuncLoad(h api.Handle) api.Result { return d.call(cuFuncLoad, uintptr(h)) }

func (d *driver) FuncGetAttribute(a api.FuncAttribute, f api.Handle) (int32, api.Result) {
	var v int32
	r := d.call(cuFuncGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(f))
	return v, r
}

func (d *driver) FuncSetAttribute(f api.Handle, a api.FuncAttribute, v int32) api.Result {
	return d.call(cuFuncSetAttribute, uintptr(f), uintptr(a), uintptr(v))
}

func (d *driver) FuncGetParamInfo(f api.Handle, i uint64) (offset, size uint64, r api.Result) {
	v := new([2]uint64)
	r = d.call(cuFuncGetParamInfo, uintptr(f), uintptr(i), uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1])))
	return v[0], v[1], r
}

func (d *driver) OccupancyMaxActiveBlocksPerMultiprocessor(f api.Handle, threads int32, shared uint64) (int32, api.Result) {
	var n int32
	r := d.call(cuOccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(&n)), uintptr(f), uintptr(threads), uintptr(shared))
	return n, r
}

// Attributes of a launch: CUlaunchAttributeID.
const (
	launchCooperative   = 2
	launchCluster       = 4
	launchMemSyncDomain = 10
)

// launchAttribute is CUlaunchAttribute: an id, and a union of 64 bytes.
type launchAttribute struct {
	id    uint32
	_     uint32
	value [16]uint32
}

// launchConfig is CUlaunchConfig.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	_           uint32
	stream      uintptr
	attrs       *launchAttribute
	count       uint32
	_           uint32
}

func (d *driver) LaunchKernel(f api.Handle, c *api.Config, args []unsafe.Pointer) api.Result {
	var pin runtime.Pinner
	defer pin.Unpin()
	for _, a := range args {
		pin.Pin(a)
	}
	params := make([]unsafe.Pointer, max(len(args), 1))
	copy(params, args)

	attrs := new([3]launchAttribute)
	n := 0
	add := func(id uint32, v ...uint32) {
		attrs[n].id = id
		copy(attrs[n].value[:], v)
		n++
	}
	if c.Cooperative {
		add(launchCooperative, 1)
	}
	if c.Cluster > 0 {
		add(launchCluster, c.Cluster, 1, 1)
	}
	if c.MemSyncDomain > 0 {
		add(launchMemSyncDomain, c.MemSyncDomain)
	}
	if n == 0 {
		return d.call(cuLaunchKernel, uintptr(f), uintptr(c.Grid[0]), uintptr(c.Grid[1]), uintptr(c.Grid[2]),
			uintptr(c.Block[0]), uintptr(c.Block[1]), uintptr(c.Block[2]), uintptr(c.SharedBytes), uintptr(c.Stream),
			uintptr(unsafe.Pointer(&params[0])), 0)
	}
	pin.Pin(attrs)
	conf := &launchConfig{grid: c.Grid, block: c.Block, shared: c.SharedBytes, stream: uintptr(c.Stream), attrs: &attrs[0], count: uint32(n)}
	return d.call(cuLaunchKernelEx, uintptr(unsafe.Pointer(conf)), uintptr(f), uintptr(unsafe.Pointer(&params[0])), 0)
}

func (d *driver) LinkCreate(log *api.Log) (api.Handle, api.Result) {
	p := pinLog(log)
	var h api.Handle
	r := d.call(cuLinkCreate, jitOptions, uintptr(unsafe.Pointer(&p.opt.names)), uintptr(unsafe.Pointer(&p.opt.values)), uintptr(unsafe.Pointer(&h)))
	if r != api.Success {
		p.pin.Unpin()
		return 0, r
	}
	d.mu.Lock()
	d.pins[h] = p
	d.mu.Unlock()
	return h, r
}

func (d *driver) LinkAddData(h api.Handle, t api.InputType, data []byte, name string) api.Result {
	if len(data) == 0 {
		return api.InvalidValue
	}
	c := append([]byte(name), 0)
	return d.call(cuLinkAddData, uintptr(h), uintptr(t), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(unsafe.Pointer(&c[0])), 0, 0, 0)
}

func (d *driver) LinkComplete(h api.Handle) ([]byte, api.Result) {
	var p *byte
	var n uint64
	r := d.call(cuLinkComplete, uintptr(h), uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(&n)))
	if r != api.Success || p == nil {
		return nil, r
	}
	return append([]byte(nil), unsafe.Slice(p, n)...), r
}

func (d *driver) LinkDestroy(h api.Handle) api.Result {
	r := d.call(cuLinkDestroy, uintptr(h))
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pins[h]; p != nil {
		p.pin.Unpin()
		delete(d.pins, h)
	}
	return r
}
