package dashboards

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/influxdata/influxql"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// generated are the folders that hold nothing but generated files.
var generated = []string{"influxql", "flux", "provisioning"}

func TestCommittedFilesAreThoseThatAreGenerated(t *testing.T) {
	want, err := Files()
	require.NoError(t, err)
	for path, text := range want {
		have, err := os.ReadFile(path)
		require.NoError(t, err, "go generate ./configs/dashboards")
		require.Equal(t, string(text), string(have), "%s: go generate ./configs/dashboards", path)
	}
	for _, dir := range generated {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				require.Contains(t, want, filepath.ToSlash(path), "is generated no more")
			}
			return err
		}))
	}
}

// eachPanel calls f with the panels of all dashboards, less headings.
func eachPanel(f func(b *Dashboard, p *Panel)) {
	for i := range All {
		for j := range All[i].Panels {
			if p := &All[i].Panels[j]; len(p.Queries) > 0 {
				f(&All[i], p)
			}
		}
	}
}

func TestEveryPanelHasUnitDescriptionAndEmptyState(t *testing.T) {
	eachPanel(func(b *Dashboard, p *Panel) {
		name := b.Name + ": " + p.Title
		require.NotEmpty(t, p.Title, b.Name)
		require.NotEmpty(t, p.Unit, name)
		require.NotEmpty(t, p.Empty, name)
		require.True(t, strings.HasSuffix(p.Text, "."), name)
		require.NotZero(t, p.Wide, name)
		for _, q := range p.Queries {
			require.Equal(t, p.Draw == Table, q.table(), name)
			require.Equal(t, p.Queries[0].By, q.By, "%s: one legend for all", name)
			if !q.table() {
				continue
			}
			var columns []string
			for _, c := range p.Columns {
				columns = append(columns, c.Of)
			}
			for _, c := range append(q.By, q.Fields...) {
				require.Contains(t, columns, c, name)
			}
		}
	})
}

type classic = dashboard.Dashboard //nolint:staticcheck // the schema that every Grafana reads from a file

// Grafana's own model of a dashboard, which refuses keys that it does not know.
func TestGrafanaReadsTheDashboards(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	uids := map[string]bool{}
	for i := range All {
		for _, l := range Languages {
			b, err := All[i].JSON(l)
			require.NoError(t, err)
			// The strict reader gives an empty list of errors for none, and does not keep the panels.
			require.Empty(t, new(classic).UnmarshalJSONStrict(b), All[i].Name)
			for _, key := range []string{"panels", "gridPos", "templating"} {
				wrong := strings.ReplaceAll(string(b), quote(key), quote(key+"z"))
				require.ErrorContains(t, new(classic).UnmarshalJSONStrict([]byte(wrong)), key+"z")
			}
			var d classic
			require.NoError(t, json.Unmarshal(b, &d))
			require.NoError(t, d.Validate())
			again, err := json.Marshal(&d)
			require.NoError(t, err)
			require.JSONEq(t, string(b), string(again), "something was not understood")
			require.False(t, uids[*d.Uid], *d.Uid)
			uids[*d.Uid] = true
			ids := map[uint32]bool{}
			for _, p := range d.Panels {
				id := uint32(0)
				if p.Panel != nil {
					id = *p.Panel.Id
					require.NotEmpty(t, p.Panel.Targets)
					require.LessOrEqual(t, p.Panel.GridPos.X+p.Panel.GridPos.W, uint32(24), *p.Panel.Title)
				} else {
					id = p.RowPanel.Id
				}
				require.False(t, ids[id], "panel %d twice in %s", id, All[i].Name)
				ids[id] = true
			}
		}
	}
}

// shape is what the plugin can emit: "measurement tag name" and
// "measurement field name type", frozen by the plugin's own tests.
func shape(t *testing.T) map[string]string {
	t.Helper()
	known := map[string]string{}
	for _, name := range []string{"shape.txt", "runner_shape.txt"} {
		b, err := os.ReadFile("../../plugins/inputs/agp/testdata/" + name)
		require.NoError(t, err)
		for line := range strings.Lines(string(b)) {
			p := strings.Fields(line)
			known[strings.Join(p[:3], " ")] = strings.Join(p[3:], "")
		}
	}
	require.NotEmpty(t, known)
	return known
}

// requireKnown fails if a query names what the plugin does not emit, also where no
// test has data, as of a GPU.
func requireKnown(t *testing.T, known map[string]string, q *Query, where string) {
	t.Helper()
	for _, f := range q.Fields {
		kind, ok := known[q.From+" field "+f]
		require.True(t, ok, "%s: %s has no field %s", where, q.From, f)
		if !q.table() && q.Read != Count && q.Across != "" && q.Across != "count" {
			require.Contains(t, []string{"int64", "float64"}, kind, "%s: %s", where, f)
		}
	}
	if q.Like != "" {
		require.Empty(t, q.Fields, where)
		require.True(t, slices.ContainsFunc(keys(known), func(k string) bool { return strings.HasPrefix(k, q.From+" field "+q.Like) }), where)
	}
	tags := append(append([]string{}, q.By...), q.Vars...)
	for _, m := range q.Tags {
		tags = append(tags, m.Tag)
	}
	for _, tag := range tags {
		if tag == "host" { // telegraf's own
			continue
		}
		require.Contains(t, known, q.From+" tag "+tag, where)
	}
}

func keys(m map[string]string) []string {
	var list []string
	for k := range m {
		list = append(list, k)
	}
	return list
}

func TestQueriesNameWhatThePluginEmits(t *testing.T) {
	known := shape(t)
	eachPanel(func(b *Dashboard, p *Panel) {
		for i := range p.Queries {
			requireKnown(t, known, &p.Queries[i], b.Name+": "+p.Title)
			for _, tag := range p.Queries[i].Vars {
				require.True(t, slices.ContainsFunc(b.Vars, func(v Variable) bool { return v.Tag == tag }), "%s: %s: no variable %s", b.Name, p.Title, tag)
			}
		}
	})
	for i := range Rules {
		requireKnown(t, known, &Rules[i].Query, "rule "+Rules[i].Name)
		require.Empty(t, Rules[i].Query.Vars, "an alert rule has no variables")
	}
	for i := range All {
		for _, v := range All[i].Vars {
			if v.Tag != "host" {
				require.Contains(t, known, v.Of+" tag "+v.Tag)
			}
		}
	}
}

// texts are all queries of the committed dashboards in a language, variables too.
func texts(t *testing.T, l Language) []string {
	t.Helper()
	var all []string
	for i := range All {
		b, err := os.ReadFile(filepath.Join(string(l), All[i].Name+".json"))
		require.NoError(t, err)
		var d struct {
			Panels     []struct{ Targets []struct{ Query string } }
			Templating struct {
				List []struct{ Type, Query string }
			}
		}
		require.NoError(t, json.Unmarshal(b, &d))
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				all = append(all, q.Query)
			}
		}
		for _, v := range d.Templating.List {
			if v.Type == "query" {
				all = append(all, v.Query)
			}
		}
	}
	for _, r := range readRules(t, l) {
		all = append(all, r.Data[0].Model.Query)
	}
	return all
}

// fileRule is what the tests need of a rule in Grafana's provisioning file.
type fileRule struct {
	UID, Title, Condition string
	NoDataState           string `yaml:"noDataState"`
	Data                  []struct {
		RefID         string `yaml:"refId"`
		DatasourceUID string `yaml:"datasourceUid"`
		Model         struct{ Query, Expression string }
	}
}

// readRules reads the rules as Grafana does: $$ is $, and every other $ begins the
// name of an environment variable.
func readRules(t *testing.T, l Language) []fileRule {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("provisioning", "alerting", "agp-"+string(l)+".yaml"))
	require.NoError(t, err)
	var file struct{ Groups []struct{ Rules []fileRule } }
	require.NoError(t, yaml.Unmarshal(b, &file))
	require.Len(t, file.Groups, 1)
	rules := file.Groups[0].Rules
	for i := range rules {
		parts := strings.Split(rules[i].Data[0].Model.Query, "$$")
		for _, part := range parts {
			require.NotContains(t, part, "$", rules[i].UID)
		}
		rules[i].Data[0].Model.Query = strings.Join(parts, "$")
	}
	return rules
}

func TestAlertRulesAreComplete(t *testing.T) {
	uids := map[string]bool{}
	for _, l := range Languages {
		b, err := os.ReadFile(filepath.Join("provisioning", "datasources", "agp-"+string(l)+".yaml"))
		require.NoError(t, err)
		var sources struct{ Datasources []struct{ UID, Type string } }
		require.NoError(t, yaml.Unmarshal(b, &sources))
		require.Equal(t, "influxdb", sources.Datasources[0].Type)

		rules := readRules(t, l)
		require.Len(t, rules, len(Rules))
		for i, r := range rules {
			require.Equal(t, Rules[i].Query.Text(l), r.Data[0].Model.Query)
			require.Equal(t, sources.Datasources[0].UID, r.Data[0].DatasourceUID)
			require.False(t, uids[r.UID], r.UID)
			uids[r.UID] = true
			require.LessOrEqual(t, len(r.UID), 40, "Grafana's limit")
			require.Equal(t, "A", r.Data[1].Model.Expression)
			require.Equal(t, "B", r.Data[2].Model.Expression)
			require.Equal(t, r.Data[2].RefID, r.Condition)
			require.Contains(t, []string{"OK", "Alerting"}, r.NoDataState)
			require.NotEmpty(t, r.Title)
			require.True(t, strings.HasSuffix(Rules[i].Text, "."), r.UID)
			require.False(t, Rules[i].Query.table(), r.UID)
		}
	}
}

var hour = Window{From: time.Unix(1_700_000_000, 0), To: time.Unix(1_700_003_600, 0), Interval: 20 * time.Second}

func TestInfluxQLIsValid(t *testing.T) {
	for _, text := range texts(t, InfluxQL) {
		q := Expand(InfluxQL, text, "", hour, func(string) string { return "(a|b)" })
		_, err := influxql.ParseQuery(q)
		require.NoError(t, err, q)
		require.NotRegexp(t, `\$[_{a-z]`, q)
	}
}

// A query without a time range or a measurement would read everything there is.
func TestNoQueryIsWithoutBounds(t *testing.T) {
	for _, text := range texts(t, Flux) {
		require.Contains(t, text, "range(start: v.timeRangeStart, stop: v.timeRangeStop)")
		require.Contains(t, text, "_measurement == ")
	}
	for _, text := range texts(t, InfluxQL) {
		require.True(t, strings.Contains(text, "$timeFilter") || strings.HasPrefix(text, "SHOW TAG VALUES FROM "), text)
	}
}
