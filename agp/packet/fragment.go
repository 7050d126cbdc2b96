package packet

import (
	"encoding/binary"
	"math/bits"
)

// FragmentLifetimeNs is how long the ports of a first fragment are remembered,
// in capture time: the reassembly time of common hosts.
const FragmentLifetimeNs = 30_000_000_000

// FragmentDatagrams is how many datagrams a pipeline remembers.
const FragmentDatagrams = 4096

const fragmentWays = 8

// FragmentTable remembers the ports of first fragments, so that later fragments
// of the same datagram join its flow. Its memory is fixed: where a bucket is full
// the oldest entry gives way. One goroutine owns it; time is the frames' own.
type FragmentTable struct {
	entries []fragment
	mask    uint64 // number of buckets - 1
}

type fragment struct {
	src, dst     [16]byte
	seenNs       int64
	id           uint32
	tunnel       uint32
	sport, dport uint16
	vlan         uint16
	version      uint8 // 0: the entry is free
	protocol     uint8
}

// NewFragmentTable returns a table for at least the given number of datagrams;
// an entry takes 64 bytes.
func NewFragmentTable(datagrams int) *FragmentTable {
	buckets := 1
	for buckets*fragmentWays < datagrams {
		buckets *= 2
	}
	return &FragmentTable{entries: make([]fragment, buckets*fragmentWays), mask: uint64(buckets - 1)}
}

// Resolve completes a fragment. The ports of a first fragment are remembered; a
// later one gets them, and known says whether it could. Of IPv6, a later fragment
// gets the protocol too, because its own header may name an extension header
// instead. A frame that is no fragment is known as it is.
func (t *FragmentTable) Resolve(in *Info) (known bool) {
	if in.Flags&FlagFragment == 0 {
		return true
	}
	bucket := t.bucket(in)
	if in.Flags&FlagFragmentLater != 0 {
		for i := range bucket {
			e := &bucket[i]
			if e.is(in) && in.TimestampNs-e.seenNs <= FragmentLifetimeNs {
				in.SrcPort, in.DstPort, in.Protocol = e.sport, e.dport, e.protocol
				return true
			}
		}
		return false
	}
	victim := &bucket[0]
	for i := range bucket {
		e := &bucket[i]
		if e.is(in) {
			victim = e
			break
		}
		if victim.version != 0 && (e.version == 0 || e.seenNs < victim.seenNs) {
			victim = e
		}
	}
	*victim = fragment{
		src: in.Src, dst: in.Dst, seenNs: in.TimestampNs, id: in.FragmentID, tunnel: in.TunnelID,
		sport: in.SrcPort, dport: in.DstPort, vlan: in.VLAN, version: in.IPVersion, protocol: in.Protocol,
	}
	return true
}

// is reports whether the entry belongs to the fragment's datagram.
func (e *fragment) is(in *Info) bool {
	return e.id == in.FragmentID && e.version == in.IPVersion && e.src == in.Src && e.dst == in.Dst &&
		e.tunnel == in.TunnelID && e.vlan == in.VLAN &&
		(e.protocol == in.Protocol || e.version == 6)
}

func (t *FragmentTable) bucket(in *Info) []fragment {
	const k0, k1 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := mix(binary.LittleEndian.Uint64(in.Src[:])^k0, binary.LittleEndian.Uint64(in.Dst[:])^k1)
	h = mix(h^binary.LittleEndian.Uint64(in.Src[8:]), binary.LittleEndian.Uint64(in.Dst[8:])^k0)
	h = mix(h^uint64(in.FragmentID)<<32^uint64(in.TunnelID), k1)
	i := int(h&t.mask) * fragmentWays
	return t.entries[i : i+fragmentWays : i+fragmentWays]
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
