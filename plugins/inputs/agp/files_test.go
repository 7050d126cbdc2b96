package agp

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNamedPipeIsNotOpenedByInit(t *testing.T) {
	a := plugin(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	a.Files = []string{pipe}
	done := make(chan error, 1)
	go func() { done <- a.Init() }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "Init waits for a writer")
	}
}

func TestPatternLeavesOutWhatCannotBeReadWithOneWarning(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "a.pcap")
	require.NoError(t, os.WriteFile(good, nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "b.pcap"), 0o700))
	require.NoError(t, os.Symlink("/does/not/exist", filepath.Join(dir, "c.pcap")))
	var warnings []string
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	got, err := expand([]string{filepath.Join(dir, "*.pcap")}, warn)
	require.NoError(t, err)
	require.Equal(t, []string{good}, got)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "b.pcap: is a folder")
	require.Contains(t, warnings[0], "c.pcap: no such file")

	_, err = expand([]string{filepath.Join(dir, "[bc].pcap")}, warn)
	require.ErrorIs(t, err, ErrConfig)
	require.ErrorContains(t, err, "allowed: a pattern that matches a readable file (")
	require.ErrorContains(t, err, "b.pcap: is a folder")
	require.Len(t, warnings, 1, "an error needs no warning")
}

func TestWhatStartsTheEngineAndThresholdsSayWhatIsAllowed(t *testing.T) {
	a := plugin(t)
	a.EngineCommand = []string{"/no/such/program"}
	require.ErrorContains(t, a.Init(), "allowed: a program that can be started")
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		a = plugin(t)
		a.Detect = map[string]float64{"port_scan": v}
		require.ErrorContains(t, a.Init(), "allowed are finite numbers")
	}
}
