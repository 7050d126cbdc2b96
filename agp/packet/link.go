package packet

import "encoding/binary"

// Link types that Parse understands.
const (
	LinkNull       LinkType = 0   // BSD loopback, family in the capturing host's byte order
	LinkEthernet   LinkType = 1   //
	LinkPPP        LinkType = 9   //
	LinkFDDI       LinkType = 10  //
	LinkRawBSD     LinkType = 12  // raw IP as some hosts number it
	LinkRawOpenBSD LinkType = 14  //
	LinkPPPHDLC    LinkType = 50  // PPP in HDLC framing, or Cisco HDLC
	LinkPPPoE      LinkType = 51  // PPPoE session without Ethernet
	LinkATMRFC1483 LinkType = 100 // LLC/SNAP
	LinkRaw        LinkType = 101 // raw IP
	LinkCiscoHDLC  LinkType = 104 //
	LinkIEEE80211  LinkType = 105 //
	LinkLoop       LinkType = 108 // OpenBSD loopback, family in network order
	LinkLinuxSLL   LinkType = 113 // Linux cooked v1
	LinkPFLog      LinkType = 117 //
	LinkPrism      LinkType = 119 // 802.11 with a Prism header
	LinkRadiotap   LinkType = 127 // 802.11 with a radiotap header
	LinkAVS        LinkType = 163 // 802.11 with an AVS header
	LinkPPI        LinkType = 192 // per-packet information, then any link type
	LinkIPv4       LinkType = 228 //
	LinkIPv6       LinkType = 229 //
	LinkLinuxSLL2  LinkType = 276 // Linux cooked v2
)

const (
	etherHeader = 14
	// maxTags bounds nested VLAN tags, MPLS labels and the like: far more than any
	// network uses, few enough that a crafted frame costs next to nothing.
	maxTags = 16
	// maxTunnels bounds the tunnels opened inside one another.
	maxTunnels = 4
)

// Ethernet types.
const (
	etIPv4      = 0x0800
	etARP       = 0x0806
	etVNTag     = 0x8926
	etTEB       = 0x6558 // an Ethernet frame
	etRARP      = 0x8035
	etVLAN      = 0x8100
	etIPX       = 0x8137
	etIPv6      = 0x86dd
	etSlow      = 0x8809
	etPPP       = 0x880b
	etMPLS      = 0x8847
	etMPLSMulti = 0x8848
	etPPPoEDisc = 0x8863
	etPPPoE     = 0x8864
	etEAPOL     = 0x888e
	etQinQ      = 0x88a8
	etERSPAN2   = 0x88be
	etLLDP      = 0x88cc
	etMACsec    = 0x88e5
	etPBB       = 0x88e7
	etPTP       = 0x88f7
	etCTP       = 0x9000
	etQinQ1     = 0x9100
	etQinQ2     = 0x9200
	etQinQ3     = 0x9300
	etERSPAN3   = 0x22eb
	etMinType   = 0x0600 // below: an 802.3 length
)

// Parser parses frames. The zero value opens no tunnel.
type Parser struct {
	Decap Decap
}

// Parse reads one frame. wireLen is the frame's length on the wire; a value
// below len(frame) is taken as len(frame). It overwrites all of in but
// TimestampNs, whatever the verdict; unless the verdict is OK only WireLen and
// the flag FlagTruncated mean something.
func (p *Parser) Parse(link LinkType, frame []byte, wireLen uint32, in *Info) Verdict {
	if uint64(wireLen) < uint64(len(frame)) {
		wireLen = uint32(len(frame))
	}
	*in = Info{TimestampNs: in.TimestampNs, WireLen: wireLen}
	if uint64(wireLen) > uint64(len(frame)) {
		in.Flags = FlagTruncated
	}
	if len(frame) == 0 {
		return EmptyFrame
	}
	c := cursor{f: frame, lim: int(min(wireLen, 1<<30))}
	if link == LinkEthernet {
		return p.ether(c, in)
	}
	return p.link(link, c, in)
}

// cursor is a place in a frame. The bytes at off and after are not read yet.
type cursor struct {
	f      []byte
	off    int // <= len(f)
	lim    int // where the enclosing layer ends on the wire, seen from the start of f
	tunnel int // tunnels opened so far
	tags   int // tags, labels and bridged frames since the innermost tunnel
}

// rest returns the captured bytes that are not read yet.
func (c *cursor) rest() []byte { return c.f[c.off:] }

// has reports whether n more bytes were captured.
func (c *cursor) has(n int) bool { return len(c.f)-c.off >= n }

// skip returns the place n bytes further on, which has() has confirmed.
func (c cursor) skip(n int) cursor {
	c.off += n
	return c
}

func (p *Parser) link(link LinkType, c cursor, in *Info) Verdict {
	f := c.rest()
	switch link {
	case LinkEthernet:
		return p.ether(c, in)
	case LinkRaw, LinkRawBSD, LinkRawOpenBSD:
		return p.rawIP(c, in)
	case LinkIPv4:
		return p.ipv4(c, in)
	case LinkIPv6:
		return p.ipv6(c, in)
	case LinkLinuxSLL:
		return p.linuxSLL(c, in)
	case LinkLinuxSLL2:
		if len(f) < 20 {
			return TruncatedL2
		}
		return p.cooked(binary.BigEndian.Uint16(f), binary.BigEndian.Uint16(f[8:]), c.skip(20), in)
	case LinkNull, LinkLoop:
		if len(f) < 4 {
			return TruncatedL2
		}
		// The family is a small number in an unknown byte order.
		family := binary.LittleEndian.Uint32(f)
		if family > 0xffff {
			family = binary.BigEndian.Uint32(f)
		}
		return p.family(family, c.skip(4), in)
	case LinkPPP, LinkPPPHDLC:
		if len(f) >= 4 && (f[0] == 0x0f || f[0] == 0x8f) && f[1] == 0 {
			return p.ciscoHDLC(c, in) // libpcap's PPP also holds frames of a port that speaks Cisco HDLC
		}
		return p.ppp(c, in)
	case LinkCiscoHDLC:
		return p.ciscoHDLC(c, in)
	case LinkPPPoE:
		return p.pppoe(c, in)
	case LinkFDDI:
		if len(f) < 13 {
			return TruncatedL2
		}
		if f[0]&0xf0 != 0x50 { // not an LLC frame: token, station management
			return NonIPOther
		}
		return p.llc(c.skip(13), in)
	case LinkATMRFC1483:
		return p.llc(c, in)
	case LinkPFLog:
		return p.pflog(c, in)
	case LinkIEEE80211:
		return p.ieee80211(c, false, in)
	case LinkRadiotap:
		return p.radiotap(c, in)
	case LinkPrism:
		return p.prism(c, in)
	case LinkAVS:
		return p.avs(c, in)
	case LinkPPI:
		return p.ppi(c, in)
	}
	return UnknownLinkType
}

// Known reports whether Parse has a decoder for the link type.
func (l LinkType) Known() bool {
	switch l {
	case LinkNull, LinkEthernet, LinkPPP, LinkFDDI, LinkRawBSD, LinkRawOpenBSD, LinkPPPHDLC, LinkPPPoE,
		LinkATMRFC1483, LinkRaw, LinkCiscoHDLC, LinkIEEE80211, LinkLoop, LinkLinuxSLL, LinkPFLog, LinkPrism,
		LinkRadiotap, LinkAVS, LinkPPI, LinkIPv4, LinkIPv6, LinkLinuxSLL2:
		return true
	}
	return false
}

func (p *Parser) ether(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < etherHeader {
		return TruncatedL2
	}
	typ := uint16(f[12])<<8 | uint16(f[13])
	c.off += etherHeader
	switch typ {
	case etIPv4:
		return p.ipv4(c, in)
	case etIPv6:
		return p.ipv6(c, in)
	}
	return p.etherType(typ, c, in)
}

// etherType dispatches on an Ethernet type (or, below etMinType, an 802.3
// length) whose payload starts at c.
func (p *Parser) etherType(typ uint16, c cursor, in *Info) Verdict {
	for ; c.tags < maxTags; c.tags++ {
		f := c.rest()
		switch typ {
		case etIPv4:
			return p.ipv4(c, in)
		case etIPv6:
			return p.ipv6(c, in)
		case etVLAN, etQinQ, etQinQ1, etQinQ2, etQinQ3:
			if len(f) < 4 {
				return TruncatedL2
			}
			if in.VLAN == 0 { // a priority tag (id 0) does not hide the id behind it
				in.VLAN = binary.BigEndian.Uint16(f) & 0x0fff
			}
			typ = binary.BigEndian.Uint16(f[2:])
			c.off += 4
		case etVNTag:
			if len(f) < 6 {
				return TruncatedL2
			}
			typ = binary.BigEndian.Uint16(f[4:])
			c.off += 6
		case etPBB: // 4 bytes of service tag, then an Ethernet frame
			if len(f) < 4+etherHeader {
				return TruncatedL2
			}
			typ = binary.BigEndian.Uint16(f[4+12:])
			c.off += 4 + etherHeader
		case etTEB:
			if len(f) < etherHeader {
				return TruncatedL2
			}
			typ = binary.BigEndian.Uint16(f[12:])
			c.off += etherHeader
		case etMPLS, etMPLSMulti:
			return p.mpls(c, in)
		case etPPPoE:
			return p.pppoe(c, in)
		default:
			if typ < etMinType {
				c.tags++ // bridged frames nest too
				return p.llc(c, in)
			}
			return nonIP(typ)
		}
	}
	return TooManyHeaders
}

// nonIP names an Ethernet type that does not lead to IP.
func nonIP(typ uint16) Verdict {
	switch typ {
	case etARP, etRARP:
		return NonIPARP
	case etLLDP:
		return NonIPLLDP
	case etIPX:
		return NonIPIPX
	case etSlow:
		return NonIPLACP
	case etPPPoEDisc:
		return NonIPPPPoE
	case etEAPOL:
		return NonIPEAPOL
	case etMACsec:
		return NonIPMACsec
	case etPTP:
		return NonIPPTP
	case etCTP:
		return NonIPCTP
	}
	return NonIPOther
}

// llc parses an 802.2 header and, if it is SNAP, what follows.
func (p *Parser) llc(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 3 {
		return TruncatedL2
	}
	switch {
	case f[0] == 0xaa && f[1] == 0xaa && f[2] == 0x03:
		return p.snap(c.skip(3), in)
	case f[0] == 0x42 && f[1] == 0x42:
		return NonIPSTP
	case f[0] == 0xfe && f[1] == 0xfe:
		if len(f) >= 4 && f[3] == 0xcc { // routed IPv4 behind an OSI network-layer id (RFC 1483)
			return p.ipv4(c.skip(4), in)
		}
		return NonIPISIS
	case f[0] == 0x06 && f[1] == 0x06 && f[2] == 0x03: // IP's own service access point
		return p.ipv4(c.skip(3), in)
	case f[0] == 0xe0 || f[0] == 0xff && f[1] == 0xff:
		return NonIPIPX
	}
	return NonIPLLC
}

func (p *Parser) snap(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 5 {
		return TruncatedL2
	}
	oui := uint32(f[0])<<16 | uint32(f[1])<<8 | uint32(f[2])
	pid := binary.BigEndian.Uint16(f[3:])
	switch oui {
	case 0, 0x0000f8: // Ethernet types; 0000f8 is 802.1H bridging
		if pid < etMinType {
			return NonIPLLC
		}
		return p.etherType(pid, c.skip(5), in)
	case 0x00000c: // Cisco
		switch pid {
		case 0x2000:
			return NonIPCDP
		case 0x010b:
			return NonIPSTP
		}
	case 0x0080c2: // bridged frames (RFC 2684); 2 bytes of padding before Ethernet
		switch pid {
		case 0x0001, 0x0007:
			if len(f) < 7 {
				return TruncatedL2
			}
			return p.ether(c.skip(7), in)
		case 0x000d, 0x000e:
			return NonIPSTP
		}
	}
	return NonIPLLC
}

// mpls parses a label stack. What it carries is not written in it: the reserved
// labels and the first nibble tell (RFC 4928), Ethernet by its own type.
func (p *Parser) mpls(c cursor, in *Info) Verdict {
	for ; c.tags < maxTags; c.tags++ {
		f := c.rest()
		if len(f) < 4 {
			return TruncatedL2
		}
		entry := binary.BigEndian.Uint32(f)
		c.off += 4
		if entry&0x100 == 0 {
			continue
		}
		c.tags++ // frames in it nest too
		return p.mplsPayload(entry>>12, c, in)
	}
	return TooManyHeaders
}

func (p *Parser) mplsPayload(label uint32, c cursor, in *Info) Verdict {
	switch label {
	case 0:
		return p.ipv4(c, in)
	case 2:
		return p.ipv6(c, in)
	}
	f := c.rest()
	if len(f) == 0 {
		return TruncatedL2
	}
	switch f[0] >> 4 {
	case 4:
		// A MAC address may begin with 4 or 6 too; then the IP length is most likely absurd.
		if f[0]&0x0f >= 5 && !(looksEther(f) && int(binary.BigEndian.Uint16(f[2:])) > c.lim-c.off) {
			return p.ipv4(c, in)
		}
	case 6:
		if !(looksEther(f) && ipv6Header+int(binary.BigEndian.Uint16(f[4:])) > c.lim-c.off) {
			return p.ipv6(c, in)
		}
	case 0: // control word of a pseudo-wire
		if len(f) >= 4+etherHeader && looksEther(f[4:]) {
			return p.ether(c.skip(4), in)
		}
	case 1: // associated channel: OAM
		if !looksEther(f) {
			return NonIPMPLS
		}
	}
	if looksEther(f) {
		return p.ether(c, in)
	}
	return NonIPMPLS
}

// looksEther reports whether f may be an Ethernet frame with a type that matters here.
func looksEther(f []byte) bool {
	if len(f) < etherHeader {
		return false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case etIPv4, etIPv6, etARP, etVLAN, etQinQ, etMPLS, etPPPoE, etLLDP:
		return true
	}
	return false
}

func (p *Parser) pppoe(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 6 {
		return TruncatedL2
	}
	if f[0] != 0x11 {
		return BadL2Header
	}
	if f[1] != 0 { // a discovery code
		return NonIPPPPoE
	}
	return p.ppp(c.skip(6), in)
}

// ppp parses PPP with or without address and control, protocol field compressed or not.
func (p *Parser) ppp(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) >= 2 && f[0] == 0xff && f[1] == 0x03 {
		c.off += 2
		f = c.rest()
	}
	if len(f) < 1 {
		return TruncatedL2
	}
	proto := uint16(f[0])
	c.off++
	if proto&1 == 0 {
		if len(f) < 2 {
			return TruncatedL2
		}
		proto = proto<<8 | uint16(f[1])
		c.off++
	}
	switch proto {
	case 0x0021:
		return p.ipv4(c, in)
	case 0x0057:
		return p.ipv6(c, in)
	case 0x0281, 0x0283:
		return p.mpls(c, in)
	}
	return NonIPPPP
}

func (p *Parser) ciscoHDLC(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 4 {
		return TruncatedL2
	}
	typ := binary.BigEndian.Uint16(f[2:])
	if typ < etMinType {
		return NonIPOther
	}
	return p.etherType(typ, c.skip(4), in)
}

func (p *Parser) linuxSLL(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 16 {
		return TruncatedL2
	}
	return p.cooked(binary.BigEndian.Uint16(f[14:]), binary.BigEndian.Uint16(f[2:]), c.skip(16), in)
}

// cooked dispatches on the protocol of a Linux cooked header; below etMinType
// the numbers are Linux's own.
func (p *Parser) cooked(proto, arphrd uint16, c cursor, in *Info) Verdict {
	const netlink = 824
	if arphrd == netlink {
		return NonIPOther
	}
	if proto >= etMinType {
		return p.etherType(proto, c, in)
	}
	switch proto {
	case 0x0001: // Novell's raw 802.3
		return NonIPIPX
	case 0x0003:
		return p.ether(c, in)
	case 0x0004:
		return p.llc(c, in)
	case 0x0007, 0x0008: // PPP
		return p.ppp(c, in)
	}
	return NonIPOther
}

// family dispatches on a protocol family; IPv6's number differs between systems.
func (p *Parser) family(family uint32, c cursor, in *Info) Verdict {
	switch family {
	case 2:
		return p.ipv4(c, in)
	case 10, 23, 24, 28, 30:
		return p.ipv6(c, in)
	case 7:
		return NonIPISIS
	}
	return NonIPOther
}

func (p *Parser) pflog(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 2 {
		return TruncatedL2
	}
	n := (int(f[0]) + 3) &^ 3 // the length leaves the padding out
	if n < 48 {
		return BadL2Header
	}
	if len(f) < n {
		return TruncatedL2
	}
	return p.family(uint32(f[1]), c.skip(n), in)
}

func (p *Parser) prism(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 8 {
		return TruncatedL2
	}
	if binary.BigEndian.Uint32(f)&^0xfff == 0x80211000 { // an AVS header under Prism's number
		return p.avs(c, in)
	}
	n := binary.LittleEndian.Uint32(f[4:])
	if n < 24 {
		return BadL2Header
	}
	if uint64(n) > uint64(len(f)) {
		return TruncatedL2
	}
	return p.ieee80211(c.skip(int(n)), false, in)
}

func (p *Parser) avs(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 8 {
		return TruncatedL2
	}
	n := binary.BigEndian.Uint32(f[4:])
	if n < 8 {
		return BadL2Header
	}
	if uint64(n) > uint64(len(f)) {
		return TruncatedL2
	}
	return p.ieee80211(c.skip(int(n)), false, in)
}

func (p *Parser) radiotap(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 8 {
		return TruncatedL2
	}
	n := int(binary.LittleEndian.Uint16(f[2:]))
	if n < 8 {
		return BadL2Header
	}
	if len(f) < n {
		return TruncatedL2
	}
	// The flags say whether the 802.11 header is padded to 4 bytes. They come
	// after all presence words and an 8-byte aligned timer.
	present := binary.LittleEndian.Uint32(f[4:])
	off := 8
	for word := present; word&(1<<31) != 0; off += 4 {
		if off+4 > n {
			return BadL2Header
		}
		word = binary.LittleEndian.Uint32(f[off:])
	}
	padded := false
	if present&2 != 0 {
		if present&1 != 0 {
			off = (off+7)&^7 + 8
		}
		if off >= n {
			return BadL2Header
		}
		padded = f[off]&0x20 != 0
	}
	return p.ieee80211(c.skip(n), padded, in)
}

// ieee80211 parses an 802.11 data frame. Of an aggregate (A-MSDU) the first
// packet is read. padded says that the header is filled up to 4 bytes.
func (p *Parser) ieee80211(c cursor, padded bool, in *Info) Verdict {
	f := c.rest()
	if len(f) < 2 {
		return TruncatedL2
	}
	const (
		typeMask, typeData = 0x0c, 0x08
		noData, qos        = 0x40, 0x80
		toDS, fromDS       = 0x01, 0x02
		protected, order   = 0x40, 0x80
	)
	if f[0]&3 != 0 { // protocol version
		return BadL2Header
	}
	if f[0]&typeMask != typeData || f[0]&noData != 0 {
		return NonIP80211
	}
	if f[1]&protected != 0 {
		return NonIP80211Encrypted
	}
	n := 24
	if f[1]&toDS != 0 && f[1]&fromDS != 0 {
		n += 6
	}
	aggregate := false
	if f[0]&qos != 0 {
		if len(f) < n+2 {
			return TruncatedL2
		}
		aggregate = f[n]&0x80 != 0
		n += 2
		if f[1]&order != 0 {
			n += 4
		}
	}
	if padded {
		n = (n + 3) &^ 3
	}
	if aggregate {
		n += 14 // destination, source, length of the first packet
	}
	if len(f) < n {
		return TruncatedL2
	}
	if f[22]&0x0f != 0 {
		return NonIP80211 // a later fragment of an 802.11 frame: no header of its own
	}
	return p.llc(c.skip(n), in)
}

func (p *Parser) ppi(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < 8 {
		return TruncatedL2
	}
	n := int(binary.LittleEndian.Uint16(f[2:]))
	if f[0] != 0 || n < 8 {
		return BadL2Header
	}
	if len(f) < n {
		return TruncatedL2
	}
	link := LinkType(binary.LittleEndian.Uint32(f[4:]))
	if link == LinkPPI { // would nest without bound
		return BadL2Header
	}
	return p.link(link, c.skip(n), in)
}
