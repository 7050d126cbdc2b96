// Package abi mirrors cuda/kernels/agp.h, which explains the fields: what host and device agree
// on. A test compares sizes and offsets. It has no state.
package abi

import (
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/sketch"
)

// Addr is an address as the device knows it.
type Addr uint64

// Limits.
const (
	Lanes           = 32
	Ways            = 8
	Verdicts        = 64
	Syndromes       = 64
	Protocols       = 256
	Shards          = 7
	Receivers       = 4
	Warps           = 8
	ReceiverScratch = 8464
	ShardScratch    = 24736
	Queue           = 7688
	TableScratch    = 25792
	BlockScratch    = 232448
	Stages          = 4
	Triggers        = 128
)

// Fragment is agp_fragment: a first fragment that is remembered.
type Fragment struct {
	Src, Dst     [16]byte
	SeenNs       int64
	ID, Tunnel   uint32
	Sport, Dport uint16
	VLAN         uint16
	Version      uint8
	Protocol     uint8
}

// Kinds of a Record.
const (
	RecordSkip   = 0
	RecordFlow   = 1
	RecordMature = 2
	RecordStart  = 3
	RecordTick   = 4
)

// Parts and Flags of a Record.
const (
	PartHist = 1
	PartHead = 2

	FlagTimed  = 1
	FlagGoesOn = 2
)

// Record is agp_record: what comes first in a message of a record ring.
type Record struct {
	Size            uint32
	Ring            uint16
	Kind            uint8
	Reason          uint8
	Place           uint32
	Parts, Flags    uint8
	FromB, TCPFlags uint8
	Number          uint64
	TsNs            int64
	WireLen         uint32
	_               [28]byte
}

// Key is agp_key: what a flow is known by.
type Key struct {
	A, B                [16]byte
	PortA, PortB        uint16
	Tunnel              uint32
	VLAN                uint16
	Protocol, IPVersion uint8
	_                   uint32
}

// Head is agp_head: how a flow begins.
type Head struct {
	model.Head
	_ [44]byte
}

// MaxRecord is the longest record: with counters and head.
const MaxRecord = 64 + 448 + 640 + 192

// Out is agp_out: a record ring.
type Out struct {
	Buf, Head, Tail Addr
	LogSize         uint32
	_               uint32
}

// Flags of a Ring.
const (
	FlagRelay    = 1
	FlagLossless = 2
	FlagNumbered = 4
)

// Counts is agp_counts: frames of IPv4, then of IPv6, by IP protocol.
type Counts struct {
	Packets, Bytes [2 * Protocols]uint64
}

// Shard is agp_shard: a part of the flows of a ring.
type Shard struct {
	Tags, Due, Flows, Hists Addr
	State, Stats, Sketches  Addr
	Heads, Counts           Addr
	Buckets                 uint32
	_                       uint32
	Out                     Out
}

// Ring is agp_ring: a receive queue and the flows that come by it.
type Ring struct {
	CQ, CQDB, RQDB, Payload    Addr
	LogCQ, LogRQ, Pitch, Flags uint32
	TimeFormat, TimeShift      uint32
	TimeMult, TimeBaseTicks    uint64
	TimeBaseNs                 int64
	Fragments, State, Stats    Addr
	Resets, Shards             Addr
	LogFragments               uint32
	_                          uint32
}

// What has become of a ring.
const (
	RingIdle uint32 = iota
	RingRunning
	RingStopped
	RingFlushed
	RingReset
	RingDesync
	RingCompressed
)

// Stats is agp_stats: what the receive warp of a ring has counted.
type Stats struct {
	Version, Heartbeat    uint64
	Launches, ClockNs     uint64
	Status, Vendor        uint32
	CQEs, Frames, Bytes   uint64
	Drops                 [Verdicts]uint64
	Errors                [Syndromes]uint64
	ClockBacks, BadLength uint64
	Resets                uint64
	Timed, TimedPackets   uint64
	Cycles                [Stages]uint64
}

// RingState is agp_ring_state: what a ring's receive warp is between launches.
type RingState struct {
	CI, WQEs, Seq uint64
	ClockNs, Step int64
	Resets        uint32
	_             uint32
	Stats         Stats
}

// ShardStats is agp_shard_stats: what a state warp has counted.
type ShardStats struct {
	Version, Heartbeat                  uint64
	Records, Recorded                   uint64
	LostRecords, LostPackets, LostBytes uint64
	LostMatures, LostStarts, LostTicks  uint64
	Started, Evicted, Active, TimeSteps uint64
	Timed, TimedPackets                 uint64
	Cycles                              [Stages]uint64
}

// ShardState is agp_shard_state: what a shard is between launches.
type ShardState struct {
	OutHead uint64
	Stats   ShardStats
}

// Commands of a Control.
const (
	CommandRun uint32 = iota
	CommandStop
	CommandFlush
)

// Control is agp_control: what the host wants.
type Control struct {
	Command uint32
	_       uint32
	FlushNs int64
	NowNs   int64
}

// Params is agp_params: the argument of agp_rings.
type Params struct {
	Control, Rings             Addr
	Count, Batch, Decap, Key   uint32
	IdleNs, ActiveNs, LingerNs int64
	Seed                       uint64
	Limit                      uint64
	Sketches, Shards, PerBlock uint32
	Messages                   uint32
	HeadPackets                uint64
	TriggerCount, Receivers    uint32
	Fill                       uint32
	_                          uint32
	Triggers                   [Triggers]uint64
}

// Bits of Params.Messages.
const (
	MessageCauses uint32 = 1 << iota
	MessageEvents
)

// NIC is agp_nic: the argument of agp_nic_send.
type NIC struct {
	Control, Rings, Sent, Late       Addr
	Count, Warps, Flows, FrameLen    uint32
	Packets, Seed                    uint64
	StartNs                          int64
	GapNs, Pace, NewPer1024, Prefill uint32
	PerFlow                          uint32
	_                                uint32
}

// Which sketches a Params asks for, see agp/sketch and agp/pipeline/summary.
const (
	SketchQuantiles uint32 = 1 << iota
	SketchDistinct
	SketchTop
	SketchEntropy
	SketchBlocked
	SketchPublished
)

const (
	quantileBins   = 2184
	publishedWords = (summary.PublishedBits + 63) / 64
)

// Quantiles is agp_quantiles.
type Quantiles struct {
	N, Zero uint64
	Bins    [quantileBins]uint64
}

// QuantileTable is agp_quantile_table: sketch.QuantileTable.
type QuantileTable struct {
	First [65][64]uint16
	High  [quantileBins]uint64
}

// HLL is agp_hll.
type HLL struct {
	HIP float64
	KXQ [2]float64
	Reg [1 << summary.HLLLgK]uint8
}

// Entropy is agp_entropy.
type Entropy struct {
	N     uint64
	Cells [summary.EntropyWidth]uint32
}

// Top is agp_top.
type Top struct {
	N, Err      uint64
	Used, Moves uint32
}

// TopList is agp_top_list: a list of heavy hitters.
type TopList struct {
	Head   Top
	Index  [4 * summary.TopCounters][2]uint32
	Keys   [2 * summary.TopCounters][5]uint64
	Counts [2 * summary.TopCounters]uint64
}

// Blocked is agp_blocked.
type Blocked struct {
	Lines [3 * summary.BlockedWidth * sketch.BlockedLine]byte
	Carry [2 * summary.BlockedWidth]uint32
}

// Published is agp_published.
type Published struct {
	Counters [3 * summary.PublishedWidth]uint32
	_        uint32
	Bloom    [3 * publishedWords]uint64
}

// Summary is agp_summary: the sketches of one window of a ring.
type Summary struct {
	StartNs, EndNs int64
	Size, Delay    Quantiles
	Distinct       [summary.DistinctLists]HLL
	Entropy        [2]Entropy
	Top            [summary.TopLists]TopList
}

// Sketches is agp_sketches: those of a ring.
type Sketches struct {
	K0, K1           uint64
	WindowNs         int64
	Table            Addr
	Summary, Feature [2]Addr
	Counted          [2]uint64
	Now              uint32
	_                uint32
}

type (
	// Flow is agp_flow: the state of a flow.
	Flow = flow.Raw
	// Hist is agp_hist: the counters of a flow's histograms.
	Hist = flow.RawCounters
)
