package sketch

import (
	"encoding/binary"
	"math/bits"
)

// Odd constants with about half of their bits set; any such numbers would do.
const (
	mixA = 0x9e3779b97f4a7c15
	mixB = 0xd6e8feb86659fd93
	mixC = 0xa0761d6478bd642f
)

// Hasher is a fast keyed 64-bit hash: two folded 64 x 64 bit multiplications
// per word, the key on both operands. Without the key an outsider cannot
// construct colliding inputs in advance. It is not a cryptographic MAC: somebody who can
// read hash values could recover the key, so hashes are never exported.
type Hasher struct {
	k0, k1 uint64
}

// NewHasher makes a hash from a 128-bit key.
func NewHasher(key [16]byte) Hasher {
	a := binary.LittleEndian.Uint64(key[:8])
	b := binary.LittleEndian.Uint64(key[8:])
	// Spread a low-entropy key (a test's {1}) over all bits.
	k0 := fold(a^mixA, b^mixB)
	k1 := fold(b^mixC, k0^a^mixA)
	return Hasher{k0: k0, k1: k1}
}

// fold multiplies to 128 bits and xors the halves.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Uint64 hashes one word.
func (h Hasher) Uint64(x uint64) uint64 {
	return fold(fold(x^h.k0, h.k1^mixA)^x^h.k1, mixC)
}

// Pair hashes two words.
func (h Hasher) Pair(x, y uint64) uint64 {
	return fold(fold(x^h.k0, y^h.k1)^x, fold(y^mixB^h.k0, h.k1^mixA)^mixC)
}

// Bytes hashes b. The length is part of the hash.
func (h Hasher) Bytes(b []byte) uint64 {
	s := h.k0 ^ uint64(len(b))*mixB
	for len(b) >= 16 {
		x, y := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		s = fold(x^s, y^h.k1) ^ x
		b = b[16:]
	}
	if len(b) > 0 {
		var t [16]byte
		copy(t[:], b)
		x, y := binary.LittleEndian.Uint64(t[:]), binary.LittleEndian.Uint64(t[8:])
		s = fold(x^s, y^h.k1) ^ x
	}
	return fold(s^mixA, h.k0^mixC)
}

// Addr hashes a 16-byte address.
func (h Hasher) Addr(a *[16]byte) uint64 {
	return h.Pair(binary.LittleEndian.Uint64(a[:8]), binary.LittleEndian.Uint64(a[8:]))
}

// fingerprint names the key in a serialised sketch without revealing it.
func (h Hasher) fingerprint() uint64 {
	return h.Pair(h.Uint64(mixB), h.Uint64(mixC))
}

// scale maps 32 uniform bits to [0, n) without division.
func scale(h uint32, n uint32) uint32 {
	return uint32(uint64(h) * uint64(n) >> 32)
}
