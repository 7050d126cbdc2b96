package bpf

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/steer/toeplitz"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// Results of the parser (enum agp_parse_result).
const (
	parsed = iota
	short
	ethertype
	badIP
	deep
)

// Flags of a parsed packet (enum agp_pkt_flag).
const (
	pktFragment = 1
	pktPorts    = 2
)

// result is struct parsed of parser.bpf.c.
type result struct {
	Src, Dst     [16]byte
	Sport, Dport [2]byte
	Version      uint8
	Protocol     uint8
	Flags        uint8
	_            uint8
	L4, End      uint32
	Hash         uint32
	Result       uint32
}

func TestTheTestReadsTheParsersStruct(t *testing.T) {
	require.EqualValues(t, binary.Size(result{}), 56)
	for i, name := range []string{"AGP_PARSED", "AGP_SHORT", "AGP_ETHERTYPE", "AGP_BAD_IP", "AGP_DEEP"} {
		require.EqualValues(t, i, value(t, "result", name))
	}
	require.EqualValues(t, pktFragment, value(t, "pkt_flag", "AGP_PKT_FRAGMENT"))
	require.EqualValues(t, pktPorts, value(t, "pkt_flag", "AGP_PKT_PORTS"))
}

// parser is the C parser. One goroutine uses it.
type parser struct {
	ParserObjects
	hash *toeplitz.Hasher
}

func newParser(t testing.TB) *parser {
	t.Helper()
	p := &parser{hash: toeplitz.New(toeplitz.Symmetric)}
	if err := LoadParserObjects(&p.ParserObjects, nil); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
			testcap.Missing(t, "loading BPF programs: %v", err)
		}
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func (p *parser) run(t testing.TB, prog *ebpf.Program, frame []byte) result {
	t.Helper()
	_, err := prog.Run(&ebpf.RunOptions{Data: frame, Repeat: 1})
	require.NoError(t, err, "%x", frame)
	var r result
	require.NoError(t, p.Out.Lookup(uint32(0), &r))
	return r
}

// ether parses an Ethernet frame with both kinds of program, which must agree.
// Kernels do not run tc programs on an IP packet without its whole header.
func (p *parser) ether(t testing.TB, frame []byte) result {
	t.Helper()
	xdp := p.run(t, p.ParseXdp, frame)
	if _, err := p.ParseSkb.Run(&ebpf.RunOptions{Data: frame, Repeat: 1}); len(frame) < 14+40 && errors.Is(err, unix.EINVAL) {
		return xdp
	}
	require.Equal(t, xdp, p.run(t, p.ParseSkb, frame), "XDP and tc differ: %x", frame)
	return xdp
}

func (r *result) addr(b [16]byte) netip.Addr {
	if r.Version == 4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// compare parses a frame here too. What both understand must be the same; what only
// one of them understands must be what is documented.
func (p *parser) compare(t testing.TB, frame []byte) (both bool) {
	t.Helper()
	typ, off := binary.BigEndian.Uint16(frame[12:]), 14
	for range 2 {
		switch typ {
		case 0x8100, 0x88a8, 0x9100, 0x9200, 0x9300:
			if len(frame) < off+4 {
				typ = 0x0800 // ends inside the tag; both must say so
				continue
			}
			typ = binary.BigEndian.Uint16(frame[off+2:])
			off += 4
		}
	}
	r := p.ether(t, frame)
	if typ != 0x0800 && typ != 0x86dd {
		require.EqualValues(t, ethertype, r.Result, "%x", frame)
		return false
	}
	return p.check(t, packet.LinkEthernet, frame, &r)
}

func (p *parser) check(t testing.TB, link packet.LinkType, frame []byte, r *result) (both bool) {
	t.Helper()
	var in packet.Info
	v := (&packet.Parser{}).Parse(link, frame, uint32(len(frame)), &in)
	if r.Result == deep {
		return false // there is a test of its own
	}
	icmp := in.Protocol == packet.ProtoICMP || in.Protocol == packet.ProtoICMPv6
	if v == packet.TruncatedL4 && icmp {
		require.EqualValues(t, parsed, r.Result, "an ICMP header is nothing to the C parser: %x", frame)
		return false
	}
	require.Equal(t, v == packet.OK, r.Result == parsed, "Go says %s, C says %d: %x", v, r.Result, frame)
	if v != packet.OK {
		require.Zero(t, r.Hash)
		return false
	}
	require.Equal(t, in.IPVersion, r.Version, "%x", frame)
	require.Equal(t, in.Protocol, r.Protocol, "%x", frame)
	require.Equal(t, in.Src, r.Src, "%x", frame)
	require.Equal(t, in.Dst, r.Dst, "%x", frame)
	require.Equal(t, in.Flags&packet.FlagFragment != 0, r.Flags&pktFragment != 0, "%x", frame)
	sport, dport := binary.BigEndian.Uint16(r.Sport[:]), binary.BigEndian.Uint16(r.Dport[:])
	if !icmp { // whose numbers are not ports here
		require.Equal(t, in.SrcPort, sport, "%x", frame)
		require.Equal(t, in.DstPort, dport, "%x", frame)
	}
	src, dst := r.addr(r.Src), r.addr(r.Dst)
	want := p.hash.Addrs(src, dst)
	if r.Flags&pktPorts != 0 && r.Flags&pktFragment == 0 {
		want = p.hash.Flow(netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport))
	}
	require.Equal(t, want, r.Hash, "%x", frame)
	return true
}

// random makes frames that are mostly right.
type random struct{ *rand.Rand }

func (r random) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (r random) l4() (proto byte, b []byte) {
	proto = []byte{6, 6, 17, 17, 132, 1, 58, 47, 50, 59, byte(r.Uint32())}[r.IntN(11)]
	b = r.bytes(20 + r.IntN(60))
	switch proto {
	case 6:
		b[12] = byte(5+r.IntN(4)) << 4
	case 17:
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	}
	return proto, b
}

func (r random) ip4() []byte {
	proto, l4 := r.l4()
	options := r.IntN(3) * 4 * r.IntN(3)
	h := append([]byte{0x45 + byte(options/4)}, r.bytes(19+options)...)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(l4)))
	binary.BigEndian.PutUint16(h[6:], []uint16{0, 0x4000, 0, 0x2000, 0x2010, 0x0007, 0x8000}[r.IntN(7)])
	h[9] = proto
	return append(h, l4...)
}

func (r random) ip6() []byte {
	next, b := r.l4()
	for range r.IntN(4) * r.IntN(4) {
		kind := []byte{0, 43, 60, 51, 44}[r.IntN(5)]
		var e []byte
		switch kind {
		case 44:
			e = r.bytes(8)
			binary.BigEndian.PutUint16(e[2:], []uint16{0, 1, 8, 9, 6}[r.IntN(5)])
		case 51:
			n := r.IntN(4)
			e = append([]byte{0, byte(n)}, r.bytes((n+2)*4-2)...)
		default:
			n := r.IntN(3)
			e = append([]byte{0, byte(n)}, r.bytes((n+1)*8-2)...)
		}
		e[0] = next
		next, b = kind, append(e, b...)
	}
	h := append([]byte{0x60}, r.bytes(39)...)
	binary.BigEndian.PutUint16(h[4:], uint16(len(b)))
	h[6] = next
	return append(h, b...)
}

func (r random) ip() (typ uint16, b []byte) {
	if r.IntN(2) == 0 {
		return 0x0800, r.ip4()
	}
	return 0x86dd, r.ip6()
}

func (r random) frame() []byte {
	typ, b := r.ip()
	if r.IntN(30) == 0 {
		typ = uint16(r.Uint32())
	}
	f := r.bytes(12)
	for range r.IntN(4) * r.IntN(2) {
		f = binary.BigEndian.AppendUint16(f, []uint16{0x8100, 0x88a8, 0x9100, 0x9200, 0x9300}[r.IntN(5)])
		f = append(f, r.bytes(2)...)
	}
	f = append(binary.BigEndian.AppendUint16(f, typ), b...)
	return r.damage(f)
}

// damage changes a few bytes of some frames, cuts some, pads some.
func (r random) damage(f []byte) []byte {
	if r.IntN(3) == 0 {
		for range 1 + r.IntN(3) {
			f[12+r.IntN(min(len(f)-12, 60))] = byte(r.Uint32())
		}
	}
	switch r.IntN(6) {
	case 0:
		f = f[:14+r.IntN(len(f)-13)]
	case 1:
		f = append(f, r.bytes(r.IntN(20))...)
	}
	return f
}

func TestFuzzedFramesParseAsInGoAndHashAsToeplitz(t *testing.T) {
	p := newParser(t)
	r := random{rand.New(rand.NewPCG(4, 2))}
	n := 100_000
	if testing.Short() {
		n /= 10
	}
	both := 0
	for range n {
		if p.compare(t, r.frame()) {
			both++
		}
	}
	t.Logf("%d frames, %d understood by both", n, both)
	require.Greater(t, both, n/2, "the frames are too broken to test much")
}

func TestFuzzedPacketsWithoutMACHeaderParseAsInGo(t *testing.T) {
	p := newParser(t)
	r := random{rand.New(rand.NewPCG(7, 2))}
	both := 0
	for range 20_000 {
		_, b := r.ip()
		if b = r.damage(b); len(b) < 14 {
			continue
		}
		got := p.run(t, p.ParseSkbIp, b)
		if p.check(t, packet.LinkRaw, b, &got) {
			both++
		}
	}
	require.Greater(t, both, 10_000)
}

func FuzzParser(f *testing.F) {
	r := random{rand.New(rand.NewPCG(1, 1))}
	for range 50 {
		f.Add(r.frame())
	}
	p := newParser(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) >= 14 && len(frame) <= 3520 {
			p.compare(t, frame)
		}
	})
}

// mac is an Ethernet header without its type.
var mac = []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}

func cat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func ip4(proto byte, frag uint16, l4 []byte) []byte {
	h := []byte{0x45, 0, 0, 0, 0, 7, 0, 0, 64, proto, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80}
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(l4)))
	binary.BigEndian.PutUint16(h[6:], frag)
	return append(h, l4...)
}

func ip6(next byte, b []byte) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(b)))
	src, dst := netip.MustParseAddr("3ffe:2501:200:1fff::7").As16(), netip.MustParseAddr("3ffe:2501:200:3::1").As16()
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	return append(h, b...)
}

// ports is a transport header with the ports of the published vectors.
func ports(n int) []byte {
	b := make([]byte, n)
	binary.BigEndian.PutUint16(b, 2794)
	binary.BigEndian.PutUint16(b[2:], 1766)
	if n >= 20 {
		b[12] = 0x50
	}
	return b
}

var (
	type4 = []byte{0x08, 0x00}
	type6 = []byte{0x86, 0xdd}
)

func TestEveryCaseOfTheParser(t *testing.T) {
	const (
		l4hash4 = 0x9fcc9fcc // published, both directions
		l4hash6 = 0x13eb13eb
	)
	hash := toeplitz.New(toeplitz.Symmetric)
	addr4 := hash.Addrs(netip.MustParseAddr("66.9.149.187"), netip.MustParseAddr("161.142.100.80"))
	addr6 := hash.Addrs(netip.MustParseAddr("3ffe:2501:200:1fff::7"), netip.MustParseAddr("3ffe:2501:200:3::1"))
	tag := func(typ ...byte) []byte { return append(typ, 0, 5) }
	ext := func(next byte, units byte) []byte {
		return append([]byte{next, units}, make([]byte, int(units+1)*8-2)...)
	}
	frag6 := func(next byte, off uint16) []byte { return []byte{next, 0, byte(off >> 8), byte(off), 0, 0, 0, 9} }
	deepest, next := ports(20), byte(6)
	for range 8 {
		deepest, next = append(ext(next, 0), deepest...), 60
	}
	tooDeep := append(ext(60, 0), deepest...)

	p := newParser(t)
	for _, c := range []struct {
		name   string
		frame  []byte
		result uint32
		hash   uint32
		flags  uint8
		l4     uint32
	}{
		{"TCP over IPv4", cat(mac, type4, ip4(6, 0, ports(20))), parsed, l4hash4, pktPorts, 34},
		{"UDP over IPv4", cat(mac, type4, ip4(17, 0, ports(8))), parsed, l4hash4, pktPorts, 34},
		{"SCTP over IPv4", cat(mac, type4, ip4(132, 0, ports(12))), parsed, l4hash4, pktPorts, 34},
		{"TCP over IPv6", cat(mac, type6, ip6(6, ports(20))), parsed, l4hash6, pktPorts, 54},
		{"UDP over IPv6", cat(mac, type6, ip6(17, ports(8))), parsed, l4hash6, pktPorts, 54},
		{"ICMP has no ports", cat(mac, type4, ip4(1, 0, ports(8))), parsed, addr4, 0, 34},
		{"ESP has no ports", cat(mac, type4, ip4(50, 0, ports(8))), parsed, addr4, 0, 34},
		{"a tag", cat(mac, tag(0x81, 0), type4, ip4(6, 0, ports(20))), parsed, l4hash4, pktPorts, 38},
		{"two tags", cat(mac, tag(0x88, 0xa8), tag(0x81, 0), type6, ip6(6, ports(20))), parsed, l4hash6, pktPorts, 62},
		{"three tags are not understood", cat(mac, tag(0x88, 0xa8), tag(0x81, 0), tag(0x81, 0), type4, ip4(6, 0, ports(20))), ethertype, 0, 0, 0},
		{"a tag and no more", cat(mac, tag(0x81, 0)), short, 0, 0, 0},
		{"ARP", cat(mac, []byte{8, 6}, make([]byte, 28)), ethertype, 0, 0, 0},
		{"MPLS", cat(mac, []byte{0x88, 0x47, 0, 0, 1, 64}, ip4(6, 0, ports(20))), ethertype, 0, 0, 0},
		{"a first fragment is hashed without ports", cat(mac, type4, ip4(17, 0x2000, ports(8))), parsed, addr4, pktPorts | pktFragment, 34},
		{"a later fragment has none", cat(mac, type4, ip4(17, 0x2001, ports(8))), parsed, addr4, pktFragment, 34},
		{"the last fragment", cat(mac, type4, ip4(17, 0x0001, ports(8))), parsed, addr4, pktFragment, 34},
		{"a first fragment of 8 bytes of TCP", cat(mac, type4, ip4(6, 0x2000, ports(8))), parsed, addr4, pktPorts | pktFragment, 34},
		{"TCP of 8 bytes", cat(mac, type4, ip4(6, 0, ports(8))), short, 0, 0, 34},
		{"UDP of 4 bytes", cat(mac, type4, ip4(17, 0, ports(4))), short, 0, 0, 34},
		{"IPv6: a first fragment", cat(mac, type6, ip6(44, cat(frag6(17, 1), ports(8)))), parsed, addr6, pktPorts | pktFragment, 62},
		{"IPv6: a later fragment", cat(mac, type6, ip6(44, cat(frag6(17, 9), ports(8)))), parsed, addr6, pktFragment, 62},
		{"IPv6: a fragment header without fragment", cat(mac, type6, ip6(44, cat(frag6(17, 0), ports(8)))), parsed, l4hash6, pktPorts, 62},
		{"IPv6: hop-by-hop, routing, options", cat(mac, type6, ip6(0, cat(ext(43, 0), ext(60, 2), ext(6, 0), ports(20)))), parsed, l4hash6, pktPorts, 94},
		{"IPv6: authentication", cat(mac, type6, ip6(51, cat([]byte{6, 4}, make([]byte, 22), ports(20)))), parsed, l4hash6, pktPorts, 78},
		{"IPv6: eight extension headers", cat(mac, type6, ip6(60, deepest)), parsed, l4hash6, pktPorts, 118},
		{"IPv6: nine are not understood", cat(mac, type6, ip6(60, tooDeep)), deep, 0, 0, 0},
		{"IPv6: an extension header past the end", cat(mac, type6, ip6(60, ext(6, 0)[:6])), short, 0, 0, 0},
		{"IPv6: no next header", cat(mac, type6, ip6(59, nil)), parsed, addr6, 0, 54},
		{"IPv6: of 39 bytes", cat(mac, type6, ip6(6, nil)[:39]), short, 0, 0, 0},
		{"IPv4: of 19 bytes", cat(mac, type4, ip4(6, 0, nil)[:19]), short, 0, 0, 0},
		{"IPv4 that is IPv6", cat(mac, type4, ip6(6, ports(20))), badIP, 0, 0, 0},
		{"IPv6 that is IPv4", cat(mac, type6, ip4(6, 0, ports(40))), badIP, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := p.ether(t, c.frame)
			require.EqualValues(t, c.result, r.Result)
			require.EqualValues(t, c.hash, r.Hash, "%08x", r.Hash)
			if r.Result == parsed {
				require.Equal(t, c.flags, r.Flags)
				require.EqualValues(t, c.l4, r.L4)
			}
			p.compare(t, c.frame)
		})
	}

	broken := func(change func(ip []byte)) []byte {
		ip := ip4(6, 0, ports(20))
		change(ip)
		return cat(mac, type4, ip)
	}
	for name, c := range map[string]struct {
		frame  []byte
		result uint32
	}{
		"a header of 16 bytes":                          {broken(func(ip []byte) { ip[0] = 0x44 }), badIP},
		"options past the end":                          {broken(func(ip []byte) { ip[0] = 0x4f }), badIP},
		"total length below the header":                 {broken(func(ip []byte) { ip[3] = 19 }), badIP},
		"total length cuts the TCP header":              {broken(func(ip []byte) { ip[3] = 39 }), short},
		"total length 0 is left to the card":            {broken(func(ip []byte) { ip[3] = 0 }), parsed},
		"total length above the frame is that of frame": {broken(func(ip []byte) { ip[2] = 9 }), parsed},
	} {
		t.Run(name, func(t *testing.T) {
			require.EqualValues(t, c.result, p.ether(t, c.frame).Result)
			p.compare(t, c.frame)
		})
	}
}

// A large total length of 0 (BIG TCP) gives the end of the frame, an IPv6 jumbo too.
func TestTheEndOfAPacketWhoseLengthIsLeftToTheCard(t *testing.T) {
	p := newParser(t)
	ip := ip4(6, 0, ports(100))
	ip[2], ip[3] = 0, 0
	require.EqualValues(t, 14+len(ip), p.ether(t, cat(mac, type4, ip)).End)
	ip = ip6(6, ports(100))
	ip[4], ip[5] = 0, 0
	require.EqualValues(t, 14+len(ip), p.ether(t, cat(mac, type6, ip)).End)
	padded := cat(mac, type4, ip4(6, 0, ports(20)), make([]byte, 10))
	require.EqualValues(t, 54, p.ether(t, padded).End, "padding is not part of the packet")
}
