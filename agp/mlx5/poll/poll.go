package poll

import (
	"errors"
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
)

// Errors of Poll. They stay until Reset.
var (
	// ErrReset says that the receive queue has failed and must be reset.
	ErrReset = errors.New("mlx5: receive queue needs a reset")
	// ErrDesync says that completions do not follow the receive WQEs.
	ErrDesync = errors.New("mlx5: completion does not name the next receive WQE")
	// ErrCompressed says that the port compresses CQEs.
	ErrCompressed = errors.New("mlx5: compressed completion, which was not asked for")
	// ErrConfig wraps complaints about a Config.
	ErrConfig = errors.New("mlx5: poller configuration")
)

// Batch limits.
const (
	MaxBatch   = 32
	syndromes  = 64
	ethVLANTag = 4
)

// Guard is a rule that a test can leave out to see what it is for.
type Guard uint8

// Guards.
const (
	GuardOwner  Guard = 1 << iota // the owner bit
	GuardUpper                    // the half with op_own is read first
	GuardOrder                    // the WQE counter
	GuardCredit                   // the completion queue's doorbell comes first
)

// Config of a Poller.
type Config struct {
	Queue mlx5.Queue
	Relay bool       // agp/source/relay writes the queue
	Clock mlx5.Clock // of Queue, if not the relay's
	Batch int        // CQEs at a time, 1 to MaxBatch, 0: MaxBatch
	// Flush makes the port's writes so far visible; nil: they are in order.
	Flush func()
	// Without leaves guards out. Between is called where a port's writes could come in
	// between. Both are for tests.
	Without Guard
	Between func()
}

// Packet is what a CQE stands for.
type Packet struct {
	Data        []byte // in the slot
	TimestampNs int64
	WireLen     uint32
	LinkType    packet.LinkType
	SegmentSize uint16
	Side        uint8
	Tick        bool   // no packet: time has passed
	TCI         int32  // of a VLAN tag that the port took out of the frame, -1: none
	FlowTag     uint32 // sop_drop_qpn, see mlx5.FlowTag and mlx5.Mark
	Metadata    uint32 // flow_table_metadata
	Hash        uint32
	HashType    uint8
	HdrType     uint8 // l4_hdr_type_etc
}

// Counters of a Poller. They only grow.
type Counters struct {
	Polls   uint64 // heartbeat
	CQEs    uint64
	Frames  uint64
	Bytes   uint64 // wire lengths
	Ticks   uint64
	Fillers uint64
	Unknown uint64            // CQEs of an opcode that receive queues do not have
	Errors  [syndromes]uint64 // error CQEs by syndrome
	Vendor  uint8             // vendor syndrome of the last one
	Resets  uint64
	Skipped uint64 // frames that a reset found complete and dropped
}

// Poller takes packets from one queue.
type Poller struct {
	cfg    Config
	q      *mlx5.Queue
	ci     uint64 // CQEs taken
	wqes   uint64 // receive WQEs taken since the last reset
	stride uint32 // of the current WQE of a striding queue
	err    error
	count  Counters
	cqes   [MaxBatch]mlx5.CQE
}

// New checks cfg. The queue's memory is as mlx5.Queue.Init leaves it; a port may already have
// written to it.
func New(cfg Config) (*Poller, error) {
	if cfg.Batch == 0 {
		cfg.Batch = MaxBatch
	}
	if cfg.Batch < 1 || cfg.Batch > MaxBatch {
		return nil, fmt.Errorf("%w: batch = %d, allowed are 1 to %d", ErrConfig, cfg.Batch, MaxBatch)
	}
	if err := cfg.Queue.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	p := &Poller{cfg: cfg}
	p.q = &p.cfg.Queue
	return p, nil
}

// Counters returns what has been counted.
func (p *Poller) Counters() Counters { return p.count }

// Position returns how many CQEs, and receive WQEs since the last reset, have been taken.
func (p *Poller) Position() (cqes, wqes uint64) { return p.ci, p.wqes }

// Poll replaces list by up to cap(list) packets, a batch at most. An error comes with the packets
// that were before it.
func (p *Poller) Poll(list []Packet) ([]Packet, error) {
	list = list[:0]
	p.count.Polls++
	if p.err != nil {
		return list, p.err
	}
	n := p.ready(min(p.cfg.Batch, cap(list)))
	if n == 0 {
		return list, nil
	}
	if p.cfg.Flush != nil {
		p.cfg.Flush()
	}
	for i := range n {
		c := &p.cqes[i]
		raw := p.q.CQE(p.ci)
		c.DecodeUpper(raw)
		if p.cfg.Without&GuardUpper == 0 {
			p.between()
			c.DecodeLower(raw)
		}
		list, p.err = p.take(list, c, raw)
		if p.err != nil {
			return list, p.err
		}
	}
	return list, nil
}

// ready counts the CQEs that may be taken.
func (p *Poller) ready(limit int) int {
	if p.cfg.Without&GuardUpper != 0 {
		for i := range limit {
			p.cqes[i].DecodeLower(p.q.CQE(p.ci + uint64(i)))
		}
		p.between()
	}
	for i := range limit {
		opOwn, _ := mlx5.LoadOpOwn(p.q.CQE(p.ci + uint64(i)))
		ready := mlx5.Ready(opOwn, p.ci+uint64(i), p.q.LogCQ)
		if p.cfg.Without&GuardOwner != 0 {
			ready = mlx5.OpcodeOf(opOwn) != mlx5.OpInvalid
		}
		if !ready {
			return i
		}
	}
	return limit
}

func (p *Poller) between() {
	if p.cfg.Between != nil {
		p.cfg.Between()
	}
}

// take takes the CQE at ci.
func (p *Poller) take(list []Packet, c *mlx5.CQE, raw []byte) ([]Packet, error) {
	op := mlx5.OpcodeOf(c.OpOwn)
	switch {
	case op == mlx5.OpRespErr || op == mlx5.OpReqErr:
		var e mlx5.ErrorCQE
		e.Decode(raw)
		return list, p.fault(&e)
	case mlx5.FormatOf(c.OpOwn) == mlx5.FormatCompressed:
		return list, ErrCompressed
	case op == mlx5.OpNoPacket:
		p.next()
		p.count.Ticks++
		return append(list, Packet{Tick: true, TimestampNs: p.time(c), TCI: -1}), nil
	case op < mlx5.OpRespSend || op > mlx5.OpRespSendInv:
		p.next()
		p.count.Unknown++
		return list, nil
	case p.q.Striding():
		return p.strides(list, c)
	case c.WQECounter != uint16(p.wqes) && p.cfg.Without&GuardOrder == 0:
		return list, ErrDesync
	}
	slot := p.q.Slot(p.wqes)
	p.next()
	p.wqes++
	return append(list, p.packet(c, slot, c.ByteCnt)), nil
}

func (p *Poller) next() {
	p.ci++
	p.count.CQEs++
}

// fault takes an error CQE.
func (p *Poller) fault(e *mlx5.ErrorCQE) error {
	index := e.WQECounter
	if p.q.Striding() {
		index = e.WQEID
	}
	if index != uint16(p.wqes) && p.cfg.Without&GuardOrder == 0 {
		return ErrDesync
	}
	p.next()
	p.wqes++
	p.stride = 0
	p.count.Errors[e.Syndrome%syndromes]++
	p.count.Vendor = e.VendorErrSynd
	if e.Syndrome.Reset() {
		return fmt.Errorf("%w: %s, vendor syndrome %#x", ErrReset, e.Syndrome, e.VendorErrSynd)
	}
	return nil
}

// strides takes a packet or filler of a striding queue.
func (p *Poller) strides(list []Packet, c *mlx5.CQE) ([]Packet, error) {
	length, n, filler := mlx5.SplitMPRQByteCnt(c.ByteCnt)
	at := p.stride
	if n == 0 || at+uint32(n) > p.q.Strides || uint32(length) > uint32(n)*p.q.StrideSize ||
		c.WQEID != uint16(p.wqes) || uint32(c.WQECounter) != at {
		return list, ErrDesync
	}
	slot := p.q.Slot(p.wqes)[at*p.q.StrideSize:]
	p.next()
	if p.stride += uint32(n); p.stride == p.q.Strides {
		p.stride = 0
		p.wqes++
	}
	if filler {
		p.count.Fillers++
		return list, nil
	}
	return append(list, p.packet(c, slot, uint32(length))), nil
}

func (p *Poller) time(c *mlx5.CQE) int64 {
	if p.cfg.Relay {
		return int64(c.Timestamp)
	}
	return p.cfg.Clock.Ns(c.Timestamp)
}

func (p *Poller) packet(c *mlx5.CQE, slot []byte, length uint32) Packet {
	k := Packet{
		Data: slot[:min(length, uint32(len(slot)))], TimestampNs: p.time(c), WireLen: length,
		LinkType: packet.LinkEthernet, TCI: -1, FlowTag: c.SOPDropQPN & 0xffffff, Metadata: c.FlowTableMetadata,
		Hash: c.RXHashResult, HashType: c.RXHashType, HdrType: c.L4HdrTypeEtc,
	}
	switch {
	case p.cfg.Relay:
		r := mlx5.RelayOf(c)
		k.LinkType, k.Side, k.SegmentSize, k.WireLen = packet.LinkType(r.LinkType), r.Side, r.SegmentSize, r.WireLen
	case c.L4HdrTypeEtc&mlx5.HdrVLANStripped != 0:
		k.TCI = int32(c.VLANInfo)
		k.WireLen += ethVLANTag
	}
	p.count.Frames++
	p.count.Bytes += uint64(k.WireLen)
	return k
}

// Release gives back all that was taken. Packets that Poll returned are no longer valid.
func (p *Poller) Release() {
	if p.cfg.Without&GuardCredit != 0 {
		p.releaseRQ()
		p.between()
		p.releaseCQ()
		return
	}
	p.releaseCQ()
	p.between()
	p.releaseRQ()
}

func (p *Poller) releaseCQ() { mlx5.StoreBE32(p.q.CQDB, mlx5.CQDoorbell(p.ci)) }
func (p *Poller) releaseRQ() {
	mlx5.StoreBE32(p.q.RQDB, mlx5.RQDoorbell(p.wqes+1<<p.q.LogRQ))
}

// Modifier changes the state of the receive queue: the command MODIFY_RQ.
type Modifier interface {
	ModifyRQ(from, to mlx5.State) error
}

// Reset brings a queue that has failed back to work: by way of ERR to RST, where nothing is
// written any more, then takes the completions that are left, sets the doorbell records, and
// makes it ready. Packets that Poll returned are no longer valid.
func (p *Poller) Reset(m Modifier) error {
	for _, s := range [][2]mlx5.State{{mlx5.StateRDY, mlx5.StateERR}, {mlx5.StateERR, mlx5.StateRST}} {
		if err := m.ModifyRQ(s[0], s[1]); err != nil {
			return fmt.Errorf("receive queue from %s to %s: %w", s[0], s[1], err)
		}
	}
	if p.cfg.Flush != nil {
		p.cfg.Flush()
	}
	for p.ready(1) == 1 {
		p.drain(p.q.CQE(p.ci))
	}
	p.wqes, p.stride = 0, 0
	p.releaseCQ()
	mlx5.StoreBE32(p.q.RQDB, 0)
	if err := m.ModifyRQ(mlx5.StateRST, mlx5.StateRDY); err != nil {
		return fmt.Errorf("receive queue from %s to %s: %w", mlx5.StateRST, mlx5.StateRDY, err)
	}
	p.releaseRQ()
	p.err = nil
	p.count.Resets++
	return nil
}

// drain takes a completion of a queue that is being reset: of its packet nobody knows what
// it is worth.
func (p *Poller) drain(raw []byte) {
	var c mlx5.CQE
	c.Decode(raw)
	switch op := mlx5.OpcodeOf(c.OpOwn); {
	case mlx5.FormatOf(c.OpOwn) == mlx5.FormatCompressed && op == mlx5.OpRespSend:
		n := uint64(max(c.ByteCnt, 1))
		for range min(n, 1<<p.q.LogCQ) { // a session takes as many CQEs as packets
			p.next()
			p.count.Skipped++
		}
		return
	case op == mlx5.OpRespErr:
		var e mlx5.ErrorCQE
		e.Decode(raw)
		p.count.Errors[e.Syndrome%syndromes]++
	case op >= mlx5.OpRespSend && op <= mlx5.OpRespSendInv:
		p.count.Skipped++
	}
	p.next()
}
