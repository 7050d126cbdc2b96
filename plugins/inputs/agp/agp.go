package agp

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

//go:embed sample.conf
var sampleConfig string

// ErrConfig wraps every complaint about the configuration; its message names
// the key, the value and what is allowed.
var ErrConfig = errors.New("invalid configuration")

// AGP is the plugin. Exported fields are the configuration, see sample.conf.
type AGP struct {
	Source        string             `toml:"source"`
	Files         []string           `toml:"files"`
	Speed         float64            `toml:"speed"`
	Interfaces    []string           `toml:"interfaces"`
	Interface     string             `toml:"interface"`
	Pipeline      string             `toml:"pipeline"`
	Mode          string             `toml:"mode"`
	GPU           string             `toml:"gpu"`
	Queues        int                `toml:"queues"`
	Models        []string           `toml:"models"`
	IdleTimeout   config.Duration    `toml:"idle_timeout"`
	ActiveTimeout config.Duration    `toml:"active_timeout"`
	MaxFlows      int                `toml:"max_flows"`
	Decap         []string           `toml:"decap"`
	KeyVLAN       bool               `toml:"key_vlan"`
	KeyTunnel     bool               `toml:"key_tunnel"`
	TopK          int                `toml:"top_k"`
	SketchState   bool               `toml:"sketch_state"`
	SketchWindow  *config.Duration   `toml:"sketch_window"`
	SeriesLimit   int                `toml:"series_limit"`
	EngineCommand []string           `toml:"engine_command"`
	ViewSocket    string             `toml:"view_socket"`
	Flows         FlowsConfig        `toml:"flows"`
	Live          LiveConfig         `toml:"live"`
	Enforce       EnforceConfig      `toml:"enforce"`
	Detect        map[string]float64 `toml:"detect"`

	Log telegraf.Logger `toml:"-"`

	conf      *agppb.Configure
	converter *Converter

	mu         sync.Mutex // guards what follows against Stop
	classifies bool       // there are models
	supervisor *supervise.Supervisor
	acc        telegraf.Accumulator
	enforced   *enforcement
	view       *control.ViewServer // nil: nobody can watch
	snapshot   telemetry.Snapshot
}

// FlowsConfig is the table "flows".
type FlowsConfig struct {
	Emit         string  `toml:"emit"`
	SampleEvery  int     `toml:"sample_every"`
	MaxPerSecond float64 `toml:"max_per_second"`
	Histograms   bool    `toml:"histograms"`
}

// SampleConfig implements telegraf.PluginDescriber.
func (*AGP) SampleConfig() string { return sampleConfig }

// New returns a plugin with the defaults of sample.conf.
func New() *AGP {
	return &AGP{
		Source: sourcePcap, Pipeline: options.PipelineAuto, Mode: options.ModeFlow,
		IdleTimeout: config.Duration(time.Minute), ActiveTimeout: config.Duration(5 * time.Minute),
		MaxFlows: 1 << 18, TopK: 10, SeriesLimit: DefaultSeriesLimit, ViewSocket: control.DefaultViewSocket,
		Live: defaultLive(), Enforce: defaultEnforce(),
		Flows: FlowsConfig{Emit: options.EmitNone, SampleEvery: 100, MaxPerSecond: 1000},
	}
}

func init() {
	inputs.Add("agp", func() telegraf.Input { return New() })
}

// bad says what is wrong with a key.
func bad(key string, value any, allowed string) error {
	if s, ok := value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	return fmt.Errorf("%w: %s = %v, allowed: %s", ErrConfig, key, value, allowed)
}

func oneOf(key, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return bad(key, value, `"`+strings.Join(allowed, `", "`)+`"`)
}

// check validates everything that needs no look at the machine.
func (a *AGP) check() error {
	within := func(key string, v, low, high int) error {
		if v < low || v > high {
			return bad(key, v, fmt.Sprintf("%d to %d", low, high))
		}
		return nil
	}
	timeout := func(key string, v config.Duration) error {
		if d := time.Duration(v); d < options.MinTimeout || d > options.MaxTimeout {
			return bad(key, d, options.MinTimeout.String()+" to "+options.MaxTimeout.String())
		}
		return nil
	}
	errs := []error{
		oneOf("source", a.Source, sourcePcap, sourceMirror, sourceDivert),
		a.checkLive(),
		a.checkEnforce(),
		oneOf("pipeline", a.Pipeline, options.Pipelines()...),
		a.checkMode(),
		a.checkGPU(),
		within("queues", a.Queues, 0, 256),
		timeout("idle_timeout", a.IdleTimeout),
		timeout("active_timeout", a.ActiveTimeout),
		within("max_flows", a.MaxFlows, 1024, 1<<26),
		within("top_k", a.TopK, 1, 999),
		within("series_limit", a.SeriesLimit, 1, 1_000_000),
		oneOf("flows.emit", a.Flows.Emit, options.EmitModes()...),
		within("flows.sample_every", a.Flows.SampleEvery, 1, 1<<30),
	}
	if !(a.Speed >= 0 && a.Speed <= 1e6) { // written so that NaN fails too
		errs = append(errs, bad("speed", a.Speed, "0 to 1000000"))
	}
	if !(a.Flows.MaxPerSecond >= 0 && a.Flows.MaxPerSecond <= 1e9) {
		errs = append(errs, bad("flows.max_per_second", a.Flows.MaxPerSecond, "0 to 1000000000"))
	}
	if err := socketPath("view_socket", a.ViewSocket); err != nil {
		errs = append(errs, err)
	}
	for _, d := range a.Decap {
		errs = append(errs, oneOf("decap", d, options.Tunnels()...))
	}
	if w := a.SketchWindow; w != nil && (*w < 0 || time.Duration(*w) > options.MaxTimeout || *w > 0 && time.Duration(*w) < options.MinTimeout) {
		errs = append(errs, bad("sketch_window", time.Duration(*w), "0s or "+options.MinTimeout.String()+" to "+options.MaxTimeout.String()))
	}
	if len(a.Files) == 0 && a.Source == sourcePcap {
		errs = append(errs, bad("files", a.Files, "at least one capture file"))
	}
	if err := options.CheckThresholds(a.Detect); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	return errors.Join(errs...)
}

func (a *AGP) checkMode() error {
	w := options.Wants{Pipeline: a.Pipeline, Detect: a.Detect, Flows: a.Flows.Emit}
	if !a.unscored() {
		w.Models = a.Models
	}
	if err := options.CheckMode(a.Mode, w); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// unscored says that no models are wanted.
func (a *AGP) unscored() bool { return len(a.Models) == 1 && a.Models[0] == "none" }

func (a *AGP) checkGPU() error {
	if !options.IsGPU(a.GPU) {
		return bad("gpu", a.GPU, options.GPUNames)
	}
	if a.GPU != "" && a.Pipeline == options.PipelineCPU {
		return bad("gpu", a.GPU, `none with pipeline = "cpu"`)
	}
	return nil
}

// Init implements telegraf.Initializer. It checks the configuration and starts nothing.
func (a *AGP) Init() error {
	if a.Interface == "" {
		a.Interface = a.Source
		if a.live() {
			a.Interface = strings.Join(a.Interfaces, "+")
		}
	}
	window := time.Duration(0)
	switch {
	case a.SketchWindow != nil:
		window = time.Duration(*a.SketchWindow)
	case a.live():
		window = defaultWindow
	}
	if err := a.check(); err != nil {
		return err
	}
	files, err := expand(a.Files, a.Log.Warnf)
	if err != nil {
		return err
	}
	models, err := a.modelFiles()
	if err != nil {
		return err
	}
	if a.EngineCommand, err = engineCommand(a.EngineCommand); err != nil {
		return err
	}
	a.classifies = len(models) > 0
	a.conf = &agppb.Configure{
		Interface:       a.Interface,
		Source:          a.source(files),
		Pipeline:        a.Pipeline,
		Mode:            a.Mode,
		Gpu:             a.GPU,
		Queues:          uint32(a.Queues),
		IdleTimeoutNs:   int64(a.IdleTimeout),
		ActiveTimeoutNs: int64(a.ActiveTimeout),
		MaxFlows:        uint64(a.MaxFlows),
		Decap: &agppb.Decap{
			Vxlan: slices.Contains(a.Decap, options.VXLAN), Gre: slices.Contains(a.Decap, options.GRE),
			Geneve: slices.Contains(a.Decap, options.Geneve), Gtpu: slices.Contains(a.Decap, options.GTPU),
		},
		KeyVlan:     a.KeyVLAN,
		KeyTunnel:   a.KeyTunnel,
		Models:      models,
		TopK:        uint32(a.TopK),
		SketchState: a.SketchState, SketchWindowNs: int64(window),
		Detect: a.Detect,
		Emit: &agppb.Emit{
			Flows: a.Flows.Emit, SampleEvery: uint32(a.Flows.SampleEvery), MaxPerSecond: a.Flows.MaxPerSecond,
		},
	}
	a.converter = NewConverter(ConverterOptions{
		Interface: a.Interface, Source: a.Source, Pipeline: a.Pipeline,
		SeriesLimit: a.SeriesLimit, Histograms: a.Flows.Histograms,
	})
	return nil
}

// expand resolves patterns and insists that every entry names something. What a
// pattern matches and cannot be read is left out, with one warning.
func expand(patterns []string, warn func(format string, args ...any)) ([]string, error) {
	var files []string
	for i, p := range patterns {
		key := fmt.Sprintf("files[%d]", i)
		if !strings.ContainsAny(p, "*?[") {
			if err := readable(key, p); err != nil {
				return nil, err
			}
			files = append(files, p)
			continue
		}
		found, err := filepath.Glob(p)
		if err != nil {
			return nil, bad(key, p, "a file name or a pattern with *, ? and []")
		}
		var leftOut []string
		before := len(files)
		for _, f := range found { // Glob sorts
			if err := usable(f); err != nil {
				leftOut = append(leftOut, err.Error())
				continue
			}
			files = append(files, f)
		}
		why := strings.Join(leftOut[:min(len(leftOut), 5)], ", ")
		if len(leftOut) > 5 {
			why += fmt.Sprintf(" and %d more", len(leftOut)-5)
		}
		switch {
		case len(files) == before && len(leftOut) > 0:
			return nil, fmt.Errorf("%w (%s)", bad(key, p, "a pattern that matches a readable file"), why)
		case len(files) == before:
			return nil, bad(key, p, "a pattern that matches a file")
		case len(leftOut) > 0:
			warn("%s = %q: left out %s", key, p, why)
		}
	}
	return files, nil
}

func readable(key, path string) error {
	if err := usable(path); err != nil {
		return fmt.Errorf("%w, allowed: a readable file", fmt.Errorf("%w: %s = %q: %w", ErrConfig, key, path, err))
	}
	return nil
}

// usable says why path cannot be read. It opens nothing: opening a named pipe waits
// for its writer, and closing it ends the writer.
func usable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s: is a folder", path)
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		return &os.PathError{Op: "read", Path: path, Err: err}
	}
	return nil
}

// modelFiles returns the models to load.
func (a *AGP) modelFiles() ([]string, error) {
	switch {
	case a.unscored(), a.Mode == options.ModeStateless:
		return nil, nil
	case len(a.Models) > 0:
		for i, m := range a.Models {
			if m == "none" {
				return nil, bad("models", a.Models, `["none"] alone, or files`)
			}
			if err := readable(fmt.Sprintf("models[%d]", i), m); err != nil {
				return nil, err
			}
		}
		return a.Models, nil
	}
	shipped := ShippedModels()
	if len(shipped) == 0 {
		a.Log.Warnf("No models in %s: flows are not classified", strings.Join(modelDirs(), ", "))
	}
	return shipped, nil
}

// modelDirs is where models that come with the program can be: beside it, where
// the package puts them, or in the source tree it was built in. Tests have others.
var modelDirs = func() []string {
	dirs := []string{}
	if self, err := os.Executable(); err == nil {
		dir := filepath.Dir(self)
		dirs = append(dirs, filepath.Join(dir, "models"), filepath.Join(dir, "configs", "models"), filepath.Join(dir, "..", "configs", "models"))
	}
	return append(dirs, "/usr/share/telegraf-agp/models")
}

// ShippedModels returns the model files that come with the program.
func ShippedModels() []string {
	for _, dir := range modelDirs() {
		if found, err := filepath.Glob(filepath.Join(dir, "*.onnx")); err == nil && len(found) > 0 {
			return found
		}
	}
	return nil
}

const programName = "telegraf-agp"

// engineCommand returns what to start as the engine: this program if it is ours,
// else (compiled into telegraf) the one that the package installs.
func engineCommand(configured []string) ([]string, error) {
	if len(configured) > 0 {
		if _, err := exec.LookPath(configured[0]); err != nil {
			return nil, fmt.Errorf("%w, allowed: a program that can be started, and its arguments", fmt.Errorf("%w: engine_command = %q: %w", ErrConfig, configured, err))
		}
		return configured, nil
	}
	self, err := os.Executable()
	if err == nil && (strings.HasPrefix(filepath.Base(self), programName) || isProgram()) {
		return []string{self, "engine"}, nil
	}
	for _, p := range []string{"/usr/lib/telegraf-agp/telegraf-agp", programName} {
		if found, err := exec.LookPath(p); err == nil {
			return []string{found, "engine"}, nil
		}
	}
	return nil, fmt.Errorf("%w: engine_command is not set, %s has no engine and no %s is in PATH, allowed: [\"/path/to/%s\", \"engine\"]",
		ErrConfig, self, programName, programName)
}

// isProgram says whether this process is the program of this project, whatever its file is
// called now.
func isProgram() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && strings.HasSuffix(info.Path, "/cmd/"+programName)
}

// Start implements telegraf.ServiceInput. The engine comes up in the background:
// an engine that fails never keeps telegraf from starting.
func (a *AGP) Start(acc telegraf.Accumulator) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.supervisor != nil {
		return nil
	}
	conf := supervise.Config{Command: a.EngineCommand, Version: Version(), Configure: a.conf, Log: a.Log}
	begin, enforced := a.startEnforcement(&conf)
	h := &handler{a.converter, acc, enforced, nil}
	conf.Handler = h
	if a.live() {
		conf.Ended = a.takeBack
	}
	s, err := supervise.New(conf)
	if err != nil {
		return err
	}
	if err := begin(s); err != nil {
		return err
	}
	h.view = a.show(s)
	a.supervisor, a.acc, a.enforced, a.view = s, acc, enforced, h.view
	s.Start()
	return nil
}

// handler passes what the engine finds on.
type handler struct {
	converter *Converter
	acc       telegraf.Accumulator
	enforced  *enforcement
	view      *control.ViewServer
}

func (h *handler) Record(r *telemetry.Record) { h.converter.Record(r, time.Now(), h.acc) }

func (h *handler) Alert(a *telemetry.Alert) {
	h.converter.Alert(a, time.Now(), h.acc)
	if h.view != nil {
		h.view.Alert(a)
	}
	h.enforced.alert(a)
}

// show lets people watch the engine. Without, everything else works.
func (a *AGP) show(s *supervise.Supervisor) *control.ViewServer {
	if a.ViewSocket == "" {
		return nil
	}
	v, err := control.ListenView(control.ViewConfig{
		Path: a.ViewSocket, Version: Version(), Interface: a.Interface, Log: a.Log,
		Snapshot: func(dst *telemetry.Snapshot) control.Engine {
			st := s.Snapshot(dst)
			return control.Engine{State: string(st.State), Restarts: st.Restarts, PacketsLost: st.PacketsLost, LastError: st.LastError}
		},
	})
	if err != nil {
		report := a.Log.Warnf
		if a.ViewSocket == control.DefaultViewSocket {
			report = a.Log.Infof // nobody asked for it: another plugin may have it, or the user no right to make it
		}
		report("Nobody can watch this engine (view_socket = %q): %v", a.ViewSocket, err)
		return nil
	}
	return v
}

// Gather implements telegraf.Input.
func (a *AGP) Gather(acc telegraf.Accumulator) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.supervisor == nil {
		return nil
	}
	a.report(acc)
	return nil
}

func (a *AGP) report(acc telegraf.Accumulator) {
	st := a.supervisor.Snapshot(&a.snapshot)
	now := time.Now()
	a.converter.Metrics(&a.snapshot, st, now, acc)
	if a.enforced != nil {
		a.converter.Enforcement(a.enforced.manager.Stats(), now, acc)
	}
}

// Stop implements telegraf.ServiceInput: the engine flushes its flows, and the
// final state of all counters is emitted once more.
func (a *AGP) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.supervisor == nil {
		return
	}
	if a.view != nil {
		if err := a.view.Close(); err != nil {
			a.Log.Errorf("View socket: %v", err)
		}
	}
	a.enforced.stop()
	a.supervisor.Stop()
	a.enforced.wait()
	a.report(a.acc)
	a.supervisor, a.acc, a.enforced, a.view = nil, nil, nil, nil
}

// ErrNoModels says that a reload found none where there were some before.
var ErrNoModels = errors.New("no model files are left, the old models stay")

// Reload loads changed models; telegraf-agp calls it on SIGHUP. Only models =
// ["none"] switches scoring off, never files that have gone.
func (a *AGP) Reload() error {
	models, err := a.modelFiles()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(models) == 0 && len(a.Models) == 0 && a.classifies {
		return fmt.Errorf("%w: looked in %s", ErrNoModels, strings.Join(modelDirs(), ", "))
	}
	a.classifies = len(models) > 0
	if a.supervisor == nil {
		return nil
	}
	return a.supervisor.SwapModels(models)
}

// Version is that of the module this program was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	const path = "github.com/agp-net/telegraf-agp"
	if info.Main.Path == path {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}
