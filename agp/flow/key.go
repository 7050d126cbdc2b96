package flow

import (
	"cmp"
	"encoding/binary"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// Key identifies a flow: both endpoints in canonical order (A is the lower
// address, then the lower port), so that both directions have one key.
type Key struct {
	A, B         [16]byte
	PortA, PortB uint16
	Tunnel       uint32
	VLAN         uint16
	Protocol     uint8
	IPVersion    uint8
}

// KeyOptions say what beside the 5-tuple tells flows apart.
type KeyOptions struct {
	VLAN   bool
	Tunnel bool
}

// Set makes k the key of a packet and reports whether the packet's sender is endpoint B.
func (k *Key) Set(in *packet.Info, o KeyOptions) (fromB bool) {
	k.Protocol, k.IPVersion, k.VLAN, k.Tunnel = in.Protocol, in.IPVersion, 0, 0
	if o.VLAN {
		k.VLAN = in.VLAN
	}
	if o.Tunnel {
		k.Tunnel = in.TunnelID
	}
	src, dst := &in.Src, &in.Dst
	k.PortA, k.PortB = in.SrcPort, in.DstPort
	if c := compareAddr(src, dst); c > 0 || c == 0 && in.SrcPort > in.DstPort {
		fromB = true
		src, dst = dst, src
		k.PortA, k.PortB = in.DstPort, in.SrcPort
	}
	copyAddr(&k.A, src)
	copyAddr(&k.B, dst)
	return fromB
}

func compareAddr(a, b *[16]byte) int {
	be := binary.BigEndian
	if c := cmp.Compare(be.Uint64(a[:8]), be.Uint64(b[:8])); c != 0 {
		return c
	}
	return cmp.Compare(be.Uint64(a[8:]), be.Uint64(b[8:]))
}

// copyAddr copies word by word, as the words were stored just before: a wider load
// would have to wait for them.
func copyAddr(to, from *[16]byte) {
	ne := binary.NativeEndian
	ne.PutUint64(to[:8], ne.Uint64(from[:8]))
	ne.PutUint64(to[8:], ne.Uint64(from[8:]))
}

// Seed folds a secret for Hash.
func Seed(secret [16]byte) uint64 {
	return binary.LittleEndian.Uint64(secret[:8]) ^ binary.LittleEndian.Uint64(secret[8:])
}

// Hash is a keyed 64-bit hash of the key: folded 64x64->128 bit multiplications
// of the 44 key bytes, each half masked by a word derived from the seed, so that
// an attacker who does not know the seed cannot aim at one bucket or queue.
func (k *Key) Hash(seed uint64) uint64 {
	s0 := seed ^ 0x9e3779b97f4a7c15
	s1 := bits.RotateLeft64(seed, 23) ^ 0xd6e8feb86659fd93
	h := fold(binary.LittleEndian.Uint64(k.A[0:])^s0, binary.LittleEndian.Uint64(k.A[8:])^s1)
	h ^= fold(binary.LittleEndian.Uint64(k.B[0:])^s1^0xa0761d6478bd642f, binary.LittleEndian.Uint64(k.B[8:])^s0^0xe7037ed1a0b428db)
	w := uint64(k.PortA) | uint64(k.PortB)<<16 | uint64(k.Tunnel)<<32
	v := uint64(k.VLAN) | uint64(k.Protocol)<<16 | uint64(k.IPVersion)<<24
	return fold(h^w, s1^v<<13^0x8ebc6af09c88c6e3) ^ fold(h+w, s0^v^0x589965cc75374cc3)
}

// equal is ==, word by word: the index has compared 32 bits of hash before, so
// keys that get here are nearly always equal and a call to compare memory does not pay.
func (k *Key) equal(o *Key) bool {
	le := binary.LittleEndian
	return le.Uint64(k.A[:8]) == le.Uint64(o.A[:8]) && le.Uint64(k.B[:8]) == le.Uint64(o.B[:8]) &&
		k.PortA == o.PortA && k.PortB == o.PortB && k.Protocol == o.Protocol && k.IPVersion == o.IPVersion &&
		le.Uint64(k.A[8:]) == le.Uint64(o.A[8:]) && le.Uint64(k.B[8:]) == le.Uint64(o.B[8:]) &&
		k.Tunnel == o.Tunnel && k.VLAN == o.VLAN
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// QueueOf says in which of n queues a bucket begins.
func QueueOf(bucket, n int) int { return bucket * n / Buckets }
