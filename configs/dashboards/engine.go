package dashboards

import "github.com/grafana/grafana-foundation-sdk/go/units"

// ofHost lets only the variable for hosts choose: a GPU has no interface.
func ofHost(q Query) Query {
	q.Vars = []string{"host"}
	return q
}

func gpu(field, name string) Query { return ofHost(gauge("agp_gpu", field, name, "max", gpuTags...)) }

// across all GPUs of the chosen hosts.
func gpus(field, name, across string) Query { return ofHost(gauge("agp_gpu", field, name, across)) }

func runner(field, name string) Query { return ofHost(counter("agp_runner", field, name)) }

var (
	gpuTags  = []string{"host", "index"}
	queueTag = []string{"host", "interface", "queue"}
)

const (
	noEngine = "No engine has reported"
	noGPU    = "No engine runs on a GPU"
)

var engine = Dashboard{
	Name: "engine", Title: "AGP / Engine and GPU", Text: "Latency, queues, drops, memory and processor time of the engines, and the GPUs that they run on.",
	Vars: []Variable{hostVar, interfaceVar},
	Panels: []Panel{
		{Title: "Packet to score", Text: "99 % of the scores came within this time of the packet that asked for them; of several engines the slowest.", Unit: units.Nanoseconds,
			Empty: "No flow was scored", Draw: Number, Wide: 4, Queries: []Query{gauge("agp_engine", "packet_to_score_p99_ns", "99 %", "max")}},
		{Title: "Inferences", Text: "Scores per second.", Unit: units.CountsPerSecond, Empty: noEngine, Draw: Number, Wide: 4, Queries: []Query{counter("agp_engine", "inferences", "Inferences")}},
		{Title: "Dropped packets", Text: "Packets within the time range that became no part of a flow.", Unit: units.Short, Empty: noEngine, Draw: Total, Wide: 4,
			Queries: []Query{growth("agp_engine", "drops", "Dropped")}},
		{Title: "Lost packets", Text: "Packets within the time range that were inside an engine when it died.", Unit: units.Short, Empty: noEngine, Red: 1, Draw: Total, Wide: 4,
			Queries: []Query{growth("agp_engine", "packets_lost", "Lost")}},
		{Title: "GPU power", Text: "Power of all GPUs together.", Unit: units.Watt, Empty: noGPU, Draw: Number, Wide: 4, Queries: []Query{gpus("power_watts", "Power", "sum")}},
		{Title: "Energy per million packets", Text: "Energy of the whole GPU over the packets that the engine saw; of several the highest.", Unit: units.Joule, Empty: noGPU,
			Draw: Number, Wide: 4, Queries: []Query{gpus("joules_per_million_packets", "Energy", "max")}},

		{Title: "Latency and queues"},
		{Title: "Packet to score, quantiles", Text: "Time from a packet to the score that it asked for; of several engines the slowest.", Unit: units.Nanoseconds, Empty: "No flow was scored",
			Draw: Lines, Wide: 8, Queries: []Query{gauge("agp_engine", "packet_to_score_p50_ns", "Median", "max"),
				gauge("agp_engine", "packet_to_score_p90_ns", "90 %", "max"), gauge("agp_engine", "packet_to_score_p99_ns", "99 %", "max")}},
		{Title: "Packets by queue", Text: "Packets per second of each queue.", Unit: units.PacketsPerSecond, Empty: noEngine, Draw: Stacked, Wide: 8,
			Queries: []Query{counter("agp_queue", "packets", "Packets", queueTag...)}},
		{Title: "Queue depth", Text: "Batches that wait in each queue.", Unit: units.Short, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{gauge("agp_queue", "depth", "Depth", "max", queueTag...)}},
		{Title: "Queue skew", Text: "Load of the busiest queue over the mean of all.", Unit: units.Short, Empty: "No engine has several queues that are busy", Draw: Lines, Wide: 8,
			Queries: []Query{gauge("agp_engine", "queue_skew", "Skew", "max", place...)}},
		{Title: "Dropped by queue", Text: "Packets per second of each queue that became no part of a flow.", Unit: units.PacketsPerSecond, Empty: noEngine, Draw: Stacked, Wide: 8,
			Queries: []Query{counter("agp_queue", "drops", "Dropped", queueTag...)}},
		{Title: "Other faults", Text: "Faults of the input per second, such as a clock that steps back.", Unit: units.CountsPerSecond, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{counter("agp_engine", "errors", "Faults"), counter("agp_engine", "time_steps", "Clock steps"), counter("agp_engine", "refused_events", "Refused events")}},
		dropReasons,
		states,

		{Title: "Work and memory"},
		{Title: "Packets in and out", Text: "Packets per second that were seen, and that are in records.", Unit: units.PacketsPerSecond, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{counter("agp_engine", "packets_seen", "Seen"), counter("agp_engine", "packets_recorded", "In records")}},
		{Title: "Active flows", Text: "Flows that are open.", Unit: units.Short, Empty: noEngine, Draw: Lines, Wide: 8, Queries: []Query{gauge("agp_engine", "flows_active", "Flows", "sum", place...)}},
		{Title: "Evictions", Text: "Records per second that were cut because the flow table was full: raise max_flows.", Unit: units.CountsPerSecond, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{counter("agp_engine", "evictions", "Evictions", place...)}},
		{Title: "Processor", Text: "Processor time of the engine per second: 100 % is one core.", Unit: units.PercentUnit, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{counter("agp_engine", "cpu_seconds", "Processor", place...)}},
		{Title: "Memory", Text: "Memory of the engine's process, and of its flow table.", Unit: units.BytesIEC, Empty: noEngine, Draw: Lines, Wide: 8,
			Queries: []Query{gauge("agp_engine", "rss_bytes", "Process", "sum"), gauge("agp_engine", "state_bytes", "Flow table", "sum")}},
		{Title: "Plugin to telegraf", Text: "Points per second that were written to telegraf and dropped on the way. The plugin reports them every 10 seconds.", Unit: units.CountsPerSecond,
			Empty: "The plugin is compiled into telegraf, or has not reported", Draw: Lines, Wide: 8,
			Queries: []Query{runner("metrics_emitted", "Written"), runner("metrics_dropped", "Dropped"), runner("errors", "Errors")}},
		{Title: "Last error", Text: "Why the last engine failed.", Unit: units.String, Empty: "No engine has failed", Draw: States, Wide: 24, High: 5,
			Queries: []Query{{From: "agp_engine", Read: Last, Fields: []string{"last_error"}, Name: "last_error", By: place, Vars: place}}},

		{Title: "GPU"},
		{Title: "Power", Text: "Power of each GPU.", Unit: units.Watt, Empty: noGPU, Draw: Lines, Wide: 8, Queries: []Query{gpu("power_watts", "Power")}},
		{Title: "Energy per million packets, by GPU", Text: "Energy of the whole GPU over the packets that the engine saw.", Unit: units.Joule, Empty: noGPU, Draw: Lines, Wide: 8,
			Queries: []Query{gpu("joules_per_million_packets", "Energy")}},
		{Title: "Multiprocessors", Text: "Multiprocessors that the engine's kernels are on, and their warps.", Unit: units.Short, Empty: noGPU, Draw: Lines, Wide: 8,
			Queries: []Query{gpus("engine_sms", "Multiprocessors", "sum"), gpus("engine_warps", "Warps", "sum")}},
		{Title: "Memory of the GPUs", Text: "Memory in use by all processes, by the engine, and all there is.", Unit: units.BytesIEC, Empty: noGPU, Draw: Lines, Wide: 8,
			Queries: []Query{gpus("memory_used_bytes", "In use", "sum"), gpus("engine_memory_bytes", "Engine", "sum"), gpus("memory_total_bytes", "All", "sum")}},
		{Title: "Temperature", Text: "Temperature of each GPU.", Unit: units.Celsius, Empty: noGPU, Draw: Lines, Wide: 8, Queries: []Query{gpu("temperature_celsius", "Temperature")}},
		{Title: "Clock of multiprocessors", Text: "Clock of each GPU's multiprocessors.", Unit: "suffix: MHz", Empty: noGPU, Draw: Lines, Wide: 8, Queries: []Query{gpu("sm_clock_mhz", "Clock")}},
		{Title: "PCIe", Text: "Bytes per second to and from the GPUs.", Unit: units.BytesPerSecondSI, Empty: noGPU, Draw: Lines, Wide: 8,
			Queries: []Query{gpus("pcie_rx_bytes_per_second", "To", "sum"), gpus("pcie_tx_bytes_per_second", "From", "sum")}},
		{Title: "Utilisation", Text: "Share of time in which a kernel ran. It is 100 for one that polls all the time.", Unit: units.Percent, Empty: noGPU, Draw: Lines, Wide: 8,
			Queries: []Query{gpu("utilization_percent", "Utilisation")}},
		{Title: "GPU errors", Text: "Memory errors and critical errors of the driver (XID) in each interval.", Unit: units.Short, Empty: noGPU, Draw: Bars, Wide: 8,
			Queries: []Query{ofHost(growth("agp_gpu", "ecc_corrected", "ECC corrected")), ofHost(growth("agp_gpu", "ecc_uncorrected", "ECC uncorrected")),
				ofHost(growth("agp_gpu", "xid_errors", "XID"))}},
	},
}
