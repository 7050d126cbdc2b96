package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/e2e/telegrafbin"
)

const patience = 30 * time.Second

// process is a telegraf, stock or with plugins compiled in.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    *lockedBuffer
	exited chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func telegrafBinary(t *testing.T) string {
	t.Helper()
	path, err := telegrafbin.Path(t.Context(), os.Stderr)
	require.NoError(t, err)
	return path
}

// agentConfig is the part of telegraf.conf that all tests share: short
// intervals, no host tag, and an InfluxDB at url if there is one.
func agentConfig(url string) string {
	text := `[agent]
  interval = "1s"
  flush_interval = "200ms"
  metric_batch_size = 5000
  metric_buffer_limit = 200000
  omit_hostname = true
  skip_processors_after_aggregators = true
`
	if url != "" {
		text += fmt.Sprintf("[[outputs.influxdb]]\n  urls = [%q]\n  database = \"e2e\"\n  timeout = \"5s\"\n", url)
	}
	return text
}

// pluginSection is an execd section that runs this test binary as a plugin.
func pluginSection(t *testing.T, kind, pluginConfig string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return fmt.Sprintf("[[%s.execd]]\n  command = [%q, \"--config\", %q]\n  environment = [\"%s=plugin\"]\n  restart_delay = \"100ms\"\n",
		kind, self, pluginConfig, roleEnv) + map[string]string{"inputs": "  data_format = \"influx\"\n"}[kind]
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// startTelegraf starts the stock telegraf.
func startTelegraf(t *testing.T, conf string) *process {
	t.Helper()
	path := writeFile(t, filepath.Join(t.TempDir(), "telegraf.conf"), conf)
	return startProcess(t, exec.Command(telegrafBinary(t), "--config", path))
}

func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, log: &lockedBuffer{}, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	// A descendant that keeps the log open must not keep the test waiting.
	cmd.WaitDelay = time.Second
	require.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("log of %s:\n%s", filepath.Base(cmd.Path), p.log)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// stop ends the process in order and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.t.Error("had to be killed")
	}
}

// stopLine is what execd prints at every stop of a child that is still connected.
var stopLine = regexp.MustCompile(`E! \[(inputs|processors)\.execd\] .*read \|0: file already closed`)

// requireCleanLog requires that nothing above information was printed, except
// by telegraf about its own future defaults and the speed of this machine.
func (p *process) requireCleanLog() {
	p.t.Helper()
	for line := range strings.Lines(p.log.String()) {
		switch {
		case stopLine.MatchString(line):
		case strings.Contains(line, "W! Strict environment variable handling"):
		case strings.Contains(line, "did not complete within its flush interval"): // a slow InfluxDB
		case strings.Contains(line, " E! "), strings.Contains(line, " W! "):
			require.Fail(p.t, "unexpected line in the log", line)
		}
	}
}

// marks returns the process ids that left a file "what.PID" in dir.
func marks(t *testing.T, dir, what string) []int {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, what+".*"))
	require.NoError(t, err)
	var pids []int
	for _, path := range paths {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(path), "."))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

func waitMarks(t *testing.T, dir, what string, n int) []int {
	t.Helper()
	eventually(t, fmt.Sprintf("%d times %s", n, what), func() bool { return len(marks(t, dir, what)) >= n })
	return marks(t, dir, what)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, patience, 10*time.Millisecond, what)
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// After the name in parentheses comes the state; a zombie is dead.
	_, rest, ok := strings.Cut(string(b), ") ")
	return ok && !strings.HasPrefix(rest, "Z")
}
