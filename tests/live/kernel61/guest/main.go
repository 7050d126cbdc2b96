// Command guest is the first process of the emulated machine: it loads the kernel's
// modules, runs the test binaries beside it and switches the machine off. What it
// prints goes to the serial console.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Passed is the last line when every test binary has passed.
const Passed = "GUEST: PASSED"

func main() {
	if err := run(); err != nil {
		fmt.Println("GUEST: FAILED:", err)
	} else {
		fmt.Println(Passed)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("GUEST: power off:", err)
	}
}

func run() error {
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"bpf", "/sys/fs/bpf"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil { //nolint:gosec // of a machine without users
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.dir, err)
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	fmt.Println("GUEST: kernel", unix.ByteSliceToString(uts.Release[:]))

	list, err := os.ReadFile("/modules.list")
	if err != nil {
		return err
	}
	for _, path := range strings.Fields(string(list)) {
		f, err := os.Open(path) //nolint:gosec // a list of our own
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("loading %s: %w", path, err)
		}
	}

	// Arguments are read from a file, because the kernel's command line is short.
	args, err := os.ReadFile("/tests.list")
	if err != nil {
		return err
	}
	var failed []string
	for line := range strings.Lines(string(args)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		cmd := exec.Command(words[0], words[1:]...) //nolint:gosec // a list of our own
		cmd.Dir, cmd.Stdout, cmd.Stderr = "/tmp", os.Stdout, os.Stdout
		cmd.Env = []string{"PATH=/", "TMPDIR=/tmp", "HOME=/tmp", "AGP_REQUIRE=1"}
		if err := cmd.Run(); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", filepath.Base(words[0]), err))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s", strings.Join(failed, "; "))
	}
	return nil
}
