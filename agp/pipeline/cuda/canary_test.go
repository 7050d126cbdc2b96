package cuda_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// ofReference is what the reference makes of a profile.
func ofReference(t *testing.T, prof model.Profile) []string {
	traffic, err := model.NewTraffic(prof)
	require.NoError(t, err)
	l := &lines{}
	ref, err := cpu.New(cpu.Config{Source: frameList{traffic}, Sink: l, Queues: 1})
	require.NoError(t, err)
	require.NoError(t, ref.Run(context.Background()))
	return l.sorted()
}

// TestTornCompletionsAreWaitedFor: of one whose second half is not there, or whose owner is right
// while it is not valid yet, nothing is used.
func TestTornCompletionsAreWaitedFor(t *testing.T) {
	prof := model.Profile{Seed: 11, Packets: 6000, Flows: 300}
	for name, f := range map[string]model.Fault{"the half with the owner is late": model.FaultLateUpper, "not valid yet": model.FaultInvalid} {
		t.Run(name, func(t *testing.T) {
			got, feed, s, err := through(t, model.Config{Seed: 9}, map[model.Fault]float64{f: 0.5}, prof, 2)
			require.NoError(t, err)
			require.Zero(t, feed.refused)
			require.Equal(t, ofReference(t, prof), got.sorted())
			require.Zero(t, s.Missing())
		})
	}
}

// TestACompletionBeforeItsPayloadShowsInTheRecords: a port that breaks the order of its writes
// makes other records; that is what the tests of order go by. All frames are still accounted for.
func TestACompletionBeforeItsPayloadShowsInTheRecords(t *testing.T) {
	prof := model.Profile{Seed: 12, Packets: 6000, Flows: 300}
	for name, f := range map[string]model.Fault{"payload": model.FaultLatePayload, "half of the completion": model.FaultLateLower} {
		t.Run(name, func(t *testing.T) {
			got, _, s, err := through(t, model.Config{Seed: 9, LateTicks: 50}, map[model.Fault]float64{f: 0.2}, prof, 2)
			require.NoError(t, err)
			require.NotEqual(t, ofReference(t, prof), got.sorted())
			require.EqualValues(t, prof.Packets, s.Engine.PacketsSeen)
			require.Zero(t, s.Missing())
		})
	}
}

// pausing is a port that is taken down now and then and comes back.
type pausing struct {
	*port
	every, sent int
	downs       int
}

func (p *pausing) Run(ctx context.Context) error {
	buf := make([]byte, 2048)
	for {
		n, ns, ok := p.traffic.Frame(buf)
		if !ok {
			return nil
		}
		if p.sent++; p.sent%p.every == 0 {
			p.down()
		}
		for p.full() {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			time.Sleep(50 * time.Microsecond)
		}
		p.mu.Lock()
		p.clock = ns
		if _, ok := p.nic.Inject(buf[:n], model.Meta{TimestampNs: ns}); !ok {
			p.refused++
		}
		p.mu.Unlock()
	}
}

// down ends all queues as a driver does that stops, and is quiet for a while.
func (p *pausing) down() {
	time.Sleep(20 * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.downs++
	for i := range p.nic.Queues() {
		if s, _ := p.nic.State(i); s == mlx5.StateRDY {
			_ = p.nic.ModifyRQ(i, mlx5.StateRDY, mlx5.StateERR)
		}
	}
}

// TestTheProducerStopsAndStartsAgain: its queues are flushed and reset each time. What it had
// delivered before is not lost, and flows go on over it.
func TestTheProducerStopsAndStartsAgain(t *testing.T) {
	prof := model.Profile{Seed: 13, Packets: 5000, Flows: 200}
	traffic, err := model.NewTraffic(prof)
	require.NoError(t, err)
	feed := &pausing{port: &port{traffic: traffic}, every: 1000}
	l := &lines{}
	s, err := feedThrough(t, l, model.Config{Seed: 9}, feed.port, feed, cuda.Config{Rings: 2, Lossless: true, LogRecords: 16})
	require.NoError(t, err)
	require.Zero(t, feed.refused)
	require.Equal(t, 5, feed.downs)
	require.NotZero(t, s.Engine.Errors["cqe_error_05"], "flushed")
	require.Equal(t, ofReference(t, prof), l.sorted())
	require.EqualValues(t, prof.Packets, s.Engine.PacketsSeen)
	require.Zero(t, s.Missing())
}

// feedThrough runs a pipeline to the end of what feeds it.
func feedThrough(t *testing.T, sink pipeline.Sink, c model.Config, p *port, feed cuda.Feeder, conf cuda.Config) (s telemetry.Snapshot, err error) {
	conf.Device, conf.Sink, conf.LogRQ = simt.Device(t), sink, 6
	if conf.Flow.MaxFlows == 0 {
		conf.Flow.MaxFlows = 1 << 14
	}
	if conf.Patience == 0 {
		conf.Patience = 2 * time.Minute
	}
	conf.Shards = 2
	conf.Port = func(queues []mlx5.Queue) (cuda.Feeder, error) {
		c.Memory = queues
		var err error
		p.nic, err = model.New(c)
		return feed, err
	}
	pipe, err := cuda.New(conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pipe.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err = pipe.Run(ctx)
	require.NoError(t, ctx.Err())
	pipe.Snapshot(&s)
	return s, err
}

// stuck is a sink that takes nothing before the port has delivered everything.
type stuck struct {
	delivered chan struct{}
	records   int
}

func (s *stuck) Record(*telemetry.Record) {
	<-s.delivered
	s.records++
}
func (*stuck) Alert(*telemetry.Alert) {}

// telling says when the port has delivered everything.
type telling struct {
	*port
	delivered chan struct{}
	once      sync.Once
}

func (p *telling) Run(ctx context.Context) error {
	defer p.once.Do(func() { close(p.delivered) })
	return p.port.Run(ctx)
}

// TestASinkThatIsStuckDoesNotStallThePackets: records for which there is no room are counted, with
// their packets, and every packet is taken.
func TestASinkThatIsStuckDoesNotStallThePackets(t *testing.T) {
	prof := model.Profile{Seed: 14, Packets: 8000, Rate: 200, Flows: 100, NewFlows: 0.2, SYNFlood: 0.3}
	traffic, err := model.NewTraffic(prof)
	require.NoError(t, err)
	feed := &telling{port: &port{traffic: traffic}, delivered: make(chan struct{})}
	sink := &stuck{delivered: feed.delivered}
	s, err := feedThrough(t, sink, model.Config{Seed: 9}, feed.port, feed, cuda.Config{Rings: 2, LogRecords: 12, Flow: flow.Config{MaxFlows: 256}}) // flows have to give way
	require.NoError(t, err)
	require.Zero(t, feed.refused)
	require.EqualValues(t, prof.Packets, s.Engine.PacketsSeen)
	require.NotZero(t, s.Engine.Drops["record_ring_full"])
	require.EqualValues(t, sink.records, s.Engine.Records)
	require.NotZero(t, sink.records)
	require.Zero(t, s.Engine.PacketsActive)
	require.NotContains(t, s.Engine.Drops, cuda.DropDeviceState)
	require.Equal(t, s.Engine.PacketsSeen, s.Engine.PacketsRecorded+s.Engine.Drops["record_ring_full"])
	require.Zero(t, s.Missing())
}

// lone is a port that gets some packets and then none any more, at times that now tells.
type lone struct {
	*port
	*silent
}

func (p lone) Run(ctx context.Context) error {
	if err := p.port.Run(ctx); err != nil {
		return err
	}
	return p.silent.Run(ctx)
}
func (p lone) ClockNs() int64      { return p.port.ClockNs() }
func (p lone) Stats() source.Stats { return p.port.Stats() }
func (p lone) Interrupt()          { p.silent.Interrupt() }
func (p lone) Stop(i int) error    { return p.port.Stop(i) }
func (p lone) Start(i int) error   { return p.port.Start(i) }

// heard is a sink that says what it gets.
type heard chan telemetry.Record

func (h heard) Record(r *telemetry.Record) { h <- *r }
func (heard) Alert(*telemetry.Alert)       {}

// silence starts a pipeline with as many rings as shards each, whose port delivers the traffic and then
// nothing more, and waits until all flows are there. now is the packets' clock, flows end after 10 s.
func silence(ctx context.Context, t *testing.T, prof model.Profile, sink pipeline.Sink, rings int) (p *cuda.Pipeline, run chan error, now *atomic.Int64, flows int) {
	flows = len(ofReference(t, prof))
	traffic, err := model.NewTraffic(prof)
	require.NoError(t, err)
	feed := lone{&port{traffic: traffic}, &silent{make(chan struct{}, 1)}}
	now = &atomic.Int64{}
	now.Store(prof.StartNs)
	p, err = cuda.New(cuda.Config{
		Patience: 2 * time.Minute, Device: simt.Device(t), Sink: sink, Rings: rings, Shards: rings, LogRQ: 9, LogRecords: 16, Now: now.Load,
		Flow: flow.Config{MaxFlows: 1 << 12, IdleNs: 10e9},
		Port: func(queues []mlx5.Queue) (cuda.Feeder, error) {
			var err error
			feed.nic, err = model.New(model.Config{Seed: 1, Memory: queues})
			return feed, err
		},
	})
	require.NoError(t, err)
	run = make(chan error, 1)
	go func() { run <- p.Run(ctx) }()
	require.Eventually(t, func() bool {
		var s telemetry.Snapshot
		p.Snapshot(&s)
		return s.Engine.PacketsSeen == prof.Packets && s.Engine.FlowsActive == uint64(flows)
	}, time.Minute, 10*time.Millisecond)
	return p, run, now, flows
}

// TestFlowsOfASilentPortEndInTime: by the host's clock, less a second of slack, and not before it.
func TestFlowsOfASilentPortEndInTime(t *testing.T) {
	const start = int64(1_700_000_000_500_000_000)
	prof := model.Profile{Seed: 15, Packets: 400, Flows: 50, StartNs: start}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	sink := make(heard, 1000)
	p, run, now, flows := silence(ctx, t, prof, sink, 2)
	var s telemetry.Snapshot
	var err error
	now.Store(start + 11_400_000_000) // with the slack the last whole second is that in which packets came + 10
	handover := func() {
		for range 2 { // the device has read the time meanwhile
			time.Sleep(200 * time.Millisecond)
			_, err = p.Handover(ctx, nil)
			require.NoError(t, err)
		}
	}
	handover()
	require.Empty(t, sink, "they are not due")
	now.Store(start + 12_600_000_000)
	var got []telemetry.Record
	for len(got) < flows {
		select {
		case r := <-sink:
			got = append(got, r)
		case <-ctx.Done():
			t.Fatalf("%d flows of %d have ended", len(got), flows)
		}
	}
	for _, r := range got {
		require.Equal(t, telemetry.EndIdle, r.EndReason)
	}
	cancel()
	require.NoError(t, <-run)
	require.Empty(t, sink)
	p.Snapshot(&s)
	require.Zero(t, s.Engine.FlowsActive)
	require.Equal(t, s.Engine.PacketsSeen, s.Engine.PacketsRecorded)
	require.NoError(t, p.Close())
}

// TestMoreFlowsThanARecordRingHoldsEndOneTickAfterTheOther: traffic stops and all flows are due at
// once. Those for whose records there is no room stay until the host has read some.
func TestMoreFlowsThanARecordRingHoldsEndOneTickAfterTheOther(t *testing.T) {
	const start = int64(1_700_000_000_500_000_000)
	prof := model.Profile{Seed: 16, Packets: 1500, Flows: 700, StartNs: start}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	sink := make(heard, 1000)
	p, run, now, flows := silence(ctx, t, prof, sink, 1)
	var s telemetry.Snapshot
	second := time.NewTicker(50 * time.Millisecond)
	defer second.Stop()
	now.Store(start + 12e9)
	ticks := 0
	for got := 0; got < flows; {
		select {
		case <-sink:
			got++
		case <-second.C:
			now.Add(1e9)
			ticks++
		case <-ctx.Done():
			t.Fatalf("%d flows of %d have ended", got, flows)
		}
	}
	cancel()
	require.NoError(t, <-run)
	p.Snapshot(&s)
	require.Zero(t, s.Engine.FlowsActive)
	require.Equal(t, s.Engine.PacketsSeen, s.Engine.PacketsRecorded)
	require.Greater(t, ticks, 1)
	require.NoError(t, p.Close())
}

// slow is a sink that needs time for each record.
type slow struct {
	counting
	pause time.Duration
}

func (s *slow) Record(r *telemetry.Record) {
	s.counting.Record(r)
	time.Sleep(s.pause)
}

// TestTheLastFlushWaitsForTheHost also where packets never would: no record is lost then but those
// for which it has no time.
func TestTheLastFlushWaitsForTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		pause    time.Duration
		patience time.Duration
		loses    bool
	}{
		"in time": {100 * time.Microsecond, 2 * time.Minute, false},
		"late":    {2 * time.Millisecond, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			traffic, err := model.NewTraffic(model.Profile{Seed: 16, Packets: 4000, Flows: 3000})
			require.NoError(t, err)
			feed := &port{traffic: traffic}
			sink := &slow{pause: c.pause}
			s, err := feedThrough(t, sink, model.Config{Seed: 9}, feed, feed, cuda.Config{Rings: 2, LogRecords: 12, Patience: c.patience, Heartbeat: time.Minute})
			require.NoError(t, err)
			require.EqualValues(t, 4000, s.Engine.PacketsSeen)
			require.Equal(t, c.loses, s.Engine.Drops["record_ring_full"] > 0)
			require.Equal(t, sink.packets+s.Engine.Drops["record_ring_full"], s.Engine.PacketsSeen)
			require.Zero(t, s.Engine.PacketsActive)
			require.NotContains(t, s.Engine.Drops, cuda.DropDeviceState)
		})
	}
}
