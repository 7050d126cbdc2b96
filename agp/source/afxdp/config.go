package afxdp

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Mode is how frames get from the driver to the buffers.
type Mode uint8

const (
	// ModeAuto takes the first that works of zero-copy and copy.
	ModeAuto Mode = iota
	// ModeZeroCopy lets the device write to our buffers.
	ModeZeroCopy
	// ModeCopy is the kernel copying; the XDP program runs in the driver.
	ModeCopy
	// ModeGeneric is the kernel copying; the XDP program runs after the driver. A socket
	// is bound as for ModeCopy; which of both it is depends on the program.
	ModeGeneric
)

var modeNames = [...]string{ModeAuto: "auto", ModeZeroCopy: "zerocopy", ModeCopy: "copy", ModeGeneric: "generic"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Port is a device and the map that its XDP program redirects to.
type Port struct {
	Interface string // name; looked up by IfIndex if empty
	IfIndex   int    // looked up by Interface if 0
	Queues    []int  // receive queues; all of the device if empty
	// Map is the BPF_MAP_TYPE_XSKMAP. The socket k of receive queue q is at
	// FirstSlot + q*PerQueue + k. It stays the caller's: Close only empties the slots.
	Map       *ebpf.Map
	FirstSlot int
}

// Config says what Open opens. The zero value of all but Port is a sane choice.
type Config struct {
	Port

	PerQueue int // sockets per receive queue; default 1
	RingSize int // entries of each receive and transmit ring, a power of two; default 2048, or what Frames has room for
	// Frames is the number of buffers per receive queue, a power of two. The default
	// has twice as many as the receive rings of a queue.
	Frames int
	// FrameSize is the size of a buffer, 2048 or 4096 bytes, of which a frame can use
	// 256 less. By default 2048, or 4096 if a frame of the interface's MTU fits only
	// that and several buffers per frame are not available.
	FrameSize int
	HugePages bool // use reserved huge pages if there are enough

	Mode               Mode
	DisableNeedWakeup  bool
	DisableMultiBuffer bool

	// Timestamps says that the XDP program puts Metadata before frames.
	Timestamps bool
	// Offset is CLOCK_REALTIME minus CLOCK_MONOTONIC in ns; measured by Open if 0.
	Offset int64
	// SnapLen is how many bytes of a frame are delivered; all if 0.
	SnapLen int

	// Peer makes the source a wire with a tap: what is received on Port is sent on
	// Peer and the reverse, unchanged and in order.
	Peer *Port
}

// MinFrameSize is the smallest size of a buffer, in bytes.
const MinFrameSize = 2048

const (
	defaultRing = 2048
	minRing     = 64 // one frame of the most buffers must fit
	maxRing     = 1 << 16
	maxFrames   = 1 << 20
	smallFrame  = MinFrameSize
	largeFrame  = 4096
	maxPerQueue = 64
)

func (c *Config) setDefaults() error {
	if c.PerQueue == 0 {
		c.PerQueue = 1
	}
	if c.PerQueue < 0 || c.PerQueue > maxPerQueue {
		return fmt.Errorf("%w: %d sockets per queue: must be 1 to %d", ErrConfig, c.PerQueue, maxPerQueue)
	}
	if c.RingSize == 0 {
		c.RingSize = defaultRing
		if c.Frames > 0 {
			for c.RingSize = minRing; c.RingSize < maxRing && 4*c.RingSize*c.PerQueue <= c.Frames; {
				c.RingSize *= 2
			}
		}
	}
	if !powerOfTwo(c.RingSize) || c.RingSize < minRing || c.RingSize > maxRing {
		return fmt.Errorf("%w: ring of %d entries: must be a power of two from %d to %d", ErrConfig, c.RingSize, minRing, maxRing)
	}
	if c.Frames == 0 {
		c.Frames = minRing
		for c.Frames < 2*c.RingSize*c.PerQueue && c.Frames < maxFrames {
			c.Frames *= 2
		}
	}
	if !powerOfTwo(c.Frames) || c.Frames < minRing || c.Frames > maxFrames {
		return fmt.Errorf("%w: %d buffers per queue: must be a power of two from %d to %d", ErrConfig, c.Frames, minRing, maxFrames)
	}
	if c.FrameSize != 0 && c.FrameSize != smallFrame && c.FrameSize != largeFrame {
		return fmt.Errorf("%w: buffers of %d bytes: must be %d or %d", ErrConfig, c.FrameSize, smallFrame, largeFrame)
	}
	if c.SnapLen < 0 {
		return fmt.Errorf("%w: snapshot length %d", ErrConfig, c.SnapLen)
	}
	if c.Mode > ModeGeneric {
		return fmt.Errorf("%w: %v", ErrConfig, c.Mode)
	}
	for _, p := range []*Port{&c.Port, c.Peer} {
		if p == nil {
			continue
		}
		if p.Map == nil || p.Map.Type() != ebpf.XSKMap {
			return fmt.Errorf("%s: %w: no map of type XSKMAP", p.Interface, ErrConfig)
		}
		if p.FirstSlot < 0 {
			return fmt.Errorf("%s: %w: first slot %d", p.Interface, ErrConfig, p.FirstSlot)
		}
	}
	return nil
}

func powerOfTwo(n int) bool { return n > 0 && n&(n-1) == 0 }
