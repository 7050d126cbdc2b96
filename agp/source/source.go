// Package source says how packets reach a host pipeline: a Source fills batches
// of frames. Implementations live in sub-packages and own their buffers.
package source

import (
	"io"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// Frame is one captured frame. Data points into memory that the batch owns.
type Frame struct {
	Data        []byte
	TimestampNs int64  // ns since the Unix epoch, clock of the capturing interface
	WireLen     uint32 // bytes on the wire; >= len(Data)
	LinkType    packet.LinkType
	// SegmentSize is the payload of each frame on the wire but the last, if the
	// kernel has joined several to this one (GRO) or will split it (GSO): 0 if it is
	// one frame. Data and WireLen then have the headers once.
	SegmentSize uint16
	Interface   uint32 // index of the capturing interface inside this source
	// Side says where the frame came from, so that two ends that are in different
	// places can be told from one sender that forges both.
	Side uint8
}

// Sides of a frame. Whoever sends into an interface can forge what has its side, and
// nothing else.
const (
	SideUnknown uint8 = 0   // as in files
	SideOther   uint8 = 254 // an interface that the source does not capture from
	SideOut     uint8 = 255 // this machine has made it
)

// SideIn is the side of frames that came in at a source's i-th interface. Interfaces
// beyond the numbers share the last one: they are not told apart, which proves less.
func SideIn(i uint32) uint8 { return uint8(min(i, uint32(SideOther)-2)) + 1 }

// Batch is a reusable list of frames. Frames stay valid until the batch is
// given to the next Next call; the pipeline keeps several batches in turn.
type Batch struct {
	Frames []Frame
	// Buf is memory that a source reads frame bytes into; the batch stays with its source.
	Buf []byte
	// Lent are buffers of the source that frames point into instead, by its own numbers.
	Lent []uint64
}

// Source delivers frames in capture order. It is used by one goroutine;
// Interrupt alone may be called from another.
type Source interface {
	// Next replaces the content of b with up to cap(b.Frames) frames and returns
	// their number. It returns io.EOF when the input has ended (n may be > 0 in
	// the same call only with a nil error). A live source returns 0, nil after a
	// bounded wait, so that time can pass without packets. An error other than
	// io.EOF ends the input too; what was readable before it has been delivered.
	Next(b *Batch) (n int, err error)
	// Stats returns counters that only the source knows. Monotonic.
	Stats() Stats
	// Interrupt makes a blocked or following Next return io.EOF soon.
	Interrupt()
	io.Closer
}

// Stats are a source's own counters.
type Stats struct {
	Frames  uint64            // frames delivered
	Bytes   uint64            // captured bytes delivered
	Dropped map[string]uint64 // frames the source could not deliver, by reason
	// Repaired counts frames that were delivered although what their record
	// says of them cannot be, by reason.
	Repaired map[string]uint64
	Offset   int64 // bytes of input consumed, for progress
	Size     int64 // bytes of input in all, 0 if unknown
}
