package main

import (
	"fmt"
	"io"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/serializers/influx"

	"github.com/agp-net/telegraf-agp/tests/demo/table"
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
		list := table.Latest(metrics, m.name)
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
