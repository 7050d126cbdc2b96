package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// Stream is a queue of work of the device that is done in order.
type Stream struct {
	c      *Context
	handle api.Handle
	closer closer
}

// NewStream returns a non-blocking stream. Works while a persistent kernel runs.
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{c: c}
	err := c.do("cuStreamCreate", func() (r Result) {
		s.handle, r = c.api.StreamCreate(api.StreamNonBlocking)
		return r
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Close gives the stream back. What is queued is still done.
func (s *Stream) Close() error {
	return s.closer.close(func() error {
		return s.c.do("cuStreamDestroy", func() Result { return s.c.api.StreamDestroy(s.handle) })
	})
}

// closer lets something be given back until that has worked, and then no more.
type closer struct {
	mu   sync.Mutex
	done bool
}

func (c *closer) close(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	err := f()
	c.done = err == nil
	return err
}

// Done says whether everything queued so far is done. The error is that of work that
// failed.
func (s *Stream) Done() (bool, error) {
	err := s.c.do("cuStreamQuery", func() Result { return s.c.api.StreamQuery(s.handle) })
	if errors.Is(err, NotReady) {
		return false, nil
	}
	return err == nil, err
}

// Synchronize waits until everything queued so far is done: with a persistent kernel
// among it, for as long as that runs.
func (s *Stream) Synchronize() error {
	return s.c.do("cuStreamSynchronize", func() Result { return s.c.api.StreamSynchronize(s.handle) })
}

// Wait is Synchronize until ctx ends; it looks every millisecond at most.
func (s *Stream) Wait(ctx context.Context) error {
	delay := 20 * time.Microsecond
	t := time.NewTimer(delay)
	defer t.Stop()
	for {
		if done, err := s.Done(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			delay = min(2*delay, time.Millisecond)
			t.Reset(delay)
		}
	}
}

// Fill sets n bytes at p to v, when it is the stream's turn.
func (s *Stream) Fill(p DevicePtr, v byte, n int) error {
	if n < 0 {
		return fmt.Errorf("%w: %d bytes", ErrArgument, n)
	}
	if n == 0 {
		return nil
	}
	return s.c.do("cuMemsetD8Async", func() Result { return s.c.api.MemsetD8Async(uint64(p), v, uint64(n), s.handle) })
}

// CopyToDevice copies n bytes of src from off on to p, when it is the stream's turn:
// src may be changed and given back after that only.
func (s *Stream) CopyToDevice(p DevicePtr, src *HostBuffer, off, n int) error {
	mem, err := src.part(off, n)
	if err != nil || n == 0 {
		return err
	}
	return s.c.do("cuMemcpyHtoDAsync", func() Result {
		return s.c.api.MemcpyHtoDAsync(uint64(p), mem, uint64(n), s.handle)
	})
}

// Rows says what CopyRowsToDevice copies: Count rows of Width bytes, which begin Pitch
// bytes after each other on their side.
type Rows struct {
	Dst                DevicePtr
	DstPitch, SrcPitch int
	Width, Count       int
}

// CopyRowsToDevice copies rows of src from off on, when it is the stream's turn, with
// one call however many there are: src may be changed and given back after that only.
func (s *Stream) CopyRowsToDevice(r Rows, src *HostBuffer, off int) error {
	if r.Width < 0 || r.Count < 0 || r.SrcPitch < r.Width || r.DstPitch < r.Width || r.Count > 1 && r.SrcPitch > (math.MaxInt-r.Width)/(r.Count-1) {
		return fmt.Errorf("%w: %d rows of %d bytes at distances of %d and %d", ErrArgument, r.Count, r.Width, r.SrcPitch, r.DstPitch)
	}
	if r.Width == 0 || r.Count == 0 {
		return nil
	}
	mem, err := src.part(off, (r.Count-1)*r.SrcPitch+r.Width)
	if err != nil {
		return err
	}
	rows := api.Rows{
		Src: mem, SrcPitch: uint64(r.SrcPitch), Dst: uint64(r.Dst), DstPitch: uint64(r.DstPitch),
		Width: uint64(r.Width), Count: uint64(r.Count),
	}
	return s.c.do("cuMemcpy2DAsync", func() Result { return s.c.api.Memcpy2DAsync(&rows, s.handle) })
}

// CopyFromDevice copies n bytes from p into dst at off, when it is the stream's turn.
func (s *Stream) CopyFromDevice(dst *HostBuffer, off int, p DevicePtr, n int) error {
	mem, err := dst.part(off, n)
	if err != nil || n == 0 {
		return err
	}
	return s.c.do("cuMemcpyDtoHAsync", func() Result {
		return s.c.api.MemcpyDtoHAsync(mem, uint64(p), uint64(n), s.handle)
	})
}

// Dim is a size in three dimensions; 0 is 1.
type Dim struct{ X, Y, Z int }

// dims returns d as the driver wants it.
func (d Dim) dims(what string) (v [3]uint32, err error) {
	for i, n := range [3]int{d.X, d.Y, d.Z} {
		if n < 0 || n > 1<<31-1 {
			return v, fmt.Errorf("%w: %s %v", ErrArgument, what, d)
		}
		v[i] = uint32(max(n, 1))
	}
	return v, nil
}

// Launch is how a kernel is started.
type Launch struct {
	Grid, Block Dim // blocks, threads of a block
	SharedBytes int // dynamic shared memory of a block, see Function.SetShared for more than 48 KiB

	// Cooperative refuses a grid whose blocks cannot all run at the same time,
	// CooperativeLaunchTooLarge, instead of letting some wait for others.
	Cooperative bool
	// Persistent says that the kernel ends when it is told to, see the package comment.
	Persistent bool
	// Cluster is the number of blocks of a cluster, 0 for none. Capability 9.0.
	Cluster int
	// RemoteDomain puts the kernel's writes into a memory synchronisation domain of
	// their own, so that fences of other kernels do not wait for them. Capability 9.0.
	RemoteDomain bool
}

// Arg is one argument of a kernel.
type Arg struct {
	p    unsafe.Pointer
	size uintptr
}

// Value passes *v by value. T is laid out as the kernel's parameter is and contains
// no Go pointer; device addresses are DevicePtr or uint64.
func Value[T any](v *T) Arg { return Arg{unsafe.Pointer(v), unsafe.Sizeof(*v)} }

// Bytes passes b by value, for what was laid out elsewhere. It is not empty.
func Bytes(b []byte) Arg { return Arg{unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))} }

// Launch queues a kernel. The arguments have been copied when it returns. Argument
// sizes are compared with the kernel's if the driver can tell them (CUDA 12.4).
func (s *Stream) Launch(f *Function, l Launch, args ...Arg) error {
	conf := api.Config{Stream: s.handle, SharedBytes: uint32(l.SharedBytes), Cooperative: l.Cooperative, Cluster: uint32(l.Cluster)}
	var err error
	if conf.Grid, err = l.Grid.dims("grid"); err == nil {
		conf.Block, err = l.Block.dims("block")
	}
	if err == nil && (l.SharedBytes < 0 || l.Cluster < 0) {
		err = fmt.Errorf("%w: %d bytes of shared memory, clusters of %d", ErrArgument, l.SharedBytes, l.Cluster)
	}
	if err == nil {
		err = f.match(args)
	}
	if err != nil {
		return fmt.Errorf("launch of %s: %w", f.name, err)
	}
	if l.RemoteDomain {
		conf.MemSyncDomain = 1
	}
	list := make([]unsafe.Pointer, len(args))
	for i, a := range args {
		list[i] = a.p
	}
	if err := s.launch(f, &conf, l.Persistent, list); err != nil {
		return fmt.Errorf("launch of %s: %w", f.name, err)
	}
	return nil
}

// launch keeps account of persistent kernels and of local memory.
func (s *Stream) launch(f *Function, conf *api.Config, persistent bool, args []unsafe.Pointer) error {
	c := s.c
	start := func() error {
		call := "cuLaunchKernel"
		if conf.Cooperative || conf.Cluster > 0 || conf.MemSyncDomain > 0 {
			call = "cuLaunchKernelEx"
		}
		return c.do(call, func() Result { return c.api.LaunchKernel(f.handle, conf, args) })
	}
	c.gate.Lock()
	defer c.gate.Unlock()
	if f.attrs.LocalBytes > c.local {
		if busy, _ := c.persists(); busy {
			return fmt.Errorf("%w, and %d bytes of local memory per thread are more than the %d that are there", ErrBusy, f.attrs.LocalBytes, c.local)
		}
	}
	if !persistent {
		err := start()
		if err == nil {
			c.local = max(c.local, f.attrs.LocalBytes)
		}
		return err
	}
	// The event exists before the kernel, so that no kernel runs that is not known of.
	m := mark{stream: s.handle}
	err := c.do("cuEventCreate", func() (r Result) {
		m.event, r = c.api.EventCreate(api.EventNoTiming)
		return r
	})
	if err != nil {
		return err
	}
	if err := start(); err != nil {
		return errors.Join(err, c.do("cuEventDestroy", func() Result { return c.api.EventDestroy(m.event) }))
	}
	c.local = max(c.local, f.attrs.LocalBytes)
	err = c.do("cuEventRecord", func() Result { return c.api.EventRecord(m.event, s.handle) })
	m.recorded = err == nil
	c.running = append(c.running, m)
	return err
}

// Event is a point in a stream.
type Event struct {
	c      *Context
	handle api.Handle
	closer closer
}

// NewEvent returns an event that takes the time.
func (c *Context) NewEvent() (*Event, error) {
	e := &Event{c: c}
	err := c.do("cuEventCreate", func() (r Result) {
		e.handle, r = c.api.EventCreate(0)
		return r
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Close gives the event back.
func (e *Event) Close() error {
	return e.closer.close(func() error {
		return e.c.do("cuEventDestroy", func() Result { return e.c.api.EventDestroy(e.handle) })
	})
}

// Record puts the event at the end of what the stream has to do.
func (s *Stream) Record(e *Event) error {
	return s.c.do("cuEventRecord", func() Result { return s.c.api.EventRecord(e.handle, s.handle) })
}

// Done says whether the stream has come to the event; true if it was never recorded.
func (e *Event) Done() (bool, error) {
	err := e.c.do("cuEventQuery", func() Result { return e.c.api.EventQuery(e.handle) })
	if errors.Is(err, NotReady) {
		return false, nil
	}
	return err == nil, err
}

// Synchronize waits until the stream has come to the event.
func (e *Event) Synchronize() error {
	return e.c.do("cuEventSynchronize", func() Result { return e.c.api.EventSynchronize(e.handle) })
}

// Since returns the time from an earlier event to e. Both are done.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms float32
	err := e.c.do("cuEventElapsedTime", func() (r Result) {
		ms, r = e.c.api.EventElapsedTime(start.handle, e.handle)
		return r
	})
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
