package engine

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/source/afxdp"
	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

func TestRestoreHasNothingToDoWithoutJournalsAndFilters(t *testing.T) {
	lines, err := Restore(t.TempDir()+"/none", []string{"no-such-if", "lo"})
	require.NoError(t, err)
	require.Empty(t, lines)
}

func TestSteeringWordsAreChecked(t *testing.T) {
	for text, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "2001:db8::/32": "2001:db8::/32", "2001:db8::1": "2001:db8::1/128"} {
		p, err := parsePrefix(text)
		require.NoError(t, err)
		require.Equal(t, want, p.String())
	}
	_, err := parsePrefix("example.org")
	require.ErrorIs(t, err, ErrConfig)
	p, err := steerPolicy(&agppb.SteerPolicy{Engine: []string{"tcp/80-90"}, Kernel: []string{"icmp"}, SampleEvery: 3, SharePermille: 5})
	require.NoError(t, err)
	require.EqualValues(t, 80, p.Classes[0].PortMin)
	require.EqualValues(t, 1, p.Kernel[0].Protocol)
	require.EqualValues(t, 3, p.SampleN)
	_, err = steerPolicy(&agppb.SteerPolicy{Kernel: []string{"everything"}})
	require.ErrorIs(t, err, ErrConfig)
}

func TestOpenCaptureRefusesWhatNoRestartCures(t *testing.T) {
	nothing := func(agppb.Log_Level, string, ...any) {}
	_, err := openCapture(&agppb.Source{Kind: "mirror", Live: &agppb.Live{}}, "x", nothing)
	require.ErrorIs(t, err, ErrConfig)
	_, err = openCapture(&agppb.Source{Kind: "divert", Live: &agppb.Live{Interfaces: []string{"a", "b"}, StateDir: t.TempDir()}}, "x", nothing)
	require.ErrorIs(t, err, ErrConfig)
	_, err = openCapture(&agppb.Source{Kind: "mirror", Live: &agppb.Live{Interfaces: []string{"no-such-if"}, StateDir: t.TempDir()}}, "x", nothing)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrConfig, "an interface can come later")
	require.ErrorContains(t, err, "no-such-if")
}

// TestBothSidesOfALayoutAgree: packages that do not know each other state these twice.
func TestBothSidesOfALayoutAgree(t *testing.T) {
	require.Equal(t, options.MaxClasses, steer.MaxClasses)
	header, err := os.ReadFile("../steer/bpf/agp.h")
	require.NoError(t, err)
	for _, line := range []string{
		fmt.Sprintf("#define AGP_STAMP_MAGIC %#x ", afxdp.MetadataMagic),
		fmt.Sprintf("#define AGP_CLOCK_UTC %d\n", afxdp.ClockUTC),
		fmt.Sprintf("#define AGP_CLOCK_MONOTONIC %d\n", afxdp.ClockMonotonic),
	} {
		require.Contains(t, string(header), line)
	}
}
