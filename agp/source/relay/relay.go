package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// Defaults and limits of Config.
const (
	DefaultBatch = 256
	MaxBatch     = 4096
)

// ErrConfig wraps every complaint about a Config.
var ErrConfig = errors.New("relay configuration")

// DropFull is the reason for which frames are dropped when a queue is full.
const DropFull = "rx_ring_full"

// ClockBack is what counts the times that the packets' clock was set back by a minute or more: the
// frames go on with the time that they have.
const ClockBack = "clock_back"

// Config of a Relay. Source and Queues are required.
type Config struct {
	Source source.Source
	// Queues are initialised (mlx5.Queue.Init) and have at least twice as many CQEs as receive
	// WQEs, so that ticks have room.
	Queues []mlx5.Queue
	Decap  packet.Decap
	Key    flow.KeyOptions
	Seed   uint64 // of flow.Key.Hash
	Batch  int    // frames per source batch
	// Drop drops frames for which there is no room instead of waiting.
	Drop bool
	// Now lets time pass while a live source delivers nothing; nil for captures.
	Now func() int64
}

// Counters of a Relay, monotonic.
type Counters struct {
	Frames  uint64 // published
	Bytes   uint64 // captured bytes of them
	Ticks   uint64 // per queue
	Cut     uint64 // frames that were longer than a slot
	Full    uint64 // frames dropped
	Waits   uint64 // times that a full queue was waited for
	Waiting time.Duration
}

func (c *Counters) add(o *Counters) {
	c.Frames += o.Frames
	c.Bytes += o.Bytes
	c.Ticks += o.Ticks
	c.Cut += o.Cut
	c.Full += o.Full
	c.Waits += o.Waits
	c.Waiting += o.Waiting
}

// Relay publishes one source.
type Relay struct {
	cfg       Config
	parser    packet.Parser
	fragments *packet.FragmentTable
	clock     flow.Clock
	seq       uint64 // packets in flows so far, as they are on the wire
	rings     []ring
	slot      int // bytes of the smallest slot
	turn      int // queue of the next frame that belongs to no flow
	pkt       flow.Packet

	mu     sync.Mutex // guards what follows
	count  []Counters
	source source.Stats
}

// ring is the port's side of a queue.
type ring struct {
	mem    mlx5.Queue
	cqes   uint64 // written
	wqes   uint64 // taken
	taken  uint32 // CQ doorbell record as last read
	posted uint32 // RQ doorbell record as last read
	tick   int64  // that has yet to be published
	before uint64 // number of the packet that it comes before
	due    bool   // there is one
	count  Counters
	raw    [mlx5.CQESize]byte
}

// statsEvery is after how many batches counters are published.
const statsEvery = 16

// New checks cfg and prepares a relay.
func New(cfg Config) (*Relay, error) {
	if cfg.Batch == 0 {
		cfg.Batch = DefaultBatch
	}
	switch {
	case cfg.Source == nil:
		return nil, fmt.Errorf("%w: no source", ErrConfig)
	case len(cfg.Queues) == 0 || len(cfg.Queues) > flow.Buckets:
		return nil, fmt.Errorf("%w: %d queues, allowed are 1 to %d", ErrConfig, len(cfg.Queues), flow.Buckets)
	case cfg.Batch < 1 || cfg.Batch > MaxBatch:
		return nil, fmt.Errorf("%w: batch = %d, allowed are 1 to %d", ErrConfig, cfg.Batch, MaxBatch)
	}
	r := &Relay{
		cfg: cfg, parser: packet.Parser{Decap: cfg.Decap}, fragments: packet.NewFragmentTable(packet.FragmentDatagrams),
		rings: make([]ring, len(cfg.Queues)), count: make([]Counters, len(cfg.Queues)),
	}
	for i := range cfg.Queues {
		q := &cfg.Queues[i]
		if err := q.Check(); err != nil {
			return nil, fmt.Errorf("%w: queue %d: %w", ErrConfig, i, err)
		}
		if q.Striding() || q.LogCQ <= q.LogRQ {
			return nil, fmt.Errorf("%w: queue %d: need twice as many CQEs as receive WQEs, one slot each", ErrConfig, i)
		}
		r.rings[i].mem = *q
		if i == 0 || int(q.Pitch) < r.slot {
			r.slot = int(q.Pitch)
		}
	}
	return r, nil
}

// ClockNs is the latest time of a packet.
func (r *Relay) ClockNs() int64 { return r.clock.NowNs }

// Counters returns what queue i has counted; it lags behind by a few batches until Run returns.
func (r *Relay) Counters(i int) Counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[i]
}

// Stats returns the source's counters with what the relay itself has dropped.
func (r *Relay) Stats() source.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.source
	var sum Counters
	for i := range r.count {
		sum.add(&r.count[i])
	}
	if sum.Full > 0 {
		s.Dropped = maps.Clone(s.Dropped)
		if s.Dropped == nil {
			s.Dropped = map[string]uint64{}
		}
		s.Dropped[DropFull] += sum.Full
	}
	return s
}

func (r *Relay) publishStats() {
	s := r.cfg.Source.Stats()
	s.Dropped, s.Repaired = maps.Clone(s.Dropped), maps.Clone(s.Repaired)
	if r.clock.Backs > 0 {
		if s.Repaired == nil {
			s.Repaired = map[string]uint64{}
		}
		s.Repaired[ClockBack] = r.clock.Backs
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source = s
	for i := range r.rings {
		r.count[i] = r.rings[i].count
	}
}

// Run publishes the source to its end. It returns nil then, or the source's error, or why ctx
// was cancelled. What was published before stays. The source is not closed.
func (r *Relay) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.cfg.Source.Interrupt)
	defer stop()
	defer r.publishStats()
	b := source.Batch{Frames: make([]source.Frame, r.cfg.Batch)}
	for batches := 0; ; batches++ {
		n, err := r.cfg.Source.Next(&b)
		if n == 0 && err == nil && r.cfg.Now != nil {
			if err := r.pass(ctx, r.cfg.Now(), r.seq+1); err != nil {
				return err
			}
			r.lateTicks()
		}
		for i := range n {
			if err := r.take(ctx, &b.Frames[i]); err != nil {
				return err
			}
		}
		if batches%statsEvery == 0 || n == 0 {
			r.publishStats()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
		case errors.Is(err, io.EOF):
			return r.allTicks(ctx)
		default:
			return err
		}
	}
}

// Drained says whether the pollers have taken everything.
func (r *Relay) Drained() bool {
	for i := range r.rings {
		q := &r.rings[i]
		if q.due || mlx5.LoadBE32(q.mem.CQDB) != mlx5.CQDoorbell(q.cqes) {
			return false
		}
	}
	return true
}

// take publishes a frame.
func (r *Relay) take(ctx context.Context, f *source.Frame) error {
	i, wire, data := r.turn, max(f.WireLen, uint32(len(f.Data))), f.Data
	if len(data) > r.slot {
		data = data[:r.slot]
	}
	k, number := &r.pkt, uint64(0)
	if r.parser.Parse(f.LinkType, data, wire, &k.Info) == packet.OK {
		k.TimestampNs, k.SegmentSize = f.TimestampNs, f.SegmentSize
		number = r.seq + 1
		r.seq += uint64(k.Segments())
		if k.Flags&packet.FlagFragment != 0 {
			r.fragments.Resolve(&k.Info)
		}
		if err := r.pass(ctx, f.TimestampNs, number); err != nil {
			return err
		}
		k.Key.Set(&k.Info, r.cfg.Key)
		i = flow.QueueOf(flow.BucketOf(k.Key.Hash(r.cfg.Seed)), len(r.rings))
	} else if r.turn++; r.turn == len(r.rings) {
		r.turn = 0
	}
	q := &r.rings[i]
	if q.due || !q.room(true) {
		if r.cfg.Drop {
			q.late() // its room comes before the frame's
			if !q.room(true) {
				q.count.Full++
				return nil
			}
		} else if err := q.wait(ctx, true); err != nil {
			return err
		}
	}
	q.frame(f, data, wire, number)
	return nil
}

// pass moves the clock and publishes the tick that may be due, before packet number before.
func (r *Relay) pass(ctx context.Context, ns int64, before uint64) error {
	tick, due := r.clock.Pass(ns)
	if !due {
		return nil
	}
	for i := range r.rings {
		q := &r.rings[i]
		if !r.cfg.Drop && !q.room(false) {
			if err := q.wait(ctx, false); err != nil {
				return err
			}
		}
		q.tick, q.before, q.due = tick, before, true // of several that wait the last one says all
		q.late()
	}
	return nil
}

func (r *Relay) lateTicks() {
	for i := range r.rings {
		r.rings[i].late()
	}
}

// allTicks waits until no tick is left.
func (r *Relay) allTicks(ctx context.Context) error {
	for i := range r.rings {
		q := &r.rings[i]
		if q.due {
			if err := q.wait(ctx, false); err != nil {
				return err
			}
			q.late()
		}
	}
	return nil
}

// room says whether there is a CQE to write, and a receive WQE if it is for a frame. Doorbell
// records are read only when what was read last does not suffice.
func (q *ring) room(frame bool) bool {
	size := uint64(1) << q.mem.LogCQ
	if mlx5.Since(uint32(q.cqes), uint64(q.taken), 24) >= size {
		q.taken = mlx5.LoadBE32(q.mem.CQDB)
		if mlx5.Since(uint32(q.cqes), uint64(q.taken), 24) >= size {
			return false
		}
	}
	if frame && mlx5.Since(q.posted, q.wqes, 16) == 0 {
		q.posted = mlx5.LoadBE32(q.mem.RQDB)
		return mlx5.Since(q.posted, q.wqes, 16) != 0
	}
	return true
}

// How a full queue is waited for.
const (
	spins      = 64
	shortPause = 10 * time.Microsecond
	longPause  = 500 * time.Microsecond
)

// wait waits for room.
func (q *ring) wait(ctx context.Context, frame bool) error {
	from := time.Now()
	defer func() {
		q.count.Waits++
		q.count.Waiting += time.Since(from)
	}()
	pause := shortPause
	for i := 0; !q.room(frame); i++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if i < spins {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, longPause)
	}
	return nil
}

// late publishes the tick that waits, if there is room.
func (q *ring) late() {
	if !q.due || !q.room(false) {
		return
	}
	q.due = false
	q.count.Ticks++
	q.put(mlx5.OpNoPacket, mlx5.Relay{TimestampNs: q.tick, Number: q.before}, 0)
}

// frame publishes what fits of a frame; there is room.
func (q *ring) frame(f *source.Frame, data []byte, wire uint32, number uint64) {
	n := copy(q.mem.Slot(q.wqes), data)
	if n < len(f.Data) {
		q.count.Cut++
	}
	index := uint16(q.wqes)
	q.wqes++
	q.count.Frames++
	q.count.Bytes += uint64(n)
	q.put(mlx5.OpRespSend, mlx5.Relay{
		LinkType: uint16(min(f.LinkType, math.MaxUint16)), Side: f.Side, SegmentSize: f.SegmentSize,
		WireLen: wire, Captured: uint32(n), TimestampNs: f.TimestampNs, Number: number,
	}, index)
}

func (q *ring) put(op mlx5.Opcode, r mlx5.Relay, index uint16) {
	c := mlx5.CQE{
		WQECounter: index, Signature: mlx5.Validity(q.cqes, q.mem.LogCQ),
		OpOwn: mlx5.OpOwn(op, mlx5.FormatPlain, mlx5.Lap(q.cqes, q.mem.LogCQ)),
	}
	r.Put(&c)
	c.Encode(q.raw[:])
	mlx5.WriteCQE(q.mem.CQE(q.cqes), &q.raw)
	q.cqes++
}
