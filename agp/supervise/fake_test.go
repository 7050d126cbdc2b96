package supervise

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/engine"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// The test binary plays the engine, or a plugin process, when told so by this
// variable: real processes are what this package is about.
const roleEnv = "AGP_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	if role == "plugin" {
		playPlugin()
	}
	playEngine(role)
}

// playPlugin runs a supervisor, says its engine's pid and waits to be killed.
func playPlugin() {
	s, err := New(Config{
		Command: []string{os.Args[0]}, Env: []string{roleEnv + "=" + os.Getenv("AGP_TEST_ENGINE_ROLE")},
		Configure: configure(), Handler: &found{}, Log: &logLines{},
	})
	if err != nil {
		panic(err)
	}
	s.Start()
	for !s.Status().Up {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(s.Status().Pid)
	select {}
}

func playEngine(role string) {
	sock := os.NewFile(3, "plugin")
	conn := wire.NewConn(sock)
	hello := &agppb.Event{Event: &agppb.Event_Hello{Hello: &agppb.Hello{Protocol: 1, ProtocolMin: 1}}}
	ready := &agppb.Event{Event: &agppb.Event_Ready{Ready: &agppb.Ready{}}}
	switch role {
	case "silent":
		select {}
	case "dies":
		fmt.Fprintln(os.Stderr, "some line")
		panic("out of luck")
	case "garbage":
		_, _ = sock.WriteString(strings.Repeat("GET / HTTP/1.1\r\n", 100))
		select {}
	case "huge":
		_, _ = sock.Write([]byte{0xff, 0xff, 0xff, 0xff, 0x7f})
		select {}
	case "future":
		_ = conn.Send(&agppb.Event{Event: &agppb.Event_Hello{Hello: &agppb.Hello{Protocol: 9, ProtocolMin: 8, Version: "v9"}}})
		select {}
	case "hello-then-hang":
		_ = conn.Send(hello)
		_ = conn.Send(ready)
		select {}
	case "listens":
		_ = conn.Send(hello)
		_ = conn.Send(ready)
		playListener(sock, conn)
	case "stubborn": // ignores every polite request
		signal.Ignore(syscall.SIGTERM)
		_ = conn.Send(hello)
		_ = conn.Send(ready)
		for {
			_ = conn.Send(&agppb.Event{Event: &agppb.Event_Alive{Alive: &agppb.Alive{}}})
			time.Sleep(50 * time.Millisecond)
		}
	case "flood":
		_ = conn.Send(hello)
		_ = conn.Send(ready)
		for {
			if conn.Send(&agppb.Event{Event: &agppb.Event_Log{Log: &agppb.Log{Level: agppb.Log_ERROR, Text: "flood"}}}) != nil {
				os.Exit(0)
			}
		}
	case "parent": // has a child of its own and dies without it
		sleep := exec.Command("sleep", "1000")
		sleep.Stderr = os.Stderr
		if err := sleep.Start(); err != nil {
			panic(err)
		}
		_ = conn.Send(hello)
		_ = conn.Send(ready)
		_ = conn.Send(&agppb.Event{Event: &agppb.Event_Log{Log: &agppb.Log{Level: agppb.Log_INFO, Text: fmt.Sprintf("child %d", sleep.Process.Pid)}}})
		select {}
	case "deaf": // lives on after EOF: only the death signal ends it
		_ = conn.Send(hello)
		_ = conn.Send(ready)
		for {
			_ = conn.Send(&agppb.Event{Event: &agppb.Event_Alive{Alive: &agppb.Alive{}}})
			time.Sleep(50 * time.Millisecond)
		}
	}
	err := engine.Serve(context.Background(), sock, engine.Options{
		Version: "test", Gone: func() { os.Exit(1) },
		Build: func(conf *agppb.Configure, sink pipeline.Sink, log engine.Log) (*engine.Built, error) {
			if role == "refuses" {
				return nil, fmt.Errorf("%w: no such file", engine.ErrConfig)
			}
			p := &fakePipeline{sink: sink, skip: conf.GetSource().GetSkipFrames(), total: 1 << 60}
			if role == "short" {
				p.total = shortPackets
			}
			if role == "backlog" {
				p.backlog = 1 << 30
			}
			if strings.HasPrefix(role, "gpu-") {
				if p.kind = "cuda"; conf.GetGpuFailed() != "" {
					p.kind = "cpu"
				}
				p.dies = role == "gpu-dies"
			}
			return &engine.Built{
				Pipeline: p, Source: "fake", Kind: cmp.Or(p.kind, "fake"), Why: conf.GetGpuFailed(), Queues: 1, Models: conf.GetModels(),
				Swap: func(paths []string) ([]string, error) { return paths, nil },
			}, nil
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// shortPackets is how many packets the source of the role "short" has.
const shortPackets = 1000

// fakePipeline sees a packet per 100 us; every tenth closes a flow of ten packets.
type fakePipeline struct {
	sink        pipeline.Sink
	skip, total uint64
	backlog     uint64 // packets of open flows at the end, which end bit by bit
	kind        string // "cuda" fails at once
	dies        bool   // without a word
	seen        atomic.Uint64
	recorded    atomic.Uint64
}

func (p *fakePipeline) Run(ctx context.Context) error {
	if p.kind == "cuda" {
		if p.dies {
			os.Exit(3)
		}
		return fmt.Errorf("%w: XID 48", cuda.ErrDevice)
	}
	rec := telemetry.Record{IPVersion: 4, Protocol: 6, FirstReplyNs: -1, TCPHandshakeNs: -1}
	if p.backlog > 0 {
		p.seen.Store(p.backlog)
		<-ctx.Done()
		for rec.Dir[0].Packets = 10; p.recorded.Load()+10 <= p.backlog; p.recorded.Add(10) {
			p.sink.Record(&rec)
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	for p.seen.Load()+p.skip < p.total && ctx.Err() == nil {
		if n := p.seen.Add(1); n%10 == 0 {
			rec.Dir[0].Packets = 10
			p.sink.Record(&rec)
			p.recorded.Store(n)
		}
		time.Sleep(100 * time.Microsecond)
	}
	if seen := p.seen.Load(); seen > p.recorded.Load() {
		rec.Dir[0].Packets = seen - p.recorded.Load()
		p.sink.Record(&rec)
		p.recorded.Store(seen)
	}
	p.sink.Alert(&telemetry.Alert{Kind: "end"})
	return nil
}

func (p *fakePipeline) Snapshot(s *telemetry.Snapshot) {
	s.Reset()
	s.Engine.Pipeline = p.kind
	recorded, seen := p.recorded.Load(), p.seen.Load()
	s.Engine.PacketsSeen, s.Engine.PacketsRecorded, s.Engine.PacketsActive = seen, recorded, seen-recorded
	s.Engine.Records = (recorded + 9) / 10
	if seen > recorded {
		s.Engine.FlowsActive = 1
	}
	s.Traffic = append(s.Traffic, telemetry.TrafficRow{Protocol: 6, Packets: recorded, Flows: s.Engine.Records})
	s.Queues = append(s.Queues, telemetry.QueueRow{Packets: seen, Drops: map[string]uint64{"none": 0}, Depth: -1})
	s.Top = append(s.Top, telemetry.TopRow{Metric: "src_bytes", Rank: 1, Value: seen})
}

func (p *fakePipeline) SwapModels(*model.Set) {}

func configure() *agppb.Configure {
	return &agppb.Configure{
		Source: &agppb.Source{Kind: "pcap"}, Emit: &agppb.Emit{Flows: "all"},
		SnapshotIntervalNs: int64(5 * time.Millisecond),
	}
}

type found struct {
	mu      sync.Mutex
	records int
	packets uint64
	alerts  []string
}

func (f *found) Record(r *telemetry.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records++
	f.packets += r.Dir[0].Packets
}

func (f *found) Alert(a *telemetry.Alert) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alerts = append(f.alerts, a.Kind)
}

type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) add(level, format string, args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, level+" "+fmt.Sprintf(format, args...))
}

func (l *logLines) Errorf(format string, args ...any) { l.add("E!", format, args) }
func (l *logLines) Warnf(format string, args ...any)  { l.add("W!", format, args) }
func (l *logLines) Infof(format string, args ...any)  { l.add("I!", format, args) }
func (l *logLines) Debugf(format string, args ...any) { l.add("D!", format, args) }

// loud returns the lines above info level.
func (l *logLines) loud() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.lines {
		if strings.HasPrefix(s, "E!") || strings.HasPrefix(s, "W!") {
			out = append(out, s)
		}
	}
	return out
}

// manualClock stands still until a test moves it; After fires when it is reached.
type manualClock struct {
	mu      sync.Mutex
	now     time.Time
	waiting map[chan time.Time]time.Time
	delays  []time.Duration
}

func newManualClock() *manualClock {
	return &manualClock{now: time.Unix(1e9, 0), waiting: map[chan time.Time]time.Time{}}
}

func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	c.waiting[ch] = c.now.Add(d)
	c.delays = append(c.delays, d)
	return ch
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for ch, at := range c.waiting {
		if !c.now.Before(at) {
			ch <- c.now
			delete(c.waiting, ch)
		}
	}
}

func (c *manualClock) asked() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Duration(nil), c.delays...)
}

func start(t *testing.T, role string, change func(*Config)) (*Supervisor, *found, *logLines) {
	t.Helper()
	f, l := &found{}, &logLines{}
	cfg := Config{
		Command: []string{os.Args[0]}, Env: []string{roleEnv + "=" + role}, Version: "test",
		Configure: configure(), Handler: f, Log: l,
		Backoff: Backoff{Min: 10 * time.Millisecond, Max: 40 * time.Millisecond},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(s.Stop)
	return s, f, l
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 10*time.Second, 2*time.Millisecond, what)
}

func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func firstLine(t *testing.T, r io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}
