package model

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
)

const (
	sqn     = 0x123
	sendKey = 0x1234
	sendVA  = 0x7f0012340000
)

// stores is a path to memory on which stores may overtake each other, but not over a fence.
type stores struct {
	rng     *rand.Rand // nil: in order
	pending []func()
}

func (s *stores) store(f func()) {
	if s.rng == nil {
		f()
		return
	}
	s.pending = append(s.pending, f)
}

func (s *stores) fence() {
	if s.rng != nil {
		s.rng.Shuffle(len(s.pending), func(i, j int) { s.pending[i], s.pending[j] = s.pending[j], s.pending[i] })
	}
	for _, f := range s.pending {
		f()
	}
	s.pending = nil
}

// sender posts to a SendPort as a driver does.
type sender struct {
	port   *SendPort
	path   stores
	log    uint8
	posted uint64
	fences bool
}

func (s *sender) ring(c *mlx5.CtrlSeg) { s.port.Doorbell(c.Doorbell()) }

// write puts the segments behind a control segment into the ring, and returns that.
func (s *sender) write(opcode, flags uint8, segments []byte) mlx5.CtrlSeg {
	c := mlx5.CtrlSeg{Index: uint16(s.posted), Opcode: opcode, SQN: sqn, DS: uint8(1 + (len(segments)+15)/16), FMCESE: flags}
	wqe := make([]byte, mlx5.Blocks(c.DS)*mlx5.SendWQEBB)
	c.Encode(wqe)
	copy(wqe[16:], segments)
	at := s.posted & (1<<s.log - 1) * mlx5.SendWQEBB
	sq := s.port.Memory().SQ
	s.path.store(func() {
		n := copy(sq[at:], wqe)
		copy(sq, wqe[n:])
	})
	s.posted += uint64(mlx5.Blocks(c.DS))
	return c
}

func (s *sender) record() {
	n := s.posted
	s.path.store(func() { mlx5.StoreBE32(s.port.Memory().DB[mlx5.SQDoorbellOffset:], mlx5.SQDoorbell(n)) })
}

// send posts a WQE and rings for it.
func (s *sender) send(opcode, flags uint8, segments []byte) {
	c := s.write(opcode, flags, segments)
	if s.fences {
		s.path.fence()
	}
	s.record()
	if s.fences {
		s.path.fence()
	}
	s.path.store(func() { s.ring(&c) })
	s.path.fence()
}

func eth(e mlx5.EthSeg) []byte {
	b := make([]byte, e.Size())
	e.Encode(b)
	return b
}

func data(off, n int) []byte {
	b := make([]byte, mlx5.DataSegSize)
	d := mlx5.DataSeg{ByteCount: uint32(n), LKey: sendKey, Addr: sendVA + uint64(off)}
	d.Encode(b)
	return b
}

func inline(p []byte) []byte {
	b := make([]byte, (4+len(p)+15)/16*16)
	binary.BigEndian.PutUint32(b, mlx5.InlineFlag|uint32(len(p)))
	copy(b[4:], p)
	return b
}

func cat(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func newSender(t testing.TB, cfg SendConfig) (*sender, []byte) {
	memory := make([]byte, 1<<16)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	cfg.SQN, cfg.Regions = sqn, []Region{{LKey: sendKey, Addr: sendVA, Bytes: memory}}
	if cfg.LogSQ == 0 {
		cfg.LogSQ = 3
	}
	if cfg.LogCQ == 0 {
		cfg.LogCQ = 8
	}
	p, err := NewSend(cfg)
	require.NoError(t, err)
	return &sender{port: p, log: cfg.LogSQ, fences: true}, memory
}

func (s *sender) cqe(i int) (c mlx5.CQE, ready bool) {
	b := s.port.Memory().CQ[i*mlx5.CQESize:]
	c.Decode(b)
	return c, mlx5.Ready(c.OpOwn, uint64(i), s.port.cfg.LogCQ)
}

func TestBehaviour20SendQueue(t *testing.T) {
	s, m := newSender(t, SendConfig{})
	var want [][]byte
	for i := range 40 { // several laps; WQEs of 1 and 2 blocks, so that some go on at the beginning
		n := 60 + i*31
		switch i % 4 {
		case 0:
			s.send(mlx5.SendSend, mlx5.CQEAlways, cat(eth(mlx5.EthSeg{}), data(i, n)))
			want = append(want, m[i:i+n])
		case 1: // 18 bytes inline, the rest in two buffers
			s.send(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{Inline: m[:18]}), data(18, 30), data(100, n)))
			want = append(want, cat(m[:48], m[100:100+n]))
		case 2: // all inline, in two blocks
			s.send(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{}), inline(m[i:i+76])))
			want = append(want, m[i:i+76])
		case 3:
			s.send(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{Insert: true, TCI: 0x6064}), data(0, n)))
			want = append(want, cat(m[:12], []byte{0x81, 0, 0x60, 0x64}, m[12:n]))
		}
	}
	require.Equal(t, want, s.port.Take())
	require.Empty(t, s.port.Take())
	s.send(mlx5.SendNop, 0, nil)
	s.send(mlx5.SendDump, 0, data(0, 1))
	require.Empty(t, s.port.Take(), "neither sends anything")
	require.Equal(t, mlx5.StateRDY, s.port.State())

	// The doorbell record lags behind, is missing, and the doorbell comes twice.
	a := s.write(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{}), data(0, 60)))
	s.ring(&a)
	require.Empty(t, s.port.Take(), "nothing is posted without the record")
	s.record()
	b := s.write(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{}), data(1, 60)))
	s.ring(&b)
	require.Len(t, s.port.Take(), 1, "only what is in the record")
	s.record()
	s.ring(&b)
	s.ring(&b)
	require.Len(t, s.port.Take(), 1, "once")
	s.port.Doorbell(uint64(0x777)<<8 | 3)
	require.EqualValues(t, 1, s.port.Counters().BadDoorbells)

	for name, v := range map[string]struct {
		opcode   uint8
		segments []byte
		change   func(wqe []byte)
		want     mlx5.Syndrome
	}{
		"opcode":               {opcode: 0x3f, segments: cat(eth(mlx5.EthSeg{}), data(0, 60)), want: mlx5.SyndromeLocalQPOp},
		"ds 0":                 {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(0, 60)), change: func(w []byte) { w[7] = 0 }, want: mlx5.SyndromeLocalQPOp},
		"ds beyond the posted": {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(0, 60)), change: func(w []byte) { w[7] = 9 }, want: mlx5.SyndromeLocalQPOp},
		"sqn":                  {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(0, 60)), change: func(w []byte) { w[6]++ }, want: mlx5.SyndromeLocalQPOp},
		"index":                {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(0, 60)), change: func(w []byte) { w[2]++ }, want: mlx5.SyndromeLocalQPOp},
		"inline length":        {opcode: mlx5.SendSend, segments: eth(mlx5.EthSeg{}), change: func(w []byte) { w[28] = 1 }, want: mlx5.SyndromeLocalQPOp},
		"inline data length":   {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), inline(m[:8])), change: func(w []byte) { w[34] = 1 }, want: mlx5.SyndromeLocalQPOp},
		"nothing to send":      {opcode: mlx5.SendSend, segments: eth(mlx5.EthSeg{}), want: mlx5.SyndromeLocalQPOp},
		"tag into 4 bytes":     {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{Insert: true}), data(0, 4)), want: mlx5.SyndromeLocalQPOp},
		"lkey":                 {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(0, 60)), change: func(w []byte) { w[39]++ }, want: mlx5.SyndromeLocalProt},
		"address":              {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(1<<16-59, 60)), want: mlx5.SyndromeLocalProt},
		"address below":        {opcode: mlx5.SendSend, segments: cat(eth(mlx5.EthSeg{}), data(-1, 60)), want: mlx5.SyndromeLocalProt},
	} {
		s, _ := newSender(t, SendConfig{})
		c := s.write(v.opcode, 0, v.segments)
		if v.change != nil {
			v.change(s.port.Memory().SQ)
		}
		s.record()
		s.ring(&c)
		require.Empty(t, s.port.Take(), name)
		require.Equal(t, mlx5.StateERR, s.port.State(), name)
		var e mlx5.ErrorCQE
		e.Decode(s.port.Memory().CQ)
		require.Equal(t, mlx5.OpReqErr, mlx5.OpcodeOf(e.OpOwn), name)
		require.Equal(t, v.want, e.Syndrome, name)
		require.EqualValues(t, sqn, e.OpcodeQPN)
	}

	s, _ = newSender(t, SendConfig{MinInline: 18})
	s.send(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{Inline: m[:18]}), data(18, 60)))
	require.Len(t, s.port.Take(), 1)
	s.send(mlx5.SendSend, 0, cat(eth(mlx5.EthSeg{Inline: m[:17]}), data(17, 60)))
	require.Equal(t, mlx5.StateERR, s.port.State(), "less inline than the port wants")

	s, _ = newSender(t, SendConfig{})
	s.posted = 9 // more than the ring has
	s.record()
	s.ring(&mlx5.CtrlSeg{SQN: sqn})
	require.Equal(t, mlx5.StateERR, s.port.State())
	for _, c := range []SendConfig{{}, {LogSQ: 16}, {LogSQ: 3, LogCQ: 23}, {LogSQ: 3, MinInline: -1}} {
		_, err := NewSend(c)
		require.ErrorIs(t, err, ErrConfig)
	}
}

func TestBehaviour21SendCompletions(t *testing.T) {
	frame := cat(eth(mlx5.EthSeg{}), data(0, 60))
	s, _ := newSender(t, SendConfig{})
	for i := range 12 {
		s.send(mlx5.SendSend, uint8(i%4/3)*mlx5.CQEAlways, frame) // every 4th
	}
	for i := range 3 {
		c, ready := s.cqe(i)
		require.True(t, ready)
		require.EqualValues(t, 4*i+3, c.WQECounter, "completes all up to it")
		op, n := mlx5.SendCQE(c.SOPDropQPN)
		require.Equal(t, mlx5.SendSend, op)
		require.EqualValues(t, sqn, n)
	}
	_, ready := s.cqe(3)
	require.False(t, ready)

	// Collapsed: the one CQE says how far the queue is, 0xffff at first. Its counter has 16 bits.
	s, _ = newSender(t, SendConfig{Collapsed: true})
	done := uint64(0)
	progress := func() uint64 {
		c, _ := s.cqe(0)
		return done + uint64(int64(int16(c.WQECounter+1-uint16(done))))
	}
	require.Zero(t, progress(), "stale: nothing is done")
	for i := range uint64(70_000) {
		s.send(mlx5.SendSend, mlx5.CQEAlways, frame)
		if i%1000 == 999 {
			done = progress()
			require.Equal(t, i+1, done)
			s.port.Take()
		}
	}

	// After an error everything that was posted is flushed, and nothing of it was sent.
	s, _ = newSender(t, SendConfig{})
	s.send(mlx5.SendSend, mlx5.CQEAlways, frame)
	s.write(0x3f, 0, frame)
	s.write(mlx5.SendSend, 0, frame)
	c := s.write(mlx5.SendSend, 0, frame)
	s.record()
	s.ring(&c)
	require.Len(t, s.port.Take(), 1)
	for i, want := range []mlx5.Syndrome{0, mlx5.SyndromeLocalQPOp, mlx5.SyndromeWRFlush, mlx5.SyndromeWRFlush} {
		var e mlx5.ErrorCQE
		e.Decode(s.port.Memory().CQ[i*mlx5.CQESize:])
		require.EqualValues(t, i, e.WQECounter, "a WQE may be used again when its own CQE says so, not before")
		if i > 0 {
			require.Equal(t, want, e.Syndrome)
		}
	}
	s.ring(&c)
	require.Empty(t, s.port.Take())
	require.ErrorIs(t, s.port.ModifySQ(mlx5.StateERR, mlx5.StateRDY), ErrState)
	require.NoError(t, s.port.ModifySQ(mlx5.StateERR, mlx5.StateRST))
	mlx5.StoreBE32(s.port.Memory().DB[mlx5.SQDoorbellOffset:], 0)
	s.posted = 0
	require.NoError(t, s.port.ModifySQ(mlx5.StateRST, mlx5.StateRDY))
	s.send(mlx5.SendSend, mlx5.CQEAlways, frame)
	require.Len(t, s.port.Take(), 1)
}

func TestBehaviour22DoorbellOvertakesWhatItIsFor(t *testing.T) {
	run := func(seed uint64, fences bool) (right int, state mlx5.State) {
		s, m := newSender(t, SendConfig{})
		s.path.rng, s.fences = rand.New(rand.NewPCG(seed, 22)), fences
		for i := range 20 {
			s.send(mlx5.SendSend, mlx5.CQEAlways, cat(eth(mlx5.EthSeg{}), data(i, 60)))
			if got := s.port.Take(); len(got) == 1 && string(got[0]) == string(m[i:i+60]) {
				right++
			}
		}
		return right, s.port.State()
	}
	wrong, failed := 0, 0
	for seed := range uint64(50) {
		right, state := run(seed, true)
		require.Equal(t, 20, right, "WQE, fence, record, fence, doorbell")
		require.Equal(t, mlx5.StateRDY, state)
		right, state = run(seed, false)
		if right < 20 {
			wrong++
		}
		if state == mlx5.StateERR {
			failed++
		}
	}
	require.Equal(t, 50, wrong, "without fences frames stay behind")
	require.NotZero(t, failed, "or the port runs what is not there yet")
}
