package runner

import (
	"fmt"
	"io"
	stdlog "log" //nolint:depguard // what libraries print is under test
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf"
	telegraflogger "github.com/influxdata/telegraf/logger"
)

func testLogger(level telegraf.LogLevel) (*Logger, *buffer, *time.Time) {
	var out buffer
	now := time.Unix(1000, 0)
	return newLogger(&out, level, func() time.Time { return now }), &out, &now
}

func TestLoggerLevels(t *testing.T) {
	for level := telegraf.Error; level <= telegraf.Trace; level++ {
		l, out, _ := testLogger(level)
		l.Errorf("%d", 1)
		l.Error("e ", 1)
		l.Warnf("%d", 2)
		l.Warn("w ", 2)
		l.Infof("%d", 3)
		l.Info("i ", 3)
		l.Debugf("%d", 4)
		l.Debug("d ", 4)
		l.Tracef("%d", 5)
		l.Trace("t ", 5)
		l.close(longTime)
		all := []string{"E! 1", "E! e 1", "W! 2", "W! w 2", "I! 3", "I! i 3", "D! 4", "D! d 4", "T! 5", "T! t 5"}
		require.Equal(t, strings.Join(all[:2*int(level)], "\n")+"\n", out.String())
		require.Equal(t, level, l.Level())
	}
}

func TestChecklist04_LogLinesAreOneBoundedLine(t *testing.T) {
	l, out, _ := testLogger(telegraf.Info)
	l.AddAttribute("queue", 3)
	l.Info("a\r\nb\nc\rd\x00e\n")
	l.Info(strings.Repeat("é", maxLogLine))
	l.close(longTime)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	require.Equal(t, `I! a | b | c | d\x00e queue=3`, lines[0])
	require.Less(t, len(lines[1]), maxLogLine+16)
	require.True(t, strings.HasSuffix(lines[1], "é… queue=3"))
}

func TestChecklist04_LogIsRateLimited(t *testing.T) {
	l, out, now := testLogger(telegraf.Info)
	for i := range 1000 {
		l.Warnf("lost packet %d", i)
	}
	l.Warn("another kind")
	*now = now.Add(logEvery)
	l.Warnf("lost packet %d", 1000)
	l.close(longTime)
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, logBurst+3)
	require.Equal(t, "W! another kind", lines[logBurst])
	require.Equal(t, "W! lost packet 1000 (990 similar lines suppressed)", lines[logBurst+1])
	require.EqualValues(t, 990, l.suppressed.Load())
}

// Lines without a common format cannot fill memory or the log either.
func TestLoggerBoundsTheNumberOfKinds(t *testing.T) {
	l, out, _ := testLogger(telegraf.Info)
	for i := range 100_000 {
		l.Info("unique line ", i)
	}
	l.close(longTime)
	require.LessOrEqual(t, len(l.kinds), logKeys+1)
	require.LessOrEqual(t, strings.Count(out.String(), "\n"), logKeys+logBurst)
}

func TestLoggerNeverBlocks(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	l := newLogger(w, telegraf.Info, time.Now)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 10_000 {
			l.Info("line ", i)
		}
	}()
	select {
	case <-done:
	case <-time.After(longTime):
		require.Fail(t, "blocked")
	}
	begin := time.Now()
	l.close(10 * time.Millisecond)
	require.Less(t, time.Since(begin), longTime)
	require.Positive(t, l.suppressed.Load())
}

func TestLoggerIsSafeForConcurrentUse(t *testing.T) {
	l, out, _ := testLogger(telegraf.Info)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for range 100 {
				l.Infof(fmt.Sprintf("worker %d", w)+" line %s", strings.Repeat("x", 100))
			}
		})
	}
	workers.Wait()
	l.close(longTime)
	for _, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		require.Regexp(t, `^I! worker \d line x{100}$`, line)
	}
}

// Libraries that print through Go's or telegraf's own logger keep to the rules.
func TestForeignLogLinesAreCaptured(t *testing.T) {
	l, out, _ := testLogger(telegraf.Info)
	captureLogs(l)
	defer captured.Store(nil)
	stdlog.Print("plain")
	stdlog.Printf("W! [serializers.influx] %s", "warned")
	stdlog.Print("D! hidden")
	telegraflogger.New("inputs", "other", "").Error("from telegraf")
	l.close(longTime)
	// telegraf prints its attributes in random order.
	require.Regexp(t, `^I! plain\nW! \[serializers.influx\] warned\nE! \[inputs.other\] \([^)]*\) from telegraf\n$`, out.String())
}
