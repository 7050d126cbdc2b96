package model

import (
	"encoding/binary"
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
)

// SendConfig of a SendPort.
type SendConfig struct {
	SQN       uint32
	LogSQ     uint8       // basic blocks
	LogCQ     uint8       // with Collapsed it does not matter
	Memory    *SendMemory // nil: made here
	Regions   []Region    // memory that data segments may name
	MinInline int         // bytes of each frame that must be in its WQE
	Collapsed bool        // all CQEs go to the first place (cc=1, oi=1)
}

// Region is registered memory.
type Region struct {
	LKey  uint32
	Addr  uint64
	Bytes []byte
}

// SendMemory is a send queue and its completion queue.
type SendMemory struct {
	SQ, DB, CQ []byte
}

// NewSendMemory makes a send queue with nothing posted.
func NewSendMemory(logSQ, logCQ uint8) *SendMemory {
	m := &SendMemory{SQ: make([]byte, mlx5.SendWQEBB<<logSQ), DB: make([]byte, mlx5.DoorbellSize), CQ: make([]byte, mlx5.CQESize<<logCQ)}
	for i := range m.CQ {
		m.CQ[i] = 0xff
	}
	return m
}

// SendCounters of a SendPort.
type SendCounters struct {
	Frames       uint64
	Doorbells    uint64
	BadDoorbells uint64 // of another queue
	Errors       map[mlx5.Syndrome]uint64
}

// SendPort sends what is posted to one queue.
type SendPort struct {
	cfg   SendConfig
	mem   *SendMemory
	state mlx5.State
	index uint64 // basic blocks executed
	cqe   uint64 // CQEs written
	wire  [][]byte
	wqe   []byte
	raw   [mlx5.CQESize]byte
	count SendCounters
}

// NewSend returns a port whose queue is ready.
func NewSend(cfg SendConfig) (*SendPort, error) {
	if cfg.LogSQ < 1 || cfg.LogSQ > mlx5.MaxLogRQ || cfg.LogCQ > mlx5.MaxLogCQ || cfg.MinInline < 0 {
		return nil, fmt.Errorf("%w: send queue of 2^%d blocks and 2^%d CQEs, %d bytes inline", ErrConfig, cfg.LogSQ, cfg.LogCQ, cfg.MinInline)
	}
	if cfg.Memory == nil {
		cfg.Memory = NewSendMemory(cfg.LogSQ, cfg.LogCQ)
	}
	return &SendPort{cfg: cfg, mem: cfg.Memory, state: mlx5.StateRDY, count: SendCounters{Errors: map[mlx5.Syndrome]uint64{}}}, nil
}

// Memory returns the queue's memory.
func (s *SendPort) Memory() *SendMemory { return s.mem }

// State returns the queue's state.
func (s *SendPort) State() mlx5.State { return s.state }

// Counters returns what has been counted.
func (s *SendPort) Counters() SendCounters { return s.count }

// Take returns the frames that were sent since the last call.
func (s *SendPort) Take() [][]byte {
	w := s.wire
	s.wire = nil
	return w
}

// Doorbell is a write of 64 bits to the UAR. The port looks at the queue's number in it; what is
// posted it reads in the doorbell record, and it executes no WQE twice.
func (s *SendPort) Doorbell(v uint64) {
	s.count.Doorbells++
	if uint32(v)>>8 != s.cfg.SQN {
		s.count.BadDoorbells++
		return
	}
	posted := func() uint64 { return mlx5.Since(mlx5.LoadBE32(s.mem.DB[mlx5.SQDoorbellOffset:]), s.index, 16) }
	for n := posted(); n > 0 && s.state == mlx5.StateRDY; n = posted() {
		if n > 1<<s.cfg.LogSQ {
			s.fail(mlx5.SyndromeLocalQPOp, n)
			return
		}
		s.execute(n)
	}
}

// ModifySQ changes the queue's state.
func (s *SendPort) ModifySQ(from, to mlx5.State) error {
	if from != s.state || !(from == mlx5.StateERR && to == mlx5.StateRST || from == mlx5.StateRST && to == mlx5.StateRDY) {
		return fmt.Errorf("%w: send queue from %s (it is in %s) to %s", ErrState, from, s.state, to)
	}
	if s.state = to; to == mlx5.StateRST {
		s.index = 0
	}
	return nil
}

// execute runs the next WQE of the n blocks that are posted.
func (s *SendPort) execute(n uint64) {
	at := s.block(s.index)
	var c mlx5.CtrlSeg
	c.Decode(at)
	blocks := uint64(mlx5.Blocks(c.DS))
	if blocks == 0 || blocks > n || c.SQN != s.cfg.SQN || c.Index != uint16(s.index) {
		s.fail(mlx5.SyndromeLocalQPOp, n)
		return
	}
	// A WQE goes on at the ring's beginning.
	s.wqe = s.wqe[:0]
	for i := range blocks {
		s.wqe = append(s.wqe, s.block(s.index+i)...)
	}
	wqe := s.wqe[16 : int(c.DS)*16]
	switch c.Opcode {
	case mlx5.SendNop:
	case mlx5.SendSend, mlx5.SendDump:
		frame, syndrome := s.gather(wqe, c.Opcode == mlx5.SendSend)
		if syndrome != 0 {
			s.fail(syndrome, n)
			return
		}
		if c.Opcode == mlx5.SendSend {
			s.wire = append(s.wire, frame)
			s.count.Frames++
		}
	default:
		s.fail(mlx5.SyndromeLocalQPOp, n)
		return
	}
	done := mlx5.CQE{SOPDropQPN: uint32(c.Opcode)<<24 | s.cfg.SQN, WQECounter: uint16(s.index)}
	s.index += blocks
	if c.FMCESE&mlx5.CQEAlways != 0 {
		done.OpOwn = mlx5.OpOwn(mlx5.OpReq, mlx5.FormatPlain, s.owner())
		done.Encode(s.raw[:])
		s.publish()
	}
}

func (s *SendPort) block(i uint64) []byte {
	at := i & (1<<s.cfg.LogSQ - 1) * mlx5.SendWQEBB
	return s.mem.SQ[at : at+mlx5.SendWQEBB]
}

// gather collects what a WQE's segments name.
func (s *SendPort) gather(wqe []byte, eth bool) (frame []byte, bad mlx5.Syndrome) {
	var e mlx5.EthSeg
	if eth {
		if e.Decode(wqe) != nil || len(e.Inline) < s.cfg.MinInline && !e.Insert {
			return nil, mlx5.SyndromeLocalQPOp
		}
		frame = append(frame, e.Inline...)
		wqe = wqe[e.Size():]
	}
	for len(wqe) >= mlx5.DataSegSize {
		var d mlx5.DataSeg
		d.Decode(wqe)
		if d.ByteCount&mlx5.InlineFlag != 0 {
			n := int(d.ByteCount &^ mlx5.InlineFlag)
			if 4+n > len(wqe) {
				return nil, mlx5.SyndromeLocalQPOp
			}
			frame = append(frame, wqe[4:4+n]...)
			wqe = wqe[(4+n+15)/16*16:]
			continue
		}
		b, ok := s.memory(&d)
		if !ok {
			return nil, mlx5.SyndromeLocalProt
		}
		frame = append(frame, b...)
		wqe = wqe[mlx5.DataSegSize:]
	}
	if e.Insert {
		if len(frame) < addresses {
			return nil, mlx5.SyndromeLocalQPOp
		}
		tagged := append([]byte(nil), frame[:addresses]...)
		tagged = binary.BigEndian.AppendUint16(tagged, 0x8100)
		tagged = binary.BigEndian.AppendUint16(tagged, e.TCI)
		frame = append(tagged, frame[addresses:]...)
	}
	if eth && len(frame) == 0 {
		return nil, mlx5.SyndromeLocalQPOp
	}
	return frame, 0
}

func (s *SendPort) memory(d *mlx5.DataSeg) ([]byte, bool) {
	for i := range s.cfg.Regions {
		r := &s.cfg.Regions[i]
		if off := d.Addr - r.Addr; r.LKey == d.LKey && off <= uint64(len(r.Bytes)) && uint64(d.ByteCount) <= uint64(len(r.Bytes))-off {
			return r.Bytes[off : off+uint64(d.ByteCount)], true
		}
	}
	return nil, false
}

// fail ends the queue: an error CQE for the WQE at hand, and flush errors for the rest of the n
// blocks that are posted, as far as they can be told apart.
func (s *SendPort) fail(syndrome mlx5.Syndrome, n uint64) {
	s.state = mlx5.StateERR
	end := s.index + n
	for s.index < end {
		s.count.Errors[syndrome]++
		e := mlx5.ErrorCQE{Syndrome: syndrome, OpcodeQPN: s.cfg.SQN, WQECounter: uint16(s.index), OpOwn: mlx5.OpOwn(mlx5.OpReqErr, mlx5.FormatPlain, s.owner())}
		e.Encode(s.raw[:])
		s.publish()
		var c mlx5.CtrlSeg
		c.Decode(s.block(s.index))
		s.index += uint64(max(1, mlx5.Blocks(c.DS)))
		syndrome = mlx5.SyndromeWRFlush
	}
}

func (s *SendPort) owner() uint8 {
	if s.cfg.Collapsed {
		return 0
	}
	return mlx5.Lap(s.cqe, s.cfg.LogCQ)
}

func (s *SendPort) publish() {
	if s.cfg.Collapsed {
		mlx5.WriteCQE(s.mem.CQ[:mlx5.CQESize], &s.raw)
		s.cqe++
		return
	}
	mlx5.WriteCQE(s.mem.CQ[s.cqe&(1<<s.cfg.LogCQ-1)*mlx5.CQESize:][:mlx5.CQESize], &s.raw)
	s.cqe++
}
