package steer

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
)

// readRing takes all records out of a ring, as kernel/bpf/ringbuf.c has them: a page
// with the reader's position, one with the writer's, then the data, twice.
func readRing(t testing.TB, m *ebpf.Map) []record {
	t.Helper()
	page, size := os.Getpagesize(), int(m.MaxEntries())
	cons, err := unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(cons)) }()
	prod, err := unix.Mmap(m.FD(), int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(prod)) }()
	read := (*uint64)(unsafe.Pointer(&cons[0]))
	written := atomic.LoadUint64((*uint64)(unsafe.Pointer(&prod[0])))
	data := prod[page:]
	var out []record
	for pos := atomic.LoadUint64(read); pos < written; {
		at := data[pos&uint64(size-1):]
		head := binary.LittleEndian.Uint32(at)
		require.Zero(t, head>>31, "a record that is not finished")
		n := int(head &^ (3 << 30))
		if head>>30 == 0 {
			r := record{size: n, Event: *(*bpf.Event)(unsafe.Pointer(&at[8]))}
			r.data = append(r.data, at[8+bpf.EventSize:8+bpf.EventSize+int(r.Cap)]...)
			out = append(out, r)
		}
		pos += uint64(8+n+7) &^ 7
		atomic.StoreUint64(read, pos)
	}
	return out
}

// skipRing throws away what is in a ring.
func skipRing(t testing.TB, m *ebpf.Map) {
	t.Helper()
	page := os.Getpagesize()
	cons, err := unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(cons)) }()
	prod, err := unix.Mmap(m.FD(), int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(prod)) }()
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&cons[0])), atomic.LoadUint64((*uint64)(unsafe.Pointer(&prod[0]))))
}
