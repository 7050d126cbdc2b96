package afxdp

import "sync/atomic"

// ring is one side of a ring that is shared with the kernel: a single producer, a
// single consumer, indices that run freely and wrap at 2^32. next is the index of
// this side; it becomes visible to the other one with publish, once for many
// entries. other is what was last read of the other side's index.
type ring[T any] struct {
	mine    *uint32 // written by this side only
	theirs  *uint32 // written by the other side only
	flags   *uint32 // written by the kernel: whether it waits for a wake-up
	entries []T     // a power of two of them
	mask    uint32
	next    uint32
	other   uint32
}

func newRing[T any](mine, theirs, flags *uint32, entries []T) ring[T] {
	return ring[T]{
		mine: mine, theirs: theirs, flags: flags,
		entries: entries, mask: uint32(len(entries) - 1),
		next: atomic.LoadUint32(mine), other: atomic.LoadUint32(theirs),
	}
}

// at returns the entry with index next+i.
func (r *ring[T]) at(i uint32) *T { return &r.entries[(r.next+i)&r.mask] }

// publish hands everything up to next to the other side.
func (r *ring[T]) publish() { atomic.StoreUint32(r.mine, r.next) }

// needsWakeup reports whether the kernel asks for a system call to go on.
func (r *ring[T]) needsWakeup() bool { return atomic.LoadUint32(r.flags)&1 != 0 }

// room returns how many entries a producer may write. The other side's index is
// read anew only if fewer than want are known to be free.
func (r *ring[T]) room(want uint32) uint32 {
	free := uint32(len(r.entries)) - (r.next - r.other)
	if free < want {
		r.other = atomic.LoadUint32(r.theirs)
		free = uint32(len(r.entries)) - (r.next - r.other)
	}
	return free
}

// push writes an entry that room has promised.
func (r *ring[T]) push(v T) {
	r.entries[r.next&r.mask] = v
	r.next++
}

// pending returns how many entries a producer has handed over that the other side
// has not taken yet.
func (r *ring[T]) pending() uint32 {
	r.other = atomic.LoadUint32(r.theirs)
	return r.next - r.other
}

// ready returns how many entries a consumer may read, as of the last look.
func (r *ring[T]) ready() uint32 { return r.other - r.next }

// look reads the producer's index and returns how many entries are ready.
func (r *ring[T]) look() uint32 {
	r.other = atomic.LoadUint32(r.theirs)
	return r.other - r.next
}

// skip takes n ready entries.
func (r *ring[T]) skip(n uint32) { r.next += n }
