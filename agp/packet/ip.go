package packet

import "encoding/binary"

const (
	ipv4Header = 20
	ipv6Header = 40
)

// rawIP parses IP of the version that its first nibble gives.
func (p *Parser) rawIP(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) == 0 {
		return TruncatedL3
	}
	switch f[0] >> 4 {
	case 4:
		return p.ipv4(c, in)
	case 6:
		return p.ipv6(c, in)
	}
	return BadIPVersion
}

func (p *Parser) ipv4(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < ipv4Header {
		if len(f) > 0 && f[0]>>4 != 4 {
			return BadIPVersion
		}
		return TruncatedL3
	}
	if f[0]>>4 != 4 {
		return BadIPVersion
	}
	hdr := int(f[0]&0x0f) * 4
	if hdr < ipv4Header {
		return BadIPHeader
	}
	wire := c.lim - c.off
	l3 := int(binary.BigEndian.Uint16(f[2:]))
	switch {
	case l3 == 0: // the capturing host left segmentation to its network card
		l3 = wire
	case l3 < hdr:
		return BadIPLength
	case l3 > wire:
		l3 = wire
		in.Flags |= FlagBadLength
	}
	if l3 < hdr {
		return BadIPHeader
	}
	if len(f) < hdr {
		return TruncatedL3
	}
	in.IPVersion = 4
	in.L3Len = uint32(l3)
	in.Protocol = f[9]
	// Whole words: what reads them next reads words, and would wait for smaller stores.
	binary.LittleEndian.PutUint64(in.Src[:], uint64(binary.LittleEndian.Uint32(f[12:])))
	binary.LittleEndian.PutUint64(in.Dst[:], uint64(binary.LittleEndian.Uint32(f[16:])))
	in.FragmentID = uint32(binary.BigEndian.Uint16(f[4:]))
	c.lim = c.off + l3
	c.off += hdr
	if frag := binary.BigEndian.Uint16(f[6:]); frag&0x3fff != 0 {
		in.Flags |= FlagFragment
		if frag&0x1fff != 0 {
			in.Flags |= FlagFragmentLater
			return after(c, 0, in)
		}
	}
	return p.transport(c, in)
}

func (p *Parser) ipv6(c cursor, in *Info) Verdict {
	f := c.rest()
	if len(f) < ipv6Header {
		if len(f) > 0 && f[0]>>4 != 6 {
			return BadIPVersion
		}
		return TruncatedL3
	}
	if f[0]>>4 != 6 {
		return BadIPVersion
	}
	wire := c.lim - c.off
	if wire < ipv6Header {
		return BadIPHeader
	}
	l3 := ipv6Header + int(binary.BigEndian.Uint16(f[4:]))
	next := f[6]
	switch {
	case l3 == ipv6Header && next != ProtoNoNext: // a jumbogram, or segmentation left to the network card
		l3 = wire
	case l3 > wire:
		l3 = wire
		in.Flags |= FlagBadLength
	}
	in.IPVersion = 6
	in.L3Len = uint32(l3)
	in.Protocol = next
	copy(in.Src[:], f[8:24])
	copy(in.Dst[:], f[24:40])
	c.lim = c.off + l3
	c.off += ipv6Header
	if next == ProtoTCP || next == ProtoUDP {
		return p.transport(c, in)
	}
	return p.ipv6Extensions(c, in)
}

func (p *Parser) ipv6Extensions(c cursor, in *Info) Verdict {
	for range maxTags {
		f := c.rest()
		var n int
		switch in.Protocol {
		case ProtoHopByHop, ProtoRouting, ProtoDestOpts:
			if len(f) < 2 {
				return truncatedOrBad(c, 8)
			}
			n = (int(f[1]) + 1) * 8
		case ProtoAH:
			if len(f) < 2 {
				return truncatedOrBad(c, 8)
			}
			n = (int(f[1]) + 2) * 4
		case ProtoFragment:
			if c.off+8 > c.lim || len(f) < 8 {
				return truncatedOrBad(c, 8)
			}
			in.Protocol = f[0]
			frag := binary.BigEndian.Uint16(f[2:])
			c.off += 8
			if frag&^6 == 0 { // both offset and more-fragments are 0: a whole packet (RFC 6946)
				continue
			}
			in.FragmentID = binary.BigEndian.Uint32(f[4:])
			in.Flags |= FlagFragment
			if frag&^7 != 0 {
				in.Flags |= FlagFragmentLater
				return after(c, 0, in)
			}
			continue
		default:
			return p.transport(c, in)
		}
		if c.off+n > c.lim || len(f) < n {
			return truncatedOrBad(c, n)
		}
		in.Protocol = f[0]
		c.off += n
	}
	return TooManyHeaders
}

// truncatedOrBad says why an extension header of n bytes is not all there: the
// packet is shorter than it claims, or the capture was cut.
func truncatedOrBad(c cursor, n int) Verdict {
	if c.off+n > c.lim {
		return BadIPHeader
	}
	return TruncatedL3
}
