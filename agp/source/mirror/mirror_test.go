package mirror

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/live"
)

const start = 1_000_000_000_000 // monotonic ns

// open returns a source over n rings of 4 KiB whose clock stands at start + 1 s.
func open(n int, cfg Config) (*Source, []*fakeRing, *fakeClock) {
	return openSize(n, 4096, cfg)
}

func openSize(n, size int, cfg Config) (*Source, []*fakeRing, *fakeClock) {
	var (
		fakes []*fakeRing
		rings []ring
	)
	for range n {
		f := newFakeRing(size)
		fakes = append(fakes, f)
		rings = append(rings, f.ring())
	}
	clock := &fakeClock{ns: start + 1e9, offset: 5e18}
	if cfg.Clock == nil {
		cfg.Clock = clock
	}
	if cfg.Links == nil {
		cfg.Links = links
	}
	return newSource(cfg, rings), fakes, clock
}

// frame returns an IPv4 UDP frame with a number in its payload.
func frame(n int, payload int) []byte {
	f := make([]byte, 14+20+8+payload)
	copy(f, "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x00\x45")
	binary.BigEndian.PutUint16(f[16:], uint16(28+payload))
	f[22], f[23] = 64, packet.ProtoUDP
	copy(f[26:], "\x0a\x00\x00\x01\x0a\x00\x00\x02\x04\x00\x08\x00")
	binary.BigEndian.PutUint16(f[38:], uint16(8+payload))
	if payload >= 8 {
		binary.BigEndian.PutUint64(f[42:], uint64(n))
	}
	return f
}

func next(t *testing.T, s *Source, b *source.Batch) []source.Frame {
	n, err := s.Next(b)
	require.NoError(t, err)
	require.Len(t, b.Frames, n)
	return b.Frames
}

// TestFrameOfARecord: bytes, true length, time, interface and link type.
func TestFrameOfARecord(t *testing.T) {
	s, rings, _ := open(1, Config{})
	long := frame(1, 1000)
	raw := frame(2, 20)[14:]
	require.True(t, rings[0].write(rec{ns: start + 1, frame: long}.bytes()))
	require.True(t, rings[0].write(rec{ns: start + 2, frame: raw, ifindex: 8, hook: 1, tag: 0x8100, tci: 5}.bytes()))
	var b source.Batch
	got := next(t, s, &b)
	require.Len(t, got, 2)
	require.Equal(t, source.Frame{Data: long[:256], TimestampNs: 5e18 + start + 1, WireLen: 1042, LinkType: packet.LinkEthernet, Side: 1}, got[0])
	require.Equal(t, source.Frame{Data: raw, TimestampNs: 5e18 + start + 2, WireLen: 48, LinkType: packet.LinkRaw, Interface: 1, Side: source.SideOut}, got[1])
	st := s.Stats()
	require.EqualValues(t, 2, st.Frames)
	require.EqualValues(t, 256+48, st.Bytes)
	require.Empty(t, st.Dropped)
	require.Empty(t, st.Repaired)
	require.Equal(t, rings[0].producer, rings[0].consumer, "the memory is the kernel's again")
}

// TestSideIsWhereAFrameComesFrom: each interface by either hook of arrival, this machine, and what
// it forwards from one of these, from another, and back to where it came from.
func TestSideIsWhereAFrameComesFrom(t *testing.T) {
	s, rings, _ := open(1, Config{})
	want := []uint8{1, 1, source.SideOut, 3, 3, source.SideOut, 3, source.SideOther, 1}
	for i, r := range []rec{
		{ifindex: 7}, {ifindex: 7, hook: 2}, {ifindex: 7, hook: 1}, {ifindex: 9}, {ifindex: 9, hook: 2}, {ifindex: 9, hook: 1},
		{ifindex: 7, hook: 1, from: 9}, {ifindex: 7, hook: 1, from: 99}, {ifindex: 7, hook: 1, from: 7},
	} {
		r.ns, r.frame = start+uint64(i), frame(i, 20)
		rings[0].write(r.bytes())
	}
	var b source.Batch
	var got []uint8
	for _, f := range next(t, s, &b) {
		got = append(got, f.Side)
	}
	require.Equal(t, want, got)
}

// TestHardwareTagIsPutBack: the tag lies behind the MAC addresses and counts.
func TestHardwareTagIsPutBack(t *testing.T) {
	s, rings, _ := open(1, Config{})
	f := frame(1, 300)
	rings[0].write(rec{ns: start, frame: f, tag: 0x88a8, tci: 0x2123}.bytes())
	var b source.Batch
	got := next(t, s, &b)[0]
	want := append(append(append([]byte(nil), f[:12]...), 0x88, 0xa8, 0x21, 0x23), f[12:256]...)
	require.Equal(t, want, got.Data)
	require.EqualValues(t, len(f)+4, got.WireLen)
	var in packet.Info
	var p packet.Parser
	require.Equal(t, packet.OK, p.Parse(got.LinkType, got.Data, got.WireLen, &in))
	require.EqualValues(t, 0x123, in.VLAN)
}

// TestCoalescedFrame: the segment size is told; a frame without a single one is one frame and counted.
func TestCoalescedFrame(t *testing.T) {
	s, rings, _ := open(1, Config{})
	rings[0].write(rec{ns: start, frame: frame(1, 4000), gso: 1400, segs: 3}.bytes())
	rings[0].write(rec{ns: start, frame: frame(2, 4000), gso: gsoByFrags, segs: 3}.bytes())
	var b source.Batch
	got := next(t, s, &b)
	require.EqualValues(t, 1400, got[0].SegmentSize)
	require.EqualValues(t, 0, got[1].SegmentSize)
	require.Equal(t, map[string]uint64{"gso_by_frags": 1}, s.Stats().Repaired)
}

// TestMalformedRecordsAreCounted: whatever a record says that cannot be, the next one is read.
func TestMalformedRecordsAreCounted(t *testing.T) {
	good := rec{ns: start, frame: frame(1, 100)}
	edit := func(off int, v uint16) []byte {
		b := good.bytes()
		binary.NativeEndian.PutUint16(b[off:], v)
		return b
	}
	for name, bad := range map[string][]byte{
		"shorter than its header":       good.bytes()[:eventSize-1],
		"empty":                         {},
		"captured more than the record": edit(24, 257),
		"captured nothing":              edit(24, 0),
		"captured more than the frame":  edit(8, 10),
		"unknown hook":                  edit(34, 9),
		"time far ahead":                rec{ns: 1 << 63, frame: frame(1, 100)}.bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 2} {
				s, rings, _ := open(n, Config{})
				require.True(t, rings[0].write(bad))
				require.True(t, rings[0].write(good.bytes()))
				var b source.Batch
				require.Len(t, next(t, s, &b), 1)
				require.Equal(t, map[string]uint64{"malformed": 1}, s.Stats().Dropped)
			}
		})
	}
}

// TestUnknownInterfaceIsCounted: in frames on the wire, and asked for again.
func TestUnknownInterfaceIsCounted(t *testing.T) {
	asked := 0
	s, rings, _ := open(1, Config{Links: func(i int) (Link, bool) {
		asked++
		return links(i)
	}})
	rings[0].write(rec{ns: start, ifindex: 99, frame: frame(1, 3000), gso: 1000}.bytes())
	rings[0].write(rec{ns: start, ifindex: 99, frame: frame(1, 30)}.bytes())
	rings[0].write(rec{ns: start, frame: frame(1, 30)}.bytes())
	rings[0].write(rec{ns: start, ifindex: 9, frame: frame(1, 30)}.bytes())
	rings[0].write(rec{ns: start, frame: frame(1, 30)}.bytes())
	var b source.Batch
	require.Len(t, next(t, s, &b), 3)
	require.Equal(t, map[string]uint64{"unknown_interface": 4}, s.Stats().Dropped)
	require.Equal(t, 4, asked)
}

// TestCorruptRingEndsTheInput: what came before is delivered, then there is one clear error.
func TestCorruptRingEndsTheInput(t *testing.T) {
	for name, spoil := range map[string]func(f *fakeRing){
		"record longer than what was written": func(f *fakeRing) { f.header(f.producer, 5000); f.producer += 16 },
		"producer too far ahead":              func(f *fakeRing) { f.producer += 8192 },
		"position not aligned":                func(f *fakeRing) { f.header(f.producer, 1); f.producer += 12 },
	} {
		t.Run(name, func(t *testing.T) {
			s, rings, _ := open(2, Config{})
			rings[0].write(rec{ns: start, frame: frame(1, 30)}.bytes())
			rings[1].write(rec{ns: start, frame: frame(2, 30)}.bytes())
			var b source.Batch
			require.Len(t, next(t, s, &b), 2)
			rings[0].write(rec{ns: start, frame: frame(3, 30)}.bytes())
			spoil(rings[1])
			require.Len(t, next(t, s, &b), 1)
			for range 2 {
				_, err := s.Next(&b)
				require.ErrorIs(t, err, ErrCorrupt)
				require.ErrorContains(t, err, "CPU 1")
			}
		})
	}
}

// TestBusyRecordIsWaitedFor: what follows it in the ring, and what is younger in others, comes after it.
func TestBusyRecordIsWaitedFor(t *testing.T) {
	s, rings, clock := open(2, Config{})
	a := rec{ns: start + 1000, frame: frame(1, 30)}.bytes()
	pos, _ := rings[0].reserve(a)
	rings[0].write(rec{ns: start + 3000, frame: frame(3, 30)}.bytes())
	rings[1].write(rec{ns: start + 2e9, frame: frame(2, 30)}.bytes())
	clock.ns = start + 2e9 + 1e6
	s.rings[0].emptyAt = start
	naps := 0
	clock.onNap = func() {
		if naps++; naps == 3 {
			rings[0].commit(pos, a)
		}
	}
	var b source.Batch
	var got []uint64
	for len(got) < 3 {
		for _, f := range next(t, s, &b) {
			got = append(got, binary.BigEndian.Uint64(f.Data[42:]))
		}
	}
	require.Equal(t, []uint64{1, 3, 2}, got)
	require.GreaterOrEqual(t, naps, 3)
	require.Empty(t, s.Stats().Repaired)
}

// TestBusyRecordHoldsUpOthersForABoundedTime: 5 ms, then the late frame is counted.
func TestBusyRecordHoldsUpOthersForABoundedTime(t *testing.T) {
	s, rings, clock := open(2, Config{})
	a := rec{ns: start + 1000, frame: frame(1, 30)}.bytes()
	s.rings[0].emptyAt = start
	pos, _ := rings[0].reserve(a)
	rings[1].write(rec{ns: start + 2e8, frame: frame(2, 30)}.bytes())
	before := clock.ns
	var b source.Batch
	require.Len(t, next(t, s, &b), 1)
	require.InDelta(t, busyWait, clock.ns-before, 3e6)
	require.Equal(t, uint64(2), binary.BigEndian.Uint64(b.Frames[0].Data[42:]))
	rings[0].commit(pos, a)
	got := next(t, s, &b)
	require.EqualValues(t, 5e18+start+1000, got[0].TimestampNs, "the late frame keeps its time")
	require.Equal(t, map[string]uint64{"out_of_order": 1}, s.Stats().Repaired)
}

// TestDiscardedRecordsAreSkipped: also if there is nothing else.
func TestDiscardedRecordsAreSkipped(t *testing.T) {
	s, rings, _ := open(1, Config{})
	a := rec{ns: start, frame: frame(1, 30)}.bytes()
	for range 3 {
		pos, _ := rings[0].reserve(a)
		rings[0].discard(pos, a)
	}
	var b source.Batch
	require.Empty(t, next(t, s, &b))
	require.Equal(t, rings[0].producer, rings[0].consumer)
	pos, _ := rings[0].reserve(a)
	rings[0].discard(pos, a)
	rings[0].write(rec{ns: start, frame: frame(2, 30)}.bytes())
	require.Len(t, next(t, s, &b), 1)
	require.Empty(t, s.Stats().Dropped)
}

// TestYoungFramesWaitForOtherCPUs: until they are older than the slack.
func TestYoungFramesWaitForOtherCPUs(t *testing.T) {
	s, rings, clock := open(2, Config{})
	at := clock.ns
	rings[0].write(rec{ns: uint64(at), frame: frame(1, 30)}.bytes())
	var b source.Batch
	require.Len(t, next(t, s, &b), 1)
	require.InDelta(t, at+100_000, clock.ns, 100_000)
	require.GreaterOrEqual(t, clock.ns, at+100_000)
}

// TestIdleReturnsInTime: Next returns without frames after at most 50 ms, and sleeps little often.
func TestIdleReturnsInTime(t *testing.T) {
	for _, n := range []int{1, 8} {
		s, _, clock := open(n, Config{})
		var b source.Batch
		for range 3 {
			before, slept := clock.ns, clock.slept
			require.Empty(t, next(t, s, &b))
			require.LessOrEqual(t, clock.ns-before, int64(live.MaxWait))
			require.Greater(t, clock.ns-before, int64(live.MaxWait/2))
			require.LessOrEqual(t, clock.slept-slept, 40)
		}
	}
}

// TestFullBatchesAreReadWithoutSleep: a reader that is behind does not pause.
func TestFullBatchesAreReadWithoutSleep(t *testing.T) {
	s, rings, clock := openSize(1, 1<<20, Config{})
	r := rec{ns: start, frame: frame(1, 30)}.bytes()
	n := 0
	for rings[0].write(r) {
		n++
	}
	b := source.Batch{Frames: make([]source.Frame, 0, 32)}
	got := 0
	for got < n {
		got += len(next(t, s, &b))
	}
	require.Zero(t, clock.slept)
}

// TestInterruptEndsNext: a waiting Next and every later one.
func TestInterruptEndsNext(t *testing.T) {
	s, rings, clock := open(1, Config{})
	clock.onNap = s.Interrupt
	var b source.Batch
	_, err := s.Next(&b)
	require.Equal(t, io.EOF, err)
	rings[0].write(rec{ns: start, frame: frame(1, 30)}.bytes())
	_, err = s.Next(&b)
	require.Equal(t, io.EOF, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Next(&b)
	require.Equal(t, io.EOF, err)
	require.Empty(t, s.Stats().Dropped)
}

// TestMergeIsSortedAndLosesNothing: 1 to 8 CPUs write and wrap rings with committed,
// discarded and late-committed records while the source reads; every frame comes once,
// in order of time.
func TestMergeIsSortedAndLosesNothing(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cpus := 1 + rng.IntN(8)
		s, rings, clock := openSize(cpus, 4096<<rng.IntN(2), Config{})
		clock.ns = start
		type open struct {
			pos  uintptr
			b    []byte
			at   int64
			drop bool
		}
		held := make([][]open, cpus)
		written := 0
		// Time passes in steps shorter than the slack; a record is finished within it.
		step := func() {
			clock.ns += rng.Int64N(20_000)
			for c := range cpus {
				keep := held[c][:0]
				for _, o := range held[c] {
					if clock.ns-o.at < 60_000 && rng.IntN(3) > 0 {
						keep = append(keep, o)
						continue
					}
					if o.drop {
						rings[c].discard(o.pos, o.b)
					} else {
						rings[c].commit(o.pos, o.b)
					}
				}
				held[c] = keep
				for range rng.IntN(4) {
					if written >= 3000 {
						continue
					}
					clock.ns += rng.Int64N(50)
					b := rec{ns: uint64(clock.ns), frame: frame(written, 8+rng.IntN(300))}.bytes()
					pos, ok := rings[c].reserve(b)
					if !ok {
						continue
					}
					drop := rng.IntN(10) == 0
					if !drop {
						written++
					}
					held[c] = append(held[c], open{pos, b, clock.ns, drop})
				}
			}
		}
		clock.onNap = step
		b := source.Batch{Frames: make([]source.Frame, 0, 1+rng.IntN(64))}
		var got int
		last, seen := int64(0), make(map[uint64]bool)
		for got < 3000 {
			step()
			for _, f := range next(t, s, &b) {
				require.GreaterOrEqual(t, f.TimestampNs, last, "seed %d", seed)
				last = f.TimestampNs
				id := binary.BigEndian.Uint64(f.Data[42:])
				require.False(t, seen[id], "seed %d: frame %d comes twice", seed, id)
				seen[id] = true
				got++
			}
		}
		require.Len(t, seen, 3000)
		require.Empty(t, s.Stats().Repaired, "seed %d", seed)
	}
}

// TestConcurrentWriters: real goroutines write while the source reads by the system's clock.
func TestConcurrentWriters(t *testing.T) {
	const cpus, each = 4, 5000
	clock := live.System()
	s, rings, _ := openSize(cpus, 1<<14, Config{Clock: clock})
	var wg sync.WaitGroup
	for c := range cpus {
		wg.Go(func() {
			for i := range each {
				b := rec{ns: uint64(clock.Monotonic()), frame: frame(c*each+i, 8+i%100)}.bytes()
				for !rings[c].write(b) {
					time.Sleep(100 * time.Microsecond) // the kernel drops here; what is tested is the hand-over
				}
			}
		})
	}
	var b source.Batch
	next1 := make([]uint64, cpus)
	for got := 0; got < cpus*each; {
		for _, f := range next(t, s, &b) {
			id := binary.BigEndian.Uint64(f.Data[42:])
			require.Equal(t, next1[id/each], id%each)
			next1[id/each]++
			got++
		}
	}
	wg.Wait()
}

// TestReadingDoesNotAllocate: after the first batch, also with duplicates and tags.
func TestReadingDoesNotAllocate(t *testing.T) {
	s, rings, _ := openSize(4, 1<<16, Config{Duplicates: true})
	recs := [][]byte{
		rec{ns: start, frame: frame(1, 200)}.bytes(),
		rec{ns: start, frame: frame(1, 200), hook: 1}.bytes(),
		rec{ns: start, frame: frame(2, 1200), gso: 500, tag: 0x8100, tci: 1}.bytes(),
		rec{ns: start, frame: frame(2, 1200), gso: 500, ifindex: 9}.bytes(),
	}
	var b source.Batch
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range 64 {
			if !rings[i%4].write(recs[i/4%4]) {
				t.Fatal("full")
			}
		}
		if n, err := s.Next(&b); n != 32 || err != nil {
			t.Fatal(n, err)
		}
	}))
	require.EqualValues(t, 101*32, s.Stats().Frames)
	require.EqualValues(t, 101*(16+16*3), s.Stats().Dropped["duplicate"], "a coalesced frame counts as 3")
}
