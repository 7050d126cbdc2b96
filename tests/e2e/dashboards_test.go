package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/configs/dashboards"
	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// withoutData are panels, and columns of tables, for which a capture gives no data,
// and why. One that has data after all fails the test.
var withoutData = map[string]string{
	"security/Frames by verdict":                noPort,
	"engine/GPU power":                          noGPU,
	"engine/Energy per million packets":         noGPU,
	"engine/Power":                              noGPU,
	"engine/Energy per million packets, by GPU": noGPU,
	"engine/Multiprocessors":                    noGPU,
	"engine/Memory of the GPUs":                 noGPU,
	"engine/Temperature":                        noGPU,
	"engine/Clock of multiprocessors":           noGPU,
	"engine/PCIe":                               noGPU,
	"engine/Utilisation":                        noGPU,
	"engine/GPU errors":                         noGPU,
	"fleet/GPU power by host":                   noGPU,
	"rule/gpu":                                  noGPU,
	"rule/down":                                 "no engine fails",
	"rule/guessing":                             "nobody guesses passwords",
	"engine/Last error":                         "no engine fails",
}

// withoutCaptures are those for which synthetic traffic alone gives none.
var withoutCaptures = map[string]string{
	"rule/classified":                 noFinding,
	"security/Classified":             noFinding,
	"security/Latest alerts/score":    noFinding,
	"security/Latest alerts/src_port": "no synthetic reflection",
	"security/Latest alerts/model":    noFinding,
}

const (
	noFinding = "no synthetic flow is harmful to the model"
	noGPU     = "no GPU"
	noPort    = "frames are steered on interfaces only"
)

// writeARP writes a capture of frames that are not IP, so that there is a drop.
func writeARP(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "arp.pcap")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	w := pcapgo.NewWriter(f)
	require.NoError(t, w.WriteFileHeader(65536, layers.LinkTypeEthernet))
	frame := append([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 38)...)
	for i := range 10 {
		at := time.Unix(0, traffic.Epoch).Add(time.Duration(i) * time.Millisecond)
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)}, frame))
	}
	return path
}

// board is what the tests need of a dashboard's file.
type board struct {
	Panels []struct {
		Title   string
		Targets []struct{ Query string }
	}
	Templating struct {
		List []struct{ Type, Name, Query string }
	}
}

func readBoard(t *testing.T, l dashboards.Language, name string) (b board) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../configs/dashboards", string(l), name+".json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &b))
	return b
}

// answer is the result of a query in either language: one map per row, by column
// and tag. Empty values are left out.
type answer []map[string]string

func askInfluxQL(t *testing.T, db *influx.Server, q string) answer {
	t.Helper()
	series, err := db.Query("e2e", q)
	require.NoError(t, err, q)
	var rows answer
	for _, s := range series {
		for _, values := range s.Values {
			row := maps.Clone(s.Tags)
			if row == nil {
				row = map[string]string{}
			}
			for i, v := range values {
				if v != nil && s.Columns[i] != "time" {
					row[s.Columns[i]] = fmt.Sprint(v)
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func askFlux(t *testing.T, db *influx.Server, q string) answer {
	t.Helper()
	rows, err := db.Flux(q)
	require.NoError(t, err, q)
	for _, row := range rows {
		maps.DeleteFunc(row, func(k, v string) bool {
			return v == "" || k == "result" || k == "table" || strings.HasPrefix(k, "_") && k != "_value" && k != "_field"
		})
	}
	return rows
}

// values are the distinct values of columns together, in order.
func (a answer) values(columns []string) []string {
	var list []string
	for _, row := range a {
		parts := make([]string, len(columns))
		for i, c := range columns {
			parts[i] = row[c]
		}
		list = append(list, strings.Join(parts, " "))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// has reports whether a column has a value in some row.
func (a answer) has(column string) bool {
	return slices.ContainsFunc(a, func(row map[string]string) bool { return row[column] != "" })
}

// sum adds up a column of integers.
func (a answer) sum(t *testing.T, column string) (sum int64) {
	t.Helper()
	for _, row := range a {
		n, err := strconv.ParseInt(row[column], 10, 64)
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// reasons are the names of counters by reason. InfluxQL has a column for each, Flux a row.
func (a answer) reasons(like string) []string {
	var list []string
	for _, row := range a {
		for k, v := range row {
			if i := strings.Index(k, like); i >= 0 {
				list = append(list, k[i:])
			} else if k == "_field" {
				list = append(list, v)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Every query of every dashboard, as it is in the files, finds the data that the plugin
// wrote, and both languages find the same.
func TestDashboardsShowWhatThePluginWrites(t *testing.T) {
	db, fluxDB := influx.Start(t), influx.StartFlux(t)
	shipModels(t)
	begin := time.Now()
	agent := strings.Replace(agentConfig(db.URL), "omit_hostname = true", `hostname = "probe"`, 1) +
		fmt.Sprintf("[[outputs.influxdb]]\n  urls = [%q]\n  database = \"e2e\"\n", fluxDB.URL)
	keys := fmt.Sprintf("  interface = \"demo\"\n  speed = 60.0\n  queues = 2\n  files = [%q, %q]\n", writeARP(t), writeCapture(t, traffic.Demo(1))) +
		"  [inputs.agp.flows]\n    emit = \"all\"\n  [inputs.agp.enforce]\n    enabled = true\n    socket = \"\"\n"
	sections := agpSection(t, keys)
	interfaces := []string{"demo"}
	if dir := realCaptures(t); dir != "" {
		sections += agpSection(t, fmt.Sprintf("  alias = \"real\"\n  interface = \"real\"\n  files = [%q, %q, %q]\n  [inputs.agp.flows]\n    emit = \"all\"\n",
			filepath.Join(dir, "mining.pcapng"), filepath.Join(dir, "amp.UDP.snmp.src161.pcapng"), filepath.Join(dir, "android.pcap")))
		interfaces = append(interfaces, "real")
	}
	p := startTelegraf(t, agent+sections)
	for _, i := range interfaces {
		for _, s := range []*influx.Server{db, fluxDB} {
			s.WaitInt("e2e", fmt.Sprintf(`SELECT count("up") FROM "agp_engine" WHERE "interface" = '%s' AND "state" = 'finished'`, i), 3)
		}
	}
	time.Sleep(time.Until(begin.Add(15 * time.Second))) // the runner reports after 10 s and at the end: a rate needs both in intervals of their own
	p.stop()
	p.requireCleanLog()

	w := dashboards.Window{From: begin.Add(-time.Second), To: time.Now().Add(time.Second), Interval: 2 * time.Second}
	reasons := maps.Clone(withoutData)
	if len(interfaces) == 1 {
		maps.Copy(reasons, withoutCaptures)
	}
	names := map[string]bool{}
	for i := range dashboards.All {
		d := &dashboards.All[i]
		boards := map[dashboards.Language]board{}
		for _, l := range dashboards.Languages {
			boards[l] = readBoard(t, l, d.Name)
		}
		for k, v := range boards[dashboards.InfluxQL].Templating.List {
			if v.Type != "query" {
				continue
			}
			a := askInfluxQL(t, db, dashboards.Expand(dashboards.InfluxQL, v.Query, "", w, nil))
			b := askFlux(t, fluxDB, dashboards.Expand(dashboards.Flux, boards[dashboards.Flux].Templating.List[k].Query, "e2e/autogen", w, nil))
			require.NotEmpty(t, a, "%s: variable %s", d.Name, v.Name)
			require.Equal(t, a.values([]string{"value"}), b.values([]string{"_value"}), "%s: variable %s", d.Name, v.Name)
		}
		for j := range d.Panels {
			name := d.Name + "/" + d.Panels[j].Title
			for k := range d.Panels[j].Queries {
				q := &d.Panels[j].Queries[k]
				names[name] = true
				for _, c := range columns(q) {
					names[name+"/"+c] = true
				}
				ask := func(t *testing.T, values func(string) string) answer {
					a := askInfluxQL(t, db, dashboards.Expand(dashboards.InfluxQL, boards[dashboards.InfluxQL].Panels[j].Targets[k].Query, "", w, values))
					b := askFlux(t, fluxDB, dashboards.Expand(dashboards.Flux, boards[dashboards.Flux].Panels[j].Targets[k].Query, "e2e/autogen", w, values))
					require.Equal(t, a.values(q.By), b.values(q.By), "%s: InfluxQL and Flux find different groups", name)
					if q.Read == dashboards.Count {
						require.Equal(t, a.sum(t, q.Name), b.sum(t, q.Name), "%s: InfluxQL and Flux count differently", name)
					}
					if q.Like != "" {
						require.Equal(t, a.reasons(q.Like), b.reasons(q.Like), "%s: InfluxQL and Flux find different counters", name)
						require.Contains(t, a.reasons(q.Like), q.Like+"non_ip_arp", name)
					}
					if q.Read == dashboards.Latest || q.Read == dashboards.Events {
						require.Equal(t, a.values(q.Fields), b.values(q.Fields), "%s: InfluxQL and Flux find different rows", name)
					} else {
						require.Equal(t, slices.ContainsFunc(columns(q), a.has), slices.ContainsFunc(columns(q), b.has), name)
					}
					return a
				}
				t.Run(fmt.Sprintf("%s/%d", name, k), func(t *testing.T) {
					requireData(t, name, q, ask(t, func(string) string { return ".*" }), reasons)
					for _, row := range ask(t, choose) {
						if slices.Contains(q.Vars, "interface") {
							require.Contains(t, []string{"", "demo"}, row["interface"])
						}
					}
				})
			}
		}
	}
	for i := range dashboards.Rules {
		r := &dashboards.Rules[i]
		name := "rule/" + r.Name
		names[name] = true
		t.Run(name, func(t *testing.T) {
			a := askInfluxQL(t, db, dashboards.Expand(dashboards.InfluxQL, r.Query.InfluxQL(), "", w, nil))
			b := askFlux(t, fluxDB, dashboards.Expand(dashboards.Flux, r.Query.Flux(), "e2e/autogen", w, nil))
			require.Equal(t, a.values(r.Query.By), b.values(r.Query.By))
			requireData(t, name, &r.Query, a, reasons)
		})
	}
	for name := range reasons {
		require.True(t, names[name], "%s is listed, but there is no such query", name)
	}
}

// choose is a reader who has chosen a host, an interface and an address.
func choose(variable string) string {
	switch variable {
	case "host":
		return "(probe)"
	case "interface":
		return "(demo|none)"
	case "address":
		return `^192\.0\.2\.66$`
	}
	return ".*"
}

// requireData fails unless a query has found something in each column, or a reason
// is listed why not.
func requireData(t *testing.T, name string, q *dashboards.Query, a answer, reasons map[string]string) {
	t.Helper()
	if reason, listed := reasons[name]; listed {
		require.Empty(t, a, "%s has data, although: %s", name, reason)
		return
	}
	require.NotEmpty(t, a, "%s finds nothing: %s", name, q.InfluxQL())
	for _, c := range columns(q) {
		if reason, listed := reasons[name+"/"+c]; listed {
			require.False(t, a.has(c), "%s: %s has data, although: %s", name, c, reason)
			continue
		}
		require.True(t, a.has(c), "%s finds no %s: %s", name, c, q.InfluxQL())
	}
}

// columns that the result of a query has to have, besides tags.
func columns(q *dashboards.Query) []string {
	switch {
	case q.Like != "": // named by what there is
		return nil
	case q.Read == dashboards.Latest || q.Read == dashboards.Events:
		return q.Fields
	default:
		return []string{q.Name}
	}
}

// realCaptures is the captures' folder, "" where there is none: this test has
// synthetic traffic as well.
func realCaptures(t *testing.T) string {
	t.Helper()
	if os.Getenv(testcap.Env) == "" {
		return ""
	}
	return testcap.Dir(t)
}
