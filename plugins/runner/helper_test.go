package runner

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs"
	"github.com/influxdata/telegraf/plugins/parsers/influx"
	"github.com/influxdata/telegraf/plugins/processors"
)

// toyInput is a service input whose behaviour the tests set.
type toyInput struct {
	Text    string            `toml:"text"`
	Count   int               `toml:"count"`
	Timeout config.Duration   `toml:"timeout"`
	Size    config.Size       `toml:"size"`
	Times   []config.Duration `toml:"times"`
	Models  []toyModel        `toml:"models"`
	Log     telegraf.Logger   `toml:"-"`

	init   func() error
	start  func(telegraf.Accumulator) error
	gather func(telegraf.Accumulator) error
	stop   func()
	reload func() error

	acc     telegraf.Accumulator
	starts  atomic.Int32
	gathers atomic.Int32
	stops   atomic.Int32
	reloads atomic.Int32
}

type toyModel struct {
	Path    string          `toml:"path"`
	Timeout config.Duration `toml:"timeout"`
}

func (*toyInput) SampleConfig() string { return "[[inputs.toy]]\n  # text = \"\"\n" }

func (i *toyInput) Init() error {
	if i.init != nil {
		return i.init()
	}
	return nil
}

func (i *toyInput) Start(acc telegraf.Accumulator) error {
	i.acc = acc
	i.starts.Add(1)
	if i.start != nil {
		return i.start(acc)
	}
	return nil
}

func (i *toyInput) Gather(acc telegraf.Accumulator) error {
	i.gathers.Add(1)
	if i.gather != nil {
		return i.gather(acc)
	}
	return nil
}

func (i *toyInput) Stop() {
	if i.stop != nil {
		i.stop()
	}
	i.stops.Add(1)
}

type toyReloader struct{ toyInput }

func (i *toyReloader) Reload() error {
	i.reloads.Add(1)
	return i.reload()
}

// toyProcessor is a streaming processor whose behaviour the tests set.
type toyProcessor struct {
	Text string          `toml:"text"`
	Log  telegraf.Logger `toml:"-"`

	acc  telegraf.Accumulator
	add  func(telegraf.Metric, telegraf.Accumulator) error
	stop func(telegraf.Accumulator)

	adds  atomic.Int32
	stops atomic.Int32
}

func (*toyProcessor) SampleConfig() string { return "[[processors.toy]]\n" }

func (p *toyProcessor) Start(acc telegraf.Accumulator) error {
	p.acc = acc
	return nil
}

func (p *toyProcessor) Add(m telegraf.Metric, acc telegraf.Accumulator) error {
	p.adds.Add(1)
	if p.add != nil {
		return p.add(m, acc)
	}
	acc.AddMetric(m)
	return nil
}

func (p *toyProcessor) Stop() {
	if p.stop != nil {
		p.stop(p.acc)
	}
	p.stops.Add(1)
}

// buffer is an io.Writer to look into while it is written.
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

// harness runs Run with the ends of its streams in the hands of the test.
type harness struct {
	t       *testing.T
	stdin   *os.File // write end
	out     buffer   // what telegraf has read
	stdout  *os.File // telegraf's end of standard output
	stderr  buffer
	signals chan os.Signal
	exits   chan int
	code    chan int
	reading chan struct{} // closed at the end of standard output
}

const longTime = 10 * time.Second

// launch starts Run. hold leaves standard output unread.
func launch(t *testing.T, o Options, hold bool) *harness {
	t.Helper()
	h := &harness{
		t:       t,
		signals: make(chan os.Signal, 4),
		exits:   make(chan int, 1),
		code:    make(chan int, 1),
		reading: make(chan struct{}),
	}
	stdin, w, err := os.Pipe()
	require.NoError(t, err)
	h.stdin = w
	r, stdout, err := os.Pipe()
	require.NoError(t, err)
	h.stdout = r
	o.Stdin, o.Stdout, o.Stderr = stdin, stdout, &h.stderr
	o.Signals = h.signals
	o.Exit = func(code int) { h.exits <- code }
	if o.SelfInterval == 0 {
		o.SelfInterval = -1
	}
	if hold {
		close(h.reading)
	} else {
		go func() {
			defer close(h.reading)
			_, _ = io.Copy(&h.out, r)
		}()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.code <- Run(context.Background(), o)
		stdout.Close()
		stdin.Close()
	}()
	t.Cleanup(func() {
		w.Close()
		if hold {
			r.Close()
		}
		<-done
		<-h.reading
		r.Close()
	})
	return h
}

func launchInput(t *testing.T, i telegraf.Input) *harness {
	t.Helper()
	return launch(t, Options{Inputs: oneInput(i)}, false)
}

func launchProcessor(t *testing.T, p telegraf.StreamingProcessor) *harness {
	t.Helper()
	return launch(t, Options{Processors: oneProcessor(p)}, false)
}

func oneInput(i telegraf.Input) map[string]inputs.Creator {
	return map[string]inputs.Creator{"toy": func() telegraf.Input { return i }}
}

func oneProcessor(p telegraf.StreamingProcessor) map[string]processors.StreamingCreator {
	return map[string]processors.StreamingCreator{"toy": func() telegraf.StreamingProcessor { return p }}
}

// wait returns the exit code.
func (h *harness) wait() int {
	h.t.Helper()
	select {
	case code := <-h.code:
		<-h.reading
		return code
	case <-time.After(longTime):
		require.FailNow(h.t, "Run did not return", "stderr: %s", h.stderr.String())
		return -1
	}
}

func (h *harness) stopByEOF() int {
	h.t.Helper()
	require.NoError(h.t, h.stdin.Close())
	return h.wait()
}

func (h *harness) request() {
	h.t.Helper()
	_, err := h.stdin.WriteString("\n")
	require.NoError(h.t, err)
}

// metrics parses what was read so far with telegraf's own parser.
func (h *harness) metrics() []telegraf.Metric {
	h.t.Helper()
	return parseLines(h.t, h.out.String())
}

func parseLines(t testing.TB, text string) []telegraf.Metric {
	t.Helper()
	var p influx.Parser
	require.NoError(t, p.Init())
	metrics, err := p.Parse([]byte(text))
	require.NoError(t, err, text)
	return metrics
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, longTime, time.Millisecond, what)
}

func (h *harness) eventuallyOut(substring string) {
	h.t.Helper()
	eventually(h.t, "output has "+substring, func() bool { return strings.Contains(h.out.String(), substring) })
}

func value(v any) map[string]interface{} { return map[string]interface{}{"value": v} }
