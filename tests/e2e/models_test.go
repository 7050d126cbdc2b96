package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/tests/demo/table"
	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// copyModels copies the models that the project ships into dir and returns them.
func copyModels(t *testing.T, dir string) map[string]*model.Model {
	t.Helper()
	files, err := filepath.Glob("../../configs/models/*.onnx")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	models := map[string]*model.Model{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		m, err := model.LoadBytes(b)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o600))
		models[m.Field] = m
	}
	require.Contains(t, models, "app")
	require.Contains(t, models, "class")
	return models
}

// shipModels puts them where the program looks for those that come with it.
func shipModels(t *testing.T) map[string]*model.Model {
	t.Helper()
	return copyModels(t, filepath.Join(filepath.Dir(agpBinary(t)), "models"))
}

// allPoints returns the points of a measurement in order of time, as telegraf
// wrote them.
func allPoints(t *testing.T, db *influx.Server, measurement string) []telegraf.Metric {
	t.Helper()
	series, err := db.Query("e2e", fmt.Sprintf("SELECT * FROM %q GROUP BY *", measurement))
	require.NoError(t, err)
	var points []telegraf.Metric
	for _, s := range series {
		maps.DeleteFunc(s.Tags, func(_, v string) bool { return v == "" })
		for _, row := range s.Values {
			at, err := row[0].(json.Number).Int64()
			require.NoError(t, err)
			fields := map[string]any{}
			for i, v := range row[1:] {
				if number, ok := v.(json.Number); ok {
					if v, err = number.Int64(); err != nil {
						v, err = number.Float64()
					}
					require.NoError(t, err)
				}
				if v != nil {
					fields[s.Columns[i+1]] = v
				}
			}
			points = append(points, metric.New(s.Name, s.Tags, fields, time.Unix(0, at)))
		}
	}
	require.NotEmpty(t, points, measurement)
	slices.SortStableFunc(points, func(a, b telegraf.Metric) int { return a.Time().Compare(b.Time()) })
	return points
}

// field is an integer field that must be there.
func field(m telegraf.Metric, name string) int64 {
	v, _ := m.GetField(name)
	n, ok := v.(int64)
	if !ok {
		panic(fmt.Sprintf("%s has no count %s: %v", m.Name(), name, m.Fields()))
	}
	return n
}

// flowsOf is how many flows a measurement has by values of these tags.
func flowsOf(points []telegraf.Metric, flows func(telegraf.Metric) int64, keys ...string) map[string]int64 {
	sums := map[string]int64{}
	for _, m := range points {
		var values []string
		for _, k := range keys {
			v, _ := m.GetTag(k)
			values = append(values, v)
		}
		sums[strings.Join(values, " ")] += flows(m)
	}
	return sums
}

func single(telegraf.Metric) int64        { return 1 }
func counted(point telegraf.Metric) int64 { return field(point, "flows") }
func cardinality(measurement string) string {
	return fmt.Sprintf("SHOW SERIES EXACT CARDINALITY FROM %q", measurement)
}

// The program as it is shipped: flows reach InfluxDB under the names that its models
// give them, in the numbers that the capture was made with.
func TestAGPShippedModelsFromCaptureToInflux(t *testing.T) {
	db := influx.Start(t)
	models := shipModels(t)
	c := traffic.Demo(1)
	truth := c.Summary("demo", 1)
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, modelKeys(writeCapture(t, c), "  interface = \"site\"\n")))
	db.WaitInt("e2e", countFlows, int64(truth.Flows))
	db.WaitInt("e2e", packetsTraffic, int64(truth.Packets))
	p.stop()

	counters := table.Latest(allPoints(t, db, "agp_traffic"), "agp_traffic")
	records := allPoints(t, db, "agp_flow")
	alerts := allPoints(t, db, "agp_alert")
	var out bytes.Buffer
	missed := table.Compare(&out, truth, append(slices.Clone(counters), alerts...))
	t.Log(out.String())
	require.False(t, missed, "expected and found differ")

	// Points stored = points emitted, under the same names as the counters.
	require.Len(t, records, int(truth.Flows))
	tags := []string{"interface", "app", "class", "protocol"}
	require.Equal(t, flowsOf(counters, counted, tags...), flowsOf(records, single, tags...))
	engine := allPoints(t, db, "agp_engine")
	last := engine[len(engine)-1]
	require.EqualValues(t, len(records), field(last, "records"))
	require.EqualValues(t, len(alerts), field(last, "alerts"))
	require.Zero(t, db.Int("e2e", `SELECT last("metrics_dropped") FROM "agp_runner"`))

	// The names are those in the files, and each answer says whose it is.
	names, _ := last.GetField("models")
	require.Equal(t, models["app"].ID()+" "+models["class"].ID(), names)
	require.Equal(t, []string{"DNS", "HTTP", "SSH", "TLS", model.Unknown}, tagValues(t, db, "agp_traffic", "app"))
	require.Contains(t, tagValues(t, db, "agp_traffic", "class"), "benign")
	require.Equal(t, []string{"site"}, tagValues(t, db, "agp_traffic", "interface"))
	for name, m := range models {
		require.Subset(t, append(slices.Clone(m.Classes), model.Unknown), tagValues(t, db, "agp_flow", name), name)
		for _, r := range records {
			_, answered := r.GetTag(name)
			by, ok := r.GetField(name + "_model")
			require.Equal(t, answered, ok, r)
			if answered {
				require.Equal(t, m.ID(), by)
				require.True(t, r.HasField(name+"_score"), r)
			}
		}
	}

	require.EqualValues(t, len(counters), db.Int("e2e", cardinality("agp_traffic")))
	require.EqualValues(t, len(counters), db.Int("e2e", cardinality("agp_flow")))
	p.requireCleanLog()
	requireNobodyLeft(t, agpBinary(t))
}

// What models answer makes no more series than configured, besides one for the rest.
func TestAGPSeriesLimitHoldsWithModels(t *testing.T) {
	const limit = 3
	db := influx.Start(t)
	shipModels(t)
	c := traffic.Demo(1)
	truth := c.Summary("demo", 1)
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, modelKeys(writeCapture(t, c), fmt.Sprintf("  series_limit = %d\n", limit))))
	db.WaitInt("e2e", countFlows, int64(truth.Flows))
	db.WaitInt("e2e", packetsTraffic, int64(truth.Packets))
	p.stop()
	for _, measurement := range []string{"agp_traffic", "agp_flow"} {
		require.EqualValues(t, limit+1, db.Int("e2e", cardinality(measurement)), measurement)
		require.Contains(t, tagValues(t, db, measurement, "app"), "other")
	}
	require.EqualValues(t, truth.Flows, db.Int("e2e", countFlows))
	require.EqualValues(t, truth.Packets, db.Int("e2e", packetsTraffic))
	requireMonotonic(t, db, "agp_traffic", "packets")
	p.requireCleanLog()
}

// modelVersion is a model file that says it is of another version, which has one
// digit as well.
func modelVersion(t *testing.T, b []byte, version byte) []byte {
	t.Helper()
	const key = "agp.version\x12\x01" // key, then tag and length of the value
	require.Equal(t, 1, bytes.Count(b, []byte(key)))
	b = bytes.Clone(b)
	b[bytes.Index(b, []byte(key))+len(key)] = version
	return b
}

// replace exchanges a file as a careful administrator does.
func replace(t *testing.T, path string, b []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", b, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// Model files change while packets flow: a good one answers from then on, a
// broken one is refused with one line and its predecessor goes on, whether the
// plugin noticed itself or was told by SIGHUP. No packet is missing.
func TestAGPModelExchangeUnderLoad(t *testing.T) {
	db := influx.Start(t)
	dir := t.TempDir()
	copyModels(t, dir)
	app := filepath.Join(dir, "app.onnx")
	shipped, err := os.ReadFile(app)
	require.NoError(t, err)
	first := modelVersion(t, shipped, '6')
	replace(t, app, first)
	c := traffic.Demo(3)
	truth := c.Summary("demo", 3)
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, modelKeys(writeCapture(t, c),
		fmt.Sprintf("  speed = 25.0\n  models = [%q, %q]\n", app, filepath.Join(dir, "class.onnx")))))

	answers := func(version string) string {
		return fmt.Sprintf(`SELECT count("app_score") FROM "agp_flow" WHERE "app_model" = 'app@%s'`, version)
	}
	logged := func(text string) int { return strings.Count(p.log.String(), text) }
	answering := func(version string) {
		t.Helper()
		db.WaitInt("e2e", answers(version), db.Int("e2e", answers(version))+10)
	}
	const refused = "model refused: "
	answering("6")
	engine := engineOf(t, agpBinary(t))
	hangUp := func() { require.NoError(t, syscall.Kill(parent(engine), syscall.SIGHUP)) }

	replace(t, app, modelVersion(t, shipped, '7'))
	answering("7")
	replace(t, app, shipped[:len(shipped)/2])
	eventually(t, "refused", func() bool { return logged(refused) > 0 })
	answering("7")
	require.Equal(t, 1, logged(refused))
	require.Equal(t, 1, logged(" E! "), "one clear line")
	require.Contains(t, p.log.String(), refused+app+": ")

	hangUp()
	eventually(t, "refused again", func() bool { return logged("models not exchanged, the old ones stay: "+app) == 1 })
	answering("7")
	replace(t, app, modelVersion(t, shipped, '8'))
	hangUp() // does not wait until the plugin notices
	answering("8")
	require.Zero(t, logged("missing"))

	require.Equal(t, engine, engineOf(t, agpBinary(t)), "no engine was started for it")
	db.WaitInt("e2e", `SELECT last("packets_recorded") FROM "agp_engine"`, int64(truth.Packets))
	db.WaitInt("e2e", countFlows, int64(truth.Flows))
	p.stop()
	points := allPoints(t, db, "agp_engine")
	last := points[len(points)-1]
	require.EqualValues(t, truth.Packets, field(last, "packets_seen"))
	require.EqualValues(t, truth.Packets, field(last, "packets_recorded"))
	require.Zero(t, field(last, "packets_lost"))
	require.Zero(t, field(last, "restarts"))
	require.EqualValues(t, truth.Flows, db.Int("e2e", countFlows))
	require.EqualValues(t, truth.Packets, db.Int("e2e", packetsFlows)+db.Int("e2e", packetsFlowsBack))
	requireMonotonic(t, db, "agp_traffic", "packets")

	// No answer is of another version than those that were in force, in their order.
	versions := slices.Compact(slices.Collect(func(yield func(string) bool) {
		for _, m := range points {
			if v, ok := m.GetField("models"); ok && !yield(strings.Fields(v.(string))[0]) {
				return
			}
		}
	}))
	require.Equal(t, []string{"app@6", "app@7", "app@8"}, versions)
}
