package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/mlx5/poll"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

const base = int64(1_700_000_000_000_000_000)

// frames is a source that makes n frames, the i-th by make.
type frames struct {
	n, i    int
	make    func(i int) source.Frame
	err     error // at the end; nil: io.EOF
	idle    int   // calls that deliver nothing, at the end
	stopped atomic.Bool
}

func (f *frames) Next(b *source.Batch) (n int, err error) {
	if f.stopped.Load() {
		return 0, io.EOF
	}
	for ; n < len(b.Frames) && f.i < f.n; n++ {
		b.Frames[n] = f.make(f.i)
		f.i++
	}
	switch {
	case n > 0:
		return n, nil
	case f.idle > 0:
		f.idle--
		return 0, nil
	case f.err != nil:
		return 0, f.err
	}
	return 0, io.EOF
}
func (f *frames) Stats() source.Stats {
	return source.Stats{Frames: uint64(f.i), Dropped: map[string]uint64{"early": 1}}
}
func (f *frames) Interrupt()   { f.stopped.Store(true) }
func (f *frames) Close() error { return nil }

// mixed makes frame i of a mix of flows, of which one has most packets: UDP, fragments, and what
// is no IP. Times jump now and then, also back.
func mixed(seed uint64) func(i int) source.Frame {
	ts := base
	rng := rand.New(rand.NewPCG(seed, 7))
	return func(i int) source.Frame {
		ts += rng.Int64N(3e6)
		switch rng.IntN(2000) {
		case 0:
			ts += 90e9
		case 1:
			ts -= rng.Int64N(100e9)
		}
		f := make([]byte, 60+rng.IntN(8))
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		ip := f[14:]
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(len(f)-14))
		copy(ip[12:], []byte{10, 0, 0, 0, 192, 168, 1, 1})
		flow := 0
		if rng.IntN(4) == 0 {
			flow = rng.IntN(1000)
		}
		binary.BigEndian.PutUint16(ip[14:], uint16(flow))
		binary.BigEndian.PutUint16(ip[20:], 1024+uint16(flow))
		binary.BigEndian.PutUint32(f[46:], uint32(i))
		switch rng.IntN(40) {
		case 0:
			f[12], f[13] = 0x88, 0xcc
		case 1:
			binary.BigEndian.PutUint16(ip[6:], 0x2000) // first fragment
			ip[4] = byte(flow)
		case 2:
			binary.BigEndian.PutUint16(ip[6:], 0x0003) // last fragment
			ip[4] = byte(flow)
		case 3:
			f = f[:rng.IntN(30)]
		}
		return source.Frame{
			Data: f, TimestampNs: ts, WireLen: uint32(len(f) + rng.IntN(2)*100), LinkType: packet.LinkEthernet,
			Side: uint8(rng.IntN(4)), SegmentSize: uint16(rng.IntN(2) * 1448),
		}
	}
}

// seen is what a queue shows: a frame or a tick.
type seen struct {
	data    string
	ns      int64
	wire    uint32
	link    packet.LinkType
	side    uint8
	segment uint16
	tick    bool
}

func (s seen) String() string {
	return fmt.Sprintf("%x at %d, wire length %d, link %d, side %d, segments of %d, tick %t", s.data, s.ns, s.wire, s.link, s.side, s.segment, s.tick)
}

func seenOf(k *poll.Packet) seen {
	return seen{string(k.Data), k.TimestampNs, k.WireLen, k.LinkType, k.Side, k.SegmentSize, k.Tick}
}

// expect is what n queues must show of a source, by the rules of the CPU pipeline.
func expect(f *frames, n int) [][]seen {
	out := make([][]seen, n)
	var clock flow.Clock
	var p packet.Parser
	fragments := packet.NewFragmentTable(packet.FragmentDatagrams)
	turn := 0
	for i := range f.n {
		fr := f.make(i)
		var k flow.Packet
		q := turn % n
		if p.Parse(fr.LinkType, fr.Data, fr.WireLen, &k.Info) == packet.OK {
			k.TimestampNs = fr.TimestampNs
			fragments.Resolve(&k.Info)
			if ns, due := clock.Pass(fr.TimestampNs); due {
				for i := range out {
					out[i] = append(out[i], seen{ns: ns, tick: true})
				}
			}
			k.Key.Set(&k.Info, flow.KeyOptions{})
			q = flow.QueueOf(flow.BucketOf(k.Key.Hash(5)), n)
		} else {
			turn++
		}
		out[q] = append(out[q], seen{string(fr.Data), fr.TimestampNs, max(fr.WireLen, uint32(len(fr.Data))), fr.LinkType, fr.Side, fr.SegmentSize, false})
	}
	return out
}

func queues(t testing.TB, n int, l mlx5.Layout) []mlx5.Queue {
	out := make([]mlx5.Queue, n)
	for i := range out {
		var err error
		out[i], err = mlx5.NewQueue(l)
		require.NoError(t, err)
	}
	return out
}

func poller(t testing.TB, q mlx5.Queue) *poll.Poller {
	p, err := poll.New(poll.Config{Queue: q, Relay: true})
	require.NoError(t, err)
	return p
}

// consume checks one queue against what it must show, until all has come.
func consume(ctx context.Context, p *poll.Poller, want []seen) error {
	list := make([]poll.Packet, 0, poll.MaxBatch)
	deadline := time.Now().Add(2 * time.Minute)
	for i := 0; i < len(want) && ctx.Err() == nil; {
		var err error
		if list, err = p.Poll(list); err != nil {
			return err
		}
		if i+len(list) > len(want) {
			return fmt.Errorf("%d more than the %d that there are", i+len(list)-len(want), len(want))
		}
		for j := range list {
			switch got := seenOf(&list[j]); {
			case got.tick && want[i].tick && got.ns == want[i].ns:
			case got != want[i]:
				return fmt.Errorf("%d: got %s, want %s", i, got, want[i])
			}
			i++
		}
		p.Release()
		if len(list) == 0 {
			runtime.Gosched()
			if time.Now().After(deadline) {
				return fmt.Errorf("%d of %d came", i, len(want))
			}
		}
	}
	return nil
}

// run lets a relay publish while every queue is checked against what it must show. What is wrong in
// one of them ends the run.
func run(t *testing.T, r *Relay, qs []mlx5.Queue, want [][]seen) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range qs {
		p := poller(t, qs[i])
		wg.Go(func() {
			if err := consume(ctx, p, want[i]); err != nil {
				cancel(fmt.Errorf("queue %d: %w", i, err))
			}
		})
	}
	err := r.Run(ctx)
	if err != nil {
		cancel(err)
	}
	wg.Wait()
	require.NoError(t, errors.Join(err, context.Cause(ctx)))
}

var small = mlx5.Layout{LogCQ: 6, LogRQ: 5, Pitch: 128}

func TestPollerGetsBackFramesAndTicksInOrder(t *testing.T) {
	const n = 110_000 // three quarters of them in one queue: more than the 16 bits of its WQE counter
	for _, rings := range []int{1, 2, 3, 5, 16} {
		t.Run(fmt.Sprint(rings), func(t *testing.T) {
			t.Parallel()
			want := expect(&frames{n: n, make: mixed(1)}, rings)
			most := 0
			for i := range want {
				most = max(most, len(want[i]))
			}
			require.Greater(t, most, 1<<16)
			qs := queues(t, rings, small)
			r, err := New(Config{Source: &frames{n: n, make: mixed(1)}, Queues: qs, Seed: 5, Batch: 100})
			require.NoError(t, err)
			run(t, r, qs, want)
			require.True(t, r.Drained())
			var sum Counters
			for i := range qs {
				c := r.Counters(i)
				sum.add(&c)
			}
			require.EqualValues(t, n, sum.Frames)
			require.Zero(t, sum.Full+sum.Cut)
			require.EqualValues(t, n, r.Stats().Frames)
		})
	}
}

func TestCapturesPassUnchanged(t *testing.T) {
	for _, path := range testcap.All(t) {
		open := func() source.Source {
			s, err := pcap.Open([]string{path}, pcap.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			return s
		}
		b := source.Batch{Frames: make([]source.Frame, 1000)}
		var all []source.Frame
		src := open()
		for len(all) < 2000 {
			n, err := src.Next(&b)
			for _, f := range b.Frames[:n] {
				f.Data = append([]byte(nil), f.Data...)
				all = append(all, f)
			}
			if err != nil {
				break
			}
		}
		if len(all) == 0 {
			continue
		}
		of := func(i int) source.Frame { return all[i] }
		want := expect(&frames{n: len(all), make: of}, 3)
		qs := queues(t, 3, mlx5.Layout{LogCQ: 5, LogRQ: 4, Pitch: mlx5.MaxPitch})
		r, err := New(Config{Source: &frames{n: len(all), make: of}, Queues: qs, Seed: 5})
		require.NoError(t, err)
		run(t, r, qs, want)
	}
}

func TestLongFramesAreCutAndKeepTheirWireLength(t *testing.T) {
	long := func(i int) source.Frame {
		f := mixed(3)(i)
		data := append(append([]byte(nil), f.Data...), make([]byte, 300)...)
		return source.Frame{Data: data, WireLen: 9000, TimestampNs: base, LinkType: 1}
	}
	qs := queues(t, 1, small)
	r, err := New(Config{Source: &frames{n: 3, make: long}, Queues: qs})
	require.NoError(t, err)
	require.NoError(t, r.Run(context.Background()))
	list, err := poller(t, qs[0]).Poll(make([]poll.Packet, 0, 8))
	require.NoError(t, err)
	require.Len(t, list, 4)
	require.True(t, list[0].Tick)
	require.EqualValues(t, base, list[0].TimestampNs)
	for _, k := range list[1:] {
		require.Len(t, k.Data, int(small.Pitch))
		require.EqualValues(t, 9000, k.WireLen)
	}
	require.EqualValues(t, 3, r.Counters(0).Cut)
}

// The poller sees the slot and nothing else: what cannot be parsed there is in no flow and moves no clock.
func TestWhatIsCutDoesNotCount(t *testing.T) {
	f := make([]byte, 80)
	f[12], f[13], f[14], f[20], f[19] = 0x86, 0xdd, 0x60, 6, 26
	f[66] = 0x50
	for pitch, ticks := range map[uint32]uint64{64: 0, 128: 1} {
		l := small
		l.Pitch = pitch
		qs := queues(t, 1, l)
		r, err := New(Config{Source: &frames{n: 1, make: func(int) source.Frame {
			return source.Frame{Data: f, WireLen: 80, LinkType: packet.LinkEthernet, TimestampNs: base}
		}}, Queues: qs})
		require.NoError(t, err)
		require.NoError(t, r.Run(context.Background()))
		require.Equal(t, ticks, r.Counters(0).Ticks)
		require.EqualValues(t, 1, r.Counters(0).Frames)
	}
}

func TestUnknownLinkTypesStayUnknown(t *testing.T) {
	qs := queues(t, 1, small)
	r, err := New(Config{Source: &frames{n: 1, make: func(int) source.Frame {
		return source.Frame{Data: make([]byte, 60), LinkType: 1<<16 + 1, TimestampNs: base}
	}}, Queues: qs})
	require.NoError(t, err)
	require.NoError(t, r.Run(context.Background()))
	list, err := poller(t, qs[0]).Poll(make([]poll.Packet, 0, 8))
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.EqualValues(t, 0xffff, list[0].LinkType)
}

func TestFullQueueDropsWhenLiveAndTicksWait(t *testing.T) {
	qs := queues(t, 1, small)
	mk := func(i int) source.Frame {
		f := mixed(9)(0)
		return source.Frame{Data: f.Data, WireLen: f.WireLen, LinkType: 1, TimestampNs: base + int64(i)*1e8}
	}
	const n = 2000 // 200 ticks: more than the completion queue holds
	r, err := New(Config{Source: &frames{n: n, make: mk}, Queues: qs, Drop: true})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Run(context.Background()) }()
	// Nobody polls until the relay has dropped all that it must drop.
	require.Eventually(t, func() bool { return r.Stats().Dropped[DropFull] == n-32 }, 10*time.Second, time.Millisecond)
	p, frames, last := poller(t, qs[0]), 0, int64(0)
	list := make([]poll.Packet, 0, 32)
	for ended := false; ; {
		list, err = p.Poll(list)
		require.NoError(t, err)
		for _, k := range list {
			if k.Tick {
				require.Greater(t, k.TimestampNs, last)
				last = k.TimestampNs
			} else {
				frames++
			}
		}
		p.Release()
		if ended && len(list) == 0 {
			break
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			ended = true
		default:
			runtime.Gosched()
		}
	}
	require.Equal(t, 32, frames, "as many as were posted")
	require.Equal(t, (base+(n-1)*1e8)/flow.TickNs*flow.TickNs, last, "the last tick came, late")
	require.EqualValues(t, n, r.Stats().Dropped[DropFull]+r.Counters(0).Frames)
	require.EqualValues(t, 1, r.Stats().Dropped["early"], "the source's own drops stay")
}

func TestFullQueueIsWaitedForUntilCancelled(t *testing.T) {
	qs := queues(t, 1, small)
	r, err := New(Config{Source: &frames{n: 1000, make: mixed(2)}, Queues: qs})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	last := mlx5.CQESize * (1<<small.LogRQ - 1)
	require.Eventually(t, func() bool {
		op, _ := mlx5.LoadOpOwn(qs[0].CQ[last : last+mlx5.CQESize])
		return mlx5.Ready(op, 0, small.LogCQ)
	}, 10*time.Second, time.Millisecond)
	why := errors.New("enough")
	cancel(why)
	require.ErrorIs(t, <-done, why)
	require.EqualValues(t, 32, r.Counters(0).Frames)
	require.EqualValues(t, 1, r.Counters(0).Waits)
}

func TestTimePassesWithoutFramesWhenLive(t *testing.T) {
	qs := queues(t, 2, small)
	now := base
	r, err := New(Config{Source: &frames{idle: 5}, Queues: qs, Now: func() int64 { now += 6e8; return now }})
	require.NoError(t, err)
	require.NoError(t, r.Run(context.Background()))
	for i := range qs {
		list, err := poller(t, qs[i]).Poll(make([]poll.Packet, 0, 32))
		require.NoError(t, err)
		var ns []int64
		for _, k := range list {
			require.True(t, k.Tick)
			ns = append(ns, k.TimestampNs-base)
		}
		require.Equal(t, []int64{0, 1e9, 2e9, 3e9}, ns)
	}
	require.Equal(t, base+3e9, r.ClockNs())
}

func TestErrorOfTheSourceIsReturnedAfterItsFrames(t *testing.T) {
	qs := queues(t, 1, small)
	broken := errors.New("broken")
	r, err := New(Config{Source: &frames{n: 10, make: mixed(2), err: broken}, Queues: qs})
	require.NoError(t, err)
	require.ErrorIs(t, r.Run(context.Background()), broken)
	require.EqualValues(t, 10, r.Counters(0).Frames)
}

func TestBadConfigIsRefused(t *testing.T) {
	src := &frames{}
	good := queues(t, 1, small)
	short := queues(t, 1, small)
	short[0].RQ = short[0].RQ[:8]
	for name, c := range map[string]Config{
		"no source":       {Queues: good},
		"no queue":        {Source: src},
		"batch":           {Source: src, Queues: good, Batch: MaxBatch + 1},
		"no room to tick": {Source: src, Queues: queues(t, 1, mlx5.Layout{LogCQ: 5, LogRQ: 5, Pitch: 128})},
		"striding":        {Source: src, Queues: queues(t, 1, mlx5.Layout{LogCQ: 6, LogRQ: 4, Pitch: 128, Strides: 2, StrideSize: 64})},
		"memory":          {Source: src, Queues: short},
		"too many":        {Source: src, Queues: make([]mlx5.Queue, flow.Buckets+1)},
	} {
		_, err := New(c)
		require.ErrorIs(t, err, ErrConfig, name)
	}
}

func TestPublishingDoesNotAllocate(t *testing.T) {
	qs := queues(t, 1, mlx5.Layout{LogCQ: 15, LogRQ: 14, Pitch: 128})
	r, err := New(Config{Source: &frames{}, Queues: qs})
	require.NoError(t, err)
	f := mixed(4)(0)
	f.Data = append([]byte(nil), f.Data...)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		f.TimestampNs += 1e8
		if err := r.take(context.Background(), &f); err != nil {
			t.Fatal(err)
		}
	}))
}

func BenchmarkPublish(b *testing.B) {
	qs := queues(b, 1, mlx5.Layout{LogCQ: 13, LogRQ: 12, Pitch: 2048})
	r, err := New(Config{Source: &frames{}, Queues: qs})
	require.NoError(b, err)
	p := poller(b, qs[0])
	list := make([]poll.Packet, 0, poll.MaxBatch)
	f := mixed(4)(0)
	for b.Loop() {
		f.TimestampNs += 100
		if err := r.take(context.Background(), &f); err != nil {
			b.Fatal(err)
		}
		if mlx5.LoadBE32(qs[0].CQDB)+2000 < mlx5.CQDoorbell(r.rings[0].cqes) || r.rings[0].cqes%2000 == 0 {
			for {
				if list, err = p.Poll(list); err != nil {
					b.Fatal(err)
				}
				if p.Release(); len(list) == 0 {
					break
				}
			}
		}
	}
}
