package telemetry

// SizeBins and DelayBins are the histogram lengths of a flow record.
// Size: 16 bytes of L3 length per bin, the last saturates.
// Delay: 4 bins per octave from 1 us; bin 0 also holds what is shorter, the last
// everything from 55 ms on.
const (
	SizeBins  = 95
	DelayBins = 64
)

// EndReason says why a record was cut.
type EndReason uint8

// End reasons, in the order of their wire value.
const (
	EndIdle EndReason = iota
	EndActive
	EndTCP
	EndEvicted
	EndFlushed
)

// Direction indexes the per-direction half of a record.
const (
	Fwd = 0 // from the initiator
	Rev = 1
)

// Half is the per-direction part of a record.
type Half struct {
	Packets      uint64
	WireBytes    uint64
	L3Bytes      uint64
	PayloadBytes uint64
	TCPFlags     uint8 // OR of all packets' flags
	WireLenMin   uint32
	WireLenMax   uint32
	WireLenMean  float64
	WireLenStd   float64 // population standard deviation
	DelayMinNs   int64   // between packets of this direction; valid if Packets > 1
	DelayMaxNs   int64
	DelayMeanNs  float64
	DelayStdNs   float64
	Retransmits  uint32
	OutOfOrder   uint32
	ZeroWindows  uint32
}

// Record is one finished flow. The rule that a reading which cannot exist is left
// out is applied by Visit, which is the only place that knows the public names.
type Record struct {
	IPVersion         uint8
	Protocol          uint8
	Src, Dst          [16]byte // as packet.Info
	SrcPort, DstPort  uint16
	VLANID            uint16
	TunnelID          uint32
	StartNs, EndNs    int64
	EndReason         EndReason
	Fragment          bool
	Dir               [2]Half
	SizeHist          [SizeBins]uint32
	DelayHist         [DelayBins]uint32
	FirstReplyNs      int64 // -1 if no reply was seen
	TCPHandshakeNs    int64 // -1 if the handshake was not seen
	TCPSynRetransmits uint32
	TimeSteps         uint32 // negative time steps clamped to 0
	Coalesced         uint64 // packets that the kernel handed over several at a time; their delays are 0
	Queue             uint16
	Interface         string
	Outputs           []Output
	// Confirmed says that the initiator's address is not forged (agp/flow says when).
	// It is for the detectors of the same process: it has no public name and is not
	// part of a record that is sent, stored or shown.
	Confirmed bool
}

// Alert is one finding of agp/detect or of a model; its fields are those of agp_alert.
type Alert struct {
	TimeNs    int64 // capture time of the finding
	Interface string
	Kind      string // syn_flood, port_scan, brute_force, fan_out, beacon, classified, ...
	Class     string // behaviour class, empty if the kind says it all
	Src, Dst  string // addresses as text; empty where the finding is not about one
	SrcPort   uint16 // 0 if not about one port
	DstPort   uint16
	Protocol  uint8
	Count     uint64  // what the detector counted (flows, ports, destinations, ...)
	Threshold float64 // what Count or Score was compared with
	Score     float64 // 0..1 where a model spoke
	WindowNs  int64
	Model     string
	// Confirmed says that Src is not forged: as many of the connections that were
	// counted as the threshold asks for were confirmed.
	Confirmed bool
}

// Output is what one model said of a flow.
type Output struct {
	Field string  // record field the model fills: "app", "class"
	Label string  // class name or "unknown"
	Score float32 // 0..1, probability of the best class
	Model string  // name@version
}
