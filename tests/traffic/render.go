package traffic

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"
)

const minFrame = 60 // without the check sequence, which captures do not hold

// render appends the frame of p to b.
func (c *Capture) render(b []byte, p *packet) []byte {
	f := c.flows[p.flow]
	src, dst := f.Src, f.Dst
	if p.dir == Rev {
		src, dst = dst, src
	}
	v4 := src.Addr().Is4()
	start := len(b)
	b = appendMAC(b, dst.Addr())
	b = appendMAC(b, src.Addr())
	if f.VLAN != 0 {
		b = binary.BigEndian.AppendUint16(b, 0x8100)
		b = binary.BigEndian.AppendUint16(b, f.VLAN)
	}
	l4 := l4Header(f, p) + int(p.length)
	var pseudo uint64
	if v4 {
		b = append(b, 0x08, 0x00)
		ip := len(b)
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+l4))
		b = binary.BigEndian.AppendUint16(b, p.id)
		b = append(b, 0x40, 0, 64, f.Protocol, 0, 0)
		s, d := src.Addr().As4(), dst.Addr().As4()
		b = append(append(b, s[:]...), d[:]...)
		binary.BigEndian.PutUint16(b[ip+10:], fold(sum(0, b[ip:])))
		pseudo = sum(uint64(f.Protocol)+uint64(l4), b[ip+12:ip+20])
	} else {
		b = append(b, 0x86, 0xdd)
		ip := len(b)
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(l4))
		b = append(b, f.Protocol, 64)
		s, d := src.Addr().As16(), dst.Addr().As16()
		b = append(append(b, s[:]...), d[:]...)
		pseudo = sum(uint64(f.Protocol)+uint64(l4), b[ip+8:ip+40])
	}
	b = c.renderL4(b, f, p, src, dst, pseudo)
	for len(b)-start < minFrame {
		b = append(b, 0)
	}
	return b
}

func l4Header(f *Flow, p *packet) int {
	switch {
	case f.Protocol != TCP:
		return 8
	case f.Plain || p.flags&rst != 0:
		return 20
	case p.flags&syn != 0:
		return 40
	default:
		return 32
	}
}

func (c *Capture) renderL4(b []byte, f *Flow, p *packet, src, dst netip.AddrPort, pseudo uint64) []byte {
	l4 := len(b)
	sumAt := l4 + 6
	switch f.Protocol {
	case TCP:
		header := l4Header(f, p)
		sumAt = l4 + 16
		b = binary.BigEndian.AppendUint16(b, src.Port())
		b = binary.BigEndian.AppendUint16(b, dst.Port())
		b = binary.BigEndian.AppendUint32(b, p.seq)
		b = binary.BigEndian.AppendUint32(b, p.ack)
		b = append(b, byte(header/4)<<4, p.flags)
		b = binary.BigEndian.AppendUint16(b, p.window)
		b = append(b, 0, 0, 0, 0)
		switch header {
		case 40: // MSS, SACK permitted, time stamps, no-op, window scale 7
			b = append(b, 2, 4, 0x05, 0xb4, 4, 2)
			b = appendTimestamps(b, p)
			b = append(b, 1, 3, 3, 7)
		case 32:
			b = append(b, 1, 1)
			b = appendTimestamps(b, p)
		}
	case UDP:
		b = binary.BigEndian.AppendUint16(b, src.Port())
		b = binary.BigEndian.AppendUint16(b, dst.Port())
		b = binary.BigEndian.AppendUint16(b, 8+p.length)
		b = append(b, 0, 0)
	default: // echo
		sumAt = l4 + 2
		kind := [2]byte{8, 0}
		if f.Protocol == ICMPv6 {
			kind = [2]byte{128, 129}
		} else {
			pseudo = 0
		}
		b = append(b, kind[p.dir], 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, f.Src.Port())
		b = binary.BigEndian.AppendUint16(b, p.id)
	}
	rest := int(p.length)
	if p.head >= 0 {
		h := c.heads[p.head]
		n := min(rest, len(h))
		b = append(b, h[:n]...)
		rest -= n
	}
	for off := int(p.seq) & 0xffff; rest > 0; {
		n := min(rest, len(c.filler)-off)
		b = append(b, c.filler[off:off+n]...)
		rest, off = rest-n, 0
	}
	check := fold(sum(pseudo, b[l4:]))
	if f.Protocol == UDP && check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[sumAt:], check)
	return b
}

func appendTimestamps(b []byte, p *packet) []byte {
	ms := uint32(p.at / int64(time.Millisecond))
	b = append(b, 8, 10)
	b = binary.BigEndian.AppendUint32(b, ms)
	if p.flags&ack == 0 {
		ms = 0
	}
	return binary.BigEndian.AppendUint32(b, ms)
}

// appendMAC derives a locally administered address from an IP address.
func appendMAC(b []byte, a netip.Addr) []byte {
	raw := a.As16()
	return append(b, 0x02, 0x00, raw[12], raw[13], raw[14], raw[15])
}

// sum adds big-endian 16-bit words in eight-byte strides (RFC 1071).
func sum(acc uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc += carry
		b = b[8:]
	}
	var tail [8]byte
	copy(tail[:], b)
	acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(tail[:]), 0)
	return acc + carry
}

func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return ^uint16(acc)
}
