package modelcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/model"
)

const (
	class = "../testdata/golden/cnn159.onnx"
	app   = "../testdata/golden/head.onnx"
)

// run returns what the command printed, and its exit code.
func run(t *testing.T, args ...string) (string, int, error) {
	var out bytes.Buffer
	a := &cli.App{Name: "telegraf-agp", Writer: &out, ErrWriter: &out, Commands: []*cli.Command{Command()}, ExitErrHandler: func(*cli.Context, error) {}}
	err := a.Run(append([]string{"telegraf-agp", "model"}, args...))
	code := 0
	var exit cli.ExitCoder
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		code = 1
	}
	return out.String(), code, err
}

func TestInfoPrintsMetadataAndLayers(t *testing.T) {
	out, code, err := run(t, "info", class)
	require.NoError(t, err)
	require.Zero(t, code)
	for _, s := range []string{"cnn159@1", "histogram (159 floats)", "64 filters", "max pool 3", "softmax", "18894 parameters"} {
		require.Contains(t, out, s)
	}
	out, _, err = run(t, "info", "--json", app)
	require.NoError(t, err)
	var mi modelInfo
	require.NoError(t, json.Unmarshal([]byte(out), &mi))
	require.Equal(t, "head", mi.Features)
	require.Equal(t, []uint64{4, 8, 16}, mi.Triggers)
	require.NotEmpty(t, mi.Layers)
	for _, l := range mi.Layers {
		require.NotEqual(t, "?", l.Kind)
	}
}

func TestCheckSaysWhatIsRefusedAndExitsWith1(t *testing.T) {
	out, code, err := run(t, "check", class, app)
	require.NoError(t, err)
	require.Zero(t, code)
	require.Contains(t, out, "ok: "+class+": cnn159@1")

	bad := filepath.Join(t.TempDir(), "bad.onnx")
	require.NoError(t, os.WriteFile(bad, []byte("no"), 0o600))
	out, code, _ = run(t, "check", class, bad)
	require.Equal(t, 1, code)
	require.Contains(t, out, "ok: "+class)
	require.Contains(t, out, "refused: "+bad)

	out, code, _ = run(t, "check", class, class)
	require.Equal(t, 1, code)
	require.Contains(t, out, "refused together")
}

func TestBenchPrintsEveryInstructionSet(t *testing.T) {
	out, code, err := run(t, "bench", "--time", "1ms", app)
	require.NoError(t, err)
	require.Zero(t, code)
	for _, i := range model.ISAs() {
		require.Contains(t, out, i.String())
	}
	rows := filepath.Join(t.TempDir(), "rows")
	require.NoError(t, os.WriteFile(rows, make([]byte, 4*model.HeadInputs*3), 0o600))
	out, _, err = run(t, "bench", "--time", "1ms", "--json", "--isa", "go", "--batch", "3", "--input", rows, app)
	require.NoError(t, err)
	var r result
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, "go", r.Engine)
	require.Positive(t, r.FlowsPerCPU)
}

func TestBadArguments(t *testing.T) {
	rows := filepath.Join(t.TempDir(), "rows")
	require.NoError(t, os.WriteFile(rows, make([]byte, 10), 0o600))
	for _, args := range [][]string{
		{"info"}, {"info", "a", "b"}, {"check"}, {"info", "absent"}, {"bench", "absent"},
		{"bench", "--isa", "mmx", app}, {"bench", "--batch", "0", app}, {"bench", "--input", rows, app}, {"bench", "--input", "absent", app},
	} {
		_, code, err := run(t, args...)
		require.Error(t, err, "%v", args)
		require.NotZero(t, code, "%v", args)
	}
}
