package bpf

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// What is committed is what the sources give.
func TestObjectsAreThoseOfTheSources(t *testing.T) {
	testcap.Program(t, "clang-19")
	testcap.Program(t, "llvm-strip-19")
	dir := t.TempDir()
	out, err := exec.Command("sh", "generate.sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, f := range files {
		want, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		have, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		if string(want) != string(have) { // objects make no readable difference
			t.Errorf("%s is not what its source compiles to: make generate", f.Name())
		}
	}
}
