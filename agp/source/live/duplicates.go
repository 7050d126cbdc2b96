package live

import (
	"encoding/binary"
	"hash/maphash"
	"math"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

const (
	// duplicateWindow is how long after it was counted a frame is recognised, in us.
	duplicateWindow = 10_000
	ways            = 8
	// DuplicateEntries frames are remembered: those of 10 ms at 6.5 million frames/s.
	DuplicateEntries = 1 << 16
)

// Duplicates recognises a frame that passes several places where it is captured
// (hooks: an interface and a direction), as on a bridge, a VLAN device, a bond, a
// veth pair, the loopback device or in forwarding. A frame is a duplicate if, within
// 10 ms, a frame of the same layer 3 content and length was counted at another hook.
// The same content again where it was counted is a new frame: a retransmission, or a
// datagram that was sent twice.
//
// Layer 3 content is what the snapshot holds of the packet, without what changes on
// the way: TTL or hop limit, IPv4 header checksum, and the transport checksum, which
// an outgoing frame does not have before the device computes it. MAC addresses and
// VLAN tags do not count, so that a routed frame is recognised too.
//
// Missed (counted twice): a frame whose content changes between two hooks (NAT, DSCP,
// a tunnel around it), that is one super-packet at one hook and several frames at
// another, that takes more than 10 ms (a queue), or that was displaced from memory
// by more than 6.5 million other frames/s. Wrongly taken for a duplicate: frames
// that differ only behind the snapshot, or not at all, and that are not the same
// passing through, at two hooks within 10 ms; a broadcast that arrives by two ports of
// one network is such a frame, and counting it once is what is wanted. Two
// frames of different content collide with a probability of about 2^-62.
//
// Memory is fixed (1 MiB), each frame costs one hash and two cache lines. The hash has
// a random key: nobody who sends frames can choose which ones displace each other.
type Duplicates struct {
	seed    maphash.Seed
	buckets [][ways]seen
	limit   int // bytes of layer 3 that are compared
}

// seen is a frame that was counted.
type seen struct {
	sum  uint64 // 0: no frame
	at   uint32 // us, wraps
	hook uint32
}

// NewDuplicates returns an empty memory. snapLen is the captured length of long frames.
func NewDuplicates(snapLen int) *Duplicates {
	return &Duplicates{
		seed:    maphash.MakeSeed(),
		buckets: make([][ways]seen, DuplicateEntries/ways),
		// A packet is captured as far, whatever MAC header it has at a hook: none, or
		// one with up to two tags.
		limit: max(0, snapLen-22),
	}
}

// Duplicate reports whether a frame was counted at another hook; otherwise it
// is remembered as counted at hook. ns is its time by any clock. It changes bytes of
// the frame and restores them.
func (d *Duplicates) Duplicate(link packet.LinkType, frame []byte, wireLen uint32, ns int64, hook uint32) bool {
	sum := max(d.digest(link, frame, wireLen), 1)
	now := uint32(uint64(ns) / 1000)
	b := &d.buckets[sum&uint64(len(d.buckets)-1)]
	victim, oldest := 0, int64(-1)
	for i := range b {
		e := &b[i]
		age := int64(math.MaxInt64) // of what is as good as free
		if e.sum != 0 {
			// Frames come almost in order: one may be a little older than the last.
			since := int32(now - e.at)
			if since <= duplicateWindow && since >= -duplicateWindow {
				if e.sum == sum {
					if e.hook != hook {
						return true
					}
					e.at = now
					return false
				}
				age = int64(since) + duplicateWindow
			} else if e.sum == sum {
				victim, oldest = i, math.MaxInt64
				break
			}
		}
		if age > oldest {
			victim, oldest = i, age
		}
	}
	b[victim] = seen{sum: sum, at: now, hook: hook}
	return false
}

const (
	etherHeader = 14
	typeIPv4    = 0x0800
	typeIPv6    = 0x86dd
)

// network finds the network layer of a frame, behind VLAN tags.
func network(link packet.LinkType, f []byte) (typ uint16, off int) {
	if link != packet.LinkEthernet {
		if link == packet.LinkRaw && len(f) > 0 {
			switch f[0] >> 4 {
			case 4:
				return typeIPv4, 0
			case 6:
				return typeIPv6, 0
			}
		}
		return 0, 0
	}
	if len(f) < etherHeader {
		return 0, 0
	}
	typ, off = binary.BigEndian.Uint16(f[macs:]), etherHeader
	for range 4 {
		switch typ {
		case 0x8100, 0x88a8, 0x9100, 0x9200, 0x9300:
			if len(f) < off+TagLen {
				return typ, off
			}
			typ = binary.BigEndian.Uint16(f[off+2:])
			off += TagLen
		default:
			return typ, off
		}
	}
	return typ, off
}

// digest hashes what identifies a packet.
func (d *Duplicates) digest(link packet.LinkType, frame []byte, wireLen uint32) uint64 {
	typ, off := network(link, frame)
	p, length := frame[off:], max(wireLen, uint32(len(frame)))-uint32(off)
	var blank blanks
	l4, proto := 0, uint8(0) // l4 0: there is no transport header
	switch {
	case typ == typeIPv4 && len(p) >= 20 && p[0]>>4 == 4:
		if total := uint32(binary.BigEndian.Uint16(p[2:])); total >= 20 && total < length {
			length = total // the rest is padding
		}
		if binary.BigEndian.Uint16(p[6:])&0x1fff == 0 {
			l4, proto = int(p[0]&0xf)*4, p[9]
		}
		blank.at(p, 8)
		blank.at(p, 10)
		blank.at(p, 11)
	case typ == typeIPv6 && len(p) >= 40 && p[0]>>4 == 6:
		if n := uint32(binary.BigEndian.Uint16(p[4:])); n != 0 && n+40 < length {
			length = n + 40
		}
		l4, proto = 40, p[6]
		blank.at(p, 7)
	}
	if l4 != 0 {
		sum, n := 0, 2
		switch proto {
		case packet.ProtoTCP:
			sum = 16
		case packet.ProtoUDP:
			sum = 6
		case packet.ProtoSCTP:
			sum, n = 8, 4
		default:
			n = 0
		}
		for i := range n {
			blank.at(p, l4+sum+i)
		}
	}
	n := min(len(p), int(length), d.limit)
	h := maphash.Bytes(d.seed, p[:n])
	blank.restore(p)
	if blank.n == 0 { // not IP: the type is not part of what was hashed
		h += uint64(typ) << 32
	}
	// One bijective step, so that the length changes the bucket too.
	h = (h ^ uint64(length)) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// blanks are bytes that were set to 0 for a while.
type blanks struct {
	off [8]uint8
	old [8]byte
	n   int
}

func (b *blanks) at(p []byte, off int) {
	if off >= len(p) {
		return
	}
	b.off[b.n], b.old[b.n] = uint8(off), p[off]
	b.n++
	p[off] = 0
}

func (b *blanks) restore(p []byte) {
	for i := range b.n {
		p[b.off[i]] = b.old[i]
	}
}
