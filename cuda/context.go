package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// Context is a share of a device's primary context. See the package comment for
// threads and for what must wait while a persistent kernel runs.
type Context struct {
	device *Device
	api    api.Driver
	handle api.Handle
	copies *Stream // of CopyToDevice and the like

	closed atomic.Bool

	// gate is held by calls that persistent kernels block, and by launches that
	// would block them: one never starts while the other is under way.
	gate    sync.Mutex
	running []mark
	local   int // bytes of local memory per thread that are there
}

// mark is the end of a persistent kernel: an event after it or, if that could not be
// recorded, all its stream has to do.
type mark struct {
	event, stream api.Handle
	recorded      bool
}

// passed returns NotReady while the kernel runs.
func (c *Context) passed(m mark) error {
	if m.recorded {
		return c.do("cuEventQuery", func() Result { return c.api.EventQuery(m.event) })
	}
	return c.do("cuStreamQuery", func() Result { return c.api.StreamQuery(m.stream) })
}

// Retain takes a share of the device's primary context, which is made if there is
// none. Waits for the device sleep and do not spin. DeviceUnavailable says that the
// compute mode keeps us out.
func (d *Device) Retain() (*Context, error) {
	c, err := d.retain()
	if err != nil {
		return nil, fmt.Errorf("device %d: %w", d.index, err)
	}
	return c, nil
}

func (d *Device) retain() (*Context, error) {
	a := d.driver.api
	// Local memory is kept because giving it back, as well as taking more, waits
	// for the kernels that run.
	flags := uint32(api.CtxBlockingSync | api.CtxKeepLocal)
	if err := failed(a, "cuDevicePrimaryCtxSetFlags", a.DevicePrimaryCtxSetFlags(d.id, flags)); err != nil {
		return nil, err
	}
	h, r := a.DevicePrimaryCtxRetain(d.id)
	if err := failed(a, "cuDevicePrimaryCtxRetain", r); err != nil {
		return nil, err
	}
	c := &Context{device: d, api: a, handle: h}
	err := c.do("cuCtxGetLimit", func() Result {
		n, r := a.CtxGetLimit(api.LimitStackSize)
		c.local = int(n)
		return r
	})
	if err == nil {
		c.copies, err = c.NewStream()
	}
	if err != nil {
		return nil, errors.Join(err, failed(a, "cuDevicePrimaryCtxRelease", a.DevicePrimaryCtxRelease(d.id)))
	}
	return c, nil
}

// Device returns the device of the context.
func (c *Context) Device() *Device { return c.device }

// Close gives the share back. It is an error, ErrBusy, while a persistent kernel
// runs; the end of the process ends such a kernel as well.
func (c *Context) Close() error {
	return c.idle(func() error {
		if c.closed.Load() {
			return nil
		}
		if err := c.copies.Close(); err != nil && !Poisoned(err) {
			return err
		}
		err := failed(c.api, "cuDevicePrimaryCtxRelease", c.api.DevicePrimaryCtxRelease(c.device.id))
		c.closed.Store(err == nil)
		return err
	})
}

// do makes one call with the context current on the thread of the caller.
func (c *Context) do(call string, f func() Result) error {
	if c.closed.Load() {
		return fmt.Errorf("context of device %d: %w", c.device.index, ErrClosed)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r := c.api.CtxSetCurrent(c.handle); r != api.Success {
		return failed(c.api, "cuCtxSetCurrent", r)
	}
	return failed(c.api, call, f())
}

// Do calls f on a thread on which the context is current, for libraries that
// expect one. f stays on this thread; the methods of the package may be used in it.
func (c *Context) Do(f func() error) error {
	if c.closed.Load() {
		return fmt.Errorf("context of device %d: %w", c.device.index, ErrClosed)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r := c.api.CtxPushCurrent(c.handle); r != api.Success {
		return failed(c.api, "cuCtxPushCurrent", r)
	}
	err := f()
	_, r := c.api.CtxPopCurrent()
	return errors.Join(err, failed(c.api, "cuCtxPopCurrent", r))
}

// Running says whether a persistent kernel is running. The error is one that the
// kernel ended with.
func (c *Context) Running() (bool, error) {
	c.gate.Lock()
	defer c.gate.Unlock()
	return c.persists()
}

// persists forgets the persistent kernels that have ended. The gate is held.
func (c *Context) persists() (bool, error) {
	var errs []error
	keep := c.running[:0]
	for _, m := range c.running {
		err := c.passed(m)
		switch {
		case errors.Is(err, NotReady):
			keep = append(keep, m)
		case err != nil && !Poisoned(err): // not known
			keep, errs = append(keep, m), append(errs, err)
		default:
			errs = append(errs, err, c.do("cuEventDestroy", func() Result { return c.api.EventDestroy(m.event) }))
		}
	}
	c.running = keep
	return len(keep) > 0, errors.Join(errs...)
}

// idle calls f if no persistent kernel runs, and lets none start meanwhile. After
// a kernel has failed there is nothing to wait for, and f says what is left to say.
func (c *Context) idle(f func() error) error {
	c.gate.Lock()
	defer c.gate.Unlock()
	busy, err := c.persists()
	switch {
	case busy:
		return errors.Join(ErrBusy, err)
	case err != nil && !Poisoned(err):
		return err
	}
	return f()
}
