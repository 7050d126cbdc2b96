package packet

import "encoding/binary"

// UDP destination ports of tunnels.
const (
	portVXLAN      = 4789
	portVXLANLinux = 8472 // Linux's default from before the assignment
	portVXLANGPE   = 4790
	portGeneve     = 6081
	portGTPU       = 2152
)

// open parses the packet at c inside the outer one that in describes. If the inner
// packet is not readable, in stays as it was: the port or protocol number was no
// more than a guess, and the outer packet is a good flow of its own.
func (p *Parser) open(kind uint16, id uint32, c cursor, in *Info) (Verdict, bool) {
	if c.tunnel >= maxTunnels {
		return OK, false
	}
	c.tunnel++
	c.tags = 0
	inner := Info{
		TimestampNs: in.TimestampNs,
		WireLen:     in.WireLen,
		TunnelID:    id,
		VLAN:        in.VLAN,
		Flags:       in.Flags | FlagTunnel,
	}
	var v Verdict
	if kind == etPPP {
		v = p.ppp(c, &inner)
	} else {
		v = p.etherType(kind, c, &inner)
	}
	switch {
	case v == OK:
		*in = inner
		return OK, true
	case v.NonIP():
		return v, true
	}
	return OK, false
}

// udpTunnel opens the tunnel whose header is at c, if there is one.
func (p *Parser) udpTunnel(c cursor, in *Info) (Verdict, bool) {
	f := c.rest()
	if len(f) < 8 || c.lim-c.off < 8 {
		return OK, false
	}
	switch in.DstPort {
	case portVXLAN, portVXLANLinux, portVXLANGPE:
		if !p.Decap.VXLAN || f[0]&0x08 == 0 { // no network identifier
			return OK, false
		}
		kind := uint16(etTEB)
		if in.DstPort == portVXLANGPE && f[0]&0x04 != 0 {
			switch f[3] {
			case 1:
				kind = etIPv4
			case 2:
				kind = etIPv6
			case 3:
			default:
				return OK, false
			}
		}
		return p.open(kind, binary.BigEndian.Uint32(f[4:])>>8, c.skip(8), in)
	case portGeneve:
		n := 8 + int(f[0]&0x3f)*4
		if !p.Decap.Geneve || f[0]>>6 != 0 || !c.has(n) {
			return OK, false
		}
		return p.open(binary.BigEndian.Uint16(f[2:]), binary.BigEndian.Uint32(f[4:])>>8, c.skip(n), in)
	case portGTPU:
		if !p.Decap.GTPU {
			return OK, false
		}
		return p.gtpu(c, in)
	}
	return OK, false
}

func (p *Parser) gtpu(c cursor, in *Info) (Verdict, bool) {
	f := c.rest()
	const version1, gpdu = 0x30, 0xff
	if f[0]&0xf0 != version1 || f[1] != gpdu {
		return OK, false
	}
	teid := binary.BigEndian.Uint32(f[4:])
	n := 8
	if f[0]&7 != 0 { // sequence number, N-PDU number, type of the first extension
		if len(f) < 12 {
			return OK, false
		}
		n = 12
		next := f[11]
		if f[0]&4 == 0 {
			next = 0
		}
		for i := 0; next != 0; i++ {
			if i == maxTags || len(f) <= n || f[n] == 0 {
				return OK, false
			}
			n += int(f[n]) * 4
			if len(f) < n {
				return OK, false
			}
			next = f[n-1]
		}
	}
	if len(f) <= n {
		return OK, false
	}
	switch f[n] >> 4 {
	case 4:
		return p.open(etIPv4, teid, c.skip(n), in)
	case 6:
		return p.open(etIPv6, teid, c.skip(n), in)
	}
	return OK, false
}

// greTunnel opens the GRE tunnel whose header is at c.
func (p *Parser) greTunnel(c cursor, in *Info) (Verdict, bool) {
	f := c.rest()
	if len(f) < 4 {
		return OK, false
	}
	const checksum, routing, key, seq, ack = 0x8000, 0x4000, 0x2000, 0x1000, 0x0080
	flags, kind := binary.BigEndian.Uint16(f), binary.BigEndian.Uint16(f[2:])
	if flags&routing != 0 { // deprecated source routes
		return OK, false
	}
	n := 4
	var id uint32
	switch flags & 7 {
	case 0:
		if flags&checksum != 0 {
			n += 4
		}
		if flags&key != 0 {
			if len(f) < n+4 {
				return OK, false
			}
			id = binary.BigEndian.Uint32(f[n:])
			n += 4
		}
		if flags&seq != 0 {
			n += 4
		}
	case 1: // PPTP
		if kind != etPPP || len(f) < 8 {
			return OK, false
		}
		id = uint32(binary.BigEndian.Uint16(f[6:])) // call id
		n += 4
		if flags&seq != 0 {
			n += 4
		}
		if flags&ack != 0 {
			n += 4
		}
	default:
		return OK, false
	}
	// A keep-alive or a bare acknowledgement carries nothing.
	if len(f) < n || c.lim-c.off <= n {
		return OK, false
	}
	switch kind {
	case etERSPAN2:
		kind = etTEB
		if flags&seq != 0 { // type I has neither sequence number nor header
			if len(f) < n+8 {
				return OK, false
			}
			id = uint32(binary.BigEndian.Uint16(f[n+2:]) & 0x3ff)
			n += 8
		}
	case etERSPAN3:
		kind = etTEB
		if len(f) < n+12 {
			return OK, false
		}
		id = uint32(binary.BigEndian.Uint16(f[n+2:]) & 0x3ff)
		sub := f[n+11]&1 != 0
		n += 12
		if sub {
			n += 8
		}
		if len(f) < n {
			return OK, false
		}
	}
	return p.open(kind, id, c.skip(n), in)
}
