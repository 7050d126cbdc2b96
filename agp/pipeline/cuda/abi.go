package cuda

import "github.com/agp-net/telegraf-agp/agp/flow"

// What follows mirrors cuda/kernels/agp.h, which explains the fields; a test compares sizes and
// offsets. Flows and their counters are flow.Raw and flow.RawCounters.

const (
	lanes     = 32
	ways      = 8
	verdicts  = 64
	syndromes = 32
)

type abiFragment struct {
	Src, Dst     [16]byte
	SeenNs       int64
	ID, Tunnel   uint32
	Sport, Dport uint16
	VLAN         uint16
	Version      uint8
	Protocol     uint8
}

const (
	recordSkip = 0
	recordFlow = 1
)

type abiRecord struct {
	Size   uint32
	Ring   uint16
	Kind   uint8
	Reason uint8
	_      [56]byte
}

// maxRecord is the longest record: with counters.
const maxRecord = 64 + 448 + 640

type abiOut struct {
	Buf, Head, Tail Addr
	LogSize         uint32
	_               uint32
}

const (
	flagRelay    = 1
	flagLossless = 2
)

type abiRing struct {
	CQ, CQDB, RQDB, Payload    Addr
	LogCQ, LogRQ, Pitch, Flags uint32
	TimeFormat, TimeShift      uint32
	TimeMult, TimeBaseTicks    uint64
	TimeBaseNs                 int64
	Fragments, Tags, Due       Addr
	Flows, Hists, State, Stats Addr
	Resets                     Addr
	LogFragments, LogBuckets   uint32
	Out                        abiOut
}

// What has become of a ring.
const (
	ringIdle uint32 = iota
	ringRunning
	ringStopped
	ringFlushed
	ringReset
	ringDesync
	ringCompressed
)

type abiStats struct {
	Version, Heartbeat, ClockNs             uint64
	Status, Vendor                          uint32
	CQEs, Frames, Bytes                     uint64
	Drops                                   [verdicts]uint64
	Errors                                  [syndromes]uint64
	Records, Recorded                       uint64
	LostRecords, LostPackets, LostBytes     uint64
	Started, Evicted, Active, ActivePackets uint64
	TimeSteps, ClockBacks, BadLength        uint64
}

type abiRingState struct {
	CI, WQEs, Seq uint64
	ClockNs, Step int64
	OutHead       uint64
	Resets        uint32
	_             uint32
	Stats         abiStats
}

const (
	commandRun uint32 = iota
	commandStop
	commandFlush
)

type abiControl struct {
	Command uint32
	_       uint32
	FlushNs int64
}

type abiParams struct {
	Control, Rings             Addr
	Count, Batch, Decap, Key   uint32
	IdleNs, ActiveNs, LingerNs int64
	Seed                       uint64
}

type (
	abiFlow = flow.Raw
	abiHist = flow.RawCounters
)
