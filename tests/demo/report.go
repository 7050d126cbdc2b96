package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/serializers/influx"

	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// shown are the measurements that are printed; of the long lists only the first points.
var shown = []struct {
	name  string
	limit int
}{
	{"agp_traffic", 12}, {"agp_alert", 20}, {"agp_flow", 5}, {"agp_top", 6}, {"agp_sketch", 12}, {"agp_queue", 4}, {"agp_engine", 1},
}

func printMetrics(w io.Writer, metrics []telegraf.Metric) {
	s := &influx.Serializer{SortFields: true}
	if err := s.Init(); err != nil {
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintf(w, "\nMetrics that telegraf got (last point of each series):\n\n")
	for _, m := range shown {
		list := latest(metrics, m.name)
		for i, point := range list {
			if i == m.limit {
				fmt.Fprintf(w, "# and %d more series of %s\n", len(list)-i, m.name)
				break
			}
			line, err := s.Serialize(point)
			if err != nil {
				line = []byte(err.Error() + "\n")
			}
			fmt.Fprintf(w, "%s", line)
		}
	}
}

// appNames are the names under which a model may report the applications of the capture.
var appNames = map[string][]string{"tls": {"tls", "https", "ssl"}, "http": {"http"}, "dns": {"dns"}, "ssh": {"ssh"}}

// compare prints expected and found side by side and reports whether something was missed.
func compare(out io.Writer, truth traffic.Summary, metrics []telegraf.Metric) (missed bool) {
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
	count("packets", truth.Packets, last(metrics, "agp_traffic", "packets"))
	count("bytes", truth.Bytes, last(metrics, "agp_traffic", "bytes"))
	count("flows", truth.Flows, last(metrics, "agp_traffic", "flows"))
	count("TCP retransmissions", truth.Retransmits, last(metrics, "agp_traffic", "tcp_retransmits"))
	count("TCP out of order", truth.OutOfOrder, last(metrics, "agp_traffic", "tcp_out_of_order"))

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
	for _, m := range latest(metrics, "agp_traffic") {
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
