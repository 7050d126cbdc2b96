package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
)

// terminal is a program in a pseudo terminal.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	tty  *os.File
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func inTerminal(t *testing.T, cmd *exec.Cmd, rows, cols uint16) *terminal {
	t.Helper()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: cols})
	require.NoError(t, err)
	x := &terminal{t: t, cmd: cmd, tty: tty, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		_, _ = io.Copy(x, tty)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = tty.Close(); <-x.done })
	return x
}

func (x *terminal) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.Write(b)
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

func (x *terminal) wait(what string) {
	x.t.Helper()
	require.Eventually(x.t, func() bool { return strings.Contains(x.text(), what) }, 20*time.Second, 10*time.Millisecond, what)
}

func (x *terminal) quit() {
	x.t.Helper()
	_, err := x.tty.WriteString("q")
	require.NoError(x.t, err)
	ended := make(chan error, 1)
	go func() { ended <- x.cmd.Wait() }()
	select {
	case err := <-ended:
		require.NoError(x.t, err)
	case <-time.After(10 * time.Second):
		require.Fail(x.t, "q does not end it")
	}
}

// watchable runs the plugin on a capture that takes a minute, with a socket for viewers.
func watchable(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "agp")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	conf, socket := filepath.Join(dir, "agp.conf"), filepath.Join(dir, "v")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "[[inputs.agp]]\n  files = [%q]\n  models = [\"none\"]\n  speed = 10.0\n  interface = \"lab\"\n  view_socket = %q\n",
		demoCapture(t), socket), 0o600))
	cmd := program("run", "--config", conf)
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(t, func() bool {
		out, _, _ := call(t, "top", "--once", "--socket", socket)
		return strings.Contains(out, "running") && strings.Contains(out, "TOP src_bytes")
	}, 30*time.Second, 50*time.Millisecond)
	return socket
}

var colour = regexp.MustCompile(`\x1b\[[0-9;]*\b(3[0-7]|38|9[0-7])\b[0-9;]*m`)

func TestTopWatchesARunningEngineFromTwoTerminals(t *testing.T) {
	socket := watchable(t)
	first := program("top", "--socket", socket)
	first.Env = append(first.Env, "TERM=xterm-256color", "NO_COLOR=", "COLORTERM=")
	second := program("top", "--socket", socket)
	second.Env = append(second.Env, "TERM=xterm-256color", "NO_COLOR=1")
	a, b := inTerminal(t, first, 40, 130), inTerminal(t, second, 12, 50)
	for _, x := range []*terminal{a, b} {
		x.wait("lab")
		x.wait("pkt/s") // of the second view
	}
	a.wait("TOP src_bytes")
	_, err := a.tty.WriteString("\t")
	require.NoError(t, err)
	rows := uint16(30)
	require.Eventually(t, func() bool {
		rows ^= 1 // all is drawn anew, not only what changed
		return pty.Setsize(a.tty, &pty.Winsize{Rows: rows, Cols: 90}) == nil && strings.Contains(a.text(), "TOP dst_bytes")
	}, 20*time.Second, 200*time.Millisecond)
	require.Regexp(t, colour, a.text())
	require.NotRegexp(t, colour, b.text(), "NO_COLOR is obeyed")
	// One that does not read disturbs neither the other nor a third.
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGSTOP))
	seen := len(a.text())
	require.Eventually(t, func() bool { return len(a.text()) > seen+20 }, 10*time.Second, 10*time.Millisecond)
	out, _, code := call(t, "top", "--once", "--socket", socket)
	require.Zero(t, code)
	require.Contains(t, out, "lab  running")
	a.quit()
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGCONT))
	b.quit()
	require.Contains(t, a.text(), "\x1b[?1049l", "the terminal is as it was")
}

func TestTopOncePrintsAPlainFrame(t *testing.T) {
	out, log, code := call(t, "top", "--once", "--socket", watchable(t))
	require.Zero(t, code, log)
	require.NotContains(t, out, "\x1b")
	require.Regexp(t, `(?m)^packets +\d+(\.\d)? k?pkt/s`, out)
	for _, part := range []string{"TOP src_bytes", "ALERTS", "QUEUES AND DROPS", "LATENCY", " queues, "} {
		require.Contains(t, out, part)
	}
	require.NotContains(t, out, "GPU", "there is none")
}

func TestTopWithoutAPluginNamesThePath(t *testing.T) {
	for _, args := range [][]string{{"--socket", "/does/not/exist", "--once"}} {
		_, log, code := call(t, append([]string{"top"}, args...)...)
		require.Equal(t, 1, code)
		require.Contains(t, log, "top: "+control.ErrNoView.Error()+": dial unix /does/not/exist")
	}
	_, log, code := call(t, "top")
	require.Equal(t, 2, code)
	require.Contains(t, log, "--once")
	_, log, code = call(t, "top", "x")
	require.Equal(t, 2, code)
	require.Contains(t, log, "usage: telegraf-agp top")
}
