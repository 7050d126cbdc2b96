package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// steps is a pipeline that runs what a test tells it.
type steps struct {
	run     func(ctx context.Context, sink pipeline.Sink) error
	sink    pipeline.Sink
	records atomic.Uint64
	lock    sync.Locker // held by Snapshot, nil for none
}

func (p *steps) Run(ctx context.Context) error {
	return p.run(ctx, p.sink)
}

func (p *steps) Snapshot(s *telemetry.Snapshot) {
	if p.lock != nil {
		p.lock.Lock()
		defer p.lock.Unlock()
	}
	s.Reset()
	s.Engine.Records = p.records.Load()
	s.Engine.PacketsSeen = 7
}

func (p *steps) SwapModels(*model.Set) {}

// plugin is the other end of an engine under test.
type plugin struct {
	t      *testing.T
	sock   net.Conn
	conn   *wire.Conn
	result chan error
	gone   atomic.Bool
	events []*agppb.Event
}

func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		conns[i], err = net.FileConn(f)
		require.NoError(t, err)
		f.Close()
		t.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

// begin serves an engine whose pipeline runs the given function.
func begin(t *testing.T, run func(context.Context, pipeline.Sink) error) *plugin {
	t.Helper()
	return beginLocked(t, nil, run)
}

// beginBuilt is begin with a change to what was built.
func beginBuilt(t *testing.T, run func(context.Context, pipeline.Sink) error, change func(*Built)) *plugin {
	t.Helper()
	return beginWith(t, nil, run, change)
}

// beginLocked is begin with a lock that a snapshot takes.
func beginLocked(t *testing.T, lock sync.Locker, run func(context.Context, pipeline.Sink) error) *plugin {
	t.Helper()
	return beginWith(t, lock, run, func(*Built) {})
}

func beginWith(t *testing.T, lock sync.Locker, run func(context.Context, pipeline.Sink) error, change func(*Built)) *plugin {
	t.Helper()
	return beginBuilder(t, func(conf *agppb.Configure, sink pipeline.Sink, _ Log) (*Built, error) {
		if conf.GetPipeline() == "broken" {
			return nil, fmt.Errorf("%w: pipeline = %q", ErrConfig, "broken")
		}
		b := &Built{
			Pipeline: &steps{run: run, sink: sink, lock: lock}, Source: "test", Kind: "test", Queues: 1,
			Finding: func(o *telemetry.Output) bool { return o.Field == "class" && o.Label == "c2" },
			Swap: func(paths []string) ([]string, error) {
				if len(paths) == 0 {
					return nil, errors.New("no such model")
				}
				return paths, nil
			},
		}
		change(b)
		return b, nil
	})
}

// beginBuilder serves an engine that is built like this.
func beginBuilder(t *testing.T, build Builder) *plugin {
	t.Helper()
	ours, theirs := pair(t)
	require.NoError(t, ours.SetDeadline(time.Now().Add(20*time.Second)))
	p := &plugin{t: t, sock: ours, conn: wire.NewConn(ours), result: make(chan error, 1)}
	go func() {
		p.result <- Serve(context.Background(), theirs, Options{
			Version: "v1", Gone: func() { p.gone.Store(true) }, Build: build,
		})
		theirs.Close()
	}()
	return p
}

func (p *plugin) send(c *agppb.Command) {
	p.t.Helper()
	require.NoError(p.t, p.conn.Send(c))
}

func (p *plugin) next() *agppb.Event {
	p.t.Helper()
	ev := new(agppb.Event)
	require.NoError(p.t, p.conn.Receive(ev))
	p.events = append(p.events, ev)
	return ev
}

// until reads events up to the first that want accepts.
func (p *plugin) until(want func(*agppb.Event) bool) *agppb.Event {
	p.t.Helper()
	for {
		if ev := p.next(); want(ev) {
			return ev
		}
	}
}

func isFinished(ev *agppb.Event) bool { return ev.GetFinished() != nil }

func (p *plugin) hello() {
	p.t.Helper()
	p.send(&agppb.Command{Command: &agppb.Command_Hello{Hello: &agppb.Hello{Protocol: wire.Version, ProtocolMin: wire.VersionMin}}})
	require.Equal(p.t, "v1", p.next().GetHello().GetVersion())
}

func (p *plugin) configure(c *agppb.Configure) {
	p.t.Helper()
	p.hello()
	if c.GetSource() == nil {
		c.Source = &agppb.Source{Kind: "pcap"}
	}
	p.send(&agppb.Command{Command: &agppb.Command_Configure{Configure: c}})
}

func (p *plugin) served() error {
	p.t.Helper()
	select {
	case err := <-p.result:
		return err
	case <-time.After(10 * time.Second):
		p.t.Fatal("Serve does not return")
		return nil
	}
}

func (p *plugin) records() (n int) {
	for _, ev := range p.events {
		n += len(ev.GetRecords().GetRecords())
	}
	return n
}

func record(class string) *telemetry.Record {
	r := &telemetry.Record{IPVersion: 4, FirstReplyNs: -1, TCPHandshakeNs: -1}
	if class != "" {
		r.Outputs = []telemetry.Output{{Field: "app", Label: "tls"}, {Field: "class", Label: class}}
	}
	return r
}

func emitting(n int, classes ...string) func(context.Context, pipeline.Sink) error {
	return func(_ context.Context, sink pipeline.Sink) error {
		for i := range n {
			class := ""
			if len(classes) > 0 {
				class = classes[i%len(classes)]
			}
			sink.Record(record(class))
			sink.Alert(&telemetry.Alert{Kind: "scan"})
		}
		return nil
	}
}

func waiting(ctx context.Context, _ pipeline.Sink) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestEverythingArrivesBeforeFinished(t *testing.T) {
	p := begin(t, emitting(50000))
	p.configure(&agppb.Configure{Emit: &agppb.Emit{Flows: "all"}})
	require.Equal(t, "test", p.next().GetReady().GetSource())
	sum := p.until(isFinished).GetFinished().GetSummary()
	require.EqualValues(t, 7, sum.GetPacketsSeen())
	require.Equal(t, 50000, p.records(), "without a rate limit a file loses no record")
	last := p.events[len(p.events)-2].GetSnapshot()
	require.NotNil(t, last, "the last snapshot precedes finished")
	require.Positive(t, last.GetEngine().GetCpuSeconds())
	require.Positive(t, last.GetEngine().GetRssBytes())
	require.Zero(t, last.GetEngine().GetSuppressed())
	require.NoError(t, p.served())
}

// announced is a lock that tells who waits for it.
type announced struct {
	sync.Mutex
	asked chan struct{}
}

func (a *announced) Lock() {
	select {
	case a.asked <- struct{}{}:
	default:
	}
	a.Mutex.Lock()
}

// A pipeline holds what Snapshot waits for while it waits for room among the
// events: the events must flow although a snapshot is due.
func TestEventsFlowWhileASnapshotWaits(t *testing.T) {
	const n = 2 * maxPending
	lock := &announced{asked: make(chan struct{}, 1)}
	p := beginLocked(t, lock, func(_ context.Context, sink pipeline.Sink) error {
		lock.Mutex.Lock()
		defer lock.Mutex.Unlock()
		<-lock.asked
		for range n {
			sink.Record(record("benign"))
		}
		return nil
	})
	p.configure(&agppb.Configure{Emit: &agppb.Emit{Flows: "all"}, SnapshotIntervalNs: int64(time.Millisecond)})
	p.until(isFinished)
	require.NoError(t, p.served())
	require.Equal(t, n, p.records())
}

func TestEmissionModes(t *testing.T) {
	for _, c := range []struct {
		emit *agppb.Emit
		want int
	}{
		{&agppb.Emit{}, 0},
		{&agppb.Emit{Flows: "none"}, 0},
		{&agppb.Emit{Flows: "alerts"}, 25},
		{&agppb.Emit{Flows: "sampled", SampleEvery: 10}, 10},
		{&agppb.Emit{Flows: "sampled"}, 100},
		{&agppb.Emit{Flows: "all"}, 100},
	} {
		p := begin(t, emitting(100, "benign", "unknown", "", "c2"))
		p.configure(&agppb.Configure{Emit: c.emit})
		p.until(isFinished)
		require.Equal(t, c.want, p.records(), "%v", c.emit)
		require.NoError(t, p.served())
	}
}

func TestRateLimitSuppressesAndCounts(t *testing.T) {
	now := time.Unix(0, 0)
	e, err := newEmitter(&agppb.Emit{Flows: "all", MaxPerSecond: 10}, true, func() time.Time { return now })
	require.NoError(t, err)
	for range 100 {
		e.Record(record(""))
	}
	e.Alert(&telemetry.Alert{})
	now = now.Add(500 * time.Millisecond)
	for range 100 {
		e.Record(record(""))
	}
	records, alerts := e.take()
	require.Len(t, records, 10+5)
	require.Len(t, alerts, 1, "alerts have a limit of their own")
	require.EqualValues(t, 185, e.suppressedCount())
}

func TestFullQueueSuppressesAtALiveSourceAndWaitsAtAFile(t *testing.T) {
	live, err := newEmitter(&agppb.Emit{Flows: "all"}, false, time.Now)
	require.NoError(t, err)
	for range maxPending + 10 {
		live.Record(record(""))
	}
	require.EqualValues(t, 10, live.suppressedCount())

	file, err := newEmitter(&agppb.Emit{Flows: "all"}, true, time.Now)
	require.NoError(t, err)
	var done sync.WaitGroup
	done.Go(func() {
		for range maxPending + 10 {
			file.Record(record(""))
		}
	})
	total := 0
	require.Eventually(t, func() bool {
		r, _ := file.take()
		total += len(r)
		return total == maxPending+10
	}, 10*time.Second, time.Millisecond)
	done.Wait()
	require.Zero(t, file.suppressedCount())

	done.Go(func() {
		for range 2 * maxPending {
			file.Record(record(""))
		}
	})
	file.close() // a pipeline must not wait for a plugin that is gone
	done.Wait()
}

func TestRecordsThatAreNotEmittedCostNothing(t *testing.T) {
	e, err := newEmitter(&agppb.Emit{Flows: "alerts"}, true, time.Now)
	require.NoError(t, err)
	r := record("benign")
	require.Zero(t, testing.AllocsPerRun(100, func() { e.Record(r) }))
}

func TestPluginGoneEndsTheEngineWhateverThePipelineDoes(t *testing.T) {
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	p := begin(t, func(context.Context, pipeline.Sink) error { <-block; return nil })
	p.configure(&agppb.Configure{})
	p.until(func(ev *agppb.Event) bool { return ev.GetReady() != nil })
	p.sock.Close()
	require.ErrorIs(t, p.served(), ErrPluginGone)
	require.Eventually(t, p.gone.Load, 10*time.Second, time.Millisecond)
}

// The end of the process must not turn its exit status into that of a lost plugin.
func TestSocketClosedAfterAnOrderlyEndIsNotALostPlugin(t *testing.T) {
	hello := &agppb.Command{Command: &agppb.Command_Hello{Hello: &agppb.Hello{Protocol: wire.Version, ProtocolMin: wire.VersionMin}}}
	configure := &agppb.Command{Command: &agppb.Command_Configure{Configure: &agppb.Configure{Source: &agppb.Source{Kind: "pcap"}}}}
	stop := &agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}}
	lingering := func(ctx context.Context, _ pipeline.Sink) error {
		<-ctx.Done()
		time.Sleep(time.Second) // of the bubble's clock: Serve has returned by then
		return ctx.Err()
	}
	for name, c := range map[string]struct {
		run      func(context.Context, pipeline.Sink) error
		finishes bool
		end      func(conn *wire.Conn, cancel func())
		closes   string
		gone     bool
		want     error
	}{
		"finished, engine closes": {run: emitting(1), finishes: true, closes: "engine"},
		"finished, plugin closes": {run: emitting(1), finishes: true, closes: "plugin"},
		"stopped":                 {run: waiting, end: func(c *wire.Conn, _ func()) { _ = c.Send(stop) }, closes: "engine"},
		"cancelled":               {run: lingering, end: func(_ *wire.Conn, cancel func()) { cancel() }, closes: "engine", want: context.Canceled},
		"lost":                    {run: waiting, closes: "plugin", gone: true, want: ErrPluginGone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				gone := false
				served := make(chan error, 1)
				go func() {
					err := Serve(ctx, theirs, Options{
						Gone: func() { gone = true },
						Build: func(_ *agppb.Configure, sink pipeline.Sink, _ Log) (*Built, error) {
							return &Built{Pipeline: &steps{run: c.run, sink: sink}}, nil
						},
					})
					if c.closes == "engine" {
						theirs.Close()
					}
					served <- err
				}()
				conn := wire.NewConn(ours)
				go func() {
					_ = conn.Send(hello)
					_ = conn.Send(configure)
				}()
				for ready := false; ; {
					ev := new(agppb.Event)
					if conn.Receive(ev) != nil || ev.GetFinished() != nil {
						break
					}
					if ready = ready || ev.GetReady() != nil; ready && ev.GetSnapshot() != nil && !c.finishes {
						if c.end == nil {
							break
						}
						go c.end(conn, cancel)
					}
				}
				if c.closes == "plugin" {
					ours.Close()
				}
				require.ErrorIs(t, <-served, c.want)
				synctest.Wait()
				require.Equal(t, c.gone, gone)
				ours.Close()
				cancel()
				time.Sleep(2 * time.Second) // until the pipeline has ended, too
			})
		})
	}
}

func TestDrainFlushesStopDoesNot(t *testing.T) {
	p := begin(t, func(ctx context.Context, sink pipeline.Sink) error {
		<-ctx.Done()
		sink.Record(record(""))
		return ctx.Err()
	})
	p.configure(&agppb.Configure{Emit: &agppb.Emit{Flows: "all"}})
	p.send(&agppb.Command{Command: &agppb.Command_Drain{Drain: &agppb.Drain{}}})
	p.until(isFinished)
	require.Equal(t, 1, p.records())
	require.NoError(t, p.served())

	p = begin(t, waiting)
	p.configure(&agppb.Configure{})
	p.send(&agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}})
	require.NoError(t, p.served())

	p = begin(t, waiting)
	p.hello()
	p.send(&agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}})
	require.NoError(t, p.served(), "stopped before it was configured")
}

func TestSnapshotsComeMoreOftenWhileDraining(t *testing.T) {
	block := make(chan struct{})
	p := begin(t, func(context.Context, pipeline.Sink) error { <-block; return nil })
	p.configure(&agppb.Configure{SnapshotIntervalNs: int64(time.Hour)})
	isSnapshot := func(ev *agppb.Event) bool { return ev.GetSnapshot() != nil }
	p.until(isSnapshot)
	p.send(&agppb.Command{Command: &agppb.Command_Drain{Drain: &agppb.Drain{}}})
	p.until(isSnapshot)
	close(block)
	p.until(isFinished)
	require.NoError(t, p.served())
}

func TestSwapModelsAnswersInTheLog(t *testing.T) {
	p := begin(t, waiting)
	p.configure(&agppb.Configure{})
	swap := func(paths ...string) *agppb.Log {
		p.send(&agppb.Command{Command: &agppb.Command_SwapModels{SwapModels: &agppb.SwapModels{Models: paths}}})
		return p.until(func(ev *agppb.Event) bool { return ev.GetLog() != nil }).GetLog()
	}
	l := swap("a.onnx")
	require.Equal(t, agppb.Log_INFO, l.GetLevel())
	l = swap()
	require.Equal(t, agppb.Log_ERROR, l.GetLevel())
	require.Contains(t, l.GetText(), "the old ones stay: no such model")
}

func TestInputThatEndsEarlyIsReportedAndFinished(t *testing.T) {
	p := begin(t, func(_ context.Context, sink pipeline.Sink) error { return errors.New("file is corrupt at byte 77") })
	p.configure(&agppb.Configure{})
	l := p.until(func(ev *agppb.Event) bool { return ev.GetLog() != nil }).GetLog()
	require.Equal(t, agppb.Log_ERROR, l.GetLevel())
	require.Contains(t, l.GetText(), "corrupt at byte 77")
	p.until(isFinished)
	require.NoError(t, p.served())
}

func TestBadConfigurationIsAnErrorThatNamesKeyValueAndAllowed(t *testing.T) {
	for text, c := range map[string]*agppb.Configure{
		`flows.emit = "some", allowed are ["none" "alerts" "sampled" "all"]`: {Emit: &agppb.Emit{Flows: "some"}},
		`flows.max_per_second = -1, allowed are 0`:                           {Emit: &agppb.Emit{MaxPerSecond: -1}},
		`pipeline = "broken"`: {Pipeline: "broken"},
	} {
		p := begin(t, waiting)
		p.configure(c)
		e := p.next().GetError()
		require.True(t, e.GetFatal())
		require.True(t, e.GetConfig())
		require.Contains(t, e.GetText(), text)
		require.ErrorIs(t, p.served(), ErrConfig)
	}
}

func TestPluginThatBreaksTheProtocol(t *testing.T) {
	t.Run("no hello", func(t *testing.T) {
		p := begin(t, waiting)
		p.send(&agppb.Command{Command: &agppb.Command_Drain{Drain: &agppb.Drain{}}})
		require.True(t, p.next().GetError().GetFatal())
		require.ErrorIs(t, p.served(), ErrProtocol)
	})
	t.Run("no configure", func(t *testing.T) {
		p := begin(t, waiting)
		p.hello()
		p.send(&agppb.Command{Command: &agppb.Command_SwapModels{}})
		require.ErrorIs(t, p.served(), ErrProtocol)
	})
	t.Run("other version", func(t *testing.T) {
		p := begin(t, waiting)
		p.send(&agppb.Command{Command: &agppb.Command_Hello{Hello: &agppb.Hello{Protocol: 99, ProtocolMin: 98}}})
		require.NotNil(t, p.next().GetHello(), "both sides can say what they speak")
		require.True(t, p.next().GetError().GetFatal())
		require.ErrorIs(t, p.served(), wire.ErrVersion)
	})
	t.Run("garbage", func(t *testing.T) {
		p := begin(t, waiting)
		_, err := p.sock.Write([]byte("\x05hello"))
		require.NoError(t, err)
		require.ErrorIs(t, p.served(), ErrProtocol)
	})
	t.Run("configured twice", func(t *testing.T) {
		p := begin(t, waiting)
		p.configure(&agppb.Configure{})
		p.send(&agppb.Command{Command: &agppb.Command_Configure{Configure: &agppb.Configure{}}})
		l := p.until(func(ev *agppb.Event) bool { return ev.GetLog() != nil }).GetLog()
		require.Equal(t, agppb.Log_WARN, l.GetLevel())
	})
}

func TestUnknownFieldsOfThePluginAreCountedInTheSnapshot(t *testing.T) {
	p := begin(t, waiting)
	c := &agppb.Configure{SnapshotIntervalNs: int64(time.Millisecond)}
	c.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	p.configure(c)
	snap := p.until(func(ev *agppb.Event) bool { return ev.GetSnapshot() != nil }).GetSnapshot()
	require.EqualValues(t, 1, snap.GetEngine().GetSkippedFields())
}

func TestMainOutsideOfThePluginSaysSo(t *testing.T) {
	require.ErrorIs(t, Main(context.Background(), "v1", nil), ErrNotAChild)
}
