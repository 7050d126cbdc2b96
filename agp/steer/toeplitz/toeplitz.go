// Package toeplitz computes the receive-side-scaling hash of network cards: over
// addresses, and ports if there are any, in network order, source first.
//
// It has no state; a Hasher is read-only and may be shared. Hashing does not allocate.
package toeplitz

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
)

// KeyLen is the length of a key in bytes: enough for two IPv6 addresses and two ports.
const KeyLen = 40

// Key is a Toeplitz key.
type Key [KeyLen]byte

// Known keys.
var (
	// Microsoft is the key of the published test vectors.
	Microsoft = mustKey("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")
	// MLX5 is the key that DPDK's mlx5 driver sets.
	MLX5 = mustKey("2cc681d15bdbf4f7fca28319db1a3e946b9e38d92c9c03d1ad9944a7d9563d59063c25f3fc1fdc2a")
	// Symmetric gives both directions of a flow the same hash. The programs of
	// agp/steer compute with this key.
	Symmetric = mustKey("6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a6d5a")
)

// ErrKey says that a key is not KeyLen bytes.
var ErrKey = errors.New("a Toeplitz key has 40 bytes")

// ParseKey reads a key in hexadecimal.
func ParseKey(s string) (Key, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		return Key{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	if len(b) != KeyLen {
		return Key{}, fmt.Errorf("%w, not %d", ErrKey, len(b))
	}
	return Key(b), nil
}

func mustKey(s string) Key {
	k, err := ParseKey(s)
	if err != nil {
		panic(err)
	}
	return k
}

// Hasher hashes with one key. It holds a table per input byte.
type Hasher struct {
	table [KeyLen - 4][256]uint32
}

// New returns a hasher for the key.
func New(key Key) *Hasher {
	h := new(Hasher)
	for i := range h.table {
		// The 39 bits that 8 steps of the 32-bit window pass over.
		window := uint64(key[i])<<32 | uint64(key[i+1])<<24 | uint64(key[i+2])<<16 | uint64(key[i+3])<<8 | uint64(key[i+4])
		for b := range h.table[i] {
			var sum uint32
			for bit := range 8 {
				if b&(0x80>>bit) != 0 {
					sum ^= uint32(window >> (8 - bit)) //nolint:gosec // the window's lower bits are meant
				}
			}
			h.table[i][b] = sum
		}
	}
	return h
}

// Sum hashes bytes as they are. Bytes past the 36 that a key reaches do not count.
func (h *Hasher) Sum(data []byte) uint32 {
	var sum uint32
	for i := range min(len(data), len(h.table)) {
		sum ^= h.table[i][data[i]]
	}
	return sum
}

// Addrs hashes two addresses of the same family, as is done for packets without ports.
func (h *Hasher) Addrs(src, dst netip.Addr) uint32 {
	var buf [36]byte
	return h.Sum(appendAddrs(buf[:0], src, dst))
}

// Flow hashes two addresses of the same family and two ports.
func (h *Hasher) Flow(src, dst netip.AddrPort) uint32 {
	var buf [36]byte
	b := appendAddrs(buf[:0], src.Addr(), dst.Addr())
	b = append(b, byte(src.Port()>>8), byte(src.Port()), byte(dst.Port()>>8), byte(dst.Port()))
	return h.Sum(b)
}

func appendAddrs(b []byte, src, dst netip.Addr) []byte {
	if src, dst = src.Unmap(), dst.Unmap(); src.Is4() && dst.Is4() {
		s, d := src.As4(), dst.As4()
		return append(append(b, s[:]...), d[:]...)
	}
	s, d := src.As16(), dst.As16()
	return append(append(b, s[:]...), d[:]...)
}
