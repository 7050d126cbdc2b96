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
	SrcPort     uint16 // TCP, UDP, SCTP ports; for ICMP see ICMPPorts
	DstPort     uint16
	Window      uint16 // TCP window, unscaled
	VLAN        uint16 // outermost VLAN id, 0 if untagged
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
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoGRE    = 47
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// Payload returns the captured part of the transport payload.
func (in *Info) Payload(frame []byte) []byte {
	return frame[in.PayloadOff : in.PayloadOff+in.PayloadCap]
}

// Decap says which tunnels the parser opens; the inner packet is then the flow.
type Decap struct {
	VXLAN, GRE, Geneve, GTPU bool
}
