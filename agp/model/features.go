package model

// The feature sets of DESIGN §6. A model's file names one of them; the flow
// table collects a set only while a loaded model needs it.

// FeatureSet is a set of inputs that a model reads.
type FeatureSet uint8

// Feature sets.
const (
	// Histogram: 95 size bins then 64 delay bins, raw packet counts. Float32 [159].
	Histogram FeatureSet = iota + 1
	// HeadSet: see Head. Float32 [HeadInputs].
	HeadSet
	// Summary: for flow metrics of other inputs.
	Summary
)

// Sizes of the head set.
const (
	HeadPayload = 48 // first payload bytes kept per direction
	HeadPackets = 16 // packets whose signed length and delay are kept
)

// Head is the per-flow state of the head feature set: 48 payload bytes per
// direction (the first bytes the direction sent, across packets), the L3 length
// of the first 16 packets (negative from responder to initiator), the delay
// before each of them. At most 192 bytes.
type Head struct {
	Payload    [2][HeadPayload]byte
	PayloadLen [2]uint8 // bytes filled
	Packets    uint8    // entries filled in Len and Delay
	Protocol   uint8
	Len        [HeadPackets]int16 // signed L3 length, saturated at +-32767
	Delay      [HeadPackets]uint8 // log2 bins: telemetry.DelayBin + 1, 0 for the first packet
}
