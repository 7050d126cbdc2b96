package agp

import (
	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Sizes in bytes of what a meter counts and what it does not.
const (
	etherHeader = 14
	minFrame    = 60
	tcpHeader   = 32 // with timestamps, as most stacks send
	tcpSynMore  = 8  // and the options of a SYN
	udpHeader   = 8
)

// record makes a flow record of both directions. Readings that no meter exports are left at what
// the detectors take for "nothing to see": sizes that do not vary, no delays.
func (h *held) record(r *telemetry.Record) {
	k := &h.key
	*r = telemetry.Record{
		IPVersion: k.IPVersion, Protocol: k.Protocol, Src: k.A, Dst: k.B, SrcPort: k.PortA, DstPort: k.PortB,
		StartNs: h.start(), EndNs: h.end(), FirstReplyNs: -1, TCPHandshakeNs: -1,
	}
	from := h.from()
	if from == 1 {
		r.Src, r.Dst, r.SrcPort, r.DstPort = r.Dst, r.Src, r.DstPort, r.SrcPort
	}
	for d := range r.Dir {
		h.dir[from^uint8(d)].fill(&r.Dir[d], k.IPVersion, k.Protocol)
	}
	if k.Protocol == packet.ProtoTCP {
		guessFlags(h, r, from)
	}
}

// guessFlags where the meter exports none: a direction without payload and with few packets has
// tried to open a connection, any other has one.
func guessFlags(h *held, r *telemetry.Record, from uint8) {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	if !h.dir[from].hasFlags && fwd.Packets > 0 {
		fwd.TCPFlags = packet.TCPSyn
		if fwd.PayloadBytes > 0 || rev.PayloadBytes > 0 || fwd.Packets > 3 {
			fwd.TCPFlags |= packet.TCPAck
		}
	}
	if !h.dir[1-from].hasFlags && rev.Packets > 0 {
		rev.TCPFlags = packet.TCPSyn | packet.TCPAck
		if rev.PayloadBytes == 0 && fwd.PayloadBytes == 0 {
			rev.TCPFlags = packet.TCPRst | packet.TCPAck
		}
	}
}

func (d *direction) fill(o *telemetry.Half, version, protocol uint8) {
	if d.packets == 0 {
		return
	}
	n := d.packets
	header := uint64(20)
	if version == 6 {
		header = 40
	}
	switch protocol {
	case packet.ProtoTCP:
		header += tcpHeader
	case packet.ProtoUDP, packet.ProtoICMP, packet.ProtoICMPv6:
		header += udpHeader
	}
	headers := n * header
	if protocol == packet.ProtoTCP && (!d.hasFlags || d.flags&packet.TCPSyn != 0) {
		headers += tcpSynMore * min(n, 3) // and its repetitions
	}
	*o = telemetry.Half{
		Packets: n, L3Bytes: d.bytes, WireBytes: max(d.bytes+n*etherHeader, n*minFrame), TCPFlags: d.flags,
	}
	if d.bytes > headers { // else acknowledgements alone, or so little that they hide it
		o.PayloadBytes = d.bytes - headers
	}
	o.WireLenMean = float64(o.WireBytes) / float64(n)
	o.WireLenMin, o.WireLenMax = uint32(o.WireLenMean), uint32(o.WireLenMean)
}

// from is the direction of the initiator: what the metric says, else by flags that only one side
// sends, else who began, else the side with the higher port, else who came first. Of one direction
// alone the sender is the initiator, unless it is a TCP server by its port.
func (h *held) from() uint8 {
	if h.initiator != unknown {
		return h.initiator
	}
	a, b := &h.dir[0], &h.dir[1]
	if h.key.Protocol == packet.ProtoTCP {
		alone := a.packets == 0 || b.packets == 0
		fromA, fromB := a.answers(alone), b.answers(alone)
		switch {
		case a.asks() && !b.asks(), fromB && !fromA:
			return 0
		case b.asks() && !a.asks(), fromA && !fromB:
			return 1
		}
	}
	both := a.packets > 0 && b.packets > 0
	if both && a.start != b.start {
		if a.start < b.start {
			return 0
		}
		return 1
	}
	pa, pb := h.key.PortA, h.key.PortB
	switch {
	case both && pa < pb:
		return 1
	case both && pb < pa:
		return 0
	case both:
		return h.first
	}
	sender, port, peer := uint8(0), pa, pb
	if a.packets == 0 {
		sender, port, peer = 1, pb, pa
	}
	const lowest = 1024 // port of a client
	if h.key.Protocol == packet.ProtoTCP && port < lowest && peer >= lowest {
		return 1 - sender // a server's side alone
	}
	return sender
}

const openFlags = packet.TCPSyn | packet.TCPAck | packet.TCPRst | packet.TCPFin

// asks says that a direction sent SYN and never ACK, which only who opens a connection does.
func (d *direction) asks() bool {
	return d.packets > 0 && d.hasFlags && d.flags&(packet.TCPSyn|packet.TCPAck) == packet.TCPSyn
}

// answers says that a direction only refused, or only accepted: SYN and ACK in one packet, as a client
// sends both in two. Where nobody else was heard it may be repeated.
func (d *direction) answers(alone bool) bool {
	switch {
	case d.packets == 0 || !d.hasFlags:
		return false
	case d.flags&openFlags == packet.TCPSyn|packet.TCPAck:
		return d.packets == 1 || alone
	}
	return d.flags&(packet.TCPRst|packet.TCPSyn|packet.TCPFin|packet.TCPPsh) == packet.TCPRst
}

// begin is the start of the same flow, which is known when it has ended.
func begin(r *telemetry.Record, seq uint64) detect.FlowStart {
	s := detect.FlowStart{
		Seq: seq, TimeNs: r.StartNs, Src: r.Src, Dst: r.Dst, SrcPort: r.SrcPort, DstPort: r.DstPort, IPVersion: r.IPVersion, Protocol: r.Protocol,
		WireLen: uint32(max(r.Dir[telemetry.Fwd].WireLenMean, r.Dir[telemetry.Rev].WireLenMean)),
	}
	if h := &r.Dir[telemetry.Fwd]; h.Packets > 0 {
		s.WireLen = uint32(h.WireLenMean)
	}
	if r.Protocol == packet.ProtoTCP {
		s.TCPFlags = detect.FirstFlags(r)
	}
	return s
}
