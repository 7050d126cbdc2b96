// Package testcap finds the real captures that tests check against. They are
// not part of the repository: a test that needs them is skipped where they are
// absent. The folder is named by AGP_CAPTURES; without it,
// ../shared/captures beside the repository is tried.
package testcap

import (
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"testing"
)

// Env names the environment variable that holds the captures' folder.
const Env = "AGP_CAPTURES"

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
		root := filepath.Join(filepath.Dir(file), "..", "..", "..")
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
