package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// Patience is how long anything may take that should not take long.
const Patience = 30 * time.Second

// ErrTimeout says that something did not happen in time.
var ErrTimeout = errors.New("not in time")

// Engine is one engine process and what it has reported.
type Engine struct {
	cmd    *exec.Cmd
	conn   *wire.Conn
	sock   *net.UnixConn
	stderr bytes.Buffer // read after exited
	exited chan struct{}
	read   chan struct{} // closed when the socket has ended

	mu       sync.Mutex
	changed  sync.Cond
	ready    *agppb.Ready
	snapshot *agppb.Snapshot
	finished *agppb.Summary
	failure  *agppb.Error
	records  []*agppb.FlowRecord
	log      []string
}

// Interval is that of the snapshots.
const Interval = 20 * time.Millisecond

// Live is the configuration of an engine that counts all that it sees and cuts no flow.
func Live(kind string, interfaces ...string) *agppb.Configure {
	return &agppb.Configure{
		Interface: "test", Pipeline: "cpu", Queues: 2, TopK: 10,
		IdleTimeoutNs: int64(24 * time.Hour), ActiveTimeoutNs: int64(24 * time.Hour), MaxFlows: 1 << 18,
		Emit: &agppb.Emit{Flows: "all"}, SnapshotIntervalNs: int64(Interval),
		Source: &agppb.Source{Kind: kind, Live: &agppb.Live{
			Interfaces: interfaces, SnapLen: 256, RingBytes: 4 << 20, XdpMode: "auto", ZeroCopy: "auto", UmemFrames: 4096,
			MaxBlocked: 1 << 10, Policy: &agppb.SteerPolicy{SampleEvery: 1, SharePermille: 1000},
		}},
	}
}

// Start starts an engine inside a namespace, on the given CPUs if there are any.
// The engine's process does not outlive this one.
func Start(ns *netns.NS, binary string, conf *agppb.Configure, cpus ...int) (*Engine, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "engine"), os.NewFile(uintptr(fds[1]), "plugin")
	defer theirs.Close()
	generic, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, err
	}
	e := &Engine{sock: generic.(*net.UnixConn), exited: make(chan struct{}), read: make(chan struct{})}
	e.changed.L = &e.mu
	e.conn = wire.NewConn(e.sock)
	e.cmd = exec.Command(binary, "engine")
	e.cmd.ExtraFiles = []*os.File{theirs}
	e.cmd.Stderr = &e.stderr
	e.cmd.WaitDelay = time.Second
	if err := ns.Do(func() error { return onCPUs(cpus, e.cmd.Start) }); err != nil {
		_ = e.sock.Close()
		return nil, err
	}
	go func() {
		_ = e.cmd.Wait()
		close(e.exited)
	}()
	go e.receive()
	for _, c := range []*agppb.Command{
		{Command: &agppb.Command_Hello{Hello: &agppb.Hello{Protocol: wire.Version, ProtocolMin: wire.VersionMin, Version: "test"}}},
		{Command: &agppb.Command_Configure{Configure: conf}},
	} {
		if err := e.conn.Send(c); err != nil {
			e.Kill()
			return nil, err
		}
	}
	return e, nil
}

func (e *Engine) receive() {
	defer close(e.read)
	for {
		ev := new(agppb.Event)
		if err := e.conn.Receive(ev); err != nil {
			e.mu.Lock()
			e.changed.Broadcast()
			e.mu.Unlock()
			return
		}
		e.mu.Lock()
		switch v := ev.GetEvent().(type) {
		case *agppb.Event_Ready:
			e.ready = v.Ready
		case *agppb.Event_Snapshot:
			e.snapshot = v.Snapshot
		case *agppb.Event_Records:
			for _, r := range v.Records.GetRecords() {
				e.records = append(e.records, proto.Clone(r).(*agppb.FlowRecord))
			}
		case *agppb.Event_Log:
			e.log = append(e.log, v.Log.GetLevel().String()+" "+v.Log.GetText())
		case *agppb.Event_Error:
			e.failure = v.Error
		case *agppb.Event_Finished:
			e.finished = v.Finished.GetSummary()
		}
		e.changed.Broadcast()
		e.mu.Unlock()
	}
}

// wait waits until what holds; it fails if the engine ends or the time is over.
func (e *Engine) wait(what string, within time.Duration, holds func() bool) error {
	timer := time.AfterFunc(within, func() {
		e.mu.Lock()
		e.changed.Broadcast()
		e.mu.Unlock()
	})
	defer timer.Stop()
	deadline := time.Now().Add(within)
	e.mu.Lock()
	defer e.mu.Unlock()
	for !holds() {
		select {
		case <-e.read:
			if holds() {
				return nil
			}
			return fmt.Errorf("%s: the engine ended: %s", what, e.words())
		default:
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("%s: %w: %s", what, ErrTimeout, e.words())
		}
		e.changed.Wait()
	}
	return nil
}

// words is what the engine said last; mu is held.
func (e *Engine) words() string {
	text := strings.Join(e.log, "\n")
	if e.failure != nil {
		text += "\nerror: " + e.failure.GetText()
	}
	if s := e.snapshot.GetEngine(); s != nil {
		text += fmt.Sprintf("\nseen %d, not for the engine %d, recorded %d, active %d, drops %v, errors %v, suppressed %d",
			s.GetPacketsSeen(), Elsewhere(e.snapshot), s.GetPacketsRecorded(), s.GetPacketsActive(), s.GetDrops(), s.GetErrors(), s.GetSuppressed())
	}
	select {
	case <-e.exited:
		text += "\n" + e.cmd.ProcessState.String() + "\n" + e.stderr.String()
	default:
	}
	return text
}

// Words is what the engine has said, for messages.
func (e *Engine) Words() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.words()
}

// Ready waits until the engine has opened its source.
func (e *Engine) Ready() (*agppb.Ready, error) {
	err := e.wait("ready", Patience, func() bool { return e.ready != nil && e.snapshot != nil })
	return e.ready, err
}

// Snapshot returns the last reading, nil before the first.
func (e *Engine) Snapshot() *agppb.Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.snapshot
}

// Seen is the number of frames that are in flows or in drops of the engine.
func Seen(s *agppb.Snapshot) uint64 {
	e := s.GetEngine()
	n := e.GetPacketsRecorded() + e.GetPacketsActive()
	for _, d := range e.GetDrops() {
		n += d
	}
	return n
}

// elsewhere are the fates of frames that the programs do not give to the engine.
var elsewhere = []string{"not_ip", "kernel_class", "other_class", "sampled_out", "share_out", "blocked", "rate_limited", "redirect_fail"}

// Elsewhere is the number of frames that the programs did not give to the engine.
func Elsewhere(s *agppb.Snapshot) (n uint64) {
	for _, r := range s.GetSteering() {
		if slices.Contains(elsewhere, r.GetTarget()) {
			n += r.GetPackets()
		}
	}
	return n
}

// Accounted is the number of frames of which the engine and its programs know.
func Accounted(s *agppb.Snapshot) uint64 { return Seen(s) + Elsewhere(s) }

// Settled waits until the engine has accounted for n frames.
func (e *Engine) Settled(n uint64, within time.Duration) error {
	return e.wait(fmt.Sprintf("%d frames", n), within, func() bool { return Accounted(e.snapshot) >= n })
}

// Fresh waits for a snapshot that was taken after this call began.
func (e *Engine) Fresh() (*agppb.Snapshot, error) {
	e.mu.Lock()
	first := e.snapshot
	e.mu.Unlock()
	next, seen := first, 0
	err := e.wait("snapshot", Patience, func() bool {
		if e.snapshot != next {
			next = e.snapshot
			seen++
		}
		return seen >= 2 // the first may have been under way
	})
	return next, err
}

// Drain ends the source and returns all records and the last reading.
func (e *Engine) Drain() ([]*agppb.FlowRecord, *agppb.Snapshot, error) {
	if err := e.conn.Send(&agppb.Command{Command: &agppb.Command_Drain{Drain: &agppb.Drain{}}}); err != nil {
		return nil, nil, err
	}
	err := e.wait("drained", Patience, func() bool { return e.finished != nil })
	e.End()
	return e.records, e.snapshot, err
}

// Failure waits for the error with which the engine ends.
func (e *Engine) Failure() (string, bool, error) {
	err := e.wait("failure", Patience, func() bool { return e.failure != nil })
	return e.failure.GetText(), e.failure.GetConfig(), err
}

// Send gives the engine a command.
func (e *Engine) Send(c *agppb.Command) error { return e.conn.Send(c) }

// Pid is the engine's process.
func (e *Engine) Pid() int { return e.cmd.Process.Pid }

// Kill is kill -9.
func (e *Engine) Kill() {
	_ = e.cmd.Process.Kill()
	<-e.exited
	<-e.read
	_ = e.sock.Close()
}

// End closes the socket, upon which an engine ends by itself.
func (e *Engine) End() {
	_ = e.sock.Close()
	select {
	case <-e.exited:
	case <-time.After(Patience):
		_ = e.cmd.Process.Signal(syscall.SIGKILL)
		<-e.exited
	}
	<-e.read
}
