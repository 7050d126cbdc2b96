package engine

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/gpu"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// The test binary is the engine when this variable is set.
const childEnv = "AGP_TEST_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	if Main(context.Background(), "test", Build) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// needGPU skips the test where there is no GPU.
func needGPU(t *testing.T) {
	t.Helper()
	_, err := driver.Open()
	if errors.Is(err, driver.ErrNoDriver) || errors.Is(err, driver.NoDevice) {
		t.Skipf("no GPU: %v", err)
	}
	require.NoError(t, err)
}

// TestLiveAutoTakesTheGPU of this machine and gives the records of the CPU, with readings of it.
func TestLiveAutoTakesTheGPU(t *testing.T) {
	needGPU(t)
	path := synthetic(t, traffic.Bench(3, 200_000, 9000))
	run := func(pipeline string) ([]string, telemetry.Snapshot, *Built) {
		cfg := onGPUs(pipeline, path)
		cfg.MaxFlows, cfg.Queues = 1<<18, 0
		s := &sink{}
		b, err := Build(cfg, s, (&lines{}).log)
		require.NoError(t, err)
		t.Logf("%s: %s, %d queues", b.Kind, b.Why, b.Queues)
		began := time.Now()
		require.NoError(t, b.Pipeline.Run(context.Background()))
		t.Logf("%v", time.Since(began))
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		if b.GPU != nil {
			b.GPU(&snap)
		}
		require.NoError(t, b.Close())
		require.Zero(t, snap.Missing())
		return comparable(s), snap, b
	}
	want, _, _ := run("cpu")
	got, snap, b := run("auto")
	require.Equal(t, "cuda", b.Kind, b.Why)
	require.Contains(t, b.Why, ", the first that suffices")
	require.Equal(t, want, got)
	require.Len(t, snap.GPUs, 1)
	g := &snap.GPUs[0]
	require.EqualValues(t, b.Queues, *g.EngineSMs)
	require.NotZero(t, *g.EngineWarps)
	require.Contains(t, b.Why, g.Name)
	if g.PowerMilliwatts != nil {
		t.Logf("%s: %.1f W, %d warps on %d SMs", g.UUID, float64(*g.PowerMilliwatts)/1000, *g.EngineWarps, *g.EngineSMs)
	}
}

// TestLiveAKilledEngineFreesTheGPU: kill -9 while the kernel runs; NVML counts as many processes as
// before, the supervisor starts another engine, and that runs on the GPU again.
func TestLiveAKilledEngineFreesTheGPU(t *testing.T) {
	needGPU(t)
	reader, err := gpu.Open(gpu.Options{Interval: 100 * time.Millisecond})
	if errors.Is(err, gpu.ErrAbsent) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer reader.Close()
	processes := func() (n uint64) {
		var s telemetry.Snapshot
		reader.Read(&s)
		for i := range s.GPUs {
			if p := s.GPUs[i].Processes; p != nil {
				n += *p
			}
		}
		return n
	}
	before := processes()
	cfg := onGPUs("auto", writeCapture(t, 600))
	cfg.Source.Speed, cfg.Queues, cfg.MaxFlows = 1, 0, 1<<18
	log := &supervisorLog{t: t}
	s, err := supervise.New(supervise.Config{
		Command: []string{os.Args[0]}, Env: []string{childEnv + "=1"}, Configure: cfg, Handler: ignore{}, Log: log,
		Backoff: supervise.Backoff{Min: 3 * time.Second, Max: 3 * time.Second},
	})
	require.NoError(t, err)
	s.Start()
	defer s.Stop()
	var snap telemetry.Snapshot
	running := func(restarts uint64) func() bool {
		return func() bool {
			st := s.Snapshot(&snap)
			return st.Up && st.Restarts == restarts && snap.Engine.PacketsSeen > 0 && len(snap.GPUs) == 1
		}
	}
	require.Eventually(t, running(0), time.Minute, 10*time.Millisecond)
	require.Equal(t, "cuda", snap.Engine.Pipeline, snap.Engine.PipelineReason)
	require.Eventually(t, func() bool { return processes() == before+1 }, 10*time.Second, 10*time.Millisecond, "NVML sees it")
	killed := time.Now()
	require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return processes() == before }, 3*time.Second, 10*time.Millisecond, "its process is gone from the GPU")
	t.Logf("free %v after kill -9", time.Since(killed))
	require.Eventually(t, running(1), time.Minute, 10*time.Millisecond)
	require.Equal(t, "cuda", snap.Engine.Pipeline, snap.Engine.PipelineReason)
	require.True(t, strings.HasPrefix(s.Status().LastError, "engine died: signal: killed"), s.Status().LastError)
}

type ignore struct{}

func (ignore) Record(*telemetry.Record) {}
func (ignore) Alert(*telemetry.Alert)   {}

// supervisorLog is the log of a supervisor in that of a test.
type supervisorLog struct{ t *testing.T }

func (l *supervisorLog) Errorf(format string, args ...any) { l.t.Logf("E! "+format, args...) }
func (l *supervisorLog) Warnf(format string, args ...any)  { l.t.Logf("W! "+format, args...) }
func (l *supervisorLog) Infof(format string, args ...any)  { l.t.Logf("I! "+format, args...) }
func (l *supervisorLog) Debugf(format string, args ...any) { l.t.Logf("D! "+format, args...) }
