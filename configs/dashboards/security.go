package dashboards

import "github.com/grafana/grafana-foundation-sdk/go/units"

// Regular expressions of the kinds of alerts that belong together.
const (
	scanKinds    = "_scan$"
	floodKinds   = "_flood$|_reflection$|^amplification$"
	channelKinds = "^beacon$|_tunnel$|^covert_|^one_way_push$"
	modelKinds   = "^classified$"
	guessKinds   = "^brute_force$"
)

// kinds are alerts whose kind matches a regular expression.
func kinds(like string) Query {
	return tagged(alerts("Alerts"), Match{Tag: "kind", Like: like})
}

// top is a list of heavy hitters; field is what they are named by.
func top(metric string, fields ...string) Query {
	return tagged(Query{From: "agp_top", Read: Latest, Fields: append([]string{"value", "error"}, fields...),
		By: []string{"host", "interface", "rank"}, Vars: place}, Match{Tag: "metric", Is: metric})
}

// rows are the columns of a list, whose values have a unit.
func rows(unit, value string, more ...Column) []Column {
	return append([]Column{
		{Of: "host", As: "Host"}, {Of: "interface", As: "Interface"}, {Of: "rank", As: "Rank"},
		{Of: "value", As: value, Unit: unit}, {Of: "error", As: "Too much by at most", Unit: unit},
	}, more...)
}

var (
	source      = Column{Of: "src", As: "Source", Link: true}
	destination = Column{Of: "dst", As: "Destination", Link: true}
	sourcePort  = Column{Of: "src_port", As: "Source port", Unit: units.NoUnit}
	port        = Column{Of: "dst_port", As: "Port", Unit: units.NoUnit}
	protocol    = Column{Of: "protocol", As: "Protocol"}
)

const noTop = "No list of heavy hitters was reported"

// enforcement is a reading of the rule list.
func enforcement(q Query) Query { return tagged(q, Match{Tag: "target", Is: "enforcement"}) }

var security = Dashboard{
	Name: "security", Title: "AGP / Security", Text: "Alerts, scans, floods, heavy hitters, classes and what is blocked.",
	Vars: []Variable{hostVar, interfaceVar},
	Panels: []Panel{
		{Title: "Alerts", Text: "All alerts within the time range.", Unit: units.Short, Empty: "No alert", Red: 1, Draw: Total, Wide: 4,
			Queries: []Query{alerts("Alerts")}},
		{Title: "Scans", Text: "Alerts about port, host and stealth scans within the time range.", Unit: units.Short, Empty: "No scan", Red: 1, Draw: Total, Wide: 4,
			Queries: []Query{kinds(scanKinds)}},
		{Title: "Floods", Text: "Alerts about floods, reflection and amplification within the time range.", Unit: units.Short, Empty: "No flood", Red: 1, Draw: Total, Wide: 4,
			Queries: []Query{kinds(floodKinds)}},
		{Title: "Channels", Text: "Alerts about beacons, tunnels, covert channels and one-way pushes within the time range.", Unit: units.Short, Empty: "No hidden channel",
			Red: 1, Draw: Total, Wide: 4, Queries: []Query{kinds(channelKinds)}},
		{Title: "Classified", Text: "Alerts by the model of behaviour within the time range.", Unit: units.Short, Empty: "No flow was classified as harmful",
			Red: 1, Draw: Total, Wide: 4, Queries: []Query{kinds(modelKinds)}},
		{Title: "Blocked sources", Text: "Rules that block a source; those of a dry run only count.", Unit: units.Short, Empty: "Enforcement is off",
			Draw: Number, Wide: 4, Queries: []Query{enforcement(gauge("agp_steering", "blocked_sources", "Blocked", "sum"))}},

		{Title: "Alerts"},
		{Title: "Alerts by kind", Text: "Alerts in each interval, by what was found.", Unit: units.Short, Empty: "No alert", Draw: Bars, Wide: 24,
			Queries: []Query{alerts("Alerts", "kind")}},
		{Title: "Latest alerts", Text: "The newest alerts. Count or score is what was compared with the threshold.", Unit: units.Short, Empty: "No alert",
			Draw: Table, Wide: 24, High: 10,
			Columns: []Column{{Of: "host", As: "Host"}, {Of: "interface", As: "Interface"}, {Of: "kind", As: "Kind"}, {Of: "class", As: "Class"},
				source, destination, sourcePort, port, protocol, {Of: "count", As: "Count"}, {Of: "score", As: "Score", Unit: units.PercentUnit},
				{Of: "threshold", As: "Threshold"}, {Of: "model", As: "Model"}},
			Queries: []Query{{From: "agp_alert", Read: Events, By: []string{"host", "interface", "kind", "class"}, Vars: place,
				Fields: []string{"src", "dst", "src_port", "dst_port", "protocol", "count", "score", "threshold", "model"}}}},

		{Title: "Heavy hitters"},
		{Title: "Sources by traffic", Text: "Addresses that sent most bytes in the window of the lists.", Unit: units.Short, Empty: noTop, Draw: Table, Wide: 12,
			Columns: rows(units.BytesSI, "Sent", source), Queries: []Query{top("src_bytes", "src")}},
		{Title: "Destinations by traffic", Text: "Addresses that most bytes were sent to in the window of the lists.", Unit: units.Short, Empty: noTop, Draw: Table, Wide: 12,
			Columns: rows(units.BytesSI, "Received", destination), Queries: []Query{top("dst_bytes", "dst")}},
		{Title: "Sources by flows", Text: "Addresses that began most flows in the window of the lists: scanners, resolvers, crawlers.", Unit: units.Short, Empty: noTop,
			Draw: Table, Wide: 12, Columns: rows(units.Short, "Flows", source), Queries: []Query{top("src_flows", "src")}},
		{Title: "Ports by traffic", Text: "Ports that most bytes were sent to in the window of the lists.", Unit: units.Short, Empty: noTop, Draw: Table, Wide: 12,
			Columns: rows(units.BytesSI, "Received", port, protocol), Queries: []Query{top("dst_port_bytes", "dst_port", "protocol")}},

		{Title: "Behaviour"},
		{Title: "Flows by class", Text: "Flow records per second, by the behaviour that the model names.", Unit: units.CountsPerSecond,
			Empty: "No flow has ended, or no model names behaviour", Draw: Stacked, Wide: 12, Queries: []Query{counter("agp_traffic", "flows", "Flows", "class")}},
		{Title: "Scores by class", Text: "Highest score of a flow in each interval, by class. Needs records of flows (flows.emit).", Unit: units.PercentUnit,
			Empty: "No record of a flow with a score", Draw: Lines, Wide: 12,
			Queries: []Query{{From: "agp_flow", Read: Max, Fields: []string{"class_score"}, Name: "Score", By: []string{"class"}, Across: "max", Vars: place}}},
		{Title: "Entropy of addresses", Text: "How evenly packets are spread over addresses. A flood from forged sources raises that of sources and lowers that of destinations.",
			Unit: bits, Empty: "No sketch was reported", Draw: Lines, Wide: 12, Queries: []Query{sketch("src_entropy", "entropy_bits", "Sources"), sketch("dst_entropy", "entropy_bits", "Destinations")}},
		{Title: "Failed connections", Text: "TCP connections per second that were refused or never answered, by application.", Unit: units.CountsPerSecond,
			Empty: "No TCP flow has ended", Draw: Stacked, Wide: 12, Queries: []Query{counter("agp_traffic", "connections_failed", "Failed", "app")}},

		{Title: "Enforcement"},
		{Title: "Rules", Text: "Sources that rules block or limit in rate.", Unit: units.Short, Empty: "Enforcement is off", Draw: Lines, Wide: 8,
			Queries: []Query{enforcement(gauge("agp_steering", "blocked_sources", "Blocked", "sum")), enforcement(gauge("agp_steering", "rate_limited_sources", "Limited", "sum"))}},
		{Title: "Refused rules", Text: "Rules that were not made: the allow list, no room, too many a minute, a source that may be forged.", Unit: units.Short,
			Empty: "Enforcement is off", Draw: Bars, Wide: 8, Queries: []Query{
				enforcement(growth("agp_steering", "refused_allowed", "Allow list")), enforcement(growth("agp_steering", "refused_full", "No room")),
				enforcement(growth("agp_steering", "refused_rate", "Too many")), enforcement(growth("agp_steering", "refused_unconfirmed", "Not confirmed")),
				enforcement(growth("agp_steering", "refused_other", "Other"))}},
		{Title: "Frames by verdict", Text: "What became of the frames of an interface; would_block and would_limit are those of a dry run.", Unit: units.PacketsPerSecond,
			Empty: "No frame came from an interface", Draw: Stacked, Wide: 8, Queries: []Query{counter("agp_steering", "packets", "Frames", "target")}},
	},
}

// bits is Grafana's way to write a unit of one's own.
const bits = "suffix: bit"
