package mirror

import (
	"encoding/binary"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// fakeRing is a ring buffer in ordinary memory, written as the kernel writes one.
type fakeRing struct {
	consumer, producer uintptr
	words              []uint64 // keeps data aligned
	data               []byte   // twice the size; the second half repeats the first
}

func newFakeRing(size int) *fakeRing {
	f := &fakeRing{words: make([]uint64, size/4)}
	f.data = unsafe.Slice((*byte)(unsafe.Pointer(&f.words[0])), 2*size)
	return f
}

func (f *fakeRing) size() int { return len(f.data) / 2 }

func (f *fakeRing) ring() ring { return newRing(&f.consumer, &f.producer, f.data) }

// put writes bytes at a position in both copies of the memory.
func (f *fakeRing) put(pos uintptr, p []byte) {
	for i, c := range p {
		at := (pos + uintptr(i)) % uintptr(f.size())
		f.data[at], f.data[at+uintptr(f.size())] = c, c
	}
}

func (f *fakeRing) header(pos uintptr, v uint32) {
	at := pos % uintptr(f.size())
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.data[at+uintptr(f.size())])), v)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.data[at])), v)
}

// reserve writes a record and leaves it busy. It reports false if the ring is full.
func (f *fakeRing) reserve(rec []byte) (pos uintptr, ok bool) {
	pos = atomic.LoadUintptr(&f.producer)
	n := recordHeader + (uintptr(len(rec))+7)&^7
	if pos+n-atomic.LoadUintptr(&f.consumer) > uintptr(f.size()) {
		return 0, false
	}
	f.header(pos, uint32(len(rec))|busyBit)
	f.put(pos+recordHeader, rec)
	atomic.StoreUintptr(&f.producer, pos+n)
	return pos, true
}

func (f *fakeRing) commit(pos uintptr, rec []byte) { f.header(pos, uint32(len(rec))) }

func (f *fakeRing) discard(pos uintptr, rec []byte) { f.header(pos, uint32(len(rec))|discardBit) }

func (f *fakeRing) write(rec []byte) bool {
	pos, ok := f.reserve(rec)
	if ok {
		f.commit(pos, rec)
	}
	return ok
}

// rec describes a record.
type rec struct {
	ns       uint64
	length   int // 0: that of frame
	ifindex  uint32
	gso      uint16
	segs     uint16
	tci, tag uint16
	hook     uint8
	from     uint32
	frame    []byte
	snap     int // 0: 256
}

func (r rec) bytes() []byte {
	snap := r.snap
	if snap == 0 {
		snap = maxCap
	}
	n := min(len(r.frame), snap)
	room := 64
	for room < n {
		room *= 2
	}
	if r.length == 0 {
		r.length = len(r.frame)
	}
	if r.ifindex == 0 {
		r.ifindex = 7
	}
	b := make([]byte, eventSize+room)
	le := binary.NativeEndian
	le.PutUint64(b, r.ns)
	le.PutUint32(b[8:], uint32(r.length))
	le.PutUint32(b[12:], r.ifindex)
	le.PutUint16(b[24:], uint16(n))
	le.PutUint16(b[26:], r.gso)
	le.PutUint16(b[28:], r.segs)
	le.PutUint16(b[30:], r.tci)
	le.PutUint16(b[32:], r.tag)
	b[34] = r.hook
	le.PutUint32(b[36:], r.from)
	copy(b[eventSize:], r.frame[:n])
	return b
}

// fakeClock stands still but for sleeps.
type fakeClock struct {
	ns     int64
	offset int64
	slept  int
	onNap  func()
}

func (c *fakeClock) Monotonic() int64 { return c.ns }
func (c *fakeClock) Realtime() int64  { return c.offset }
func (c *fakeClock) Sleep(d time.Duration) {
	c.ns += int64(d)
	c.slept++
	if c.onNap != nil {
		c.onNap()
	}
}

// links knows interface 7 (Ethernet), 8 (raw IP) and 9 (Ethernet).
func links(ifindex int) (Link, bool) {
	switch ifindex {
	case 7:
		return Link{Interface: 0, Type: packet.LinkEthernet}, true
	case 8:
		return Link{Interface: 1, Type: packet.LinkRaw}, true
	case 9:
		return Link{Interface: 2, Type: packet.LinkEthernet}, true
	}
	return Link{}, false
}
