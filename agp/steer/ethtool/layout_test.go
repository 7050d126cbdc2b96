package ethtool

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
)

// Sizes and offsets as a C compiler gives them for linux/ethtool.h.
func TestLayoutsAreThoseOfTheKernel(t *testing.T) {
	require.EqualValues(t, 36, unsafe.Sizeof(channelsReq{}))
	require.EqualValues(t, 4, unsafe.Offsetof(channelsReq{}.max))
	require.EqualValues(t, 20, unsafe.Offsetof(channelsReq{}.current))
	require.EqualValues(t, 36, unsafe.Sizeof(ringsReq{}))
	require.EqualValues(t, 4, unsafe.Offsetof(ringsReq{}.max))
	require.EqualValues(t, 20, unsafe.Offsetof(ringsReq{}.current))
	var s Spec
	require.EqualValues(t, 168, unsafe.Sizeof(s))
	require.EqualValues(t, 4, unsafe.Offsetof(s.match))
	require.EqualValues(t, 56, unsafe.Offsetof(s.matchExt))
	require.EqualValues(t, 76, unsafe.Offsetof(s.mask))
	require.EqualValues(t, 128, unsafe.Offsetof(s.maskExt))
	require.EqualValues(t, 152, unsafe.Offsetof(s.cookie))
	require.EqualValues(t, 160, unsafe.Offsetof(s.location))
	var n rxnfc
	require.EqualValues(t, 192, unsafe.Sizeof(n))
	require.EqualValues(t, 8, unsafe.Offsetof(n.data))
	require.EqualValues(t, 16, unsafe.Offsetof(n.fs))
	require.EqualValues(t, ruleCountAt, unsafe.Offsetof(n.count))
	// The fields of the two structures are in the kernel's order.
	c := channelsReq{current: Channels{RX: 1, TX: 2, Other: 3, Combined: 4}}
	require.Equal(t, [4]uint32{1, 2, 3, 4}, *(*[4]uint32)(unsafe.Pointer(&c.current)))
	g := ringsReq{current: Rings{RX: 1, RXMini: 2, RXJumbo: 3, TX: 4}}
	require.Equal(t, [4]uint32{1, 2, 3, 4}, *(*[4]uint32)(unsafe.Pointer(&g.current)))
}

func bytesOf(t *testing.T, s Spec) []byte {
	t.Helper()
	text, err := s.MarshalText()
	require.NoError(t, err)
	b, err := hex.DecodeString(string(text))
	require.NoError(t, err)
	return b
}

func TestRuleIPv4(t *testing.T) {
	s, err := Rule{
		Flow: TCP4, Src: netip.MustParsePrefix("192.0.2.77/25"), Dst: netip.MustParsePrefix("198.51.100.1/32"),
		SrcPort: 0x1234, DstPort: 443, VLAN: 100, Queue: 3,
	}.Spec()
	require.NoError(t, err)
	s = s.At(9)
	b := bytesOf(t, s)
	require.EqualValues(t, 0x80000001, binary.NativeEndian.Uint32(b))
	require.Equal(t, []byte{192, 0, 2, 0, 198, 51, 100, 1, 0x12, 0x34, 1, 0xbb, 0}, b[4:17])
	require.Equal(t, []byte{0, 100}, b[66:68], "vlan_tci")
	require.Equal(t, []byte{255, 255, 255, 128, 255, 255, 255, 255, 255, 255, 255, 255, 0}, b[76:89])
	require.Equal(t, []byte{0x0f, 0xff}, b[138:140])
	require.EqualValues(t, 3, binary.NativeEndian.Uint64(b[152:]))
	require.EqualValues(t, 9, binary.NativeEndian.Uint32(b[160:]))
	require.EqualValues(t, 9, s.Location())
	q, ok := s.Queue()
	require.True(t, ok)
	require.Equal(t, 3, q)
}

func TestRuleIPv6(t *testing.T) {
	s, err := Rule{Flow: UDP6, Dst: netip.MustParsePrefix("2001:db8::/33"), DstPort: 53, Queue: Drop}.Spec()
	require.NoError(t, err)
	b := bytesOf(t, s)
	require.EqualValues(t, 6, binary.NativeEndian.Uint32(b))
	require.Equal(t, []byte{0x20, 1, 0x0d, 0xb8}, b[20:24])
	require.Equal(t, []byte{0, 0, 0, 53}, b[36:40])
	require.Equal(t, []byte{255, 255, 255, 255, 128, 0}, b[92:98])
	require.Equal(t, []byte{0, 0, 255, 255}, b[108:112])
	require.EqualValues(t, uint64(0xffffffffffffffff), binary.NativeEndian.Uint64(b[152:]))
	q, ok := s.Queue()
	require.True(t, ok)
	require.Equal(t, Drop, q)
}

func TestRuleByProtocol(t *testing.T) {
	s, err := Rule{Flow: IPv4, Protocol: 47, Queue: 1}.Spec()
	require.NoError(t, err)
	b := bytesOf(t, s)
	require.EqualValues(t, 1, b[4+13], "ip_ver")
	require.EqualValues(t, 47, b[4+14])
	require.EqualValues(t, 0, b[76+13])
	require.EqualValues(t, 255, b[76+14])
	s, err = Rule{Flow: IPv6, Protocol: 58, Queue: 1}.Spec()
	require.NoError(t, err)
	b = bytesOf(t, s)
	require.EqualValues(t, 58, b[4+37])
	require.EqualValues(t, 255, b[76+37])
}

// What ethtool 6.1 hands to the kernel (on a little-endian machine) for the same rules.
func TestRulesAreThoseOfEthtool(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	for _, c := range []struct {
		rule Rule
		at   uint32
		want string
	}{
		// ethtool -N a flow-type tcp4 src-ip 192.0.2.0 m 0.0.0.127 dst-ip 198.51.100.1
		// src-port 4660 dst-port 443 vlan 100 m 0xf000 action 3 loc 9
		{Rule{
			Flow: TCP4, Src: netip.MustParsePrefix("192.0.2.77/25"), Dst: netip.MustParsePrefix("198.51.100.1/32"),
			SrcPort: 4660, DstPort: 443, VLAN: 100, Queue: 3,
		}, 9, "01000080c0000200c6336401123401bb000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000640000000000000000ffffff80ffffffffffffffff00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000fff00000000000000000000000003000000000000000900000000000000"},
		// flow-type udp6 dst-ip 2001:db8:: m ::7fff:ffff:ffff:ffff:ffff:ffff dst-port 53 action -1 loc 4
		{Rule{Flow: UDP6, Dst: netip.MustParsePrefix("2001:db8::/33"), DstPort: 53, Queue: Drop}, 4, "060000000000000000000000000000000000000020010db80000000000000000000000000000003500000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffff8000000000000000000000000000ffff00000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff0400000000000000"},
		// flow-type ip4 l4proto 47 action 1 loc 0
		{Rule{Flow: IPv4, Protocol: 47, Queue: 1}, 0, "0d00000000000000000000000000000000012f0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001000000000000000000000000000000"},
		// flow-type ip6 l4proto 58 action 1 loc 0
		{Rule{Flow: IPv6, Protocol: 58, Queue: 1}, 0, "0e000000000000000000000000000000000000000000000000000000000000000000000000000000003a0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ff000000000000000000000000000000000000000000000000000000000000000000000000000001000000000000000000000000000000"},
	} {
		s, err := c.rule.Spec()
		require.NoError(t, err)
		require.Equal(t, c.want, hex.EncodeToString(bytesOf(t, s.At(c.at))))
	}
}

func TestRuleThatCannotBeSaid(t *testing.T) {
	for _, r := range []Rule{
		{},
		{Flow: IPv4Hash},
		{Flow: IPv4, DstPort: 80},
		{Flow: TCP4, Protocol: 6},
		{Flow: TCP4, Src: netip.MustParsePrefix("2001:db8::/32")},
		{Flow: TCP6, Src: netip.MustParsePrefix("192.0.2.0/24")},
		{Flow: TCP4, Src: netip.PrefixFrom(netip.MustParseAddr("192.0.2.1"), 33)},
		{Flow: TCP4, VLAN: 4095},
		{Flow: TCP4, Queue: -2},
	} {
		_, err := r.Spec()
		require.ErrorIs(t, err, ErrRule, "%+v", r)
	}
}

func TestSpecAsText(t *testing.T) {
	s, err := Rule{Flow: TCP6, DstPort: 22, Queue: 5}.Spec()
	require.NoError(t, err)
	text, err := s.At(77).MarshalText()
	require.NoError(t, err)
	var back Spec
	require.NoError(t, back.UnmarshalText(text))
	require.Equal(t, s.At(77), back)
	require.ErrorIs(t, back.UnmarshalText(text[2:]), ErrRule)
	require.ErrorIs(t, back.UnmarshalText([]byte(strings.Repeat("x", len(text)))), ErrRule)
}

// What a driver leaves in fields that do not count makes no other rule.
func TestCanonicalRule(t *testing.T) {
	s, err := Rule{Flow: IPv4, Dst: netip.MustParsePrefix("192.0.2.0/24"), Queue: 1}.Spec()
	require.NoError(t, err)
	d := s
	d.match[0] = 10     // source address without a mask
	d.match[7] = 99     // host part of the destination
	d.matchExt[10] = 1  // VLAN without FLOW_EXT
	d.maskExt[10] = 255 // likewise
	d.mask[13], d.match[13] = 255, 1
	require.NotEqual(t, s, d)
	require.Equal(t, s.Canonical(), d.Canonical())
	d.match[4] = 193
	require.NotEqual(t, s.Canonical(), d.Canonical())
	v, err := Rule{Flow: IPv4, VLAN: 5, Queue: 1}.Spec()
	require.NoError(t, err)
	require.Equal(t, v, v.Canonical(), "with FLOW_EXT they count")
}

func TestQueueOfRulesWithAnotherTarget(t *testing.T) {
	_, ok := Spec{flowType: uint32(TCP4) | flowRSS}.Queue()
	require.False(t, ok)
	_, ok = Spec{cookie: 1<<32 | 3}.Queue()
	require.False(t, ok, "virtual function")
}

func TestRSSRequestOfTheIoctl(t *testing.T) {
	b := encodeRXFH(RSSChange{Function: Toeplitz, Key: []byte{0x6d, 0x5a}, Indirection: []uint32{7, 8, 9}}, 2)
	require.Len(t, b, 24+12+2)
	u := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	require.EqualValues(t, 0x47, u(0))
	require.EqualValues(t, 0, u(4), "main context")
	require.EqualValues(t, 3, u(8))
	require.EqualValues(t, 2, u(12))
	require.Equal(t, []byte{1, 2, 0, 0}, b[16:20], "function, transformation")
	require.EqualValues(t, 0, u(20))
	require.EqualValues(t, 7, u(24))
	require.Equal(t, []byte{0x6d, 0x5a}, b[36:])
	require.Equal(t, RSS{Function: Toeplitz, Transform: 2, Key: []byte{0x6d, 0x5a}, Indirection: []uint32{7, 8, 9}}, decodeRXFH(b))

	b = encodeRXFH(RSSChange{Key: []byte{1}}, 0)
	require.EqualValues(t, 0xffffffff, u(8), "the table stays")
	b = encodeRXFH(RSSChange{DefaultIndirection: true}, 0)
	require.EqualValues(t, 0, u(8), "the driver's own table")
	require.Len(t, b, 24)
	// An answer that claims more than it has.
	binary.NativeEndian.PutUint32(b[8:], 1000)
	require.Empty(t, decodeRXFH(b).Indirection)
}

func TestRSSMessageOfNetlink(t *testing.T) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.LittleEndian
	(&Device{index: 0x11223344}).header(e)
	encodeRSSChange(e, RSSChange{Function: Toeplitz, Key: []byte{0x6d, 0x5a, 0x6d}, Indirection: []uint32{7, 8}})
	b, err := e.Encode()
	require.NoError(t, err)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		require.Equal(t, strings.ReplaceAll(
			"0c000180 08000100 44332211"+ // header: interface index
				"08000300 01000000"+ // function
				"07000500 6d5a6d00"+ // key, padded
				"0c000400 07000000 08000000", // table
			" ", ""), hex.EncodeToString(b))
	}
	r, err := decodeRSS(b)
	require.NoError(t, err)
	require.Equal(t, RSS{Function: Toeplitz, Key: []byte{0x6d, 0x5a, 0x6d}, Indirection: []uint32{7, 8}}, r)

	e = netlink.NewAttributeEncoder()
	encodeRSSChange(e, RSSChange{DefaultIndirection: true})
	b, err = e.Encode()
	require.NoError(t, err)
	require.Equal(t, "04000400", hex.EncodeToString(b), "an empty table is the driver's own")
}

func TestDamagedRSSAnswer(t *testing.T) {
	e := netlink.NewAttributeEncoder()
	e.Bytes(rssIndir, []byte{1, 2, 3})
	b, err := e.Encode()
	require.NoError(t, err)
	_, err = decodeRSS(b)
	require.ErrorContains(t, err, "table of 3 bytes")
	e = netlink.NewAttributeEncoder()
	e.Bytes(rssHashFunc, []byte{1, 2})
	b, err = e.Encode()
	require.NoError(t, err)
	_, err = decodeRSS(b)
	require.Error(t, err)
	_, err = decodeRSS([]byte{3, 0, 0, 0})
	require.Error(t, err)
}

func FuzzAnswers(f *testing.F) {
	e := netlink.NewAttributeEncoder()
	encodeRSSChange(e, RSSChange{Function: Toeplitz, Key: []byte{1, 2}, Indirection: []uint32{7, 8}})
	b, err := e.Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Add(encodeRXFH(RSSChange{Key: []byte{1, 2}, Indirection: []uint32{7, 8}}, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeRSS(b)
		_, _ = decodeFamily(b, map[uint32]bool{})
		decodeFeatures([]string{"a", "", "b"}, b)
		if len(b) >= 24 {
			decodeRXFH(b)
		}
	})
}

func TestFeatureBlocks(t *testing.T) {
	names := make([]string, 40)
	names[1], names[33], names[34] = "one", "two", "three"
	b := make([]byte, 32)
	put := func(at int, v uint32) { binary.NativeEndian.PutUint32(b[at:], v) }
	put(0, 1<<1)    // first block: available
	put(4, 1<<1)    // requested
	put(16, 1<<1|4) // second block: available
	put(24, 1<<1)   // active
	put(28, 1<<2)   // never changed
	require.Equal(t, map[string]Feature{
		"one": {Wanted: true}, "two": {Active: true}, "three": {Fixed: true},
	}, decodeFeatures(names, b))
}
