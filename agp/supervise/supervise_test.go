package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestEngineRunsAndStopsWithoutLoss(t *testing.T) {
	s, f, l := start(t, "real", nil)
	var snap telemetry.Snapshot
	eventually(t, "packets", func() bool { s.Snapshot(&snap); return snap.Engine.PacketsSeen > 50 })
	st := s.Status()
	require.True(t, st.Up)
	require.NotZero(t, st.Pid)

	s.Stop()
	st = s.Snapshot(&snap)
	require.False(t, st.Up)
	require.Equal(t, StateStopped, st.State)
	require.False(t, alive(st.Pid))
	require.Zero(t, snap.Engine.PacketsActive, "a drained engine has no open flow")
	require.Equal(t, snap.Engine.PacketsSeen, snap.Engine.PacketsRecorded)
	require.EqualValues(t, snap.Engine.Records, f.records, "every record arrived")
	require.Equal(t, snap.Engine.PacketsSeen, f.packets)
	require.Equal(t, []string{"end"}, f.alerts)
	require.NotEmpty(t, snap.Top, "the last top list stays in view")
	require.Empty(t, l.loud(), "no line above info level when all is well")
	require.Zero(t, st.PacketsLost)
}

func TestFinishedSourceIsNotRestarted(t *testing.T) {
	s, f, l := start(t, "short", nil)
	eventually(t, "finished", func() bool { return s.Status().State == StateFinished })
	var snap telemetry.Snapshot
	st := s.Snapshot(&snap)
	require.EqualValues(t, shortPackets, snap.Engine.PacketsSeen)
	require.Equal(t, shortPackets/10, f.records)
	require.Zero(t, st.Restarts)
	require.EqualValues(t, shortPackets, s.Summary().PacketsSeen)
	require.Empty(t, l.loud())
}

func TestKilledEngineIsRestartedAndCountersStayMonotonic(t *testing.T) {
	s, _, l := start(t, "real", nil)
	var snap telemetry.Snapshot
	var lastPackets, lastTraffic, lastQueue uint64
	observe := func() {
		s.Snapshot(&snap)
		require.GreaterOrEqual(t, snap.Engine.PacketsSeen, lastPackets)
		lastPackets = snap.Engine.PacketsSeen
		require.LessOrEqual(t, len(snap.Traffic), 1, "rows of equal keys are one row")
		if len(snap.Traffic) == 1 {
			require.GreaterOrEqual(t, snap.Traffic[0].Packets, lastTraffic)
			lastTraffic = snap.Traffic[0].Packets
		} else {
			require.Zero(t, lastTraffic, "a row does not vanish")
		}
		if len(snap.Queues) == 1 {
			require.GreaterOrEqual(t, snap.Queues[0].Packets, lastQueue)
			lastQueue = snap.Queues[0].Packets
		}
	}
	for kills := 1; kills <= 3; kills++ {
		before := lastPackets
		eventually(t, "progress", func() bool { observe(); return s.Status().Up && lastPackets > before+20 })
		require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
		eventually(t, "restart", func() bool { observe(); return s.Status().Restarts == uint64(kills) && s.Status().Up })
		require.Len(t, l.loud(), kills, "one line per crash")
		require.Contains(t, l.loud()[kills-1], "engine died: signal: killed")
	}
	s.Stop()
	st := s.Snapshot(&snap)
	require.Equal(t, snap.Engine.PacketsSeen, snap.Engine.PacketsRecorded+st.PacketsLost,
		"what was inside the engines that died is counted")
}

func TestRestartedEngineReadsOnInAFile(t *testing.T) {
	s, _, _ := start(t, "short", nil)
	killed := false
	var snap telemetry.Snapshot
	eventually(t, "finished", func() bool {
		st := s.Snapshot(&snap)
		if !killed && st.Up && snap.Engine.PacketsSeen > 10 {
			killed = syscall.Kill(st.Pid, syscall.SIGKILL) == nil
		}
		return s.Status().State == StateFinished
	})
	require.True(t, killed)
	st := s.Snapshot(&snap)
	require.EqualValues(t, 1, st.Restarts)
	require.EqualValues(t, shortPackets, snap.Engine.PacketsSeen, "no packet is missed, none is counted twice")
	require.EqualValues(t, shortPackets, snap.Engine.PacketsRecorded+st.PacketsLost)
}

func TestCrashLineCarriesTheReasonNotTheTrace(t *testing.T) {
	clock := newManualClock()
	s, _, l := start(t, "dies", func(c *Config) { c.Clock = clock })
	eventually(t, "crash", func() bool { return s.Status().State == StateRestarting })
	eventually(t, "line", func() bool { return len(l.loud()) == 1 })
	require.Contains(t, l.loud()[0], "engine died: exit status 2 (panic: out of luck)")
	require.NotContains(t, l.loud()[0], "goroutine")
}

func TestEngineThatCannotBeStarted(t *testing.T) {
	clock := newManualClock()
	s, _, l := start(t, "", func(c *Config) { c.Command = []string{"/does/not/exist"}; c.Clock = clock })
	eventually(t, "failure", func() bool { return len(clock.asked()) == 1 })
	require.Contains(t, s.Status().LastError, ErrStart.Error())
	require.Len(t, l.loud(), 1)
}

func TestBackoffGrowsIsCappedAndResetsAfterHealth(t *testing.T) {
	clock := newManualClock()
	s, _, l := start(t, "dies", func(c *Config) {
		c.Clock, c.Rand = clock, func() float64 { return 0.5 }
		c.Backoff = Backoff{Min: time.Second, Max: 5 * time.Second, ResetAfter: time.Minute}
	})
	for n := 1; n <= 5; n++ {
		eventually(t, "wait", func() bool { return len(clock.asked()) == n })
		clock.advance(time.Hour)
	}
	eventually(t, "wait", func() bool { return len(clock.asked()) == 6 })
	jittered := func(d time.Duration) time.Duration { return d + d/8 }
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second}
	for i := range want {
		want[i] = jittered(want[i])
	}
	require.Equal(t, want, clock.asked())
	require.Len(t, l.loud(), 1, "the same reason again and again is one line")
	_ = s

	clock = newManualClock()
	s, _, _ = start(t, "real", func(c *Config) {
		c.Clock, c.Rand = clock, func() float64 { return 0 }
		c.Backoff = Backoff{Min: time.Second, Max: 5 * time.Second, ResetAfter: time.Minute}
	})
	for n := 1; n <= 3; n++ {
		eventually(t, "up", func() bool { return s.Status().Up })
		if n == 3 {
			clock.advance(2 * time.Minute) // healthy for long
		}
		require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
		eventually(t, "wait", func() bool { return len(clock.asked()) == n })
		clock.advance(10 * time.Second)
	}
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, time.Second}, clock.asked())
}

// A child that breaks a rule is named for it, killed and restarted.
func TestMisbehavingEngines(t *testing.T) {
	for role, want := range map[string]string{
		"silent":          ErrSilent.Error() + ": 300ms before hello",
		"garbage":         ErrProtocol.Error(),
		"huge":            ErrProtocol.Error() + ": message larger than the protocol allows",
		"future":          "protocol version mismatch: peer v9 speaks 8 to 9, this program 1 to 1",
		"hello-then-hang": ErrSilent.Error() + ": 300ms while running",
		"refuses":         ErrRefused.Error() + ": engine configuration: no such file",
	} {
		t.Run(role, func(t *testing.T) {
			clock := newManualClock()
			s, _, l := start(t, role, func(c *Config) {
				c.HandshakeTimeout, c.AliveTimeout, c.Clock = 300*time.Millisecond, 300*time.Millisecond, clock
				if role != "silent" {
					c.HandshakeTimeout = 10 * time.Second
				}
			})
			var pid int
			eventually(t, "pid", func() bool {
				if p := s.Status().Pid; p != 0 {
					pid = p
				}
				return pid != 0
			})
			eventually(t, "end", func() bool { return s.Status().State == StateRestarting && len(l.loud()) == 1 })
			require.Contains(t, s.Status().LastError, want)
			require.False(t, alive(pid), "the process is gone")
			require.Contains(t, l.loud()[0], want)
		})
	}
}

func TestFloodingEngineIsBoundedAndStoppable(t *testing.T) {
	s, _, l := start(t, "flood", nil)
	eventually(t, "flood", func() bool { return s.Status().LogsSuppressed > 10000 })
	require.Less(t, len(l.loud()), 2*logBurst)
	begin := time.Now()
	s.Stop()
	require.Less(t, time.Since(begin), 4*time.Second)
}

// stopsInTime stops s and checks what holds in every case; it returns the final status.
func stopsInTime(t *testing.T, s *Supervisor, snap *telemetry.Snapshot) (Status, time.Duration) {
	t.Helper()
	begin := time.Now()
	s.Stop()
	took := time.Since(begin)
	require.Less(t, took, 2800*time.Millisecond)
	st := s.Snapshot(snap)
	require.False(t, st.Up)
	require.Zero(t, snap.Engine.PacketsActive, "nothing is active in an engine that is gone")
	require.Zero(t, snap.Engine.FlowsActive)
	require.Equal(t, snap.Engine.PacketsSeen, snap.Engine.PacketsRecorded+st.PacketsLost)
	require.LessOrEqual(t, st.FlowsLost, st.PacketsLost)
	return st, took
}

func TestStopOfAStubbornEngineIsInTime(t *testing.T) {
	s, _, _ := start(t, "stubborn", nil)
	eventually(t, "up", func() bool { return s.Status().Up })
	pid := s.Status().Pid
	stopsInTime(t, s, &telemetry.Snapshot{})
	require.False(t, alive(pid))
}

func TestStopOfAFrozenEngineIsInTimeAndCountsWhatIsLost(t *testing.T) {
	s, _, _ := start(t, "backlog", nil)
	var snap telemetry.Snapshot
	eventually(t, "packets", func() bool { s.Snapshot(&snap); return snap.Engine.PacketsSeen > 0 })
	pid := s.Status().Pid
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	st, _ := stopsInTime(t, s, &snap)
	require.False(t, alive(pid))
	require.EqualValues(t, 1<<30, st.PacketsLost)
	require.Equal(t, ErrCut.Error(), st.LastError)
}

func TestStopOfAnEngineWithTooManyFlowsLosesOnlyWhatDidNotComeInTime(t *testing.T) {
	s, f, _ := start(t, "backlog", nil)
	var snap telemetry.Snapshot
	eventually(t, "packets", func() bool { s.Snapshot(&snap); return snap.Engine.PacketsSeen > 0 })
	st, took := stopsInTime(t, s, &snap)
	require.Greater(t, took, drainGrace, "an engine that makes progress goes on")
	require.NotZero(t, snap.Engine.PacketsRecorded, "snapshots come while it drains")
	require.NotZero(t, st.PacketsLost)
	require.Equal(t, ErrCut.Error(), st.LastError)
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NotZero(t, f.records)
}

// stuck is a handler that never comes back from its first record.
type stuck struct{ free chan struct{} }

func (h stuck) Record(*telemetry.Record) { <-h.free }
func (h stuck) Alert(*telemetry.Alert)   {}

func TestStopWithABlockedHandlerIsInTime(t *testing.T) {
	h := stuck{make(chan struct{})}
	defer close(h.free)
	s, _, _ := start(t, "backlog", func(c *Config) { c.Handler = h })
	eventually(t, "up", func() bool { return s.Status().Up })
	stopsInTime(t, s, &telemetry.Snapshot{})
}

func TestWhatTheEngineStartedEndsWithIt(t *testing.T) {
	s, _, l := start(t, "parent", func(c *Config) { c.Clock = newManualClock() })
	var child int
	eventually(t, "child", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, line := range l.lines {
			if _, err := fmt.Sscanf(line, "I! Engine: child %d", &child); err == nil {
				return true
			}
		}
		return false
	})
	require.True(t, alive(child))
	require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
	eventually(t, "end of the child", func() bool { return !alive(child) })
	eventually(t, "end of the engine", func() bool { return s.Status().State == StateRestarting })
}

func TestStopBeforeTheEngineIsReady(t *testing.T) {
	s, _, l := start(t, "silent", nil)
	eventually(t, "pid", func() bool { return s.Status().Pid != 0 })
	pid := s.Status().Pid
	begin := time.Now()
	s.Stop()
	require.Less(t, time.Since(begin), 2*time.Second)
	require.False(t, alive(pid))
	require.Empty(t, l.loud())
}

func TestStopWhileWaitingToRestart(t *testing.T) {
	s, _, _ := start(t, "dies", func(c *Config) { c.Clock = newManualClock() })
	eventually(t, "wait", func() bool { return s.Status().State == StateRestarting })
	s.Stop()
	require.Equal(t, StateStopped, s.Status().State)
}

// TestEndedIsCalledAfterEveryEngine: killed, and told to stop, when it is gone.
func TestEndedIsCalledAfterEveryEngine(t *testing.T) {
	var ended atomic.Int32
	var last atomic.Int64 // pid of the engine that ran before
	s, _, _ := start(t, "real", func(c *Config) {
		c.Ended = func() {
			if pid := int(last.Load()); pid != 0 && !alive(pid) {
				ended.Add(1)
			}
		}
	})
	eventually(t, "up", func() bool { return s.Status().Up })
	last.Store(int64(s.Status().Pid))
	require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
	eventually(t, "restart", func() bool { return s.Status().Restarts == 1 && s.Status().Up })
	require.EqualValues(t, 1, ended.Load())
	last.Store(int64(s.Status().Pid))
	s.Stop()
	require.EqualValues(t, 2, ended.Load())
}

func TestStartTwiceStopTwiceStartAgain(t *testing.T) {
	s, _, l := start(t, "real", nil)
	s.Start()
	eventually(t, "up", func() bool { return s.Status().Up })
	first := s.Status().Pid
	s.Stop()
	s.Stop()
	require.False(t, alive(first))
	var snap telemetry.Snapshot
	s.Snapshot(&snap)
	before := snap.Engine.PacketsSeen

	s.Start()
	eventually(t, "counting on", func() bool { s.Snapshot(&snap); return snap.Engine.PacketsSeen > before+10 })
	s.Stop()
	require.Empty(t, l.loud())
}

// kill -9 of the plugin leaves no engine after 2 s, with or without its help.
func TestKilledPluginLeavesNoEngine(t *testing.T) {
	for _, role := range []string{"real", "deaf"} {
		t.Run(role, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), roleEnv+"=plugin", "AGP_TEST_ENGINE_ROLE="+role)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			pid, err := strconv.Atoi(firstLine(t, out))
			require.NoError(t, err)
			require.True(t, alive(pid))
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			require.Eventually(t, func() bool { return !alive(pid) }, 2*time.Second, 5*time.Millisecond)
		})
	}
}

func TestSwapModelsReachesTheEngineAndLaterOnes(t *testing.T) {
	s, _, l := start(t, "real", nil)
	eventually(t, "up", func() bool { return s.Status().Up })
	require.NoError(t, s.SwapModels([]string{"a.onnx"}))
	has := func(text string) func() bool {
		return func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return strings.Contains(strings.Join(l.lines, "\n"), text)
		}
	}
	eventually(t, "swap", has("models exchanged: [a.onnx]"))
	require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
	eventually(t, "the new engine starts with them", has("1 queue(s), models a.onnx"))
}

func TestTotalsAddDeadEnginesPerRow(t *testing.T) {
	var tt totals
	engine := func(app string, n uint64, drop string) {
		tt.next = telemetry.Snapshot{
			TimeNs:  int64(n),
			Engine:  telemetry.EngineRow{Source: "pcap", PacketsSeen: n, PacketsActive: 1, FlowsActive: 1, Drops: map[string]uint64{drop: n - 1}},
			Traffic: []telemetry.TrafficRow{{App: app, Protocol: 6, Flows: n, HandshakeSumNs: n}},
			Queues:  []telemetry.QueueRow{{Queue: uint16(n), Packets: n, Drops: map[string]uint64{drop: n}, Depth: 7}},
			GPUs: []telemetry.GPURow{
				{UUID: "GPU-1", XidErrors: new(n), PowerMilliwatts: new(n)},
				{UUID: "GPU-of-" + app, XidErrors: new(n), PowerMilliwatts: new(n)},
			},
		}
		tt.take()
	}
	engine("dns", 1, "arp")
	engine("dns", 3, "arp")
	tt.lose()
	tt.retire()
	tt.lose() // nothing is alive: nothing more is lost
	engine("tls", 4, "arp")

	var s telemetry.Snapshot
	tt.merged(&s)
	require.EqualValues(t, 7, s.Engine.PacketsSeen)
	require.EqualValues(t, 1, s.Engine.PacketsActive, "a gauge is not added")
	require.Equal(t, map[string]uint64{"arp": 5}, s.Engine.Drops)
	require.ElementsMatch(t, []telemetry.TrafficRow{{App: "dns", Protocol: 6, Flows: 3, HandshakeSumNs: 3}, {App: "tls", Protocol: 6, Flows: 4, HandshakeSumNs: 4}}, s.Traffic)
	require.ElementsMatch(t, []telemetry.QueueRow{
		{Queue: 3, Packets: 3, Drops: map[string]uint64{"arp": 3}, Depth: -1},
		{Queue: 4, Packets: 4, Drops: map[string]uint64{"arp": 4}, Depth: 7},
	}, s.Queues)
	require.EqualValues(t, 1, tt.packetsLost)
	require.EqualValues(t, 1, tt.flowsLost)
	four, seven, three := uint64(4), uint64(7), uint64(3)
	require.ElementsMatch(t, []telemetry.GPURow{
		{UUID: "GPU-1", XidErrors: &seven, PowerMilliwatts: &four}, {UUID: "GPU-of-tls", XidErrors: &four, PowerMilliwatts: &four},
		{UUID: "GPU-of-dns", XidErrors: &three},
	}, s.GPUs)
}

func TestNoMoreFlowsAreLostThanPackets(t *testing.T) {
	tt := totals{seen: true}
	tt.current.Engine = telemetry.EngineRow{PacketsSeen: 10, PacketsRecorded: 8, PacketsActive: 2, FlowsActive: 7}
	tt.lose()
	require.EqualValues(t, 2, tt.packetsLost)
	require.EqualValues(t, 2, tt.flowsLost)
	require.Zero(t, tt.current.Engine.FlowsActive)
	require.Zero(t, tt.current.Engine.PacketsActive)
}

func TestNewRefusesAnIncompleteConfig(t *testing.T) {
	_, err := New(Config{})
	require.Error(t, err)
}
