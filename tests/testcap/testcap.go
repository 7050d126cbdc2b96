// Package testcap finds what tests need and the repository does not hold: real
// captures and other programs. It keeps no state; its functions belong to the
// test's goroutine.
//
// Captures: the folder is named by AGP_CAPTURES; without it, ../shared/captures
// beside the repository is tried. A test that needs them is skipped where they
// are absent.
//
// Programs: a test is skipped where one is missing, unless AGP_REQUIRE is set, as
// "make test" does: there a missing program is a failure, because "make test" has
// installed it.
package testcap

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"
)

// Env names the environment variable that holds the captures' folder.
const Env = "AGP_CAPTURES"

// RequireEnv names the environment variable that turns a missing program into a failure.
const RequireEnv = "AGP_REQUIRE"

// Missing ends a test that needs a program which is not there: it fails if
// RequireEnv is set and is skipped otherwise.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if v := os.Getenv(RequireEnv); v != "" && v != "0" {
		t.Fatalf(format+" ("+RequireEnv+" is set)", args...)
	}
	t.Skipf(format, args...)
}

// Program returns the path of an installed program; without it, see Missing.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "%s is not installed (make deps)", name)
	}
	return path
}

// Python returns an interpreter that has the modules: AGP_PYTHON, else python3;
// without one, see Missing.
func Python(t testing.TB, modules ...string) string {
	t.Helper()
	py := os.Getenv("AGP_PYTHON")
	if py == "" {
		py = "python3"
	}
	//nolint:gosec // the interpreter that the developer names
	if out, err := exec.Command(py, "-c", "import "+strings.Join(modules, ", ")).CombinedOutput(); err != nil {
		Missing(t, "%s has no %s (set AGP_PYTHON): %v %s", py, strings.Join(modules, ", "), err, out)
	}
	return py
}

// OracleSuffix follows a capture's name in the name of its oracle.
const OracleSuffix = ".ndpi.out"

// Dir returns the captures' folder and skips the test where there is none. A
// folder that Env names but that does not exist fails the test, so that a
// mistyped name does not pass for success.
func Dir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(Env)
	named := dir != ""
	if !named {
		_, file, _, ok := runtime.Caller(0)
		if !ok {
			t.Skip("no captures: the source folder is unknown; set " + Env)
		}
		root := filepath.Join(filepath.Dir(file), "..", "..")
		dir = filepath.Join(root, "..", "shared", "captures")
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		if named {
			t.Fatalf("%s=%q is not a folder", Env, dir)
		}
		t.Skip("no captures; set " + Env + " to their folder")
	}
	return filepath.Clean(dir)
}

// All returns every capture file of the folder and of its ndpi sub-folder,
// sorted by path.
func All(t testing.TB) []string {
	t.Helper()
	dir := Dir(t)
	var files []string
	for _, sub := range []string{".", "ndpi"} {
		for _, ext := range []string{"*.pcap", "*.pcapng"} {
			found, err := filepath.Glob(filepath.Join(dir, sub, ext))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
	}
	if len(files) == 0 {
		t.Skip("no captures in the captures folder")
	}
	sort.Strings(files)
	return files
}

// Oracle returns the oracle that belongs to a capture: the file beside it, else
// the one of the same name in the other of the two folders. It returns "" if the
// capture has none.
func Oracle(path string) string {
	dir, name := filepath.Split(path)
	for _, sub := range []string{".", "ndpi", ".."} {
		oracle := filepath.Join(dir, sub, name+OracleSuffix)
		if st, err := os.Stat(oracle); err == nil && st.Mode().IsRegular() {
			return oracle
		}
	}
	return ""
}
