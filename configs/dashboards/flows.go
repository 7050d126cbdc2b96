package dashboards

import "github.com/grafana/grafana-foundation-sdk/go/units"

// kindsOfFlow are the tags of a flow.
var kindsOfFlow = []string{"host", "interface", "app", "class", "protocol"}

// chosen lets the variables of the dashboard choose among flows.
func chosen(q Query) Query {
	q.Vars = kindsOfFlow
	return q
}

func quantiles(of string) []Query {
	return []Query{sketch(of, "p50", "Median"), sketch(of, "p90", "90 %"), sketch(of, "p99", "99 %")}
}

const (
	noSketch  = "No packet that this is measured on"
	noRecords = "No record of a flow; flows.emit says which are emitted"
	noFlow    = "No flow has ended"
)

var flows = Dashboard{
	Name: "flows", Title: "AGP / Flows", Text: "From the sum of all flows down to single records. Records need flows.emit in the plugin's configuration.",
	Vars: []Variable{hostVar, interfaceVar, {Tag: "app", Label: "Application", Of: "agp_traffic"}, {Tag: "class", Label: "Class", Of: "agp_traffic"},
		{Tag: "protocol", Label: "Protocol", Of: "agp_traffic"}},
	Address: true,
	Panels: []Panel{
		{Title: "Flows", Text: "Flows per second that ended.", Unit: units.CountsPerSecond, Empty: noFlow, Draw: Number, Wide: 6,
			Queries: []Query{chosen(counter("agp_traffic", "flows", "Flows"))}},
		{Title: "Packets per flow", Text: "Mean packets of a flow.", Unit: units.Short, Empty: noFlow, Draw: Number, Wide: 6,
			Queries: []Query{chosen(ratio("agp_traffic", "packets", "flows", "Packets"))}},
		{Title: "Bytes per flow", Text: "Mean wire bytes of a flow.", Unit: units.BytesSI, Empty: noFlow, Draw: Number, Wide: 6,
			Queries: []Query{chosen(ratio("agp_traffic", "bytes", "flows", "Bytes"))}},
		{Title: "Suppressed", Text: "Records and alerts within the time range that were not emitted because of max_per_second.", Unit: units.Short, Empty: "No engine has reported",
			Red: 1, Draw: Total, Wide: 6, Queries: []Query{growth("agp_engine", "suppressed", "Suppressed")}},

		{Title: "Sums"},
		{Title: "Flows by application", Text: "Flows per second that ended, by application.", Unit: units.CountsPerSecond, Empty: noFlow, Draw: Stacked, Wide: 12,
			Queries: []Query{chosen(counter("agp_traffic", "flows", "Flows", "app"))}},
		{Title: "Traffic by application", Text: "Wire bytes per second of flows that ended, by application.", Unit: units.BytesPerSecondSI, Empty: noFlow, Draw: Stacked, Wide: 12,
			Queries: []Query{chosen(counter("agp_traffic", "bytes", "Traffic", "app"))}},
		{Title: "First reply by application", Text: "Mean time from the first packet forward to the first one back.", Unit: units.Nanoseconds, Empty: "No flow was answered",
			Draw: Lines, Wide: 12, Queries: []Query{chosen(ratio("agp_traffic", "first_reply_ns_sum", "first_reply_count", "First reply", "app"))}},
		{Title: "Retransmits by application", Text: "Share of packets that were sent again.", Unit: units.PercentUnit, Empty: noFlow,
			Draw: Lines, Wide: 12, Queries: []Query{chosen(ratio("agp_traffic", "tcp_retransmits", "packets", "Retransmits", "app"))}},

		{Title: "Distributions"},
		{Title: "Packet size", Text: "Quantiles of the length of packets; of several hosts the largest.", Unit: units.BytesSI, Empty: noSketch, Draw: Lines, Wide: 6, Queries: quantiles("size")},
		{Title: "Delay between packets", Text: "Quantiles of the delay between packets of a direction; of several hosts the largest.", Unit: units.Nanoseconds, Empty: noSketch,
			Draw: Lines, Wide: 6, Queries: quantiles("delay_ns")},
		{Title: "First reply", Text: "Quantiles of the time to the first reply; of several hosts the largest.", Unit: units.Nanoseconds, Empty: noSketch,
			Draw: Lines, Wide: 6, Queries: quantiles("first_reply_ns")},
		{Title: "TCP handshake", Text: "Quantiles of the time of the handshake; of several hosts the largest.", Unit: units.Nanoseconds, Empty: noSketch,
			Draw: Lines, Wide: 6, Queries: quantiles("tcp_handshake_ns")},

		{Title: "Single flows"},
		{Title: "Largest flows", Text: "Flows with most bytes in the window of the lists.", Unit: units.Short, Empty: noTop, Draw: Table, Wide: 24,
			Columns: rows(units.BytesSI, "Bytes", source, sourcePort, destination, port, protocol),
			Queries: []Query{top("flow_bytes", "src", "src_port", "dst", "dst_port", "protocol")}},
		{Title: "Records", Text: "The newest records whose source or destination matches the address. Forward is from the initiator, which is the source.", Unit: units.Short,
			Empty: noRecords, Draw: Table, Wide: 24, High: 14,
			Columns: []Column{{Of: "host", As: "Host"}, {Of: "interface", As: "Interface"}, {Of: "app", As: "Application"}, {Of: "class", As: "Class"}, protocol,
				source, sourcePort, destination, port, {Of: "packets_fwd", As: "Packets forward"}, {Of: "packets_rev", As: "Packets back"},
				{Of: "wire_bytes_fwd", As: "Bytes forward", Unit: units.BytesSI}, {Of: "wire_bytes_rev", As: "Bytes back", Unit: units.BytesSI},
				{Of: "first_reply_ns", As: "First reply", Unit: units.Nanoseconds}, {Of: "tcp_handshake_ns", As: "Handshake", Unit: units.Nanoseconds},
				{Of: "end_reason", As: "End"}, {Of: "app_score", As: "Score of application", Unit: units.PercentUnit}, {Of: "class_score", As: "Score of class", Unit: units.PercentUnit}},
			Queries: []Query{{From: "agp_flow", Read: Events, By: kindsOfFlow, Vars: kindsOfFlow, Search: []string{"src", "dst"},
				Fields: []string{"src", "src_port", "dst", "dst_port", "packets_fwd", "packets_rev", "wire_bytes_fwd", "wire_bytes_rev", "first_reply_ns",
					"tcp_handshake_ns", "end_reason", "app_score", "class_score"}}}},
		{Title: "Records by application", Text: "Records in each interval, by application.", Unit: units.Short, Empty: noRecords, Draw: Bars, Wide: 12,
			Queries: []Query{{From: "agp_flow", Read: Count, Fields: []string{"packets_fwd"}, Name: "Records", By: []string{"app"}, Vars: kindsOfFlow}}},
		{Title: "Score of applications", Text: "Mean score of the application that was named.", Unit: units.PercentUnit, Empty: noRecords, Draw: Lines, Wide: 12,
			Queries: []Query{{From: "agp_flow", Read: Mean, Fields: []string{"app_score"}, Name: "Score", By: []string{"app"}, Across: "mean", Vars: kindsOfFlow}}},
	},
}
