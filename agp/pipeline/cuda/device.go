package cuda

import (
	"context"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/cuda"
)

// Device is what the pipeline needs of a machine that runs kernels: a GPU (package cuda of this
// module) or the host emulation (tests/simt). Its methods may be called from several goroutines.
//
// While a kernel of this device runs, Free may block until it has returned. The rest may not.
type Device interface {
	// Alloc is n bytes of device memory, zeroed, at a multiple of 256.
	Alloc(n int) (Addr, error)
	// AllocMapped is n bytes of host memory that the device reads and writes as well, zeroed, at
	// a multiple of 256.
	AllocMapped(n int) (Mapped, error)
	// Free gives back what Alloc or AllocMapped has given.
	Free(a Addr) error
	// Write copies p to device memory, Read copies device memory to p. They order nothing with a
	// kernel that runs.
	Write(a Addr, p []byte) error
	Read(p []byte, a Addr) error
	// ReadAll reads pieces one after the other, and waits once. Into memory of AllocMapped it costs
	// the host the least.
	ReadAll(pieces []Piece) error
	// Launch starts a kernel of blocks times warps warps, with so many bytes of shared memory for
	// each block. params are the bytes of its only argument. It waits for what was launched on the
	// same stream (StreamOf) before it.
	Launch(kernel string, blocks, warps, shared int, params []byte) (Run, error)
	// Close gives back everything. No kernel may run.
	Close() error
}

// Addr is an address as the device knows it.
type Addr = abi.Addr

// Piece is what is read of device memory.
type Piece = cuda.Piece

// Mapped is memory that host and device share. What a kernel writes meanwhile is read with
// sync/atomic.
type Mapped struct {
	Bytes []byte
	Addr  Addr
}

// Run is a kernel that was launched.
type Run interface {
	// Done is closed when the kernel has returned or failed.
	Done() <-chan struct{}
	// Wait waits for that or for ctx, and returns why it failed, or the cause of ctx.
	Wait(ctx context.Context) error
}
