package engine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// Build is the Builder of the program: it opens the source and the models that conf
// names and makes a pipeline, on a GPU if conf says so and one suffices, else on the CPU.
func Build(conf *agppb.Configure, sink pipeline.Sink, log Log) (*Built, error) {
	return Hardware{}.Build(conf, sink, log)
}

// Build is Build with other hardware.
func (h Hardware) Build(conf *agppb.Configure, sink pipeline.Sink, log Log) (*Built, error) {
	h.setDefaults()
	if p := conf.GetPipeline(); !slices.Contains(options.Pipelines(), p) {
		return nil, fmt.Errorf("%w: pipeline = %q, allowed are %q", ErrConfig, p, options.Pipelines())
	}
	if err := checkMode(conf); err != nil {
		return nil, err
	}
	thresholds, err := detect.ParseConfig(conf.GetDetect())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	m := &models{log: log}
	b := &building{hardware: &h, conf: conf, sink: sink, log: log, built: &Built{}, thresholds: thresholds}
	b.scoring = sync.OnceValue(func() *model.Set { return m.load(conf.GetModels()) })
	b.built.Why, err = b.choose()
	if err == nil && b.gpu == nil {
		err = b.onCPU()
	}
	if err != nil {
		return nil, errors.Join(err, b.close(), m.close())
	}
	m.attach(b.built.Pipeline)
	b.built.Models, b.built.Swap, b.built.Finding = m.names(), m.swap, m.finding
	b.built.Close = func() error { return errors.Join(m.close(), b.close()) }
	return b.built, nil
}

// OnGPU is the part of Build that is about the GPU, for a source and models that are open and stay
// the caller's. A nil Pipeline says that the CPU is to be used, Why says why.
func (h Hardware) OnGPU(conf *agppb.Configure, src source.Source, models *model.Set, sink pipeline.Sink, log Log) (*Built, error) {
	h.setDefaults()
	if err := checkMode(conf); err != nil {
		return nil, err
	}
	thresholds, err := detect.ParseConfig(conf.GetDetect())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	b := &building{hardware: &h, conf: conf, sink: sink, log: log, built: &Built{}, thresholds: thresholds, src: src}
	b.scoring = func() *model.Set { return models }
	if b.built.Why, err = b.choose(); err != nil {
		return nil, err
	}
	b.built.Close = func() error {
		if b.gpu == nil {
			return nil
		}
		return b.gpu.close()
	}
	return b.built, nil
}

func checkMode(conf *agppb.Configure) error {
	err := options.CheckMode(conf.GetMode(), options.Wants{
		Pipeline: conf.GetPipeline(), Models: conf.GetModels(), Detect: conf.GetDetect(), Flows: conf.GetEmit().GetFlows(), SketchFeature: conf.GetSketchFeature(),
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// building is one call of Build or OnGPU.
type building struct {
	hardware *Hardware
	conf     *agppb.Configure
	sink     pipeline.Sink
	log      Log
	built    *Built

	thresholds detect.Config
	scoring    func() *model.Set // models to begin with, loaded at the first call

	src    source.Source // once it is open
	failed error         // it cannot be opened
	now    func() int64  // time without packets; nil for captures
	key    [16]byte      // captures are read with the same hashes each time
	gpu    *onGPU        // nil: none
}

// open opens the source, once.
func (b *building) open() error {
	if b.src != nil || b.failed != nil {
		return b.failed
	}
	if b.src, b.failed = b.built.open(b.conf, b.log); b.failed != nil {
		b.src = nil
		return b.failed
	}
	if c, ok := b.src.(*capture); ok {
		b.now, b.key = c.now, randomKey()
	}
	return nil
}

// close gives back what was opened, the GPU first: its relay reads the source.
func (b *building) close() (err error) {
	if b.gpu != nil {
		err = b.gpu.close()
	}
	if b.src != nil {
		err = errors.Join(err, b.src.Close())
	}
	return err
}

func (b *building) onCPU() error {
	if err := b.open(); err != nil {
		return err
	}
	conf := b.conf
	queues := int(min(conf.GetQueues(), cpu.MaxQueues+1)) // one too many is refused by the pipeline
	p, err := cpu.New(cpu.Config{
		Source: b.src, SourceName: conf.GetSource().GetKind(), Interface: conf.GetInterface(), Sink: b.sink, Queues: queues,
		Decap: b.decap(), Flow: b.flows(), Models: b.scoring(), Detect: b.thresholds, Sketch: b.sketches(),
		Now: b.now, Key: b.key, RebalanceSkew: conf.GetSource().GetLive().GetRebalanceSkew(),
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	b.built.Pipeline, b.built.Kind, b.built.Queues = p, options.PipelineCPU, p.Queues()
	return nil
}

func (b *building) decap() packet.Decap {
	d := b.conf.GetDecap()
	return packet.Decap{VXLAN: d.GetVxlan(), GRE: d.GetGre(), Geneve: d.GetGeneve(), GTPU: d.GetGtpu()}
}

func (b *building) flows() flow.Config {
	c := b.conf
	return flow.Config{
		IdleNs: c.GetIdleTimeoutNs(), ActiveNs: c.GetActiveTimeoutNs(), MaxFlows: int(min(c.GetMaxFlows(), math.MaxInt32)),
		Key: flow.KeyOptions{VLAN: c.GetKeyVlan(), Tunnel: c.GetKeyTunnel()},
	}
}

func (b *building) sketches() summary.Config {
	c := b.conf
	return summary.Config{TopK: int(c.GetTopK()), Serialize: c.GetSketchState(), WindowNs: c.GetSketchWindowNs(), Feature: c.GetSketchFeature()}
}

// open opens the source of conf and says in b what can be done with it.
func (b *Built) open(conf *agppb.Configure, log Log) (src source.Source, err error) {
	s := conf.GetSource()
	switch s.GetKind() {
	case "pcap":
		src, b.Source, err = openCaptureFiles(s)
		return src, err
	case "mirror", "divert":
		c, err := openCapture(s, conf.GetInterface(), log)
		if err != nil {
			return nil, err
		}
		b.Source, b.Live, b.Undo, b.Steering = c.what, true, c.Close, c.steering
		if len(c.paths) > 0 {
			b.Steer, b.Policy = c.rules, c.policy
		}
		return c, nil
	}
	return nil, fmt.Errorf("%w: source = %q, allowed are \"pcap\", \"mirror\" and \"divert\"", ErrConfig, s.GetKind())
}

// openCaptureFiles opens the files that s names and says it in words.
func openCaptureFiles(s *agppb.Source) (source.Source, string, error) {
	skip := s.GetSkipFrames()
	if !regular(s.GetFiles()) {
		skip = 0
	}
	clock := newSkipClock(skip > 0)
	r, err := pcap.Open(s.GetFiles(), pcap.Options{Speed: s.GetSpeed(), Clock: clock})
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrConfig, err)
	}
	name := "pcap " + filepath.Base(s.GetFiles()[0])
	if n := len(s.GetFiles()); n > 1 {
		name += fmt.Sprintf(" and %d more", n-1)
	}
	if skip == 0 {
		return r, name, nil
	}
	return &skipper{Source: r, left: skip, clock: clock}, name, nil
}

// regular says that reading paths again gives the same frames again. What a pipe
// delivers is always new.
func regular(paths []string) bool {
	for _, p := range paths {
		info, err := os.Stat(p)
		if p == pcap.Stdin || err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// models keeps the registry of model files and the pipeline in step.
type models struct {
	log Log
	// active is what a change of a file concerns: the registry in force and its
	// pipeline. It is read by the registry's goroutine, which must not wait for mu.
	active atomic.Pointer[active]
	judges sync.Map // of metadata by name@version: every model that was ever in force

	mu       sync.Mutex // serialises load, attach, swap and close
	paths    []string
	registry *watched
	pipeline pipeline.Pipeline
}

type active struct {
	registry *watched
	pipeline pipeline.Pipeline
}

// watched is a registry, nil if there are no files.
type watched struct{ *model.Registry }

func (w *watched) set() *model.Set {
	if w.Registry == nil {
		return nil
	}
	return w.Set()
}

func (w *watched) close() error {
	if w.Registry == nil {
		return nil
	}
	return w.Close()
}

// open makes a registry. Files that are refused are logged and left out, and the
// error names them; the registry picks them up when they have been repaired. Only
// where files cannot be watched at all there is no registry.
func (m *models) open(paths []string) (*watched, error) {
	w := &watched{}
	if len(paths) == 0 {
		return w, nil
	}
	r, err := model.NewRegistry(paths, model.Options{
		OnRefused: func(_ string, err error) { m.log(agppb.Log_ERROR, "model refused: %v", err) },
		OnSwap: func(s *model.Set) {
			if a := m.active.Load(); a != nil && a.registry == w {
				m.remember(s)
				a.pipeline.SwapModels(s)
				m.log(agppb.Log_INFO, "model files changed, now %v", ids(s))
			}
		},
	})
	if r == nil {
		return nil, err
	}
	w.Registry = r
	return w, err
}

// load is the first step: the models that a new pipeline starts with.
func (m *models) load(paths []string) *model.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, err := m.open(paths)
	if w == nil {
		m.log(agppb.Log_ERROR, "models: %v", err)
		w = &watched{}
	}
	m.registry, m.paths = w, slices.Clone(paths)
	return w.set()
}

// attach is the second: from now on changes reach p.
func (m *models) attach(p pipeline.Pipeline) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pipeline = p
	m.use(m.registry)
}

// use puts w in force.
func (m *models) use(w *watched) {
	m.registry = w
	m.remember(w.set())
	m.active.Store(&active{w, m.pipeline})
	m.pipeline.SwapModels(w.set()) // also what changed before active was set
}

func (m *models) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ids(m.registry.set())
}

// swap makes the models in paths score; the same paths again are read again. If
// one file of another list is refused, the old list stays as a whole: left out, it
// would take the model with it that it was to replace.
func (m *models) swap(paths []string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Equal(paths, m.paths) && m.registry.Registry != nil {
		err := m.registry.Reload()
		return ids(m.registry.set()), err
	}
	w, err := m.open(paths)
	if err != nil {
		if w != nil {
			err = errors.Join(err, w.close())
		}
		return nil, err
	}
	old := m.registry
	m.use(w)
	m.paths = slices.Clone(paths)
	return ids(w.set()), old.close()
}

// remember keeps the models of s for finding: the answers of a model outlive its
// exchange in the flows that it has scored.
func (m *models) remember(s *model.Set) {
	for _, k := range s.Models() {
		m.judges.Store(k.ID(), &k.Metadata)
	}
}

// finding asks the model that gave an answer.
func (m *models) finding(o *telemetry.Output) bool {
	k, ok := m.judges.Load(o.Model)
	return ok && k.(*model.Metadata).Alert(o.Label)
}

func (m *models) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active.Store(nil)
	if m.registry == nil { // never loaded
		return nil
	}
	return m.registry.close()
}

func ids(s *model.Set) []string {
	var out []string
	for _, m := range s.Models() {
		out = append(out, m.ID())
	}
	return out
}
