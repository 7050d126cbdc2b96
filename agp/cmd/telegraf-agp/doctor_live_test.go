package main

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/agp/steer/port"
)

func TestDoctorSaysWhatTheKernelHasForLiveCapture(t *testing.T) {
	have := steer.Feature{Name: "tc programs", Use: "mirror", Required: true}
	f := kernelFeatures([]steer.Feature{have})
	require.Equal(t, finding{levelOK, "live capture", "tc programs", ""}, f)

	lack := &steer.UnsupportedError{Feature: "tcx", Err: errors.New("no")}
	f = kernelFeatures([]steer.Feature{have, {Name: "tcx", Use: "mirror", Err: lack}})
	require.Equal(t, levelWarn, f.level)
	require.Equal(t, "without tcx (mirror)", f.hint)

	f = kernelFeatures([]steer.Feature{{Name: "ring buffers", Use: "mirror", Required: true, Err: lack}})
	require.Contains(t, f.hint, "AF_PACKET")

	f = kernelFeatures([]steer.Feature{{Name: "tcx", Err: &steer.PermissionError{Capability: "CAP_BPF", Err: errors.New("no")}}})
	require.Equal(t, levelWarn, f.level)
	require.Contains(t, f.hint, "CAP_BPF")
}

func TestDoctorJudgesTheLimitOfLockedMemory(t *testing.T) {
	require.Equal(t, levelWarn, memlock(8<<20, false).level)
	require.Equal(t, levelOK, memlock(8<<20, true).level)
	require.Equal(t, "unlimited", memlock(math.MaxUint64, false).found)
	require.Equal(t, levelOK, memlock(64<<20, false).level)
}

func TestDoctorDescribesAnInterface(t *testing.T) {
	list := interfaceFindings("no-such-if")
	require.Len(t, list, 1)
	require.Equal(t, levelMissing, list[0].level)

	var text []string
	for _, f := range interfaceFindings("lo") {
		text = append(text, f.found)
	}
	require.Contains(t, strings.Join(text, "\n"), "lo: driver")

	f := xdpFinding("eth9", port.XDP{Native: true, Redirect: true, ZeroCopy: true})
	require.Equal(t, "eth9: native, redirect, zero copy", f.found)
	require.Equal(t, levelWarn, xdpFinding("eth9", port.XDP{}).level)
}
