//go:build linux && (amd64 || arm64)

package gpu

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/testcap"
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

// TestArgumentsArriveAsTheLibraryHasThem reads a library of C.
func TestArgumentsArriveAsTheLibraryHasThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	out, err := exec.Command(testcap.Program(t, "gcc"), "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, "testdata/nvml.c").CombinedOutput() //nolint:gosec // a compiler
	require.NoError(t, err, "%s", out)
	lib, err := find([]string{filepath.Join(t.TempDir(), "absent.so"), path})
	require.NoError(t, err)
	require.Equal(t, "Not Supported", lib.ErrorString(notSupported))
	_, err = open(lib, Options{UUIDs: []string{"GPU-2"}})
	require.ErrorContains(t, err, "NVML: GPU-2: other")

	r, err := open(lib, Options{UUIDs: []string{"GPU-1"}, Interval: time.Hour})
	require.NoError(t, err)
	r.pid = 1069
	r.sample()
	var s telemetry.Snapshot
	r.Read(&s)
	require.Equal(t, []telemetry.GPURow{{
		Index: 4, UUID: "GPU-1", Name: "GPU in 96", PowerMilliwatts: new(uint64(81000)), EnergyMillijoules: new(uint64(1 << 40)), SMClockMHz: new(uint64(1000)),
		MemoryClockMHz: new(uint64(2000)), MemoryUsedBytes: new(uint64(10)), MemoryTotalBytes: new(uint64(30)), PCIeRXBytesPerSecond: new(uint64(6000)),
		PCIeTXBytesPerSecond: new(uint64(5000)), UtilizationPercent: new(uint64(99)), TemperatureCelsius: new(uint64(40)), EccCorrected: new(uint64(100)),
		EccUncorrected: new(uint64(110)), XidErrors: new(uint64(2)), LastXid: new(uint64(31)), Processes: new(uint64(70)), EngineMemoryBytes: new(uint64(1<<33 | 69)),
	}}, s.GPUs)
	require.NoError(t, r.Close())

	all, err := open(lib, Options{Interval: time.Hour})
	require.NoError(t, err)
	s.Reset()
	all.Read(&s)
	require.Len(t, s.GPUs, 1)
	require.NoError(t, all.Close())
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
