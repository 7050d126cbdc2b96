package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// built are the programs under test, each built once per run of the tests.
var built struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

// program builds a main package of this project.
func program(t *testing.T, name, pkg string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if path, ok := built.paths[name]; ok {
		return path
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "agp-e2e-")
		require.NoError(t, err)
		built.dir, built.paths = dir, map[string]string{}
	}
	path := filepath.Join(built.dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/agp-net/telegraf-agp/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	built.paths[name] = path
	return path
}

func agpBinary(t *testing.T) string {
	t.Helper()
	return program(t, "telegraf-agp", "agp/cmd/telegraf-agp")
}

func writeCapture(t *testing.T, c *traffic.Capture) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.pcap")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, c.WritePcap(f))
	require.NoError(t, f.Close())
	return path
}

// agpKeys is a configuration that emits every record. Classification is off:
// these tests count.
func agpKeys(capture, more string) string {
	return modelKeys(capture, "  models = [\"none\"]\n"+more)
}

// modelKeys is the same with the models that come with the program, unless more
// names others.
func modelKeys(capture, more string) string {
	return fmt.Sprintf("  files = [%q]\n%s  [inputs.agp.flows]\n    emit = \"all\"\n    max_per_second = 0.0\n", capture, more)
}

// agpSection is the execd section that runs the plugin's real binary.
func agpSection(t *testing.T, keys string) string {
	t.Helper()
	config := writeFile(t, filepath.Join(t.TempDir(), "agp.conf"), "[[inputs.agp]]\n"+keys)
	return fmt.Sprintf(`[[inputs.execd]]
  command = [%q, "run", "--config", %q]
  signal = "STDIN"
  restart_delay = "100ms"
  data_format = "influx"
`, agpBinary(t), config)
}

// summary is the last line of replay --output json.
type summary struct {
	Type            string `json:"type"`
	Kind            string `json:"kind"`
	PacketsSeen     int64  `json:"packets_seen"`
	PacketsRecorded int64  `json:"packets_recorded"`
	Records         int64  `json:"records"`
	Alerts          int64  `json:"alerts"`
}

// replay runs the same capture through the engine without telegraf.
func replay(t *testing.T, capture string) (s summary, kinds []string) {
	t.Helper()
	out, err := exec.Command(agpBinary(t), "replay", "--models", "none", "--output", "json", capture).Output()
	require.NoError(t, err)
	for line := range bytes.Lines(out) {
		s = summary{}
		require.NoError(t, json.Unmarshal(line, &s))
		if s.Type == "alert" {
			kinds = append(kinds, s.Kind)
		}
	}
	require.Equal(t, "summary", s.Type)
	slices.Sort(kinds)
	return s, slices.Compact(kinds)
}

const (
	countFlows       = `SELECT count("packets_fwd") FROM "agp_flow"`
	packetsFlows     = `SELECT sum("packets_fwd") FROM "agp_flow"`
	packetsFlowsBack = `SELECT sum("packets_rev") FROM "agp_flow"`
	// counters of all series together
	packetsTraffic = `SELECT sum(p) FROM (SELECT last("packets") AS p FROM "agp_traffic" GROUP BY *)`
)

// Capture in, metrics in InfluxDB out: every record is a point, and the packets
// in the points are the packets of the capture.
func TestAGPFromCaptureToInflux(t *testing.T) {
	db := influx.Start(t)
	capture := writeCapture(t, traffic.Demo(1))
	want, kinds := replay(t, capture)
	require.Equal(t, want.PacketsSeen, want.PacketsRecorded)
	require.Positive(t, want.Records)

	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, agpKeys(capture, "")))
	require.Equal(t, want.Records, db.WaitInt("e2e", countFlows, want.Records))
	require.Equal(t, want.PacketsSeen, db.WaitInt("e2e", packetsTraffic, want.PacketsSeen))
	p.stop()

	require.Equal(t, want.Records, db.Int("e2e", countFlows))
	require.Equal(t, want.PacketsSeen, db.Int("e2e", packetsFlows)+db.Int("e2e", packetsFlowsBack))
	require.Equal(t, want.PacketsSeen, db.Int("e2e", `SELECT last("packets_seen") FROM "agp_engine"`))
	require.Equal(t, want.Alerts, db.Int("e2e", `SELECT count("time_ns") FROM "agp_alert"`))
	require.Equal(t, kinds, tagValues(t, db, "agp_alert", "kind"))
	require.Zero(t, db.Int("e2e", `SELECT last("metrics_dropped") FROM "agp_runner"`))
	for _, measurement := range []string{"agp_queue", "agp_sketch", "agp_top"} {
		require.NotEmpty(t, tagValues(t, db, measurement, "interface"), measurement)
	}
	p.requireCleanLog()
	requireNobodyLeft(t, agpBinary(t))
}

func tagValues(t *testing.T, db *influx.Server, measurement, key string) []string {
	t.Helper()
	series, err := db.Query("e2e", fmt.Sprintf("SHOW TAG VALUES FROM %q WITH KEY = %q", measurement, key))
	require.NoError(t, err)
	var values []string
	for _, s := range series {
		for _, row := range s.Values {
			values = append(values, row[1].(string))
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// Random 5-tuples make points, not series.
func TestAGPSeriesStayBounded(t *testing.T) {
	const flows = 50_000
	db := influx.Start(t)
	capture := writeCapture(t, traffic.ManyFlows(7, flows))
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, agpKeys(capture, "")))
	require.EqualValues(t, flows, db.WaitInt("e2e", countFlows, flows))
	p.stop()
	require.EqualValues(t, flows, db.Int("e2e", countFlows))
	require.LessOrEqual(t, db.Int("e2e", `SHOW SERIES EXACT CARDINALITY FROM "agp_flow"`), int64(10))
	require.LessOrEqual(t, db.SeriesCount("e2e"), int64(500))
	p.requireCleanLog()
}

// slowKeys make the capture last long enough to be interrupted.
func slowKeys(t *testing.T) string {
	t.Helper()
	return agpKeys(writeCapture(t, traffic.Demo(2)), "  speed = 1.0\n")
}

const lastUp = `SELECT last("packets_seen") FROM "agp_engine"`

// kill -9 of the engine: another one goes on where it was, no counter steps back,
// and every packet is either in a record or counted as lost.
func TestAGPKilledEngineIsStartedAgain(t *testing.T) {
	db := influx.Start(t)
	shipModels(t)
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, modelKeys(writeCapture(t, traffic.Demo(2)), "  speed = 10.0\n")))
	const active = `SELECT last("flows_active") FROM "agp_engine"`
	db.WaitInt("e2e", countFlows, 50)
	db.WaitInt("e2e", active, 10)
	engine := engineOf(t, agpBinary(t))
	require.NoError(t, syscall.Kill(engine, syscall.SIGKILL))
	db.WaitInt("e2e", `SELECT last("restarts") FROM "agp_engine"`, 1)
	// The first point of the second engine can only repeat the count of the dead one.
	before := db.Int("e2e", `SELECT first("packets_seen") FROM "agp_engine" WHERE "restarts" = 1`)
	require.Positive(t, before)
	db.WaitInt("e2e", lastUp, before+500)
	require.NotEqual(t, engine, engineOf(t, agpBinary(t)))
	p.stop()
	requireNobodyLeft(t, agpBinary(t))

	points := allPoints(t, db, "agp_engine")
	for _, m := range points {
		if m.HasField("packets_active") { // is left out while there is no engine
			require.Equal(t, field(m, "packets_seen"), field(m, "packets_recorded")+field(m, "packets_active")+field(m, "packets_lost")+field(m, "drops"), m)
		}
	}
	last := points[len(points)-1]
	require.Zero(t, field(last, "packets_active"))
	require.Positive(t, field(last, "packets_lost"))
	require.Positive(t, field(last, "flows_lost"))
	require.EqualValues(t, 1, field(last, "restarts"))
	require.GreaterOrEqual(t, field(last, "packets_seen"), before+500)
	for _, name := range []string{"packets_seen", "packets_recorded", "packets_lost", "records", "drops"} {
		requireMonotonic(t, db, "agp_engine", name)
	}
	for _, name := range []string{"flows", "packets", "bytes"} {
		requireMonotonic(t, db, "agp_traffic", name)
	}
	require.Equal(t, field(last, "packets_recorded"), db.Int("e2e", packetsTraffic))

	// Points and counters of the dead engine differ by what it did after its last
	// report, that is within a second.
	slack := int64(20)
	for i := range points[1:] {
		slack = max(slack, field(points[i+1], "records")-field(points[i], "records"))
	}
	require.Greater(t, field(last, "records"), int64(50))
	require.InDelta(t, field(last, "records"), db.Int("e2e", countFlows), float64(slack))

	bad := slices.DeleteFunc(slices.Collect(strings.Lines(p.log.String())), func(line string) bool {
		return !strings.Contains(line, " E! ") && !strings.Contains(line, " W! [inputs") || stopLine.MatchString(line)
	})
	require.Len(t, bad, 1, "one clear line: %s", bad)
}

// requireMonotonic requires that a counter never steps back in any series.
func requireMonotonic(t *testing.T, db *influx.Server, measurement, field string) {
	t.Helper()
	series, err := db.Query("e2e", fmt.Sprintf("SELECT %q FROM %q GROUP BY *", field, measurement))
	require.NoError(t, err)
	require.NotEmpty(t, series)
	for _, s := range series {
		last := int64(0)
		for _, row := range s.Values {
			n, err := row[1].(json.Number).Int64()
			require.NoError(t, err)
			require.GreaterOrEqual(t, n, last, "%s %s %v", measurement, field, s.Tags)
			last = n
		}
	}
}

// kill -9 of the plugin or of telegraf leaves no engine after 2 s.
func TestChecklist07_NoEngineIsLeftBehind(t *testing.T) {
	agp := agpBinary(t)
	for _, victim := range []string{"plugin", "telegraf"} {
		t.Run(victim, func(t *testing.T) {
			p := startTelegraf(t, agentConfig("")+"[[outputs.discard]]\n"+
				strings.Replace(agpSection(t, slowKeys(t)), `restart_delay = "100ms"`, `restart_delay = "1h"`, 1))
			engine := engineOf(t, agp)
			begin := time.Now()
			if victim == "telegraf" {
				p.signal(syscall.SIGKILL)
			} else {
				require.NoError(t, syscall.Kill(parent(engine), syscall.SIGKILL))
			}
			eventually(t, "nobody is left", func() bool { return len(processesOf(agp)) == 0 })
			require.Less(t, time.Since(begin), 2*time.Second)
		})
	}
}

func TestAGPReload(t *testing.T) {
	db := influx.Start(t)
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, slowKeys(t)))
	db.WaitInt("e2e", lastUp, 1)
	first := engineOf(t, agpBinary(t))
	p.signal(syscall.SIGHUP)
	eventually(t, "another engine", func() bool {
		pids := engines(agpBinary(t))
		return len(pids) == 1 && pids[0] != first
	})
	before := db.Int("e2e", `SELECT count("packets_seen") FROM "agp_engine"`)
	db.WaitInt("e2e", `SELECT count("packets_seen") FROM "agp_engine"`, before+2)
	p.stop()
	p.requireCleanLog()
	requireNobodyLeft(t, agpBinary(t))
}

// The plugin linked into an agent gives the same points.
func TestChecklist09_CompiledInGivesTheSamePoints(t *testing.T) {
	db := influx.Start(t)
	capture := writeCapture(t, traffic.Demo(1))
	want, kinds := replay(t, capture)
	section := fmt.Sprintf("[[inputs.agp]]\n  engine_command = [%q, \"engine\"]\n%s", agpBinary(t), agpKeys(capture, ""))
	path := writeFile(t, filepath.Join(t.TempDir(), "telegraf.conf"), agentConfig(db.URL)+section)
	p := startProcess(t, exec.Command(program(t, "compiledin", "tests/e2e/compiledin"), path))
	require.Equal(t, want.Records, db.WaitInt("e2e", countFlows, want.Records))
	p.stop()
	require.Equal(t, want.Records, db.Int("e2e", countFlows))
	require.Equal(t, want.PacketsSeen, db.Int("e2e", packetsFlows)+db.Int("e2e", packetsFlowsBack))
	require.Equal(t, want.Alerts, db.Int("e2e", `SELECT count("time_ns") FROM "agp_alert"`))
	require.Equal(t, kinds, tagValues(t, db, "agp_alert", "kind"))
	p.requireCleanLog()
	requireNobodyLeft(t, agpBinary(t))
}

func TestAGPWrongConfiguration(t *testing.T) {
	p := startTelegraf(t, agentConfig("")+"[[outputs.discard]]\n"+agpSection(t, agpKeys("x.pcap", "  sped = 1.0\n")))
	eventually(t, "error in the log", func() bool {
		return strings.Contains(p.log.String(), `agp.conf: line 4: unknown key "sped" in [[inputs.agp]]`)
	})
}

// processesOf returns the living processes of a program by its path.
func processesOf(path string) map[int][]string {
	found := map[int][]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || !alive(pid) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		if args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"); args[0] == path {
			found[pid] = args
		}
	}
	return found
}

func engines(path string) []int {
	var pids []int
	for pid, args := range processesOf(path) {
		if slices.Contains(args, "engine") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// engineOf waits for exactly one engine.
func engineOf(t *testing.T, path string) int {
	t.Helper()
	var pids []int
	eventually(t, "one engine", func() bool {
		pids = engines(path)
		return len(pids) == 1
	})
	return pids[0]
}

func requireNobodyLeft(t *testing.T, path string) {
	t.Helper()
	eventually(t, "nobody is left", func() bool { return len(processesOf(path)) == 0 })
}

func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return n
}
