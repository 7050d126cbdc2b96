package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/steer/toeplitz"
)

// Errors of this package.
var (
	ErrConfig = errors.New("NIC model configuration")
	ErrState  = errors.New("NIC model: no such change of a queue's state")
)

// Defaults and limits of Config.
const (
	MaxQueues        = 1000 // external queues that DPDK's mlx5 driver knows
	DefaultRQTSize   = 512
	DefaultLateTicks = 3
	sessionLength    = 12    // packets of a compressed session: more than one array
	firstRQN         = 0x100 // number of the first queue
)

// Compression of completions.
type Compression uint8

// Kinds of compression.
const (
	CompressNone Compression = iota
	CompressBasic
	CompressEnhanced
)

// Config of a Port. Layout, or Memory, is required.
type Config struct {
	Queues int // 0: as many as Memory, else 1
	Layout mlx5.Layout
	Memory []mlx5.Queue // initialised (mlx5.Queue.Init); nil: made here of Layout
	Seed   uint64
	// RSSKey spreads frames over queues; the zero key stands for toeplitz.Symmetric.
	RSSKey toeplitz.Key
	// RQTSize is the size of the indirection table if the number of queues is no power of two.
	RQTSize       int
	Clock         mlx5.Clock // of CQE.Timestamp
	StripVLAN     bool       // the outer 802.1Q tag goes from the frame into the CQE
	EndPadding    bool       // writes go up to the end of a cache line
	Canary        bool       // see PutCanary; the number counts the queue's frames
	IgnoreOverrun bool       // a full completion queue is overwritten
	Compression   Compression
	LateTicks     int // how long a late write takes
}

// Meta is what the port knows of a frame beside its bytes.
type Meta struct {
	TimestampNs int64
	FlowTag     uint32 // sop_drop_qpn: a raw tag, or mlx5.PutMark
	Metadata    uint32
}

// Fault is something that can go wrong.
type Fault uint8

// Faults. Their probability is per frame.
const (
	FaultLocalLength   Fault = iota // error CQE 01
	FaultLocalQPOp                  // error CQE 02, the queue fails
	FaultLocalProt                  // error CQE 04, the queue fails
	FaultWRFlush                    // the queue fails without a first cause
	FaultMinor                      // error CQE of any other syndrome
	FaultLatePayload                // the payload lands after its CQE
	FaultLateLower                  // the first half of the CQE lands after the second
	FaultLateUpper                  // the second half lands after the first
	FaultInvalid                    // the CQE is invalid with a matching owner at first
	FaultStaleDoorbell              // an old value of the doorbell records is used if it suffices
	FaultReorder                    // two CQEs name each other's receive WQE
	FaultLost                       // a receive WQE is taken and no CQE written
	FaultCompress                   // a compressed session begins
	FaultFiller                     // a striding queue passes over strides
	numFaults
)

var minorSyndromes = []mlx5.Syndrome{
	mlx5.SyndromeMWBind, mlx5.SyndromeBadResp, mlx5.SyndromeLocalAccess, mlx5.SyndromeRemoteInvalReq, mlx5.SyndromeRemoteAccess,
	mlx5.SyndromeRemoteOp, mlx5.SyndromeTransportRetry, mlx5.SyndromeRNRRetry, mlx5.SyndromeAborted,
}

// vendorSyndrome is what ports were seen to report with LOCAL_PROT.
const vendorSyndrome = 0x52

// Counters of a queue.
type Counters struct {
	Frames      uint64 // delivered: a CQE says so, or will
	Bytes       uint64
	OutOfBuffer uint64 // no receive WQE was posted
	Discarded   uint64 // the queue was not ready
	LinkDown    uint64
	CQOverflow  uint64
	Lost        uint64                   // taken by a fault
	Errors      map[mlx5.Syndrome]uint64 // error CQEs
	ErrorFrames uint64                   // frames that ended in an error CQE; flushed WQEs have none
	Fillers     uint64
}

// Port receives.
type Port struct {
	cfg     Config
	queues  []*queue
	rss     rss
	rng     *rand.Rand
	faults  [numFaults]float64
	pending []late
	tick    uint64
	down    bool
}

// late is a write that has yet to land.
type late struct {
	due uint64
	dst []byte
	src []byte
	cqe bool // dst is a whole CQE
}

// queue is the port's side of a receive queue and its completion queue.
type queue struct {
	port    *Port
	rqn     uint32
	mem     mlx5.Queue
	state   mlx5.State
	gone    bool
	cqError bool
	wqe     uint64 // hw_counter: receive WQEs taken
	stride  uint32 // of the current one
	cqe     uint64 // CQEs written
	posted  uint32 // RQ doorbell as last read
	taken   uint32 // CQ doorbell as last read
	swap    bool   // the next CQE names the WQE before
	session []mlx5.CQE
	serial  uint16 // of the canary
	raw     [mlx5.CQESize]byte
	count   Counters
}

// New returns a port whose queues are ready, with the link up.
func New(cfg Config) (*Port, error) {
	if cfg.Queues == 0 {
		cfg.Queues = max(1, len(cfg.Memory))
	}
	if cfg.RQTSize == 0 {
		cfg.RQTSize = DefaultRQTSize
	}
	if cfg.LateTicks == 0 {
		cfg.LateTicks = DefaultLateTicks
	}
	if cfg.RSSKey == (toeplitz.Key{}) {
		cfg.RSSKey = toeplitz.Symmetric
	}
	switch {
	case cfg.Queues < 1 || cfg.Queues > MaxQueues:
		return nil, fmt.Errorf("%w: queues = %d, allowed are 1 to %d", ErrConfig, cfg.Queues, MaxQueues)
	case cfg.Memory != nil && len(cfg.Memory) != cfg.Queues:
		return nil, fmt.Errorf("%w: memory of %d queues for %d", ErrConfig, len(cfg.Memory), cfg.Queues)
	case cfg.LateTicks < 0:
		return nil, fmt.Errorf("%w: late by %d ticks", ErrConfig, cfg.LateTicks)
	}
	p := &Port{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6d6c7835))}
	var err error
	if p.rss, err = newRSS(cfg.RSSKey, cfg.Queues, cfg.RQTSize); err != nil {
		return nil, err
	}
	for i := range cfg.Queues {
		q := &queue{port: p, rqn: firstRQN + uint32(i), state: mlx5.StateRDY, count: Counters{Errors: map[mlx5.Syndrome]uint64{}}}
		if cfg.Memory != nil {
			q.mem, err = cfg.Memory[i], cfg.Memory[i].Check()
		} else {
			q.mem, err = mlx5.NewQueue(cfg.Layout)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		if cfg.Compression == CompressBasic && q.mem.LogCQ < 5 {
			return nil, fmt.Errorf("%w: %d CQEs are too few for compressed sessions", ErrConfig, 1<<q.mem.LogCQ)
		}
		p.queues = append(p.queues, q)
	}
	return p, nil
}

// Queues returns the number of queues.
func (p *Port) Queues() int { return len(p.queues) }

// Memory returns the memory of queue i.
func (p *Port) Memory(i int) mlx5.Queue { return p.queues[i].mem }

// State returns what the queue is in, and whether its completion queue has failed.
func (p *Port) State(i int) (rq mlx5.State, cqFailed bool) {
	return p.queues[i].state, p.queues[i].cqError
}

// Counters returns what queue i has counted.
func (p *Port) Counters(i int) Counters {
	q := p.queues[i]
	c := q.count
	c.Errors = make(map[mlx5.Syndrome]uint64, len(q.count.Errors))
	for s, n := range q.count.Errors {
		c.Errors[s] = n
	}
	return c
}

// Credit reads how many receive WQEs of queue i are posted; 0 if it is not ready.
func (p *Port) Credit(i int) int {
	q := p.queues[i]
	if q.state != mlx5.StateRDY {
		return 0
	}
	return int(mlx5.Since(mlx5.LoadBE32(q.mem.RQDB), q.wqe, 16))
}

// SetFault gives a fault a probability, 0 to 1.
func (p *Port) SetFault(f Fault, probability float64) { p.faults[f] = probability }

// SetLink takes the link up or down.
func (p *Port) SetLink(up bool) { p.down = !up }

// Destroy ends queue i as DESTROY_RQ does: nothing is written to its memory any more.
func (p *Port) Destroy(i int) {
	q := p.queues[i]
	q.gone, q.state, q.session = true, mlx5.StateRST, nil
	p.land(func(l *late) bool { return !q.owns(l.dst) }, false)
}

// ModifyRQ changes the state of queue i.
func (p *Port) ModifyRQ(i int, from, to mlx5.State) error {
	q := p.queues[i]
	switch {
	case q.gone:
		return fmt.Errorf("%w: queue %d is destroyed", ErrState, i)
	case to == mlx5.StateERR && q.state != mlx5.StateRST:
		q.fail()
	case from != q.state || !(from == mlx5.StateERR && to == mlx5.StateRST || from == mlx5.StateRST && to == mlx5.StateRDY):
		return fmt.Errorf("%w: queue %d from %s (it is in %s) to %s", ErrState, i, from, q.state, to)
	case to == mlx5.StateRDY && q.cqError:
		return fmt.Errorf("%w: the completion queue of queue %d has failed", ErrState, i)
	case to == mlx5.StateRST:
		q.close()
		q.wqe, q.stride, q.posted, q.swap = 0, 0, 0, false
		q.state = to
	default:
		q.state = to
	}
	return nil
}

// Modifier is queue i for agp/mlx5/poll.
func (p *Port) Modifier(i int) Modifier { return Modifier{p, i} }

// Modifier changes the state of one queue.
type Modifier struct {
	port  *Port
	queue int
}

// ModifyRQ is Port.ModifyRQ.
func (m Modifier) ModifyRQ(from, to mlx5.State) error { return m.port.ModifyRQ(m.queue, from, to) }

// Tick lets a tick pass: late writes land, compressed sessions end.
func (p *Port) Tick() {
	p.tick++
	p.land(func(l *late) bool { return l.due > p.tick }, true)
	for _, q := range p.queues {
		q.close()
	}
}

// Flush makes all writes land, as reading the memory through the port does.
func (p *Port) Flush() {
	p.land(func(*late) bool { return false }, true)
}

// land ends the lateness of the writes that do not stay, in their order.
func (p *Port) land(stays func(*late) bool, write bool) {
	rest := p.pending[:0]
	for i := range p.pending {
		switch l := &p.pending[i]; {
		case stays(l):
			rest = append(rest, *l)
		case !write:
		case l.cqe:
			mlx5.WriteCQE(l.dst, (*[mlx5.CQESize]byte)(l.src))
		default:
			copy(l.dst, l.src)
		}
	}
	p.pending = rest
}

// later writes src to dst after some ticks.
func (p *Port) later(dst, src []byte, cqe bool) {
	p.pending = append(p.pending, late{p.tick + uint64(p.cfg.LateTicks), dst, append([]byte(nil), src...), cqe})
}

func (p *Port) chance(f Fault) bool {
	return p.faults[f] > 0 && p.rng.Float64() < p.faults[f]
}

// Inject receives a frame, without its checksum, by RSS. It returns the queue and whether the
// frame was delivered.
func (p *Port) Inject(frame []byte, m Meta) (queue int, ok bool) {
	var h header
	h.read(frame)
	hash := p.rss.hash(&h)
	queue = p.rss.queue(hash)
	return queue, p.queues[queue].receive(frame, &m, &h, hash)
}

// InjectTo receives a frame by a rule that names the queue.
func (p *Port) InjectTo(queue int, frame []byte, m Meta) bool {
	var h header
	h.read(frame)
	return p.queues[queue].receive(frame, &m, &h, 0)
}

// receive delivers a frame or counts why not.
func (q *queue) receive(frame []byte, m *Meta, h *header, hash uint32) bool {
	p := q.port
	switch {
	case p.down:
		q.count.LinkDown++
		return false
	case q.gone || q.state != mlx5.StateRDY:
		q.count.Discarded++
		return false
	case !q.credit():
		q.count.OutOfBuffer++
		return false
	case p.chance(FaultLocalQPOp):
		return q.fatal(mlx5.SyndromeLocalQPOp)
	case p.chance(FaultLocalProt):
		return q.fatal(mlx5.SyndromeLocalProt)
	case p.chance(FaultWRFlush):
		q.count.Discarded++
		q.fail()
		return false
	case p.chance(FaultLocalLength):
		return q.lose(mlx5.SyndromeLocalLength)
	case p.chance(FaultMinor):
		return q.lose(minorSyndromes[p.rng.IntN(len(minorSyndromes))])
	case q.mem.Striding():
		return q.receiveStrides(frame, m, h, hash)
	case p.chance(FaultLost):
		q.wqe++
		q.count.Lost++
		return false
	}
	seg, ok := q.buffer()
	if !ok {
		return q.fatal(mlx5.SyndromeLocalProt)
	}
	c := q.completion(m, h, hash)
	length := q.write(q.mem.Slot(q.wqe)[:seg.ByteCount], frame, &c)
	if length < 0 {
		return q.lose(mlx5.SyndromeLocalLength)
	}
	c.ByteCnt, c.WQECounter = uint32(length), uint16(q.wqe)
	q.wqe++
	q.count.Frames++
	q.count.Bytes += uint64(length)
	return q.complete(&c)
}

// receiveStrides is receive for a striding queue.
func (q *queue) receiveStrides(frame []byte, m *Meta, h *header, hash uint32) bool {
	size, all := q.mem.StrideSize, q.mem.Strides
	n := uint32(max(1, (len(frame)+int(size)-1)/int(size)))
	if n > all || len(frame) > 0xffff {
		return q.lose(mlx5.SyndromeLocalLength)
	}
	skip := uint32(0)
	if q.stride+n > all {
		skip = all - q.stride // a frame does not go on in the next WQE
	} else if q.stride > 0 && q.port.chance(FaultFiller) {
		skip = 1 + uint32(q.port.rng.IntN(int(all-q.stride)))
	}
	if skip > 0 {
		c := mlx5.CQE{ByteCnt: mlx5.MPRQByteCnt(0, uint16(skip), true)}
		q.count.Fillers++
		if !q.advance(&c, skip) {
			return false
		}
		if !q.credit() {
			q.count.OutOfBuffer++
			return false
		}
		return q.receiveStrides(frame, m, h, hash)
	}
	if _, ok := q.buffer(); !ok {
		return q.fatal(mlx5.SyndromeLocalProt)
	}
	c := q.completion(m, h, hash)
	length := q.write(q.mem.Slot(q.wqe)[q.stride*size:][:n*size], frame, &c)
	c.ByteCnt = mlx5.MPRQByteCnt(uint16(length), uint16(n), false)
	q.count.Frames++
	q.count.Bytes += uint64(length)
	return q.advance(&c, n)
}

// advance completes n strides.
func (q *queue) advance(c *mlx5.CQE, n uint32) bool {
	c.WQEID, c.WQECounter = uint16(q.wqe), uint16(q.stride)
	if q.stride += n; q.stride == q.mem.Strides {
		q.stride = 0
		q.wqe++
	}
	return q.complete(c)
}

// credit says whether a receive WQE is posted.
func (q *queue) credit() bool {
	if !q.port.chance(FaultStaleDoorbell) || mlx5.Since(q.posted, q.wqe, 16) == 0 {
		q.posted = mlx5.LoadBE32(q.mem.RQDB)
	}
	return mlx5.Since(q.posted, q.wqe, 16) != 0
}

// buffer reads the current receive WQE. It is not ok if it does not name the slot.
func (q *queue) buffer() (s mlx5.DataSeg, ok bool) {
	w := q.mem.WQE(q.wqe)
	s.Decode(w[len(w)-mlx5.DataSegSize:])
	at := q.mem.Addr + q.wqe&(1<<q.mem.LogRQ-1)*uint64(q.mem.Pitch)
	return s, s.LKey == q.mem.LKey && s.Addr == at && s.ByteCount <= q.mem.Pitch
}

func (q *queue) completion(m *Meta, h *header, hash uint32) mlx5.CQE {
	return mlx5.CQE{
		RXHashResult: hash, RXHashType: h.hashType(), HDSIPExt: h.checks(), L4HdrTypeEtc: h.typ(),
		FlowTableMetadata: m.Metadata, SOPDropQPN: m.FlowTag & 0xffffff, Timestamp: q.port.cfg.Clock.Timestamp(m.TimestampNs),
	}
}

const (
	addresses = 12 // bytes before the type of an Ethernet frame
	vlanTag   = 4
	padByte   = 0xa5
)

// write puts a frame into its buffer and returns its length there, -1 if it is too long. What
// is too long is cut, as its beginning has been written when the end arrives.
func (q *queue) write(slot, frame []byte, c *mlx5.CQE) int {
	cfg := &q.port.cfg
	to, last := slot, []byte(nil)
	if q.port.chance(FaultLatePayload) {
		last = make([]byte, len(slot))
		copy(last, slot)
		to = last
	}
	strip := cfg.StripVLAN && len(frame) >= addresses+vlanTag+2 && binary.BigEndian.Uint16(frame[addresses:]) == 0x8100
	n := len(frame)
	if strip {
		n -= vlanTag
	}
	if n > len(slot) {
		copy(slot, frame)
		return -1
	}
	if strip {
		c.VLANInfo = binary.BigEndian.Uint16(frame[addresses+2:])
		c.L4HdrTypeEtc |= mlx5.HdrVLANStripped
		copy(to, frame[:addresses])
		copy(to[addresses:], frame[addresses+vlanTag:])
	} else {
		copy(to, frame)
	}
	if cfg.Canary && PutCanary(to[:n], q.serial) {
		q.serial++
	}
	end := n
	if cfg.EndPadding {
		for end = n; end < len(to) && end%mlx5.StrideUnit != 0; end++ {
			to[end] = padByte
		}
	}
	if last != nil {
		q.port.later(slot[:end], last[:end], false)
	}
	return n
}

// lose takes the current receive WQE with an error CQE.
func (q *queue) lose(s mlx5.Syndrome) bool {
	q.count.ErrorFrames++
	q.fault(s)
	return false
}

// fatal is lose, after which the queue has failed.
func (q *queue) fatal(s mlx5.Syndrome) bool {
	q.lose(s)
	q.fail()
	return false
}

// fail brings the queue into the error state: all posted receive WQEs are flushed.
func (q *queue) fail() {
	if q.state == mlx5.StateERR {
		return
	}
	q.state = mlx5.StateERR
	for n := mlx5.Since(mlx5.LoadBE32(q.mem.RQDB), q.wqe, 16); n > 0 && !q.cqError; n-- {
		q.fault(mlx5.SyndromeWRFlush)
	}
}

// fault writes an error CQE for the current receive WQE and takes that.
func (q *queue) fault(s mlx5.Syndrome) {
	q.close()
	e := mlx5.ErrorCQE{Syndrome: s, VendorErrSynd: vendorSyndrome, OpcodeQPN: q.rqn, WQECounter: uint16(q.wqe)}
	if q.mem.Striding() {
		e.WQEID, e.WQECounter, e.Stride = uint16(q.wqe), uint16(q.stride), uint16(q.stride)
	}
	q.wqe++
	q.stride = 0
	if !q.room(1) {
		return
	}
	q.count.Errors[s]++
	e.OpOwn = mlx5.OpOwn(mlx5.OpRespErr, mlx5.FormatPlain, mlx5.Lap(q.cqe, q.mem.LogCQ))
	e.Signature = mlx5.Validity(q.cqe, q.mem.LogCQ)
	e.Encode(q.raw[:])
	q.publish()
}

// room says whether n CQEs can be written; if not, the completion queue fails and with it
// the receive queue.
func (q *queue) room(n int) bool {
	if q.cqError {
		return false
	}
	size := uint64(1) << q.mem.LogCQ
	used := func() uint64 { return mlx5.Since(uint32(q.cqe), uint64(q.taken), 24) + uint64(len(q.session)+n) }
	if !q.port.chance(FaultStaleDoorbell) || used() > size {
		q.taken = mlx5.LoadBE32(q.mem.CQDB)
	}
	if used() <= size || q.port.cfg.IgnoreOverrun {
		return true
	}
	q.count.CQOverflow++
	q.cqError, q.state = true, mlx5.StateERR
	return false
}

// complete writes the CQE of a frame or filler, now or as part of a compressed session.
func (q *queue) complete(c *mlx5.CQE) bool {
	if !q.room(1) {
		return false
	}
	if q.swap {
		q.swap = false
		c.WQECounter--
	} else if q.port.chance(FaultReorder) {
		q.swap = true
		c.WQECounter++
	}
	index := q.cqe + uint64(len(q.session))
	c.OpOwn = mlx5.OpOwn(mlx5.OpRespSend, mlx5.FormatPlain, mlx5.Lap(index, q.mem.LogCQ))
	c.Signature = mlx5.Validity(index, q.mem.LogCQ)
	if q.port.cfg.Compression != CompressNone && (len(q.session) > 0 || q.port.chance(FaultCompress)) {
		q.session = append(q.session, *c)
		if len(q.session) >= q.longest() {
			q.close()
		}
		return true
	}
	c.Encode(q.raw[:])
	q.publish()
	return true
}

func (q *queue) longest() int {
	if q.port.cfg.Compression == CompressEnhanced {
		return mlx5.MinisPerEnhancedCQE + 1
	}
	return sessionLength
}

// close writes the compressed session that is under way. One of the enhanced layout is the
// title as any CQE, then an array.
func (q *queue) close() {
	s := q.session
	if len(s) == 0 {
		return
	}
	q.session = nil
	if len(s) > 1 && q.port.cfg.Compression == CompressBasic {
		mlx5.CompressBasic(q.mem.CQ, q.mem.LogCQ, q.cqe, s)
		q.cqe += uint64(len(s))
		return
	}
	s[0].Encode(q.raw[:])
	q.publish()
	if len(s) > 1 {
		mlx5.CompressEnhanced(q.mem.CQE(q.cqe), mlx5.Validity(q.cqe, q.mem.LogCQ), s[1:])
		q.cqe++
	}
}

const half = mlx5.CQESize / 2

// publish hands raw over as the next CQE.
func (q *queue) publish() {
	p, slot := q.port, q.mem.CQE(q.cqe)
	switch {
	case p.chance(FaultLateLower):
		p.later(slot[:half], q.raw[:half], false)
		old := q.raw
		copy(old[:half], slot[:half])
		mlx5.WriteCQE(slot, &old)
	case p.chance(FaultLateUpper):
		copy(slot[:half], q.raw[:half])
		p.later(slot, q.raw[:], true)
	case p.chance(FaultInvalid):
		bad := q.raw
		bad[mlx5.CQEOpOwnOffset] = mlx5.OpOwn(mlx5.OpInvalid, mlx5.FormatPlain, mlx5.OwnerOf(q.raw[mlx5.CQEOpOwnOffset]))
		mlx5.WriteCQE(slot, &bad)
		p.later(slot, q.raw[:], true)
	default:
		mlx5.WriteCQE(slot, &q.raw)
	}
	q.cqe++
}

// owns says whether memory belongs to the queue's rings or payload.
func (q *queue) owns(b []byte) bool { return within(q.mem.CQ, b) || within(q.mem.Payload, b) }
