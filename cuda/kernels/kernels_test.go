package kernels

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// What a kernel may use. Spilled registers cost a trip to memory per use; a stack
// beyond what a context has by itself makes the launch wait for other kernels.
var limits = map[string]struct{ registers, stack, spills int }{
	"sm_90a": {registers: 255, stack: 512, spills: 0},
	"sm_80":  {registers: 255, stack: 512, spills: 64}, // not what we tune for
}

func TestFor(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		kind         string
	}{{9, 0, "sm_90a cubin"}, {8, 0, "compute_80 PTX"}, {8, 6, "compute_80 PTX"}, {8, 9, "compute_80 PTX"}, {10, 0, "compute_80 PTX"}, {12, 1, "compute_80 PTX"}} {
		i, err := For(c.major, c.minor)
		require.NoError(t, err)
		require.Equal(t, c.kind, i.Kind)
		require.Equal(t, c.kind == "compute_80 PTX", i.PTX)
	}
	for _, c := range [][2]int{{7, 5}, {7, 0}, {0, 0}} {
		_, err := For(c[0], c[1])
		require.ErrorIs(t, err, ErrCapability)
	}
	_, err := For(7, 5)
	require.EqualError(t, err, "compute capability below 8.0: 7.5", "the capability is named")
}

func TestImagesHaveTheKernel(t *testing.T) {
	i, err := For(9, 0)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(i.Code))
	require.NoError(t, err)
	require.EqualValues(t, 190, f.Machine, "EM_CUDA")
	symbols, err := f.Symbols()
	require.NoError(t, err)
	require.True(t, func() bool {
		for _, s := range symbols {
			if s.Name == "agp_rings" {
				return true
			}
		}
		return false
	}())

	i, err = For(8, 0)
	require.NoError(t, err)
	require.Contains(t, string(i.Code), ".target sm_80")
	require.Regexp(t, `\.entry agp_rings\(`, string(i.Code))
}

func TestBrokenImage(t *testing.T) {
	_, err := unpack(ptx80[:100])
	require.ErrorContains(t, err, "embedded device code")
	_, err = unpack([]byte("not gzip"))
	require.ErrorContains(t, err, "embedded device code")
}

var (
	entry = regexp.MustCompile(`Compiling entry function '(\w+)' for '(\w+)'`)
	stack = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	used  = regexp.MustCompile(`Used (\d+) registers.*?(\d+) bytes cumulative stack size`)
)

// TestResources reads what the assembler said.
func TestResources(t *testing.T) {
	text, err := os.ReadFile("agp.resources.txt")
	require.NoError(t, err)
	number := func(b []byte) int {
		n, err := strconv.Atoi(string(b))
		require.NoError(t, err)
		return n
	}
	seen := map[string]bool{}
	kernel, arch := "", ""
	for line := range bytes.Lines(text) {
		if m := entry.FindSubmatch(line); m != nil {
			kernel, arch = string(m[1]), string(m[2])
			seen[arch] = true
			require.Contains(t, limits, arch)
		}
		l := limits[arch]
		if m := stack.FindSubmatch(line); m != nil && arch != "" {
			require.LessOrEqual(t, number(m[2])+number(m[3]), l.spills, "%s spills registers on %s", kernel, arch)
		}
		if m := used.FindSubmatch(line); m != nil {
			require.LessOrEqual(t, number(m[1]), l.registers, "registers of %s on %s", kernel, arch)
			require.LessOrEqual(t, number(m[2]), l.stack, "stack of %s on %s", kernel, arch)
			t.Logf("%s on %s: %s registers, %s bytes of stack", kernel, arch, m[1], m[2])
		}
	}
	require.Len(t, seen, len(limits))
}

// TestImagesAreThoseOfTheSources compiles again and compares. Compressed files differ
// between versions of gzip.
func TestImagesAreThoseOfTheSources(t *testing.T) {
	if out, err := exec.Command("bash", "build.sh", "-n").CombinedOutput(); err != nil {
		testcap.Missing(t, "%s (make cuda)", bytes.TrimSpace(out))
	}
	dir := t.TempDir()
	out, err := exec.Command("bash", "build.sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, f := range files {
		if want, have := content(t, filepath.Join(dir, f.Name())), content(t, f.Name()); !bytes.Equal(want, have) { // code makes no readable difference
			t.Errorf("%s is not what its source compiles to: make cuda", f.Name())
		}
	}
}

func content(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	if filepath.Ext(name) != ".gz" {
		return b
	}
	r, err := gzip.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	b, err = io.ReadAll(r)
	require.NoError(t, err)
	return b
}
