package supervise

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// playListener is an engine that says which rules it got.
func playListener(sock *os.File, conn *wire.Conn) {
	for {
		var cmd agppb.Command
		if conn.Receive(&cmd) != nil || cmd.GetStop() != nil {
			os.Exit(0)
		}
		if cmd.GetDrain() != nil {
			_ = conn.Send(&agppb.Event{Event: &agppb.Event_Finished{Finished: &agppb.Finished{}}})
			_ = sock.Close()
			os.Exit(0)
		}
		for _, r := range cmd.GetSteerRules().GetAdd() {
			_ = conn.Send(&agppb.Event{Event: &agppb.Event_Log{Log: &agppb.Log{Level: agppb.Log_INFO, Text: "rule " + r.GetPrefix()}}})
		}
	}
}

func block(prefix string) *agppb.Command {
	return &agppb.Command{Command: &agppb.Command_SteerRules{SteerRules: &agppb.SteerRules{Add: []*agppb.SteerRule{{Prefix: prefix}}}}}
}

func (l *logLines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.lines, "\n"), text)
}

// TestEveryEngineThatIsReadyCanBeSentCommands: the first one, and the one after a crash,
// each from the moment that Ready is called.
func TestEveryEngineThatIsReadyCanBeSentCommands(t *testing.T) {
	var ready atomic.Int32
	var s *Supervisor
	s, _, l := start(t, "listens", func(c *Config) {
		c.Ready = func(*agppb.Ready) { ready.Add(1) }
	})
	eventually(t, "first engine", func() bool { return ready.Load() == 1 })
	require.NoError(t, s.Send(block("192.0.2.1/32")))
	eventually(t, "it got the rule", func() bool { return l.has("rule 192.0.2.1/32") })

	require.NoError(t, syscall.Kill(s.Status().Pid, syscall.SIGKILL))
	eventually(t, "next engine", func() bool { return ready.Load() == 2 })
	require.NoError(t, s.Send(block("192.0.2.2/32")))
	eventually(t, "it got the rule", func() bool { return l.has("rule 192.0.2.2/32") })

	s.Stop()
	require.ErrorIs(t, s.Send(block("192.0.2.3/32")), ErrNoEngine)
}

func TestSendWithoutAnEngineSaysSo(t *testing.T) {
	s, err := New(Config{Command: []string{"x"}, Configure: configure(), Handler: &found{}, Log: &logLines{}})
	require.NoError(t, err)
	require.ErrorIs(t, s.Send(block("192.0.2.1/32")), ErrNoEngine)
}

// TestEngineThatGotHalfACommandIsReplaced: it does not read, so that the socket is full
// in the middle of a command.
func TestEngineThatGotHalfACommandIsReplaced(t *testing.T) {
	s, _, _ := start(t, "stubborn", nil)
	eventually(t, "up", func() bool { return s.Status().Up })
	long := block(strings.Repeat("x", 8<<20))
	require.Error(t, s.Send(long))
	eventually(t, "another one", func() bool { return s.Status().Restarts == 1 && s.Status().Up })
}
