package mlx5

import "math/bits"

// Flow tags are the lower 24 bits of CQE.SOPDropQPN.

// MaxMark is the largest id that a MARK action of DPDK can have; MarkFlag is what the FLAG
// action, which has no id, shows.
const (
	MaxMark  uint32 = 0xffffef
	MarkFlag uint32 = 0xffffff
)

// FlowTag returns the tag as verbs and rdma-core's steering count it.
func FlowTag(sopDropQPN uint32) uint32 { return sopDropQPN & 0xffffff }

// PutMark returns the CQE's field for a packet that DPDK marked with id: one more than the
// id, in the byte order that DPDK on a little-endian host gives it.
func PutMark(id uint32) uint32 { return swap24(id + 1) }

// PutMarkFlag returns the CQE's field for a packet that DPDK flagged.
func PutMarkFlag() uint32 { return swap24(MarkFlag) }

// Mark is PutMark's inverse. A packet without mark gives ok false, one with FLAG MarkFlag.
func Mark(sopDropQPN uint32) (id uint32, ok bool) {
	switch v := swap24(sopDropQPN); v {
	case 0:
		return 0, false
	case MarkFlag:
		return MarkFlag, true
	default:
		return v - 1, true
	}
}

func swap24(v uint32) uint32 { return bits.ReverseBytes32(v<<8) & 0xffffff }

// TimeFormat says what CQE.Timestamp counts.
type TimeFormat uint8

// Time formats; the numbers are those of agp_ring.time_format.
const (
	TimeNs   TimeFormat = 0 // ns since the Unix epoch, in the relay's rings
	TimeReal TimeFormat = 1 // seconds since the epoch in the upper half, ns in the lower
	TimeFree TimeFormat = 2 // ticks of a free-running counter of 63 bits
)

const (
	nsPerSecond = 1_000_000_000
	freeBits    = 63
)

// Clock converts CQE timestamps. Of the free-running kind, BaseTicks was at BaseNs, and a
// tick is Mult / 2^Shift ns.
type Clock struct {
	Format    TimeFormat
	Shift     uint32
	Mult      uint64
	BaseTicks uint64
	BaseNs    int64
}

// FreeClock returns the clock of a counter that runs at khz and was at ticks when it was ns.
func FreeClock(khz uint32, ticks uint64, ns int64) Clock {
	const shift = 24
	return Clock{Format: TimeFree, Shift: shift, Mult: (1_000_000<<shift + uint64(khz)/2) / uint64(khz), BaseTicks: ticks, BaseNs: ns}
}

// Ns returns ns since the Unix epoch.
func (c *Clock) Ns(timestamp uint64) int64 {
	switch c.Format {
	case TimeReal:
		return int64(timestamp>>32)*nsPerSecond + int64(uint32(timestamp))
	case TimeFree:
		// The counter wraps, and a packet may be older than the base.
		d := int64((timestamp-c.BaseTicks)<<(64-freeBits)) >> (64 - freeBits)
		if d < 0 {
			return c.BaseNs - c.scale(uint64(-d))
		}
		return c.BaseNs + c.scale(uint64(d))
	default:
		return int64(timestamp)
	}
}

func (c *Clock) scale(ticks uint64) int64 {
	hi, lo := bits.Mul64(ticks, c.Mult)
	return int64(hi<<(64-c.Shift) | lo>>c.Shift)
}

// Timestamp is the inverse of Ns: what a port writes at ns. Of the free-running kind it is
// the first tick that is not before ns.
func (c *Clock) Timestamp(ns int64) uint64 {
	switch c.Format {
	case TimeReal:
		return uint64(ns/nsPerSecond)<<32 | uint64(ns%nsPerSecond)
	case TimeFree:
		d, back := uint64(ns-c.BaseNs), ns < c.BaseNs
		if back {
			d = uint64(c.BaseNs - ns)
		}
		hi, lo := d>>(64-c.Shift), d<<c.Shift
		ticks, rest := bits.Div64(hi, lo, c.Mult)
		switch {
		case back:
			ticks = -ticks
		case rest > 0:
			ticks++
		}
		return (c.BaseTicks + ticks) & (1<<freeBits - 1)
	default:
		return uint64(ns)
	}
}

// MPRQByteCnt is CQE.ByteCnt of a striding queue: the frame's length, the strides that it
// takes, and whether it is a filler: strides that are passed over without a frame.
func MPRQByteCnt(length uint16, strides uint16, filler bool) uint32 {
	v := uint32(strides&0x3fff)<<16 | uint32(length)
	if filler {
		v |= 1 << 31
	}
	return v
}

// SplitMPRQByteCnt is MPRQByteCnt's inverse.
func SplitMPRQByteCnt(v uint32) (length, strides uint16, filler bool) {
	return uint16(v), uint16(v>>16) & 0x3fff, v>>31 == 1
}
