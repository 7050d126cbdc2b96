package afxdp

import (
	"encoding/binary"
	"io"
	"math/bits"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// pairOfRings returns both sides of a ring whose indices begin at start.
func pairOfRings[T any](start uint32, n int) (producer, consumer ring[T]) {
	words := []uint32{start, start, 0}
	entries := make([]T, n)
	return newRing(&words[0], &words[1], &words[2], entries), newRing(&words[1], &words[0], &words[2], entries)
}

// fakeQueue is the kernel's side of a queue with one socket.
type fakeQueue struct {
	t    testing.TB
	s    *Source
	rx   ring[unix.XDPDesc]
	fill ring[uint64]
}

// newFake returns a source whose rings are plain memory and begin at start, and the
// kernel's side of each queue.
func newFake(t testing.TB, cfg Config, start uint32, queues int) (*Source, []*fakeQueue) {
	s := &Source{cfg: cfg, event: -1, clock: newClock(0), chunk: smallFrame, sleep: func(time.Duration) {}}
	s.home = bits.TrailingZeros(uint(cfg.Frames * s.chunk))
	s.umem = make([]byte, queues*cfg.Frames*s.chunk)
	p := &port{linkInfo: linkInfo{name: "fake0", linkType: packet.LinkEthernet}}
	var kernel []*fakeQueue
	for id := range queues {
		f := &fakeQueue{t: t, s: s}
		q := &queue{p: p, id: id}
		k := &socket{q: q, fd: -1}
		f.rx, k.rx = pairOfRings[unix.XDPDesc](start, cfg.RingSize)
		q.fill, f.fill = pairOfRings[uint64](start, cfg.Frames)
		q.sockets = append(q.sockets, k)
		s.queues = append(s.queues, q)
		s.sockets = append(s.sockets, k)
		for i := range cfg.Frames {
			q.fill.push(s.homeOf(q) + uint64(i*s.chunk))
		}
		q.fill.publish()
		p.queues = append(p.queues, q)
		kernel = append(kernel, f)
	}
	s.ports = append(s.ports, p)
	return s, kernel
}

// buffer takes a buffer from the fill ring and puts data into it.
func (f *fakeQueue) buffer(data []byte) unix.XDPDesc {
	require.NotZero(f.t, f.fill.look(), "no buffer is free")
	addr := *f.fill.at(0) + headroom
	f.fill.skip(1)
	f.fill.publish()
	copy(f.s.umem[addr:], data)
	return unix.XDPDesc{Addr: addr, Len: uint32(len(data))}
}

// receive puts a frame on the receive ring, in parts of the sizes of its buffers.
func (f *fakeQueue) receive(parts ...[]byte) {
	for i, part := range parts {
		d := f.buffer(part)
		if i+1 < len(parts) {
			d.Options = unix.XDP_PKT_CONTD
		}
		require.NotZero(f.t, f.rx.room(1), "ring is full")
		f.rx.push(d)
	}
	f.rx.publish()
}

func (f *fakeQueue) receiveAt(ns int64, frame []byte) {
	d := f.buffer(frame)
	m := f.s.umem[d.Addr-MetadataLen : d.Addr]
	binary.LittleEndian.PutUint64(m, uint64(ns))
	binary.LittleEndian.PutUint32(m[8:], MetadataMagic)
	binary.LittleEndian.PutUint32(m[12:], ClockMonotonic)
	f.rx.push(d)
	f.rx.publish()
}

func numbered(n, size int) []byte {
	frame := make([]byte, size)
	binary.BigEndian.PutUint32(frame, uint32(n))
	for i := 4; i < size; i++ {
		frame[i] = byte(n + i)
	}
	return frame
}

func number(f source.Frame) int { return int(binary.BigEndian.Uint32(f.Data)) }

func TestRingIndicesWrapAt2To32(t *testing.T) {
	const size = 8
	producer, consumer := pairOfRings[int](1<<32-3, size)
	sent, got := 0, 0
	for range 10 {
		require.EqualValues(t, size, producer.room(size))
		for range size {
			producer.push(sent)
			sent++
		}
		require.Zero(t, consumer.look(), "not published yet")
		require.Zero(t, producer.room(1))
		producer.publish()
		require.EqualValues(t, size, producer.pending())
		require.Zero(t, consumer.ready(), "not looked yet")
		require.EqualValues(t, size, consumer.look())
		for range 3 { // a part, so that the next round begins elsewhere
			require.Equal(t, got, *consumer.at(0))
			consumer.skip(1)
			got++
		}
		require.Zero(t, producer.room(1), "not handed back yet")
		consumer.publish()
		require.EqualValues(t, 3, producer.room(size))
		require.EqualValues(t, 5, producer.pending())
		for i := range consumer.ready() {
			require.Equal(t, got, *consumer.at(i))
			got++
		}
		consumer.skip(consumer.ready())
		consumer.publish()
		require.Zero(t, producer.pending())
	}
	require.Equal(t, sent, got)
}

func TestRingRoomReadsTheOtherSideOnlyWhenItMust(t *testing.T) {
	producer, consumer := pairOfRings[int](0, 8)
	for range 8 {
		producer.push(0)
	}
	producer.publish()
	consumer.look()
	consumer.skip(4)
	consumer.publish()
	require.EqualValues(t, 4, producer.room(2))
	consumer.skip(4)
	consumer.publish()
	require.EqualValues(t, 4, producer.room(2), "enough was known to be free")
	require.EqualValues(t, 8, producer.room(5))
}

func TestBuffersGoRoundAcrossTheWrapOfAllRings(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64}, 1<<32-100, 2)
	b := source.Batch{Frames: make([]source.Frame, 0, 32)}
	next := 0
	for range 50 {
		var want [][]byte
		for i := range 16 {
			for _, f := range kernel {
				frame := numbered(next, 60+i)
				f.receive(frame)
				want = append(want, frame)
				next++
			}
		}
		n, err := s.Next(&b)
		require.NoError(t, err)
		require.Equal(t, len(want), n)
		got := slices.Clone(b.Frames)
		slices.SortFunc(got, func(a, b source.Frame) int { return number(a) - number(b) })
		for i, f := range got {
			require.Equal(t, want[i], f.Data)
			require.EqualValues(t, len(want[i]), f.WireLen)
			require.Equal(t, packet.LinkEthernet, f.LinkType)
		}
	}
	s.takeBack(&b)
	for i, f := range kernel {
		require.EqualValues(t, 64, f.fill.look(), "all buffers are back")
		addrs := make(map[uint64]bool)
		for j := range f.fill.ready() {
			addr := *f.fill.at(j)
			require.Zero(t, addr%smallFrame)
			require.Equal(t, i, int(addr>>s.home), "a buffer of another queue")
			addrs[addr] = true
		}
		require.Len(t, addrs, 64, "a buffer is there twice")
	}
}

func TestBuffersOfCopiesGoBackAfter64FramesOfASocket(t *testing.T) {
	for _, timestamps := range []bool{false, true} {
		s, kernel := newFake(t, Config{Frames: 256, RingSize: 256, Timestamps: timestamps}, 0, 1)
		for i := range 200 {
			kernel[0].receive(numbered(i, 100))
		}
		s.queues[0].lent = 128 // so that frames are copied
		frames := batch{frames: make([]source.Frame, 130), buf: make([]byte, 1<<20)}
		if timestamps {
			s.takeByTime(&frames)
		} else {
			s.takeInTurn(&frames)
		}
		require.Equal(t, 130, frames.n)
		require.EqualValues(t, 56+130, kernel[0].fill.look())
		require.EqualValues(t, 256-70, kernel[0].rx.room(256))
	}
}

func TestFrameOfSeveralBuffersIsTakenOnlyWhenItIsWhole(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64}, 1<<32-2, 1)
	k := kernel[0]
	whole := numbered(7, 4000)
	d := k.buffer(whole[:1792])
	d.Options = unix.XDP_PKT_CONTD
	k.rx.push(d)
	d = k.buffer(whole[1792:3584])
	d.Options = unix.XDP_PKT_CONTD
	k.rx.push(d)
	k.rx.publish()
	b := source.Batch{Frames: make([]source.Frame, 0, 4)}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Zero(t, n)
	require.EqualValues(t, 62, k.fill.look())
	k.rx.push(k.buffer(whole[3584:]))
	k.rx.publish()
	n, err = s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, whole, b.Frames[0].Data)
	require.EqualValues(t, 64, k.fill.look())
}

func TestSnapLenCutsDataAndKeepsTheWireLength(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64, SnapLen: 2000}, 0, 1)
	whole := numbered(1, 5000)
	kernel[0].receive(whole[:1792], whole[1792:3584], whole[3584:])
	kernel[0].receive(whole[:100])
	b := source.Batch{Frames: make([]source.Frame, 0, 4)}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, whole[:2000], b.Frames[0].Data)
	require.EqualValues(t, 5000, b.Frames[0].WireLen)
	require.Equal(t, whole[:100], b.Frames[1].Data)
	require.EqualValues(t, 2100, s.Stats().Bytes)
	s.takeBack(&b)
	require.EqualValues(t, 64, kernel[0].fill.look())
}

func TestBatchWhoseMemoryIsFullEndsAndNothingIsLost(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64}, 0, 2)
	for i := range 20 {
		frame := numbered(i, 1500) // in two buffers, so that it is copied
		kernel[i%2].receive(frame[:1000], frame[1000:])
	}
	big := numbered(20, 9000)
	kernel[0].receive(big[:1792], big[1792:3584], big[3584:5376], big[5376:7168], big[7168:8960], big[8960:])
	b := source.Batch{Frames: make([]source.Frame, 0, 64), Buf: make([]byte, 4000)}
	var got []int
	for len(got) < 21 {
		n, err := s.Next(&b)
		require.NoError(t, err)
		require.NotZero(t, n)
		if len(got) == 0 {
			require.Equal(t, 2, n, "a third frame does not fit")
		}
		for _, f := range b.Frames {
			size := 1500
			if number(f) == 20 {
				size = 9000
			}
			require.Equal(t, numbered(number(f), size), f.Data)
			got = append(got, number(f))
		}
	}
	slices.Sort(got)
	for i, n := range got {
		require.Equal(t, i, n)
	}
}

func TestSocketsAreServedInTurn(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 1024, RingSize: 1024}, 0, 3)
	for i := range 1000 {
		kernel[0].receive(numbered(i, 60))
	}
	kernel[1].receive(numbered(1000, 60))
	kernel[2].receive(numbered(2000, 60))
	b := source.Batch{Frames: make([]source.Frame, 0, 100)}
	_, err := s.Next(&b)
	require.NoError(t, err)
	var others int
	for _, f := range b.Frames {
		if number(f) >= 1000 {
			others++
		}
	}
	require.Equal(t, 2, others, "a busy queue holds up the others")
}

func TestDescriptorOutsideOfTheBuffersIsCounted(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64, Timestamps: true}, 0, 1)
	end := uint64(len(s.umem))
	for _, d := range []unix.XDPDesc{{Addr: end, Len: 60}, {Addr: end - 10, Len: 60}, {Addr: 1<<64 - 5, Len: 60}, {Addr: 1 << 40, Len: 1}} {
		kernel[0].rx.push(d)
	}
	kernel[0].rx.publish()
	kernel[0].receive(numbered(1, 60))
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, map[string]uint64{"rx_invalid": 4}, s.Stats().Dropped)
}

func TestFramesOfSeveralSocketsAreMergedByTheirTimes(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64, Timestamps: true}, 0, 2)
	base := monotonic() - 1000
	for i := range 20 { // in runs of 5, alternately
		kernel[i/5%2].receiveAt(base+int64(i), numbered(i, 60))
	}
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 20, n)
	for i, f := range b.Frames {
		require.Equal(t, i, number(f))
		require.Equal(t, base+int64(i)+s.clock.offset, f.TimestampNs)
	}
	require.EqualValues(t, 20, s.Timed())
	require.Nil(t, s.Stats().Repaired)
}

func TestTimesNeverDecreaseAndImpossibleOnesAreCounted(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64, Timestamps: true}, 0, 1)
	base := monotonic()
	for i, ns := range []int64{base, base - 500, base - 1e10, base + 1e10, 0, base + 10} {
		kernel[0].receiveAt(ns, numbered(i, 60))
	}
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.Equal(t, b.Frames[0].TimestampNs, b.Frames[1].TimestampNs)
	for i := range b.Frames[1:] {
		require.GreaterOrEqual(t, b.Frames[i+1].TimestampNs, b.Frames[i].TimestampNs)
	}
	require.Equal(t, map[string]uint64{"bad_timestamp": 3}, s.Stats().Repaired)
	require.EqualValues(t, 3, s.Timed())
}

func TestMetadataOfAnEarlierFrameAreNotTakenForThoseOfTheNext(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64, Timestamps: true}, 0, 1)
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	for i := range 64 {
		kernel[0].receiveAt(monotonic(), numbered(i, 60))
	}
	_, err := s.Next(&b)
	require.NoError(t, err)
	s.takeBack(&b)
	for i := range 64 {
		kernel[0].receive(numbered(i, 60))
	}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 64, n)
	require.EqualValues(t, 64, s.Timed())
}

// TestBatchesHoldBuffersUntilTheyComeBack: a batch has the frames where they were received,
// but no more than half of the buffers; the rest of its frames are copies, whose buffers are
// free at once. Nothing of it changes until the batch comes back.
func TestBatchesHoldBuffersUntilTheyComeBack(t *testing.T) {
	const frames = 64
	s, kernel := newFake(t, Config{Frames: frames, RingSize: frames}, 0, 1)
	inside := func(f source.Frame) bool {
		at := uintptr(unsafe.Pointer(&f.Data[0])) - uintptr(unsafe.Pointer(&s.umem[0]))
		return at < uintptr(len(s.umem))
	}
	next := func(b *source.Batch, from, count, lent int) {
		for i := range count {
			kernel[0].receive(numbered(from+i, 60+i))
		}
		n, err := s.Next(b)
		require.NoError(t, err)
		require.Equal(t, count, n)
		for i, f := range b.Frames {
			require.Equal(t, i < lent, inside(f), "frame %d", i)
		}
	}
	var first, second source.Batch
	next(&first, 0, 40, frames/2)
	next(&second, 100, 20, 0)
	require.EqualValues(t, frames/2, kernel[0].fill.look(), "the kernel has the others")
	for i, f := range first.Frames {
		require.Equal(t, numbered(i, 60+i), f.Data)
	}
	next(&first, 200, 30, 30)
	require.EqualValues(t, frames-30, kernel[0].fill.look())
	for i, f := range second.Frames {
		require.Equal(t, numbered(100+i, 60+i), f.Data)
	}
	next(&second, 300, 1, 1)
	next(&first, 400, 1, 1)
	require.Equal(t, 2, s.queues[0].lent)
}

func TestInterruptedSourceEnds(t *testing.T) {
	s, kernel := newFake(t, Config{Frames: 64, RingSize: 64}, 0, 1)
	kernel[0].receive(numbered(0, 60))
	s.Interrupt()
	for range 2 {
		n, err := s.Next(new(source.Batch))
		require.Zero(t, n)
		require.Equal(t, io.EOF, err)
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	for _, timestamps := range []bool{false, true} {
		s, kernel := newFake(t, Config{Frames: 256, RingSize: 256, Timestamps: timestamps}, 0, 2)
		b := source.Batch{Frames: make([]source.Frame, 0, 256)}
		frame := numbered(1, 1500)
		_, err := s.Next(&b)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			for range 128 {
				for _, k := range kernel {
					k.quick(frame)
				}
			}
			if n, err := s.Next(&b); n != 256 || err != nil {
				t.Fatal(n, err)
			}
		}))
	}
}

// quick is receive without checks.
func (f *fakeQueue) quick(frame []byte) {
	f.fill.look()
	addr := *f.fill.at(0) + headroom
	f.fill.skip(1)
	f.fill.publish()
	copy(f.s.umem[addr:], frame)
	f.rx.push(unix.XDPDesc{Addr: addr, Len: uint32(len(frame))})
	f.rx.publish()
}

func TestWaysToBindAreTriedBestFirst(t *testing.T) {
	const zc, cp, sg, nw = unix.XDP_ZEROCOPY, unix.XDP_COPY, unix.XDP_USE_SG, unix.XDP_USE_NEED_WAKEUP
	for _, c := range []struct {
		name string
		cfg  Config
		link linkInfo
		want []attempt
		err  error
	}{
		{"default", Config{}, linkInfo{mtu: 1500}, []attempt{
			{zc | nw | sg, 2048}, {zc | sg, 2048}, {zc | nw, 2048}, {zc, 2048},
			{cp | nw | sg, 2048}, {cp | sg, 2048}, {cp | nw, 2048}, {cp, 2048},
		}, nil},
		{"generic program", Config{}, linkInfo{mtu: 1500, generic: true}, []attempt{{cp | nw | sg, 2048}, {cp | sg, 2048}, {cp | nw, 2048}, {cp, 2048}}, nil},
		{"zero-copy only", Config{Mode: ModeZeroCopy, DisableNeedWakeup: true}, linkInfo{mtu: 1500}, []attempt{{zc | sg, 2048}, {zc, 2048}}, nil},
		{"one buffer", Config{Mode: ModeCopy, DisableMultiBuffer: true, DisableNeedWakeup: true}, linkInfo{mtu: 1500}, []attempt{{cp, 2048}}, nil},
		{"MTU of 3000", Config{Mode: ModeCopy, DisableNeedWakeup: true}, linkInfo{mtu: 3000}, []attempt{{cp | sg, 2048}, {cp, 4096}}, nil},
		{"MTU of 9000", Config{DisableNeedWakeup: true}, linkInfo{mtu: 9000}, []attempt{{zc | sg, 2048}, {cp | sg, 2048}}, nil},
		{"MTU of 9000, one buffer", Config{DisableMultiBuffer: true}, linkInfo{mtu: 9000}, nil, ErrMTU},
		{"MTU of 3000, small buffers", Config{DisableMultiBuffer: true, FrameSize: 2048}, linkInfo{mtu: 3000}, nil, ErrMTU},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := attempts(&c.cfg, []*port{{linkInfo: c.link}})
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestConfigThatContradictsItselfIsRefused(t *testing.T) {
	for _, c := range []Config{
		{PerQueue: -1}, {PerQueue: 65}, {RingSize: 100}, {RingSize: 32}, {RingSize: 1 << 17}, {Frames: 100}, {Frames: 32}, {Frames: 1 << 21},
		{FrameSize: 1000}, {FrameSize: 8192}, {SnapLen: -1}, {Mode: 9}, {}, // the last has no map
	} {
		_, err := Open(c)
		require.ErrorIs(t, err, ErrConfig)
	}
}

// BenchmarkNext is the cost of a frame without the kernel.
func BenchmarkNext(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
		cfg  Config
	}{
		{"64", 64, Config{}}, {"512", 512, Config{}}, {"1514", 1514, Config{}}, {"1514 snap 256", 1514, Config{SnapLen: 256}}, {"64 by time", 64, Config{Timestamps: true}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.cfg.Frames, c.cfg.RingSize = 4096, 2048
			s, kernel := newFake(b, c.cfg, 0, 1)
			batch := source.Batch{Frames: make([]source.Frame, 0, 256)}
			frame := numbered(1, c.size)
			left := b.N
			b.ReportAllocs()
			b.SetBytes(int64(c.size))
			for b.StartTimer(); left > 0; {
				b.StopTimer()
				for range 2048 {
					kernel[0].quick(frame)
				}
				b.StartTimer()
				for range 8 {
					n, err := s.Next(&batch)
					if err != nil || n != 256 {
						b.Fatal(n, err)
					}
					left -= n
				}
			}
		})
	}
}
