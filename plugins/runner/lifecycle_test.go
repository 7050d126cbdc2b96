package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
)

func TestStopByEndOfInput(t *testing.T) {
	in := &toyInput{}
	h := launchInput(t, in)
	require.Equal(t, ExitOK, h.stopByEOF())
	require.EqualValues(t, 1, in.starts.Load())
	require.EqualValues(t, 1, in.stops.Load())
	require.Empty(t, h.stderr.String())
}

func TestStopBySignal(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			in := &toyInput{}
			h := launchInput(t, in)
			h.signals <- s
			require.Equal(t, ExitOK, h.wait())
			require.EqualValues(t, in.starts.Load(), in.stops.Load())
			require.Empty(t, h.stderr.String())
		})
	}
}

func TestStopByContext(t *testing.T) {
	in := &toyInput{}
	ctx, cancel := context.WithCancel(t.Context())
	in.gather = func(telegraf.Accumulator) error {
		cancel()
		return nil
	}
	stdin, w := io.Pipe()
	defer w.Close()
	code := Run(ctx, Options{Inputs: oneInput(in), Stdin: stdin, Stdout: &buffer{}, Stderr: &buffer{}, Interval: time.Millisecond})
	require.Equal(t, ExitOK, code)
	require.EqualValues(t, 1, in.stops.Load())
}

// One plugin object runs, stops and runs again, as after a reload of a telegraf
// that has it compiled in.
func TestStartTwice(t *testing.T) {
	in := &toyInput{}
	in.start = func(acc telegraf.Accumulator) error {
		acc.AddFields("m", value(int(in.starts.Load())), nil)
		return nil
	}
	for i := range 2 {
		h := launchInput(t, in)
		require.Equal(t, ExitOK, h.stopByEOF())
		require.Contains(t, h.out.String(), fmt.Sprintf("m value=%di ", i+1))
		require.EqualValues(t, i+1, in.stops.Load())
	}
}

// Every reason to stop at once still stops the plugin once.
func TestStopTwice(t *testing.T) {
	in := &toyInput{stop: func() { time.Sleep(10 * time.Millisecond) }}
	h := launchInput(t, in)
	h.signals <- syscall.SIGTERM
	require.NoError(t, h.stdin.Close())
	require.Equal(t, ExitOK, h.wait())
	require.EqualValues(t, 1, in.stops.Load())
}

func TestRunLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		in := &toyInput{}
		h := launch(t, Options{Inputs: oneInput(in), Interval: time.Millisecond, SelfInterval: time.Millisecond}, false)
		eventually(t, "gathered", func() bool { return in.gathers.Load() > 2 })
		h.signals <- syscall.SIGTERM
		require.Equal(t, ExitOK, h.wait())
	}
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= before+1 })
}

func TestChecklist05_SecondSignalExitsAtOnce(t *testing.T) {
	release := make(chan struct{})
	in := &toyInput{stop: func() { <-release }}
	h := launchInput(t, in)
	eventually(t, "started", func() bool { return in.starts.Load() == 1 })
	h.signals <- syscall.SIGTERM
	h.signals <- syscall.SIGINT
	select {
	case code := <-h.exits:
		require.Equal(t, 128+int(syscall.SIGINT), code)
	case <-time.After(longTime):
		require.Fail(t, "no exit")
	}
	close(release)
	h.wait()
}

// A terminal sends SIGINT to telegraf and its children alike; telegraf closes
// standard input at the same moment.
func TestSignalAfterEndOfInputIsNotImpatience(t *testing.T) {
	stopping, release := make(chan struct{}), make(chan struct{})
	in := &toyInput{stop: func() {
		close(stopping)
		<-release
	}}
	h := launchInput(t, in)
	require.NoError(t, h.stdin.Close())
	<-stopping
	h.signals <- syscall.SIGINT
	eventually(t, "signal taken", func() bool { return len(h.signals) == 0 })
	close(release)
	require.Equal(t, ExitOK, h.wait())
	require.Empty(t, h.exits)
}

func TestChecklist05_StopThatHangsIsCutAt4Seconds(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	h := launchInput(t, &toyInput{stop: func() { <-release }})
	begin := time.Now()
	require.Equal(t, ExitFault, h.stopByEOF())
	require.Less(t, time.Since(begin), 4500*time.Millisecond)
	require.Contains(t, h.stderr.String(), "E! Stop of inputs.toy did not return in time")
}

func TestStartThatHangsIsCut(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	in := &toyInput{start: func(telegraf.Accumulator) error {
		<-release
		return nil
	}}
	h := launch(t, Options{Inputs: oneInput(in), StopTimeout: 400 * time.Millisecond}, false)
	h.signals <- syscall.SIGTERM
	require.Equal(t, ExitFault, h.wait())
	require.Zero(t, in.stops.Load())
	require.Contains(t, h.stderr.String(), "E! Start of inputs.toy did not return")
}

// A wish to stop that comes during Start is obeyed after it.
func TestSignalDuringStart(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	in := &toyInput{start: func(telegraf.Accumulator) error {
		close(entered)
		<-release
		return nil
	}}
	h := launchInput(t, in)
	<-entered
	h.signals <- syscall.SIGTERM
	close(release)
	require.Equal(t, ExitOK, h.wait())
	require.EqualValues(t, 1, in.stops.Load())
}

func TestGatherThatHangsDoesNotPreventStop(t *testing.T) {
	in := &toyInput{}
	release := make(chan struct{})
	in.gather = func(telegraf.Accumulator) error {
		<-release
		return nil
	}
	in.stop = func() { close(release) }
	h := launch(t, Options{Inputs: oneInput(in), StopTimeout: time.Second}, false)
	h.request()
	eventually(t, "gathering", func() bool { return in.gathers.Load() == 1 })
	require.Equal(t, ExitOK, h.stopByEOF())
	require.EqualValues(t, 1, in.stops.Load())
	require.Equal(t, "W! inputs.toy is still busy, calling its Stop anyway\n", h.stderr.String())
}

func TestFailures(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name  string
		in    *toyInput
		code  int
		stops int32
		log   string
	}{
		{"Init fails", &toyInput{init: func() error { return boom }}, ExitConfig, 0, "E! Init of inputs.toy failed: boom\n"},
		{"Init panics", &toyInput{init: func() error { panic(boom) }}, ExitConfig, 0, "E! Init of inputs.toy failed: plugin panicked: boom | "},
		{"Start fails", &toyInput{start: func(telegraf.Accumulator) error { return boom }}, ExitFault, 0, "E! Start of inputs.toy failed: boom\n"},
		{"Start panics", &toyInput{start: func(telegraf.Accumulator) error { panic(boom) }}, ExitFault, 0, "E! Start of inputs.toy failed: plugin panicked: boom | "},
		{"Gather panics", &toyInput{gather: func(telegraf.Accumulator) error { panic(boom) }}, ExitFault, 1, "E! Stopping inputs.toy: plugin panicked: boom | "},
		{"Stop panics", &toyInput{stop: func() { panic(boom) }, gather: func(telegraf.Accumulator) error { return nil }}, ExitFault, 0, "E! Stop of inputs.toy: plugin panicked: boom | "},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := launch(t, Options{Inputs: oneInput(c.in), Test: 50 * time.Millisecond}, false)
			require.Equal(t, c.code, h.wait())
			require.Equal(t, c.stops, c.in.stops.Load())
			require.Contains(t, h.stderr.String(), c.log)
			require.Equal(t, 1, strings.Count(h.stderr.String(), "\n"))
		})
	}
	t.Run("Gather fails", func(t *testing.T) {
		in := &toyInput{gather: func(telegraf.Accumulator) error { return boom }}
		h := launch(t, Options{Inputs: oneInput(in), SelfInterval: time.Hour}, false)
		h.request()
		eventually(t, "logged", func() bool { return h.stderr.String() == "E! boom\n" })
		require.Equal(t, ExitOK, h.stopByEOF())
		require.Contains(t, h.out.String(), "errors=1i")
		require.Contains(t, h.out.String(), "last_error_age=")
	})
}

func TestGatherOnLineIntervalAndSignal(t *testing.T) {
	emit := func(acc telegraf.Accumulator) error {
		acc.AddFields("m", value(1), nil)
		return nil
	}
	t.Run("line", func(t *testing.T) {
		in := &toyInput{gather: emit}
		h := launchInput(t, in)
		h.request()
		h.eventuallyOut("m value=1i ")
		require.Equal(t, ExitOK, h.stopByEOF())
		require.EqualValues(t, 1, in.gathers.Load())
	})
	t.Run("line longer than any buffer", func(t *testing.T) {
		in := &toyInput{gather: emit}
		h := launchInput(t, in)
		_, err := h.stdin.WriteString(strings.Repeat("x", 200_000) + "\n")
		require.NoError(t, err)
		h.eventuallyOut("m value=1i ")
		require.Equal(t, ExitOK, h.stopByEOF())
	})
	t.Run("interval", func(t *testing.T) {
		in := &toyInput{gather: emit}
		h := launch(t, Options{Inputs: oneInput(in), Interval: time.Hour, ConfigReader: strings.NewReader("[[inputs.toy]]\ninterval = \"1ms\"\n")}, false)
		eventually(t, "three gathers", func() bool { return in.gathers.Load() >= 3 })
		require.Equal(t, ExitOK, h.stopByEOF())
	})
	for _, s := range []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			in := &toyInput{gather: emit}
			h := launchInput(t, in)
			h.signals <- s
			eventually(t, "gathered", func() bool { return in.gathers.Load() == 1 })
			require.Equal(t, ExitOK, h.stopByEOF())
		})
	}
}

func TestGatherNeverOverlaps(t *testing.T) {
	var inside, overlaps atomic.Int32
	in := &toyInput{}
	in.gather = func(telegraf.Accumulator) error {
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
		return nil
	}
	in.stop = func() { overlaps.Add(inside.Load()) }
	h := launch(t, Options{Inputs: oneInput(in), Interval: 100 * time.Microsecond}, false)
	for range 20 {
		h.request()
		h.signals <- syscall.SIGUSR1
	}
	eventually(t, "gathers", func() bool { return in.gathers.Load() > 20 })
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Zero(t, overlaps.Load())
}

func TestHangupBeforeStartIsKeptForLater(t *testing.T) {
	in := &toyReloader{toyInput{reload: func() error { return nil }}}
	in.init = func() error { return syscall.Kill(os.Getpid(), syscall.SIGHUP) } // uncaught, it ends this test
	stdin, end, err := os.Pipe()
	require.NoError(t, err)
	defer stdin.Close()
	code := make(chan int, 1)
	go func() {
		code <- Run(context.Background(), Options{
			Inputs: oneInput(in), ConfigReader: strings.NewReader("[[inputs.toy]]\n"), Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard,
		})
	}()
	eventually(t, "reloaded", func() bool { return in.reloads.Load() == 1 })
	require.NoError(t, end.Close())
	require.Equal(t, ExitOK, <-code)
}

func TestHangupReloads(t *testing.T) {
	var broken atomic.Bool
	in := &toyReloader{toyInput{reload: func() error {
		if broken.Load() {
			return errors.New("no such model")
		}
		return nil
	}}}
	h := launchInput(t, in)
	h.signals <- syscall.SIGHUP
	eventually(t, "reloaded", func() bool { return in.reloads.Load() == 1 })
	broken.Store(true)
	h.signals <- syscall.SIGHUP
	eventually(t, "error", func() bool { return h.stderr.String() == "E! reload failed: no such model\n" })
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Zero(t, in.gathers.Load())
}

// Metrics after Stop are counted, not written, and nobody crashes.
func TestMetricsAfterStop(t *testing.T) {
	in := &toyInput{}
	h := launchInput(t, in)
	eventually(t, "started", func() bool { return in.starts.Load() == 1 })
	require.Equal(t, ExitOK, h.stopByEOF())
	in.acc.AddFields("late", value(1), nil)
	in.acc.AddError(errors.New("late"))
	require.Empty(t, h.out.String())
	require.EqualValues(t, 1, in.acc.(*accumulator).stats.drops[dropStopped].Load())
}

func TestManyGoroutinesEmitWhileStopping(t *testing.T) {
	var emitted atomic.Int64
	in := &toyInput{}
	quit := make(chan struct{})
	var workers sync.WaitGroup
	in.start = func(acc telegraf.Accumulator) error {
		for w := range 8 {
			workers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-quit:
						return
					default:
						acc.AddFields("m", value(i), map[string]string{"w": fmt.Sprint(w)}, time.Unix(0, 1))
						emitted.Add(1)
					}
				}
			})
		}
		return nil
	}
	in.stop = func() {
		close(quit)
		workers.Wait()
	}
	h := launchInput(t, in)
	eventually(t, "emitted", func() bool { return emitted.Load() > 10_000 })
	h.signals <- syscall.SIGTERM
	require.Equal(t, ExitOK, h.wait())
	metrics := h.metrics()
	require.Len(t, metrics, int(emitted.Load()))
	type point struct {
		series uint64
		ns     int64
	}
	seen := map[point]bool{}
	for _, m := range metrics {
		p := point{m.HashID(), m.Time().UnixNano()}
		require.False(t, seen[p])
		seen[p] = true
	}
}

func TestChecklist02_FlushOnIdleAndOnTimer(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		in := &toyInput{start: func(acc telegraf.Accumulator) error {
			acc.AddFields("m", value(1), nil)
			return nil
		}}
		h := launchInput(t, in)
		h.eventuallyOut("m value=1i ") // nothing else asks for a flush
		require.Equal(t, ExitOK, h.stopByEOF())
	})
	t.Run("timer", func(t *testing.T) {
		// A plugin that is never idle and never fills a chunk.
		quit, done := make(chan struct{}), make(chan struct{})
		in := &toyInput{}
		in.start = func(acc telegraf.Accumulator) error {
			go func() {
				defer close(done)
				ticker := time.NewTicker(time.Millisecond)
				defer ticker.Stop()
				for i := 0; ; i++ {
					select {
					case <-quit:
						return
					case <-ticker.C:
						acc.AddFields("m", value(i), nil)
					}
				}
			}()
			return nil
		}
		in.stop = func() {
			close(quit)
			<-done
		}
		h := launchInput(t, in)
		h.eventuallyOut("m value=0i ")
		begin := time.Now()
		n := len(h.out.String())
		eventually(t, "more", func() bool { return len(h.out.String()) > n })
		require.Less(t, time.Since(begin), 5*flushInterval)
		require.Equal(t, ExitOK, h.stopByEOF())
	})
}

// writes records the sizes of the writes it gets.
type writes struct {
	mu    sync.Mutex
	sizes []int
}

func (w *writes) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sizes = append(w.sizes, len(b))
	return len(b), nil
}

func TestChecklist02_OutputIsBuffered(t *testing.T) {
	const n = 10_000
	in := &toyInput{start: func(acc telegraf.Accumulator) error {
		for i := range n {
			acc.AddFields("m", value(i), nil)
		}
		return nil
	}}
	var out writes
	stdin, w := io.Pipe()
	w.Close()
	require.Equal(t, ExitOK, Run(t.Context(), Options{Inputs: oneInput(in), Stdin: stdin, Stdout: &out, Stderr: &buffer{}, SelfInterval: -1}))
	require.Less(t, len(out.sizes), n/100)
	for _, size := range out.sizes {
		require.LessOrEqual(t, size, chunkSize)
	}
}

// Nobody reads: the plugin goes on after StallTimeout, and each lost metric is
// counted.
func TestStalledReaderCostsMetricsNotThePlugin(t *testing.T) {
	const n = 20_000
	in := &toyInput{}
	emitted := make(chan struct{})
	in.start = func(acc telegraf.Accumulator) error {
		for i := range n {
			acc.AddFields("m", map[string]interface{}{"v": strings.Repeat("x", 100), "i": i}, nil)
		}
		close(emitted)
		return nil
	}
	h := launch(t, Options{
		Inputs: oneInput(in), QueueSize: 1 << 16, StallTimeout: 20 * time.Millisecond, SelfInterval: time.Hour,
	}, true)
	select {
	case <-emitted:
	case <-time.After(longTime):
		require.FailNow(t, "plugin hangs")
	}
	// Now somebody reads again.
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(h.stdout)
		got <- string(b)
	}()
	eventually(t, "room", func() bool {
		return in.acc.(*accumulator).queue.size() == 0
	})
	require.NoError(t, h.stdin.Close())
	require.Equal(t, ExitOK, h.wait())
	text := <-got
	written, dropped := 0, int64(0)
	for _, m := range parseLines(t, text) {
		switch {
		case m.Name() == "m":
			written++
		case m.Tags()["reason"] == "queue_full":
			v, _ := m.GetField("dropped")
			dropped = v.(int64)
		}
	}
	require.Positive(t, dropped)
	require.EqualValues(t, n, int64(written)+dropped)
}

// A slow reader costs time, not metrics.
func TestSlowReaderLosesNothing(t *testing.T) {
	const n = 20_000
	in := &toyInput{start: func(acc telegraf.Accumulator) error {
		for i := range n {
			acc.AddFields("m", value(i), nil)
		}
		return nil
	}}
	h := launch(t, Options{Inputs: oneInput(in), QueueSize: 1 << 12}, true)
	got := make(chan string)
	go func() {
		var text strings.Builder
		buf := make([]byte, 16<<10)
		for {
			k, err := h.stdout.Read(buf)
			text.Write(buf[:k])
			if err != nil {
				got <- text.String()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	eventually(t, "started", func() bool { return in.starts.Load() == 1 })
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Len(t, parseLines(t, <-got), n)
}

// A processor passes back-pressure on instead of dropping.
func TestProcessorPassesBackPressureOn(t *testing.T) {
	const n = 5_000
	p := &toyProcessor{}
	h := launch(t, Options{Processors: oneProcessor(p), QueueSize: 1 << 12, StallTimeout: time.Millisecond}, true)
	fed := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil; i++ {
			_, err = fmt.Fprintf(h.stdin, "m v=%di,pad=\"%0100d\" %d\n", i, i, i)
		}
		fed <- err
	}()
	var last int32
	eventually(t, "processor stops reading", func() bool {
		now := p.adds.Load()
		stopped := now > 100 && now == last
		last = now
		time.Sleep(20 * time.Millisecond)
		return stopped
	})
	require.Less(t, p.adds.Load(), int32(n))
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(h.stdout)
		got <- string(b)
	}()
	require.NoError(t, <-fed)
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Len(t, parseLines(t, <-got), n)
}

// With nobody reading at the end, the stop budget holds and the loss is told.
func TestUnreadOutputAtTheEnd(t *testing.T) {
	in := &toyInput{start: func(acc telegraf.Accumulator) error {
		for i := range 3_000 {
			acc.AddFields("m", value(strings.Repeat("x", 100)), map[string]string{"i": fmt.Sprint(i)})
		}
		return nil
	}}
	h := launch(t, Options{Inputs: oneInput(in), StopTimeout: 300 * time.Millisecond}, true)
	eventually(t, "started", func() bool { return in.starts.Load() == 1 })
	begin := time.Now()
	require.Equal(t, ExitFault, h.stopByEOF())
	require.Less(t, time.Since(begin), 2*time.Second)
	require.Contains(t, h.stderr.String(), "E! Nobody reads the output")
}

// execd closes its end as soon as the child is gone, so Run must not return
// while something is left in the pipe.
func TestChecklist06_DrainWaitsForTheReader(t *testing.T) {
	in := &toyInput{}
	in.stop = func() { in.acc.AddFields("last", value(1), nil) }
	h := launch(t, Options{Inputs: oneInput(in), StopTimeout: longTime}, true)
	require.NoError(t, h.stdin.Close())
	eventually(t, "stopped", func() bool { return in.stops.Load() == 1 })
	select {
	case code := <-h.code:
		require.Fail(t, "returned before its output was read", "code %d", code)
	case <-time.After(100 * time.Millisecond):
	}
	buf := make([]byte, 4096)
	n, err := h.stdout.Read(buf)
	require.NoError(t, err)
	require.Contains(t, string(buf[:n]), "last value=1i ")
	require.Equal(t, ExitOK, h.wait())
}

func TestDrainEndsWithTheReader(t *testing.T) {
	in := &toyInput{}
	in.stop = func() { in.acc.AddFields("last", value(1), nil) }
	h := launch(t, Options{Inputs: oneInput(in), StopTimeout: longTime}, true)
	require.NoError(t, h.stdin.Close())
	eventually(t, "stopped", func() bool { return in.stops.Load() == 1 })
	require.NoError(t, h.stdout.Close())
	begin := time.Now()
	h.wait()
	require.Less(t, time.Since(begin), longTime/2)
}

func TestTracking(t *testing.T) {
	in := &toyInput{}
	h := launchInput(t, in)
	eventually(t, "started", func() bool { return in.starts.Load() == 1 })
	acc := in.acc.WithTracking(2)
	m := metric.New("m", nil, value(1), time.Unix(0, 1))
	id := acc.AddTrackingMetric(m)
	info := <-acc.Delivered()
	require.Equal(t, id, info.ID())
	require.True(t, info.Delivered())
	id = acc.AddTrackingMetricGroup([]telegraf.Metric{metric.New("m", nil, nil, time.Unix(0, 1)), metric.New("m", nil, value(2), time.Unix(0, 2))})
	info = <-acc.Delivered()
	require.Equal(t, id, info.ID())
	require.False(t, info.Delivered())
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Equal(t, "m value=1i 1\nm value=2i 2\n", h.out.String())
}

func TestPrecision(t *testing.T) {
	h := launchInput(t, &toyInput{start: func(acc telegraf.Accumulator) error {
		acc.SetPrecision(time.Second)
		acc.AddFields("m", value(1), nil, time.Unix(1, 600_000_000))
		acc.AddMetric(metric.New("m", nil, value(2), time.Unix(3, 400_000_000)))
		return nil
	}})
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Equal(t, "m value=1i 2000000000\nm value=2i 3000000000\n", h.out.String())
}

func TestChecklist08_SelfMetrics(t *testing.T) {
	in := &toyInput{}
	in.start = func(acc telegraf.Accumulator) error {
		acc.AddFields("m", value(1), nil, time.Unix(0, 1))
		acc.AddFields("m", value(1), nil, time.Unix(0, 1))
		acc.AddFields("none", nil, nil)
		acc.AddError(errors.New("boom"))
		return nil
	}
	now := time.Unix(1000, 0)
	h := launch(t, Options{
		Inputs: oneInput(in), SelfInterval: time.Hour, Now: func() time.Time { return now },
		ConfigReader: strings.NewReader("[[inputs.toy]]\nalias = \"east\"\n"),
	}, false)
	require.Equal(t, ExitOK, h.stopByEOF())
	metrics := h.metrics()
	require.Len(t, metrics, 4)
	self := metrics[2]
	require.Equal(t, "agp_runner", self.Name())
	require.Equal(t, map[string]string{"plugin": "inputs.toy", "alias": "east"}, self.Tags())
	require.Equal(t, map[string]interface{}{
		"metrics_emitted": int64(2), "bytes_emitted": int64(26), "metrics_dropped": int64(1), "serialize_errors": int64(1),
		"timestamps_adjusted": int64(1), "integers_wrapped": int64(0), "gathers": int64(0), "errors": int64(1),
		"log_lines_suppressed": int64(0), "queue_bytes": self.Fields()["queue_bytes"], "last_error_age": 0.0,
	}, self.Fields())
	require.Equal(t, "no_fields", metrics[3].Tags()["reason"])
	require.Equal(t, map[string]interface{}{"dropped": int64(1)}, metrics[3].Fields())
}

func TestSelfMetricsComeInIntervals(t *testing.T) {
	h := launch(t, Options{Inputs: oneInput(&toyInput{}), SelfInterval: 5 * time.Millisecond}, false)
	eventually(t, "three", func() bool { return strings.Count(h.out.String(), "agp_runner,") >= 3 })
	require.Equal(t, ExitOK, h.stopByEOF())
}
