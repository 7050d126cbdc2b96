package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
)

// arena hands out memory of a device and frees all of it at once.
type arena struct {
	dev  Device
	held []Addr
	size uint64 // device memory
}

func (a *arena) alloc(n int) (Addr, error) {
	at, err := a.dev.Alloc(n)
	if err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", n, err)
	}
	a.held = append(a.held, at)
	a.size += uint64(n)
	return at, nil
}

// paged is a Device whose memory comes in pages, of which what is left belongs to nobody.
type paged interface{ PageBytes() int }

// pieces allocates memory of given sizes several times: beside each other where it comes in pages,
// else one by one, so that a device that sees where memory ends sees it of each.
func (a *arena) pieces(sizes []int, times int) ([][]Addr, error) {
	const align = 256
	all := make([][]Addr, times)
	var base Addr
	_, together := a.dev.(paged)
	if together {
		total := 0
		for _, n := range sizes {
			total += (n + align - 1) / align * align
		}
		var err error
		if base, err = a.alloc(times * total); err != nil {
			return nil, err
		}
	}
	for i := range all {
		for _, n := range sizes {
			at, err := base, error(nil)
			if together {
				base += Addr((n + align - 1) / align * align)
			} else if at, err = a.alloc(n); err != nil {
				return nil, err
			}
			all[i] = append(all[i], at)
		}
	}
	return all, nil
}

// mapped is like AllocMapped, at a page.
func (a *arena) mapped(n int) (Mapped, error) {
	m, err := a.dev.AllocMapped(n + mlx5.PageSize)
	if err != nil {
		return m, fmt.Errorf("%d bytes of mapped memory: %w", n, err)
	}
	a.held = append(a.held, m.Addr)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes))) & (mlx5.PageSize - 1)
	return Mapped{m.Bytes[skip : int(skip)+n : int(skip)+n], m.Addr + Addr(skip)}, nil
}

func (a *arena) free() error {
	held := a.held
	a.held = nil
	var err error
	for _, at := range held {
		failed := a.dev.Free(at)
		err = errors.Join(err, failed)
		if errors.Is(Explain(failed), ErrDevice) {
			break // the rest would say the same: it goes with the process
		}
	}
	return err
}

// bytesOf is the memory of a value.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// at finds a T in shared memory.
func at[T any](m []byte) *T {
	_ = m[unsafe.Sizeof(*new(T))-1]
	return (*T)(unsafe.Pointer(unsafe.SliceData(m)))
}

// counters begin with a version that is odd while the device writes them.
type counters interface{ abi.Stats | abi.ShardStats }

// readStats copies what the device says of a ring or a shard, as of one moment. A kernel that has
// died while it wrote leaves what was read before.
func readStats[T counters](shared, to *T) {
	const tries = 10_000 // the device writes for some microseconds
	var read T
	from, words := unsafe.Slice((*uint64)(unsafe.Pointer(shared)), unsafe.Sizeof(*to)/8), unsafe.Slice((*uint64)(unsafe.Pointer(&read)), unsafe.Sizeof(*to)/8)
	for range tries {
		version := atomic.LoadUint64(&from[0])
		if version%2 != 0 {
			runtime.Gosched()
			continue
		}
		for i := range from {
			words[i] = atomic.LoadUint64(&from[i])
		}
		if atomic.LoadUint64(&from[0]) == version {
			*to = read
			return
		}
	}
}
