package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// DevicePtr is an address as the device sees it.
type DevicePtr uint64

// MemInfo returns how much memory of the device is free and how much there is.
func (c *Context) MemInfo() (free, total uint64, err error) {
	err = c.do("cuMemGetInfo", func() (r Result) {
		free, total, r = c.api.MemGetInfo()
		return r
	})
	return free, total, err
}

// Alloc returns n bytes of the device's memory, at a multiple of 256, with
// whatever they contain. Works while a persistent kernel runs.
func (c *Context) Alloc(n int) (DevicePtr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("%w: %d bytes of device memory", ErrArgument, n)
	}
	var p uint64
	err := c.do("cuMemAlloc", func() (r Result) {
		p, r = c.api.MemAlloc(uint64(n))
		return r
	})
	if err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", n, err)
	}
	return DevicePtr(p), nil
}

// Free gives memory of Alloc back. ErrBusy while a persistent kernel runs.
func (c *Context) Free(p DevicePtr) error {
	if p == 0 {
		return nil
	}
	return c.idle(func() error {
		return c.do("cuMemFree", func() Result { return c.api.MemFree(uint64(p)) })
	})
}

// HostBuffer is page-locked memory of the host that the device can address. Both
// sides see each other's writes while a kernel runs, in the order that fences
// give them; the Go side uses sync/atomic on it.
type HostBuffer struct {
	c   *Context
	mu  sync.Mutex
	mem unsafe.Pointer // nil: given back

	Bytes  []byte    // must not be used after Free
	Device DevicePtr // of the first byte
}

// HostAlloc returns n bytes of page-locked, mapped memory, at a multiple of a page,
// zeroed. Works while a persistent kernel runs.
func (c *Context) HostAlloc(n int) (*HostBuffer, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%w: %d bytes of host memory", ErrArgument, n)
	}
	b := &HostBuffer{c: c}
	err := c.do("cuMemHostAlloc", func() (r Result) {
		b.mem, r = c.api.MemHostAlloc(uint64(n), api.HostPortable|api.HostDeviceMap)
		return r
	})
	if err != nil {
		return nil, fmt.Errorf("%d bytes of page-locked memory: %w", n, err)
	}
	err = c.do("cuMemHostGetDevicePointer", func() Result {
		p, r := c.api.MemHostGetDevicePointer(b.mem)
		b.Device = DevicePtr(p)
		return r
	})
	if err != nil {
		// Nobody has seen it, so that a failure to free it adds nothing.
		_ = b.Free()
		return nil, err
	}
	b.Bytes = unsafe.Slice((*byte)(b.mem), n)
	clear(b.Bytes)
	return b, nil
}

// Free gives the memory back. ErrBusy while a persistent kernel runs.
func (b *HostBuffer) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem == nil {
		return nil
	}
	err := b.c.idle(func() error {
		return b.c.do("cuMemFreeHost", func() Result { return b.c.api.MemFreeHost(b.mem) })
	})
	if err == nil {
		b.mem, b.Bytes, b.Device = nil, nil, 0
	}
	return err
}

// part checks a range of a buffer.
func (b *HostBuffer) part(off, n int) (unsafe.Pointer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mem == nil:
		return nil, fmt.Errorf("host buffer: %w", ErrClosed)
	case off < 0 || n < 0 || off > len(b.Bytes)-n:
		return nil, fmt.Errorf("%w: bytes %d to %d of a host buffer of %d", ErrArgument, off, off+n, len(b.Bytes))
	}
	return unsafe.Add(b.mem, off), nil
}

// Fill sets n bytes at p to v and waits. Works while a persistent kernel runs.
func (c *Context) Fill(p DevicePtr, v byte, n int) error {
	if err := c.copies.Fill(p, v, n); err != nil {
		return err
	}
	return c.copies.Synchronize()
}

// CopyToDevice copies src to p and waits. Works while a persistent kernel runs.
func (c *Context) CopyToDevice(p DevicePtr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	err := c.do("cuMemcpyHtoDAsync", func() Result {
		return c.api.MemcpyHtoDAsync(uint64(p), unsafe.Pointer(&src[0]), uint64(len(src)), c.copies.handle)
	})
	if err != nil {
		return err
	}
	return c.copies.Synchronize()
}

// CopyFromDevice copies from p into dst and waits. Works while a persistent kernel runs.
func (c *Context) CopyFromDevice(dst []byte, p DevicePtr) error {
	if len(dst) == 0 {
		return nil
	}
	err := c.do("cuMemcpyDtoHAsync", func() Result {
		return c.api.MemcpyDtoHAsync(unsafe.Pointer(&dst[0]), uint64(p), uint64(len(dst)), c.copies.handle)
	})
	if err != nil {
		return err
	}
	return c.copies.Synchronize()
}

// Piece is a copy from the device: From is copied to To.
type Piece struct {
	To   []byte
	From DevicePtr
}

// CopyAllFromDevice copies pieces, one after the other, and waits once. Works while a persistent kernel
// runs.
func (c *Context) CopyAllFromDevice(pieces []Piece) error {
	err := c.do("cuMemcpyDtoHAsync", func() Result {
		for _, p := range pieces {
			if len(p.To) == 0 {
				continue
			}
			if r := c.api.MemcpyDtoHAsync(unsafe.Pointer(&p.To[0]), uint64(p.From), uint64(len(p.To)), c.copies.handle); r != api.Success {
				return r
			}
		}
		return api.Success
	})
	// What was queued before one that failed still writes.
	return errors.Join(err, c.copies.Synchronize())
}

// DMABuf exports memory of Alloc so that another device can write into it. p and n
// are multiples of the page size of the host. The caller closes the file; the
// memory must stay for as long as somebody holds it.
func (c *Context) DMABuf(p DevicePtr, n int) (*os.File, error) {
	if page := os.Getpagesize(); n <= 0 || n%page != 0 || uint64(p)%uint64(page) != 0 {
		return nil, fmt.Errorf("%w: dma-buf of %d bytes at %#x, not whole pages of %d", ErrArgument, n, uint64(p), page)
	}
	var fd int32
	err := c.do("cuMemGetHandleForAddressRange", func() (r Result) {
		fd, r = c.api.MemGetHandleForAddressRange(uint64(p), uint64(n))
		return r
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "dmabuf"), nil
}
