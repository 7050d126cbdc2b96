package cpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// Limits and defaults of Config.
const (
	MaxQueues    = 256
	DefaultBatch = 1024
	DefaultTopK  = summary.DefaultTopK
)

// ErrConfig wraps every complaint about a Config.
var ErrConfig = errors.New("pipeline configuration")

// SketchConfig says what is summarised beside the flow records.
type SketchConfig = summary.Config

// Config of a Pipeline. Source and Sink are required, the rest has defaults.
type Config struct {
	Source     source.Source
	SourceName string // for EngineRow.Source
	Interface  string // for Record.Interface and Alert.Interface
	Sink       pipeline.Sink
	Queues     int // workers; 0: what suits this machine
	Batch      int // frames per source batch, 1 to 4096
	Decap      packet.Decap
	Flow       flow.Config // Head, HeadPackets and Triggers follow from Models; MaxFlows is for all queues together
	Models     *model.Set  // nil: no scoring
	Detect     detect.Config
	Sketch     SketchConfig
	// Key makes hashes unpredictable. The zero key makes runs repeatable, which
	// suits captures; live traffic wants a random one.
	Key [16]byte
	// Observe, if set, is called by the workers for every flow that reaches one of
	// Flow.Triggers and for every flow that ends; it may read r from t. The flow
	// table then collects what Flow says instead of what Models need.
	Observe func(t *flow.Table, r flow.Ref, end bool)
	// RebalanceSkew is the load of the busiest queue over the mean of all from which
	// on flows move to other queues, judged once a second; 0: never.
	RebalanceSkew float64
	// Now lets time pass while a live source delivers nothing; nil for captures,
	// which are timed by their packets alone.
	Now func() int64
}

// work is one batch on its way through all workers.
type work struct {
	batch   source.Batch
	packets []flow.Packet
	queues  [][]uint16 // per queue: indices into packets
	moves   []move     // before the first packet
	ticks   []tick
	first   uint64 // number of the first packet that can be in this batch
	seq     uint64 // packet number after this batch
	taken   time.Time
	refs    atomic.Int32
	flush   bool  // last batch: end all flows
	nowNs   int64 // capture clock at the end of the batch
}

// tick lets time pass before packet index before.
type tick struct {
	before int
	seq    uint64 // number of that packet
	ns     int64
}

// Pipeline implements pipeline.Pipeline.
type Pipeline struct {
	cfg       Config
	parser    packet.Parser
	fragments *packet.FragmentTable
	seed      uint64
	workers   []*worker
	collector *collector
	free      chan *work
	models    atomic.Pointer[model.Set]
	answers   score.Answers

	spread  spread // of flows over workers
	balance func(*spread) []move

	seq   uint64 // packets that got into flows so far
	clock flow.Clock

	mu          sync.Mutex // guards seen and sourceStats
	seen        dispatched
	sourceStats source.Stats
	local       dispatched // the dispatcher's own copy, published per batch
}

// dispatched are the dispatcher's counters.
type dispatched struct {
	frames    uint64
	drops     [packet.NumVerdicts]uint64
	badLength uint64
	skew      float64
	moved     uint64
	clock     flow.Clock
}

// statsEvery is after how many batches the source's own counters are looked at.
const statsEvery = 64

// New checks cfg and prepares a pipeline.
func New(cfg Config) (*Pipeline, error) {
	switch {
	case cfg.Source == nil:
		return nil, fmt.Errorf("%w: no source", ErrConfig)
	case cfg.Sink == nil:
		return nil, fmt.Errorf("%w: no sink", ErrConfig)
	case cfg.Queues < 0 || cfg.Queues > MaxQueues:
		return nil, fmt.Errorf("%w: queues = %d, allowed are 1 to %d", ErrConfig, cfg.Queues, MaxQueues)
	case cfg.Batch < 0 || cfg.Batch > 4096:
		return nil, fmt.Errorf("%w: batch = %d, allowed are 1 to 4096", ErrConfig, cfg.Batch)
	}
	if cfg.Queues == 0 {
		cfg.Queues = defaultQueues(cfg.Models)
	}
	if n := cfg.Flow.MaxFlows; n > 0 {
		cfg.Flow.MaxFlows = (n-1)/cfg.Queues + 1
	} else {
		cfg.Flow.MaxFlows = (flow.DefaultMaxFlows-1)/cfg.Queues + 1
	}
	if cfg.Batch == 0 {
		cfg.Batch = DefaultBatch
	}
	p := &Pipeline{
		cfg:       cfg,
		parser:    packet.Parser{Decap: cfg.Decap},
		fragments: packet.NewFragmentTable(packet.FragmentDatagrams),
		seed:      flow.Seed(cfg.Key),
		free:      make(chan *work, 3+cfg.Queues),
	}
	p.spread.init(cfg.Queues)
	p.balance = func(s *spread) []move { return s.plan(cfg.RebalanceSkew) }
	p.models.Store(cfg.Models)
	for range cap(p.free) {
		w := &work{
			batch:   source.Batch{Frames: make([]source.Frame, cfg.Batch)},
			packets: make([]flow.Packet, cfg.Batch),
			queues:  make([][]uint16, cfg.Queues),
		}
		for q := range w.queues {
			w.queues[q] = make([]uint16, 0, cfg.Batch)
		}
		p.free <- w
	}
	p.collector = newCollector(p)
	for q := range cfg.Queues {
		w, err := newWorker(p, q)
		if err != nil {
			return nil, err
		}
		p.workers = append(p.workers, w)
	}
	return p, nil
}

// defaultQueues leaves a CPU to the goroutine that reads and parses, which is as busy as a
// worker, unless workers have the larger share of the work because they score.
func defaultQueues(m *model.Set) int {
	n := runtime.GOMAXPROCS(0)
	if len(m.Models()) == 0 {
		n--
	}
	return max(1, min(n, MaxQueues))
}

// Queues returns the number of workers.
func (p *Pipeline) Queues() int { return len(p.workers) }

// SwapModels implements pipeline.Pipeline: each worker takes the set over before its next batch.
func (p *Pipeline) SwapModels(s *model.Set) {
	p.models.Store(s)
}

// Run implements pipeline.Pipeline.
func (p *Pipeline) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.cfg.Source.Interrupt)
	defer stop()
	var workers, collector sync.WaitGroup
	for _, w := range p.workers {
		workers.Go(w.run)
	}
	collector.Go(p.collector.run)

	err := p.dispatch()

	workers.Wait()
	close(p.collector.in)
	collector.Wait()
	return err
}

// dispatch reads the source to its end and hands every batch to all workers.
func (p *Pipeline) dispatch() error {
	for batches := 0; ; batches++ {
		w := <-p.free
		w.reset()
		n, err := p.cfg.Source.Next(&w.batch)
		w.taken, w.first = time.Now(), p.seq+1
		if p.spread.due {
			w.moves = p.balance(&p.spread)
			p.local.skew = p.spread.skew
			for i := range w.moves {
				p.local.moved += uint64(w.moves[i].buckets.Len())
			}
		}
		if n == 0 && err == nil && p.cfg.Now != nil {
			p.pass(w, p.cfg.Now(), 0)
		}
		for i := range n {
			p.take(w, i)
		}
		if err != nil {
			w.flush = true
			p.seq++ // the end has a number of its own
		}
		w.seq, w.nowNs = p.seq, p.clock.NowNs
		p.local.clock = p.clock
		p.mu.Lock()
		p.seen = p.local
		if batches%statsEvery == 0 || len(w.ticks) > 0 || err != nil {
			p.sourceStats = p.cfg.Source.Stats()
		}
		p.mu.Unlock()
		w.refs.Store(int32(len(p.workers)))
		for _, k := range p.workers {
			k.in <- w
		}
		if err != nil {
			for _, k := range p.workers {
				close(k.in)
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// take parses frame i and puts it on its queue's list, or counts why not.
func (p *Pipeline) take(w *work, i int) {
	f := &w.batch.Frames[i]
	k := &w.packets[i]
	p.local.frames++
	v := p.parser.Parse(f.LinkType, f.Data, f.WireLen, &k.Info)
	if v != packet.OK {
		p.local.drops[v]++
		return
	}
	k.TimestampNs = f.TimestampNs
	if k.Flags&packet.FlagFragment != 0 {
		p.fragments.Resolve(&k.Info)
	}
	if k.Flags&packet.FlagBadLength != 0 {
		p.local.badLength++
	}
	p.seq++
	p.pass(w, f.TimestampNs, i)
	k.Frame, k.Seq, k.SegmentSize, k.Side = f.Data, p.seq, f.SegmentSize, f.Side
	if k.Flags&packet.FlagTunnel != 0 {
		k.Side = source.SideUnknown // the frame's is that of the tunnel's end
	}
	if n := k.Segments(); n > 1 {
		p.local.frames += uint64(n - 1)
		p.seq += uint64(n - 1)
	}
	k.FromB = k.Key.Set(&k.Info, p.cfg.Flow.Key)
	k.Hash = k.Key.Hash(p.seed)
	q := p.spread.queue(k.Hash)
	w.queues[q] = append(w.queues[q], uint16(i))
}

// pass moves the capture clock to ts before packet i of w.
func (p *Pipeline) pass(w *work, ts int64, i int) {
	if ns, due := p.clock.Pass(ts); due {
		w.ticks = append(w.ticks, tick{before: i, seq: p.seq, ns: ns})
		p.spread.due = len(p.workers) > 1
	}
}

func (w *work) reset() {
	for q := range w.queues {
		w.queues[q] = w.queues[q][:0]
	}
	w.ticks, w.moves, w.flush = w.ticks[:0], nil, false
}

// release gives the batch back when the last worker is done with it.
func (w *work) release(free chan<- *work) {
	if w.refs.Add(-1) == 0 {
		free <- w
	}
}
