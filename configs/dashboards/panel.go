package dashboards

import (
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// Language of queries.
type Language string

// The languages, which are also the names of folders.
const (
	InfluxQL Language = "influxql"
	Flux     Language = "flux"
)

// Languages lists all of them.
var Languages = []Language{InfluxQL, Flux}

// minInterval is two of telegraf's default intervals, so that each has a point.
const minInterval = "20s"

// Draw says how a panel shows its data.
type Draw int

// The ways of drawing.
const (
	Number  Draw = iota // one number, the last of the series
	Total               // one number, the sum of the series
	Lines               // a line for each series
	Stacked             // areas on top of each other
	Bars                // stacked bars
	Table
	States // coloured bands of text values
)

// Panel is one panel of a dashboard, or a heading if it has a title only.
type Panel struct {
	Title   string
	Text    string // description
	Unit    string // of package units
	Empty   string // what is shown where there are no data
	Draw    Draw
	Wide    uint32 // of 24
	High    uint32 // by default what suits Draw
	Red     float64
	Columns []Column // of a Table
	Queries []Query
}

// Column of a table: how a tag or field is shown.
type Column struct {
	Of, As string
	Unit   string
	Link   bool // to the flows of the address that it holds
}

// target is a query as Grafana's InfluxDB data source keeps it. The SDK has no type for it.
type target struct {
	RefID        string               `json:"refId"`
	Datasource   common.DataSourceRef `json:"datasource"`
	RawQuery     bool                 `json:"rawQuery"`
	Query        string               `json:"query"`
	ResultFormat string               `json:"resultFormat,omitempty"`
	Alias        string               `json:"alias,omitempty"`
}

var _ variants.Dataquery = (*target)(nil)

func (*target) ImplementsDataqueryVariant() {}
func (*target) DataqueryType() string       { return "influxdb" }
func (*target) Validate() error             { return nil }
func (t *target) Equals(other variants.Dataquery) bool {
	o, ok := other.(*target)
	return ok && *o == *t
}

// Text is the query in a language.
func (q *Query) Text(l Language) string {
	if l == Flux {
		return q.Flux()
	}
	return q.InfluxQL()
}

func (q *Query) target(l Language, id int, source common.DataSourceRef) *target {
	t := &target{RefID: string(rune('A' + id)), Datasource: source, RawQuery: true, Query: q.Text(l)}
	if l == InfluxQL {
		t.ResultFormat = "time_series"
		switch {
		case q.table():
			t.ResultFormat = "table"
		case len(q.By) == 0:
			t.Alias = "$col"
		}
	}
	return t
}

func fromVariable() common.DataSourceRef {
	return common.DataSourceRef{Type: new("influxdb"), Uid: new("${source}")}
}

// build makes p a panel of Grafana.
func (p *Panel) build(l Language, id uint32) (dashboard.Panel, error) {
	var g dashboard.Panel
	var err error
	high := uint32(8)
	switch p.Draw {
	case Number, Total:
		high = 4
		calc := "lastNotNull"
		if p.Draw == Total {
			calc = "sum"
		}
		g, err = stat.NewPanelBuilder().ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{calc})).
			ColorMode(common.BigValueColorModeValue).GraphMode(common.BigValueGraphModeArea).Build()
	case Table:
		g, err = table.NewPanelBuilder().Footer(common.NewTableFooterOptionsBuilder().Show(false).Reducer([]string{})).Build()
	case States:
		g, err = statetimeline.NewPanelBuilder().ShowValue(common.VisibilityModeAuto).MergeValues(true).Build()
	default:
		b := timeseries.NewPanelBuilder().FillOpacity(10).ShowPoints(common.VisibilityModeNever).
			Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true)).
			Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).Min(0)
		if p.Draw != Lines {
			b.Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A")).FillOpacity(40)
		}
		if p.Draw == Bars {
			b.DrawStyle(common.GraphDrawStyleBars).FillOpacity(80)
		}
		g, err = b.Build()
	}
	if err != nil {
		return g, fmt.Errorf("panel %q: %w", p.Title, err)
	}
	if p.High != 0 {
		high = p.High
	}
	source := fromVariable()
	g.Id, g.Title, g.Description, g.Datasource = &id, &p.Title, &p.Text, &source
	g.GridPos = &dashboard.GridPos{W: p.Wide, H: high}
	g.Interval = new(minInterval)
	for i := range p.Queries {
		g.Targets = append(g.Targets, p.Queries[i].target(l, i, source))
	}
	if g.FieldConfig == nil {
		g.FieldConfig = dashboard.NewFieldConfigSource()
	}
	d := &g.FieldConfig.Defaults
	d.Unit, d.NoValue = &p.Unit, &p.Empty
	p.legend(d)
	p.colours(d)
	for _, c := range p.Columns {
		g.FieldConfig.Overrides = append(g.FieldConfig.Overrides, c.override(l))
	}
	if len(p.Queries) > 0 && p.Queries[0].Like != "" {
		// Both languages put what they did in front of the field's name, and Flux the tags behind it.
		g.Transformations = []dashboard.DataTransformerConfig{{
			Id: "renameByRegex", Options: map[string]any{"regex": `^.*` + p.Queries[0].Like + `(\w+).*$`, "renamePattern": "$1"},
		}}
	}
	return g, nil
}

// legend names series by the tags that tell them apart.
func (p *Panel) legend(d *dashboard.FieldConfig) {
	if len(p.Queries) == 0 || p.Queries[0].table() || len(p.Queries[0].By) == 0 {
		return
	}
	d.DisplayName = new(join(p.Queries[0].By, " ", func(tag string) string { return "${__field.labels." + tag + "}" }))
}

func (p *Panel) colours(d *dashboard.FieldConfig) {
	switch {
	case p.Draw == States:
		results := map[string]dashboard.ValueMappingResult{}
		for state, colour := range map[string]string{
			"running": "green", "finished": "blue", "starting": "yellow", "restarting": "red", "stopped": "gray",
		} {
			results[state] = dashboard.ValueMappingResult{Text: new(state), Color: new(colour)}
		}
		d.Mappings = []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: results}}}
	case p.Draw == Number || p.Draw == Total:
		d.Color = &dashboard.FieldColor{Mode: dashboard.FieldColorModeIdThresholds}
		steps := []dashboard.Threshold{{Color: "green"}}
		if p.Red > 0 {
			steps = append(steps, dashboard.Threshold{Value: &p.Red, Color: "red"})
		}
		d.Thresholds = &dashboard.ThresholdsConfig{Mode: dashboard.ThresholdsModeAbsolute, Steps: steps}
	}
}

func (c *Column) override(l Language) dashboard.DashboardFieldConfigSourceOverrides {
	o := dashboard.DashboardFieldConfigSourceOverrides{Matcher: dashboard.MatcherConfig{Id: "byName", Options: c.Of}}
	o.Properties = append(o.Properties, dashboard.DynamicConfigValue{Id: "displayName", Value: c.As})
	if c.Unit != "" {
		o.Properties = append(o.Properties, dashboard.DynamicConfigValue{Id: "unit", Value: c.Unit})
	}
	if c.Link {
		o.Properties = append(o.Properties, dashboard.DynamicConfigValue{Id: "links", Value: []map[string]any{{
			"title": "Flows of this address", "url": "/d/" + uid("flows", l) + "?var-address=${__value.raw}&${__url_time_range}",
		}}})
	}
	return o
}

// Variable is what the reader of a dashboard chooses from.
type Variable struct {
	Tag   string // its name as well
	Label string
	Of    string // measurement
}

// query lists the values of the tag.
func (v *Variable) query(l Language) string {
	if l == Flux {
		return fmt.Sprintf(`from(bucket: v.defaultBucket)
  |> range(start: v.timeRangeStart, stop: v.timeRangeStop)
  |> filter(fn: (r) => r._measurement == "%s")
  |> keep(columns: ["%s"])
  |> group()
  |> distinct(column: "%[2]s")`, v.Of, v.Tag)
	}
	return fmt.Sprintf(`SHOW TAG VALUES FROM "%s" WITH KEY = "%s"`, v.Of, v.Tag)
}

// Dashboard is one of the dashboards, in no query language.
type Dashboard struct {
	Name    string // of the file and in the uid
	Title   string
	Text    string
	Vars    []Variable
	Address bool // has a text box for addresses
	Panels  []Panel
}

func uid(name string, l Language) string { return "agp-" + name + "-" + string(l) }

func text(s string) dashboard.StringOrArrayOfString {
	return dashboard.StringOrArrayOfString{String: &s}
}

// JSON returns the dashboard as Grafana reads it.
func (b *Dashboard) JSON(l Language) ([]byte, error) {
	tag := "agp-" + string(l)
	//nolint:staticcheck // the classic schema is the one that every Grafana reads from a file
	d := dashboard.NewDashboardBuilder(b.Title).Uid(uid(b.Name, l)).Description(b.Text).Tags([]string{"agp", tag}).
		Editable().Refresh("30s").Time("now-1h", "now").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Link(dashboard.NewDashboardLinkBuilder("AGP").Type(dashboard.DashboardLinkTypeDashboards).Tags([]string{tag}).KeepTime(true).IncludeVars(true)).
		WithVariable(dashboard.NewDatasourceVariableBuilder("source").Label("Data source").Type("influxdb").
			Current(dashboard.VariableOption{Text: text(sourceName(l)), Value: text(sourceUID(l))}))
	for i := range b.Vars {
		v := &b.Vars[i]
		query := v.query(l)
		d.WithVariable(dashboard.NewQueryVariableBuilder(v.Tag).Label(v.Label).Datasource(fromVariable()).
			Query(dashboard.StringOrMap{String: &query}).Definition(query).Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Sort(dashboard.VariableSortAlphabeticalAsc).Multi(true).IncludeAll(true).AllValue(".*").
			Current(dashboard.VariableOption{Text: text("All"), Value: text("$__all")}))
	}
	if b.Address {
		d.WithVariable(dashboard.NewTextBoxVariableBuilder("address").Label("Address").Description("Regular expression that source or destination match").
			DefaultValue(dashboard.StringOrMap{String: new(".*")}).Current(dashboard.VariableOption{Text: text(".*"), Value: text(".*")}))
	}
	for i := range b.Panels {
		p := &b.Panels[i]
		id := uint32(i + 1)
		if len(p.Queries) == 0 {
			d.WithRow(dashboard.NewRowBuilder(p.Title).Id(id))
			continue
		}
		g, err := p.build(l, id)
		if err != nil {
			return nil, fmt.Errorf("dashboard %q: %w", b.Name, err)
		}
		d.WithPanel(built(g))
	}
	g, err := d.Build()
	if err != nil {
		return nil, fmt.Errorf("dashboard %q: %w", b.Name, err)
	}
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("dashboard %q: %w", b.Name, err)
	}
	out, err := json.MarshalIndent(g, "", "  ")
	return append(out, '\n'), err
}

// built is a panel that is complete, for the SDK's builders.
type built dashboard.Panel

// Build returns the panel.
func (b built) Build() (dashboard.Panel, error) { return dashboard.Panel(b), nil }
