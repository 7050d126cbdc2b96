package afpacket

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

const fakeBlock = 4096

// fakeClock stands still but for sleeps.
type fakeClock struct {
	ns    int64
	onNap func()
}

func (c *fakeClock) Monotonic() int64 { return c.ns }
func (c *fakeClock) Realtime() int64  { return 0 }
func (c *fakeClock) Sleep(d time.Duration) {
	c.ns += int64(d)
	if c.onNap != nil {
		c.onNap()
	}
}

// fakeRing is memory that is written as the kernel writes it.
type fakeRing struct {
	mem    []byte
	block  int // that is open
	off    int // of the next frame in it, 0 if it has none
	last   int // of the last frame
	frames uint32
}

func newFakeRing(blocks int) *fakeRing {
	words := make([]uint64, blocks*fakeBlock/8)
	return &fakeRing{mem: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), blocks*fakeBlock)}
}

func (f *fakeRing) ring() ring {
	return ring{fd: -1, mem: f.mem, size: fakeBlock, link: packet.LinkEthernet, seen: make([]int64, len(f.mem)/fakeBlock)}
}

func (f *fakeRing) status() *uint32 {
	return (*uint32)(unsafe.Pointer(&f.mem[f.block*fakeBlock+blockStatus]))
}

// retire hands the open block over.
func (f *fakeRing) retire() {
	if f.frames == 0 {
		return
	}
	b := f.mem[f.block*fakeBlock:]
	binary.NativeEndian.PutUint32(b[blockFrames:], f.frames)
	binary.NativeEndian.PutUint32(b[blockFirst:], blockHeader)
	binary.NativeEndian.PutUint32(b[f.last+frameNext:], 0)
	atomic.StoreUint32(f.status(), unix.TP_STATUS_USER)
	f.block = (f.block + 1) % (len(f.mem) / fakeBlock)
	f.off, f.frames = 0, 0
}

// write adds a frame to the open block. It reports false if the ring is full.
func (f *fakeRing) write(ns int64, data []byte, length int, gso uint16) bool {
	const mac = 96 // behind the headers and that of PACKET_VNET_HDR
	need := (mac + len(data) + 15) &^ 15
	if f.off == 0 {
		f.off = blockHeader
	}
	if f.off+need > fakeBlock {
		f.retire()
		f.off = blockHeader
	}
	if atomic.LoadUint32(f.status()) != unix.TP_STATUS_KERNEL {
		f.off = 0
		return false
	}
	p, ne := f.mem[f.block*fakeBlock+f.off:], binary.NativeEndian
	clear(p[:mac])
	ne.PutUint32(p[frameNext:], uint32(need))
	ne.PutUint32(p[frameSec:], uint32(ns/1e9))
	ne.PutUint32(p[frameNsec:], uint32(ns%1e9))
	ne.PutUint32(p[frameSnap:], uint32(len(data)))
	ne.PutUint32(p[frameLen:], uint32(length))
	ne.PutUint16(p[frameMAC:], mac)
	if gso != 0 {
		p[mac-vnetHeader+vnetGSOType] = 1
		ne.PutUint16(p[mac-vnetHeader+vnetGSOSize:], gso)
	}
	copy(p[mac:], data)
	f.last, f.off = f.off, f.off+need
	f.frames++
	return true
}

func openFake(n, blocks int, cfg Config) (*Source, []*fakeRing, *fakeClock) {
	clock := &fakeClock{ns: 1e12}
	cfg.Clock = clock
	if cfg.SnapLen == 0 {
		cfg.SnapLen = defaultSnapLen
	}
	s := newSource(cfg)
	s.devices = []device{{name: "fake", index: 1}}
	var fakes []*fakeRing
	for range n {
		f := newFakeRing(blocks)
		fakes = append(fakes, f)
		s.rings = append(s.rings, f.ring())
	}
	return s, fakes, clock
}

// TestMergeIsSortedAndLosesNothing: 1 to 5 rings hand over blocks when they are full or 8 to 20 ms old; every frame
// comes once and in order of time, also if some rings are quiet.
func TestMergeIsSortedAndLosesNothing(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		n := 1 + rng.IntN(5)
		s, rings, clock := openFake(n, 512, Config{}) // far from half full
		const total = 3000
		var written int
		busy := make([]int, n) // 1 of so many steps
		opened := make([]int64, n)
		for i := range busy {
			busy[i] = 1 << rng.IntN(8)
		}
		tick := int64(1e12)
		step := func(until int64) {
			for ; tick < until; tick += 20_000 {
				for i, r := range rings {
					if written < total && rng.IntN(busy[i]) == 0 {
						if r.frames == 0 {
							opened[i] = tick
						}
						if r.write(tick+int64(i), frame(written, 1, 4+rng.IntN(200), 0), 1000, 0) {
							written++
						}
					}
					if r.frames > 0 && tick-opened[i] > int64(8e6+rng.IntN(12e6)) {
						r.retire()
					}
				}
			}
		}
		clock.onNap = func() { step(clock.ns) }
		b := source.Batch{Frames: make([]source.Frame, 0, 1+rng.IntN(100))}
		last, seen := int64(0), make(map[uint32]bool)
		for idle := 0; len(seen) < total; idle++ {
			require.Less(t, idle, 100_000, "seed %d: %d frames", seed, len(seen))
			_, err := s.Next(&b)
			require.NoError(t, err)
			for _, f := range b.Frames {
				require.GreaterOrEqual(t, f.TimestampNs, last, "seed %d", seed)
				last = f.TimestampNs
				id := binary.BigEndian.Uint32(f.Data[42:])
				require.False(t, seen[id])
				seen[id] = true
			}
		}
		require.Empty(t, s.Stats().Repaired)
		require.Empty(t, s.Stats().Dropped)
	}
}

// TestHalfFullRingDoesNotWait: a frame is not held for a quiet ring when that would cost frames.
func TestHalfFullRingDoesNotWait(t *testing.T) {
	s, rings, clock := openFake(2, 8, Config{})
	f := frame(1, 1, 200, 0)
	for rings[0].block < 4 {
		require.True(t, rings[0].write(1, f, 300, 0))
	}
	rings[0].retire()
	before := clock.ns
	var b source.Batch
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Positive(t, n)
	require.Equal(t, before, clock.ns)
}

// TestBacklogIsHeldOnce: blocks that were handed over together wait together for a quiet ring.
func TestBacklogIsHeldOnce(t *testing.T) {
	s, rings, clock := openFake(2, 64, Config{})
	f, written := frame(1, 1, 200, 0), 0
	for ; rings[0].block < 20; written++ {
		require.True(t, rings[0].write(int64(written), f, 300, 0))
	}
	rings[0].retire()
	before := clock.ns
	var b source.Batch
	for got := 0; got < written; {
		n, err := s.Next(&b)
		require.NoError(t, err)
		got += n
		require.Less(t, clock.ns-before, hold+5e6)
	}
	require.GreaterOrEqual(t, clock.ns-before, hold)
}

// TestMalformedBlocksAreCounted: frames of a block that contradicts itself, and the next block is read.
func TestMalformedBlocksAreCounted(t *testing.T) {
	ne := binary.NativeEndian
	for name, c := range map[string]struct {
		spoil     func(b []byte)
		malformed uint64
	}{
		"first frame outside":       {func(b []byte) { ne.PutUint32(b[blockFirst:], 1<<31) }, 3},
		"first frame in the header": {func(b []byte) { ne.PutUint32(b[blockFirst:], 8) }, 3},
		"next frame outside":        {func(b []byte) { ne.PutUint32(b[blockHeader+frameNext:], 1<<31) }, 2},
		"no next frame":             {func(b []byte) { ne.PutUint32(b[blockHeader+frameNext:], 0) }, 2},
		"data outside":              {func(b []byte) { ne.PutUint16(b[blockHeader+frameMAC:], 60000) }, 1},
		"data in the header":        {func(b []byte) { ne.PutUint16(b[blockHeader+frameMAC:], 20) }, 1},
		"no data":                   {func(b []byte) { ne.PutUint32(b[blockHeader+frameSnap:], 0) }, 1},
		"longer than the frame":     {func(b []byte) { ne.PutUint32(b[blockHeader+frameLen:], 3) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, rings, _ := openFake(1, 2, Config{})
			for i := range 3 {
				rings[0].write(int64(i), frame(i, 1, 100, 0), 200, 0)
			}
			rings[0].retire()
			c.spoil(rings[0].mem)
			rings[0].write(9, frame(9, 1, 100, 0), 200, 700)
			rings[0].retire()
			var b source.Batch
			n, err := s.Next(&b)
			require.NoError(t, err)
			require.Len(t, b.Frames, 4-int(c.malformed))
			require.EqualValues(t, 700, b.Frames[n-1].SegmentSize)
			require.Equal(t, map[string]uint64{"malformed": c.malformed}, s.Stats().Dropped)
		})
	}
}

// TestReadingDoesNotAllocate: after the first batch.
func TestReadingDoesNotAllocate(t *testing.T) {
	s, rings, _ := openFake(2, 8, Config{Duplicates: true})
	var b source.Batch
	f, i := frame(1, 1, 200, 0), 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, r := range rings {
			for range 10 {
				i++
				binary.BigEndian.PutUint32(f[42:], uint32(i))
				r.write(int64(i), f, 300, 0)
			}
			r.retire()
		}
		for got := 0; got < 20; {
			n, err := s.Next(&b)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}))
}

// FuzzBlock: whatever lies in a block, reading does not panic or hang, and frames lie within their bounds.
func FuzzBlock(f *testing.F) {
	good := newFakeRing(2)
	for i := range 5 {
		good.write(int64(i), frame(i, 1, 100*i+4, 0), 500, uint16(i*100))
	}
	good.retire()
	f.Add(good.mem[:fakeBlock])
	f.Add(good.mem[:200])
	f.Fuzz(func(t *testing.T, block []byte) {
		s, rings, _ := openFake(2, 2, Config{SnapLen: 128})
		copy(rings[0].mem, block)
		atomic.StoreUint32(rings[0].status(), unix.TP_STATUS_USER)
		b := source.Batch{Frames: make([]source.Frame, 0, 64)}
		for range 10 * fakeBlock {
			n, err := s.Next(&b)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 && s.rings[0].block == nil {
				return
			}
			for _, fr := range b.Frames {
				if int(fr.WireLen) < len(fr.Data) || len(fr.Data) == 0 || len(fr.Data) > 128+4 {
					t.Fatalf("%d bytes of %d", len(fr.Data), fr.WireLen)
				}
			}
		}
	})
}

// BenchmarkRead is the cost of one frame from a block to a batch.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(map[int]string{1: "1ring", 4: "4rings"}[n], func(b *testing.B) {
			s, rings, _ := openFake(n, 256, Config{})
			f := frame(1, 1, 214, 0)
			for i := range 2000 {
				for j, r := range rings {
					r.write(int64(10*i+j), f, 1514, 0)
				}
			}
			for _, r := range rings {
				r.retire()
			}
			full := rings[0].block
			batch := source.Batch{Frames: make([]source.Frame, 0, 256)}
			b.ReportAllocs()
			b.ResetTimer()
			for read := 0; read < b.N; {
				got, err := s.Next(&batch)
				if err != nil {
					b.Fatal(err)
				}
				if read += got; s.rings[0].next == full { // hand them over again
					for i := range s.rings {
						r := &s.rings[i]
						for j := range full {
							atomic.StoreUint32(r.status(j), unix.TP_STATUS_USER)
						}
						r.next, r.ahead, r.block = 0, 0, nil
					}
					s.newest = 0
				}
			}
		})
	}
}
