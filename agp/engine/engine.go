package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// Errors of Serve.
var (
	// ErrPluginGone says that the socket was closed.
	ErrPluginGone = errors.New("plugin is gone")
	// ErrProtocol says that the plugin did not follow the protocol.
	ErrProtocol = errors.New("plugin broke the protocol")
)

const (
	maxBatch         = 256                    // events per message
	flushInterval    = 100 * time.Millisecond // longest wait of an event in a calm engine
	aliveInterval    = 2 * time.Second
	snapshotInterval = time.Second             // default
	drainInterval    = 250 * time.Millisecond  // of snapshots while draining, at most
	undoLimit        = 1500 * time.Millisecond // for what an engine without plugin takes back
)

// Log sends a line to the plugin's log. Safe from any goroutine.
type Log func(level agppb.Log_Level, format string, args ...any)

// Built is what a configuration became.
type Built struct {
	Pipeline pipeline.Pipeline
	Source   string   // what was opened, for people
	Kind     string   // pipeline: "cpu" or "cuda"
	Why      string   // why this one, for people
	Models   []string // name@version
	Queues   int
	// Swap makes other models score; it returns their names. On an error the old ones stay.
	Swap func(paths []string) ([]string, error)
	// Finding says whether an answer of a model is worth an alert.
	Finding func(*telemetry.Output) bool
	// Live says that the source is a running interface: it has no end, so that an end is
	// a failure after which another engine may succeed.
	Live bool
	// Steer changes the block list and Policy what the engine sees. nil: nothing to steer.
	Steer  func(*agppb.SteerRules) error
	Policy func(*agppb.SteerPolicy) error
	// Steering appends the rows of a snapshot that only the source's port knows. May be nil.
	Steering func(*telemetry.Snapshot)
	// GPU appends the readings of the GPU that the pipeline uses. May be nil.
	GPU func(*telemetry.Snapshot)
	// Undo takes back what would outlive the process. It is called at every end of the engine
	// but a crash, also while the pipeline runs, and more than once. May be nil.
	Undo func() error
	// Close is called after the pipeline has ended. An engine that is told to stop, or
	// whose plugin is gone, ends with its process instead.
	Close func() error
}

// Builder opens what conf names and builds a pipeline that reports to sink.
type Builder func(conf *agppb.Configure, sink pipeline.Sink, log Log) (*Built, error)

// Options of Serve.
type Options struct {
	Version string
	Build   Builder
	// Gone is called at most once, from the reading goroutine, as soon as the plugin
	// has closed the socket; the process should end at once. A socket that is closed
	// after an orderly end, by whichever side, is none of its business. May be nil.
	Gone func()
	Now  func() time.Time // default time.Now
}

// server is one Serve call.
type server struct {
	o        Options
	conn     *wire.Conn
	commands chan *agppb.Command
	failed   chan error  // of the reading goroutine
	over     atomic.Bool // an orderly end: nobody needs the socket any more
	emitter  *emitter
	built    *Built
	building sync.Mutex                   // held until what Build did can be taken back
	undo     atomic.Pointer[func() error] // Built.Undo
	started  time.Time
	snapshot telemetry.Snapshot
}

// Serve runs one engine over rw.
func Serve(ctx context.Context, rw io.ReadWriter, o Options) (err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &server{o: o, conn: wire.NewConn(rw), commands: make(chan *agppb.Command), failed: make(chan error, 1), started: o.Now()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if !errors.Is(err, ErrPluginGone) {
			s.over.Store(true)
		}
	}()
	defer context.AfterFunc(ctx, s.takeBack)() // also while the rest is stuck
	go s.read(ctx)

	conf, err := s.open(ctx)
	if err != nil || conf == nil {
		return err
	}
	return s.run(ctx, conf)
}

// read passes commands on until the stream ends or ctx is done.
func (s *server) read(ctx context.Context) {
	for {
		cmd := new(agppb.Command)
		if err := s.conn.Receive(cmd); err != nil {
			if errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrTooLarge) {
				err = fmt.Errorf("%w: %w", ErrProtocol, err)
			} else {
				err = ErrPluginGone
			}
			expected := s.over.Load()
			taken := make(chan struct{})
			go func() {
				s.takeBack()
				close(taken)
			}()
			select {
			case <-taken:
			case <-time.After(undoLimit): // the next engine reads the journal
			}
			s.failed <- err
			if s.o.Gone != nil && !expected {
				s.o.Gone()
			}
			return
		}
		select {
		case s.commands <- cmd:
		case <-ctx.Done():
			return
		}
	}
}

// takeBack calls Built.Undo, if there is one. It waits for Build.
func (s *server) takeBack() {
	s.building.Lock()
	defer s.building.Unlock()
	if undo := s.undo.Load(); undo != nil {
		if err := (*undo)(); err != nil {
			s.log(agppb.Log_ERROR, "%v", err)
		}
	}
}

func (s *server) next(ctx context.Context) (*agppb.Command, error) {
	select {
	case cmd := <-s.commands:
		return cmd, nil
	case err := <-s.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open shakes hands and returns the configuration, nil if told to stop.
func (s *server) open(ctx context.Context) (*agppb.Configure, error) {
	cmd, err := s.next(ctx)
	if err != nil {
		return nil, err
	}
	hello := cmd.GetHello()
	if hello == nil {
		return nil, s.fail(fmt.Errorf("%w: %T before hello", ErrProtocol, cmd.GetCommand()))
	}
	mine := &agppb.Hello{Protocol: wire.Version, ProtocolMin: wire.VersionMin, Version: s.o.Version}
	if err := s.conn.Send(&agppb.Event{Event: &agppb.Event_Hello{Hello: mine}}); err != nil {
		return nil, err
	}
	if err := wire.CheckHello(hello); err != nil {
		return nil, s.fail(err)
	}
	cmd, err = s.next(ctx)
	switch {
	case err != nil:
		return nil, err
	case cmd.GetStop() != nil || cmd.GetDrain() != nil:
		return nil, nil
	case cmd.GetConfigure() == nil:
		return nil, s.fail(fmt.Errorf("%w: %T instead of configure", ErrProtocol, cmd.GetCommand()))
	}
	return cmd.GetConfigure(), nil
}

// fail tells the plugin why the engine ends.
func (s *server) fail(err error) error {
	e := &agppb.Error{Text: err.Error(), Fatal: true, Config: errors.Is(err, ErrConfig), Gpu: gpuFault(err)}
	_ = s.conn.Send(&agppb.Event{Event: &agppb.Event_Error{Error: e}}) // err itself is what the caller gets
	return err
}

// log implements Log. A plugin that does not listen any more is noticed elsewhere.
func (s *server) log(level agppb.Log_Level, format string, args ...any) {
	l := &agppb.Log{Level: level, Text: fmt.Sprintf(format, args...)}
	_ = s.conn.Send(&agppb.Event{Event: &agppb.Event_Log{Log: l}})
}

// run builds the pipeline and reports until it has ended.
func (s *server) run(ctx context.Context, conf *agppb.Configure) (err error) {
	fileSource := conf.GetSource().GetKind() == "pcap"
	if s.emitter, err = newEmitter(conf.GetEmit(), fileSource, s.o.Now); err != nil {
		return s.fail(err)
	}
	if err := s.build(conf); err != nil {
		return s.fail(err)
	}
	defer s.takeBack()
	if s.built.Finding != nil {
		s.emitter.finding = s.built.Finding
	}
	ready := &agppb.Ready{Source: s.built.Source, Pipeline: s.built.Kind, PipelineReason: s.built.Why, Models: s.built.Models, Queues: uint32(s.built.Queues), Steering: s.built.Steer != nil}
	if err := s.conn.Send(&agppb.Event{Event: &agppb.Event_Ready{Ready: ready}}); err != nil {
		return ErrPluginGone
	}

	runCtx, drain := context.WithCancel(ctx)
	defer drain()
	defer s.emitter.close()
	ended := make(chan error, 1)
	go func() { ended <- s.built.Pipeline.Run(runCtx) }()

	interval := time.Duration(conf.GetSnapshotIntervalNs())
	if interval <= 0 {
		interval = snapshotInterval
	}
	snapshots, alive := time.NewTicker(interval), time.NewTicker(aliveInterval)
	defer snapshots.Stop()
	defer alive.Stop()
	// Events are sent beside the snapshots: a pipeline may hold what Snapshot
	// waits for while it waits for room in the emitter.
	sent, enough := make(chan error, 1), make(chan struct{})
	go func() { sent <- s.sendEvents(enough) }()
	var once sync.Once
	stopSending := func() { once.Do(func() { close(enough) }) }
	defer stopSending()
	if s.report() != nil { // at once, so that a plugin that gathers sees more than "running"
		return ErrPluginGone
	}
	for {
		select {
		case err := <-ended:
			stopSending()
			if <-sent != nil {
				return ErrPluginGone
			}
			err = s.finish(err)
			if s.built.Close != nil {
				err = errors.Join(err, s.built.Close())
			}
			return err
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case cmd := <-s.commands:
			switch c := cmd.GetCommand().(type) {
			case *agppb.Command_Drain:
				s.emitter.draining()
				drain()
				// An engine that is ended before it has drained is judged by its last one.
				snapshots.Reset(min(interval, drainInterval))
			case *agppb.Command_Stop:
				return nil
			case *agppb.Command_SwapModels:
				s.swap(c.SwapModels.GetModels())
			case *agppb.Command_SteerRules:
				s.steer(func() error { return s.built.Steer(c.SteerRules) }, s.built.Steer != nil)
			case *agppb.Command_SteerPolicy:
				s.steer(func() error { return s.built.Policy(c.SteerPolicy) }, s.built.Policy != nil)
			default:
				s.log(agppb.Log_WARN, "command %T ignored while running", c)
			}
		case err = <-sent: // only a failure ends it here
		case <-snapshots.C:
			err = s.report()
		case <-alive.C:
			err = s.conn.Send(&agppb.Event{Event: &agppb.Event_Alive{Alive: &agppb.Alive{}}})
		}
		if err != nil {
			return ErrPluginGone
		}
	}
}

func (s *server) build(conf *agppb.Configure) (err error) {
	s.building.Lock()
	defer s.building.Unlock()
	if s.built, err = s.o.Build(conf, s.emitter, s.log); err == nil && s.built.Undo != nil {
		s.undo.Store(&s.built.Undo)
	}
	return err
}

// steer carries out a command about steering.
func (s *server) steer(act func() error, able bool) {
	if !able {
		s.log(agppb.Log_WARN, "steering command ignored: source %q has no port", s.built.Source)
		return
	}
	if err := act(); err != nil {
		s.log(agppb.Log_ERROR, "steering: %v", err)
	}
}

func (s *server) swap(paths []string) {
	names, err := s.built.Swap(paths)
	if err != nil {
		s.log(agppb.Log_ERROR, "models not exchanged, the old ones stay: %v", err)
		return
	}
	s.log(agppb.Log_INFO, "models exchanged: %v", names)
}

// sendEvents sends events as they come, until enough is closed or the plugin is
// gone.
func (s *server) sendEvents(enough <-chan struct{}) error {
	flushes := time.NewTicker(flushInterval)
	defer flushes.Stop()
	for {
		var err error
		select {
		case <-enough:
			return nil
		case <-s.emitter.wake:
			err = s.flush()
		case <-flushes.C:
			err = s.flush()
		}
		if err != nil {
			return err
		}
	}
}

// flush sends the events that wait.
func (s *server) flush() error {
	records, alerts := s.emitter.take()
	for len(alerts) > 0 {
		n := min(len(alerts), maxBatch)
		if err := s.conn.Send(&agppb.Event{Event: &agppb.Event_Alerts{Alerts: &agppb.Alerts{Alerts: alerts[:n]}}}); err != nil {
			return err
		}
		alerts = alerts[n:]
	}
	for len(records) > 0 {
		n := min(len(records), maxBatch)
		if err := s.conn.Send(&agppb.Event{Event: &agppb.Event_Records{Records: &agppb.Records{Records: records[:n]}}}); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// report sends a snapshot.
func (s *server) report() error {
	s.built.Pipeline.Snapshot(&s.snapshot)
	if s.built.Steering != nil {
		s.built.Steering(&s.snapshot)
	}
	if s.built.GPU != nil {
		s.built.GPU(&s.snapshot)
	}
	e := &s.snapshot.Engine
	e.Suppressed += s.emitter.suppressedCount() // beside what the detectors held back
	e.CPUSeconds = cpuSeconds()
	e.RSSBytes = rssBytes()
	e.UptimeNs = int64(s.o.Now().Sub(s.started))
	e.SkippedFields = s.conn.Unknown()
	e.PipelineReason = s.built.Why
	return s.conn.Send(&agppb.Event{Event: &agppb.Event_Snapshot{Snapshot: wire.SnapshotToProto(&s.snapshot)}})
}

// finish reports the end of the input: events, last snapshot, summary.
func (s *server) finish(runErr error) error {
	fault := gpuFault(runErr)
	failed := runErr != nil && (fault || !errors.Is(runErr, context.Canceled))
	fatal := failed && (fault || s.built.Live)
	if failed && !fatal {
		s.log(agppb.Log_ERROR, "the input ended early, what was readable is counted: %v", runErr)
	}
	if err := s.flush(); err != nil {
		return ErrPluginGone
	}
	if err := s.report(); err != nil {
		return ErrPluginGone
	}
	if fatal {
		if fault {
			runErr = withXid(runErr, &s.snapshot)
		}
		return s.fail(runErr)
	}
	s.over.Store(true) // the plugin may close as soon as it has read what follows
	sum := telemetry.Summarize(&s.snapshot, s.o.Now().Sub(s.started).Seconds())
	if err := s.conn.Send(&agppb.Event{Event: &agppb.Event_Finished{Finished: &agppb.Finished{Summary: wire.SummaryToProto(&sum)}}}); err != nil {
		return ErrPluginGone
	}
	return nil
}
