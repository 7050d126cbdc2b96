package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
)

// The tests of this file carry the numbers of ten faults of telegraf's own shim
// (plugins/common/shim, v1.37.2) that this package was written to avoid. Tests
// named TestChecklist, here and in tests/e2e, carry the numbers of what a runner
// must do instead: 1 configuration, 2 buffering, 3 values, 4 log, 5 stopping, 6
// order of a processor's end, 7 children, 8 own metrics, 9 both ways to run a
// plugin, 10 end to end.

// The shim runs one of several sections, silently.
func TestDefect01_SecondSectionIsRefused(t *testing.T) {
	o := Options{Inputs: oneInput(&toyInput{}), Processors: oneProcessor(&toyProcessor{})}
	for name, file := range map[string]string{
		"input and processor": "[[inputs.toy]]\n[[processors.toy]]\n",
		"two inputs":          "[[inputs.toy]]\n[[inputs.toy]]\n",
	} {
		t.Run(name, func(t *testing.T) {
			o.ConfigReader = strings.NewReader(file)
			h := launch(t, o, false)
			require.Equal(t, ExitConfig, h.wait())
			require.Contains(t, h.stderr.String(), "E! configuration: line 2: a second section")
			require.Contains(t, h.stderr.String(), "one execd section per file")
		})
	}
}

// The shim ignores unknown keys.
func TestDefect02_UnknownKeyIsRefusedWithNameAndLine(t *testing.T) {
	h := launch(t, Options{
		Config:       "agp.conf",
		ConfigReader: strings.NewReader("# comment\n[[inputs.toy]]\n  text = \"a\"\n  txet = \"b\"\n"),
		Inputs:       oneInput(&toyInput{}),
	}, false)
	require.Equal(t, ExitConfig, h.wait())
	require.Equal(t, "E! agp.conf: line 4: unknown key \"txet\" in [[inputs.toy]]\n", h.stderr.String())
}

// The shim deadlocks when Start emits more than one metric.
func TestDefect03_StartMayEmitBeforeReturn(t *testing.T) {
	const n = 1000
	h := launchInput(t, &toyInput{start: func(acc telegraf.Accumulator) error {
		for i := range n {
			acc.AddFields("m", value(i), nil)
		}
		return nil
	}})
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Len(t, h.metrics(), n)
}

// The shim exits without Stop after a metric that has no serialisable field.
func TestDefect04_UnserialisableMetricIsSkippedAndCounted(t *testing.T) {
	in := &toyInput{}
	in.gather = func(acc telegraf.Accumulator) error {
		acc.AddFields("bad", value(math.NaN()), nil)
		acc.AddFields("good", map[string]interface{}{"nan": math.Inf(1), "v": 1}, nil)
		return nil
	}
	h := launch(t, Options{Inputs: oneInput(in), SelfInterval: time.Hour}, false)
	h.request()
	h.eventuallyOut("good v=1i ")
	require.Zero(t, in.stops.Load())
	require.Equal(t, ExitOK, h.stopByEOF())
	require.EqualValues(t, 1, in.stops.Load())
	require.NotContains(t, h.out.String(), "bad")
	require.Regexp(t, `agp_runner,plugin=inputs.toy,reason=no_fields dropped=1i \d+\n`, h.out.String())
	require.Regexp(t, `agp_runner,plugin=inputs.toy,reason=field_not_finite dropped=2i \d+\n`, h.out.String())
	require.Contains(t, h.out.String(), "serialize_errors=3i")
}

// The shim dies of SIGPIPE without Stop when telegraf closes the pipe.
func TestDefect05_ClosedStdoutStopsThePlugin(t *testing.T) {
	in := &toyInput{}
	in.gather = func(acc telegraf.Accumulator) error {
		acc.AddFields("m", value(1), nil)
		return nil
	}
	h := launch(t, Options{Inputs: oneInput(in), Interval: time.Millisecond}, true)
	require.NoError(t, h.stdout.Close())
	require.Equal(t, ExitFault, h.wait())
	require.EqualValues(t, 1, in.stops.Load())
	require.Contains(t, h.stderr.String(), "E! Stopping inputs.toy: standard output failed")
}

// The shim prints times before its levels, so execd takes every line for an
// error.
func TestDefect06_LogLinesStartWithTheirLevel(t *testing.T) {
	in := &toyInput{}
	in.start = func(telegraf.Accumulator) error {
		in.Log.Info("plain")
		in.Log.Warnf("two\nlines %d", 2)
		in.Log.Errorf("error")
		in.Log.Debug("below the level")
		return nil
	}
	h := launchInput(t, in)
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Equal(t, "I! plain\nW! two | lines 2\nE! error\n", h.stderr.String())
	require.Empty(t, h.out.String())
}

// The shim keeps every log line in memory, printed or not.
func TestDefect07_LoggingDoesNotGrowMemory(t *testing.T) {
	in := &toyInput{}
	h := launchInput(t, in)
	eventually(t, "started", func() bool { return in.starts.Load() == 1 })
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 200_000 {
		in.Log.Debugf("line %d", i)
	}
	for i := range 200_000 {
		in.Log.Info("line ", i)
	}
	require.Less(t, int64(heap())-int64(before), int64(1<<20))
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Less(t, len(h.stderr.String()), 1<<20)
}

// The shim closes its channel before Stop, so a processor that flushes panics.
func TestDefect08_ProcessorMayEmitInStop(t *testing.T) {
	var kept []telegraf.Metric
	p := &toyProcessor{
		add: func(m telegraf.Metric, _ telegraf.Accumulator) error {
			kept = append(kept, m)
			return nil
		},
		stop: func(acc telegraf.Accumulator) {
			for _, m := range kept {
				acc.AddMetric(m)
			}
		},
	}
	h := launchProcessor(t, p)
	_, err := h.stdin.WriteString("m v=1i 1\nm v=2i 2\n")
	require.NoError(t, err)
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Equal(t, "m v=1i 1\nm v=2i 2\n", h.out.String())
}

// The shim's processor has no signal handler, breaks its own error lines and
// spins on a read error.
func TestDefect09_ProcessorHandlesSignalsAndReadErrors(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			p := &toyProcessor{}
			h := launchProcessor(t, p)
			_, err := h.stdin.WriteString("m v=1i 1\n")
			require.NoError(t, err)
			eventually(t, "metric arrived", func() bool { return p.adds.Load() == 1 })
			h.signals <- s
			require.Equal(t, ExitOK, h.wait())
			require.EqualValues(t, 1, p.stops.Load())
			require.Equal(t, "m v=1i 1\n", h.out.String())
		})
	}
	t.Run("bad line", func(t *testing.T) {
		h := launchProcessor(t, &toyProcessor{})
		_, err := h.stdin.WriteString("m v=1i 1\nnonsense\nm v=2i 2\n")
		require.NoError(t, err)
		require.Equal(t, ExitOK, h.stopByEOF())
		require.Equal(t, "m v=1i 1\nm v=2i 2\n", h.out.String())
		require.Regexp(t, regexp.MustCompile(`^E! Cannot parse metric: [^\n]*\n$`), h.stderr.String())
	})
	t.Run("failing Add", func(t *testing.T) {
		h := launchProcessor(t, &toyProcessor{add: func(telegraf.Metric, telegraf.Accumulator) error { return errors.New("no") }})
		_, err := h.stdin.WriteString("m v=1i 1\n")
		require.NoError(t, err)
		require.Equal(t, ExitOK, h.stopByEOF())
		require.Equal(t, "E! no\n", h.stderr.String())
	})
	t.Run("read error", func(t *testing.T) {
		p := &toyProcessor{}
		var stderr buffer
		code := Run(t.Context(), Options{
			Processors: oneProcessor(p), Stdin: failingReader{}, Stdout: &buffer{}, Stderr: &stderr, Signals: make(chan os.Signal), SelfInterval: -1,
		})
		require.Equal(t, ExitFault, code)
		require.EqualValues(t, 1, p.stops.Load())
		require.Equal(t, "E! Stopping processors.toy: reading standard input: broken\n", stderr.String())
	})
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// The shim clamps unsigned integers above 2^63-1, so a counter sticks.
func TestDefect10_UnsignedIntegers(t *testing.T) {
	h := launchInput(t, &toyInput{start: func(acc telegraf.Accumulator) error {
		at := time.Unix(0, 1)
		acc.AddFields("small", value(uint64(7)), nil, at)
		acc.AddFields("largest", value(uint64(math.MaxInt64)), nil, at)
		acc.AddCounter("counter", value(uint64(1<<63+5)), nil, at)
		acc.AddGauge("gauge", value(uint64(1<<63+5)), nil, at)
		m := metric.New("metric", nil, value(uint64(1<<63+6)), at, telegraf.Counter)
		acc.AddMetric(m)
		return nil
	}})
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Equal(t, strings.Join([]string{
		"small value=7i 1",
		"largest value=9223372036854775807i 1",
		"counter value=5i 1",
		"gauge value=9223372036854775807i 1",
		"metric value=6i 1", "",
	}, "\n"), h.out.String())
}

// The same faults that need a real process: SIGPIPE and signals of the kernel.

func TestMain(m *testing.M) {
	if os.Getenv("AGP_RUNNER_CHILD") != "" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

// child is the test binary in the role of a plugin process. It leaves a file
// when its plugin was stopped.
func child() int {
	in := &toyInput{stop: func() { _ = os.WriteFile(os.Getenv("AGP_RUNNER_CHILD"), []byte("stopped"), 0o600) }}
	in.start = func(acc telegraf.Accumulator) error {
		in.Log.Info("started")
		return nil
	}
	in.gather = func(acc telegraf.Accumulator) error {
		acc.AddFields("m", value(1), nil)
		return nil
	}
	if os.Getenv("AGP_RUNNER_HANG") != "" {
		in.stop = func() { select {} }
	}
	return Run(context.Background(), Options{Inputs: oneInput(in), Interval: time.Millisecond})
}

func startChild(t *testing.T, env ...string) (cmd *exec.Cmd, marker string) {
	t.Helper()
	marker = filepath.Join(t.TempDir(), "stopped")
	cmd = exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(append(os.Environ(), "AGP_RUNNER_CHILD="+marker), env...)
	t.Cleanup(func() {
		if cmd.ProcessState == nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd, marker
}

func TestDefect05_ProcessSurvivesSIGPIPE(t *testing.T) {
	cmd, marker := startChild(t)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = stdout.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, stdout.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, ExitFault, exit.ExitCode())
	require.FileExists(t, marker)
}

func TestSignalsOfTheProcess(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			cmd, marker := startChild(t)
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			defer stdin.Close()
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = stdout.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, cmd.Process.Signal(s))
			go func() { _, _ = io.Copy(io.Discard, stdout) }()
			state, err := cmd.Process.Wait()
			require.NoError(t, err)
			require.Equal(t, ExitOK, state.ExitCode())
			require.FileExists(t, marker)
		})
	}
	t.Run("second signal", func(t *testing.T) {
		cmd, _ := startChild(t, "AGP_RUNNER_HANG=1")
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		defer stdin.Close()
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = stdout.Read(make([]byte, 1))
		require.NoError(t, err)
		begin := time.Now()
		exited := make(chan *os.ProcessState, 1)
		go func() {
			state, _ := cmd.Process.Wait()
			exited <- state
		}()
		// The kernel merges equal pending signals, so repeat until it is gone.
		var state *os.ProcessState
		for state == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			select {
			case state = <-exited:
			case <-time.After(20 * time.Millisecond):
			}
		}
		require.Equal(t, 128+int(syscall.SIGTERM), state.ExitCode(), fmt.Sprint(state))
		require.Less(t, time.Since(begin), 3*time.Second)
	})
}
