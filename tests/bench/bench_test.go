package bench

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMissingProgramIsReportedAsMissing(t *testing.T) {
	tool := Tool{Name: "nothing", Args: []string{"agp-there-is-no-such-program"}}
	_, err := tool.Run(t.Context(), 1)
	require.ErrorIs(t, err, ErrMissing)
	require.Contains(t, SpeedTable([]Row{{Tool: tool, CPUs: 1, Err: err}}, 1), "missing")
	_, err = Tool{Args: []string{"true"}, Needs: []string{filepath.Join(t.TempDir(), "class.onnx")}}.Run(t.Context(), 1)
	require.ErrorIs(t, err, ErrMissing)
	_, err = Tool{Args: []string{filepath.Join(t.TempDir(), "absent")}}.Run(t.Context(), 1)
	require.ErrorIs(t, err, ErrMissing)
}

func TestFailedProgramIsNotATime(t *testing.T) {
	tool := Tool{Name: "false", Args: []string{"false"}}
	s, err := tool.Run(t.Context(), 1)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrMissing)
	require.Contains(t, SpeedTable([]Row{{Tool: tool, CPUs: 1, Err: err, Runs: []Sample{s}}}, 1), "failed")
}

func TestOutputIsReadAndEarlierOutputRemoved(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(stale, []byte("old"), 0o644))
	tool := Tool{Args: []string{"sh", "-c", "test ! -e " + stale + " && echo Flows: 42"}, Clean: stale, Flows: number(`Flows: (\d+)`)}
	s, err := tool.Run(t.Context(), 1)
	require.NoError(t, err)
	n, ok := tool.Flows(s)
	require.True(t, ok)
	require.EqualValues(t, 42, n)
	require.Positive(t, s.Wall)
}

func TestArgusRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "argus.out")
	status := []byte{0x83, 0x10, 0, 2, 0, 0, 0, 0}
	record := []byte{0x13, 0x20, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8}
	require.NoError(t, os.WriteFile(path, append(append(append(status, record...), record...), status...), 0o644))
	n, ok := argusRecords(path)
	require.True(t, ok)
	require.EqualValues(t, 2, n)
	require.NoError(t, os.WriteFile(path, []byte{0x13, 0x20, 0, 9}, 0o644))
	_, ok = argusRecords(path)
	require.False(t, ok, "a record longer than the file")
}

func TestGoalsCompareWithTheFastestRivalOnAsManyCPUs(t *testing.T) {
	row := func(name string, cpus int, walls ...time.Duration) Row {
		r := Row{Tool: Tool{Name: name}, CPUs: cpus}
		for _, w := range walls {
			r.Runs = append(r.Runs, Sample{Wall: w, CPU: w})
		}
		return r
	}
	rows := []Row{
		row(oursPlain, 2, time.Second, 9*time.Second, time.Second), row(oursPlain, 1, 2*time.Second),
		row("argus", 2, 5*time.Second), row("nfpcapd", 2, 4*time.Second), row("argus", 1, 3*time.Second),
		{Tool: Tool{Name: "softflowd"}, CPUs: 2, Err: ErrMissing},
	}
	goals := SpeedGoals(rows)
	require.InDelta(t, 4, goals[0].Got, 1e-9)
	require.Contains(t, goals[0].Text, "nfpcapd")
	text := GoalTable(goals)
	require.Contains(t, text, "1.50  MISSED")
	require.Contains(t, text, "not measured")
	require.Contains(t, SpeedTable(rows, 4_000_000), "4.00")
}

func TestMemoryAndModelGoalsAreInTheTable(t *testing.T) {
	rows := []Row{
		{Tool: Tool{Name: oursPlain}, CPUs: 2, Runs: []Sample{{MaxRSS: 750 * MB}}},
		{Tool: Tool{Name: oursScored}, CPUs: 2, Runs: []Sample{{MaxRSS: 851 * MB}}},
	}
	idle := map[string]Sample{oursPlain: {MaxRSS: 50 * MB}, oursScored: {MaxRSS: 101 * MB}}
	goals := MemoryGoals(rows, idle, 1_000_000)
	require.Len(t, goals, 4)
	require.Equal(t, []float64{700, 750, 750, 851}, []float64{goals[0].Got, goals[1].Got, goals[2].Got, goals[3].Got})
	require.Equal(t, []bool{false, false, true, true}, []bool{goals[0].Missed(), goals[1].Missed(), goals[2].Missed(), goals[3].Missed()})
	text := GoalTable(goals)
	require.Contains(t, text, "<= 704")
	require.Contains(t, text, "851  MISSED")
	for _, g := range MemoryGoals(nil, nil, 1_000_000) {
		require.False(t, g.Known)
	}

	// As ort.py prints it.
	const printed = "class.onnx on a CPU, one thread; ratio to the best ONNX Runtime row\n" +
		"engine                       batch   flows/CPU s   us/flow   ratio\n" +
		"onnxruntime 1.0                 64       170,000      5.88    1.00\n" +
		"telegraf-agp go                 64        90,000     11.11    0.53\n" +
		"telegraf-agp avx2               64        59,999     16.67    0.35\n"
	g := ModelGoal(printed)
	require.True(t, g.Missed(), "plain Go does not count")
	require.InDelta(t, 59_999, g.Got, 0)
	g = ModelGoal(printed + "telegraf-agp avx512             64     1,234,567      0.81    7.26\n")
	require.InDelta(t, 1_234_567, g.Got, 0)
	require.False(t, g.Missed())
	require.Contains(t, GoalTable([]Goal{ModelGoal("")}), "not measured")
}
