package bpf

// Hooks at which a snapshot is taken.
const (
	HookIngress = 0
	HookEgress  = 1
	HookXDP     = 2
)

// Flags of an Event.
const (
	EventUnparsed = 1 << iota // not understood: Hash is 0
	EventRaw                  // begins with the IP header
	EventFragment             // an IP fragment: Hash is without ports
)

// EventSize is the size of an Event in a ring; the frame's bytes follow it.
const EventSize = 40

// Event is the head of a record in a ring (struct agp_event). Cap bytes of the frame
// follow it; the record may be longer.
type Event struct {
	TimeNs    uint64 // monotonic clock
	Len       uint32 // of the frame, MAC header included, a tag in metadata not
	Ifindex   uint32
	Hash      uint32 // symmetric Toeplitz
	RxQueue   uint32
	Cap       uint16 // bytes of the frame in the record
	GSOSize   uint16 // payload of each frame on the wire but the last, 0: one frame
	GSOSegs   uint16 // frames on the wire, at least 1
	VLANTCI   uint16
	VLANProto uint16 // 0: no tag in metadata
	Hook      uint8
	Flags     uint8
	From      uint32 // at egress: the interface by which a forwarded frame came in, else 0
}

// Indexes of Counters.Count. Up to Fates each frame has exactly one; the rest are
// remarks that it may have besides.
const (
	ToEngine = iota
	KernelClass
	OtherClass
	SampledOut
	ShareOut
	Blocked
	RateLimited
	RingFull
	RedirectFail
	NotIP
	Fates

	Pass = iota - 1
	Unparsed
	WouldBlock
	WouldLimit
	Counts
)

// Count is a number of frames on the wire and their bytes (MAC header and tags, no FCS).
type Count struct {
	Frames uint64
	Bytes  uint64
}

// Counters is one CPU's part of the map "counters" (struct agp_counters).
type Counters struct {
	Count [Counts]Count
	Turn  uint64 // of sampling
}

// Actions of a Rule.
const (
	ActionBlock = 1
	ActionLimit = 2
)

// TimeShift turns nanoseconds into the unit of a Rule's times.
const TimeShift = 4

// Rule is the value of a block list (struct agp_rule).
type Rule struct {
	TAT      uint64 // when the bucket will be full again
	Interval uint64 // per frame
	Burst    uint64 // how far TAT may be ahead of now
	Action   uint8
	DryRun   uint8
	_        [6]uint8
}

// LPM4 is the key of the map "net4".
type LPM4 struct {
	Bits uint32
	Addr [4]byte
}

// LPM6 is the key of the map "net6".
type LPM6 struct {
	Bits uint32
	Addr [16]byte
}

// Bits of the variable "lists".
const (
	ListHost4 = 1 << iota
	ListHost6
	ListNet4
	ListNet6
)

// MaxClasses is the number of classes in a Policy.
const MaxClasses = 32

// Class is one class of traffic (struct agp_class).
type Class struct {
	Protocol uint8 // 0: any
	Engine   uint8 // 0: stays with the kernel
	PortMin  uint16
	PortMax  uint16 // 0: any, or none
	_        uint16
}

// Policy is the value of a policy map (struct agp_policy).
type Policy struct {
	Classes uint32
	Engine  uint32 // number of classes that go to the engine, 0: everything does
	SampleN uint32
	Share   uint32 // of ShareAll
	IPOnly  uint32
	_       uint32
	Class   [MaxClasses]Class
}

// ShareAll is the Share of a Policy that lets every flow pass.
const ShareAll = 65536
