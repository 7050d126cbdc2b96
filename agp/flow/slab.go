package flow

import (
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/internal/hugepage"
)

// chunkBits: slabs grow by 256 entries while they are small, so that a table
// costs what its active flows need, and by regions of huge pages later.
const (
	chunkBits = 8
	chunkSize = 1 << chunkBits
	chunkMask = chunkSize - 1

	regionBytes = 4 * hugepage.Size
)

// slab hands out fixed-size entries of at least four bytes without pointers, by
// number. Freed entries are reused last in, first out; each holds the number of
// the next one, so that the list costs nothing.
type slab[T any] struct {
	chunks []*[chunkSize]T
	region [][chunkSize]T // not yet in chunks
	free   uint32         // number + 1, 0 if there is none
	used   uint32         // entries ever handed out
}

func (s *slab[T]) at(i uint32) *T { return &s.chunks[i>>chunkBits][i&chunkMask] }

func (s *slab[T]) take() uint32 {
	if s.free != 0 {
		i := s.free - 1
		s.free = *s.link(i)
		return i
	}
	i := s.used
	if int(i>>chunkBits) == len(s.chunks) {
		s.grow()
	}
	s.used++
	return i
}

func (s *slab[T]) grow() {
	bytes := unsafe.Sizeof([chunkSize]T{})
	if uintptr(len(s.chunks))*bytes < regionBytes {
		s.chunks = append(s.chunks, new([chunkSize]T))
		return
	}
	if len(s.region) == 0 {
		s.region = make([][chunkSize]T, regionBytes/bytes)
		hugepage.Advise(s.region)
	}
	s.chunks = append(s.chunks, &s.region[0])
	s.region = s.region[1:]
}

// bytes is what the slab has taken, used or not.
func (s *slab[T]) bytes() uint64 {
	var v T
	return uint64(len(s.chunks)) * chunkSize * uint64(unsafe.Sizeof(v))
}

// release takes an entry back; its content is lost.
func (s *slab[T]) release(i uint32) {
	*s.link(i) = s.free
	s.free = i + 1
}

func (s *slab[T]) link(i uint32) *uint32 { return (*uint32)(unsafe.Pointer(s.at(i))) }
