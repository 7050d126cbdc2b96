package hugepage

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Advise asks for huge pages under the part of s that can have them. It is a
// hint: where the kernel declines, nothing changes. Call it before first use of
// the memory; pages already there are not moved.
func Advise[T any](s []T) {
	if len(s) == 0 {
		return
	}
	base := unsafe.Pointer(unsafe.SliceData(s))
	bytes := uintptr(len(s)) * unsafe.Sizeof(s[0])
	skip := -uintptr(base) & (Size - 1)
	if bytes < skip+Size {
		return
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(base, skip)), (bytes-skip)&^(Size-1)), unix.MADV_HUGEPAGE)
}
