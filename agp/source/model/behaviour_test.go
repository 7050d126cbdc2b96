package model

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/mlx5/poll"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/steer/toeplitz"
)

// What a port can do to a driver, by number. Each test shows the behaviour, that the poller copes with it, and
// where a rule of the poller is what copes, that it fails without that rule.

func without(g poll.Guard) func(*poll.Config) { return func(c *poll.Config) { c.Without |= g } }

func TestBehaviour01OwnerBitChangesEveryLap(t *testing.T) {
	run := func(change ...func(*poll.Config)) *rig {
		r := newRig(t, Config{}, change...)
		for r.next < 5*32+7 { // more than 5 laps of the completion queue, 10 of the receive queue
			r.inject(5)
			r.drain()
		}
		return r
	}
	r := run()
	require.NoError(t, r.errs[0])
	require.Equal(t, sequence(r.next), r.numbers(0), "none twice, none missed")

	r = run(without(poll.GuardOwner))
	require.ErrorIs(t, r.errs[0], poll.ErrDesync, "completions of the lap before count again")
	r = run(without(poll.GuardOwner | poll.GuardOrder))
	require.NotEqual(t, sequence(r.next), r.numbers(0))
}

func TestBehaviour02CountersWrap(t *testing.T) {
	l := mlx5.Layout{LogCQ: 14, LogRQ: 13, Pitch: 64}
	r := newRig(t, Config{Layout: l})
	p, port := r.poll[0], r.port
	frame := udp(60, 1, 0)
	const n = wrapFrames
	for sent := 0; sent < n; {
		for range min(n-sent, 1<<13) {
			binary.BigEndian.PutUint32(frame[numberAt:], uint32(sent))
			if !port.queues[0].receive(frame, &Meta{}, &header{}, 0) {
				t.Fatal("not delivered", sent)
			}
			sent++
		}
		for {
			list, err := p.Poll(r.list)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				if binary.BigEndian.Uint32(list[i].Data[numberAt:]) != r.next {
					t.Fatal("out of order", r.next)
				}
				r.next++
			}
			if p.Release(); len(list) == 0 {
				break
			}
		}
	}
	cqes, wqes := p.Position()
	require.EqualValues(t, n, cqes)
	require.EqualValues(t, n, wqes)
	require.EqualValues(t, n, r.next)
	require.Equal(t, mlx5.CQDoorbell(n), mlx5.LoadBE32(port.Memory(0).CQDB))
	require.EqualValues(t, (n+1<<13)&0xffff, mlx5.LoadBE32(port.Memory(0).RQDB))
}

func TestBehaviour03ZeroedCompletionQueueIsCaught(t *testing.T) {
	q, err := mlx5.NewQueue(plain)
	require.NoError(t, err)
	clear(q.CQ)
	r := newRig(t, Config{Memory: []mlx5.Queue{q}})
	r.drain()
	require.NotZero(t, r.poll[0].Counters().Unknown, "zeroes look like completions of an opcode that receive queues do not have")
	require.Empty(t, r.frames[0])

	r = newRig(t, Config{})
	r.drain()
	require.Zero(t, r.poll[0].Counters().CQEs, "as initialised it is empty")
}

func TestBehaviour04CompletionQueueFull(t *testing.T) {
	l := mlx5.Layout{LogCQ: 4, LogRQ: 4, Pitch: 2048}
	// A consumer that gives receive WQEs back before the completions: frames arrive in between.
	run := func(oi bool, change ...func(*poll.Config)) *rig {
		var r *rig
		r = newRig(t, Config{Layout: l, IgnoreOverrun: oi}, append(change, func(c *poll.Config) {
			c.Between = func() {
				if r.next < 200 && r.port.Credit(0) > 0 {
					r.inject(16)
				}
			}
		})...)
		r.inject(16)
		for range 20 {
			r.drain()
		}
		return r
	}
	r := run(false)
	require.Zero(t, r.port.Counters(0).CQOverflow, "completion queue first, then receive queue")
	require.EqualValues(t, r.port.Counters(0).Frames, len(r.frames[0]))
	require.NoError(t, r.errs[0])

	r = run(false, without(poll.GuardCredit))
	rq, failed := r.port.State(0)
	require.True(t, failed, "the completion queue has failed")
	require.Equal(t, mlx5.StateERR, rq)
	require.EqualValues(t, 1, r.port.Counters(0).CQOverflow)
	require.Zero(t, r.inject(1))
	require.NotZero(t, r.port.Counters(0).Discarded)
	require.NoError(t, r.port.ModifyRQ(0, mlx5.StateERR, mlx5.StateRST))
	require.ErrorIs(t, r.port.ModifyRQ(0, mlx5.StateRST, mlx5.StateRDY), ErrState, "nor can the queue be used again")

	// Overwritten completions are not noticed by the port, but by the poller.
	q, err := mlx5.NewQueue(l)
	require.NoError(t, err)
	r = newRig(t, Config{Memory: []mlx5.Queue{q}, IgnoreOverrun: true})
	for range 32 { // two laps
		mlx5.StoreBE32(q.RQDB, mlx5.RQDoorbell(uint64(r.next)+1))
		require.Equal(t, 1, r.inject(1))
	}
	r.inject(0)
	mlx5.StoreBE32(q.RQDB, mlx5.RQDoorbell(48))
	require.Equal(t, 16, r.inject(20))
	r.drain()
	require.ErrorIs(t, r.errs[0], poll.ErrDesync)
	require.Zero(t, r.port.Counters(0).CQOverflow)
}

func TestBehaviour05NoCreditNoFrame(t *testing.T) {
	r := newRig(t, Config{})
	require.Equal(t, 16, r.inject(50), "as many as are posted")
	require.EqualValues(t, 34, r.port.Counters(0).OutOfBuffer)
	require.Zero(t, r.port.Credit(0))
	r.drain()
	require.Equal(t, 16, r.port.Credit(0))
	require.Equal(t, sequence(16), r.numbers(0))
	require.Equal(t, 16, r.inject(17))
	require.EqualValues(t, 35, r.port.Counters(0).OutOfBuffer)
	require.EqualValues(t, 32, r.port.Counters(0).Frames)
}

func TestBehaviour06LateAndCoalescedDoorbells(t *testing.T) {
	r := newRig(t, Config{Seed: 6})
	r.port.SetFault(FaultStaleDoorbell, 0.9)
	rng := rand.New(rand.NewPCG(6, 6))
	for range 2000 {
		r.inject(min(rng.IntN(17), r.port.Credit(0)))
		// Several batches are given back at once, and sometimes nothing.
		if rng.IntN(3) > 0 {
			r.drain()
		}
	}
	r.drain()
	require.NoError(t, r.errs[0])
	require.Equal(t, sequence(r.next), r.numbers(0))
	require.Zero(t, r.port.Counters(0).OutOfBuffer)
	require.Zero(t, r.port.Counters(0).CQOverflow)
}

func TestBehaviour07ErrorCompletions(t *testing.T) {
	for f, s := range map[Fault]mlx5.Syndrome{FaultLocalLength: mlx5.SyndromeLocalLength, FaultMinor: 0} {
		r := newRig(t, Config{Seed: 7})
		r.port.SetFault(f, 0.2)
		ok := 0
		for range 300 {
			ok += r.inject(10)
			r.drain()
		}
		require.NoError(t, r.errs[0], "the WQE is lost and nothing else")
		require.Len(t, r.frames[0], ok)
		var errs uint64
		for i, n := range r.poll[0].Counters().Errors {
			require.Equal(t, r.port.Counters(0).Errors[mlx5.Syndrome(i)], n, "syndrome %#x", i)
			errs += n
		}
		require.EqualValues(t, 3000-ok, errs)
		require.Greater(t, errs, uint64(400))
		if s != 0 {
			require.Equal(t, errs, r.poll[0].Counters().Errors[s])
		}
		require.EqualValues(t, vendorSyndrome, r.poll[0].Counters().Vendor)
	}
	for f, s := range map[Fault]mlx5.Syndrome{
		FaultLocalQPOp: mlx5.SyndromeLocalQPOp, FaultLocalProt: mlx5.SyndromeLocalProt, FaultWRFlush: mlx5.SyndromeWRFlush,
	} {
		r := newRig(t, Config{})
		r.inject(3)
		r.port.SetFault(f, 1)
		require.Zero(t, r.inject(2), "the second finds the queue in error")
		r.port.SetFault(f, 0)
		r.drain()
		require.ErrorIs(t, r.errs[0], poll.ErrReset)
		require.Equal(t, sequence(3), r.numbers(0), "what was before is delivered")
		require.EqualValues(t, 1, r.poll[0].Counters().Errors[s])
		_, err := r.poll[0].Poll(r.list)
		require.ErrorIs(t, err, poll.ErrReset, "until it is reset")

		require.NoError(t, r.poll[0].Reset(r.port.Modifier(0)))
		require.EqualValues(t, 16-3, r.poll[0].Counters().Errors[mlx5.SyndromeWRFlush]+boolCount(s != mlx5.SyndromeWRFlush))
		require.EqualValues(t, 1, r.poll[0].Counters().Resets)
		require.Equal(t, 16, r.port.Credit(0))
		cqes, wqes := r.poll[0].Position()
		require.EqualValues(t, 16, cqes)
		require.Zero(t, wqes)
		r.errs[0] = nil
		for range 10 {
			require.Equal(t, 16, r.inject(16))
			r.drain()
		}
		require.NoError(t, r.errs[0])
		require.Len(t, r.frames[0], 163)
	}
}

func boolCount(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func TestBehaviour07ResetGoesByTheStates(t *testing.T) {
	r := newRig(t, Config{})
	for _, s := range [][2]mlx5.State{
		{mlx5.StateRDY, mlx5.StateRST}, {mlx5.StateRST, mlx5.StateRDY}, {mlx5.StateERR, mlx5.StateRST}, {mlx5.StateRDY, mlx5.StateRDY},
	} {
		require.ErrorIs(t, r.port.ModifyRQ(0, s[0], s[1]), ErrState, "%s to %s while ready", s[0], s[1])
	}
	require.NoError(t, r.port.ModifyRQ(0, mlx5.StateRDY, mlx5.StateERR))
	require.ErrorIs(t, r.port.ModifyRQ(0, mlx5.StateERR, mlx5.StateRDY), ErrState)
	require.NoError(t, r.port.ModifyRQ(0, mlx5.StateERR, mlx5.StateRST))
	require.Zero(t, r.inject(1), "nothing is received in RST")

	// If the doorbell record is not zeroed in RST, the port sees WQEs that are not posted.
	mlx5.StoreBE32(r.port.Memory(0).RQDB, 16)
	require.NoError(t, r.port.ModifyRQ(0, mlx5.StateRST, mlx5.StateRDY))
	require.Equal(t, 16, r.port.Credit(0))

	r.port.Destroy(0)
	require.ErrorIs(t, r.poll[0].Reset(r.port.Modifier(0)), ErrState)
}

func TestBehaviour08ErrorStorms(t *testing.T) {
	// Errors only, over the wraps of both queues, and with the ring empty.
	r := newRig(t, Config{Seed: 8})
	r.port.SetFault(FaultLocalLength, 1)
	for range 20 {
		r.inject(7)
		r.drain()
		r.drain()
	}
	require.NoError(t, r.errs[0])
	require.EqualValues(t, 140, r.poll[0].Counters().Errors[mlx5.SyndromeLocalLength])
	r.port.SetFault(FaultLocalLength, 0)
	require.Equal(t, 16, r.inject(16))
	r.drain()
	require.Len(t, r.frames[0], 16)

	// Failures all the time: each is followed by a reset, and the queue comes back.
	r = newRig(t, Config{Seed: 8})
	r.port.SetFault(FaultLocalProt, 0.05)
	r.port.SetFault(FaultWRFlush, 0.02)
	r.port.SetFault(FaultMinor, 0.2)
	ok := 0
	for range 3000 {
		ok += r.inject(5)
		r.drain()
		if r.errs[0] != nil {
			require.ErrorIs(t, r.errs[0], poll.ErrReset)
			r.errs[0] = nil
			require.NoError(t, r.poll[0].Reset(r.port.Modifier(0)))
		}
	}
	c := r.poll[0].Counters()
	require.Greater(t, c.Resets, uint64(100))
	require.EqualValues(t, ok, uint64(len(r.frames[0]))+c.Skipped)
	for s, n := range c.Errors {
		require.Equal(t, r.port.Counters(0).Errors[mlx5.Syndrome(s)], n, "syndrome %#x", s)
	}
	last := uint32(0)
	for i, n := range r.numbers(0) {
		require.True(t, i == 0 || n > last)
		last = n
	}
}

// whole counts the frames whose canary is right and in order.
func whole(list []poll.Packet) (good int) {
	for i := range list {
		if n, ok := CheckCanary(list[i].Data); ok && n == uint16(i) {
			good++
		}
	}
	return good
}

func TestBehaviour09CompletionBeforePayload(t *testing.T) {
	run := func(flush bool) *rig {
		var r *rig
		r = newRig(t, Config{Canary: true, Seed: 9}, func(c *poll.Config) {
			if flush {
				c.Flush = func() { r.port.Flush() }
			}
		})
		r.port.SetFault(FaultLatePayload, 0.3)
		for range 100 {
			r.inject(5)
			r.port.Tick()
			r.drain()
		}
		return r
	}
	r := run(true)
	require.Len(t, r.frames[0], 500)
	require.Equal(t, 500, whole(r.frames[0]))
	r = run(false)
	require.Len(t, r.frames[0], 500)
	require.Less(t, whole(r.frames[0]), 450, "the canary trips where nothing flushes")
}

func TestBehaviour10TornCompletions(t *testing.T) {
	// The halves of a CQE are written in any order, and the port writes between two loads.
	run := func(f Fault, flush bool, g poll.Guard) (wrong int, err error) {
		var r *rig
		r = newRig(t, Config{Seed: 10, Clock: mlx5.Clock{Format: mlx5.TimeReal}}, func(c *poll.Config) {
			c.Without = g
			if flush {
				c.Flush = func() { r.port.Flush() }
			}
			c.Between = func() {
				if r.next < 2000 {
					r.inject(r.port.Credit(0) % 3)
				}
				r.port.Tick()
			}
		})
		r.port.SetFault(f, 0.5)
		for range 2000 {
			r.inject(1)
			r.port.Tick()
			r.drain()
		}
		for _, k := range r.frames[0] {
			if k.HdrType != mlx5.HdrL3v4|mlx5.HdrUDP {
				wrong++ // the lower half is not of this frame: no other traffic is there
			}
		}
		if got := r.numbers(0); len(got) > 0 && wrong == 0 && r.errs[0] == nil {
			require.Equal(t, sequence(uint32(len(got))), got)
		}
		return wrong, r.errs[0]
	}
	for name, v := range map[string]struct {
		f     Fault
		flush bool
		g     poll.Guard
		torn  bool
	}{
		"upper half last":                           {f: FaultLateUpper},
		"lower half last, flushed":                  {f: FaultLateLower, flush: true},
		"lower half last, not flushed":              {f: FaultLateLower, torn: true},
		"lower half read before the owner is known": {f: FaultLateUpper, g: poll.GuardUpper, torn: true},
	} {
		wrong, err := run(v.f, v.flush, v.g)
		require.NoError(t, err, name)
		if v.torn {
			require.NotZero(t, wrong, name)
		} else {
			require.Zero(t, wrong, name)
		}
	}
}

func TestBehaviour11Compression(t *testing.T) {
	for name, kind := range map[string]Compression{"basic": CompressBasic, "enhanced": CompressEnhanced} {
		r := newRig(t, Config{Compression: kind})
		r.inject(3)
		r.port.SetFault(FaultCompress, 1)
		r.inject(6)
		r.drain()
		require.NoError(t, r.errs[0], "a session is not there before it ends")
		r.port.Tick()
		r.drain()
		require.ErrorIs(t, r.errs[0], poll.ErrCompressed, name)
		before := 3
		if kind == CompressEnhanced {
			before = 4 // the title is a CQE as any other
		}
		require.Equal(t, sequence(uint32(before)), r.numbers(0), "what was before is delivered")

		// Who knows the layout finds the frames.
		m := r.port.Memory(0)
		var list []mlx5.CQE
		var err error
		if kind == CompressBasic {
			list, err = mlx5.ExpandBasic(nil, m.CQ, m.LogCQ, 3)
		} else {
			var title mlx5.CQE
			title.Decode(m.CQE(3))
			list, err = mlx5.ExpandEnhanced([]mlx5.CQE{title}, m.CQE(4), &title)
		}
		require.NoError(t, err)
		require.Len(t, list, 6)
		for i, c := range list {
			require.EqualValues(t, 60, c.ByteCnt)
			require.EqualValues(t, 3+i, c.WQECounter)
			require.EqualValues(t, 3+i, binary.BigEndian.Uint32(m.Slot(uint64(c.WQECounter))[numberAt:]))
		}

		// An error ends the session before its own CQE; a reset gets over both.
		r = newRig(t, Config{Compression: kind})
		r.port.SetFault(FaultCompress, 1)
		r.inject(5)
		r.port.SetFault(FaultLocalProt, 1)
		r.inject(1)
		r.port.SetFault(FaultLocalProt, 0)
		r.port.SetFault(FaultCompress, 0)
		r.drain()
		require.ErrorIs(t, r.errs[0], poll.ErrCompressed, name)
		if kind == CompressBasic { // how many CQEs an enhanced session takes is not for this poller
			require.NoError(t, r.poll[0].Reset(r.port.Modifier(0)))
			r.errs[0], r.frames[0], r.next = nil, nil, 0
			require.Equal(t, 16, r.inject(16))
			r.drain()
			require.Equal(t, sequence(16), r.numbers(0))
		}
	}
}

func TestBehaviour12StridingQueue(t *testing.T) {
	l := mlx5.Layout{LogRQ: 2, LogCQ: 6, Pitch: 1024, Strides: 16, StrideSize: 64}
	r := newRig(t, Config{Layout: l, Seed: 12})
	r.port.SetFault(FaultFiller, 0.05)
	rng := rand.New(rand.NewPCG(12, 12))
	var want [][]byte
	for range 3000 {
		f := udp(60+rng.IntN(700), 1, uint32(len(want)))
		if r.port.InjectTo(0, f, Meta{}) {
			want = append(want, f)
		}
		if rng.IntN(5) == 0 {
			r.drain()
		}
	}
	r.drain()
	require.NoError(t, r.errs[0])
	require.Len(t, r.frames[0], len(want))
	for i := range want {
		require.Equal(t, want[i], r.frames[0][i].Data)
	}
	c := r.poll[0].Counters()
	require.Equal(t, r.port.Counters(0).Fillers, c.Fillers)
	require.Greater(t, c.Fillers, uint64(300))
	require.Equal(t, r.port.queues[0].wqe, func() uint64 { _, w := r.poll[0].Position(); return w }(), "strides balance")

	// Exactly the last stride, exactly a whole WQE, and more than that.
	r = newRig(t, Config{Layout: l})
	require.True(t, r.port.InjectTo(0, udp(15*64, 1, 0), Meta{}))
	require.True(t, r.port.InjectTo(0, udp(64, 1, 1), Meta{}))
	require.True(t, r.port.InjectTo(0, udp(1024, 1, 2), Meta{}))
	require.False(t, r.port.InjectTo(0, udp(1025, 1, 3), Meta{}))
	require.True(t, r.port.InjectTo(0, nil, Meta{}), "a frame of no length takes a stride")
	require.True(t, r.port.InjectTo(0, udp(100, 1, 4), Meta{}))
	r.drain()
	require.NoError(t, r.errs[0])
	require.Len(t, r.frames[0], 5)
	require.EqualValues(t, 1, r.poll[0].Counters().Errors[mlx5.SyndromeLocalLength])
	require.Zero(t, r.poll[0].Counters().Fillers)

	// CQEs that contradict the strides.
	for name, bad := range map[string]mlx5.CQE{
		"no stride":         {ByteCnt: mlx5.MPRQByteCnt(60, 0, false)},
		"past the WQE":      {ByteCnt: mlx5.MPRQByteCnt(60, 17, false)},
		"longer than taken": {ByteCnt: mlx5.MPRQByteCnt(65, 1, false)},
		"another WQE":       {ByteCnt: mlx5.MPRQByteCnt(60, 1, false), WQEID: 1},
		"another stride":    {ByteCnt: mlx5.MPRQByteCnt(60, 1, false), WQECounter: 1},
	} {
		r = newRig(t, Config{Layout: l})
		bad.OpOwn = mlx5.OpOwn(mlx5.OpRespSend, mlx5.FormatPlain, 0)
		bad.Encode(r.port.queues[0].mem.CQE(0))
		r.drain()
		require.ErrorIs(t, r.errs[0], poll.ErrDesync, name)
	}
}

func TestBehaviour13LengthsAndPadding(t *testing.T) {
	for _, pad := range []bool{false, true} {
		l := mlx5.Layout{LogCQ: 5, LogRQ: 4, Pitch: 9216}
		r := newRig(t, Config{Layout: l, EndPadding: pad})
		m := r.port.Memory(0)
		for _, n := range []int{0, 14, 59, 60, 64, 1514, 1518, 9000 + 22, 9216, 9217} {
			slot := m.Slot(r.port.queues[0].wqe)
			for i := range slot {
				slot[i] = 0xee
			}
			f := bytes.Repeat([]byte{7}, n)
			require.Equal(t, n <= 9216, r.port.InjectTo(0, f, Meta{}))
			r.frames[0] = nil
			r.drain()
			if n > 9216 {
				require.EqualValues(t, 1, r.poll[0].Counters().Errors[mlx5.SyndromeLocalLength])
				continue
			}
			require.Len(t, r.frames[0], 1)
			require.Len(t, r.frames[0][0].Data, n)
			require.EqualValues(t, n, r.frames[0][0].WireLen)
			require.True(t, bytes.Equal(f, r.frames[0][0].Data))
			// After the length: nothing, or up to a line.
			end := n
			if pad {
				end = (n + 63) / 64 * 64
			}
			require.Equal(t, bytes.Repeat([]byte{padByte}, end-n), slot[n:end], n)
			require.Equal(t, bytes.Repeat([]byte{0xee}, 9216-end), slot[end:], n)
		}
	}
	// A CQE that claims more than the slot has is cut to it.
	r := newRig(t, Config{})
	c := mlx5.CQE{ByteCnt: 1 << 30, OpOwn: mlx5.OpOwn(mlx5.OpRespSend, mlx5.FormatPlain, 0)}
	c.Encode(r.port.queues[0].mem.CQE(0))
	r.drain()
	require.Len(t, r.frames[0][0].Data, 2048)
	require.EqualValues(t, 1<<30, r.frames[0][0].WireLen)
}

// tagged is a frame with 802.1Q tags.
func tagged(frame []byte, tags ...uint16) []byte {
	f := append([]byte(nil), frame[:12]...)
	for i, tci := range tags {
		proto := uint16(0x8100)
		if len(tags) > 1 && i == 0 {
			proto = 0x88a8
		}
		f = binary.BigEndian.AppendUint16(f, proto)
		f = binary.BigEndian.AppendUint16(f, tci)
	}
	return append(f, frame[12:]...)
}

func TestBehaviour14VLANTags(t *testing.T) {
	one, two := tagged(udp(60, 1, 0), 0x6064), tagged(udp(60, 1, 0), 5, 0x6064)
	double := tagged(tagged(udp(60, 1, 0), 7), 0x6064)
	for _, strip := range []bool{false, true} {
		r := newRig(t, Config{StripVLAN: strip})
		src, err := poll.NewSource(poll.SourceConfig{Pollers: r.poll, Feed: func() error { return io.EOF }})
		require.NoError(t, err)
		all := [][]byte{udp(60, 1, 0), one, two, double}
		for _, f := range all {
			require.True(t, r.port.InjectTo(0, f, Meta{}))
		}
		list, err := r.poll[0].Poll(r.list)
		require.NoError(t, err)
		for i, k := range list {
			stripped := strip && (i == 1 || i == 3)
			require.Equal(t, stripped, k.HdrType&mlx5.HdrVLANStripped != 0)
			require.EqualValues(t, len(all[i]), k.WireLen)
			switch {
			case !stripped:
				require.EqualValues(t, -1, k.TCI)
				require.Equal(t, all[i], k.Data)
			default:
				require.EqualValues(t, 0x6064, k.TCI)
				require.Len(t, k.Data, len(all[i])-4)
			}
		}
		r.poll[0].Release()
		// A source puts the tag back.
		for _, f := range all {
			require.True(t, r.port.InjectTo(0, f, Meta{}))
		}
		b := source.Batch{Frames: make([]source.Frame, 8)}
		n, err := src.Next(&b)
		require.NoError(t, err)
		require.Equal(t, 4, n)
		for i, f := range all {
			require.Equal(t, f, b.Frames[i].Data)
			require.EqualValues(t, len(f), b.Frames[i].WireLen)
		}
	}
}

func TestBehaviour15Timestamps(t *testing.T) {
	second := base + 999_999_990
	for name, c := range map[string]mlx5.Clock{
		"real time":              {Format: mlx5.TimeReal},
		"free running and wraps": mlx5.FreeClock(1_000_000, 1<<63-50, second),
		"156.25 MHz and wraps":   mlx5.FreeClock(156_250, 1<<63-10, second),
	} {
		r := newRig(t, Config{Clock: c})
		for i := range 16 {
			require.True(t, r.port.InjectTo(0, udp(60, 1, 0), Meta{TimestampNs: second + int64(i)*10}))
		}
		r.drain()
		last := int64(0)
		for i, k := range r.frames[0] {
			require.Greater(t, k.TimestampNs, last, name)
			require.InDelta(t, 0, k.TimestampNs-second-int64(i)*10, 7, name)
			last = k.TimestampNs
		}
	}
}

func TestBehaviour16FlowTags(t *testing.T) {
	r := newRig(t, Config{})
	for _, tag := range []uint32{0, 41, mlx5.PutMark(41), mlx5.PutMark(0), mlx5.PutMarkFlag(), mlx5.PutMark(mlx5.MaxMark)} {
		require.True(t, r.port.InjectTo(0, udp(60, 1, 0), Meta{FlowTag: tag, Metadata: 0xabcd1234}))
	}
	r.drain()
	f := r.frames[0]
	require.EqualValues(t, 0xabcd1234, f[0].Metadata)
	_, ok := mlx5.Mark(f[0].FlowTag)
	require.False(t, ok, "unmarked")
	require.EqualValues(t, 41, mlx5.FlowTag(f[1].FlowTag), "a raw tag")
	for i, want := range map[int]uint32{2: 41, 3: 0, 4: mlx5.MarkFlag, 5: mlx5.MaxMark} {
		id, ok := mlx5.Mark(f[i].FlowTag)
		require.True(t, ok)
		require.Equal(t, want, id)
	}
	id, _ := mlx5.Mark(f[1].FlowTag)
	require.NotEqualValues(t, 41, id, "the two are not the same encoding")
}

func TestBehaviour17HashResults(t *testing.T) {
	v4, v6 := udp(64, 1, 0), make([]byte, 80)
	copy(v4[26:], []byte{66, 9, 149, 187, 161, 142, 100, 80})
	binary.BigEndian.PutUint16(v4[34:], 2794)
	binary.BigEndian.PutUint16(v4[36:], 1766)
	binary.BigEndian.PutUint16(v6[12:], 0x86dd)
	v6[14], v6[20] = 0x60, 6
	binary.BigEndian.PutUint16(v6[18:], 80-54)
	src, dst := netip.MustParseAddr("3ffe:2501:200:1fff::7").As16(), netip.MustParseAddr("3ffe:2501:200:3::1").As16()
	copy(v6[22:], src[:])
	copy(v6[38:], dst[:])
	binary.BigEndian.PutUint16(v6[54:], 2794)
	binary.BigEndian.PutUint16(v6[56:], 1766)
	v6[66] = 0x50
	tcp := append([]byte(nil), v4...)
	tcp[23], tcp[46] = 6, 0x50
	fragment := append([]byte(nil), v4...)
	fragment[20] = 0x20
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6

	r := newRig(t, Config{RSSKey: toeplitz.Microsoft})
	for _, f := range [][]byte{v4, tcp, fragment, v6, arp} {
		_, ok := r.port.Inject(f, Meta{})
		require.True(t, ok)
	}
	r.drain()
	for i, want := range []struct {
		hash      uint32
		typ, hdrs uint8
	}{
		{0x51ccc178, 0x84, mlx5.HdrL3v4 | mlx5.HdrUDP},
		{0x51ccc178, 0x44, mlx5.HdrL3v4 | mlx5.HdrTCP},
		{0x323e8fc2, 0x04, mlx5.HdrL3v4 | mlx5.HdrFragment},
		{0x40207d3d, 0x48, mlx5.HdrL3v6 | mlx5.HdrTCP},
		{0, 0, 0},
	} {
		k := r.frames[0][i]
		require.Equal(t, want.hash, k.Hash, i)
		require.Equal(t, want.typ, k.HashType, i)
		require.Equal(t, want.hdrs, k.HdrType, i)
	}
	r = newRig(t, Config{Queues: 4, RSSKey: toeplitz.MLX5})
	q, _ := r.port.Inject(v4, Meta{})
	require.Equal(t, 0x85d36feb&3, q)
}

func TestBehaviour18CompletionsOutOfOrder(t *testing.T) {
	for name, f := range map[string]Fault{"exchanged": FaultReorder, "a WQE without completion": FaultLost} {
		r := newRig(t, Config{})
		r.inject(5)
		r.port.SetFault(f, 1)
		r.inject(1)
		r.port.SetFault(f, 0)
		r.inject(3)
		r.drain()
		require.ErrorIs(t, r.errs[0], poll.ErrDesync, name)
		require.Equal(t, sequence(5), r.numbers(0))

		r = newRig(t, Config{}, without(poll.GuardOrder))
		r.port.SetFault(FaultLost, 1)
		r.inject(1)
		r.port.SetFault(FaultLost, 0)
		r.inject(3)
		r.drain()
		require.NoError(t, r.errs[0])
		require.NotEqual(t, []uint32{1, 2, 3}, r.numbers(0), "silently wrong")
	}
}

func TestBehaviour19InvalidWithMatchingOwner(t *testing.T) {
	r := newRig(t, Config{Seed: 19})
	r.port.SetFault(FaultInvalid, 0.3)
	for range 500 {
		r.inject(min(4, r.port.Credit(0)))
		r.drain()
		r.port.Tick()
	}
	for range DefaultLateTicks {
		r.port.Tick()
	}
	r.drain()
	require.NoError(t, r.errs[0])
	require.Equal(t, sequence(r.next), r.numbers(0))
	require.Zero(t, r.poll[0].Counters().Unknown)
	require.Greater(t, r.next, uint32(500))
}

func TestBehaviour23LinkAndQueueGoAway(t *testing.T) {
	r := newRig(t, Config{})
	r.inject(2)
	r.port.SetLink(false)
	require.Zero(t, r.inject(3))
	require.EqualValues(t, 3, r.port.Counters(0).LinkDown)
	r.port.SetLink(true)
	require.Equal(t, 2, r.inject(2))
	r.drain()
	require.Equal(t, []uint32{0, 1, 5, 6}, r.numbers(0))

	// The queue is destroyed while a completion is on its way and the poller polls.
	r.port.SetFault(FaultLateUpper, 1)
	require.Equal(t, 1, r.inject(1))
	r.port.Destroy(0)
	before := append([]byte(nil), r.port.Memory(0).CQ...)
	r.port.Flush()
	require.Zero(t, r.inject(5))
	require.Equal(t, before, r.port.Memory(0).CQ, "its memory is left alone")
	beat := r.poll[0].Counters().Polls
	r.drain()
	require.NoError(t, r.errs[0])
	require.Greater(t, r.poll[0].Counters().Polls, beat, "the heartbeat goes on, for the watchdog")

	// A source over it delivers nothing, in bounded time, and ends when told to.
	src, err := poll.NewSource(poll.SourceConfig{Pollers: r.poll})
	require.NoError(t, err)
	b := source.Batch{Frames: make([]source.Frame, 4)}
	n, err := src.Next(&b)
	require.NoError(t, err)
	require.Zero(t, n)
	src.Interrupt()
	_, err = src.Next(&b)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, src.Close())
}

func TestBehaviour24QueuesAndSkew(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 64} {
		r := newRig(t, Config{Queues: n})
		sent := make([]int, n)
		byFlow := map[int]int{}
		for i := range 200 * n {
			f := i % 997
			q, ok := r.port.Inject(udp(60, uint16(f), uint32(i)), Meta{})
			if ok {
				sent[q]++
			}
			if had, known := byFlow[f]; known {
				require.Equal(t, had, q, "a flow stays in its queue")
			}
			byFlow[f] = q
			if i%8 == 0 {
				r.drain()
			}
		}
		r.drain()
		for q := range n {
			require.NoError(t, r.errs[q])
			require.Len(t, r.frames[q], sent[q])
		}
	}
	// A number that is no power of two makes a larger table, which the first queues have more of.
	for queues, want := range map[int][]int{3: {171, 171, 170}, 5: {103, 103, 102, 102, 102}, 4: {1, 1, 1, 1}, 1: {1}} {
		x, err := newRSS(toeplitz.MLX5, queues, DefaultRQTSize)
		require.NoError(t, err)
		got := make([]int, queues)
		for _, q := range x.table {
			got[q]++
		}
		require.Equal(t, want, got)
	}
	// All packets of one flow: one queue has everything, the others nothing.
	r := newRig(t, Config{Queues: 5})
	for i := range 16 {
		_, ok := r.port.Inject(udp(60, 1, uint32(i)), Meta{})
		require.True(t, ok)
	}
	r.drain()
	busy := 0
	for q := range 5 {
		if len(r.frames[q]) > 0 {
			busy++
			require.Len(t, r.frames[q], 16)
		}
	}
	require.Equal(t, 1, busy)
}

func TestBadConfigIsRefused(t *testing.T) {
	small := plain
	small.LogCQ = 4
	q, err := mlx5.NewQueue(plain)
	require.NoError(t, err)
	for name, c := range map[string]Config{
		"queues":      {Queues: MaxQueues + 1, Layout: plain},
		"negative":    {Queues: -1, Layout: plain},
		"no layout":   {Queues: 1},
		"memory":      {Queues: 2, Memory: []mlx5.Queue{q}},
		"bad memory":  {Memory: make([]mlx5.Queue, 1)},
		"table":       {Queues: 3, Layout: plain, RQTSize: 100},
		"late":        {Layout: plain, LateTicks: -1},
		"compression": {Layout: small, Compression: CompressBasic},
	} {
		_, err := New(c)
		require.ErrorIs(t, err, ErrConfig, name)
	}
	_, err = poll.New(poll.Config{Queue: q, Batch: 33})
	require.ErrorIs(t, err, poll.ErrConfig)
	_, err = poll.New(poll.Config{})
	require.True(t, errors.Is(err, poll.ErrConfig) && errors.Is(err, mlx5.ErrLayout))
	_, err = poll.NewSource(poll.SourceConfig{})
	require.ErrorIs(t, err, poll.ErrConfig)
}

func TestSameSeedSameRun(t *testing.T) {
	run := func(seed uint64) []byte {
		r := newRig(t, Config{Seed: seed, Queues: 3})
		for f := range numFaults - 1 {
			r.port.SetFault(f, 0.03)
		}
		for i := range 300 {
			r.port.Inject(udp(60, uint16(i), uint32(i)), Meta{TimestampNs: int64(i)})
			if i%7 == 0 {
				r.port.Tick()
			}
			r.drain()
		}
		var all []byte
		for i := range 3 {
			m := r.port.Memory(i)
			all = append(append(all, m.CQ...), m.Payload...)
		}
		return all
	}
	require.True(t, bytes.Equal(run(1), run(1)))
	require.False(t, bytes.Equal(run(1), run(2)))
}

func TestReceivingAndPollingDoNotAllocate(t *testing.T) {
	r := newRig(t, Config{Canary: true})
	f := udp(60, 1, 0)
	var failed error
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r.port.Inject(f, Meta{})
		if _, failed = r.poll[0].Poll(r.list); failed == nil {
			r.poll[0].Release()
		}
	}))
	require.NoError(t, failed)
}
