package supervise

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// TestAGPUThatFailsIsLeftAlone: three engines in a row, then the breaks grow; an engine that lives
// with the GPU makes all of it undone.
func TestAGPUThatFailsIsLeftAlone(t *testing.T) {
	var g gpuHealth
	now := time.Unix(1e9, 0)
	bad := errors.New("engine failed: the kernel does not stop")
	require.Zero(t, g.failed(bad, now))
	require.Zero(t, g.failed(bad, now))
	require.Empty(t, g.verdict(now))
	require.Equal(t, 10*time.Minute, g.failed(bad, now))
	require.Equal(t, "3 engines in a row failed with the GPU, the last one: engine failed: the kernel does not stop; "+
		"an engine that starts after 2001-09-09T01:56:40Z tries it again", g.verdict(now.Add(9*time.Minute)))
	now = now.Add(10 * time.Minute)
	require.Empty(t, g.verdict(now), "it is tried again")
	require.Equal(t, 20*time.Minute, g.failed(bad, now), "once is enough now")
	for range 10 {
		g.failed(bad, now)
	}
	require.Equal(t, 24*time.Hour, g.failed(bad, now))
	g.worked()
	require.Empty(t, g.verdict(now))
	require.Zero(t, g.failed(bad, now))
}

// TestWhatTheGPUIsBlamedFor: what the engine says, and an end without a word of one that used the
// GPU or was looking for one.
func TestWhatTheGPUIsBlamedFor(t *testing.T) {
	died, silent, failed := fmt.Errorf("%w: signal: killed", ErrDied), fmt.Errorf("%w: 20s", ErrSilent), fmt.Errorf("%w: if0 is gone", ErrFailed)
	require.True(t, blamed("cuda", true, gpuFault{failed}))
	require.True(t, blamed("cuda", true, died))
	require.True(t, blamed("cuda", true, silent))
	require.False(t, blamed("cuda", true, failed), "it says that it is something else")
	require.False(t, blamed("cpu", true, died))
	require.True(t, blamed("", true, silent), "a driver that hangs")
	require.False(t, blamed("", false, died), "it was told to leave the GPU alone")
	require.False(t, blamed("", true, fmt.Errorf("%w: no such file", ErrStart)))
	require.False(t, blamed("cuda", true, nil))
}

// TestAfterThreeGPUFailuresAnEngineUsesTheCPU and says why, and telegraf is told all the way; with
// "cuda" there is no way out, and the reason stands in the status.
func TestAfterThreeGPUFailuresAnEngineUsesTheCPU(t *testing.T) {
	for _, how := range []string{"gpu-fails", "gpu-dies"} {
		t.Run(how, func(t *testing.T) {
			s, _, l := start(t, how, func(c *Config) { c.Configure.Pipeline = "auto" })
			var snap telemetry.Snapshot
			eventually(t, "an engine on the CPU", func() bool {
				st := s.Snapshot(&snap)
				return st.Up && snap.Engine.Pipeline == "cpu" && st.Restarts == 3
			})
			require.Contains(t, snap.Engine.PipelineReason, "3 engines in a row failed with the GPU, the last one: engine ")
			require.Contains(t, l.loud(), "W! The GPU has failed 3 engines in a row: the next ones use the CPU, for 10m0s at least")
			require.Len(t, l.loud(), 4, "one line for each end")
		})
	}
	s, _, _ := start(t, "gpu-fails", func(c *Config) { c.Configure.Pipeline = "cuda" })
	eventually(t, "it goes on trying", func() bool { return s.Status().Restarts >= 5 })
	require.Contains(t, s.Status().LastError, "engine failed: the GPU has failed: XID 48")
}
