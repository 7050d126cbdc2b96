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
	// DuplicateEntries frames on the wire are remembered: those of 10 ms at 13 million
	// frames/s.
	DuplicateEntries = 1 << 17
	// maxCompared bounds the bytes of a packet that are compared.
	maxCompared = 256
	// maxParts bounds the parts of one coalesced frame that are looked up.
	maxParts = 1024
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
// VLAN tags do not count, so that a routed frame is recognised too. Of a TCP packet it is
// the headers (without IP identification, FIN, PSH and CWR) and the payload's length, for
// each frame on the wire that a coalesced frame is: it may be whole at one hook and
// split, or joined otherwise, at the next. It is a duplicate if most of its parts are.
//
// Missed (counted twice): a frame whose content changes between two hooks (NAT, DSCP,
// a tunnel around it); a coalesced UDP frame that is split between them; one that takes
// more than 10 ms (a queue), or was displaced from memory by more than 13 million other
// frames/s; IPv6 TCP that is split between hooks if snapshots are shorter than 82 bytes.
// Wrongly taken for a duplicate: frames that differ only behind the snapshot, or not at
// all, and that are not the same passing through, at two hooks within 10 ms; a broadcast
// that arrives by two ports of one network is such a frame, and counting it once is what
// is wanted. Two frames of different content collide with a probability of about 2^-60.
//
// Memory is fixed (2 MiB), each frame on the wire costs a hash and two cache lines. The hash
// has a random key: nobody who sends frames can choose which ones displace each other.
type Duplicates struct {
	seed    maphash.Seed
	buckets [][ways]seen
	limit   int // bytes of layer 3 that are compared
	scratch [maxCompared]byte
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
		limit: min(max(0, snapLen-22), maxCompared),
	}
}

// Duplicate reports whether a frame was counted at another hook; otherwise it
// is remembered as counted at hook. segment is its segment size, 0 if it is one frame on
// the wire. ns is its time by any clock.
func (d *Duplicates) Duplicate(link packet.LinkType, frame []byte, wireLen uint32, segment uint16, ns int64, hook uint32) bool {
	c := d.content(link, frame, wireLen, segment)
	now := uint32(uint64(ns) / 1000)
	if c.parts == 1 {
		e, known := d.find(c.part(0), now)
		if known && e.hook != hook {
			return true
		}
		*e = seen{sum: c.part(0), at: now, hook: hook}
		return false
	}
	twice := 0
	for i := range c.parts {
		if e, known := d.find(c.part(i), now); known && e.hook != hook {
			twice++
		}
	}
	if 2*twice > c.parts {
		return true
	}
	for i := range c.parts {
		e, _ := d.find(c.part(i), now)
		*e = seen{sum: c.part(i), at: now, hook: hook}
	}
	return false
}

// find returns the entry of a sum that was counted lately, or the one that it is to
// replace: a free one, else the oldest.
func (d *Duplicates) find(sum uint64, now uint32) (e *seen, known bool) {
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
					return e, true
				}
				age = int64(since) + duplicateWindow
			}
		}
		if age > oldest {
			victim, oldest = i, age
		}
	}
	return &b[victim], false
}

// content is what identifies the frames on the wire that one frame is.
type content struct {
	hash    uint64 // of what they have in common
	parts   int
	seq     uint32 // of the first
	payload uint32 // of all
	segment uint32 // of each but the last
}

// part returns the sum of one frame on the wire, never 0. The common hash is keyed; the step is
// bijective in what differs, so that the parts of a connection do not collide.
func (c *content) part(i int) uint64 {
	length := c.payload
	seq := c.seq
	if c.parts > 1 {
		seq += uint32(i) * c.segment
		length = min(c.segment, c.payload-uint32(i)*c.segment)
	}
	h := c.hash ^ (uint64(seq)<<32 | uint64(length))
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return max(h^h>>33, 1)
}

const (
	etherHeader = 14
	typeIPv4    = 0x0800
	typeIPv6    = 0x86dd
	tcpHeader   = 20
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

// content reads a frame.
func (d *Duplicates) content(link packet.LinkType, frame []byte, wireLen uint32, segment uint16) content {
	typ, off := network(link, frame)
	length := max(wireLen, uint32(len(frame))) - uint32(off)
	n := copy(d.scratch[:d.limit], frame[off:])
	p := d.scratch[:n]
	l4, proto := 0, uint8(0) // l4 0: there is no transport header
	switch {
	case typ == typeIPv4 && n >= 20 && p[0]>>4 == 4:
		if total := uint32(binary.BigEndian.Uint16(p[2:])); total >= 20 && total < length {
			length = total // the rest is padding
		}
		if binary.BigEndian.Uint16(p[6:])&0x3fff == 0 { // not a fragment
			l4, proto = int(p[0]&0xf)*4, p[9]
		}
		p[8], p[10], p[11] = 0, 0, 0
	case typ == typeIPv6 && n >= 40 && p[0]>>4 == 6:
		if size := uint32(binary.BigEndian.Uint16(p[4:])); size != 0 && size+40 < length {
			length = size + 40
		}
		l4, proto = 40, p[6]
		p[7] = 0
	default:
		return content{hash: maphash.Bytes(d.seed, p) + uint64(typ), parts: 1, payload: length}
	}
	p = p[:min(n, int(length))] // padding is not compared
	switch proto {
	case packet.ProtoTCP:
		if l4 >= 20 && len(p) >= l4+tcpHeader {
			return d.tcp(typ, p, l4, length, uint32(segment))
		}
		blank(p, l4+16, 2)
	case packet.ProtoUDP:
		blank(p, l4+6, 2)
	case packet.ProtoSCTP:
		blank(p, l4+8, 4)
	}
	return content{hash: maphash.Bytes(d.seed, p), parts: 1, payload: length}
}

// tcp leaves of a packet what all frames on the wire have in common.
func (d *Duplicates) tcp(typ uint16, p []byte, l4 int, length, segment uint32) content {
	c := content{parts: 1, seq: binary.BigEndian.Uint32(p[l4+4:])}
	if typ == typeIPv4 {
		blank(p, 2, 4) // total length, identification
	} else {
		blank(p, 4, 2) // payload length
	}
	blank(p, l4+4, 4)
	p[l4+13] &^= packet.TCPFin | packet.TCPPsh | packet.TCPCwr
	blank(p, l4+16, 2)
	headers := max(tcpHeader, int(p[l4+12]>>4)*4) + l4
	c.payload = length - min(length, uint32(headers))
	if segment != 0 && c.payload > segment {
		c.segment, c.parts = segment, min(int((c.payload-1)/segment)+1, maxParts)
	}
	c.hash = maphash.Bytes(d.seed, p[:min(len(p), headers)])
	return c
}

// blank clears n bytes, as far as there are any.
func blank(p []byte, off, n int) {
	if off < len(p) {
		clear(p[off:min(off+n, len(p))])
	}
}
