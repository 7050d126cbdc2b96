package supervise

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// How long the stages of stopping may take. Whatever happens, stopLimit after the
// wish to stop the supervisor is done: a runner has 3 s for all that its plugin does.
const (
	drainGrace = 1500 * time.Millisecond // longest silence of an engine that drains
	drainLimit = 2200 * time.Millisecond // wish to stop to the end of draining
	stopGrace  = 100 * time.Millisecond  // stop command to SIGTERM
	killGrace  = 100 * time.Millisecond  // SIGTERM to SIGKILL
	lastGrace  = 50 * time.Millisecond   // for the reader, when the process is gone
	stopLimit  = 2700 * time.Millisecond
	termGrace  = 400 * time.Millisecond // SIGTERM to SIGKILL of an engine that failed
	sendLimit  = 100 * time.Millisecond // one command into the socket
	ruleLimit  = 5 * time.Second        // one through Send, which can be long and is in no hurry
)

// Errors with which an engine can end. The log line and Status carry them.
var (
	ErrDied     = errors.New("engine died")
	ErrSilent   = errors.New("engine sent nothing in time")
	ErrProtocol = errors.New("engine broke the protocol")
	ErrRefused  = errors.New("engine refused")
	ErrFailed   = errors.New("engine failed")
	ErrStart    = errors.New("engine could not be started")
	ErrCut      = errors.New("engine was ended before it had flushed all flows")
	ErrNoEngine = errors.New("no engine is running")
)

// Handler receives what the engine found, from one goroutine at a time. The
// arguments are only valid during the call. A slow handler slows the engine's
// telemetry down. With max_per_second = 0 it also slows the reading of files down,
// because then none of their records may be lost; in all other cases the engine
// suppresses and counts what there is no room for, and packets do not wait.
type Handler interface {
	Record(*telemetry.Record)
	Alert(*telemetry.Alert)
}

// Logger is the part of telegraf.Logger that is used.
type Logger interface {
	Errorf(format string, args ...any)
	Warnf(format string, args ...any)
	Infof(format string, args ...any)
	Debugf(format string, args ...any)
}

// Clock is the time that health and backoff go by.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Config of a Supervisor. Configure, Handler and Log are required, zero values
// of the rest take the defaults.
type Config struct {
	Command   []string // argv of the engine; default: this program with the argument "engine"
	Env       []string // added to the environment
	Version   string   // of this program, for people
	Configure *agppb.Configure
	Handler   Handler
	Log       Logger

	HandshakeTimeout time.Duration // start to hello; default 15 s
	ReadyTimeout     time.Duration // configure to ready; default 60 s
	AliveTimeout     time.Duration // longest silence; default 20 s
	Backoff          Backoff
	Clock            Clock
	Rand             func() float64 // jitter, in [0,1)
	// Ended is called after each engine has ended, however, and before the next one is
	// started. May be nil.
	Ended func()
	// Ready is called when an engine has come up and Send reaches it. It must not
	// block: nothing that the engine sends is read meanwhile. May be nil.
	Ready func(*agppb.Ready)
}

// State of the engine as the plugin reports it.
type State string

// States.
const (
	StateStopped    State = "stopped"    // before Start and after Stop
	StateStarting   State = "starting"   // process started, not ready
	StateRunning    State = "running"    // ready
	StateFinished   State = "finished"   // the source ended and everything was reported
	StateRestarting State = "restarting" // waiting to start again
)

// Status is what a supervisor knows about its engine.
type Status struct {
	State          State
	Up             bool // the engine is ready and running
	Restarts       uint64
	PacketsLost    uint64 // packets that were inside an engine when it died
	FlowsLost      uint64 // flows that were open then
	SkippedFields  uint64 // unknown fields in the engine's messages
	RefusedEvents  uint64 // records, alerts and snapshots with impossible values
	LogsSuppressed uint64 // log lines of the engine beyond the rate limit
	LastError      string // why the last engine ended; empty if none failed
	Pid            int    // of the engine, 0 if there is none
}

// Supervisor runs one engine at a time.
type Supervisor struct {
	cfg  Config
	logs logLimiter

	mu      sync.Mutex
	status  Status
	totals  totals
	summary *telemetry.Summary
	child   *child // the engine that is ready, nil otherwise
	stop    chan struct{}
	done    chan struct{}

	record telemetry.Record // scratch of the reading goroutine
	alert  telemetry.Alert
	events atomic.Uint64 // received, all but signs of life
}

// New returns a supervisor that does nothing until Start.
func New(cfg Config) (*Supervisor, error) {
	if cfg.Configure == nil || cfg.Handler == nil || cfg.Log == nil {
		return nil, errors.New("supervise: Configure, Handler and Log are required")
	}
	if len(cfg.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the engine: %w", err)
		}
		cfg.Command = []string{self, "engine"}
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&cfg.HandshakeTimeout, 15 * time.Second}, {&cfg.ReadyTimeout, time.Minute}, {&cfg.AliveTimeout, 20 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	cfg.Backoff.setDefaults()
	if cfg.Clock == nil {
		cfg.Clock = wallClock{}
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	return &Supervisor{cfg: cfg, status: Status{State: StateStopped}, logs: logLimiter{clock: cfg.Clock}}, nil
}

// Start begins to run an engine and returns at once; what becomes of it shows in
// Status and in the log. A second Start without Stop does nothing.
func (s *Supervisor) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil {
		return
	}
	s.stop, s.done = make(chan struct{}), make(chan struct{})
	s.status.State = StateStarting
	go s.loop(s.stop, s.done)
}

// Stop lets the engine flush and report, then ends it; it returns within 2.8 s
// even if the engine does not cooperate. A second Stop does nothing.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	stop, done := s.stop, s.done
	s.stop, s.done = nil, nil
	s.mu.Unlock()
	if done == nil {
		return
	}
	close(stop)
	<-done
}

// Status returns the present state.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statusLocked()
}

func (s *Supervisor) statusLocked() Status {
	st := s.status
	st.Up = st.State == StateRunning
	st.PacketsLost, st.FlowsLost = s.totals.packetsLost, s.totals.flowsLost
	if s.child != nil {
		st.SkippedFields += s.child.conn.Unknown()
	}
	st.LogsSuppressed = s.logs.suppressed.Load()
	return st
}

// Snapshot fills dst with the counters over all engines so far and returns the
// status of the same moment.
func (s *Supervisor) Snapshot(dst *telemetry.Snapshot) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.merged(dst)
	return s.statusLocked()
}

// Summary returns the accounting of an engine whose source ended, nil before.
func (s *Supervisor) Summary() *telemetry.Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.summary
}

// SwapModels makes the engine, and every later one, score with the models in
// these files. An engine that refuses one keeps its old ones and says so in the log.
func (s *Supervisor) SwapModels(paths []string) error {
	s.mu.Lock()
	c := s.child
	conf := proto.Clone(s.cfg.Configure).(*agppb.Configure)
	conf.Models = paths
	s.cfg.Configure = conf
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	return send(c, &agppb.Command{Command: &agppb.Command_SwapModels{SwapModels: &agppb.SwapModels{Models: paths}}})
}

// Send gives the engine a command; ErrNoEngine says that none is ready for it. Any
// other error ends the engine, because half of the command may be in its socket, and
// another is started. Send waits for an engine that is slow to read.
func (s *Supervisor) Send(cmd *agppb.Command) error {
	s.mu.Lock()
	c := s.child
	s.mu.Unlock()
	if c == nil {
		return ErrNoEngine
	}
	err := sendWithin(c, cmd, ruleLimit)
	if err != nil {
		c.sock.Close()
	}
	return err
}

func send(c *child, cmd *agppb.Command) error { return sendWithin(c, cmd, sendLimit) }

func sendWithin(c *child, cmd *agppb.Command, limit time.Duration) error {
	if err := c.sock.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	return c.conn.Send(cmd)
}

func (s *Supervisor) loop(stop, done chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(done)
	defer s.setState(StateStopped)

	s.mu.Lock()
	s.totals.retire() // of an earlier Start
	before := s.totals.base.Engine.PacketsSeen
	s.mu.Unlock()

	var gpu gpuHealth
	for failures := 0; ; {
		started := s.cfg.Clock.Now()
		end := s.runOnce(stop, before, gpu.verdict(started))
		err := end.err
		if s.cfg.Ended != nil {
			s.cfg.Ended()
		}
		lived := s.cfg.Clock.Now().Sub(started)
		select {
		case <-stop:
			if err != nil {
				s.failed(err)
				s.cfg.Log.Warnf("%v, while stopping", err)
			}
			return
		default:
		}
		if end.finished {
			s.setState(StateFinished) // its last snapshot stays in view
			<-stop
			return
		}
		if lived >= s.cfg.Backoff.ResetAfter {
			failures = 0
			if end.pipeline == "cuda" {
				gpu.worked()
			}
		}
		failures++
		wait := s.cfg.Backoff.delay(failures, s.cfg.Rand())
		report := s.cfg.Log.Errorf
		if repeated := s.failed(err); repeated && failures > 1 && !end.ready {
			report = s.cfg.Log.Debugf // it cannot start, for the same reason as before: one line is enough
		}
		s.mu.Lock()
		s.totals.retire()
		s.mu.Unlock()
		s.setState(StateRestarting)
		report("%v, after %s; starting it again in %s", err, lived.Round(10*time.Millisecond), wait.Round(10*time.Millisecond))
		if end.gpu {
			if rest := gpu.failed(err, s.cfg.Clock.Now()); rest > 0 {
				s.cfg.Log.Warnf("The GPU has failed %d engines in a row: the next ones use the CPU, for %s at least", gpu.failures, rest)
			}
		}
		select {
		case <-stop:
			return
		case <-s.cfg.Clock.After(wait):
		}
		s.mu.Lock()
		s.status.Restarts++
		s.mu.Unlock()
		s.setState(StateStarting)
	}
}

func (s *Supervisor) setState(next State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.State = next
}

// failed books the end of an engine and reports whether its reason is the one
// of the engine before.
func (s *Supervisor) failed(reason error) (repeated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.lose()
	text := reason.Error()
	repeated = text == s.status.LastError
	s.status.LastError = text
	return repeated
}

// result is how the conversation with an engine ended.
type result struct {
	finished bool  // it reported everything
	err      error // io.EOF: it closed the socket
}

// ending is how an engine ended.
type ending struct {
	finished bool
	ready    bool   // it got as far as running
	pipeline string // that ran then
	gpu      bool   // it could choose the CPU, and the GPU is, or may be, why it failed
	err      error
}

// runOnce runs one engine to its end. Packets that engines before it have seen,
// beyond the given number, are skipped in a file. gpuFailed says why it should not
// use the GPU, if it can choose.
func (s *Supervisor) runOnce(stop <-chan struct{}, before uint64, gpuFailed string) (end ending) {
	s.mu.Lock()
	conf := proto.Clone(s.cfg.Configure).(*agppb.Configure)
	if conf.GetSource() != nil {
		conf.Source.SkipFrames += s.totals.base.Engine.PacketsSeen - before
	}
	s.mu.Unlock()
	_, needed := options.NeedsGPU(conf.GetPipeline(), conf.GetMode())
	chooses := conf.GetPipeline() == options.PipelineAuto && !needed
	if chooses {
		conf.GpuFailed = gpuFailed
	}

	c, err := startChild(s.cfg.Command, s.cfg.Env)
	if err != nil {
		return ending{err: fmt.Errorf("%w: %w", ErrStart, err)}
	}
	s.mu.Lock()
	s.status.Pid = c.cmd.Process.Pid
	s.mu.Unlock()

	served := make(chan result, 1)
	go func() { served <- s.serve(c, conf) }()

	var res result
	select {
	case res = <-served:
		grace := termGrace
		if res.err != nil && !errors.Is(res.err, io.EOF) {
			grace = 0 // it hangs or talks nonsense: no reason to wait
		}
		c.end(grace, termGrace)
		<-c.exited
		c.sock.Close()
	case <-stop:
		res = s.stopChild(c, served)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.SkippedFields += c.conn.Unknown()
	s.status.Pid = 0
	end = ending{finished: res.finished, ready: s.child == c, pipeline: c.pipeline, err: explain(c, res)}
	end.gpu = chooses && blamed(end.pipeline, gpuFailed == "", end.err)
	s.child = nil
	return end
}

// stopChild ends an engine in stages: drain, stop, SIGTERM, SIGKILL.
func (s *Supervisor) stopChild(c *child, served <-chan result) result {
	s.mu.Lock()
	ready := s.child == c
	s.mu.Unlock()

	deadline := time.Now().Add(stopLimit)
	drainEnd := time.Now().Add(drainLimit)
	var res result
	have := false
	await := func(d time.Duration) {
		if have {
			return
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case res = <-served:
			have = true
		case <-t.C:
		}
	}
	// An engine that is not ready has nothing to drain.
	if ready && send(c, &agppb.Command{Command: &agppb.Command_Drain{Drain: &agppb.Drain{}}}) == nil {
		for last := s.events.Load(); ; {
			await(min(drainGrace, time.Until(drainEnd)))
			now := s.events.Load()
			if have || now == last || !time.Now().Before(drainEnd) {
				break
			}
			last = now
		}
	}
	cut := !have
	if cut {
		_ = send(c, &agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}}) // the signals follow
	}
	c.end(stopGrace, killGrace)
	c.waitFor(time.Until(deadline.Add(-lastGrace))) // a killed process gives a lot of memory back first
	c.sock.Close()
	// The reader sees EOF now; only a handler that blocks can hold it up.
	await(max(lastGrace, min(stopGrace, time.Until(deadline))))
	if !have {
		s.mu.Lock()
		c.abandoned = true
		s.mu.Unlock()
	}
	if !ready && !res.finished {
		return result{finished: true} // stopped before it began: nothing was lost
	}
	if cut && !res.finished {
		return result{err: ErrCut}
	}
	return res
}

// explain turns the end of an engine into one sentence.
func explain(c *child, res result) error {
	switch {
	case res.finished:
		return nil
	case !errors.Is(res.err, io.EOF):
		return res.err
	}
	how := "closed its socket and exited with status 0"
	select {
	case <-c.exited:
		if c.err != nil {
			how = c.err.Error() // "signal: killed", "exit status 2"
		}
	default:
		how = "killed, but its process is not gone yet"
	}
	if words := c.last.String(); words != "" {
		return fmt.Errorf("%w: %s (%s)", ErrDied, how, words)
	}
	return fmt.Errorf("%w: %s", ErrDied, how)
}

// serve speaks with one engine until it finishes or fails.
func (s *Supervisor) serve(c *child, conf *agppb.Configure) result {
	if err := s.open(c, conf); err != nil {
		return result{err: err}
	}
	for {
		var ev agppb.Event
		if err := receive(c, &ev, s.cfg.AliveTimeout, "while running"); err != nil {
			return result{err: err}
		}
		finished, err := s.handle(c, &ev)
		if finished || err != nil {
			return result{finished: finished, err: err}
		}
	}
}

// receive reads one event. A closed socket, whichever way it shows, is io.EOF.
func receive(c *child, ev *agppb.Event, limit time.Duration, phase string) error {
	if err := c.sock.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	err := c.conn.Receive(ev)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %s %s", ErrSilent, limit, phase)
	case errors.Is(err, wire.ErrMalformed), errors.Is(err, wire.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return io.EOF
}

// open shakes hands and configures the engine.
func (s *Supervisor) open(c *child, conf *agppb.Configure) error {
	hello := &agppb.Hello{Protocol: wire.Version, ProtocolMin: wire.VersionMin, Version: s.cfg.Version}
	if err := send(c, &agppb.Command{Command: &agppb.Command_Hello{Hello: hello}}); err != nil {
		return io.EOF // it is gone; its exit status says more
	}
	var ev agppb.Event
	if err := receive(c, &ev, s.cfg.HandshakeTimeout, "before hello"); err != nil {
		return err
	}
	theirs := ev.GetHello()
	if theirs == nil {
		return fmt.Errorf("%w: %T before hello", ErrProtocol, ev.GetEvent())
	}
	if err := wire.CheckHello(theirs); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if err := send(c, &agppb.Command{Command: &agppb.Command_Configure{Configure: conf}}); err != nil {
		return io.EOF
	}
	for {
		ev.Reset()
		if err := receive(c, &ev, s.cfg.ReadyTimeout, "before ready"); err != nil {
			return err
		}
		if r := ev.GetReady(); r != nil {
			s.mu.Lock()
			s.child, c.pipeline = c, r.GetPipeline()
			s.status.State = StateRunning
			s.mu.Unlock()
			models := "no models"
			if len(r.GetModels()) > 0 {
				models = "models " + strings.Join(r.GetModels(), " ")
			}
			pipeline := r.GetPipeline()
			if why := r.GetPipelineReason(); why != "" {
				pipeline += " (" + why + ")"
			}
			s.cfg.Log.Infof("Engine %s ready: %s, %s, %d queue(s), %s",
				theirs.GetVersion(), r.GetSource(), pipeline, r.GetQueues(), models)
			if s.cfg.Ready != nil {
				s.cfg.Ready(r)
			}
			return nil
		}
		if _, err := s.handle(c, &ev); err != nil {
			return err
		}
	}
}

// handle takes in one event after hello.
func (s *Supervisor) handle(c *child, ev *agppb.Event) (finished bool, err error) {
	if ev.GetAlive() == nil {
		s.events.Add(1)
	}
	switch e := ev.GetEvent().(type) {
	case *agppb.Event_Snapshot:
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.abandoned {
			return false, nil
		}
		if err := wire.SnapshotFromProto(e.Snapshot, &s.totals.next); err != nil {
			s.status.RefusedEvents++
			return false, nil
		}
		s.totals.take()
	case *agppb.Event_Records:
		for _, p := range e.Records.GetRecords() {
			if err := wire.RecordFromProto(p, &s.record); err != nil {
				s.refused()
				continue
			}
			s.cfg.Handler.Record(&s.record)
		}
	case *agppb.Event_Alerts:
		for _, p := range e.Alerts.GetAlerts() {
			if err := wire.AlertFromProto(p, &s.alert); err != nil {
				s.refused()
				continue
			}
			s.cfg.Handler.Alert(&s.alert)
		}
	case *agppb.Event_Log:
		s.logs.log(s.cfg.Log, e.Log.GetLevel(), e.Log.GetText())
	case *agppb.Event_Error:
		if e.Error.GetFatal() {
			why := ErrRefused
			s.mu.Lock()
			if s.child != nil { // it was ready
				why = ErrFailed
			}
			s.mu.Unlock()
			err = fmt.Errorf("%w: %s", why, e.Error.GetText())
			if e.Error.GetGpu() {
				err = gpuFault{err}
			}
			return false, err
		}
		s.logs.log(s.cfg.Log, agppb.Log_ERROR, e.Error.GetText())
	case *agppb.Event_Finished:
		sum := wire.SummaryFromProto(e.Finished.GetSummary())
		s.mu.Lock()
		s.summary = &sum
		s.mu.Unlock()
		s.cfg.Log.Infof("Engine finished: %d packets seen, %d in %d records, %d alerts, %.1f s",
			sum.PacketsSeen, sum.PacketsRecorded, sum.Records, sum.Alerts, sum.Seconds)
		return true, nil
	}
	// alive, a second hello or ready, and kinds of events from the future need nothing.
	return false, nil
}

func (s *Supervisor) refused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.RefusedEvents++
}
