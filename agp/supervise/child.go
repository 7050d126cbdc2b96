package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// child is one engine process.
type child struct {
	cmd  *exec.Cmd
	sock *net.UnixConn
	conn *wire.Conn
	last *lastWords

	abandoned bool   // its reader is left behind; guarded by the supervisor's mu
	pipeline  string // that runs, "" before it is ready; likewise

	exited chan struct{} // closed after Wait
	err    error         // of Wait; read after exited
}

// startChild must run on the locked thread of the loop (see doc.go).
func startChild(argv, env []string) (*child, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "engine"), os.NewFile(uintptr(fds[1]), "plugin")
	defer theirs.Close()
	generic, err := net.FileConn(ours)
	_ = ours.Close() // FileConn has its own copy
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	sock := generic.(*net.UnixConn)

	c := &child{sock: sock, conn: wire.NewConn(sock), last: &lastWords{}, exited: make(chan struct{})}
	c.cmd = exec.Command(argv[0], argv[1:]...) //nolint:gosec // our own binary
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.ExtraFiles = []*os.File{theirs} // fd 3
	c.cmd.Stderr = c.last
	c.cmd.WaitDelay = time.Second // a grandchild may keep stderr open
	c.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // so that a kill reaches whatever the engine started
		Pdeathsig: syscall.SIGTERM, // second safeguard beside EOF on the socket; either lets it put ports back
	}
	if err := c.cmd.Start(); err != nil {
		_ = sock.Close()
		return nil, err
	}
	go c.wait()
	return c, nil
}

// wait collects the process. What it started dies with it, before its number,
// which is also that of the group, is free for another one; that also closes
// whatever copy of the socket is left.
func (c *child) wait() {
	for {
		err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.signal(syscall.SIGKILL)
	c.err = c.cmd.Wait()
	close(c.exited)
}

// signal reaches the whole group. The process must not have been collected.
func (c *child) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.cmd.Process.Pid, sig) // ESRCH: the group is gone already
}

// waitFor reports whether the engine exited within d.
func (c *child) waitFor(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.exited:
		return true
	case <-t.C:
		return false
	}
}

// end lets the engine exit by itself for the given time and after SIGTERM for
// another, then kills it and its group.
func (c *child) end(grace, term time.Duration) {
	if !c.waitFor(grace) {
		c.signal(syscall.SIGTERM)
		if !c.waitFor(term) {
			c.signal(syscall.SIGKILL)
		}
	}
}

// lastWords keeps what is worth telling from a stderr: the line on which the Go
// runtime or a library says why it gives up, else the last line.
type lastWords struct {
	mu      sync.Mutex
	partial []byte
	fatal   string
	last    string
}

var _ io.Writer = (*lastWords)(nil)

const maxLastWords = 512

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		line, rest, found := bytes.Cut(p, []byte{'\n'})
		if room := maxLastWords - len(l.partial); room > 0 {
			l.partial = append(l.partial, line[:min(room, len(line))]...)
		}
		p = rest
		if !found {
			break
		}
		l.take()
	}
	return n, nil
}

func (l *lastWords) take() {
	line := strings.TrimSpace(strings.ToValidUTF8(string(l.partial), "?"))
	l.partial = l.partial[:0]
	if line == "" {
		return
	}
	l.last = line
	if l.fatal == "" && (strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:")) {
		l.fatal = line
	}
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.take()
	if l.fatal != "" {
		return l.fatal
	}
	return l.last
}
