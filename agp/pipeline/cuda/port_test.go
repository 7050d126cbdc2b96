package cuda_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// port feeds the pipeline's queues with the NIC model and synthetic traffic.
type port struct {
	mu      sync.Mutex // the model is for one goroutine
	nic     *model.Port
	traffic *model.Traffic
	clock   int64
	still   bool   // no ticks, so that compressed sessions grow
	refused uint64 // frames that the model did not deliver
	swap    func() // called while a queue is not ready or has no credit; may be nil
}

func (p *port) Run(ctx context.Context) error {
	buf := make([]byte, 2048)
	for {
		n, ns, ok := p.traffic.Frame(buf)
		if !ok {
			break
		}
		for p.full() {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if p.swap != nil {
				p.swap()
			}
			time.Sleep(50 * time.Microsecond)
			p.mu.Lock()
			p.nic.Flush() // the queue may wait for what is late
			p.mu.Unlock()
		}
		p.mu.Lock()
		p.clock = ns
		if _, ok := p.nic.Inject(buf[:n], model.Meta{TimestampNs: ns}); !ok {
			p.refused++
		}
		if !p.still {
			p.nic.Tick()
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nic.Flush()
	return nil
}

// full says that a queue has no credit or is not ready.
func (p *port) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.nic.Queues() {
		if s, _ := p.nic.State(i); s != mlx5.StateRDY || p.nic.Credit(i) < 4 {
			return true
		}
	}
	return false
}

func (p *port) ClockNs() int64      { return p.clock }
func (p *port) Stats() source.Stats { return source.Stats{} }
func (p *port) Interrupt()          {}

func (p *port) Stop(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nic.Flush() // a port has written everything before it says that the queue is in reset
	return p.nic.ModifyRQ(i, mlx5.StateERR, mlx5.StateRST)
}

func (p *port) Start(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.nic.Memory(i)
	mlx5.StoreBE32(q.RQDB, mlx5.RQDoorbell(1<<q.LogRQ))
	return p.nic.ModifyRQ(i, mlx5.StateRST, mlx5.StateRDY)
}

// through runs traffic through the NIC model and the pipeline.
func through(t *testing.T, c model.Config, f map[model.Fault]float64, prof model.Profile, rings int, edit ...func(*cuda.Config)) (*lines, *port, telemetry.Snapshot, error) {
	return exchanged(t, nil, c, f, prof, rings, edit...)
}

// exchanged does so and calls swap while a queue is not ready or has no credit.
func exchanged(t *testing.T, swap func(*cuda.Pipeline), c model.Config, f map[model.Fault]float64, prof model.Profile, rings int, edit ...func(*cuda.Config)) (*lines, *port, telemetry.Snapshot, error) {
	traffic, err := model.NewTraffic(prof)
	require.NoError(t, err)
	feed := &port{traffic: traffic, still: c.Compression != model.CompressNone}
	l := &lines{}
	cfg := cuda.Config{
		Patience: 2 * time.Minute, Device: simt.Device(t), Sink: l, Rings: rings, Shards: 2, LogRQ: 6, LogRecords: 16, Lossless: true, Flow: flow.Config{MaxFlows: 1 << 14},
		Port: func(queues []mlx5.Queue) (cuda.Feeder, error) {
			c.Memory = queues
			nic, err := model.New(c)
			if err == nil {
				for kind, probability := range f {
					nic.SetFault(kind, probability)
				}
			}
			feed.nic = nic
			return feed, err
		},
	}
	for _, e := range edit {
		e(&cfg)
	}
	p, err := cuda.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	if swap != nil {
		feed.swap = func() { swap(p) }
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err = p.Run(ctx)
	require.NoError(t, ctx.Err())
	var s telemetry.Snapshot
	p.Snapshot(&s)
	return l, feed, s, err
}

// frameList is a source of the same traffic without the model.
type frameList struct{ t *model.Traffic }

func (f frameList) Next(b *source.Batch) (int, error) {
	if cap(b.Frames) == 0 {
		b.Frames = make([]source.Frame, 0, 256)
	}
	b.Frames = b.Frames[:0]
	for len(b.Frames) < cap(b.Frames) {
		buf := make([]byte, 2048)
		n, ns, ok := f.t.Frame(buf)
		if !ok {
			break
		}
		b.Frames = append(b.Frames, source.Frame{Data: buf[:n], WireLen: uint32(n), TimestampNs: ns, LinkType: packet.LinkEthernet})
	}
	if len(b.Frames) == 0 {
		return 0, io.EOF
	}
	return len(b.Frames), nil
}
func (frameList) Stats() source.Stats { return source.Stats{} }
func (frameList) Interrupt()          {}
func (frameList) Close() error        { return nil }

var profiles = map[string]model.Profile{
	"64 bytes":  {Seed: 1, Packets: 6000, Flows: 300},
	"IMIX":      {Seed: 2, Packets: 6000, Lengths: model.LengthIMIX, UDP: 0.3, IPv6: 0.3, Zipf: 1.2, NewFlows: 0.02},
	"flood":     {Seed: 3, Packets: 6000, SYNFlood: 0.8},
	"elephants": {Seed: 4, Packets: 6000, Lengths: model.Length1500, Elephants: 0.9, Rate: 2000},
}

// TestProfilesOfTheNICModelGiveTheRecordsOfTheReference: with what a port may do without losing a
// frame, on one ring and on several.
func TestProfilesOfTheNICModelGiveTheRecordsOfTheReference(t *testing.T) {
	for name, prof := range profiles {
		for _, rings := range []int{1, 3} {
			t.Run(name, func(t *testing.T) {
				traffic, err := model.NewTraffic(prof)
				require.NoError(t, err)
				want := &lines{}
				ref, err := cpu.New(cpu.Config{Source: frameList{traffic}, Sink: want, Queues: 1})
				require.NoError(t, err)
				require.NoError(t, ref.Run(context.Background()))
				harmless := map[model.Fault]float64{model.FaultStaleDoorbell: 0.3, model.FaultInvalid: 0.05, model.FaultLateUpper: 0.1}
				got, feed, s, err := through(t, model.Config{Seed: 9, EndPadding: true}, harmless, prof, rings)
				require.NoError(t, err)
				require.Zero(t, feed.refused)
				require.Equal(t, want.sorted(), got.sorted())
				require.EqualValues(t, prof.Packets, s.Engine.PacketsSeen)
				require.Zero(t, s.Missing())
			})
		}
	}
}

// TestErrorCompletionsAreCountedAndGoneOnWith: what the port has delivered is in records, what it
// has not is counted, by syndrome; a queue in error is reset and goes on.
func TestErrorCompletionsAreCountedAndGoneOnWith(t *testing.T) {
	for name, f := range map[string]map[model.Fault]float64{
		"local length":     {model.FaultLocalLength: 0.05},
		"minor":            {model.FaultMinor: 0.05},
		"local protection": {model.FaultLocalProt: 0.002},
		"all":              {model.FaultLocalLength: 0.02, model.FaultLocalQPOp: 0.001, model.FaultWRFlush: 0.001, model.FaultMinor: 0.02},
	} {
		t.Run(name, func(t *testing.T) {
			_, feed, s, err := through(t, model.Config{Seed: 5}, f, model.Profile{Seed: 6, Packets: 20000, Flows: 500}, 2)
			require.NoError(t, err)
			var delivered, errs uint64
			bySyndrome := map[mlx5.Syndrome]uint64{}
			for i := range 2 {
				c := feed.nic.Counters(i)
				delivered += c.Frames
				for syndrome, n := range c.Errors {
					errs += n
					bySyndrome[syndrome] += n
				}
			}
			require.NotZero(t, errs)
			require.Equal(t, delivered, s.Engine.PacketsSeen, "of the port's frames")
			require.Equal(t, delivered, s.Engine.PacketsRecorded)
			require.Zero(t, s.Missing())
			var counted uint64
			for _, n := range s.Engine.Errors {
				counted += n
			}
			require.Equal(t, errs, counted, "%v and %v", bySyndrome, s.Engine.Errors)
		})
	}
}

// TestAQueueInErrorIsResetAlsoByTheNextKernel: the one that saw the error may be exchanged before
// the host has reset the queue, or before it has seen that.
func TestAQueueInErrorIsResetAlsoByTheNextKernel(t *testing.T) {
	for name, edit := range map[string]func(*cuda.Config){"flow": func(*cuda.Config) {}, "sequence": inTurns(2)} {
		t.Run(name, func(t *testing.T) {
			swaps := 0
			swap := func(p *cuda.Pipeline) {
				var load func() error
				if swaps++; swaps%2 == 1 {
					load = func() error { return nil }
				}
				_, err := p.Handover(t.Context(), load)
				assert.NoError(t, err)
			}
			_, feed, s, err := exchanged(t, swap, model.Config{Seed: 5}, map[model.Fault]float64{model.FaultLocalProt: 0.002}, model.Profile{Seed: 6, Packets: 10000, Flows: 500}, 2, edit)
			require.NoError(t, err)
			require.Greater(t, swaps, 10)
			require.Equal(t, feed.nic.Counters(0).Frames+feed.nic.Counters(1).Frames, s.Engine.PacketsRecorded)
			require.Zero(t, s.Missing())
		})
	}
}

// TestWhatARingCannotGoOnWithEndsTheRun: with the reason, and with everything before in records.
func TestWhatARingCannotGoOnWithEndsTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		fault model.Fault
		says  string
	}{
		"completions out of order": {model.FaultReorder, "disagree"},
		"a completion is missing":  {model.FaultLost, "disagree"},
		"compression":              {model.FaultCompress, "compressed"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := model.Config{Seed: 5}
			if c.fault == model.FaultCompress {
				cfg.Compression = model.CompressBasic
			}
			_, _, s, err := through(t, cfg, map[model.Fault]float64{c.fault: 0.001}, model.Profile{Seed: 6, Packets: 1 << 40, Flows: 500}, 1)
			require.ErrorIs(t, err, cuda.ErrRing)
			require.ErrorContains(t, err, c.says)
			require.NotZero(t, s.Engine.PacketsSeen)
			require.Zero(t, s.Missing())
		})
	}
}

var _ cuda.Feeder = (*port)(nil)
