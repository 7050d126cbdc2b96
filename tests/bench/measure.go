package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrMissing says that a program is not installed.
var ErrMissing = errors.New("not installed")

// Sample is one run of one program.
type Sample struct {
	Wall, CPU time.Duration
	// MaxRSS is the peak of the program's own resident set in bytes, read every 10 ms
	// (the kernel's figure for an ended child includes what its parent had before the exec).
	MaxRSS int64
	Output string
}

// Command is a program with its arguments, run in Dir on the given CPUs.
type Command struct {
	Args []string
	Env  []string // added to the environment
	CPUs []int    // empty: any
	Dir  string
}

// Run starts the program and waits for its end. Its standard output goes to the
// file that stdout names, or is returned in the sample together with standard error.
func (c Command) Run(ctx context.Context, stdout string) (Sample, error) {
	path, err := look(c.Args[0])
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w", c.Args[0], ErrMissing)
	}
	args := append([]string{path}, c.Args[1:]...)
	if len(c.CPUs) > 0 {
		list := make([]string, len(c.CPUs))
		for i, n := range c.CPUs {
			list[i] = strconv.Itoa(n)
		}
		args = append([]string{"taskset", "-c", strings.Join(list, ",")}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), c.Env...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if stdout != "" {
		f, err := os.Create(stdout)
		if err != nil {
			return Sample{}, err
		}
		defer f.Close()
		cmd.Stdout = f
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return Sample{}, err
	}
	done := make(chan struct{})
	peak := make(chan int64, 1)
	go func() { peak <- watchPeak(cmd.Process.Pid, done) }()
	err = cmd.Wait()
	s := Sample{Wall: time.Since(start), Output: text.String()}
	close(done)
	s.MaxRSS = <-peak
	s.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return s, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(s.Output, 400))
	}
	return s, nil
}

// look also searches the folders where Debian puts daemons.
func look(name string) (string, error) {
	if strings.Contains(name, "/") {
		if _, err := os.Stat(name); err != nil {
			return "", err
		}
		return filepath.Abs(name)
	}
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}

func watchPeak(pid int, done <-chan struct{}) int64 {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var peak int64
	for {
		select {
		case <-done:
			return peak
		case <-tick.C:
			peak = max(peak, readPeak(pid))
		}
	}
}

// readPeak reads the high-water mark that starts anew with the program's image.
func readPeak(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kb * 1024
		}
	}
	return 0
}

func tail(s string, n int) string {
	if len(s) > n {
		return s[len(s)-n:]
	}
	return s
}

// Median is the run in the middle, by wall clock.
func Median(runs []Sample) Sample {
	sorted := slices.Clone(runs)
	slices.SortFunc(sorted, func(a, b Sample) int { return int(a.Wall - b.Wall) })
	return sorted[len(sorted)/2]
}
