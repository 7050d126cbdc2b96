package mirror

import (
	"encoding/binary"

	"github.com/agp-net/telegraf-agp/agp/source/live"
)

// Layout of struct agp_event (agp/steer/bpf/agp.h), which each record begins with.
const (
	eventSize = 40
	maxCap    = 256 // bytes of a frame that a record may hold
)

// gsoByFrags as a segment size says that each fragment is a segment (Linux GSO_BY_FRAGS).
const gsoByFrags = 0xffff

const (
	hookEgress = 1
	numHooks   = 3 // tc ingress, tc egress, XDP
)

// event is the header of a record, as far as it is used.
type event struct {
	length    uint32 // of the frame, without the tag
	ifindex   uint32
	cap       uint16 // bytes of the frame in the record
	gsoSize   uint16
	vlanTCI   uint16
	vlanProto uint16 // 0: no tag
	hook      uint8
	from      uint32 // interface by which a forwarded frame came in, 0: none
}

func eventTime(rec []byte) uint64 { return binary.NativeEndian.Uint64(rec) }

// parse reads a record; the frame points into it. It reports false if what it says
// cannot be.
func (e *event) parse(rec []byte) (frame []byte, ok bool) {
	if len(rec) < eventSize {
		return nil, false
	}
	le := binary.NativeEndian
	e.length = le.Uint32(rec[8:])
	e.ifindex = le.Uint32(rec[12:])
	e.cap = le.Uint16(rec[24:])
	e.gsoSize = le.Uint16(rec[26:])
	e.vlanTCI = le.Uint16(rec[30:])
	e.vlanProto = le.Uint16(rec[32:])
	e.hook = rec[34]
	e.from = le.Uint32(rec[36:])
	n := int(e.cap)
	if n == 0 || n > maxCap || n > len(rec)-eventSize || uint32(n) > e.length || e.length > live.MaxLen || e.hook >= numHooks {
		return nil, false
	}
	return rec[eventSize : eventSize+n], true
}

// segment returns the segment size of a frame, 0 if it has no single one.
func (e *event) segment() uint16 {
	if e.gsoSize == gsoByFrags {
		return 0
	}
	return e.gsoSize
}
