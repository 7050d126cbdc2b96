package flow

import "github.com/agp-net/telegraf-agp/agp/packet"

// A frame that the kernel has coalesced (GRO) or has not yet split (GSO, TSO) is
// several frames on the wire: each with the headers of the one that was seen and
// SegmentSize bytes of its payload, the last with what is left. Flags and sequence
// numbers follow what segmentation does: FIN and PSH are on the last, CWR on the
// first (Linux tcp_gso_segment). They have one time, so that the delays between them
// are 0.

// Segments returns how many frames on the wire p is.
func (p *Packet) Segments() int {
	if p.SegmentSize == 0 || p.PayloadLen <= uint32(p.SegmentSize) {
		return 1
	}
	return int((p.PayloadLen-1)/uint32(p.SegmentSize)) + 1
}

// Segment makes s frame i of the n that p is. Seq counts on from p.Seq.
func (p *Packet) Segment(s *Packet, i, n int) {
	*s = *p
	s.SegmentSize, s.Coalesced = 0, true
	s.Seq += uint64(i)
	size, from := uint32(p.SegmentSize), uint32(i)*uint32(p.SegmentSize)
	s.PayloadLen = min(size, p.PayloadLen-from)
	s.L3Len -= p.PayloadLen - s.PayloadLen
	s.WireLen -= p.PayloadLen - s.PayloadLen
	s.PayloadOff += from
	s.PayloadCap = min(s.PayloadLen, p.PayloadCap-min(from, p.PayloadCap))
	if p.Protocol != packet.ProtoTCP {
		return
	}
	s.Info.Seq += from
	if i > 0 {
		s.TCPFlags &^= packet.TCPCwr
	}
	if i < n-1 {
		s.TCPFlags &^= packet.TCPFin | packet.TCPPsh
	}
}
