package packet

import "encoding/binary"

const (
	tcpHeader  = 20
	udpHeader  = 8
	sctpHeader = 12
	icmpHeader = 8
)

// after notes that the payload starts n bytes after c and ends with the IP packet,
// as far as the packet and the capture reach.
func after(c cursor, n int, in *Info) Verdict {
	start := min(c.off+n, c.lim)
	at := min(start, len(c.f)) // the capture may end inside the transport header
	in.PayloadLen = uint32(c.lim - start)
	in.PayloadOff = uint32(at)
	in.PayloadCap = uint32(min(c.lim-start, len(c.f)-at))
	return OK
}

// transport parses the upper layer, whose protocol in already names.
func (p *Parser) transport(c cursor, in *Info) Verdict {
	f := c.rest()
	l4 := c.lim - c.off // bytes of the IP packet that were on the wire
	switch in.Protocol {
	case ProtoTCP:
		if len(f) < tcpHeader || l4 < tcpHeader {
			return tinyFragment(c, in)
		}
		in.SrcPort = binary.BigEndian.Uint16(f)
		in.DstPort = binary.BigEndian.Uint16(f[2:])
		in.Seq = binary.BigEndian.Uint32(f[4:])
		in.Ack = binary.BigEndian.Uint32(f[8:])
		in.TCPFlags = f[13]
		in.Window = binary.BigEndian.Uint16(f[14:])
		hdr := int(f[12]>>4) * 4
		if hdr < tcpHeader || hdr > l4 {
			in.Flags |= FlagBadLength
			hdr = max(tcpHeader, min(hdr, l4))
		}
		return after(c, hdr, in)
	case ProtoUDP:
		if len(f) < 4 || l4 < udpHeader {
			return TruncatedL4
		}
		in.SrcPort = binary.BigEndian.Uint16(f)
		in.DstPort = binary.BigEndian.Uint16(f[2:])
		if len(f) >= 6 && in.Flags&FlagFragment == 0 {
			// In a fragment the length is that of the whole datagram. 0 stands for
			// a length that does not fit, or segmentation left to the network card.
			n := int(binary.BigEndian.Uint16(f[4:]))
			switch {
			case n == 0 || n == l4:
			case n < udpHeader || n > l4:
				in.Flags |= FlagBadLength
			default:
				c.lim = c.off + n
			}
		}
		if p.Decap != (Decap{}) && in.Flags&FlagFragment == 0 && len(f) >= udpHeader {
			if v, opened := p.udpTunnel(c.skip(udpHeader), in); opened {
				return v
			}
		}
		return after(c, udpHeader, in)
	case ProtoICMP, ProtoICMPv6:
		return icmp(c, in)
	case ProtoSCTP:
		if len(f) < 4 || l4 < sctpHeader {
			return TruncatedL4
		}
		in.SrcPort = binary.BigEndian.Uint16(f)
		in.DstPort = binary.BigEndian.Uint16(f[2:])
		return after(c, sctpHeader, in)
	case ProtoGRE:
		if p.Decap.GRE && in.Flags&FlagFragment == 0 {
			if v, opened := p.greTunnel(c, in); opened {
				return v
			}
		}
	}
	return after(c, 0, in)
}

// tinyFragment handles a TCP header that is not all there: a first fragment that
// splits it still names its flow. Anything else would be a packet without flags,
// which is worse than one that is counted as dropped.
func tinyFragment(c cursor, in *Info) Verdict {
	f := c.rest()
	if in.Flags&FlagFragment == 0 || len(f) < 4 || c.lim-c.off < 4 {
		return TruncatedL4
	}
	in.SrcPort = binary.BigEndian.Uint16(f)
	in.DstPort = binary.BigEndian.Uint16(f[2:])
	return after(c, tcpHeader, in)
}

func icmp(c cursor, in *Info) Verdict {
	f := c.rest()
	l4 := c.lim - c.off
	if len(f) < 2 || l4 < 4 {
		return TruncatedL4
	}
	var id uint16
	if request, reply := icmpQuery(in.Protocol, f[0]); request != 0 || reply {
		if len(f) < 6 || l4 < 6 {
			return TruncatedL4
		}
		id = binary.BigEndian.Uint16(f[4:])
	}
	in.SrcPort, in.DstPort = ICMPPorts(in.Protocol, f[0], f[1], id)
	return after(c, icmpHeader, in)
}
