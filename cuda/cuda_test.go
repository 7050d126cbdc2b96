package cuda_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
)

const limit = 10 * time.Second

// params is what the kernels of these tests are given.
type params struct {
	Control uint64 // address of a word
	N       uint32
	_       uint32
}

// kernels are: spin, which runs until the word is not 0; add, which adds N to it;
// deep, which needs much local memory; crash, which fails when the word is not 0.
func kernels() map[string]cudatest.Kernel {
	const size = int(unsafe.Sizeof(params{}))
	word := func(c *cudatest.Call) *atomic.Uint32 {
		p := cuda.DevicePtr(binary.LittleEndian.Uint64(c.Args[0]))
		return (*atomic.Uint32)(unsafe.Pointer(&c.Memory(p, 4)[0]))
	}
	add := func(c *cudatest.Call) cuda.Result {
		word(c).Add(binary.LittleEndian.Uint32(c.Args[0][8:]))
		return 0
	}
	return map[string]cudatest.Kernel{
		"spin": {Params: []int{size}, Registers: 64, BlocksPerSM: 4, Run: func(c *cudatest.Call) cuda.Result {
			for w := word(c); w.Load() == 0; {
				time.Sleep(50 * time.Microsecond)
			}
			return 0
		}},
		"add":  {Params: []int{size}, Run: add},
		"deep": {Params: []int{size}, LocalBytes: 8 << 10, Run: add},
		"crash": {Params: []int{size}, Run: func(c *cudatest.Call) cuda.Result {
			for w := word(c); w.Load() == 0; {
				time.Sleep(50 * time.Microsecond)
			}
			return cuda.IllegalAddress
		}},
	}
}

var image = cudatest.Module("spin", "add", "deep", "crash")

func fake(o cudatest.Options) *cudatest.Driver {
	if o.Devices == nil {
		o.Devices = []cuda.Info{cudatest.H200()}
	}
	o.Kernels = kernels()
	return cudatest.New(o)
}

func retain(t *testing.T, d *cudatest.Driver) *cuda.Context {
	t.Helper()
	drv, err := d.Open()
	require.NoError(t, err)
	dev, err := drv.Device(0)
	require.NoError(t, err)
	c, err := dev.Retain()
	require.NoError(t, err)
	return c
}

func function(t *testing.T, c *cuda.Context, name string) *cuda.Function {
	t.Helper()
	m, err := c.Load(image)
	require.NoError(t, err)
	f, err := m.Function(name)
	require.NoError(t, err)
	return f
}

// persistent is a kernel that runs until stop.
type persistent struct {
	s    *cuda.Stream
	word *cuda.HostBuffer
}

func start(t *testing.T, c *cuda.Context, f *cuda.Function) *persistent {
	t.Helper()
	s, err := c.NewStream()
	require.NoError(t, err)
	b, err := c.HostAlloc(4)
	require.NoError(t, err)
	require.NoError(t, s.Launch(f, cuda.Launch{Persistent: true, Cooperative: true}, cuda.Value(&params{Control: uint64(b.Device)})))
	return &persistent{s, b}
}

func (p *persistent) tell() { (*atomic.Uint32)(unsafe.Pointer(&p.word.Bytes[0])).Store(1) }

func (p *persistent) stop(t *testing.T) {
	t.Helper()
	p.tell()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	require.NoError(t, p.s.Wait(ctx))
}

// everything uses each call of the package, gives all back, and returns the first
// error. What fails to be given back is tried again.
func everything(d *cudatest.Driver) (err error) {
	first := func(e error) {
		if err == nil {
			err = e
		}
	}
	undo := func(f func() error) {
		if e := f(); e != nil {
			first(e)
			first(f())
		}
	}
	drv, err := d.Open()
	if err != nil {
		return err
	}
	devices, err := drv.Devices()
	if err != nil {
		return err
	}
	if _, err := devices[0].Info(); err != nil {
		return err
	}
	c, err := devices[0].Retain()
	if err != nil {
		return err
	}
	defer undo(c.Close)
	if err := c.Do(func() error { return nil }); err != nil {
		return err
	}
	if _, _, err := c.MemInfo(); err != nil {
		return err
	}
	p, err := c.Alloc(1 << 16)
	if err != nil {
		return err
	}
	defer undo(func() error { return c.Free(p) })
	b, err := c.HostAlloc(4096)
	if err != nil {
		return err
	}
	defer undo(b.Free)
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	defer undo(s.Close)
	cubin, err := c.Link(cuda.Input{Name: "add", PTX: []byte(".version 8.0 add")}, cuda.Input{Name: "spin", Code: cudatest.Module("spin")})
	if err != nil {
		return err
	}
	m, err := c.Load(cubin)
	if err != nil {
		return err
	}
	defer undo(m.Unload)
	spin, err := m.Function("spin")
	if err != nil {
		return err
	}
	add, err := m.Function("add")
	if err != nil {
		return err
	}
	if err := spin.SetShared(64 << 10); err != nil {
		return err
	}
	if _, err := spin.BlocksPerSM(128, 0); err != nil {
		return err
	}
	e1, err := c.NewEvent()
	if err != nil {
		return err
	}
	defer undo(e1.Close)
	e2, err := c.NewEvent()
	if err != nil {
		return err
	}
	defer undo(e2.Close)
	word := (*atomic.Uint32)(unsafe.Pointer(&b.Bytes[0]))
	// Whatever goes wrong, nobody frees what a stream still uses.
	defer undo(s.Synchronize)
	defer word.Store(1)
	arg := cuda.Value(&params{Control: uint64(b.Device), N: 5})
	for _, f := range []func() error{
		func() error { return s.Record(e1) },
		func() error { return s.Launch(spin, cuda.Launch{Persistent: true, Cooperative: true}, arg) },
		func() error { return s.Fill(p, 1, 16) },
		func() error { return s.CopyToDevice(p, b, 0, 16) },
		func() error { return s.CopyFromDevice(b, 64, p, 16) },
		func() error {
			return s.CopyRowsToDevice(cuda.Rows{Dst: p, DstPitch: 64, SrcPitch: 32, Width: 16, Count: 3}, b, 0)
		},
		func() error { return s.Record(e2) },
		func() error { _, err := e2.Done(); return err },
		func() error { word.Store(1); return e2.Synchronize() },
		func() error { return s.Wait(context.Background()) },
		func() error { _, err := e2.Since(e1); return err },
		func() error { return s.Launch(add, cuda.Launch{}, arg) },
		func() error { return s.Synchronize() },
		func() error { return c.Fill(p, 0, 4096) },
		func() error { return c.CopyToDevice(p, []byte("payload")) },
		func() error { return c.CopyFromDevice(make([]byte, 7), p) },
		func() error { return c.CopyAllFromDevice([]cuda.Piece{{To: make([]byte, 7), From: p}}) },
		func() error {
			f, err := c.DMABuf(p, 1<<16)
			if err != nil {
				return err
			}
			return f.Close()
		},
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return err
}

// apiCalls are all functions that the package may call.
var apiCalls = []string{
	"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetUuid_v2",
	"cuDeviceGetPCIBusId", "cuDeviceTotalMem", "cuDeviceGetAttribute", "cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxRetain",
	"cuDevicePrimaryCtxRelease", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetLimit", "cuMemGetInfo", "cuMemAlloc",
	"cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostGetDevicePointer", "cuMemGetHandleForAddressRange", "cuMemsetD8Async",
	"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpy2DAsync", "cuStreamCreate", "cuStreamDestroy", "cuStreamQuery", "cuStreamSynchronize", "cuEventCreate",
	"cuEventDestroy", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime", "cuModuleLoadDataEx", "cuModuleUnload",
	"cuModuleGetFunction", "cuFuncLoad", "cuFuncGetAttribute", "cuFuncSetAttribute", "cuFuncGetParamInfo",
	"cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuLaunchKernel", "cuLaunchKernelEx", "cuLinkCreate", "cuLinkAddData", "cuLinkComplete",
	"cuLinkDestroy",
}

func TestEverythingIsGivenBack(t *testing.T) {
	d := fake(cudatest.Options{})
	require.NoError(t, everything(d))
	require.Empty(t, d.Leaks())
	require.Empty(t, d.Waited())
	require.ElementsMatch(t, apiCalls, d.Called(), "a call that no test makes")
	require.NoError(t, everything(d), "a second time")
	require.Empty(t, d.Leaks())
}

// TestEveryCallMayFail makes each call fail, the first time, the second and so on:
// the error names it, nothing leaks, nothing waits for a kernel.
func TestEveryCallMayFail(t *testing.T) {
	counts := fake(cudatest.Options{})
	require.NoError(t, everything(counts))
	for _, call := range apiCalls {
		for n := range counts.Calls(call) {
			if n > 0 && (call == "cuStreamQuery" || call == "cuEventQuery" || call == "cuCtxSetCurrent") && n >= 30 {
				break // as often as somebody polls
			}
			t.Run(fmt.Sprintf("%s %d", call, n), func(t *testing.T) {
				d := fake(cudatest.Options{})
				d.Fail(call, cuda.Unknown, n)
				err := everything(d)
				if err == nil && d.Calls(call) <= n {
					return // polled less often this time
				}
				require.ErrorIs(t, err, cuda.Unknown)
				var e *cuda.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, call, e.Call)
				require.Contains(t, err.Error(), call+": CUDA_ERROR_UNKNOWN (999): unknown")
				leaks := d.Leaks()
				if call == "cuCtxSetCurrent" || call == "cuLinkDestroy" || call == "cuEventDestroy" {
					// What the package has for itself, it tries to give back once.
					leaks = slices.DeleteFunc(leaks, func(l string) bool {
						return strings.HasPrefix(l, "*cudatest.link") || strings.HasPrefix(l, "*cudatest.event")
					})
				}
				require.Empty(t, leaks)
				require.Empty(t, d.Waited())
			})
		}
	}
}

func TestErrorHasTheDriversWords(t *testing.T) {
	small := cudatest.H200()
	small.MemoryBytes = 1 << 20
	d := fake(cudatest.Options{Devices: []cuda.Info{small}})
	c := retain(t, d)
	_, err := c.Alloc(2 << 20)
	require.EqualError(t, err, "2097152 bytes of device memory: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.NotErrorIs(t, err, cuda.NotPermitted)
	require.False(t, cuda.Poisoned(err))
	require.NoError(t, c.Close())
	require.Empty(t, d.Leaks())
}

func TestNoDeviceAndBrokenDrivers(t *testing.T) {
	_, err := cudatest.New(cudatest.Options{}).Open()
	require.ErrorIs(t, err, cuda.NoDevice)
	for _, r := range []cuda.Result{cuda.SystemDriverMismatch, cuda.SystemNotReady, cuda.StubLibrary, cuda.NotPermitted} {
		d := fake(cudatest.Options{})
		d.Fail("cuInit", r, 0)
		_, err := d.Open()
		require.ErrorIs(t, err, r)
	}
	drv, err := fake(cudatest.Options{}).Open()
	require.NoError(t, err)
	_, err = drv.Device(7)
	require.ErrorIs(t, err, cuda.InvalidDevice)
	_, err = drv.Device(-1)
	require.ErrorIs(t, err, cuda.InvalidDevice)
}

func TestExclusiveOrProhibitedDeviceIsNotRetained(t *testing.T) {
	i := cudatest.H200()
	i.Mode = cuda.ComputeProhibited
	d := fake(cudatest.Options{Devices: []cuda.Info{i}})
	drv, err := d.Open()
	require.NoError(t, err)
	dev, err := drv.Device(0)
	require.NoError(t, err)
	_, err = dev.Retain()
	require.ErrorIs(t, err, cuda.DeviceUnavailable)
	require.Empty(t, d.Leaks())
}

func TestInfo(t *testing.T) {
	mig := cudatest.H200()
	mig.MIG, mig.UUID, mig.Name, mig.Ordering = true, "MIG-ffeeddcc-bbaa-9988-7766-554433221100", "NVIDIA H200 MIG 1g.18gb", cuda.OrderingNone
	d := fake(cudatest.Options{Devices: []cuda.Info{cudatest.H200(), mig}})
	drv, err := d.Open()
	require.NoError(t, err)
	require.Equal(t, "13.0", drv.Version().String())
	list, err := drv.Devices()
	require.NoError(t, err)
	require.Len(t, list, 2)
	got, err := list[0].Info()
	require.NoError(t, err)
	require.Equal(t, cudatest.H200(), got)
	require.Equal(t, "9.0", got.Capability())
	got, err = list[1].Info()
	require.NoError(t, err)
	mig.Index = 1
	require.Equal(t, mig, got)
	require.Equal(t, "none owner all devices unknown (7)", fmt.Sprint(cuda.OrderingNone, " ", cuda.OrderingOwner, " ", cuda.OrderingAllDevices, " ", cuda.Ordering(7)))
	require.Equal(t, "default prohibited exclusive process unknown (9)", fmt.Sprint(cuda.ComputeDefault, " ", cuda.ComputeProhibited, " ", cuda.ComputeExclusiveProcess, " ", cuda.ComputeMode(9)))
}

func TestOldDriver(t *testing.T) {
	d := fake(cudatest.Options{Lacks: []string{"cuDeviceGetUuid_v2", "cuFuncLoad", "cuFuncGetParamInfo", "cuMemGetHandleForAddressRange"}})
	c := retain(t, d)
	i, err := c.Device().Info()
	require.NoError(t, err)
	require.Equal(t, cudatest.H200().UUID, i.UUID)
	f := function(t, c, "add")
	require.Equal(t, "add", f.Name())
	p, err := c.Alloc(4096)
	require.NoError(t, err)
	_, err = c.DMABuf(p, 4096)
	require.ErrorIs(t, err, cuda.NotSupported)
}

// TestPersistentKernel: what would wait for the kernel is refused, everything else
// works, and after its end all does.
func TestPersistentKernel(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	m, err := c.Load(image)
	require.NoError(t, err)
	spin, err := m.Function("spin")
	require.NoError(t, err)
	add, err := m.Function("add")
	require.NoError(t, err)
	deep, err := m.Function("deep")
	require.NoError(t, err)
	old, err := c.Alloc(4096)
	require.NoError(t, err)
	oldHost, err := c.HostAlloc(4096)
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)

	run := start(t, c, spin)
	running, err := c.Running()
	require.NoError(t, err)
	require.True(t, running)
	done, err := run.s.Done()
	require.NoError(t, err)
	require.False(t, done)

	arg := cuda.Value(&params{Control: uint64(oldHost.Device), N: 3})
	blocking := map[string]func() error{
		"Load":            func() error { _, err := c.Load(image); return err },
		"Function":        func() error { _, err := m.Function("add"); return err },
		"Unload":          m.Unload,
		"Free":            func() error { return c.Free(old) },
		"HostBuffer.Free": oldHost.Free,
		"Close":           c.Close,
		"local memory":    func() error { return s.Launch(deep, cuda.Launch{}, arg) },
	}
	for name, f := range blocking {
		require.ErrorIs(t, f(), cuda.ErrBusy, name)
	}

	p, err := c.Alloc(1 << 20)
	require.NoError(t, err)
	b, err := c.HostAlloc(64)
	require.NoError(t, err)
	_, err = c.Link(cuda.Input{Name: "add", PTX: []byte(".version 8.0 add")})
	require.NoError(t, err)
	require.NoError(t, s.Launch(add, cuda.Launch{}, arg))
	require.NoError(t, s.Synchronize())
	require.EqualValues(t, 3, oldHost.Bytes[0])
	require.NoError(t, c.Fill(p, 7, 64))
	got := make([]byte, 64)
	require.NoError(t, c.CopyFromDevice(got, p))
	require.EqualValues(t, 7, got[63])
	pieces := make([]byte, 8)
	require.NoError(t, c.CopyAllFromDevice([]cuda.Piece{{To: pieces[:3], From: p}, {To: pieces[5:], From: p + 61}}))
	require.Equal(t, []byte{7, 7, 7, 0, 0, 7, 7, 7}, pieces)
	require.NoError(t, s.CopyFromDevice(b, 0, p, 64))
	require.NoError(t, s.Synchronize())
	require.Equal(t, got, b.Bytes)
	_, _, err = c.MemInfo()
	require.NoError(t, err)

	run.stop(t)
	running, err = c.Running()
	require.NoError(t, err)
	require.False(t, running)
	require.NoError(t, s.Launch(deep, cuda.Launch{}, arg))
	require.NoError(t, s.Synchronize())
	again := start(t, c, spin)
	require.NoError(t, s.Launch(deep, cuda.Launch{}, arg), "its local memory is there now")
	require.NoError(t, s.Synchronize())
	again.stop(t)
	for _, f := range []func() error{
		run.s.Close, again.s.Close, s.Close, run.word.Free, again.word.Free, b.Free, oldHost.Free, m.Unload,
		func() error { return c.Free(old) }, func() error { return c.Free(p) }, c.Close,
	} {
		require.NoError(t, f())
	}
	require.Empty(t, d.Leaks())
	require.Empty(t, d.Waited())
}

// TestFakeWaits shows that the refusals above are needed: the driver itself waits.
func TestFakeWaits(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	run := start(t, c, function(t, c, "spin"))
	p, err := c.Alloc(64)
	require.NoError(t, err)
	freed := make(chan error, 1)
	go func() {
		freed <- c.Do(func() error {
			if r := d.MemFree(uint64(p)); r != 0 {
				return r
			}
			return nil
		})
	}()
	require.Eventually(t, func() bool { return len(d.Waited()) == 1 }, limit, time.Millisecond)
	require.Empty(t, freed)
	run.stop(t)
	require.NoError(t, <-freed)
	require.Equal(t, []string{"cuMemFree"}, d.Waited())
}

func TestKernelThatFails(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	p, err := c.Alloc(64)
	require.NoError(t, err)
	run := start(t, c, function(t, c, "crash"))
	run.tell()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err = run.s.Wait(ctx)
	require.ErrorIs(t, err, cuda.IllegalAddress)
	require.True(t, cuda.Poisoned(err))
	running, err := c.Running()
	require.ErrorIs(t, err, cuda.IllegalAddress)
	require.False(t, running)
	err = c.Free(p)
	require.ErrorIs(t, err, cuda.IllegalAddress)
	require.NotErrorIs(t, err, cuda.ErrBusy)
	_, err = c.Alloc(64)
	require.ErrorIs(t, err, cuda.IllegalAddress)
	require.NoError(t, c.Close(), "the share is given back all the same")
}

func TestWaitEndsWithItsContext(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	run := start(t, c, function(t, c, "spin"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run.s.Wait(ctx), context.Canceled)
	run.stop(t)
}

// TestUnknownStateOfAKernelIsBusy: a query that fails for another reason than the
// kernel's does not let a call through that may never return.
func TestUnknownStateOfAKernelIsBusy(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	run := start(t, c, function(t, c, "spin"))
	p, err := c.Alloc(64)
	require.NoError(t, err)
	d.Fail("cuEventQuery", cuda.Unknown, 0)
	err = c.Free(p)
	require.ErrorIs(t, err, cuda.ErrBusy)
	require.ErrorIs(t, err, cuda.Unknown)
	run.stop(t)
	require.NoError(t, c.Free(p))
	require.Empty(t, d.Waited())
}

// TestKernelWithoutAMarkIsKnownByItsStream: the kernel runs, but the event after it
// could not be recorded.
func TestKernelWithoutAMarkIsKnownByItsStream(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	spin := function(t, c, "spin")
	s, err := c.NewStream()
	require.NoError(t, err)
	b, err := c.HostAlloc(4)
	require.NoError(t, err)
	d.Fail("cuEventRecord", cuda.Unknown, 0)
	require.ErrorIs(t, s.Launch(spin, cuda.Launch{Persistent: true}, cuda.Value(&params{Control: uint64(b.Device)})), cuda.Unknown)
	require.ErrorIs(t, b.Free(), cuda.ErrBusy)
	(&persistent{s, b}).stop(t)
	require.NoError(t, b.Free())
	require.Empty(t, d.Waited())
}

func TestStartTwiceStopTwice(t *testing.T) {
	d := fake(cudatest.Options{})
	a, b := retain(t, d), retain(t, d)
	m, err := a.Load(image)
	require.NoError(t, err)
	buf, err := a.HostAlloc(16)
	require.NoError(t, err)
	s, err := a.NewStream()
	require.NoError(t, err)
	e, err := a.NewEvent()
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, m.Unload())
		require.NoError(t, buf.Free())
		require.NoError(t, s.Close())
		require.NoError(t, e.Close())
	}
	require.Nil(t, buf.Bytes)
	_, err = m.Function("add")
	require.ErrorIs(t, err, cuda.ErrClosed)
	for range 2 {
		require.NoError(t, a.Close())
	}
	_, err = a.Alloc(1)
	require.ErrorIs(t, err, cuda.ErrClosed)
	require.ErrorIs(t, a.Do(func() error { return nil }), cuda.ErrClosed)
	_, err = b.Alloc(16)
	require.NoError(t, err, "the other share is still there")
	require.NoError(t, b.Close())
	require.Len(t, d.Leaks(), 1)
}

// TestRowsAreCopied: each to its place, and nothing between them.
func TestRowsAreCopied(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	b, err := c.HostAlloc(64)
	require.NoError(t, err)
	p, err := c.Alloc(64)
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	copy(b.Bytes, "..one....two....six")
	require.NoError(t, c.Fill(p, '-', 64))
	require.NoError(t, s.CopyRowsToDevice(cuda.Rows{Dst: p + 1, DstPitch: 4, SrcPitch: 7, Width: 3, Count: 3}, b, 2))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 14)
	require.NoError(t, c.CopyFromDevice(got, p))
	require.Equal(t, "-one-two-six--", string(got))
	require.NoError(t, errors.Join(s.Close(), b.Free(), c.Free(p), c.Close()))
	require.Empty(t, d.Leaks())
}

func TestArguments(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	f := function(t, c, "add")
	s, err := c.NewStream()
	require.NoError(t, err)
	b, err := c.HostAlloc(64)
	require.NoError(t, err)
	p, err := c.Alloc(64)
	require.NoError(t, err)
	good := cuda.Value(&params{Control: uint64(b.Device)})
	word := uint32(1)
	for name, f := range map[string]func() error{
		"no memory":             func() error { _, err := c.Alloc(0); return err },
		"negative memory":       func() error { _, err := c.Alloc(-1); return err },
		"no host memory":        func() error { _, err := c.HostAlloc(0); return err },
		"empty image":           func() error { _, err := c.Load(nil); return err },
		"nothing to link":       func() error { _, err := c.Link(); return err },
		"empty part":            func() error { _, err := c.Link(cuda.Input{Name: "x"}); return err },
		"negative fill":         func() error { return c.Fill(p, 0, -1) },
		"copy past the end":     func() error { return s.CopyToDevice(p, b, 60, 5) },
		"copy before the start": func() error { return s.CopyFromDevice(b, -1, p, 4) },
		"copy of less than 0":   func() error { return s.CopyToDevice(p, b, 0, -1) },
		"rows past the end": func() error {
			return s.CopyRowsToDevice(cuda.Rows{Dst: p, DstPitch: 16, SrcPitch: 32, Width: 16, Count: 2}, b, 17)
		},
		"rows that overlap": func() error {
			return s.CopyRowsToDevice(cuda.Rows{Dst: p, DstPitch: 8, SrcPitch: 32, Width: 16, Count: 2}, b, 0)
		},
		"rows of less than 0": func() error {
			return s.CopyRowsToDevice(cuda.Rows{Dst: p, DstPitch: 8, SrcPitch: 32, Width: -1, Count: 2}, b, 0)
		},
		"rows without end": func() error {
			return s.CopyRowsToDevice(cuda.Rows{Dst: p, DstPitch: 16, SrcPitch: 1 << 40, Width: 16, Count: 1 << 40}, b, 0)
		},
		"no argument":        func() error { return s.Launch(f, cuda.Launch{}) },
		"argument too small": func() error { return s.Launch(f, cuda.Launch{}, cuda.Value(&word)) },
		"one argument more":  func() error { return s.Launch(f, cuda.Launch{}, good, good) },
		"negative grid":      func() error { return s.Launch(f, cuda.Launch{Grid: cuda.Dim{X: -1}}, good) },
		"negative block":     func() error { return s.Launch(f, cuda.Launch{Block: cuda.Dim{Y: -1}}, good) },
		"negative shared":    func() error { return s.Launch(f, cuda.Launch{SharedBytes: -1}, good) },
		"part of a page":     func() error { _, err := c.DMABuf(p, 100); return err },
	} {
		require.ErrorIs(t, f(), cuda.ErrArgument, name)
	}
	require.NoError(t, c.Free(0))
	require.NoError(t, s.CopyRowsToDevice(cuda.Rows{Dst: p}, b, 0))
	require.NoError(t, c.CopyToDevice(p, nil))
	require.NoError(t, c.CopyFromDevice(nil, p))
	require.NoError(t, c.CopyAllFromDevice([]cuda.Piece{{From: p}}))
	require.NoError(t, c.Fill(p, 0, 0))
	require.ErrorIs(t, c.Free(p+1), cuda.InvalidValue)
	require.NoError(t, b.Free())
	require.ErrorIs(t, s.CopyToDevice(p, b, 0, 1), cuda.ErrClosed)

	// What only the driver can judge.
	require.ErrorIs(t, s.Launch(f, cuda.Launch{Block: cuda.Dim{X: 2048}}, good), cuda.InvalidValue)
	require.ErrorIs(t, s.Launch(f, cuda.Launch{Grid: cuda.Dim{X: 133}, Cooperative: true}, good), cuda.CooperativeLaunchTooLarge)
	require.ErrorIs(t, f.SetShared(1<<20), cuda.InvalidValue)
	m, err := c.Load(cudatest.Module("add"))
	require.NoError(t, err)
	_, err = m.Function("spin")
	require.ErrorIs(t, err, cuda.NotFound)
	require.ErrorContains(t, err, `kernel "spin"`)
	_, err = c.Load([]byte("not code"))
	require.ErrorIs(t, err, cuda.InvalidImage)
}

// TestCompilerIsQuoted: PTX that does not compile says where.
func TestCompilerIsQuoted(t *testing.T) {
	d := fake(cudatest.Options{})
	c := retain(t, d)
	_, err := c.Load([]byte(cudatest.BadPTX))
	require.ErrorIs(t, err, cuda.InvalidPTX)
	require.ErrorContains(t, err, "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): invalid ptx: "+cudatest.BadPTXLog)
	_, err = c.Link(cuda.Input{Name: "agp.ptx", PTX: []byte(cudatest.BadPTX)})
	require.ErrorIs(t, err, cuda.InvalidPTX)
	require.ErrorContains(t, err, "agp.ptx: cuLinkAddData: ")
	require.ErrorContains(t, err, cudatest.BadPTXLog)
	require.NoError(t, c.Close())
	require.Empty(t, d.Leaks())
}

// TestAnyGoroutine uses one context from many goroutines, which change threads.
func TestAnyGoroutine(t *testing.T) {
	d := fake(cudatest.Options{Devices: []cuda.Info{cudatest.H200(), cudatest.H200()}})
	drv, err := d.Open()
	require.NoError(t, err)
	devices, err := drv.Devices()
	require.NoError(t, err)
	var wg sync.WaitGroup
	var list []*cuda.Context
	for _, dev := range devices {
		c, err := dev.Retain()
		require.NoError(t, err)
		list = append(list, c)
		add := function(t, c, "add")
		for range 8 {
			wg.Go(func() {
				err := func() error {
					s, err := c.NewStream()
					if err != nil {
						return err
					}
					b, err := c.HostAlloc(4)
					if err != nil {
						return err
					}
					for range 50 {
						if err := s.Launch(add, cuda.Launch{}, cuda.Value(&params{Control: uint64(b.Device), N: 1})); err != nil {
							return err
						}
						if err := c.Do(func() error { _, _, err := c.MemInfo(); return err }); err != nil {
							return err
						}
					}
					if err := s.Synchronize(); err != nil {
						return err
					}
					if n := binary.LittleEndian.Uint32(b.Bytes); n != 50 {
						return fmt.Errorf("%d launches", n)
					}
					return errors.Join(s.Close(), b.Free())
				}()
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, c := range list {
		require.NoError(t, c.Close())
	}
	require.Len(t, d.Leaks(), 2, "the modules")
}

func TestDoGivesTheErrorBack(t *testing.T) {
	c := retain(t, fake(cudatest.Options{}))
	mine := errors.New("mine")
	require.ErrorIs(t, c.Do(func() error { return mine }), mine)
}

func TestFunctionAttributes(t *testing.T) {
	c := retain(t, fake(cudatest.Options{}))
	f := function(t, c, "spin")
	require.Equal(t, cuda.FuncAttributes{Registers: 64, MaxThreads: 1024, PTX: 90, Binary: 90}, f.Attributes())
	n, err := f.BlocksPerSM(128, 0)
	require.NoError(t, err)
	require.Equal(t, 4, n)
}
