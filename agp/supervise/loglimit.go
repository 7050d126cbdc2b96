package supervise

import (
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// Log lines of the engine: a burst, then a trickle. Debug lines count too.
const (
	logBurst    = 20
	logInterval = time.Second // one line more per interval
)

// logLimiter passes the engine's log on at a bounded rate. It is used by the
// reading goroutine; suppressed may be read by any.
type logLimiter struct {
	clock      Clock
	tokens     int
	last       time.Time
	suppressed atomic.Uint64
	reported   uint64
}

func (l *logLimiter) log(to Logger, level agppb.Log_Level, text string) {
	now := l.clock.Now()
	if l.last.IsZero() {
		l.tokens, l.last = logBurst, now
	}
	if n := int64(now.Sub(l.last) / logInterval); n > 0 {
		l.tokens = int(min(int64(l.tokens)+n, logBurst))
		l.last = now
	}
	if l.tokens == 0 {
		l.suppressed.Add(1)
		return
	}
	l.tokens--
	if n := l.suppressed.Load(); n > l.reported {
		to.Warnf("Engine: %d log lines suppressed", n-l.reported)
		l.reported = n
	}
	switch level {
	case agppb.Log_DEBUG:
		to.Debugf("Engine: %s", text)
	case agppb.Log_INFO:
		to.Infof("Engine: %s", text)
	case agppb.Log_WARN:
		to.Warnf("Engine: %s", text)
	default:
		to.Errorf("Engine: %s", text)
	}
}
