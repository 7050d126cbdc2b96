package dashboards

import "github.com/grafana/grafana-foundation-sdk/go/units"

var fleet = Dashboard{
	Name: "fleet", Title: "AGP / Fleet", Text: "All hosts beside each other. The tag host, which telegraf adds, tells them apart.",
	Vars: []Variable{hostVar},
	Panels: []Panel{
		{Title: "Engines", Text: "Engines that reported in the last interval.", Unit: units.Short, Empty: noEngine, Draw: Number, Wide: 6,
			Queries: []Query{ofHost(gauge("agp_engine", "up", "Engines", "count"))}},
		{Title: "Engines at work", Text: "Engines that are running; one that has read its captures to the end is not.", Unit: units.Short, Empty: "No engine is running", Draw: Number, Wide: 6,
			Queries: []Query{only(true, ofHost(gauge("agp_engine", "up", "Running", "count")))}},
		{Title: "Alerts", Text: "Alerts of all hosts within the time range.", Unit: units.Short, Empty: "No alert", Red: 1, Draw: Total, Wide: 6, Queries: []Query{ofHost(alerts("Alerts"))}},
		{Title: "Restarts", Text: "Times that an engine was started again within the time range.", Unit: units.Short, Empty: noEngine, Red: 1, Draw: Total, Wide: 6,
			Queries: []Query{ofHost(growth("agp_engine", "restarts", "Restarts"))}},
		{Title: "Hosts", Text: "The last report of each engine.", Unit: units.Short, Empty: noEngine, Draw: Table, Wide: 24, High: 10,
			Columns: []Column{{Of: "host", As: "Host"}, {Of: "interface", As: "Interface"}, {Of: "source", As: "Source"}, {Of: "pipeline", As: "Pipeline"},
				{Of: "state", As: "State"}, {Of: "packets_seen", As: "Packets"}, {Of: "drops", As: "Dropped"}, {Of: "flows_active", As: "Active flows"},
				{Of: "records", As: "Records"}, {Of: "alerts", As: "Alerts"}, {Of: "restarts", As: "Restarts"}, {Of: "models", As: "Models"}},
			Queries: []Query{{From: "agp_engine", Read: Latest, By: []string{"host", "interface", "source", "pipeline"}, Vars: []string{"host"},
				Fields: []string{"state", "packets_seen", "drops", "flows_active", "records", "alerts", "restarts", "models"}}}},

		{Title: "Traffic"},
		{Title: "Packets by host", Text: "Packets per second that the engines of each host saw.", Unit: units.PacketsPerSecond, Empty: noEngine, Draw: Stacked, Wide: 12,
			Queries: []Query{ofHost(counter("agp_engine", "packets_seen", "Packets", "host"))}},
		{Title: "Traffic by host", Text: "Wire bytes per second in the queues of each host.", Unit: units.BytesPerSecondSI, Empty: noEngine, Draw: Stacked, Wide: 12,
			Queries: []Query{ofHost(counter("agp_queue", "bytes", "Traffic", "host"))}},
		{Title: "Active flows by host", Text: "Flows that are open on each host.", Unit: units.Short, Empty: noEngine, Draw: Stacked, Wide: 12,
			Queries: []Query{ofHost(gauge("agp_engine", "flows_active", "Flows", "sum", "host"))}},
		{Title: "Applications of the fleet", Text: "Wire bytes per second of flows that ended, by application, all hosts together.", Unit: units.BytesPerSecondSI, Empty: noFlow, Draw: Stacked, Wide: 12,
			Queries: []Query{ofHost(counter("agp_traffic", "bytes", "Traffic", "app"))}},

		{Title: "Trouble"},
		{Title: "Alerts by host", Text: "Alerts in each interval, by host.", Unit: units.Short, Empty: "No alert", Draw: Bars, Wide: 12, Queries: []Query{ofHost(alerts("Alerts", "host"))}},
		{Title: "Dropped by host", Text: "Share of the packets seen that became no part of a flow.", Unit: units.PercentUnit, Empty: "No packet was seen", Draw: Lines, Wide: 12,
			Queries: []Query{ofHost(ratio("agp_engine", "drops", "packets_seen", "Dropped", "host"))}},
		{Title: "Restarts by host", Text: "Times that an engine was started again in each interval.", Unit: units.Short, Empty: noEngine, Draw: Bars, Wide: 12,
			Queries: []Query{ofHost(growth("agp_engine", "restarts", "Restarts", "host"))}},
		{Title: "Packet to score by host", Text: "99 % of the scores came within this time; of several engines of a host the slowest.", Unit: units.Nanoseconds, Empty: "No flow was scored", Draw: Lines, Wide: 12,
			Queries: []Query{ofHost(gauge("agp_engine", "packet_to_score_p99_ns", "99 %", "max", "host"))}},

		{Title: "Resources"},
		{Title: "Processor by host", Text: "Processor time of the engines per second: 100 % is one core.", Unit: units.PercentUnit, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{ofHost(counter("agp_engine", "cpu_seconds", "Processor", "host"))}},
		{Title: "Memory by host", Text: "Memory of the engines' processes.", Unit: units.BytesIEC, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{ofHost(gauge("agp_engine", "rss_bytes", "Memory", "sum", "host"))}},
		{Title: "GPU power by host", Text: "Power of the GPUs of each host.", Unit: units.Watt, Empty: noGPU, Draw: Stacked, Wide: 8,
			Queries: []Query{ofHost(gauge("agp_gpu", "power_watts", "Power", "sum", "host"))}},
	},
}

// only takes the points whose field has a value.
func only(value any, q Query) Query {
	q.Only = value
	return q
}
