package rig

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agp-net/telegraf-agp/tests/netns"
)

// Process is a plugin, or a telegraf with a plugin, and what it has printed.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    buffer
	log    buffer
	exited chan struct{}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Run starts a command inside a namespace. Closing its standard input, which happens when
// this process ends, ends a plugin.
func Run(ns *netns.NS, cmd *exec.Cmd) (*Process, error) {
	return run(cmd, func() error { return ns.Start(cmd) })
}

func run(cmd *exec.Cmd, start func() error) (*Process, error) {
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.log
	cmd.WaitDelay = time.Second
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// RunOn starts a command inside a namespace on the given CPUs.
func RunOn(ns *netns.NS, cmd *exec.Cmd, cpus ...int) (*Process, error) {
	return run(cmd, func() error { return ns.Do(func() error { return onCPUs(cpus, cmd.Start) }) })
}

// Plugin starts the plugin as telegraf does.
func Plugin(ns *netns.NS, binary, config string) (*Process, error) {
	return Run(ns, exec.Command(binary, "run", "--config", config))
}

// Gather asks a plugin for metrics.
func (p *Process) Gather() error {
	_, err := p.stdin.Write([]byte("\n"))
	return err
}

// Out is what was printed to standard output.
func (p *Process) Out() string { return p.out.String() }

// Log is what was printed to standard error.
func (p *Process) Log() string { return p.log.String() }

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Alive says whether the process runs.
func (p *Process) Alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill is kill -9. It waits for the end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = p.stdin.Close()
}

// Stop ends the process in order.
func (p *Process) Stop() error {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		_ = p.stdin.Close()
		return nil
	case <-time.After(Patience):
		p.Kill()
		return fmt.Errorf("%s had to be killed: %s", filepath.Base(p.cmd.Path), p.Log())
	}
}

// Engine is the engine that the process, or a child of it, runs; 0 if there is none.
func (p *Process) Engine() int {
	for _, pid := range Descendants(p.Pid()) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && slices.Contains(strings.Split(string(b), "\x00"), "engine") {
			return pid
		}
	}
	return 0
}

// Child is the first child of the process, 0 if there is none.
func (p *Process) Child() int {
	if list := children(p.Pid()); len(list) > 0 {
		return list[0]
	}
	return 0
}

// Descendants are the children of a process and theirs.
func Descendants(pid int) []int {
	var all []int
	for _, c := range children(pid) {
		all = append(append(all, c), Descendants(c)...)
	}
	return all
}

func children(pid int) []int {
	var list []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		b, err := os.ReadFile(path) //nolint:gosec // of a process of the test
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// Exists says whether a process is there and not only waiting to be collected.
func Exists(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	return ok && !strings.HasPrefix(rest, "Z")
}
