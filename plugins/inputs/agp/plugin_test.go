package agp

import (
	"bytes"
	"context"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs"
	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/engine"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/plugins/runner"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// The test binary plays the engine when this variable is set.
const engineEnv = "AGP_TEST_PLUGIN_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(engineEnv) == "" {
		os.Exit(m.Run())
	}
	err := engine.Main(context.Background(), "test", func(conf *agppb.Configure, sink pipeline.Sink, _ engine.Log) (*engine.Built, error) {
		p := &countingPipeline{sink: sink}
		return &engine.Built{Pipeline: p, Source: "test", Kind: "test", Queues: 1, Models: conf.GetModels(),
			Swap:  func(paths []string) ([]string, error) { return paths, nil },
			Steer: p.block, Steering: p.steering}, nil
	})
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// countingPipeline emits one record and one alert and waits. It counts rules.
type countingPipeline struct {
	sink  pipeline.Sink
	mu    sync.Mutex
	rules map[string]bool
}

func (p *countingPipeline) block(r *agppb.SteerRules) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.GetClear() || p.rules == nil {
		p.rules = map[string]bool{}
	}
	for _, prefix := range r.GetRemove() {
		delete(p.rules, prefix)
	}
	for _, rule := range r.GetAdd() {
		p.rules[rule.GetPrefix()] = true
	}
	return nil
}

func (p *countingPipeline) steering(s *telemetry.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Steering = append(s.Steering, telemetry.SteeringRow{Interface: "lo", Target: "would_block", Rules: uint64(len(p.rules))})
}

func (p *countingPipeline) Run(ctx context.Context) error {
	p.sink.Record(fullRecord())
	p.sink.Alert(&telemetry.Alert{Kind: "test"})
	<-ctx.Done()
	return ctx.Err()
}

func (p *countingPipeline) Snapshot(s *telemetry.Snapshot) {
	s.Reset()
	s.Engine = telemetry.EngineRow{Source: "pcap", Pipeline: "cpu", PacketsSeen: 4, PacketsRecorded: 4, Records: 1, Alerts: 1}
	s.Traffic = append(s.Traffic, telemetry.TrafficRow{Protocol: 6, Flows: 1})
}

func (p *countingPipeline) SwapModels(*model.Set) {}

// plugin returns a plugin that can run in a test.
func plugin(t *testing.T) *AGP {
	t.Helper()
	capture := filepath.Join(t.TempDir(), "a.pcap")
	require.NoError(t, os.WriteFile(capture, nil, 0o600))
	a := New()
	a.Log = testutil.Logger{}
	a.Files = []string{capture}
	a.Models = []string{"none"}
	a.EngineCommand = []string{os.Args[0]}
	a.ViewSocket = "" // the machine has one of this name
	a.Flows.Emit = "all"
	return a
}

func TestBadConfigurationNamesKeyValueAndAllowed(t *testing.T) {
	for want, spoil := range map[string]func(*AGP){
		`source = "live", allowed: "pcap", "mirror", "divert"`:                  func(a *AGP) { a.Source = "live" },
		`pipeline = "gpu", allowed: "auto", "cpu", "cuda"`:                      func(a *AGP) { a.Pipeline = "gpu" },
		`gpu = "H200", allowed: "" or the number or UUID`:                       func(a *AGP) { a.GPU = "H200" },
		`mode = "fast", allowed: "flow", "sequence", "stateless"`:               func(a *AGP) { a.Mode = "fast" },
		`mode = "stateless": pipeline = "cpu", allowed: "auto", "cuda"`:         func(a *AGP) { a.Mode, a.Pipeline = "stateless", "cpu" },
		`mode = "stateless": flows.emit = "all", allowed: "none"`:               func(a *AGP) { a.Mode, a.Flows.Emit = "stateless", "all" },
		`mode = "stateless": detect = map[beacon:5], allowed: none`:             func(a *AGP) { a.Mode, a.Detect = "stateless", map[string]float64{"beacon": 5} },
		`mode = "stateless": models = [app.onnx], allowed: none`:                func(a *AGP) { a.Mode, a.Models = "stateless", []string{"app.onnx"} },
		`gpu = "0", allowed: none with pipeline = "cpu"`:                        func(a *AGP) { a.GPU, a.Pipeline = "0", "cpu" },
		`files = [], allowed: at least one capture file`:                        func(a *AGP) { a.Files = nil },
		`files[1] = "/does/not/exist"`:                                          func(a *AGP) { a.Files = append(a.Files, "/does/not/exist") },
		`files[0] = "/does/not/*.pcap", allowed: a pattern that matches a file`: func(a *AGP) { a.Files = []string{"/does/not/*.pcap"} },
		`files[0] = "[", allowed: a file name or a pattern with *, ? and []`:    func(a *AGP) { a.Files = []string{"["} },
		`speed = -1, allowed: 0 to 1000000`:                                     func(a *AGP) { a.Speed = -1 },
		`queues = 257, allowed: 0 to 256`:                                       func(a *AGP) { a.Queues = 257 },
		`idle_timeout = 10ms, allowed: 1s to 24h0m0s`:                           func(a *AGP) { a.IdleTimeout = config.Duration(10 * time.Millisecond) },
		`idle_timeout = 2562047h47m16.854775807s, allowed: 1s to 24h0m0s`:       func(a *AGP) { a.IdleTimeout = math.MaxInt64 },
		`active_timeout = -1s, allowed: 1s to 24h0m0s`:                          func(a *AGP) { a.ActiveTimeout = config.Duration(-time.Second) },
		`active_timeout = 24h0m1s, allowed: 1s to 24h0m0s`:                      func(a *AGP) { a.ActiveTimeout = config.Duration(24*time.Hour + time.Second) },
		`max_flows = 0, allowed: 1024 to 67108864`:                              func(a *AGP) { a.MaxFlows = 0 },
		`decap = "ipip", allowed: "vxlan", "gre", "geneve", "gtpu"`:             func(a *AGP) { a.Decap = []string{"gre", "ipip"} },
		`top_k = 1000, allowed: 1 to 999`:                                       func(a *AGP) { a.TopK = 1000 },
		`series_limit = 0, allowed: 1 to 1000000`:                               func(a *AGP) { a.SeriesLimit = 0 },
		`flows.emit = "some", allowed: "none", "alerts", "sampled", "all"`:      func(a *AGP) { a.Flows.Emit = "some" },
		`view_socket = "v", allowed: an absolute path`:                          func(a *AGP) { a.ViewSocket = "v" },
		`flows.sample_every = 0, allowed: 1 to 1073741824`:                      func(a *AGP) { a.Flows.SampleEvery = 0 },
		`flows.max_per_second = -2, allowed: 0 to 1000000000`:                   func(a *AGP) { a.Flows.MaxPerSecond = -2 },
		`no threshold "syn_flud"; known are syn_flood`:                          func(a *AGP) { a.Detect = map[string]float64{"syn_flud": 1} },
		`models[0] = "/no.onnx"`:                                                func(a *AGP) { a.Models = []string{"/no.onnx"} },
		`engine_command = ["/no/such/program"]`:                                 func(a *AGP) { a.EngineCommand = []string{"/no/such/program"} },
	} {
		a := plugin(t)
		spoil(a)
		err := a.Init()
		require.ErrorIs(t, err, ErrConfig, want)
		require.ErrorContains(t, err, want)
	}
	a := plugin(t)
	a.Files = []string{t.TempDir()}
	require.ErrorContains(t, a.Init(), "is a folder, allowed: a readable file")
	a = plugin(t)
	a.Models = []string{a.Files[0], "none"}
	require.ErrorContains(t, a.Init(), `allowed: ["none"] alone, or files`)
	a = plugin(t)
	a.Source, a.TopK = "live", 0
	err := a.Init()
	require.ErrorContains(t, err, "source")
	require.ErrorContains(t, err, "top_k", "all faults at once")
}

// runWith runs the plugin under our runner with a configuration and returns its exit code and log.
func runWith(t *testing.T, conf string) (int, string) {
	t.Helper()
	var out, log bytes.Buffer
	code := runner.Run(context.Background(), runner.Options{
		ConfigReader: strings.NewReader(conf), Inputs: map[string]inputs.Creator{"agp": inputs.Inputs["agp"]},
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &log, Signals: make(chan os.Signal),
	})
	return code, log.String()
}

func TestUnknownKeyIsAnErrorWithKeyAndLine(t *testing.T) {
	code, log := runWith(t, "[[inputs.agp]]\n  files = [\"a.pcap\"]\n  quueues = 3\n")
	require.Equal(t, runner.ExitConfig, code)
	require.Contains(t, log, "quueues")
	require.Regexp(t, `line 3|:3`, log)

	code, log = runWith(t, "[[inputs.agp]]\n  files = [\"a.pcap\"]\n[inputs.agp.flows]\n  emmit = \"all\"\n")
	require.Equal(t, runner.ExitConfig, code)
	require.Contains(t, log, "emmit")

	code, log = runWith(t, "[[inputs.agp]]\n  files = [\"a.pcap\"]\n  source = \"live\"\n")
	require.NotZero(t, code)
	require.Contains(t, log, `source = "live", allowed: "pcap"`)
}

// everyOption is sample.conf with all options switched on.
func everyOption(t *testing.T) string {
	t.Helper()
	a := plugin(t)
	conf := regexp.MustCompile(`(?m)^( *)# (\w+ = |\[inputs)`).ReplaceAllString(sampleConfig, "$1$2")
	conf = strings.ReplaceAll(conf, "/var/lib/captures/example.pcap", a.Files[0])
	return strings.ReplaceAll(conf, `["/usr/share/telegraf-agp/models/app.onnx"]`, `["none"]`)
}

func TestSampleConfigStatesTheDefaultsAndEveryOption(t *testing.T) {
	require.Contains(t, everyOption(t), "\n  queues = 0")
	c := config.NewConfig()
	require.NoError(t, c.LoadConfigData([]byte(everyOption(t)), "sample.conf"))
	require.Len(t, c.Inputs, 1)
	got := c.Inputs[0].Input.(*AGP)
	want := New()
	want.Files, want.Models = got.Files, []string{"none"}
	want.Interface, want.Interfaces = "pcap", []string{"eth0"}
	want.SketchWindow = new(config.Duration) // as with a capture
	want.Live.EngineClasses, want.Live.KernelClasses = []string{}, []string{}
	want.Decap = []string{}
	want.EngineCommand = []string{"/usr/lib/telegraf-agp/telegraf-agp", "engine"}
	want.Log = got.Log
	require.ElementsMatch(t, options.ThresholdNames(), slices.Collect(maps.Keys(got.Detect)), "every threshold is listed")
	want.Detect = got.Detect
	require.Equal(t, want, got)

	c = config.NewConfig()
	require.NoError(t, c.LoadConfigData([]byte(sampleConfig), "sample.conf"), "as it is")
	c = config.NewConfig()
	require.Error(t, c.LoadConfigData([]byte("[[inputs.agp]]\n  quueues = 3\n"), "bad.conf"), "compiled in, telegraf refuses unknown keys")
}

func TestReadmeShowsTheSampleConfig(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```toml @sample.conf\n"+sampleConfig+"```\n")
	for _, heading := range []string{"# AGP Input Plugin", "## Service Input", "## Global configuration options", "## Configuration", "## Metrics", "## Example Output"} {
		require.Contains(t, string(readme), heading)
	}
}

func TestExpandKeepsOrderAndSortsWithinAPattern(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"b.pcap", "a.pcap", "z.cap"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), nil, 0o600))
	}
	got, err := expand([]string{filepath.Join(dir, "z.cap"), filepath.Join(dir, "*.pcap")}, t.Errorf)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "z.cap"), filepath.Join(dir, "a.pcap"), filepath.Join(dir, "b.pcap")}, got)
}

func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 10*time.Second, 2*time.Millisecond, what)
}

func TestEveryTunnelOfTheOptionsReachesTheEngine(t *testing.T) {
	a := plugin(t)
	a.Decap = options.Tunnels()
	require.NoError(t, a.Init())
	d := a.conf.GetDecap()
	require.True(t, d.GetVxlan() && d.GetGre() && d.GetGeneve() && d.GetGtpu())
	for _, n := range options.Tunnels() {
		a = plugin(t)
		a.Decap = []string{n}
		require.NoError(t, a.Init())
		require.False(t, proto.Equal(a.conf.GetDecap(), &agppb.Decap{}), n)
	}
}

func TestLifecycle(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := plugin(t)
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Gather(&acc), "before Start")
	require.Empty(t, acc.GetTelegrafMetrics())
	a.Stop() // before Start

	require.NoError(t, a.Start(&acc))
	require.NoError(t, a.Start(&acc), "twice")
	wait(t, "record and alert", func() bool { return acc.HasMeasurement("agp_flow") && acc.HasMeasurement("agp_alert") })
	wait(t, "traffic", func() bool { return a.Gather(&acc) == nil && acc.HasMeasurement("agp_traffic") })
	require.NoError(t, a.Reload())
	pid := a.supervisor.Status().Pid

	acc.ClearMetrics()
	a.Stop()
	require.True(t, acc.HasMeasurement("agp_engine"), "the final state is emitted")
	require.Error(t, syscall.Kill(pid, 0))
	a.Stop()
	require.Empty(t, acc.Errors)

	acc.ClearMetrics()
	require.NoError(t, a.Start(&acc), "again")
	wait(t, "record", func() bool { return acc.HasMeasurement("agp_flow") })
	a.Stop()
}

func TestKilledEngineShowsAsDownAndComesBack(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := plugin(t)
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	engineField := func(name string) any {
		var last any
		acc.ClearMetrics()
		require.NoError(t, a.Gather(&acc))
		for _, m := range acc.GetTelegrafMetrics() {
			if m.Name() == "agp_engine" {
				last = m.Fields()[name]
			}
		}
		return last
	}
	wait(t, "first snapshot", func() bool { return engineField("records") == int64(1) })
	require.NoError(t, syscall.Kill(a.supervisor.Status().Pid, syscall.SIGKILL))
	wait(t, "down", func() bool { return engineField("up") == false })
	require.Equal(t, int64(1), engineField("records"), "counters stay")
	wait(t, "up again", func() bool { return engineField("up") == true && engineField("restarts") == int64(1) })
	wait(t, "counting on", func() bool { return engineField("records") == int64(2) })
}

func TestEngineThatCannotStartDoesNotKeepTelegrafFromStarting(t *testing.T) {
	a := plugin(t)
	require.NoError(t, a.Init())
	a.EngineCommand = []string{"/does/not/exist"}
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	wait(t, "failure", func() bool { return a.supervisor.Status().State == supervise.StateRestarting })
	require.NoError(t, a.Gather(&acc))
	m, ok := acc.Get("agp_engine")
	require.True(t, ok)
	require.Equal(t, false, m.Fields["up"])
	require.Contains(t, m.Fields["last_error"], "could not be started")
}

func TestWithoutModelsOneWarning(t *testing.T) {
	dir := models(t)
	warnings := func() int {
		a := plugin(t)
		log := &testutil.CaptureLogger{}
		a.Log, a.Models = log, nil
		require.NoError(t, a.Init())
		return len(log.Warnings())
	}
	require.Equal(t, 1, warnings())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.onnx"), nil, 0o600))
	require.Zero(t, warnings())
}

// models puts the models that come with the program into a folder of the test.
func models(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	before := modelDirs
	t.Cleanup(func() { modelDirs = before })
	modelDirs = func() []string { return []string{dir} }
	return dir
}

func TestReloadThatFindsNoShippedModelsKeepsTheOldOnes(t *testing.T) {
	t.Setenv(engineEnv, "1")
	shipped := filepath.Join(models(t), "a.onnx")
	require.NoError(t, os.WriteFile(shipped, nil, 0o600))
	a := plugin(t)
	a.Models = nil
	require.NoError(t, a.Init())
	require.Equal(t, []string{shipped}, a.conf.GetModels())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	require.NoError(t, a.Reload())
	require.NoError(t, os.Remove(shipped))
	require.ErrorIs(t, a.Reload(), ErrNoModels)
	a.Models = []string{"none"}
	require.NoError(t, a.Reload(), "switched off on purpose")
}

var _ telegraf.ServiceInput = (*AGP)(nil)
var _ telegraf.Initializer = (*AGP)(nil)
var _ runner.Reloader = (*AGP)(nil)

func TestEngineIsAskedForWhereThereIsNone(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := os.Stat("/usr/lib/telegraf-agp/telegraf-agp"); err == nil {
		testcap.Missing(t, "the package is installed")
	}
	_, err := engineCommand(nil)
	require.ErrorIs(t, err, ErrConfig)
	self, _ := os.Executable()
	require.ErrorContains(t, err, "engine_command is not set, "+self+" has no engine and no telegraf-agp is in PATH, allowed: [\"/path/to/telegraf-agp\", \"engine\"]")
}

// TestTroubleshootingQuotesWhatTheProgramSays: every key of the page stands in the sources.
func TestTroubleshootingQuotesWhatTheProgramSays(t *testing.T) {
	page, err := os.ReadFile("TROUBLESHOOTING.md")
	require.NoError(t, err)
	keys := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(keys), 30)
	var sources strings.Builder
	for _, dir := range []string{"../../../agp", "../../../plugins", "../../../cuda"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			sources.Write(text)
			return err
		}))
	}
	for _, k := range keys {
		require.Contains(t, sources.String(), k[1])
	}
}
