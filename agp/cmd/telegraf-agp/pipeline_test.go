package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// emulated lets the programs that a test starts find a GPU, which is device code on the host.
func emulated(t *testing.T) {
	t.Helper()
	testcap.Program(t, "g++")
	t.Setenv(emulatedEnv, "1")
}

var queueOf = regexp.MustCompile(`"queue":\d+,?`)

// TestReplayGivesTheSameOnBothPipelines: the same lines, in another order; the number of the queue
// and the time that it took aside.
func TestReplayGivesTheSameOnBothPipelines(t *testing.T) {
	emulated(t)
	path := filepath.Join(t.TempDir(), "synthetic.pcap")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, traffic.Bench(5, 5000, 300).WritePcap(f))
	require.NoError(t, f.Close())
	lines := func(pipeline string) []string {
		out, log, code := call(t, "replay", "--models", "none", "--pipeline", pipeline, "--max-flows", "8192", "-o", "json", path)
		require.Zero(t, code, log)
		list := strings.Split(strings.TrimSpace(queueOf.ReplaceAllString(out, "")), "\n")
		last := len(list) - 1
		list[last] = regexp.MustCompile(`"seconds":[^,}]*`).ReplaceAllString(list[last], "")
		slices.Sort(list)
		return list
	}
	want := lines("cpu")
	require.Greater(t, len(want), 200)
	require.Equal(t, want, lines("cuda"))
}

// TestReplaySaysWhichPipelineRanAndWhy in the table and in line protocol.
func TestReplaySaysWhichPipelineRanAndWhy(t *testing.T) {
	file := capturePackets(t, 10)
	out, _, code := call(t, "replay", "--models", "none", "--pipeline", "cpu", file)
	require.Zero(t, code)
	require.Regexp(t, `(?m)^pipeline +cpu +as configured$`, out)
	_, log, code := call(t, "replay", "--models", "none", "--pipeline", "gpu", file)
	require.Equal(t, 1, code)
	require.Contains(t, log, `pipeline = "gpu", allowed are auto, cpu, cuda`)
	for says, args := range map[string][]string{
		`gpu = "nonsense", allowed: ""`:             {"--gpu", "nonsense"},
		`mode = "fast", allowed: "flow"`:            {"--mode", "fast"},
		`pipeline = "cpu", allowed: "auto", "cuda"`: {"--mode", "stateless", "--pipeline", "cpu"},
		`sketch_feature = "blocked", allowed: ""`:   {"--mode", "stateless", "--sketch-feature", "blocked"},
	} {
		_, log, code := call(t, append(append([]string{"replay", "--models", "none"}, args...), file)...)
		require.Equal(t, 1, code)
		require.Contains(t, log, says)
	}

	emulated(t)
	out, log, code = call(t, "replay", "--models", "none", "--pipeline", "cuda", file)
	require.Zero(t, code, log)
	require.Regexp(t, `(?m)^pipeline +cuda +GPU 0, NVIDIA H200, as configured$`, out)
	out, _, code = call(t, "replay", "--models", "none", "--pipeline", "cuda", "-o", "influx", file)
	require.Zero(t, code)
	e := named(parse(t, out), "agp_engine")
	require.Len(t, e, 1)
	require.Equal(t, "cuda", e[0].Tags()["pipeline"])
	require.Equal(t, "GPU 0, NVIDIA H200, as configured", e[0].Fields()["pipeline_reason"])
	out, log, code = call(t, "replay", "--mode", "stateless", "-o", "influx", file)
	require.Zero(t, code, log)
	require.Empty(t, named(parse(t, out), "agp_flow"))
	rows := named(parse(t, out), "agp_traffic")
	require.Len(t, rows, 1)
	require.EqualValues(t, 10, rows[0].Fields()["packets"])
	_, log, code = call(t, "replay", "--models", "none", "--pipeline", "cuda", "--gpu", "4", file)
	require.Equal(t, 1, code)
	require.Contains(t, log, "no such GPU: 4, the driver shows 1")
}

// TestThePluginReportsItsPipelineAndWhy: telegraf sees which one runs, on a machine with a GPU and
// on one without, and with pipeline = "cuda" and no GPU what is missing, with telegraf up.
func TestThePluginReportsItsPipelineAndWhy(t *testing.T) {
	gather := func(keys string) map[string]any {
		config := filepath.Join(t.TempDir(), "agp.conf")
		text := "[[inputs.agp]]\n  files = [\"" + capturePackets(t, 100) + "\"]\n  models = [\"none\"]\n  max_flows = 4096\n" + keys
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		cmd := program("run", "--config", config, "--test")
		var log strings.Builder
		cmd.Stderr = &log
		out, err := cmd.Output()
		var failed *exec.ExitError
		if err != nil {
			require.ErrorAs(t, err, &failed, log.String())
		}
		all := named(parse(t, string(out)), "agp_engine")
		require.NotEmpty(t, all, log.String())
		last := all[len(all)-1]
		fields := last.Fields()
		fields["pipeline"] = last.Tags()["pipeline"]
		return fields
	}
	f := gather("  pipeline = \"cpu\"\n")
	require.Equal(t, "cpu", f["pipeline"])
	require.Equal(t, "as configured", f["pipeline_reason"])

	emulated(t)
	f = gather("")
	require.Equal(t, "cuda", f["pipeline"])
	require.Equal(t, "GPU 0, NVIDIA H200, the first that suffices", f["pipeline_reason"])
	require.EqualValues(t, 101, f["packets_seen"])
	require.EqualValues(t, 100, f["packets_recorded"])
	require.EqualValues(t, 1, f["drops_non_ip_arp"])

	f = gather("  pipeline = \"cuda\"\n  gpu = \"7\"\n")
	require.Equal(t, false, f["up"])
	require.Contains(t, f["last_error"], `engine refused: no GPU for the pipeline: pipeline = "cuda": no such GPU: 7, the driver shows 1`)
}
