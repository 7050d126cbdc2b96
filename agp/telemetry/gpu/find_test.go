//go:build linux && (amd64 || arm64)

package gpu

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestNoLibraryIsNoFault(t *testing.T) {
	_, err := find([]string{filepath.Join(t.TempDir(), "libnvidia-ml.so.1")})
	require.ErrorIs(t, err, ErrAbsent)
	_, err = find(nil)
	require.ErrorIs(t, err, ErrAbsent)
}

func TestLibraryThatIsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	_, err := find([]string{path})
	require.ErrorIs(t, err, ErrAbsent)
	require.ErrorContains(t, err, "libnvidia-ml.so.1: ")
	_, err = find([]string{"libc.so.6"})
	require.ErrorIs(t, err, ErrAbsent)
	require.ErrorContains(t, err, "libc.so.6 lacks nvmlInit_v2")
}

// TestLive reads the GPUs of this machine.
func TestLive(t *testing.T) {
	r, err := Open(Options{})
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	require.NoError(t, err)
	var s telemetry.Snapshot
	r.Read(&s)
	require.NotEmpty(t, s.GPUs)
	for _, g := range s.GPUs {
		text, err := json.Marshal(g)
		require.NoError(t, err)
		t.Logf("%s", text)
		require.NotEmpty(t, g.Name)
		require.False(t, g.Lost)
		require.NotNil(t, g.MemoryTotalBytes)
	}
	uuid := s.GPUs[0].UUID
	require.NoError(t, r.Close())

	r, err = Open(Options{UUIDs: []string{uuid}})
	require.NoError(t, err)
	s.Reset()
	r.Read(&s)
	require.Len(t, s.GPUs, 1)
	require.NoError(t, r.Close())
	_, err = Open(Options{UUIDs: []string{"GPU-none"}})
	require.Error(t, err)
}
