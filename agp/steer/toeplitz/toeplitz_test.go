package toeplitz

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// The published vectors of the Microsoft key, and the same flows with the two other keys.
func TestPublishedVectors(t *testing.T) {
	for _, v := range []struct {
		src, dst            string
		msIP, msL4          uint32
		mlxIP, mlxL4, symL4 uint32
	}{
		{"66.9.149.187:2794", "161.142.100.80:1766", 0x323e8fc2, 0x51ccc178, 0x27cc1570, 0x85d36feb, 0x9fcc9fcc},
		{"199.92.111.2:14230", "65.69.140.83:4739", 0xd718262a, 0xc626b0ea, 0x4ad6a48c, 0xaaef97ac, 0x60d760d7},
		{"[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc18cd5, 0x40207d3d, 0xc1f387a5, 0xcb1268c0, 0x13eb13eb},
	} {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		ms, mlx, sym := New(Microsoft), New(MLX5), New(Symmetric)
		require.Equal(t, v.msIP, ms.Addrs(src.Addr(), dst.Addr()), v.src)
		require.Equal(t, v.msL4, ms.Flow(src, dst), v.src)
		require.Equal(t, v.mlxIP, mlx.Addrs(src.Addr(), dst.Addr()), v.src)
		require.Equal(t, v.mlxL4, mlx.Flow(src, dst), v.src)
		require.Equal(t, v.symL4, sym.Flow(src, dst), v.src)
		require.Equal(t, v.symL4, sym.Flow(dst, src), "the other direction of %s", v.src)
	}
}

// Bit by bit, as the definition has it.
func TestTablesAgreeWithDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var key Key
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		data := make([]byte, rng.IntN(37))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		var want uint32
		for i := range len(data) * 8 {
			if data[i/8]&(0x80>>(i%8)) == 0 {
				continue
			}
			for b := range 32 {
				if at := i + b; key[at/8]&(0x80>>(at%8)) != 0 {
					want ^= 1 << (31 - b)
				}
			}
		}
		require.Equal(t, want, New(key).Sum(data))
	}
}

func TestMappedAddressesAreIPv4(t *testing.T) {
	h := New(Microsoft)
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	require.Equal(t, h.Addrs(a, b), h.Addrs(netip.AddrFrom16(a.As16()), netip.AddrFrom16(b.As16())))
}

func TestBadKeysAreRefused(t *testing.T) {
	for _, s := range []string{"", "6d5a", "zz", "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa00"} {
		_, err := ParseKey(s)
		require.ErrorIs(t, err, ErrKey, s)
	}
}

func TestHashingDoesNotAllocate(t *testing.T) {
	h := New(Symmetric)
	src, dst := netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2")
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Flow(src, dst) }))
}
