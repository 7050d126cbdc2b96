package agp

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/processors"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	inputs "github.com/agp-net/telegraf-agp/plugins/inputs/agp"
)

//go:embed sample.conf
var sampleConfig string

// ErrConfig wraps every complaint about the configuration; its message names
// the key, the value and what is allowed.
var ErrConfig = errors.New("invalid configuration")

// AGP is the plugin. Exported fields are the configuration, see sample.conf.
type AGP struct {
	Interface      string             `toml:"interface"`
	ReportInterval config.Duration    `toml:"report_interval"`
	PairTimeout    config.Duration    `toml:"pair_timeout"`
	LateAfter      config.Duration    `toml:"late_after"`
	MaxFlows       int                `toml:"max_flows"`
	TopK           int                `toml:"top_k"`
	SketchState    bool               `toml:"sketch_state"`
	SketchWindow   config.Duration    `toml:"sketch_window"`
	Models         []string           `toml:"models"`
	Detect         map[string]float64 `toml:"detect"`
	Mappings       []Mapping          `toml:"mapping"`

	Log telegraf.Logger `toml:"-"`

	mappings  map[string][]Mapping // by measurement
	converter *inputs.Converter

	mu       sync.Mutex // guards what follows
	acc      telegraf.Accumulator
	buffer   *buffer
	clocks   clocks
	analysis *analysis
	classes  *classifier
	count    counters
	snapshot telemetry.Snapshot

	quit chan struct{}
	done sync.WaitGroup
}

// counters of agp_processor, since the start.
type counters struct {
	metrics, flows, fresh, paired, continued, duplicates, late, sampled, early, scored, alerts uint64
	refused                                                                                    map[string]uint64
}

// New returns a plugin with the defaults of sample.conf.
func New() *AGP {
	return &AGP{
		Interface: "flows", ReportInterval: config.Duration(10 * time.Second), PairTimeout: config.Duration(10 * time.Second),
		LateAfter: config.Duration(5 * time.Minute), MaxFlows: 1 << 16, TopK: summary.DefaultTopK, SketchWindow: config.Duration(time.Minute),
	}
}

func init() {
	processors.AddStreaming("agp", func() telegraf.StreamingProcessor { return New() })
}

// SampleConfig implements telegraf.PluginDescriber.
func (*AGP) SampleConfig() string { return sampleConfig }

func bad(key string, value any, allowed string) error {
	if s, ok := value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	return fmt.Errorf("%w: %s = %v, allowed: %s", ErrConfig, key, value, allowed)
}

// needPackets are thresholds of detectors that look into flows, and what no meter exports.
var needPackets = map[string]string{
	"icmp_tunnel": "how the sizes of packets vary", "icmp_tunnel_std": "how the sizes of packets vary",
	"covert_timing": "the times of packets", "one_way_push": "exact payload",
}

func (a *AGP) check() error {
	span := func(key string, v config.Duration, low, high time.Duration) error {
		if d := time.Duration(v); d < low || d > high {
			return bad(key, d, low.String()+" to "+high.String())
		}
		return nil
	}
	within := func(key string, v, low, high int) error {
		if v < low || v > high {
			return bad(key, v, fmt.Sprintf("%d to %d", low, high))
		}
		return nil
	}
	errs := []error{
		span("report_interval", a.ReportInterval, time.Second, time.Hour),
		span("pair_timeout", a.PairTimeout, 100*time.Millisecond, time.Hour),
		span("late_after", a.LateAfter, time.Second, options.MaxTimeout),
		within("max_flows", a.MaxFlows, 1024, 1<<22),
		within("top_k", a.TopK, 1, 999),
	}
	if a.Interface == "" {
		errs = append(errs, bad("interface", a.Interface, "a name"))
	}
	if a.SketchWindow != 0 {
		errs = append(errs, span("sketch_window", a.SketchWindow, options.MinTimeout, options.MaxTimeout))
	}
	if err := options.CheckThresholds(a.Detect); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Detect)) {
		if what, ok := needPackets[name]; ok {
			errs = append(errs, bad("detect."+name, a.Detect[name], "thresholds of other detectors, because flow metrics do not tell "+what))
		}
	}
	for i := range a.Mappings {
		errs = append(errs, a.Mappings[i].check(fmt.Sprintf("mapping[%d]", i)))
	}
	return errors.Join(errs...)
}

// Init implements telegraf.Initializer. It checks the configuration and starts nothing.
func (a *AGP) Init() error {
	if err := a.check(); err != nil {
		return err
	}
	thresholds, err := detect.ParseConfig(a.Detect)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	// What is left of these rules without packets is guesswork.
	thresholds.ICMPTunnel, thresholds.CovertTiming, thresholds.OneWayPush = -1, -1, -1
	conf := &summary.Config{TopK: a.TopK, WindowNs: int64(a.SketchWindow), Serialize: a.SketchState}
	if a.analysis, err = newAnalysis(thresholds, conf, a.alert); err != nil {
		return err
	}
	models, err := loadModels(a.Models)
	if err != nil {
		return err
	}
	a.classes = newClassifier(models)
	a.buffer, a.clocks = newBuffer(a.MaxFlows), newClocks()
	a.count.refused = map[string]uint64{}
	for _, why := range refusals {
		a.count.refused[why.Error()] = 0
	}
	a.mappings = map[string][]Mapping{}
	for _, m := range append(slices.Clone(a.Mappings), known...) { // the configuration's come first
		a.mappings[m.Measurement] = append(a.mappings[m.Measurement], m)
	}
	a.converter = inputs.NewConverter(inputs.ConverterOptions{Interface: a.Interface})
	return nil
}

// Start implements telegraf.StreamingProcessor.
func (a *AGP) Start(acc telegraf.Accumulator) error {
	a.acc, a.quit = acc, make(chan struct{})
	a.done.Go(a.run)
	return nil
}

// run turns the buffer over and reports until Stop.
func (a *AGP) run() {
	turns, reports := time.NewTicker(time.Duration(a.PairTimeout)), time.NewTicker(time.Duration(a.ReportInterval))
	defer turns.Stop()
	defer reports.Stop()
	for {
		select {
		case <-turns.C:
			a.mu.Lock()
			a.turn()
			a.mu.Unlock()
		case <-reports.C:
			a.mu.Lock()
			a.report()
			a.mu.Unlock()
		case <-a.quit:
			return
		}
	}
}

// Add implements telegraf.StreamingProcessor: the metric goes on before anything else is done,
// and is not touched afterwards.
func (a *AGP) Add(m telegraf.Metric, acc telegraf.Accumulator) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count.metrics++
	s, isFlow, err := a.read(m)
	scored, alert, badHistogram := a.classes.classify(m)
	name := m.Name()
	acc.AddMetric(m)
	if scored {
		a.count.scored++
	}
	if alert != nil {
		a.alert(alert)
	}
	if err = errors.Join(err, badHistogram); err != nil {
		a.refuse(name, err)
		return nil
	}
	if isFlow {
		a.flow(&s)
	}
	return nil
}

// read returns the flow that a metric is.
func (a *AGP) read(m telegraf.Metric) (s seen, ok bool, err error) {
	list := a.mappings[m.Name()]
	for i := range list {
		if list[i].fits(m) {
			s, err = list[i].read(m)
			if err == nil {
				a.clocks.set(&s, m.Time().UnixNano())
			}
			return s, true, err
		}
	}
	return s, false, nil
}

// refuse counts; the first of a kind is told.
func (a *AGP) refuse(name string, err error) {
	for _, why := range refusals {
		if !errors.Is(err, why) {
			continue
		}
		if a.count.refused[why.Error()]++; a.count.refused[why.Error()] == 1 {
			a.Log.Warnf("A metric %q cannot be read: %v; others like it are only counted", name, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
}

// flow takes a flow into the buffer. What ended long before the newest flow that went to the
// detectors is late: it would be judged in windows that have closed.
func (a *AGP) flow(s *seen) {
	a.count.flows++
	if s.end < a.analysis.now-int64(a.LateAfter) {
		a.count.late++
		return
	}
	if s.single || s.sampling > 1 {
		a.count.sampled++
		s.sampling = max(s.sampling, 2) // never to the detectors, which would take the rest for missing
	}
	if a.buffer.full() {
		a.count.early += uint64(len(a.buffer.old))
		a.turn()
	}
	switch a.buffer.add(s) {
	case duplicate:
		a.count.duplicates++
	case continued:
		a.count.continued++
	case paired:
		a.count.paired++
	case fresh:
		a.count.fresh++
	}
}

func (a *AGP) turn() { a.analysis.take(a.buffer.turn()) }

// alert reports a finding.
func (a *AGP) alert(found *telemetry.Alert) {
	a.count.alerts++
	found.Interface = a.Interface
	a.converter.Alert(found, time.Now(), a.acc)
}

func (a *AGP) report() {
	now := time.Now()
	if a.analysis.now > 0 {
		a.analysis.snapshot(&a.snapshot)
		a.converter.Summaries(&a.snapshot, now, a.acc)
	}
	c, stats := &a.count, a.analysis.detector.Stats()
	fields := map[string]any{
		"metrics": c.metrics, "flows": c.flows, "flows_single": c.fresh, "flows_paired": c.paired, "flows_continued": c.continued,
		"flows_duplicate": c.duplicates, "flows_late": c.late, "flows_sampled": c.sampled, "flows_early": c.early,
		"flows_waiting": uint64(a.buffer.len()), "flows_analysed": stats.Ends, "clock_steps": a.clocks.steps,
		"scored": c.scored, "alerts": c.alerts, "suppressed": stats.Suppressed, "evicted": stats.Evicted,
	}
	var sum uint64
	for why, n := range c.refused {
		fields["refused_"+why] = n
		sum += n
	}
	fields["refused"] = sum
	for name, v := range fields {
		fields[name] = int64(v.(uint64) & (1<<63 - 1))
	}
	a.acc.AddCounter("agp_processor", fields, map[string]string{"interface": a.Interface}, now)
}

// Stop implements telegraf.StreamingProcessor: all that waits is judged and reported.
func (a *AGP) Stop() {
	close(a.quit)
	a.done.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn()
	a.turn()
	a.report()
}
