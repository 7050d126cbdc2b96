package simt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// ErrNoCompiler means that there is no g++ to compile device code for the host with.
var ErrNoCompiler = errors.New("simt: no g++ (make deps installs it)")

// Sanitizer is what a program is instrumented for.
type Sanitizer string

// The sanitizers of gcc that device code is run under.
const (
	Plain   Sanitizer = ""
	Address Sanitizer = "address" // and undefined behaviour
	Thread  Sanitizer = "thread"
)

// Compiler of the device code for the host. As on the device, floating point operations are not
// contracted and integers of different types may share memory.
const compiler = "g++"

var (
	common    = []string{"-std=c++17", "-pthread", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-exceptions", "-Wall", "-Wno-unknown-pragmas"}
	sanitized = map[Sanitizer][]string{
		Plain:   {"-O2"},
		Address: {"-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
		Thread:  {"-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"},
	}
	emulator = map[Sanitizer][]string{
		Plain:   nil,
		Address: {"-DSIMT_ASAN"},
		Thread:  {"-DSIMT_TSAN"},
	}
)

// root of the repository: the folder of go.mod above the working directory.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("simt: no go.mod above %s: device code is compiled from the repository's sources", dir)
		}
	}
}

// build compiles sources, named from the root of the repository, with the emulator, into a
// library or a program, and returns its path.
func build(name string, sources []string, shared bool, s Sanitizer) (string, error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoCompiler, err)
	}
	flags := slices.Concat(common, sanitized[s], []string{"-I" + filepath.Join(top, "cuda/kernels"), "-I" + filepath.Join(top, "tests/simt/lib")})
	if shared {
		flags = append(flags, "-fPIC")
	}

	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n%q\n%v\n%s\n%s\n", version, flags, sources, shared, runtime.GOARCH, emulator[s])
	for _, dir := range []string{"cuda/kernels", "tests/simt/lib"} {
		if err := hashSources(h, top, dir); err != nil {
			return "", err
		}
	}
	out := filepath.Join(top, "build", "simt", fmt.Sprintf("%s-%s", name, hex.EncodeToString(h.Sum(nil))[:24]))
	if shared {
		out += ".so"
	}
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}

	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), "tmp")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	// The emulator itself is not instrumented.
	object := filepath.Join(work, "simt.o")
	args := slices.Concat(common, []string{"-O2", "-fPIC"}, emulator[s], []string{"-c", "-o", object, filepath.Join(top, "tests/simt/lib/simt.cc")})
	if err := compile(args); err != nil {
		return "", err
	}
	// Another process may compile the same: each has its own file until it is complete.
	whole := filepath.Join(work, "out")
	args = slices.Concat(flags, []string{"-o", whole, object, "-x", "c++"})
	if shared {
		args = append(args, "-shared")
	}
	for _, f := range sources {
		args = append(args, filepath.Join(top, f))
	}
	if err := compile(args); err != nil {
		return "", err
	}
	return out, os.Rename(whole, out)
}

func compile(args []string) error {
	out, err := exec.Command(compiler, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("simt: %s %s: %w\n%s", compiler, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// hashSources hashes names and contents of the C++ and CUDA sources of a folder.
func hashSources(h io.Writer, top, dir string) error {
	entries, err := os.ReadDir(filepath.Join(top, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".h", ".cc", ".cu", ".cuh":
		default:
			continue
		}
		b, err := os.ReadFile(filepath.Join(top, dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s/%s %d\n", dir, e.Name(), len(b))
		_, _ = h.Write(b)
	}
	return nil
}

// Run compiles a program of one source, named from the root of the repository, for a sanitizer,
// and runs it. What it prints to standard output is returned, what a sanitizer or the emulator
// reports is in the error.
func Run(ctx context.Context, source string, s Sanitizer, args ...string) ([]byte, error) {
	name := strings.TrimSuffix(filepath.Base(source), filepath.Ext(source))
	path, err := build(name, []string{source}, false, s)
	if err != nil {
		return nil, err
	}
	out, report, err := execute(ctx, path, args...)
	// Older libraries of ThreadSanitizer cannot live with every layout of the address space.
	if err != nil && strings.Contains(report, "unexpected memory mapping") {
		out, report, err = execute(ctx, "setarch", append([]string{"-R", path}, args...)...)
	}
	if err != nil {
		return out, fmt.Errorf("simt: %s %s %s: %w\n%s", name, s, strings.Join(args, " "), err, report)
	}
	return out, nil
}

func execute(ctx context.Context, path string, args ...string) (out []byte, report string, err error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	return out, stderr.String(), err
}
