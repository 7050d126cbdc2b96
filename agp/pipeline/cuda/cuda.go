package cuda

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/relay"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// DropDeviceState is the reason of packets that the kernel had, or had yet to take, when it ended: in
// no record.
const DropDeviceState = "lost_with_device_state"

// Errors of a Pipeline.
var (
	ErrConfig = errors.New("GPU pipeline configuration")
	// ErrRing: what the device found on a ring cannot be gone on with.
	ErrRing = errors.New("receive ring")
	// ErrEnded: the input has ended, or Run has.
	ErrEnded = errors.New("the pipeline is at its end")
	// ErrHung: the kernel does not end.
	ErrHung = errors.New("the kernel does not stop")
)

// Limits and defaults of Config.
const (
	MaxRings      = flow.Buckets // as many parts has the space of hashes
	DefaultRings  = 16
	defaultLogRQ  = 12
	defaultPitch  = 2048
	DefaultShards = 4
	DefaultFill   = 16
	// log2 of the bytes of a record ring
	minRecords, defaultRecords, maxRecords = 12, 20, 30
	// DefaultPatience is how long a kernel may take to end.
	DefaultPatience = 5 * time.Second
)

// Feeder writes into receive queues, as the relay does.
type Feeder interface {
	// Run writes until the input ends or ctx does.
	Run(ctx context.Context) error
	// ClockNs is the latest time of a packet, once Run has returned.
	ClockNs() int64
	// Stats are those of the input. Safe from any goroutine.
	Stats() source.Stats
	// Interrupt ends the input soon. Safe from any goroutine.
	Interrupt()
	// Stop takes receive queue i from the error state to reset; Start, from there to ready, with
	// nothing taken and all WQEs posted. ErrRing: it cannot. Safe from any goroutine.
	Stop(i int) error
	Start(i int) error
}

// relayed is the relay as a Feeder.
type relayed struct {
	*relay.Relay
	source source.Source
}

func (r relayed) Interrupt() { r.source.Interrupt() }

// Stop is never needed: the relay makes no errors.
func (r relayed) Stop(int) error {
	return fmt.Errorf("%w: an error completion, which the relay does not write", ErrRing)
}

// Start is never needed.
func (r relayed) Start(int) error { return nil }

// Config of a Pipeline. Device, Sink and one of Source and Port are required, the rest has defaults.
type Config struct {
	Device Device
	Source source.Source // published by the relay
	// Port makes what feeds the queues, which are those of a port then: times are ns since the
	// Unix epoch.
	Port       func(queues []mlx5.Queue) (Feeder, error)
	OnDevice   bool // the queues of Port are in the device's memory: only Addr says where, see mlx5.Offsets
	SourceName string
	Interface  string
	Sink       pipeline.Sink
	Rings      int
	Mode       Mode   // default ModeFlow
	Receivers  int    // receive warps per ring; default 1, of ModeSequence 2
	Shards     int    // state warps per ring, each with a part of its flows
	PerBlock   int    // rings that share a multiprocessor; default 1
	LogRQ      uint8  // receive WQEs per ring, log2
	Pitch      uint32 // bytes of a frame that the device can see
	Batch      int    // packets that a warp takes at a time, 1 to 32
	// Fill is how often a state warp looks again for a whole batch before it takes what is there, after a
	// pause of some 20 ns each time; default DefaultFill, negative: never.
	Fill       int
	LogRecords uint8 // bytes of a shard's record ring, log2
	Lossless   bool  // the device waits for the host rather than lose a record
	Drop       bool  // a full ring costs frames of Source, relay.DropFull, instead of holding it up
	Decap      packet.Decap
	Flow       flow.Config
	Models     *model.Set     // nil: no scoring
	Detect     *detect.Config // nil: no detectors
	Key        [16]byte
	Sketch     *SketchConfig // nil: no sketches
	// Sketches says which there are, as abi.Params does. 0: those of Sketch.
	Sketches uint32
	// Now is the time in the packets' clock; nil for captures. It lets flows end while no packet
	// comes.
	Now      func() int64
	Patience time.Duration // for the kernel to end when it is told to; default 5 s
	// Heartbeat is for how long a ring may give no sign of life; default two fifths of Patience: 2 s.
	Heartbeat time.Duration
}

func (c *Config) setDefaults() error {
	c.Flow.SetDefaults()
	if c.Rings == 0 {
		c.Rings = DefaultRings
	}
	if err := c.setMode(); err != nil {
		return err
	}
	if c.Shards == 0 {
		c.Shards = DefaultShards
		for c.Shards > 1 && c.Shards*c.Rings > 128*DefaultShards { // a multiprocessor has no more shared memory
			c.Shards /= 2
		}
	}
	if c.PerBlock == 0 {
		c.PerBlock = 1
	}
	if c.LogRQ == 0 {
		c.LogRQ = defaultLogRQ
	}
	if c.Pitch == 0 {
		c.Pitch = defaultPitch
	}
	if c.Batch == 0 {
		c.Batch = abi.Lanes
	}
	if c.Fill == 0 {
		c.Fill = DefaultFill
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = c.Patience * 2 / 5
	}
	if c.LogRecords == 0 {
		c.LogRecords = defaultRecords
		if c.Mode == ModeStateless {
			c.LogRecords = minRecords
		}
	}
	switch {
	case c.OnDevice && c.Port == nil:
		return fmt.Errorf("%w: the relay cannot write to queues in the device's memory", ErrConfig)
	case c.Rings < 1 || c.Rings > MaxRings:
		return fmt.Errorf("%w: %d rings, allowed: 1 to %d", ErrConfig, c.Rings, MaxRings)
	case c.Shards < 1 || c.Shards > abi.Shards:
		return fmt.Errorf("%w: %d state warps per ring, allowed: 1 to %d", ErrConfig, c.Shards, abi.Shards)
	case c.PerBlock < 1 || c.PerBlock*(c.Receivers+c.Shards) > abi.Warps:
		return fmt.Errorf("%w: %d rings of %d warps share a multiprocessor, allowed: 1 to %d", ErrConfig, c.PerBlock, c.Receivers+c.Shards, abi.Warps/(c.Receivers+c.Shards))
	case c.Batch < 1 || c.Batch > abi.Lanes:
		return fmt.Errorf("%w: batches of %d, allowed: 1 to %d", ErrConfig, c.Batch, abi.Lanes)
	case c.Patience < 0 || c.Heartbeat < 0:
		return fmt.Errorf("%w: patience of %v and %v", ErrConfig, c.Patience, c.Heartbeat)
	case c.LogRecords < minRecords || c.LogRecords > maxRecords:
		return fmt.Errorf("%w: record rings of 2^%d bytes, allowed: 2^%d to 2^%d", ErrConfig, c.LogRecords, minRecords, maxRecords)
	}
	return c.setSketches()
}

// Pipeline implements pipeline.Pipeline.
type Pipeline struct {
	cfg      Config
	mem      arena
	rings    []*ring
	control  *abi.Control // of the last generation
	other    *abi.Control // of the one before, and of the next
	controls [2]Addr      // of both
	params   abi.Params
	feeder   Feeder
	swaps    chan *swap
	ending   chan struct{} // closed when no swap is taken any more
	run      Run           // the last generation
	launches uint64
	watch    *watch
	damaged  error // what the device has written makes no sense

	models atomic.Pointer[model.Set] // that are to score
	wake   chan struct{}             // there are others

	mu      sync.Mutex // guards what follows and ring.seen
	scoring *scoring
	order   order
	looked  time.Time // when record rings were last looked at
	ended   bool      // what was read last stands
	source  source.Stats
	record  telemetry.Record
	reads   sketchReader
}

// New allocates everything that the kernel will use.
func New(cfg Config) (*Pipeline, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	p := &Pipeline{cfg: cfg, mem: arena{dev: cfg.Device}, swaps: make(chan *swap), ending: make(chan struct{}), wake: make(chan struct{}, 1), scoring: newScoring()}
	p.order = order{found: score.NewFindings(cfg.Sink, cfg.Interface, cfg.Detect), limit: maxPending}
	p.models.Store(cfg.Models)
	p.scoring.scorer.Use(cfg.Models)
	p.scoring.set = cfg.Models
	err := p.need(&p.params, cfg.Models)
	if err == nil {
		err = p.fits()
	}
	if err == nil {
		err = p.allocate()
	}
	if err == nil {
		err = p.newHeads(p.params.HeadPackets)
	}
	if err != nil {
		return nil, errors.Join(Explain(err), p.Close())
	}
	p.watch = newWatch(p)
	return p, nil
}

// Close frees the memory. Run must have returned. The memory of a kernel that does not end stays:
// only the end of the process takes it from it.
func (p *Pipeline) Close() error {
	if p.run != nil {
		select {
		case <-p.run.Done():
		default:
			return ErrHung
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended, p.reads.raw = true, nil
	return p.mem.free()
}

func (p *Pipeline) allocate() error {
	control, err := p.mem.mapped(2 * mlx5.LineSize)
	if err != nil {
		return err
	}
	p.control, p.controls[0] = at[abi.Control](control.Bytes), control.Addr
	p.other, p.controls[1] = at[abi.Control](control.Bytes[mlx5.LineSize:]), control.Addr+mlx5.LineSize
	var table []byte
	var queues []mlx5.Queue
	tables, err := p.mem.pieces(p.cfg.tables(), p.cfg.Rings*p.cfg.Shards)
	if err != nil {
		return err
	}
	for i := range p.cfg.Rings {
		r, err := p.newRing(tables[i*p.cfg.Shards:])
		if err != nil {
			return err
		}
		p.rings = append(p.rings, r)
		table = append(table, bytesOf(&r.abi)...)
		queues = append(queues, r.queue)
	}
	rings, err := p.mem.alloc(len(table))
	if err != nil {
		return err
	}
	if err := p.cfg.Device.Write(rings, table); err != nil {
		return err
	}
	d, k := p.cfg.Decap, p.cfg.Flow.Key
	needs := p.params
	p.params = abi.Params{
		Control: control.Addr, Rings: rings, Count: uint32(p.cfg.Rings), Batch: uint32(p.cfg.Batch),
		Decap: flags(d.VXLAN, d.GRE, d.Geneve, d.GTPU), Key: flags(k.VLAN, k.Tunnel),
		IdleNs: p.cfg.Flow.IdleNs, ActiveNs: p.cfg.Flow.ActiveNs, LingerNs: p.cfg.Flow.LingerNs, Seed: flow.Seed(p.cfg.Key),
		Sketches: p.cfg.Sketches, Shards: uint32(p.cfg.Shards), PerBlock: uint32(p.cfg.PerBlock), Receivers: uint32(p.cfg.Receivers), Fill: uint32(max(0, p.cfg.Fill)),
		Messages: needs.Messages, HeadPackets: needs.HeadPackets, TriggerCount: needs.TriggerCount, Triggers: needs.Triggers,
	}
	if p.cfg.Port != nil {
		p.feeder, err = p.cfg.Port(queues)
		return err
	}
	r, err := relay.New(relay.Config{
		Source: p.cfg.Source, Queues: queues, Decap: p.cfg.Decap, Key: p.cfg.Flow.Key, Seed: p.params.Seed, Now: p.cfg.Now,
		Drop: p.cfg.Drop,
	})
	p.feeder = relayed{r, p.cfg.Source}
	return err
}

// flags sets bit i if the i-th argument is true.
func flags(on ...bool) (f uint32) {
	for i, v := range on {
		if v {
			f |= 1 << i
		}
	}
	return f
}

// launch starts the kernel.
func (p *Pipeline) launch() (Run, error) {
	blocks, warps, shared := p.grid()
	run, err := p.cfg.Device.Launch(p.Kernel(), blocks, warps, shared, bytesOf(&p.params))
	if err == nil {
		p.run = run
		p.launches++
	}
	return run, err
}

// turn exchanges the control that is told what to do, and that the next launch is given, for the other one.
func (p *Pipeline) turn() {
	p.control, p.other = p.other, p.control
	p.controls[0], p.controls[1] = p.controls[1], p.controls[0]
	p.params.Control = p.controls[0]
}

// Run implements pipeline.Pipeline. What it could not flush is lost with the device's state. After
// ErrHung the kernel still runs, after ErrDevice the GPU is of no use to this process: it should end.
func (p *Pipeline) Run(ctx context.Context) error {
	err := p.serve(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(true)
	if d := p.order.found.Detector; d != nil {
		d.Flush(p.feeder.ClockNs())
	}
	p.read()
	p.ended = true
	return Explain(err)
}

func (p *Pipeline) serve(ctx context.Context) error {
	ending := sync.OnceFunc(func() { close(p.ending) })
	defer ending()
	run, err := p.launch()
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	stop := context.AfterFunc(ctx, p.feeder.Interrupt)
	defer stop()
	feeding, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	fed := make(chan error, 1)
	go func() { fed <- p.feeder.Run(feeding) }()

	swaps, told := p.swaps, ctx.Done()
	var failed error
	idle := time.NewTimer(0)
	defer idle.Stop()
	var deadline time.Time // set once somebody has been told to end
	within := func() {
		if deadline.IsZero() {
			deadline = time.Now().Add(p.cfg.Patience)
		}
	}
	lost := func(err error) error { // no kernel is left
		failed = errors.Join(failed, err)
		cancel(failed)
		p.feeder.Interrupt()
		if fed != nil {
			if late := p.feederEnd(fed); !errors.Is(late, err) {
				failed = errors.Join(failed, late)
			}
		}
		return failed
	}
	for {
		n := p.watch.turn(time.Now())
		if failed == nil {
			if failed = p.watch.check(fed != nil); failed != nil {
				cancel(failed)
				p.feeder.Interrupt()
				atomic.StoreUint32(&p.control.Command, abi.CommandStop)
				p.hurry(run)
				within()
			}
		}
		idle.Reset(p.watch.pause)
		select {
		case <-idle.C:
		case <-p.wake:
			if swaps == nil {
				continue
			}
			if h := p.adopt(); h != nil {
				if run, _, err = p.swap(run, h); run == nil {
					return lost(err)
				} else if err != nil {
					p.refuse()
				}
			}
			continue
		case h := <-swaps:
			var gap time.Duration
			run, gap, err = p.swap(run, h)
			h.done <- swapped{gap, err}
			if run == nil {
				return lost(err)
			}
			continue
		case <-told:
			told = nil
			within()
		case err := <-fed:
			fed, swaps = nil, nil // the kernel is about to end anyway
			ending()
			if failed == nil {
				failed = err
				atomic.StoreInt64(&p.control.FlushNs, p.feeder.ClockNs())
				atomic.StoreUint32(&p.control.Command, abi.CommandFlush)
				p.hurry(run)
			}
			within()
			continue
		case <-run.Done():
			p.collect()
			if failed == nil {
				failed = p.check()
			}
			if fed != nil { // the kernel ended by itself
				cancel(ErrRing)
				p.feeder.Interrupt()
				if late := p.feederEnd(fed); failed == nil && !errors.Is(late, ErrRing) {
					failed = late
				}
			}
			return errors.Join(failed, run.Wait(context.Background()))
		}
		switch left := time.Until(deadline); {
		case deadline.IsZero():
		case n > 0 && p.cfg.Lossless: // it waits for us
			deadline = time.Now().Add(p.cfg.Patience)
		case left < 0:
			return errors.Join(failed, fmt.Errorf("%w within %v", ErrHung, p.cfg.Patience))
		case fed == nil && left < p.cfg.Patience*2/5: // records that have no time any more are lost, and counted
			atomic.StoreUint32(&p.control.Command, abi.CommandStop)
		case fed != nil && left < p.cfg.Patience/2: // it does not heed the interrupt
			cancel(context.Cause(ctx))
		}
	}
}

// swap is a wish for another generation of the kernel.
type swap struct {
	load   func() error // nil: the next kernel need not wait for anything of the host
	params *abi.Params  // nil: those of the last one
	then   func()       // called when it has come to all rings; may be nil
	done   chan swapped
}

type swapped struct {
	gap time.Duration
	err error
}

// Handover ends the kernel between two batches and has another one go on. Rings and flows stay where
// they are: what arrives meanwhile waits in the rings. It returns the time from the command to end
// until the last ring was taken over. load may change what the device runs: it is called when
// nothing does, and an error of it is returned while the kernel runs on as it was. Without load the
// next kernel waits on the device for the end of the one before, and the gap is much shorter. It
// may be called from any goroutine while Run works, and waits for it; ErrEnded if that is too late.
func (p *Pipeline) Handover(ctx context.Context, load func() error) (time.Duration, error) {
	h := &swap{load: load, done: make(chan swapped, 1)}
	select {
	case p.swaps <- h:
		r := <-h.done
		return r.gap, r.err
	case <-p.ending:
		return 0, ErrEnded
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// swap returns the kernel that runs now, nil if there is none.
func (p *Pipeline) swap(run Run, h *swap) (Run, time.Duration, error) {
	if h.load != nil {
		return p.reload(run, h)
	}
	*p.other = abi.Control{Command: p.control.Command, FlushNs: p.control.FlushNs, NowNs: p.control.NowNs}
	was := p.params
	p.change(h)
	p.turn()
	next, err := p.launch()
	if err != nil { // nothing has happened, or all but that the end can be noticed: if it runs after all, it ends
		atomic.StoreUint32(&p.control.Command, abi.CommandStop)
		p.turn()
		p.params = was
		return run, 0, fmt.Errorf("launch: %w", err)
	}
	began := time.Now()
	atomic.StoreUint32(&p.other.Command, abi.CommandStop)
	if err = p.arrived(next, began, h); err != nil {
		return nil, 0, err
	}
	return next, time.Since(began), run.Wait(context.Background())
}

// change takes over the parameters of the next generation.
func (p *Pipeline) change(h *swap) {
	if h.params != nil {
		p.params = *h.params
		p.params.Control = p.controls[0]
	}
}

// reload is swap with something to do while no kernel runs.
func (p *Pipeline) reload(run Run, h *swap) (Run, time.Duration, error) {
	command := atomic.LoadUint32(&p.control.Command)
	began := time.Now()
	atomic.StoreUint32(&p.control.Command, abi.CommandStop)
	p.hurry(run)
	for ended := false; !ended; {
		select {
		case <-run.Done():
			ended = true
		default:
			if p.collect() == 0 && time.Since(began) > p.cfg.Patience { // a lossless ring may wait for this
				return nil, 0, fmt.Errorf("%w within %v", ErrHung, p.cfg.Patience)
			}
		}
	}
	if err := run.Wait(context.Background()); err != nil {
		return nil, 0, err
	}
	p.collect() // all of the old kernel's
	loaded := h.load()
	p.change(h)
	atomic.StoreUint32(&p.control.Command, command)
	next, err := p.launch()
	if err != nil {
		return nil, 0, errors.Join(loaded, fmt.Errorf("launch: %w", err))
	}
	if err := p.arrived(next, began, h); err != nil {
		return nil, 0, errors.Join(loaded, err)
	}
	return next, time.Since(began), loaded
}

// arrived waits until the last launch has come to all rings.
func (p *Pipeline) arrived(run Run, began time.Time, h *swap) error {
	for i, r := range p.rings {
		for atomic.LoadUint64(&r.stats.Launches) < p.launches {
			select {
			case <-run.Done():
				return errors.Join(p.hung(i), run.Wait(context.Background()))
			default:
				if p.collect() == 0 && time.Since(began) > 2*p.cfg.Patience { // a lossless ring may wait for this
					return p.hung(i)
				}
				runtime.Gosched()
			}
		}
	}
	if h.then != nil {
		h.then()
	}
	return nil
}

// read reads the counters of all rings. p.mu is held. After the memory is given back, what was
// read last stands.
func (p *Pipeline) read() {
	if p.ended {
		return
	}
	p.source = p.feeder.Stats()
	for _, r := range p.rings {
		r.read()
	}
}

func (r *ring) read() {
	readStats(r.stats, &r.seen)
	for _, d := range r.shards {
		readStats(d.stats, &d.seen)
	}
}

// check looks after the rings that something has happened to, and says what is wrong with them.
func (p *Pipeline) check() error {
	err := p.damaged
	for i, r := range p.rings {
		status := atomic.LoadUint32(&r.stats.Status)
		if !r.stopped && status != abi.RingReset && status != abi.RingDesync && status != abi.RingCompressed {
			continue
		}
		p.mu.Lock()
		r.read()
		p.mu.Unlock()
		if r.stopped && uint32(r.seen.Resets) == *r.resets { // the device has taken all that was left
			r.stopped = false
			err = errors.Join(err, p.feeder.Start(i))
		}
		switch r.seen.Status {
		case abi.RingReset:
			if r.stopped || uint32(r.seen.Resets) != *r.resets {
				continue // the device has not yet seen the last time
			}
			if failed := p.feeder.Stop(i); failed != nil {
				err = errors.Join(err, fmt.Errorf("ring %d: vendor syndrome %#x: %w", i, r.seen.Vendor, failed))
				continue
			}
			r.stopped = true
			atomic.AddUint32(r.resets, 1)
		case abi.RingDesync:
			err = errors.Join(err, fmt.Errorf("%w %d: completions and receive queue disagree", ErrRing, i))
		case abi.RingCompressed:
			err = errors.Join(err, fmt.Errorf("%w %d: compressed completion", ErrRing, i))
		}
	}
	return err
}

// collect takes all records that are there and returns their number.
func (p *Pipeline) collect() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scoring.turned(time.Now(), &p.looked)
	for i, r := range p.rings {
		for _, d := range r.shards {
			tail, head := *d.tail, atomic.LoadUint64(d.head)
			mask := uint64(len(d.buf) - 1)
			for tail != head {
				m := d.buf[tail&mask:]
				h := at[abi.Record](m)
				if !sound(h, m, head-tail) {
					p.damaged = fmt.Errorf("%w %d: its record ring is damaged at %d", ErrRing, i, tail)
					break
				}
				tail += uint64(h.Size)
				if h.Kind != abi.RecordSkip {
					p.take(i, r, d, h, m[64:h.Size])
					n++
				}
				atomic.StoreUint64(d.tail, tail)
				if len(p.order.pending) >= p.order.limit {
					p.settle(false)
				}
			}
		}
	}
	p.settle(false)
	return n
}

// take takes one message of a shard.
func (p *Pipeline) take(number int, r *ring, d *shard, h *abi.Record, m []byte) {
	switch h.Kind {
	case abi.RecordFlow:
		if p.params.Messages != 0 {
			p.finished(number, r, d, h, m)
			return
		}
		f, counters, _ := parts(h, m)
		rec := &p.record
		f.Record(counters, telemetry.EndReason(h.Reason), rec)
		rec.Queue, rec.Interface = uint16(number), p.cfg.Interface
		p.order.found.Record(rec)
	case abi.RecordMature:
		p.mature(r, d, h, m)
	case abi.RecordStart:
		p.started(r, h, m)
	case abi.RecordTick:
		p.ticked(r, d, h)
	}
}

// Snapshot implements pipeline.Pipeline.
func (p *Pipeline) Snapshot(s *telemetry.Snapshot) {
	s.Reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read()
	e := &s.Engine
	e.Source, e.Pipeline = p.cfg.SourceName, "cuda"
	p.order.found.Counters(s)
	score.Models(e, p.scoring.set)
	e.Inferences = p.scoring.scorer.Inferences
	score.Latency(e, p.scoring.scorer.Latency)
	e.Drops, e.Errors = map[string]uint64{}, map[string]uint64{}
	e.StateBytes = p.mem.size
	for i, r := range p.rings {
		st := &r.seen
		s.TimeNs = max(s.TimeNs, int64(st.ClockNs))
		e.PacketsSeen += st.Frames
		var lost uint64
		for _, d := range r.shards {
			e.FlowsActive += d.seen.Active
			e.TimeSteps += d.seen.TimeSteps
			lost += d.seen.LostPackets
			count(e.Errors, "lost_scores", d.seen.LostMatures)
			count(e.Errors, "lost_flow_starts", d.seen.LostStarts)
			count(e.Errors, "lost_ticks", d.seen.LostTicks)
		}
		row := telemetry.QueueRow{Queue: uint16(i), Packets: st.Drops[packet.OK], Bytes: st.Bytes, Drops: map[string]uint64{}, Depth: -1}
		for v, n := range st.Drops {
			if n > 0 && packet.Verdict(v) != packet.OK {
				row.Drops[packet.Verdict(v).String()] = n
			}
		}
		count(row.Drops, "record_ring_full", lost)
		for reason, n := range row.Drops {
			e.Drops[reason] += n
		}
		for syndrome, n := range st.Errors {
			if n > 0 {
				e.Errors[fmt.Sprintf("cqe_error_%02x", syndrome)] += n
			}
		}
		count(e.Errors, "bad_ip_length_clamped", st.BadLength)
		count(e.Errors, "clock_back", st.ClockBacks)
		s.Queues = append(s.Queues, row)
	}
	for reason, n := range p.source.Dropped {
		e.Drops[reason] += n
		e.PacketsSeen += n
	}
	if p.cfg.Source != nil {
		// What waits in the rings is on its way: another engine reads on behind it.
		delivered := p.source.Frames - p.source.Dropped[relay.DropFull]
		for _, n := range p.source.Dropped {
			delivered += n
		}
		e.PacketsSeen = max(e.PacketsSeen, delivered)
	}
	maps.Copy(e.Errors, p.source.Repaired)
	if p.cfg.Mode == ModeStateless {
		p.counted(s)
	}
	gone := e.PacketsRecorded
	for _, n := range e.Drops {
		gone += n
	}
	// Records come without waiting for the counters of their packets.
	e.PacketsSeen = max(e.PacketsSeen, gone)
	e.PacketsActive = e.PacketsSeen - gone
	if p.ended && e.PacketsActive > 0 {
		e.Drops[DropDeviceState] += e.PacketsActive
		e.PacketsActive, e.FlowsActive = 0, 0
	}
	count(e.Errors, "events_out_of_order", p.order.unordered)
	count(e.Errors, "models_refused", p.scoring.refused)
	p.sketchRows(s)
}

// Progress returns how far the source has been read. Safe from any goroutine.
func (p *Pipeline) Progress() source.Stats { return p.feeder.Stats() }

func count(m map[string]uint64, reason string, n uint64) {
	if n > 0 {
		m[reason] += n
	}
}
