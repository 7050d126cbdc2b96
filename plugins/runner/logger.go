package runner

import (
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/logger"
)

const (
	// maxLogLine is far below the 64 KiB after which execd stops reading
	// standard error.
	maxLogLine = 4 << 10
	// logQueue lines wait for a reader of standard error; more are suppressed.
	logQueue = 256
	// logBurst similar lines pass at once, after that one per logEvery.
	logBurst = 10
	logEvery = 10 * time.Second
	// logKeys bounds how many kinds of lines are told apart.
	logKeys = 256
)

// Logger prints "L! text" lines as inputs.execd and processors.execd expect
// them: one line each, no time, never on standard output. Lines of one kind
// (same format) are limited to a burst and then to one every 10 s that says how
// many were suppressed. It never blocks its caller: when nobody reads standard
// error, lines are suppressed and counted. Safe for concurrent use.
type Logger struct {
	level      atomic.Int32
	suppressed atomic.Uint64 // for good, by the limit or a full queue
	now        func() time.Time

	lines chan string
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once

	mu     sync.Mutex
	suffix string
	kinds  map[string]*logKind
}

type logKind struct {
	tokens  float64
	at      time.Time
	skipped int
}

var _ telegraf.Logger = (*Logger)(nil)

func newLogger(w io.Writer, level telegraf.LogLevel, now func() time.Time) *Logger {
	l := &Logger{
		now:   now,
		lines: make(chan string, logQueue),
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
		kinds: map[string]*logKind{},
	}
	l.level.Store(int32(level))
	go l.write(w)
	return l
}

func (l *Logger) write(w io.Writer) {
	defer close(l.done)
	for {
		select {
		case line := <-l.lines:
			// Nothing can be done about a closed standard error.
			_, _ = io.WriteString(w, line)
			continue
		default:
		}
		select {
		case line := <-l.lines:
			_, _ = io.WriteString(w, line)
		case <-l.quit:
			for {
				select {
				case line := <-l.lines:
					_, _ = io.WriteString(w, line)
				default:
					return
				}
			}
		}
	}
}

// close writes what is queued, as far as the reader takes it before patience
// ends.
func (l *Logger) close(patience time.Duration) {
	l.once.Do(func() { close(l.quit) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
}

// limited prints text unless too many lines of that kind were printed lately.
func (l *Logger) limited(kind string, level telegraf.LogLevel, text string) {
	if !l.Level().Includes(level) {
		return
	}
	skipped, ok := l.allow(kind)
	if !ok {
		l.suppressed.Add(1)
		return
	}
	if skipped > 0 {
		text = fmt.Sprintf("%s (%d similar lines suppressed)", text, skipped)
	}
	l.mu.Lock()
	suffix := l.suffix
	l.mu.Unlock()
	select {
	case l.lines <- level.Indicator() + " " + oneLine(text) + suffix + "\n":
	default:
		l.suppressed.Add(1)
	}
}

func (l *Logger) allow(kind string) (skipped int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		if len(l.kinds) >= logKeys {
			kind = ""
			k = l.kinds[kind]
		}
		if k == nil {
			k = &logKind{tokens: logBurst, at: now}
			l.kinds[kind] = k
		}
	}
	k.tokens = min(logBurst, k.tokens+float64(now.Sub(k.at))/float64(logEvery))
	k.at = now
	if k.tokens < 1 {
		k.skipped++
		return 0, false
	}
	k.tokens--
	skipped, k.skipped = k.skipped, 0
	return skipped, true
}

// oneLine keeps a text on one line of bounded length.
func oneLine(s string) string {
	s = strings.TrimRight(s, "\r\n")
	if strings.ContainsAny(s, "\r\n\x00") {
		s = strings.NewReplacer("\r\n", " | ", "\n", " | ", "\r", " | ", "\x00", `\x00`).Replace(s)
	}
	if len(s) > maxLogLine {
		s = strings.ToValidUTF8(s[:maxLogLine], "") + "…"
	}
	return s
}

// Level returns the level up to which lines are printed.
func (l *Logger) Level() telegraf.LogLevel { return telegraf.LogLevel(l.level.Load()) }

// AddAttribute appends "key=value" to all further lines.
func (l *Logger) AddAttribute(key string, value interface{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suffix += oneLine(fmt.Sprintf(" %s=%v", key, value))
}

func (l *Logger) printf(level telegraf.LogLevel, format string, args []interface{}) {
	if l.Level().Includes(level) {
		l.limited(format, level, fmt.Sprintf(format, args...))
	}
}

func (l *Logger) print(level telegraf.LogLevel, args []interface{}) {
	if l.Level().Includes(level) {
		text := fmt.Sprint(args...)
		l.limited(text, level, text)
	}
}

// Errorf prints an error.
func (l *Logger) Errorf(format string, args ...interface{}) { l.printf(telegraf.Error, format, args) }

// Error prints an error.
func (l *Logger) Error(args ...interface{}) { l.print(telegraf.Error, args) }

// Warnf prints a warning.
func (l *Logger) Warnf(format string, args ...interface{}) { l.printf(telegraf.Warn, format, args) }

// Warn prints a warning.
func (l *Logger) Warn(args ...interface{}) { l.print(telegraf.Warn, args) }

// Infof prints an information.
func (l *Logger) Infof(format string, args ...interface{}) { l.printf(telegraf.Info, format, args) }

// Info prints an information.
func (l *Logger) Info(args ...interface{}) { l.print(telegraf.Info, args) }

// Debugf prints a debugging message.
func (l *Logger) Debugf(format string, args ...interface{}) { l.printf(telegraf.Debug, format, args) }

// Debug prints a debugging message.
func (l *Logger) Debug(args ...interface{}) { l.print(telegraf.Debug, args) }

// Tracef prints a tracing message.
func (l *Logger) Tracef(format string, args ...interface{}) { l.printf(telegraf.Trace, format, args) }

// Trace prints a tracing message.
func (l *Logger) Trace(args ...interface{}) { l.print(telegraf.Trace, args) }

// capture receives what libraries print through Go's standard logger and
// through telegraf's own logger, and passes it on to the runner's. Both are
// process-wide; telegraf's also keeps every line in memory for ever until it is
// given a place to print to.
type capture struct{}

var (
	captured    atomic.Pointer[Logger]
	captureOnce sync.Once
)

// captureLogs makes l the one that prints foreign lines.
func captureLogs(l *Logger) {
	captured.Store(l)
	captureOnce.Do(func() {
		log.SetFlags(0)
		log.SetOutput(capture{})
		logger.RedirectLogging(capture{})
	})
}

// Write handles one line: "[RFC 3339 time ]L! text", or text alone, which
// counts as information.
func (capture) Write(b []byte) (int, error) {
	l := captured.Load()
	if l == nil {
		return len(b), nil
	}
	text := strings.TrimSpace(string(b))
	if stamp, rest, ok := strings.Cut(text, " "); ok {
		if _, err := time.Parse(time.RFC3339, stamp); err == nil {
			text = rest
		}
	}
	level := telegraf.Info
	for _, known := range []telegraf.LogLevel{telegraf.Error, telegraf.Warn, telegraf.Info, telegraf.Debug, telegraf.Trace} {
		if rest, ok := strings.CutPrefix(text, known.Indicator()+" "); ok {
			level, text = known, rest
			break
		}
	}
	l.limited("captured", level, text)
	return len(b), nil
}
