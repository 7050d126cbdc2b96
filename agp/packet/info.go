package packet

// LinkType is a pcap link-layer type (https://www.tcpdump.org/linktypes.html).
type LinkType uint32

// Info is what one parse of a frame yields. It holds no pointer, so batches of
// it are cheap for the garbage collector and have one layout for every pipeline.
//
// Lengths are bytes. Wire length counts the frame as it was on the wire, L3
// length comes from the IP header (Ethernet padding does not count), payload
// length is what follows the transport header inside the L3 length. They are
// true lengths even if the capture was cut; PayloadCap says how much of the
// payload is in the frame's bytes.
type Info struct {
	TimestampNs int64    // capture or NIC clock, ns since the Unix epoch
	Src, Dst    [16]byte // network order; IPv4 uses the first 4 bytes, the rest is 0
	WireLen     uint32
	L3Len       uint32
	PayloadLen  uint32
	PayloadOff  uint32 // offset of the payload in the frame
	PayloadCap  uint32 // payload bytes present in the frame, <= PayloadLen
	TunnelID    uint32 // VNI, TEID or GRE key of the innermost decapsulated tunnel, 0 if none
	FragmentID  uint32 // IPv4 identification or IPv6 fragment identification
	Seq, Ack    uint32 // TCP
	SrcPort     uint16 // TCP, UDP, SCTP ports; for ICMP see ICMPPorts; else 0
	DstPort     uint16
	Window      uint16 // TCP window, unscaled
	VLAN        uint16 // outermost VLAN id that is not 0, 0 if untagged
	IPVersion   uint8  // 4 or 6
	Protocol    uint8  // IP protocol number of the upper layer
	TCPFlags    uint8  // CWR ECE URG ACK PSH RST SYN FIN, bit 7..0
	Flags       Flags
}

// Flags are facts about one frame.
type Flags uint8

const (
	// FlagFragment marks any fragment of an IP datagram (first or later).
	FlagFragment Flags = 1 << iota
	// FlagFragmentLater marks a fragment with an offset: it carries no ports.
	FlagFragmentLater
	// FlagTunnel marks an inner packet of a decapsulated tunnel.
	FlagTunnel
	// FlagTruncated marks a frame of which fewer bytes were captured than were on the wire.
	FlagTruncated
	// FlagBadLength marks a frame with a length field (IP, TCP data offset, UDP)
	// that contradicts what was on the wire; the length was clamped.
	FlagBadLength
)

// TCP flag bits as in the header.
const (
	TCPFin uint8 = 1 << iota
	TCPSyn
	TCPRst
	TCPPsh
	TCPAck
	TCPUrg
	TCPEce
	TCPCwr
)

// IP protocol numbers that this project treats specially.
const (
	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoGRE      = 47
	ProtoAH       = 51
	ProtoICMPv6   = 58
	ProtoNoNext   = 59
	ProtoDestOpts = 60
	ProtoSCTP     = 132
)

// ICMPPorts gives an ICMP or ICMPv6 message the two numbers that stand for its
// ports, so that a query and its reply are one flow: the requester's is the
// identifier, the responder's is the type of the request (also when the message is
// the reply) in the upper byte and the code in the lower one. All other messages
// have 0 and type<<8|code. The packet that an ICMP error quotes is not looked at.
func ICMPPorts(protocol, typ, code uint8, id uint16) (src, dst uint16) {
	request, reply := icmpQuery(protocol, typ)
	switch {
	case reply:
		if extendedEchoReply(protocol, typ) {
			code = 0 // the code of an extended echo reply is its result, that of the request is 0
		}
		return uint16(request)<<8 | uint16(code), id
	case request != 0:
		return id, uint16(typ)<<8 | uint16(code)
	}
	return 0, uint16(typ)<<8 | uint16(code)
}

// icmpQuery returns the request type that typ belongs to, 0 if it belongs to none.
func icmpQuery(protocol, typ uint8) (request uint8, reply bool) {
	if protocol == ProtoICMPv6 {
		switch typ {
		case 128, 160: // echo, extended echo
			return typ, false
		case 129, 161:
			return typ - 1, true
		}
		return 0, false
	}
	switch typ {
	case 8, 13, 15, 17, 37, 42: // echo, timestamp, information, address mask, domain name, extended echo
		return typ, false
	case 0:
		return 8, true
	case 14, 16, 18, 38, 43:
		return typ - 1, true
	}
	return 0, false
}

func extendedEchoReply(protocol, typ uint8) bool {
	return protocol == ProtoICMP && typ == 43 || protocol == ProtoICMPv6 && typ == 161
}

// Payload returns the captured part of the transport payload.
func (in *Info) Payload(frame []byte) []byte {
	return frame[in.PayloadOff : in.PayloadOff+in.PayloadCap]
}

// Decap says which tunnels the parser opens; the inner packet is then the flow.
type Decap struct {
	VXLAN  bool // UDP ports 4789 and 8472, and VXLAN-GPE on 4790
	GRE    bool // also NVGRE, PPTP's GRE version 1 and ERSPAN I to III
	Geneve bool // UDP port 6081
	GTPU   bool // UDP port 2152, G-PDU messages
}
