package telemetry

// Snapshot is everything a pipeline reports periodically. Counters are
// monotonic since the pipeline started; what is a gauge says so. A pipeline
// fills everything except the fields of EngineRow marked "engine".
//
// The same Snapshot is filled again and again: call Reset first, then append.
// Strings and maps put into it must not be changed afterwards.
type Snapshot struct {
	TimeNs   int64 // capture clock: time of the newest packet seen, 0 before the first
	Engine   EngineRow
	Traffic  []TrafficRow
	Top      []TopRow
	Sketches []SketchRow
	Queues   []QueueRow
	Steering []SteeringRow
	GPUs     []GPURow
}

// TrafficRow are the counters of one (app, class, protocol). The number of rows
// is bounded by the enumerations of the loaded models and the IP protocols.
type TrafficRow struct {
	App      string // "" without an app model; "unknown" below its threshold
	Class    string // "" without a class model; "unknown" below its threshold
	Protocol uint8  // IP protocol

	Flows             uint64 // records
	Packets           uint64
	Bytes             uint64 // wire bytes
	Retransmits       uint64
	OutOfOrder        uint64
	ZeroWindows       uint64
	ConnectionsOpen   uint64 // TCP connections whose handshake completed
	ConnectionsFailed uint64 // TCP connections refused or never answered
	FirstReplySumNs   uint64
	FirstReplyCount   uint64
	HandshakeSumNs    uint64
	HandshakeCount    uint64
}

// Add adds the counters of o to r.
func (r *TrafficRow) Add(o *TrafficRow) {
	r.Flows += o.Flows
	r.Packets += o.Packets
	r.Bytes += o.Bytes
	r.Retransmits += o.Retransmits
	r.OutOfOrder += o.OutOfOrder
	r.ZeroWindows += o.ZeroWindows
	r.ConnectionsOpen += o.ConnectionsOpen
	r.ConnectionsFailed += o.ConnectionsFailed
	r.FirstReplySumNs += o.FirstReplySumNs
	r.FirstReplyCount += o.FirstReplyCount
	r.HandshakeSumNs += o.HandshakeSumNs
	r.HandshakeCount += o.HandshakeCount
}

// TopRow is one entry of a heavy-hitter list. Rank counts from 1 within a
// metric. Key parts that the metric does not have are empty.
type TopRow struct {
	Metric           string // e.g. "src_bytes", "dst_packets", "flow_bytes"
	Rank             uint16
	Src, Dst         string
	SrcPort, DstPort uint16
	Protocol         string // ProtocolName, empty if not part of the key
	Value            uint64 // estimate of the metric, never above the true value
	Error            uint64 // how far below the true value it can be
}

// SketchKind says which readings of a SketchRow exist.
type SketchKind uint8

// Sketch kinds.
const (
	SketchDistinct SketchKind = iota + 1 // Estimate is the number of distinct items
	SketchEntropy                        // Estimate is the entropy in bits
	SketchQuantile                       // P50, P90, P99
)

// SketchRow is the reading of one sketch.
type SketchRow struct {
	Name          string // "sources", "destinations", "dst_ports", "size", "delay_ns", "first_reply_ns", ...
	Kind          SketchKind
	Count         uint64  // items added, for SketchDistinct anything above 0; without items no estimate exists
	Estimate      float64 // see SketchKind
	ErrorBound    float64 // relative standard error or relative accuracy of the estimate
	P50, P90, P99 float64
	WindowNs      int64  // what the reading covers; 0: since the pipeline started
	State         []byte // serialised sketch, nil unless asked for
	Encoding      string // format of State: "hll_datasketches", "ddsketch_proto"
}

// QueueRow are the counters of one queue.
type QueueRow struct {
	Queue   uint16
	Packets uint64
	Bytes   uint64            // wire bytes
	Drops   map[string]uint64 // packets that became no part of a flow, by reason
	Depth   int64             // gauge: packets or batches waiting; -1 if the queue cannot say
}

// SteeringRow is what happened to the traffic of one interface on its way to one
// target: "to_engine", "kernel_class", "blocked", "rate_limited", "would_block", ...
type SteeringRow struct {
	Interface string
	Target    string
	Packets   uint64 // frames on the wire
	Bytes     uint64
	Rules     uint64 // gauge: rules that lead there
}

// GPURow are the readings of one GPU. nil is a reading that the GPU does not have.
type GPURow struct {
	Index      uint32 // of the driver, without CUDA_VISIBLE_DEVICES
	UUID, Name string
	Lost       bool // off the bus

	PowerMilliwatts      *uint64 // gauge
	EnergyMillijoules    *uint64 // since the driver was loaded
	SMClockMHz           *uint64 // gauge
	MemoryClockMHz       *uint64 // gauge
	MemoryUsedBytes      *uint64 // gauge
	MemoryTotalBytes     *uint64 // gauge
	PCIeRXBytesPerSecond *uint64 // gauge: to the GPU
	PCIeTXBytesPerSecond *uint64 // gauge: from the GPU
	UtilizationPercent   *uint64 // gauge: share of the time in which a kernel ran
	TemperatureCelsius   *uint64 // gauge
	EccCorrected         *uint64 // since the driver was loaded
	EccUncorrected       *uint64 // since the driver was loaded
	XidErrors            *uint64 // since the engine started
	LastXid              *uint64 // gauge: number of the last of them
	Processes            *uint64 // gauge: that compute
	EngineMemoryBytes    *uint64 // gauge: of the engine's process
	EngineWarps          *uint64 // gauge: of the engine's kernels, filled by the pipeline
	EngineSMs            *uint64 // gauge: with warps of the engine, filled by the pipeline
	// JoulesPerMillionPackets is a gauge: all energy of the GPU, over the packets that the engine saw.
	JoulesPerMillionPackets *float64
}

// EngineRow are the readings of the engine as a whole.
type EngineRow struct {
	Source   string   // "pcap", ...
	Pipeline string   // "cpu", "cuda"
	Models   []string // name@version of the models that score now

	PacketsSeen     uint64            // frames taken from the source
	PacketsRecorded uint64            // packets inside records that were cut
	PacketsActive   uint64            // gauge: packets inside flows that are still open
	Drops           map[string]uint64 // every reason of every queue and of the source, in packets
	Errors          map[string]uint64 // faults of the input that cost no known number of packets, by reason
	Records         uint64
	Alerts          uint64
	FlowsActive     uint64  // gauge
	Evictions       uint64  // records cut because a bucket was full
	Inferences      uint64  // model evaluations
	TimeSteps       uint64  // negative time steps clamped to 0
	StateBytes      uint64  // gauge: memory of the flow table
	QueueSkew       float64 // gauge: busiest queue over the mean of all; 0 if not measured
	MovedBuckets    uint64  // hash ranges that went to another queue

	// Time from the packet that made a flow ready to its score, of evaluations
	// so far; exist if PacketToScoreCount > 0.
	PacketToScoreCount                                         uint64
	PacketToScoreP50Ns, PacketToScoreP90Ns, PacketToScoreP99Ns float64

	// engine: filled by agp/engine.
	Suppressed    uint64  // records and alerts held back by hold-down and rate limits; the engine adds its own to the pipeline's
	CPUSeconds    float64 // user + system time of the process
	RSSBytes      uint64  // gauge
	UptimeNs      int64   // gauge, wall clock
	SkippedFields uint64  // unknown protocol fields in messages from the plugin
	// PipelineReason says why this pipeline runs.
	PipelineReason string
}

// Reset empties s and keeps its memory.
func (s *Snapshot) Reset() {
	*s = Snapshot{Traffic: s.Traffic[:0], Top: s.Top[:0], Sketches: s.Sketches[:0], Queues: s.Queues[:0], Steering: s.Steering[:0], GPUs: s.GPUs[:0]}
}

// Summary is the last word of a run: its accounting.
type Summary struct {
	PacketsSeen     uint64
	PacketsRecorded uint64
	Drops           map[string]uint64 // by reason
	Errors          map[string]uint64 // by reason, see EngineRow
	Records         uint64
	Alerts          uint64
	Seconds         float64 // wall clock of the run
}

// Summarize takes the accounting of a run out of its last snapshot.
func Summarize(s *Snapshot, seconds float64) Summary {
	e := &s.Engine
	return Summary{
		PacketsSeen: e.PacketsSeen, PacketsRecorded: e.PacketsRecorded, Drops: e.Drops, Errors: e.Errors,
		Records: e.Records, Alerts: e.Alerts, Seconds: seconds,
	}
}

// Missing returns how many packets the rule that none is lost silently lacks:
// seen - recorded - still active - dropped. It is 0 unless the engine is wrong.
func (s *Snapshot) Missing() int64 {
	n := int64(s.Engine.PacketsSeen) - int64(s.Engine.PacketsRecorded) - int64(s.Engine.PacketsActive)
	for _, d := range s.Engine.Drops {
		n -= int64(d)
	}
	return n
}
