package cudatest

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

func (d *Driver) lock() func() {
	d.mu.Lock()
	return d.mu.Unlock
}

// Init implements the interface.
func (d *Driver) Init() api.Result {
	defer d.lock()()
	if r := d.enter("cuInit"); r != api.Success {
		return r
	}
	if len(d.o.Devices) == 0 {
		return api.NoDevice
	}
	return api.Success
}

// DriverGetVersion implements the interface.
func (d *Driver) DriverGetVersion() (int32, api.Result) {
	defer d.lock()()
	return int32(d.o.Version), d.enter("cuDriverGetVersion")
}

// GetErrorName implements the interface.
func (d *Driver) GetErrorName(r api.Result) string { return api.Names[r] }

// GetErrorString implements the interface.
func (d *Driver) GetErrorString(r api.Result) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(api.Names[r], "CUDA_ERROR_"), "_", " "))
}

// DeviceGetCount implements the interface.
func (d *Driver) DeviceGetCount() (int32, api.Result) {
	defer d.lock()()
	return int32(len(d.o.Devices)), d.enter("cuDeviceGetCount")
}

// DeviceGet implements the interface. Numbers of devices are not their indices.
func (d *Driver) DeviceGet(ordinal int32) (int32, api.Result) {
	defer d.lock()()
	r := d.enter("cuDeviceGet")
	if r == api.Success && (ordinal < 0 || int(ordinal) >= len(d.o.Devices)) {
		r = api.InvalidDevice
	}
	return ordinal + 100, r
}

func (d *Driver) device(call string, dev int32) (*cuda.Info, api.Result) {
	if r := d.enter(call); r != api.Success {
		return nil, r
	}
	if i := int(dev - 100); i >= 0 && i < len(d.o.Devices) {
		return &d.o.Devices[i], api.Success
	}
	return nil, api.InvalidDevice
}

// DeviceGetName implements the interface.
func (d *Driver) DeviceGetName(dev int32) (string, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDeviceGetName", dev)
	if r != api.Success {
		return "", r
	}
	return i.Name, r
}

func identifier(text string) (u [16]byte) {
	_, text, _ = strings.Cut(text, "-")
	raw, _ := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	copy(u[:], raw)
	return u
}

// DeviceGetUuid implements the interface.
func (d *Driver) DeviceGetUuid(dev int32) ([16]byte, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDeviceGetUuid", dev)
	if r != api.Success {
		return [16]byte{}, r
	}
	u := identifier(i.UUID)
	if i.MIG {
		u[0] ^= 0xff // that of the GPU is another
	}
	return u, r
}

// DeviceGetUuidV2 implements the interface.
func (d *Driver) DeviceGetUuidV2(dev int32) ([16]byte, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDeviceGetUuid_v2", dev)
	if r != api.Success {
		return [16]byte{}, r
	}
	return identifier(i.UUID), r
}

// DeviceGetPCIBusID implements the interface.
func (d *Driver) DeviceGetPCIBusID(dev int32) (string, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDeviceGetPCIBusId", dev)
	if r != api.Success {
		return "", r
	}
	return strings.ToUpper(i.PCI), r
}

// DeviceTotalMem implements the interface.
func (d *Driver) DeviceTotalMem(dev int32) (uint64, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDeviceTotalMem", dev)
	if r != api.Success {
		return 0, r
	}
	return i.MemoryBytes, r
}

// DeviceGetAttribute implements the interface.
func (d *Driver) DeviceGetAttribute(a api.Attribute, dev int32) (int32, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDeviceGetAttribute", dev)
	if r != api.Success {
		return 0, r
	}
	bit := func(v bool) int {
		if v {
			return 1
		}
		return 0
	}
	v, ok := map[api.Attribute]int{
		api.ComputeMajor: i.Major, api.ComputeMinor: i.Minor, api.Multiprocessors: i.SMs, api.MaxThreadsPerSM: i.ThreadsPerSM,
		api.MaxSharedBytesPerBlock: i.SharedBytes, api.L2CacheBytes: i.L2Bytes, api.ClockRateKHz: i.ClockKHz, api.MemoryClockRateKHz: i.MemoryKHz,
		api.EccEnabled: bit(i.Ecc), api.ComputeModeOf: int(i.Mode), api.CooperativeLaunch: bit(i.Cooperative), api.CanMapHostMemory: bit(i.HostMemory),
		api.DirectRDMA: bit(i.DirectRDMA), api.DirectRDMAFlush: i.Flush, api.DirectRDMAOrdering: int(i.Ordering), api.DMABuf: bit(i.DMABuf),
	}[a]
	if !ok {
		return 0, api.InvalidValue
	}
	return int32(v), api.Success
}

// DevicePrimaryCtxSetFlags implements the interface. A primary context always maps host
// memory: a driver refuses the flag that would ask for it.
func (d *Driver) DevicePrimaryCtxSetFlags(dev int32, flags uint32) api.Result {
	defer d.lock()()
	_, r := d.device("cuDevicePrimaryCtxSetFlags", dev)
	if r == api.Success && flags&api.CtxMapHost != 0 {
		return api.InvalidValue
	}
	return r
}

// DevicePrimaryCtxRetain implements the interface.
func (d *Driver) DevicePrimaryCtxRetain(dev int32) (api.Handle, api.Result) {
	defer d.lock()()
	i, r := d.device("cuDevicePrimaryCtxRetain", dev)
	if r != api.Success {
		return 0, r
	}
	if i.Mode == cuda.ComputeProhibited {
		return 0, api.DeviceUnavailable
	}
	c := &d.devices[dev-100]
	if *c == nil {
		d.next += 0x100
		*c = &ctx{handle: api.Handle(d.next), local: stackBytes}
	}
	(*c).shares++
	return (*c).handle, r
}

// DevicePrimaryCtxRelease implements the interface.
func (d *Driver) DevicePrimaryCtxRelease(dev int32) api.Result {
	defer d.lock()()
	_, r := d.device("cuDevicePrimaryCtxRelease", dev)
	if r != api.Success {
		return r
	}
	c := d.devices[dev-100]
	if c == nil {
		return api.InvalidContext
	}
	if c.shares == 1 {
		d.wait("cuDevicePrimaryCtxRelease")
		d.devices[dev-100] = nil
	}
	c.shares--
	return r
}

func (d *Driver) context(h api.Handle) *ctx {
	for _, c := range d.devices {
		if c != nil && c.handle == h {
			return c
		}
	}
	return nil
}

// CtxSetCurrent implements the interface.
func (d *Driver) CtxSetCurrent(h api.Handle) api.Result {
	defer d.lock()()
	if r := d.enter("cuCtxSetCurrent"); r != api.Success {
		return r
	}
	c := d.context(h)
	if c == nil {
		return api.InvalidContext
	}
	stack := d.current[unix.Gettid()]
	if len(stack) == 0 {
		stack = append(stack, nil)
	}
	stack[len(stack)-1] = c
	d.current[unix.Gettid()] = stack
	return api.Success
}

// CtxPushCurrent implements the interface.
func (d *Driver) CtxPushCurrent(h api.Handle) api.Result {
	defer d.lock()()
	if r := d.enter("cuCtxPushCurrent"); r != api.Success {
		return r
	}
	c := d.context(h)
	if c == nil {
		return api.InvalidContext
	}
	d.current[unix.Gettid()] = append(d.current[unix.Gettid()], c)
	return api.Success
}

// CtxPopCurrent implements the interface.
func (d *Driver) CtxPopCurrent() (api.Handle, api.Result) {
	defer d.lock()()
	c, r := d.inside("cuCtxPopCurrent")
	if r != api.Success {
		return 0, r
	}
	stack := d.current[unix.Gettid()]
	d.current[unix.Gettid()] = stack[:len(stack)-1]
	return c.handle, r
}

// CtxGetLimit implements the interface.
func (d *Driver) CtxGetLimit(int32) (uint64, api.Result) {
	defer d.lock()()
	_, r := d.inside("cuCtxGetLimit")
	return stackBytes, r
}

// total returns the memory of a context's device.
func (d *Driver) total(c *ctx) uint64 { return d.o.Devices[slices.Index(d.devices, c)].MemoryBytes }

// MemGetInfo implements the interface.
func (d *Driver) MemGetInfo() (free, total uint64, r api.Result) {
	defer d.lock()()
	c, r := d.inside("cuMemGetInfo")
	if r != api.Success {
		return 0, 0, r
	}
	return d.total(c) - c.used, d.total(c), r
}

// MemAlloc implements the interface.
func (d *Driver) MemAlloc(n uint64) (uint64, api.Result) {
	defer d.lock()()
	c, r := d.inside("cuMemAlloc")
	if r != api.Success {
		return 0, r
	}
	if n > d.total(c)-c.used {
		return 0, api.OutOfMemory
	}
	d.next = (d.next + 0xffff) &^ 0xffff
	p := d.next
	d.next += n
	c.used += n
	d.mem[p] = &block{ctx: c, b: bytes.Repeat([]byte{0xa5}, int(n))} // not what anybody relies on
	return p, r
}

// MemFree implements the interface.
func (d *Driver) MemFree(p uint64) api.Result {
	defer d.lock()()
	c, r := d.inside("cuMemFree")
	if r != api.Success {
		return r
	}
	d.wait("cuMemFree")
	b := d.mem[p]
	if b == nil || b.host {
		return api.InvalidValue
	}
	c.used -= uint64(len(b.b))
	delete(d.mem, p)
	return r
}

// MemHostAlloc implements the interface.
func (d *Driver) MemHostAlloc(n uint64, _ uint32) (unsafe.Pointer, api.Result) {
	defer d.lock()()
	c, r := d.inside("cuMemHostAlloc")
	if r != api.Success {
		return nil, r
	}
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, api.OutOfMemory
	}
	mem[0] = 0xa5 // not what anybody relies on
	p := unsafe.Pointer(&mem[0])
	d.mem[uint64(uintptr(p))] = &block{ctx: c, b: mem, host: true}
	return p, r
}

// MemFreeHost implements the interface.
func (d *Driver) MemFreeHost(p unsafe.Pointer) api.Result {
	defer d.lock()()
	if _, r := d.inside("cuMemFreeHost"); r != api.Success {
		return r
	}
	d.wait("cuMemFreeHost")
	b := d.mem[uint64(uintptr(p))]
	if b == nil || !b.host {
		return api.InvalidValue
	}
	delete(d.mem, uint64(uintptr(p)))
	if unix.Munmap(b.b) != nil {
		return api.OperatingSystem
	}
	return api.Success
}

// MemHostGetDevicePointer implements the interface.
func (d *Driver) MemHostGetDevicePointer(p unsafe.Pointer) (uint64, api.Result) {
	defer d.lock()()
	_, r := d.inside("cuMemHostGetDevicePointer")
	return uint64(uintptr(p)), r
}

// MemGetHandleForAddressRange implements the interface.
func (d *Driver) MemGetHandleForAddressRange(p, n uint64) (int32, api.Result) {
	defer d.lock()()
	if _, r := d.inside("cuMemGetHandleForAddressRange"); r != api.Success {
		return -1, r
	}
	if b := d.mem[p]; b == nil || b.host || n > uint64(len(b.b)) {
		return -1, api.InvalidValue
	}
	fd, err := unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, api.OperatingSystem
	}
	return int32(fd), api.Success
}

// queue is what a copy or a fill does.
func (d *Driver) queue(call string, h api.Handle, p, n uint64, f func(mem []byte)) api.Result {
	defer d.lock()()
	if _, r := d.inside(call); r != api.Success {
		return r
	}
	s, ok := object[*stream](d, h)
	if !ok {
		return api.InvalidHandle
	}
	d.enqueue(s, func() api.Result {
		mem := d.memory(p, n)
		if mem == nil {
			return api.IllegalAddress
		}
		f(mem)
		return api.Success
	})
	return api.Success
}

// MemsetD8Async implements the interface.
func (d *Driver) MemsetD8Async(p uint64, v byte, n uint64, h api.Handle) api.Result {
	return d.queue("cuMemsetD8Async", h, p, n, func(mem []byte) {
		for i := range mem {
			mem[i] = v
		}
	})
}

// MemcpyHtoDAsync implements the interface.
func (d *Driver) MemcpyHtoDAsync(dst uint64, src unsafe.Pointer, n uint64, h api.Handle) api.Result {
	return d.queue("cuMemcpyHtoDAsync", h, dst, n, func(mem []byte) { copy(mem, unsafe.Slice((*byte)(src), n)) })
}

// MemcpyDtoHAsync implements the interface.
func (d *Driver) MemcpyDtoHAsync(dst unsafe.Pointer, src, n uint64, h api.Handle) api.Result {
	return d.queue("cuMemcpyDtoHAsync", h, src, n, func(mem []byte) { copy(unsafe.Slice((*byte)(dst), n), mem) })
}

// Memcpy2DAsync implements the interface.
func (d *Driver) Memcpy2DAsync(r *api.Rows, h api.Handle) api.Result {
	rows := *r
	if rows.SrcPitch < rows.Width || rows.DstPitch < rows.Width {
		return api.InvalidValue
	}
	return d.queue("cuMemcpy2DAsync", h, rows.Dst, (rows.Count-1)*rows.DstPitch+rows.Width, func(mem []byte) {
		for i := range rows.Count {
			copy(mem[i*rows.DstPitch:][:rows.Width], unsafe.Slice((*byte)(unsafe.Add(rows.Src, i*rows.SrcPitch)), rows.Width))
		}
	})
}

// StreamCreate implements the interface.
func (d *Driver) StreamCreate(uint32) (api.Handle, api.Result) {
	defer d.lock()()
	c, r := d.inside("cuStreamCreate")
	if r != api.Success {
		return 0, r
	}
	return d.handle(&stream{ctx: c}), r
}

// StreamDestroy implements the interface.
func (d *Driver) StreamDestroy(h api.Handle) api.Result {
	defer d.lock()()
	return destroy[*stream](d, "cuStreamDestroy", h)
}

// destroy forgets a thing.
func destroy[T any](d *Driver, call string, h api.Handle) api.Result {
	if _, r := d.inside(call); r != api.Success {
		return r
	}
	if _, ok := object[T](d, h); !ok {
		return api.InvalidHandle
	}
	delete(d.objects, h)
	return api.Success
}

// StreamQuery implements the interface.
func (d *Driver) StreamQuery(h api.Handle) api.Result {
	defer d.lock()()
	if _, r := d.inside("cuStreamQuery"); r != api.Success {
		return r
	}
	s, ok := object[*stream](d, h)
	switch {
	case !ok:
		return api.InvalidHandle
	case !closed(s.tail):
		return api.NotReady
	}
	return api.Success
}

// StreamSynchronize implements the interface.
func (d *Driver) StreamSynchronize(h api.Handle) api.Result {
	unlock := d.lock()
	c, r := d.inside("cuStreamSynchronize")
	s, ok := object[*stream](d, h)
	if r == api.Success && !ok {
		r = api.InvalidHandle
	}
	unlock()
	if r != api.Success {
		return r
	}
	if s.tail != nil {
		<-s.tail
	}
	defer d.lock()()
	return c.poisoned
}

// EventCreate implements the interface.
func (d *Driver) EventCreate(flags uint32) (api.Handle, api.Result) {
	defer d.lock()()
	if _, r := d.inside("cuEventCreate"); r != api.Success {
		return 0, r
	}
	return d.handle(&event{noTime: flags&api.EventNoTiming != 0}), api.Success
}

// EventDestroy implements the interface.
func (d *Driver) EventDestroy(h api.Handle) api.Result {
	defer d.lock()()
	return destroy[*event](d, "cuEventDestroy", h)
}

// EventRecord implements the interface.
func (d *Driver) EventRecord(he, hs api.Handle) api.Result {
	defer d.lock()()
	if _, r := d.inside("cuEventRecord"); r != api.Success {
		return r
	}
	e, ok := object[*event](d, he)
	s, isStream := object[*stream](d, hs)
	if !ok || !isStream {
		return api.InvalidHandle
	}
	done, at := make(chan struct{}), new(time.Time)
	e.done, e.at = done, at
	d.enqueue(s, func() api.Result {
		*at = time.Now()
		close(done)
		return api.Success
	})
	return api.Success
}

func (d *Driver) event(call string, h api.Handle) (*event, *ctx, api.Result) {
	defer d.lock()()
	c, r := d.inside(call)
	if r != api.Success {
		return nil, nil, r
	}
	e, ok := object[*event](d, h)
	if !ok {
		return nil, nil, api.InvalidHandle
	}
	return e, c, r
}

// EventQuery implements the interface.
func (d *Driver) EventQuery(h api.Handle) api.Result {
	e, _, r := d.event("cuEventQuery", h)
	if r == api.Success && !closed(e.done) {
		r = api.NotReady
	}
	return r
}

// EventSynchronize implements the interface.
func (d *Driver) EventSynchronize(h api.Handle) api.Result {
	e, c, r := d.event("cuEventSynchronize", h)
	if r != api.Success {
		return r
	}
	if e.done != nil {
		<-e.done
	}
	defer d.lock()()
	return c.poisoned
}

// EventElapsedTime implements the interface.
func (d *Driver) EventElapsedTime(start, end api.Handle) (float32, api.Result) {
	a, _, r := d.event("cuEventElapsedTime", start)
	if r != api.Success {
		return 0, r
	}
	defer d.lock()()
	b, ok := object[*event](d, end)
	switch {
	case !ok || a.noTime || b.noTime || a.done == nil || b.done == nil:
		return 0, api.InvalidHandle
	case !closed(a.done) || !closed(b.done):
		return 0, api.NotReady
	}
	return float32(b.at.Sub(*a.at)) / 1e6, api.Success
}

// ModuleLoadDataEx implements the interface.
func (d *Driver) ModuleLoadDataEx(image []byte, log *api.Log) (api.Handle, api.Result) {
	defer d.lock()()
	if _, r := d.inside("cuModuleLoadDataEx"); r != api.Success {
		return 0, r
	}
	d.wait("cuModuleLoadDataEx")
	if r := compile(image, log); r != api.Success {
		return 0, r
	}
	return d.handle(&module{image: bytes.Clone(image)}), api.Success
}

// compile judges code. PTX must end in NUL.
func compile(image []byte, log *api.Log) api.Result {
	switch {
	case bytes.HasPrefix(image, []byte("\x7fELF")):
		return api.Success
	case !bytes.HasPrefix(image, []byte(".version")) || image[len(image)-1] != 0:
		return api.InvalidImage
	case bytes.Contains(image, []byte("nonsense")):
		copy(log.Error, BadPTXLog)
		return api.InvalidPTX
	}
	return api.Success
}

// ModuleUnload implements the interface.
func (d *Driver) ModuleUnload(h api.Handle) api.Result {
	defer d.lock()()
	r := destroy[*module](d, "cuModuleUnload", h)
	if r != api.Success {
		return r
	}
	d.wait("cuModuleUnload")
	for fh, o := range d.objects {
		if f, ok := o.(*function); ok && f.module == h {
			delete(d.objects, fh)
		}
	}
	return r
}

// ModuleGetFunction implements the interface.
func (d *Driver) ModuleGetFunction(h api.Handle, name string) (api.Handle, api.Result) {
	defer d.lock()()
	if _, r := d.inside("cuModuleGetFunction"); r != api.Success {
		return 0, r
	}
	m, ok := object[*module](d, h)
	if !ok {
		return 0, api.InvalidHandle
	}
	k, ok := d.o.Kernels[name]
	if !ok || !bytes.Contains(m.image, []byte(name)) {
		return 0, api.NotFound
	}
	return d.handle(&function{module: h, Kernel: k, name: name}), api.Success
}

func (d *Driver) function(call string, h api.Handle) (*function, api.Result) {
	if _, r := d.inside(call); r != api.Success {
		return nil, r
	}
	f, ok := object[*function](d, h)
	if !ok {
		return nil, api.InvalidHandle
	}
	return f, api.Success
}

// FuncLoad implements the interface.
func (d *Driver) FuncLoad(h api.Handle) api.Result {
	defer d.lock()()
	_, r := d.function("cuFuncLoad", h)
	if r == api.Success {
		d.wait("cuFuncLoad")
	}
	return r
}

// FuncGetAttribute implements the interface.
func (d *Driver) FuncGetAttribute(a api.FuncAttribute, h api.Handle) (int32, api.Result) {
	defer d.lock()()
	f, r := d.function("cuFuncGetAttribute", h)
	if r != api.Success {
		return 0, r
	}
	return map[api.FuncAttribute]int32{
		api.FuncRegisters: int32(f.Registers), api.FuncLocalBytes: int32(f.LocalBytes), api.FuncMaxThreads: 1024, api.FuncBinaryVersion: 90, api.FuncPTXVersion: 90,
	}[a], r
}

// FuncSetAttribute implements the interface.
func (d *Driver) FuncSetAttribute(h api.Handle, _ api.FuncAttribute, v int32) api.Result {
	defer d.lock()()
	_, r := d.function("cuFuncSetAttribute", h)
	if r == api.Success && (v < 0 || v > 227<<10) {
		r = api.InvalidValue
	}
	return r
}

// FuncGetParamInfo implements the interface.
func (d *Driver) FuncGetParamInfo(h api.Handle, i uint64) (offset, size uint64, r api.Result) {
	defer d.lock()()
	f, r := d.function("cuFuncGetParamInfo", h)
	if r == api.Success && i >= uint64(len(f.Params)) {
		r = api.InvalidValue
	}
	if r != api.Success {
		return 0, 0, r
	}
	return 0, uint64(f.Params[i]), r
}

// OccupancyMaxActiveBlocksPerMultiprocessor implements the interface.
func (d *Driver) OccupancyMaxActiveBlocksPerMultiprocessor(h api.Handle, _ int32, _ uint64) (int32, api.Result) {
	defer d.lock()()
	f, r := d.function("cuOccupancyMaxActiveBlocksPerMultiprocessor", h)
	if r != api.Success {
		return 0, r
	}
	return int32(max(f.BlocksPerSM, 1)), r
}

// LaunchKernel implements the interface.
func (d *Driver) LaunchKernel(h api.Handle, c *api.Config, args []unsafe.Pointer) api.Result {
	defer d.lock()()
	call := "cuLaunchKernel"
	if c.Cooperative || c.Cluster > 0 || c.MemSyncDomain > 0 {
		call = "cuLaunchKernelEx"
	}
	f, r := d.function(call, h)
	if r != api.Success {
		return r
	}
	s, ok := object[*stream](d, c.Stream)
	if !ok {
		return api.InvalidHandle
	}
	if len(args) != len(f.Params) || c.Block[0]*c.Block[1]*c.Block[2] > 1024 {
		return api.InvalidValue
	}
	blocks := int(c.Grid[0]) * int(c.Grid[1]) * int(c.Grid[2])
	if c.Cooperative && blocks > max(f.BlocksPerSM, 1)*d.o.Devices[slices.Index(d.devices, s.ctx)].SMs {
		return api.CooperativeLaunchTooLarge
	}
	if f.LocalBytes > s.ctx.local {
		d.wait(call)
		s.ctx.local = f.LocalBytes
	}
	d.launch(f, s, c, args)
	return api.Success
}

// LinkCreate implements the interface.
func (d *Driver) LinkCreate(log *api.Log) (api.Handle, api.Result) {
	defer d.lock()()
	if _, r := d.inside("cuLinkCreate"); r != api.Success {
		return 0, r
	}
	return d.handle(&link{log: log}), api.Success
}

// LinkAddData implements the interface.
func (d *Driver) LinkAddData(h api.Handle, _ api.InputType, data []byte, _ string) api.Result {
	defer d.lock()()
	if _, r := d.inside("cuLinkAddData"); r != api.Success {
		return r
	}
	l, ok := object[*link](d, h)
	if !ok {
		return api.InvalidHandle
	}
	l.out = append(l.out, data...)
	return compile(data, l.log)
}

// LinkComplete implements the interface.
func (d *Driver) LinkComplete(h api.Handle) ([]byte, api.Result) {
	defer d.lock()()
	if _, r := d.inside("cuLinkComplete"); r != api.Success {
		return nil, r
	}
	l, ok := object[*link](d, h)
	if !ok {
		return nil, api.InvalidHandle
	}
	return append([]byte("\x7fELF"), l.out...), api.Success
}

// LinkDestroy implements the interface.
func (d *Driver) LinkDestroy(h api.Handle) api.Result {
	defer d.lock()()
	return destroy[*link](d, "cuLinkDestroy", h)
}
