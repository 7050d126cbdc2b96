package asm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The generator writes field offsets as numbers.
func TestArgsLayoutIsWhatTheKernelsKnow(t *testing.T) {
	var a Args
	offsets := []uintptr{unsafe.Offsetof(a.X), unsafe.Offsetof(a.W), unsafe.Offsetof(a.B), unsafe.Offsetof(a.Off), unsafe.Offsetof(a.Out),
		unsafe.Offsetof(a.K), unsafe.Offsetof(a.Blocks), unsafe.Offsetof(a.XStep), unsafe.Offsetof(a.OutP), unsafe.Offsetof(a.OutF), unsafe.Offsetof(a.Lo)}
	for i, o := range offsets {
		require.EqualValues(t, 8*i, o, "field %d", i)
	}
}

// The committed kernels are those of gen.go.
func TestGeneratedKernelsAreCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("short: builds the generator")
	}
	dir := t.TempDir()
	s, stubs := filepath.Join(dir, "kernels_amd64.s"), filepath.Join(dir, "kernels_amd64.go")
	out, err := exec.Command("go", "run", "gen.go", "-out", s, "-stubs", stubs, "-pkg", "asm").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, f := range []string{s, stubs} {
		want, err := os.ReadFile(f)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Base(f))
		require.NoError(t, err)
		// The first line holds the command, which differs by folder.
		require.Equal(t, tail(want), tail(got), "run go generate ./agp/model/internal/asm")
	}
}

func tail(b []byte) string {
	for i, c := range b {
		if c == '\n' {
			return string(b[i:])
		}
	}
	return ""
}
