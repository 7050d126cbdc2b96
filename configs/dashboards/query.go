package dashboards

import (
	"fmt"
	"strings"
)

// Read says what a query does with the points that it finds.
type Read int

// The ways of reading. All but the last two give one value for each interval and group.
const (
	Last   Read = iota // the last value of an interval
	Mean               // the mean of an interval
	Max                // the largest value of an interval
	Count              // how many points an interval has
	Rate               // growth of a counter per second
	Growth             // growth of a counter
	Ratio              // growth of the first counter over that of the second
	Latest             // a table: the last point of each group
	Events             // a table: the newest points
)

// maxEvents is how many rows a table of events has at most.
const maxEvents = 200

// Query is what a panel or an alert rule reads, in no query language. Whatever it
// reads is grouped by tags, and series are bounded, so no query grows with traffic.
type Query struct {
	From   string   // measurement
	Read   Read     // what to do with the points
	Fields []string // one; Ratio two; tables any number
	Like   string   // instead of Fields: all that begin so, for counters by reason
	Name   string   // of the result
	By     []string // tags that stay apart; of tables, the tags that are shown
	// Across says how the series of a group become one value: sum, max, min or mean;
	// empty where there is nothing to join, as with text.
	Across string
	Vars   []string // tags that a dashboard's variable of the same name chooses
	Tags   []Match  // what tags have to be
	Only   any      // what the field itself has to be: a bool or a string
	Search []string // Events: text fields, one of which has to match the variable "address"
}

// Match is a condition on a tag: equal to Is, or matching the regular expression Like.
type Match struct{ Tag, Is, Like string }

// pivot makes columns of fields; the tags of a table stay.
const pivot = `pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")`

// table reports whether the result is a table and not series over time.
func (q *Query) table() bool { return q.Read == Latest || q.Read == Events }

// Texts of both languages where Grafana puts in a variable's value, as a regular
// expression of all values that were chosen.
func variable(tag string) string { return "/^${" + tag + ":regex}$/" }

const address = "/${address:raw}/"

func join[T any](list []T, sep string, f func(T) string) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = f(v)
	}
	return strings.Join(parts, sep)
}

func quote(s string) string { return `"` + s + `"` }

// InfluxQL returns the query for InfluxDB 1.x and its compatible interfaces.
func (q *Query) InfluxQL() string {
	where := q.influxWhere()
	from := fmt.Sprintf(`FROM "%s" WHERE %s`, q.From, where)
	by := join(q.By, "", func(tag string) string { return ", " + quote(tag) })
	perInterval := func(inner string) string { return "GROUP BY time($__interval)" + inner + " fill(none)" }
	switch q.Read {
	case Events:
		columns := append(append([]string{}, q.By...), q.Fields...)
		return fmt.Sprintf("SELECT %s %s ORDER BY time DESC LIMIT %d", join(columns, ", ", quote), from, maxEvents)
	case Latest:
		text := fmt.Sprintf(`SELECT last("%s") AS "%[1]s"`, q.Fields[0])
		for _, f := range q.Fields[1:] {
			text += ", " + quote(f)
		}
		return text + " " + from + " GROUP BY " + strings.TrimPrefix(by, ", ")
	case Ratio:
		return fmt.Sprintf(`SELECT sum("a") / sum("b") AS "%s" FROM (SELECT %s AS "a", %s AS "b" %s %s) WHERE "b" > 0 AND $timeFilter %s`,
			q.Name, q.influxValue(quote(q.Fields[0])), q.influxValue(quote(q.Fields[1])), from, perInterval(", *"), perInterval(by))
	}
	if q.Like != "" {
		return fmt.Sprintf(`SELECT %s(/./) FROM (SELECT %s %s %s) WHERE $timeFilter %s`,
			q.Across, q.influxValue("/^"+q.Like+"/"), from, perInterval(", *"), perInterval(by))
	}
	value := q.influxValue(quote(q.Fields[0]))
	if q.Across == "" {
		return fmt.Sprintf(`SELECT %s AS "%s" %s %s`, value, q.Name, from, perInterval(by))
	}
	return fmt.Sprintf(`SELECT %s("value") AS "%s" FROM (SELECT %s AS "value" %s %s) WHERE $timeFilter %s`,
		q.Across, q.Name, value, from, perInterval(", *"), perInterval(by))
}

func (q *Query) influxValue(field string) string {
	switch q.Read {
	case Mean:
		return "mean(" + field + ")"
	case Max:
		return "max(" + field + ")"
	case Count:
		return "count(" + field + ")"
	case Rate:
		return "non_negative_derivative(last(" + field + "), 1s)"
	case Growth, Ratio:
		return "non_negative_difference(last(" + field + "))"
	default:
		return "last(" + field + ")"
	}
}

func (q *Query) influxWhere() string {
	var all []string
	for _, tag := range q.Vars {
		all = append(all, quote(tag)+" =~ "+variable(tag))
	}
	for _, m := range q.Tags {
		if m.Like != "" {
			all = append(all, fmt.Sprintf(`"%s" =~ /%s/`, m.Tag, m.Like))
		} else {
			all = append(all, fmt.Sprintf(`"%s" = '%s'`, m.Tag, m.Is))
		}
	}
	switch v := q.Only.(type) {
	case bool:
		all = append(all, fmt.Sprintf(`"%s" = %t`, q.Fields[0], v))
	case string:
		all = append(all, fmt.Sprintf(`"%s" = '%s'`, q.Fields[0], v))
	}
	if len(q.Search) > 0 {
		all = append(all, "("+join(q.Search, " OR ", func(f string) string { return quote(f) + " =~ " + address })+")")
	}
	return strings.Join(append(all, "$timeFilter"), " AND ")
}

// Flux returns the query for InfluxDB 2.x, and 1.8 where Flux is switched on.
func (q *Query) Flux() string {
	steps := []string{
		"from(bucket: v.defaultBucket)",
		"range(start: v.timeRangeStart, stop: v.timeRangeStop)",
		"filter(fn: (r) => " + q.fluxWhere() + ")",
	}
	add := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	list := func(columns ...string) string { return "[" + join(columns, ", ", quote) + "]" }
	with := func(more ...string) string { return list(append(more, q.By...)...) }
	window := func(fn string) {
		add("aggregateWindow(every: v.windowPeriod, fn: %s, createEmpty: false)", fn)
	}
	switch q.Read {
	case Events, Latest:
		order, keep := list(q.By...), append(append([]string{}, q.By...), q.Fields...)
		if q.Read == Latest {
			add("last()")
		} else {
			order, keep = `["_time"], desc: true`, append([]string{"_time"}, keep...)
		}
		add(pivot)
		add("group()")
		if len(q.Search) > 0 {
			add("filter(fn: (r) => %s)", join(q.Search, " or ", func(f string) string { return "r." + f + " =~ " + address }))
		}
		add("sort(columns: %s)", order)
		if q.Read == Events {
			add("limit(n: %d)", maxEvents)
		}
		add("keep(columns: %s)", list(keep...))
		return strings.Join(steps, "\n  |> ")
	case Rate:
		add("derivative(unit: 1s, nonNegative: true)")
		window("mean")
	case Growth, Ratio:
		add("difference(nonNegative: true)")
		window("sum")
	case Mean:
		window("mean")
	case Max:
		window("max")
	case Count:
		window("count")
	default:
		window("last")
	}
	across := q.Across
	if q.Read == Ratio || q.Read == Count {
		across = "sum"
	}
	keep := list(q.By...)
	apart := []string{"_time"}
	if q.Read == Ratio || q.Like != "" {
		apart = append(apart, "_field")
	}
	if q.Like != "" {
		keep = with("_field")
	}
	if across == "" { // text: series are what the tags tell apart
		across = "last"
	}
	add("group(columns: %s)", with(apart...))
	add("%s()", across)
	add("group(columns: %s)", keep)
	if across == "max" || across == "min" || across == "last" { // these leave all columns
		add("keep(columns: %s)", with("_time", "_value"))
	}
	if q.Read == Ratio {
		a, b := q.Fields[0], q.Fields[1]
		add(pivot)
		add("filter(fn: (r) => exists r.%s and exists r.%s and r.%[2]s > 0)", a, b)
		add("map(fn: (r) => ({r with _value: float(v: r.%s) / float(v: r.%s)}))", a, b)
		add("drop(columns: %s)", list(a, b))
	}
	add(`sort(columns: ["_time"])`)
	if q.Like == "" {
		add(`rename(columns: {_value: "%s"})`, q.Name)
	}
	return strings.Join(steps, "\n  |> ")
}

func (q *Query) fluxWhere() string {
	all := []string{fmt.Sprintf(`r._measurement == "%s"`, q.From)}
	if q.Like != "" {
		all = append(all, "r._field =~ /^"+q.Like+"/")
	} else {
		fields := join(q.Fields, " or ", func(f string) string { return fmt.Sprintf(`r._field == "%s"`, f) })
		if len(q.Fields) > 1 {
			fields = "(" + fields + ")"
		}
		all = append(all, fields)
	}
	for _, tag := range q.Vars {
		// The store evaluates this as it does for InfluxQL: a tag that is missing is empty.
		all = append(all, "r."+tag+" =~ "+variable(tag))
	}
	for _, m := range q.Tags {
		if m.Like != "" {
			all = append(all, fmt.Sprintf("r.%s =~ /%s/", m.Tag, m.Like))
		} else {
			all = append(all, fmt.Sprintf(`r.%s == "%s"`, m.Tag, m.Is))
		}
	}
	if q.Only != nil {
		all = append(all, fmt.Sprintf("r._value == %#v", q.Only)) // Go's notation is Flux's, too
	}
	return strings.Join(all, " and ")
}
