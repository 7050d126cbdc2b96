package runner

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/models"
	"github.com/influxdata/telegraf/plugins/inputs"
	"github.com/influxdata/telegraf/plugins/parsers/influx"
	"github.com/influxdata/telegraf/plugins/processors"
)

// Exit codes of Run. A second stop signal gives 128 plus its number.
const (
	ExitOK     = 0
	ExitFault  = 1 // the plugin or its output failed
	ExitConfig = 2 // nothing was started
)

// Reloader is a plugin that can take up a changed environment (models, rules)
// without a restart. SIGHUP calls it, never in parallel with Gather or Add.
type Reloader interface {
	Reload() error
}

// Options of Run. The zero value of every field has a meaning.
type Options struct {
	// Config is the path of the configuration file. ConfigReader, if set, is
	// read instead and Config only names it in messages. With neither, the only
	// registered plugin runs with its defaults.
	Config       string
	ConfigReader io.Reader

	// Inputs and Processors are the plugins that the file may name. Both nil
	// means telegraf's registries: what the binary imports.
	Inputs     map[string]inputs.Creator
	Processors map[string]processors.StreamingCreator

	// Stdin, Stdout and Stderr default to the process's own.
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Interval between calls of Gather, unless the section sets "interval". 0:
	// Gather only on request, which is a line on Stdin or SIGUSR1.
	Interval time.Duration
	// LogLevel unless the section sets "log_level". Default: info.
	LogLevel telegraf.LogLevel
	// Test, if above 0, ignores Stdin, gathers once and stops after that time.
	Test time.Duration

	// QueueSize bounds the lines waiting for telegraf, bytes. Default: 4 MiB.
	QueueSize int
	// StallTimeout is how long telegraf may read nothing while the queue is full
	// before metrics are dropped. Default: 1 s.
	StallTimeout time.Duration
	// StopTimeout bounds the time from the wish to stop to the return of Run.
	// Default: 4 s, below the 5 s of execd.
	StopTimeout time.Duration
	// SelfInterval is the interval of the measurement agp_runner, which also
	// comes once at the end. Default: 10 s; negative: never.
	SelfInterval time.Duration

	// Signals delivers signals in tests. Default: those of the process.
	Signals <-chan os.Signal
	caught  chan os.Signal // those of the process
	// Exit ends the process at a second stop signal. Default: os.Exit.
	Exit func(code int)
	// Now is the clock of metrics without a time. Default: time.Now.
	Now func() time.Time
}

func (o *Options) setDefaults() {
	if o.Inputs == nil && o.Processors == nil {
		o.Inputs, o.Processors = inputs.Inputs, processors.Processors
	}
	if o.Stdin == nil {
		o.Stdin = os.Stdin
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.LogLevel == telegraf.None {
		o.LogLevel = telegraf.Info
	}
	if o.QueueSize <= 0 {
		o.QueueSize = 4 << 20
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = time.Second
	}
	if o.StopTimeout <= 0 {
		o.StopTimeout = 4 * time.Second
	}
	if o.SelfInterval == 0 {
		o.SelfInterval = 10 * time.Second
	}
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Run runs the plugin that the configuration names until it is told to stop (see
// the package comment) and returns the exit code of the process. It prints its
// errors to Stderr. Only one Run at a time owns a process's signals and streams.
func Run(ctx context.Context, o Options) int {
	o.setDefaults()
	if o.Signals == nil {
		// SIGTERM and SIGINT may still end a process that hangs in Init; these must not.
		c := make(chan os.Signal, 8)
		signal.Notify(c, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
		defer signal.Stop(c)
		o.caught = c
	}
	log := newLogger(o.Stderr, o.LogLevel, o.Now)
	defer log.close(500 * time.Millisecond)
	captureLogs(log)

	s, err := load(&o)
	if err != nil {
		log.Error(err)
		return ExitConfig
	}
	if s.LogLevel != "" {
		log.level.Store(int32(telegraf.LogLevelFromString(s.LogLevel)))
	}
	if s.Interval > 0 {
		o.Interval = time.Duration(s.Interval)
	}
	models.SetLoggerOnPlugin(s.plugin(), log)
	models.SetStatisticsOnPlugin(s.plugin(), log, map[string]string{})
	if p, ok := s.plugin().(telegraf.Initializer); ok {
		if err := guard(p.Init); err != nil {
			log.Errorf("Init of %s failed: %v", s.name, err)
			return ExitConfig
		}
	}

	st := &stats{}
	r := &runner{
		Options: o,
		section: s,
		log:     log,
		stats:   st,
		queue:   newQueue(st, o.QueueSize, o.StallTimeout),
		gather:  make(chan func() error, 1),
		gate:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		ended:   make(chan error, 1),
		faults:  make(chan error, 1),
	}
	r.acc = &accumulator{queue: r.queue, stats: st, log: log, now: o.Now}
	return r.run(ctx)
}

// guard turns a panic of the plugin into an error, so that Stop still runs.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return f()
}

var errPanic = errors.New("plugin panicked")

type runner struct {
	Options
	*section
	log   *Logger
	stats *stats
	queue *queue
	acc   *accumulator

	gather chan func() error // calls for the gatherer, at most one waiting
	gate   chan struct{}     // held during Gather, Reload and Add, and for good by Stop
	quit   chan struct{}     // closed when stopping begins
	ended  chan error        // end of standard input; nil at its regular end
	faults chan error        // reasons to stop with a fault

	signalled bool // a signal asked to stop; of the supervisor
}

// run is the supervisor.
func (r *runner) run(ctx context.Context) int {
	signals := r.signals()
	go r.queue.write(r.Stdout)

	// Start runs beside the supervisor: it may emit, and it may hang.
	started := make(chan error, 1)
	go func() { started <- guard(r.start) }()
	if ok, err := r.await(ctx, started, signals); !ok {
		return r.shutdown(started, signals, err)
	}

	var ticks, self, test <-chan time.Time
	go r.gatherLoop()
	if r.Interval > 0 && r.input != nil {
		ticker := time.NewTicker(r.Interval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	if r.SelfInterval > 0 {
		ticker := time.NewTicker(r.SelfInterval)
		defer ticker.Stop()
		self = ticker.C
	}
	if r.Test > 0 && r.input != nil {
		r.requestGather()
		timer := time.NewTimer(r.Test)
		defer timer.Stop()
		test = timer.C
	} else {
		go r.read()
	}

	var err error
	for running := true; running; {
		select {
		case <-ticks:
			r.requestGather()
		case <-self:
			r.emitSelf()
		case s := <-signals:
			running = !r.handle(s)
		case <-ctx.Done():
			running = false
		case <-test:
			running = false
		case err = <-r.ended:
			running = false
		case err = <-r.faults:
			running = false
		case <-r.queue.done:
			err, running = r.queue.err, false
		}
	}
	return r.shutdown(nil, signals, err)
}

// await waits for the end of Start. It is false if there is nothing to run: Start
// failed (then started is empty) or something asked to stop meanwhile.
func (r *runner) await(ctx context.Context, started chan error, signals <-chan os.Signal) (ok bool, err error) {
	for {
		select {
		case err := <-started:
			if err != nil {
				return false, &startError{err}
			}
			return true, nil
		case s := <-signals:
			if r.handle(s) {
				return false, nil
			}
		case <-ctx.Done():
			return false, nil
		case <-r.queue.done:
			return false, r.queue.err
		}
	}
}

type startError struct{ error }

func (e *startError) Unwrap() error { return e.error }

func (r *runner) start() error {
	if r.processor != nil {
		return r.processor.Start(r.acc)
	}
	if s, ok := r.input.(telegraf.ServiceInput); ok {
		return s.Start(r.acc)
	}
	return nil
}

var catchPipe sync.Once

func (r *runner) signals() <-chan os.Signal {
	if r.Signals != nil {
		return r.Signals
	}
	// With SIGPIPE caught, a closed standard output or error is an error of
	// write(2) and not the end of the process. It stays caught: log lines follow.
	catchPipe.Do(func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) })
	signal.Notify(r.caught, syscall.SIGTERM, syscall.SIGINT)
	return r.caught
}

// handle reports whether the signal asks to stop.
func (r *runner) handle(s os.Signal) bool {
	switch s {
	case syscall.SIGTERM, syscall.SIGINT:
		r.log.Debugf("Received %s, stopping", s)
		r.signalled = true
		return true
	case syscall.SIGHUP:
		if p, ok := r.target().(Reloader); ok {
			r.request(func() error {
				if err := p.Reload(); err != nil {
					return fmt.Errorf("reload failed: %w", err)
				}
				return nil
			})
			return false
		}
		r.requestGather()
	case syscall.SIGUSR1, syscall.SIGUSR2:
		r.requestGather()
	}
	return false
}

func (r *runner) requestGather() {
	if r.input == nil {
		return
	}
	r.request(func() error {
		r.stats.gathers.Add(1)
		return r.input.Gather(r.acc)
	})
}

// request leaves out a call while another one is waiting: the plugin is slower
// than its interval, and catching up would not help anyone.
func (r *runner) request(call func() error) {
	select {
	case r.gather <- call:
	default:
	}
}

func (r *runner) gatherLoop() {
	for {
		select {
		case <-r.quit:
			return
		case call := <-r.gather:
			if !r.enter() {
				return
			}
			err := guard(call)
			r.leave()
			r.queue.flush()
			if errors.Is(err, errPanic) {
				r.fault(err)
				return
			}
			r.acc.AddError(err)
		}
	}
}

// enter takes the gate, unless stopping has begun.
func (r *runner) enter() bool {
	select {
	case <-r.quit:
		return false
	default:
	}
	select {
	case r.gate <- struct{}{}:
		return true
	case <-r.quit:
		return false
	}
}

func (r *runner) leave() { <-r.gate }

func (r *runner) fault(err error) {
	select {
	case r.faults <- err:
	default:
	}
}

// read owns standard input until its end. It may outlive Run if Stdin cannot be
// interrupted; it then touches nothing but Stdin.
func (r *runner) read() {
	var err error
	if r.processor != nil {
		err = guard(r.readMetrics)
	} else {
		err = r.readRequests()
	}
	select {
	case <-r.quit:
	default:
		r.ended <- err
	}
}

// readRequests asks for a Gather per line; lines that arrive together count
// once. It does not keep lines, so their length does not matter.
func (r *runner) readRequests() error {
	buf := make([]byte, 4096)
	for {
		n, err := r.Stdin.Read(buf)
		if bytes.IndexByte(buf[:n], '\n') >= 0 {
			r.requestGather()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
	}
}

func (r *runner) readMetrics() error {
	parser := influx.NewStreamParser(bufio.NewReaderSize(r.Stdin, chunkSize))
	for {
		m, err := parser.Next()
		var bad *influx.ParseError
		switch {
		case errors.Is(err, influx.EOF):
			return nil
		case errors.As(err, &bad):
			r.stats.failed(r.Now())
			r.log.limited("parse", telegraf.Error, "Cannot parse metric: "+bad.Error())
			continue
		case err != nil:
			return fmt.Errorf("reading standard input: %w", err)
		}
		r.queue.waitRoom(r.quit)
		if !r.enter() {
			return nil
		}
		err = guard(func() error { return r.processor.Add(m, r.acc) })
		r.leave()
		if errors.Is(err, errPanic) {
			return err
		}
		r.acc.AddError(err)
	}
}

// shutdown stops everything in order within StopTimeout and returns the exit
// code. started is not nil if Start has not returned yet; cause is the fault
// that made the runner stop, if any.
func (r *runner) shutdown(started <-chan error, signals <-chan os.Signal, cause error) int {
	deadline := time.Now().Add(r.StopTimeout)
	part := r.StopTimeout / 4
	returned := make(chan struct{})
	defer close(returned)
	go r.watchSecond(signals, r.signalled, returned)

	code := ExitOK
	report := func(format string, args ...any) {
		code = ExitFault
		r.stats.failed(r.Now())
		r.log.Errorf(format, args...)
	}
	var failed *startError
	switch {
	case errors.As(cause, &failed):
		report("Start of %s failed: %v", r.name, failed.error)
		started = nil
	case cause != nil:
		report("Stopping %s: %v", r.name, cause)
	}

	close(r.quit)
	if in, ok := r.Stdin.(interface{ SetReadDeadline(time.Time) error }); ok {
		// Ends a read of a pipe that the runtime polls; others are left behind.
		_ = in.SetReadDeadline(time.Unix(1, 0))
	}

	// 1. Nothing calls into the plugin any more.
	running := failed == nil
	if started != nil {
		if ok, err := receive(started, time.Until(deadline)-2*part); !ok {
			report("Start of %s did not return, stopping without it", r.name)
			running = false
		} else if err != nil {
			report("Start of %s failed: %v", r.name, err)
			running = false
		}
	}
	select {
	case r.gate <- struct{}{}:
	case <-time.After(part):
		r.log.Warnf("%s is still busy, calling its Stop anyway", r.name)
	}

	// 2. Stop, which may emit.
	if running {
		stopped := make(chan error, 1)
		go func() { stopped <- guard(r.stop) }()
		if ok, err := receive(stopped, time.Until(deadline)-part); !ok {
			report("Stop of %s did not return in time", r.name)
		} else if err != nil {
			report("Stop of %s: %v", r.name, err)
		}
	}

	// 3. Write the rest and see it taken.
	r.emitSelf()
	r.queue.close()
	left := 0
	select {
	case <-r.queue.done:
		if r.queue.err == nil {
			left = r.queue.pipe.drain(deadline)
		} else if cause == nil {
			r.log.Warnf("Output was closed before the last metrics: %v", r.queue.err)
		}
	case <-time.After(time.Until(deadline)):
		left = max(1, r.queue.size())
	}
	if left > 0 {
		report("Nobody reads the output, at least %d bytes are lost", left)
	}
	return code
}

// stop calls Stop of the plugin. run reaches it once, whatever asked to stop.
func (r *runner) stop() error {
	if r.processor != nil {
		r.processor.Stop()
	} else if s, ok := r.input.(telegraf.ServiceInput); ok {
		s.Stop()
	}
	return nil
}

// watchSecond ends the process at the second stop signal. One signal may come
// after the end of input without meaning impatience: a terminal sends SIGINT to
// telegraf and to its children, and telegraf closes standard input.
func (r *runner) watchSecond(signals <-chan os.Signal, signalled bool, returned <-chan struct{}) {
	for {
		select {
		case <-returned:
			return
		case s := <-signals:
			if s != syscall.SIGTERM && s != syscall.SIGINT {
				continue
			}
			if signalled {
				r.Exit(128 + int(s.(syscall.Signal)))
				return
			}
			signalled = true
		}
	}
}

// receive is not ok if nothing came in time.
func receive(c <-chan error, patience time.Duration) (ok bool, err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-c:
		return true, err
	case <-timer.C:
		return false, nil
	}
}

// emitSelf adds the runner's own counters. It never waits for room.
func (r *runner) emitSelf() {
	if r.SelfInterval < 0 {
		return
	}
	now := r.Now()
	tags := map[string]string{"plugin": r.name}
	if r.Alias != "" {
		tags["alias"] = r.Alias
	}
	fields := map[string]any{
		"metrics_emitted":      r.stats.metrics.Load(),
		"bytes_emitted":        r.stats.bytes.Load(),
		"metrics_dropped":      r.stats.dropped(),
		"serialize_errors":     r.stats.serializeErrors(),
		"timestamps_adjusted":  r.stats.adjusted.Load(),
		"integers_wrapped":     r.stats.wrapped.Load(),
		"gathers":              r.stats.gathers.Load(),
		"errors":               r.stats.errors.Load(),
		"log_lines_suppressed": r.log.suppressed.Load(),
		"queue_bytes":          r.queue.size(),
	}
	if last := r.stats.lastError.Load(); last != 0 {
		fields["last_error_age"] = now.Sub(time.Unix(0, last)).Seconds()
	}
	r.queue.addFields("agp_runner", tags, fields, now, false, false)
	for reason := range r.stats.drops {
		if n := r.stats.drops[reason].Load(); n > 0 {
			tags["reason"] = reasonNames[reason]
			r.queue.addFields("agp_runner", tags, map[string]any{"dropped": n}, now, false, false)
		}
	}
	r.queue.flush()
}
