package bench

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Machine says where and when a benchmark runs, for the head of its report.
func Machine(command string) string {
	commit := "unknown"
	if b, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		commit = strings.TrimSpace(string(b))
	}
	return MachineAt(commit, command)
}

// MachineAt is Machine for a commit that is known otherwise.
func MachineAt(commit, command string) string {
	name := "unknown CPU"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				name = strings.TrimSpace(v)
				break
			}
		}
	}
	load := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(b), " ")
	}
	return fmt.Sprintf("%s, %d CPUs, %s, load at start %s; commit %s; %s; `%s`",
		name, runtime.NumCPU(), runtime.Version(), load, commit, time.Now().UTC().Format("2006-01-02 15:04 UTC"), command)
}
