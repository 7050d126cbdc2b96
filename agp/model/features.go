package model

import (
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// The feature sets. A model's file names one of them; the flow
// table collects a set only while a loaded model needs it. A graph reads raw
// values as float32: scaling, log and embedding are part of the graph.

// FeatureSet is a set of inputs that a model reads.
type FeatureSet uint8

// Feature sets.
const (
	// Histogram: 95 size bins then 64 delay bins, raw packet counts. Float32 [159].
	Histogram FeatureSet = iota + 1
	// HeadSet: see Head. Float32 [HeadInputs].
	HeadSet
	// Summary: for flow metrics of other inputs, see FlowSummary. Float32 [SummaryInputs].
	Summary

	featureSets = iota + 1
)

// Sizes of the sets, in floats per flow.
const (
	HistogramInputs = telemetry.SizeBins + telemetry.DelayBins
	HeadInputs      = 2*HeadPayload + 2*HeadPackets + 1
	SummaryInputs   = 10
)

// Sizes of the head set.
const (
	HeadPayload = 48 // first payload bytes kept per direction
	HeadPackets = 16 // packets whose signed length and delay are kept
)

// String is the name used in a model's metadata.
func (s FeatureSet) String() string {
	switch s {
	case Histogram:
		return "histogram"
	case HeadSet:
		return "head"
	case Summary:
		return "summary"
	}
	return "none"
}

// ParseFeatureSet is the inverse of String.
func ParseFeatureSet(name string) (FeatureSet, error) {
	for s := Histogram; s < featureSets; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("%w: feature set %q, want histogram, head or summary", ErrMetadata, clip(name))
}

// Inputs is the number of floats per flow.
func (s FeatureSet) Inputs() int {
	switch s {
	case Histogram:
		return HistogramInputs
	case HeadSet:
		return HeadInputs
	case Summary:
		return SummaryInputs
	}
	return 0
}

// HistogramVector writes HistogramInputs floats: the size bins, then the delay bins.
func HistogramVector(dst []float32, size *[telemetry.SizeBins]uint32, delay *[telemetry.DelayBins]uint32) {
	dst = dst[:HistogramInputs]
	for i, n := range size {
		dst[i] = float32(n)
	}
	for i, n := range delay {
		dst[telemetry.SizeBins+i] = float32(n)
	}
}

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

// Vector writes HeadInputs floats:
//
//	0..47    payload bytes of the initiator, 0 to 255, -1 where absent
//	48..95   payload bytes of the responder, likewise
//	96..111  signed L3 lengths of the first packets in bytes, 0 where absent
//	112..127 their delay codes, 0 where absent
//	128      IP protocol number
func (h *Head) Vector(dst []float32) {
	dst = dst[:HeadInputs]
	for d := range h.Payload {
		row := dst[d*HeadPayload : (d+1)*HeadPayload]
		n := min(int(h.PayloadLen[d]), HeadPayload)
		for i := range row {
			if i < n {
				row[i] = float32(h.Payload[d][i])
			} else {
				row[i] = -1
			}
		}
	}
	lens, delays := dst[2*HeadPayload:][:HeadPackets], dst[2*HeadPayload+HeadPackets:][:HeadPackets]
	n := min(int(h.Packets), HeadPackets)
	clear(lens[n:])
	clear(delays[n:])
	for i := range n {
		lens[i] = float32(h.Len[i])
		delays[i] = float32(h.Delay[i])
	}
	dst[HeadInputs-1] = float32(h.Protocol)
}

// FlowSummary is the summary feature set.
type FlowSummary struct {
	Packets, Bytes [2]uint64 // telemetry.Fwd, telemetry.Rev; L3 bytes
	DurationNs     int64
	TCPFlags       [2]uint8 // OR of all packets' flags
	Protocol       uint8
}

// Vector writes SummaryInputs floats: packets forward and reverse, bytes forward and
// reverse, mean packet bytes forward and reverse (0 without packets), duration in
// seconds, TCP flags forward and reverse (0 to 255), IP protocol number.
func (s *FlowSummary) Vector(dst []float32) {
	dst = dst[:SummaryInputs]
	for d := range s.Packets {
		dst[d] = float32(s.Packets[d])
		dst[2+d] = float32(s.Bytes[d])
		dst[4+d] = 0
		if s.Packets[d] > 0 {
			dst[4+d] = float32(float64(s.Bytes[d]) / float64(s.Packets[d]))
		}
		dst[7+d] = float32(s.TCPFlags[d])
	}
	dst[6] = float32(float64(s.DurationNs) / 1e9)
	dst[9] = float32(s.Protocol)
}
