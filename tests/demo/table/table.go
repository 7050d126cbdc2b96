// Package table puts beside each other what a synthetic capture contains and
// what the metrics say of it. It keeps no state and reads no clock.
package table

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/influxdata/telegraf"

	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// appNames are the names under which a model may report the applications of the capture.
var appNames = map[string][]string{"tls": {"tls", "https", "ssl"}, "http": {"http"}, "dns": {"dns"}, "ssh": {"ssh"}}

// Compare prints expected and found side by side and reports whether something was missed.
func Compare(out io.Writer, truth traffic.Summary, metrics []telegraf.Metric) (missed bool) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(what, expected, found string, good bool) {
		verdict := "ok"
		if !good {
			verdict, missed = "MISSED", true
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", what, expected, found, verdict)
	}
	count := func(what string, expected, found uint64) {
		row(what, fmt.Sprint(expected), fmt.Sprint(found), expected == found)
	}
	fmt.Fprintf(w, "\nwhat\texpected\tfound\t\n")
	count("packets", truth.Packets, Last(metrics, "agp_traffic", "packets"))
	count("bytes", truth.Bytes, Last(metrics, "agp_traffic", "bytes"))
	count("flows", truth.Flows, Last(metrics, "agp_traffic", "flows"))
	count("TCP retransmissions", truth.Retransmits, Last(metrics, "agp_traffic", "tcp_retransmits"))
	count("TCP out of order", truth.OutOfOrder, Last(metrics, "agp_traffic", "tcp_out_of_order"))

	apps := flowsByApp(metrics)
	names := make([]string, 0, len(truth.Apps))
	for name := range truth.Apps {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		expected, found := truth.Apps[name].Flows, uint64(0)
		for _, n := range appNames[name] {
			found += apps[n]
		}
		if len(apps) == 0 {
			fmt.Fprintf(w, "%s flows\t%d\tno model names applications\t\n", name, expected)
			continue
		}
		// A model may leave a flow unnamed; one in ten is what the demo puts up with.
		row(name+" flows", fmt.Sprint(expected), fmt.Sprint(found), found*10 >= expected*9 && found*10 <= expected*11)
	}
	compareAlerts(truth, metrics, row)
	if err := w.Flush(); err != nil {
		return true
	}
	return missed
}

// flowsByApp sums up flows by the tag app; empty if no model sets it.
func flowsByApp(metrics []telegraf.Metric) map[string]uint64 {
	apps := map[string]uint64{}
	for _, m := range Latest(metrics, "agp_traffic") {
		app, ok := m.GetTag("app")
		if !ok {
			continue
		}
		if n, ok := m.GetField("flows"); ok {
			if n, ok := n.(int64); ok {
				apps[strings.ToLower(app)] += uint64(n)
			}
		}
	}
	return apps
}

// compareAlerts looks for one alert per scenario; alerts about none of them are false alarms.
func compareAlerts(truth traffic.Summary, metrics []telegraf.Metric, row func(what, expected, found string, good bool)) {
	var others []string
	found := map[string]string{}
	for _, m := range metrics {
		if m.Name() != "agp_alert" {
			continue
		}
		kind, _ := m.GetTag("kind")
		src, dst := text(m, "src"), text(m, "dst")
		known := false
		for _, e := range truth.Events {
			if e.Src != "" && e.Src != src || e.Src == "" && e.Dst != dst {
				continue
			}
			known = true
			if kind == e.Kind {
				found[e.Kind] = describe(src, dst)
			}
		}
		if !known {
			others = append(others, kind+" "+describe(src, dst))
		}
	}
	for _, e := range truth.Events {
		row(e.Kind+" alert", describe(e.Src, e.Dst), cmp.Or(found[e.Kind], "nothing"), found[e.Kind] != "")
	}
	row("other alerts", "none", cmp.Or(strings.Join(others, "; "), "none"), len(others) == 0)
}

func text(m telegraf.Metric, field string) string {
	v, _ := m.GetField(field)
	s, _ := v.(string)
	return s
}

func describe(src, dst string) string {
	switch {
	case src == "":
		return "on " + dst
	case dst == "":
		return "by " + src
	default:
		return src + " -> " + dst
	}
}

// series is a metric's measurement and tags in one string.
func series(m telegraf.Metric) string {
	var b strings.Builder
	b.WriteString(m.Name())
	for _, t := range m.TagList() {
		b.WriteString("," + t.Key + "=" + t.Value)
	}
	return b.String()
}

// Latest keeps the last point of every series of a measurement, in order of the series.
func Latest(metrics []telegraf.Metric, name string) []telegraf.Metric {
	newest := map[string]telegraf.Metric{}
	for _, m := range metrics {
		if m.Name() == name {
			newest[series(m)] = m
		}
	}
	list := make([]telegraf.Metric, 0, len(newest))
	for _, m := range newest {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b telegraf.Metric) int { return strings.Compare(series(a), series(b)) })
	return list
}

// Last is the sum of an integer field over the last points of all series.
func Last(metrics []telegraf.Metric, name, field string) (sum uint64) {
	for _, m := range Latest(metrics, name) {
		if v, ok := m.GetField(field); ok {
			if n, ok := v.(int64); ok {
				sum += uint64(n)
			}
		}
	}
	return sum
}
