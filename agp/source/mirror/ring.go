package mirror

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Errors of Open and Next.
var (
	// ErrRing: a map is not a ring buffer that can be read.
	ErrRing = errors.New("not a usable ring buffer")
	// ErrCorrupt: positions or record lengths in a ring contradict each other.
	ErrCorrupt = errors.New("corrupt ring buffer")
)

// Layout of a record (include/uapi/linux/bpf.h): 4 bytes of length with two flags,
// 4 bytes that only the kernel uses, then the record; all rounded up to 8 bytes.
const (
	recordHeader = 8
	busyBit      = 1 << 31
	discardBit   = 1 << 30
)

// ring is one mapped ring buffer. Positions are C's unsigned long: they only grow, and
// wrap with the word.
type ring struct {
	consumer, producer *uintptr // shared with the kernel
	data               []byte   // the ring's memory, mapped twice in a row
	mask               uintptr
	pos                uintptr // next record to look at
	published          uintptr // what the kernel knows of pos
	end                uintptr // producer position of this poll

	time      uint64 // of the record at pos, if there is one
	record    []byte
	wrongTime bool   // the record has no time or an impossible one
	last      uint64 // time of the last record that was taken
	emptyAt   uint64 // monotonic time at which nothing was in the ring
	busyAt    uint64 // monotonic time at which the record at pos was first seen unfinished; 0: it was not

	maps [2][]byte // to unmap
}

// state is what lies at the position of a ring.
type state uint8

const (
	empty state = iota // as far as this poll looks
	busy               // a record that is still written
	ready
)

func mapRing(m *ebpf.Map) (r ring, err error) {
	size, page := int(m.MaxEntries()), os.Getpagesize()
	if m.Type() != ebpf.RingBuf || size == 0 || size&(size-1) != 0 || size%page != 0 {
		return r, fmt.Errorf("%w: map of type %v with %d bytes", ErrRing, m.Type(), size)
	}
	cons, err := unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrRing, os.NewSyscallError("mmap", err))
	}
	// Producer page and data are read-only: a mistake here cannot disturb the programs.
	prod, err := unix.Mmap(m.FD(), int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Munmap(cons)
		return r, fmt.Errorf("%w: %w", ErrRing, os.NewSyscallError("mmap", err))
	}
	r = newRing((*uintptr)(unsafe.Pointer(&cons[0])), (*uintptr)(unsafe.Pointer(&prod[0])), prod[page:])
	r.maps = [2][]byte{cons, prod}
	return r, nil
}

// newRing reads a ring at whatever position its last reader left it.
func newRing(consumer, producer *uintptr, data []byte) ring {
	pos := atomic.LoadUintptr(consumer)
	return ring{consumer: consumer, producer: producer, data: data, mask: uintptr(len(data)/2 - 1), pos: pos, published: pos}
}

func (r *ring) unmap() (err error) {
	for _, m := range r.maps {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
		}
	}
	*r = ring{}
	return err
}

// look starts a poll at monotonic time now.
func (r *ring) look(now uint64) (state, error) {
	r.end = atomic.LoadUintptr(r.producer)
	if r.end == r.pos {
		r.emptyAt = now
		return empty, nil
	}
	return r.peek()
}

// waiting returns the bytes in the ring that are not taken.
func (r *ring) waiting() uintptr { return r.end - r.pos }

// peek looks at the record at pos and skips discarded ones.
func (r *ring) peek() (state, error) {
	for r.pos != r.end {
		left := r.end - r.pos
		if left > r.mask+1 || left < recordHeader || r.pos&7 != 0 {
			return empty, fmt.Errorf("%w: consumer at %d, producer at %d of %d bytes", ErrCorrupt, r.pos, r.end, r.mask+1)
		}
		at := r.pos & r.mask
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[at])))
		if head&busyBit != 0 {
			return busy, nil
		}
		n := uintptr(head &^ (busyBit | discardBit))
		if n > left-recordHeader {
			return empty, fmt.Errorf("%w: record of %d bytes, %d left", ErrCorrupt, n, left)
		}
		r.record = r.data[at+recordHeader : at+recordHeader+n : at+recordHeader+n]
		if head&discardBit == 0 {
			return ready, nil
		}
		r.take()
	}
	return empty, nil
}

// take goes on to the next record. The memory of the record stays as it is until publish.
func (r *ring) take() {
	r.pos += recordHeader + (uintptr(len(r.record))+7)&^7
	r.busyAt = 0
}

// publish gives the memory of all taken records back to the kernel.
func (r *ring) publish() {
	if r.pos != r.published {
		atomic.StoreUintptr(r.consumer, r.pos)
		r.published = r.pos
	}
}
