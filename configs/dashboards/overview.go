package dashboards

import "github.com/grafana/grafana-foundation-sdk/go/units"

// All dashboards.
var All = []Dashboard{overview, security, flows, engine, fleet}

// Variables that several dashboards have.
var (
	hostVar      = Variable{Tag: "host", Label: "Host", Of: "agp_engine"}
	interfaceVar = Variable{Tag: "interface", Label: "Interface", Of: "agp_engine"}
)

// place are the tags that say where something was measured.
var place = []string{"host", "interface"}

// counter is the growth per second of a counter of all series together, or apart by tags.
func counter(from, field, name string, by ...string) Query {
	return Query{From: from, Read: Rate, Fields: []string{field}, Name: name, By: by, Across: "sum", Vars: place}
}

// gauge is the last reading of each series, joined by across.
func gauge(from, field, name, across string, by ...string) Query {
	return Query{From: from, Read: Last, Fields: []string{field}, Name: name, By: by, Across: across, Vars: place}
}

// ratio is the growth of one counter over that of another.
func ratio(from, above, below, name string, by ...string) Query {
	return Query{From: from, Read: Ratio, Fields: []string{above, below}, Name: name, By: by, Vars: place}
}

// growth is by how much a counter grew.
func growth(from, field, name string, by ...string) Query {
	q := counter(from, field, name, by...)
	q.Read = Growth
	return q
}

// alerts counts alerts.
func alerts(name string, by ...string) Query {
	return Query{From: "agp_alert", Read: Count, Fields: []string{"time_ns"}, Name: name, By: by, Vars: place}
}

// reasons is the growth per second of all counters whose names begin so.
func reasons(from, prefix string) Query {
	return Query{From: from, Read: Rate, Like: prefix, Across: "sum", Vars: place}
}

// tagged adds conditions on tags to q.
func tagged(q Query, m ...Match) Query {
	q.Tags = append(q.Tags, m...)
	return q
}

func sketch(name, field, as string) Query {
	return tagged(gauge("agp_sketch", field, as, "max"), Match{Tag: "sketch", Is: name})
}

var states = Panel{
	Title: "Engine state", Text: "What the engine of each interface does. Finished: a capture was read to its end.",
	Unit: units.String, Empty: "No engine has reported", Draw: States, Wide: 12,
	Queries: []Query{{From: "agp_engine", Read: Last, Fields: []string{"state"}, Name: "state", By: place, Vars: place}},
}

var dropReasons = Panel{
	Title: "Dropped packets by reason", Text: "Packets that became no part of a flow, by reason. Frames that are not IP belong here, too.",
	Unit: units.PacketsPerSecond, Empty: "No packet was dropped", Draw: Stacked, Wide: 12, Queries: []Query{reasons("agp_engine", "drops_")},
}

var overview = Dashboard{
	Name: "overview", Title: "AGP / Overview", Text: "Traffic, applications, behaviour, alerts and health at a glance.",
	Vars: []Variable{hostVar, interfaceVar},
	Panels: []Panel{
		{Title: "Packets", Text: "Packets per second that the engines saw.", Unit: units.PacketsPerSecond, Empty: "No engine has reported",
			Draw: Number, Wide: 4, Queries: []Query{counter("agp_engine", "packets_seen", "Packets")}},
		{Title: "Traffic", Text: "Wire bytes per second, as the engines' queues count them.", Unit: units.BytesPerSecondSI, Empty: "No engine has reported",
			Draw: Number, Wide: 4, Queries: []Query{counter("agp_queue", "bytes", "Traffic")}},
		{Title: "Active flows", Text: "Flows that are open now.", Unit: units.Short, Empty: "No engine has reported",
			Draw: Number, Wide: 4, Queries: []Query{gauge("agp_engine", "flows_active", "Flows", "sum")}},
		{Title: "Alerts", Text: "Alerts within the time range.", Unit: units.Short, Empty: "No alert", Red: 1,
			Draw: Total, Wide: 4, Queries: []Query{alerts("Alerts")}},
		{Title: "Dropped", Text: "Share of the packets seen that became no part of a flow; frames that are not IP are among them.", Unit: units.PercentUnit,
			Empty: "No packet was seen", Red: 0.05, Draw: Number, Wide: 4, Queries: []Query{ratio("agp_engine", "drops", "packets_seen", "Dropped")}},
		{Title: "Restarts", Text: "Times that an engine was started again within the time range.", Unit: units.Short, Empty: "No engine has reported", Red: 1,
			Draw: Total, Wide: 4, Queries: []Query{growth("agp_engine", "restarts", "Restarts")}},

		{Title: "Traffic"},
		{Title: "Packets by protocol", Text: "Packets per second in flow records, by IP protocol.", Unit: units.PacketsPerSecond, Empty: "No flow has ended",
			Draw: Stacked, Wide: 12, Queries: []Query{counter("agp_traffic", "packets", "Packets", "protocol")}},
		{Title: "Traffic by application", Text: "Wire bytes per second, by the application that the model names.", Unit: units.BytesPerSecondSI,
			Empty: "No flow has ended, or no model names applications", Draw: Stacked, Wide: 12, Queries: []Query{counter("agp_traffic", "bytes", "Traffic", "app")}},
		{Title: "Flows by class", Text: "Flow records per second, by the behaviour that the model names.", Unit: units.CountsPerSecond,
			Empty: "No flow has ended, or no model names behaviour", Draw: Stacked, Wide: 12, Queries: []Query{counter("agp_traffic", "flows", "Flows", "class")}},
		{Title: "Distinct", Text: "Estimates of distinct addresses, ports and flows in the window of the sketches; of several hosts the largest.", Unit: units.Short,
			Empty: "No sketch was reported", Draw: Lines, Wide: 12, Queries: []Query{sketch("sources", "distinct", "Sources"),
				sketch("destinations", "distinct", "Destinations"), sketch("dst_ports", "distinct", "Ports"), sketch("flows", "distinct", "Flows")}},

		{Title: "Quality"},
		{Title: "Connections", Text: "TCP connections per second that were opened, and that were refused or never answered.", Unit: units.CountsPerSecond,
			Empty: "No TCP flow has ended", Draw: Lines, Wide: 8, Queries: []Query{counter("agp_traffic", "connections_open", "Opened"), counter("agp_traffic", "connections_failed", "Failed")}},
		{Title: "TCP trouble", Text: "Packets per second that were sent again, came out of order or closed the window.", Unit: units.PacketsPerSecond,
			Empty: "No TCP flow has ended", Draw: Lines, Wide: 8, Queries: []Query{counter("agp_traffic", "tcp_retransmits", "Retransmits"),
				counter("agp_traffic", "tcp_out_of_order", "Out of order"), counter("agp_traffic", "tcp_zero_windows", "Closed windows")}},
		{Title: "Delays", Text: "Mean time to the first reply and of the TCP handshake, over the flows that ended.", Unit: units.Nanoseconds,
			Empty: "No flow was answered", Draw: Lines, Wide: 8, Queries: []Query{ratio("agp_traffic", "first_reply_ns_sum", "first_reply_count", "First reply"),
				ratio("agp_traffic", "tcp_handshake_ns_sum", "tcp_handshake_count", "Handshake")}},

		{Title: "Alerts and health"},
		{Title: "Alerts by kind", Text: "Alerts in each interval, by what was found.", Unit: units.Short, Empty: "No alert", Draw: Bars, Wide: 24, Queries: []Query{alerts("Alerts", "kind")}},
		states,
		dropReasons,
	},
}
