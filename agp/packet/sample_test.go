package packet

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A sample is a frame written out byte by byte, and what it holds.
type sample struct {
	name    string
	link    LinkType
	decap   Decap
	frame   []byte
	wire    uint32 // 0: all captured
	verdict Verdict
	want    Info // compared without WireLen and, of flags, only if OK
}

func (s *sample) wireLen() uint32 { return max(s.wire, uint32(len(s.frame))) }

// unhex turns hexadecimal text, with any white space, into bytes.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

func ip4(a, b, c, d byte) (out [16]byte) {
	copy(out[:], []byte{a, b, c, d})
	return out
}

func ip6(s string) (out [16]byte) {
	copy(out[:], unhex(s))
	return out
}

const (
	macs = "02 00 00 00 00 02  02 00 00 00 00 01 "
	// 10.0.0.1:1234 -> 10.0.0.2:80, PSH+ACK, 2 bytes "hi".
	tcp4 = "45 00 00 2a 12 34 40 00 40 06 00 00  0a 00 00 01  0a 00 00 02 " +
		"04 d2 00 50  00 00 00 64  00 00 00 c8  50 18 20 00  00 00 00 00  68 69 "
	// 10.0.0.1:5353 -> 10.0.0.2:53, 3 bytes "abc".
	udp4 = "45 00 00 1f 00 07 00 00 40 11 00 00  0a 00 00 01  0a 00 00 02 " +
		"14 e9 00 35 00 0b 00 00  61 62 63 "
	src6 = "20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 "
	dst6 = "20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 02 "
	udp6 = "60 00 00 00 00 0b 11 40 " + src6 + dst6 + "14 e9 00 35 00 0b 00 00  61 62 63 "
	snap = "aa aa 03 00 00 00 "
)

func wantTCP4(off uint32) Info {
	return Info{
		Src: ip4(10, 0, 0, 1), Dst: ip4(10, 0, 0, 2), L3Len: 42, PayloadLen: 2, PayloadCap: 2,
		PayloadOff: off, FragmentID: 0x1234, Seq: 100, Ack: 200, SrcPort: 1234, DstPort: 80,
		Window: 0x2000, IPVersion: 4, Protocol: ProtoTCP, TCPFlags: TCPPsh | TCPAck,
	}
}

func wantUDP4(off uint32) Info {
	return Info{
		Src: ip4(10, 0, 0, 1), Dst: ip4(10, 0, 0, 2), L3Len: 31, PayloadLen: 3, PayloadCap: 3,
		PayloadOff: off, FragmentID: 7, SrcPort: 5353, DstPort: 53, IPVersion: 4, Protocol: ProtoUDP,
	}
}

func wantUDP6(off uint32) Info {
	return Info{
		Src: ip6(src6), Dst: ip6(dst6), L3Len: 51, PayloadLen: 3, PayloadCap: 3,
		PayloadOff: off, SrcPort: 5353, DstPort: 53, IPVersion: 6, Protocol: ProtoUDP,
	}
}

func with(in Info, change func(*Info)) Info {
	change(&in)
	return in
}

func tunnel(in Info, id uint32) Info {
	in.TunnelID, in.Flags = id, in.Flags|FlagTunnel
	return in
}

// outerUDP is 192.0.2.1:40000 -> 192.0.2.2:port over Ethernet, with the length
// fields of the given payload.
func outerUDP(port uint16, payload string) []byte {
	body := unhex(payload)
	n := len(body)
	f := unhex(macs + "08 00  45 00 00 00 00 01 00 00 40 11 00 00  c0 00 02 01  c0 00 02 02  9c 40 00 00 00 00 00 00")
	f[16], f[17] = byte((n+28)>>8), byte(n+28)
	f[36], f[37] = byte(port>>8), byte(port)
	f[38], f[39] = byte((n+8)>>8), byte(n+8)
	return append(f, body...)
}

// outerGRE is 192.0.2.1 -> 192.0.2.2, protocol 47, over Ethernet.
func outerGRE(payload string) []byte {
	body := unhex(payload)
	n := len(body)
	f := unhex(macs + "08 00  45 00 00 00 00 01 00 00 40 2f 00 00  c0 00 02 01  c0 00 02 02")
	f[16], f[17] = byte((n+20)>>8), byte(n+20)
	return append(f, body...)
}

func wantOuterUDP(port uint16, payloadLen uint32) Info {
	return Info{
		Src: ip4(192, 0, 2, 1), Dst: ip4(192, 0, 2, 2), L3Len: 28 + payloadLen, PayloadLen: payloadLen, PayloadCap: payloadLen,
		PayloadOff: 42, FragmentID: 1, SrcPort: 40000, DstPort: port, IPVersion: 4, Protocol: ProtoUDP,
	}
}

func samples() []sample {
	all := Decap{VXLAN: true, GRE: true, Geneve: true, GTPU: true}
	eth := func(name, text string, want Info) sample {
		return sample{name: name, link: LinkEthernet, frame: unhex(text), want: want}
	}
	on := func(name string, link LinkType, text string, want Info) sample {
		return sample{name: name, link: link, frame: unhex(text), want: want}
	}
	return []sample{
		eth("tcp4", macs+"08 00"+tcp4, wantTCP4(54)),
		eth("udp4", macs+"08 00"+udp4, wantUDP4(42)),
		eth("udp6", macs+"86 dd"+udp6, wantUDP6(62)),
		eth("padding", macs+"08 00"+udp4+"00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", wantUDP4(42)),
		eth("vlan", macs+"81 00 20 64 08 00"+tcp4, with(wantTCP4(58), func(in *Info) { in.VLAN = 100 })),
		eth("qinq", macs+"88 a8 00 c8 81 00 00 64 08 00"+tcp4, with(wantTCP4(62), func(in *Info) { in.VLAN = 200 })),
		eth("priority_tag", macs+"81 00 e0 00 81 00 00 07 08 00"+tcp4, with(wantTCP4(62), func(in *Info) { in.VLAN = 7 })),
		eth("vntag", macs+"89 26 00 01 00 02 81 00 00 05 08 00"+tcp4, with(wantTCP4(64), func(in *Info) { in.VLAN = 5 })),
		eth("pbb", macs+"88 e7 00 00 00 01"+macs+"08 00"+tcp4, wantTCP4(72)),
		eth("mpls_ip4", macs+"88 47 00 01 00 40 00 01 01 40"+tcp4, wantTCP4(62)),
		eth("mpls_ip6", macs+"88 47 00 01 01 40"+udp6, wantUDP6(66)),
		eth("mpls_explicit_null", macs+"88 48 00 00 01 40"+tcp4, wantTCP4(58)),
		eth("mpls_explicit_null6", macs+"88 47 00 00 21 40"+udp6, wantUDP6(66)),
		eth("mpls_pseudowire_control_word", macs+"88 47 00 01 01 40 00 00 00 00"+macs+"08 00"+tcp4, wantTCP4(76)),
		eth("mpls_pseudowire", macs+"88 47 00 01 01 40"+"00 11 22 33 44 55 02 00 00 00 00 01"+"08 00"+tcp4, wantTCP4(72)),
		eth("mpls_pseudowire_mac_like_ip4", macs+"88 47 00 01 01 40"+"46 11 22 33 44 55 02 00 00 00 00 01"+"08 00"+tcp4, wantTCP4(72)),
		eth("mpls_pseudowire_mac_like_ip6", macs+"88 47 00 01 01 40"+"66 11 22 33 44 55 02 00 00 00 00 01"+"08 00"+tcp4, wantTCP4(72)),
		eth("pppoe", macs+"88 64 11 00 00 01 00 2c 00 21"+tcp4, wantTCP4(62)),
		eth("pppoe_ip6_compressed_protocol", macs+"88 64 11 00 00 01 00 34 57"+udp6, wantUDP6(69)),
		eth("llc_snap", macs+"00 32"+snap+"08 00"+tcp4, wantTCP4(62)),
		eth("llc_ip", macs+"00 2d 06 06 03"+tcp4, wantTCP4(57)),
		eth("snap_bridged", macs+"00 3c aa aa 03 00 80 c2 00 07 00 00"+macs+"08 00"+tcp4, wantTCP4(78)),
		eth("ip4_options", macs+"08 00"+
			"46 00 00 23 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 01 01 01 00 14 e9 00 35 00 0b 00 00 61 62 63",
			with(wantUDP4(46), func(in *Info) { in.L3Len = 35 })),
		eth("tcp_options", macs+"08 00"+
			"45 00 00 2e 12 34 40 00 40 06 00 00 0a 00 00 01 0a 00 00 02"+
			"04 d2 00 50 00 00 00 64 00 00 00 c8 60 18 20 00 00 00 00 00 02 04 05 b4 68 69",
			with(wantTCP4(58), func(in *Info) { in.L3Len = 46 })),
		eth("ip4_length_0_means_wire", macs+"08 00"+
			"45 00 00 00 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 00 00 00 61 62 63", wantUDP4(42)),
		eth("ip4_length_more_than_wire", macs+"08 00"+
			"45 00 05 dc 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 0b 00 00 61 62 63",
			with(wantUDP4(42), func(in *Info) { in.Flags = FlagBadLength })),
		eth("udp_length_more_than_ip", macs+"08 00"+
			"45 00 00 1f 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 01 00 00 00 61 62 63",
			with(wantUDP4(42), func(in *Info) { in.Flags = FlagBadLength })),
		eth("udp_length_less_than_header", macs+"08 00"+
			"45 00 00 1f 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 07 00 00 61 62 63",
			with(wantUDP4(42), func(in *Info) { in.Flags = FlagBadLength })),
		eth("udp_length_less_than_ip", macs+"08 00"+
			"45 00 00 1f 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 09 00 00 61 62 63",
			with(wantUDP4(42), func(in *Info) { in.PayloadLen, in.PayloadCap = 1, 1 })),
		eth("tcp_offset_more_than_ip", macs+"08 00"+
			"45 00 00 2a 12 34 40 00 40 06 00 00 0a 00 00 01 0a 00 00 02"+
			"04 d2 00 50 00 00 00 64 00 00 00 c8 f0 18 20 00 00 00 00 00 68 69",
			with(wantTCP4(56), func(in *Info) { in.PayloadLen, in.PayloadCap, in.Flags = 0, 0, FlagBadLength })),
		eth("tcp_offset_less_than_header", macs+"08 00"+
			"45 00 00 2a 12 34 40 00 40 06 00 00 0a 00 00 01 0a 00 00 02"+
			"04 d2 00 50 00 00 00 64 00 00 00 c8 40 18 20 00 00 00 00 00 68 69",
			with(wantTCP4(54), func(in *Info) { in.Flags = FlagBadLength })),
		{name: "snap_length_cuts_payload", link: LinkEthernet, frame: unhex(macs + "08 00" +
			"45 00 05 dc 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 05 c8 00 00 61 62 63"), wire: 1514,
			want: with(wantUDP4(42), func(in *Info) { in.L3Len, in.PayloadLen, in.Flags = 1500, 1472, FlagTruncated })},
		{name: "snap_length_cuts_udp_header", link: LinkEthernet, frame: unhex(macs + "08 00" +
			"45 00 05 dc 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35"), wire: 1514,
			want: with(wantUDP4(38), func(in *Info) {
				in.L3Len, in.PayloadLen, in.PayloadCap, in.Flags = 1500, 1472, 0, FlagTruncated
			})},
		{name: "snap_length_cuts_tcp_header", link: LinkEthernet, frame: unhex(macs + "08 00" + tcp4)[:53], wire: 56, verdict: TruncatedL4},
		{name: "tcp_header_does_not_fit", link: LinkEthernet, verdict: TruncatedL4, frame: unhex(macs + "08 00" +
			"45 00 00 27 12 34 40 00 40 06 00 00 0a 00 00 01 0a 00 00 02 04 d2 00 50 00 00 00 64 00 00 00 c8 50 18 20 00 00 00 00 00")},

		eth("ip6_hop_by_hop_routing_destination", macs+"86 dd"+
			"60 00 00 00 00 23 00 40"+src6+dst6+
			"2b 00 00 00 00 00 00 00  3c 00 00 00 00 00 00 00  11 00 00 00 00 00 00 00  14 e9 00 35 00 0b 00 00 61 62 63",
			with(wantUDP6(86), func(in *Info) { in.L3Len = 75 })),
		eth("ip6_authentication_header", macs+"86 dd"+
			"60 00 00 00 00 23 33 40"+src6+dst6+
			"11 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  14 e9 00 35 00 0b 00 00 61 62 63",
			with(wantUDP6(86), func(in *Info) { in.L3Len = 75 })),
		eth("ip6_no_next_header", macs+"86 dd"+"60 00 00 00 00 00 3b 40"+src6+dst6+"00 00 00 00",
			with(wantUDP6(54), func(in *Info) {
				in.L3Len, in.PayloadLen, in.PayloadCap, in.SrcPort, in.DstPort, in.Protocol = 40, 0, 0, 0, 0, ProtoNoNext
			})),
		eth("ip6_length_0_means_wire", macs+"86 dd"+"60 00 00 00 00 00 11 40"+src6+dst6+"14 e9 00 35 00 00 00 00 61 62 63", wantUDP6(62)),
		eth("ip6_length_more_than_wire", macs+"86 dd"+"60 00 00 00 01 00 11 40"+src6+dst6+"14 e9 00 35 00 0b 00 00 61 62 63",
			with(wantUDP6(62), func(in *Info) { in.Flags = FlagBadLength })),
		eth("ip6_nothing_but_an_extension", macs+"86 dd"+"60 00 00 00 00 08 3c 40"+src6+dst6+"3b 00 00 00 00 00 00 00",
			with(wantUDP6(62), func(in *Info) {
				in.L3Len, in.PayloadLen, in.PayloadCap, in.SrcPort, in.DstPort, in.Protocol = 48, 0, 0, 0, 0, ProtoNoNext
			})),
		{name: "ip6_extension_past_the_end", link: LinkEthernet, verdict: BadIPHeader,
			frame: unhex(macs + "86 dd" + "60 00 00 00 00 08 00 40" + src6 + dst6 + "11 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00")},
		{name: "ip6_extension_chain_without_end", link: LinkEthernet, verdict: TooManyHeaders,
			frame: unhex(macs + "86 dd" + "60 00 00 00 00 a0 3c 40" + src6 + dst6 + strings.Repeat("3c 00 00 00 00 00 00 00", 20))},

		eth("ip4_first_fragment", macs+"08 00"+
			"45 00 00 1f 00 07 20 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 10 00 00 00 61 62 63",
			with(wantUDP4(42), func(in *Info) { in.Flags = FlagFragment })),
		eth("ip4_later_fragment", macs+"08 00"+
			"45 00 00 1f 00 07 00 64 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 10 00 00 00 61 62 63",
			with(wantUDP4(34), func(in *Info) {
				in.SrcPort, in.DstPort, in.PayloadLen, in.PayloadCap = 0, 0, 11, 11
				in.Flags = FlagFragment | FlagFragmentLater
			})),
		eth("tcp_header_split_by_fragment", macs+"08 00"+
			"45 00 00 1c 00 07 20 00 40 06 00 00 0a 00 00 01 0a 00 00 02 04 d2 00 50 00 00 00 64",
			with(wantUDP4(42), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.Flags = ProtoTCP, 1234, 80, 28, FlagFragment
				in.PayloadLen, in.PayloadCap = 0, 0
			})),
		eth("ip6_first_fragment", macs+"86 dd"+"60 00 00 00 00 13 2c 40"+src6+dst6+
			"11 00 00 01 00 00 00 09"+"14 e9 00 35 10 00 00 00 61 62 63",
			with(wantUDP6(70), func(in *Info) { in.L3Len, in.FragmentID, in.Flags = 59, 9, FlagFragment })),
		eth("ip6_later_fragment", macs+"86 dd"+"60 00 00 00 00 13 2c 40"+src6+dst6+
			"11 00 00 08 00 00 00 09"+"14 e9 00 35 10 00 00 00 61 62 63",
			with(wantUDP6(62), func(in *Info) {
				in.L3Len, in.FragmentID, in.Flags = 59, 9, FlagFragment|FlagFragmentLater
				in.SrcPort, in.DstPort, in.PayloadLen, in.PayloadCap = 0, 0, 11, 11
			})),
		eth("ip6_atomic_fragment", macs+"86 dd"+"60 00 00 00 00 13 2c 40"+src6+dst6+
			"11 00 00 00 00 00 00 09"+"14 e9 00 35 00 0b 00 00 61 62 63",
			with(wantUDP6(70), func(in *Info) { in.L3Len = 59 })),

		eth("icmp_echo_request", macs+"08 00"+"45 00 00 1d 00 07 00 00 40 01 00 00 0a 00 00 01 0a 00 00 02 08 00 00 00 12 34 00 01 61",
			with(wantUDP4(42), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = ProtoICMP, 0x1234, 0x0800, 29, 1, 1
			})),
		eth("icmp_echo_reply", macs+"08 00"+"45 00 00 1d 00 07 00 00 40 01 00 00 0a 00 00 02 0a 00 00 01 00 00 00 00 12 34 00 01 61",
			with(wantUDP4(42), func(in *Info) {
				in.Src, in.Dst = in.Dst, in.Src
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = ProtoICMP, 0x0800, 0x1234, 29, 1, 1
			})),
		eth("icmp_unreachable", macs+"08 00"+"45 00 00 38 00 07 00 00 40 01 00 00 0a 00 00 01 0a 00 00 02 03 03 00 00 00 00 00 00"+
			"45 00 00 1f 00 07 00 00 40 11 00 00 0a 00 00 02 0a 00 00 01 00 35 14 e9 00 0b 00 00",
			with(wantUDP4(42), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = ProtoICMP, 0, 0x0303, 56, 28, 28
			})),
		eth("icmp6_neighbour_solicitation", macs+"86 dd"+"60 00 00 00 00 18 3a ff"+src6+dst6+"87 00 00 00 00 00 00 00"+dst6,
			with(wantUDP6(62), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = ProtoICMPv6, 0, 0x8700, 64, 16, 16
			})),
		eth("sctp", macs+"08 00"+"45 00 00 24 00 07 00 00 40 84 00 00 0a 00 00 01 0a 00 00 02 0b 59 0b 5a 00 00 00 01 00 00 00 00 03 00 00 04",
			with(wantUDP4(46), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = ProtoSCTP, 2905, 2906, 36, 4, 4
			})),
		eth("esp_has_no_ports", macs+"08 00"+"45 00 00 1c 00 07 00 00 40 32 00 00 0a 00 00 01 0a 00 00 02 00 00 00 01 00 00 00 02",
			with(wantUDP4(34), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = 50, 0, 0, 28, 8, 8
			})),
		eth("ip_in_ip_stays_outer", macs+"08 00"+"45 00 00 3e 00 07 00 00 40 04 00 00 0a 00 00 01 0a 00 00 02"+tcp4,
			with(wantUDP4(34), func(in *Info) {
				in.Protocol, in.SrcPort, in.DstPort, in.L3Len, in.PayloadLen, in.PayloadCap = 4, 0, 0, 62, 42, 42
			})),

		{name: "vxlan", link: LinkEthernet, decap: Decap{VXLAN: true},
			frame: outerUDP(4789, "08 00 00 00 00 30 39 00"+macs+"08 00"+tcp4), want: tunnel(wantTCP4(104), 12345)},
		{name: "vxlan_old_port", link: LinkEthernet, decap: Decap{VXLAN: true},
			frame: outerUDP(8472, "08 00 00 00 00 30 39 00"+macs+"81 00 00 05 08 00"+tcp4),
			want:  with(tunnel(wantTCP4(108), 12345), func(in *Info) { in.VLAN = 5 })},
		{name: "vxlan_gpe_ip", link: LinkEthernet, decap: Decap{VXLAN: true},
			frame: outerUDP(4790, "0c 00 00 01 00 30 39 00"+tcp4), want: tunnel(wantTCP4(90), 12345)},
		{name: "vxlan_closed", link: LinkEthernet, decap: Decap{GRE: true, Geneve: true, GTPU: true},
			frame: outerUDP(4789, "08 00 00 00 00 30 39 00"+macs+"08 00"+tcp4), want: wantOuterUDP(4789, 64)},
		{name: "vxlan_not_vxlan", link: LinkEthernet, decap: all,
			frame: outerUDP(4789, "00 00 00 00 00 30 39 00"+macs+"08 00"+tcp4), want: wantOuterUDP(4789, 64)},
		{name: "vxlan_inner_unreadable", link: LinkEthernet, decap: all,
			frame: outerUDP(4789, "08 00 00 00 00 30 39 00"+macs+"08 00 45 00"), want: wantOuterUDP(4789, 24)},
		{name: "vxlan_inner_arp", link: LinkEthernet, decap: all, verdict: NonIPARP,
			frame: outerUDP(4789, "08 00 00 00 00 30 39 00"+macs+"08 06 00 01 08 00 06 04 00 01")},
		{name: "geneve", link: LinkEthernet, decap: Decap{Geneve: true},
			frame: outerUDP(6081, "01 00 65 58 00 00 0a 00 01 02 03 04"+macs+"08 00"+tcp4), want: tunnel(wantTCP4(108), 10)},
		{name: "geneve_ip6", link: LinkEthernet, decap: Decap{Geneve: true},
			frame: outerUDP(6081, "00 00 86 dd 00 00 0a 00"+udp6), want: tunnel(wantUDP6(98), 10)},
		{name: "gtpu", link: LinkEthernet, decap: Decap{GTPU: true},
			frame: outerUDP(2152, "30 ff 00 2a 00 00 00 63"+tcp4), want: tunnel(wantTCP4(90), 99)},
		{name: "gtpu_extension", link: LinkEthernet, decap: Decap{GTPU: true},
			frame: outerUDP(2152, "34 ff 00 32 00 00 00 63 00 00 00 85 01 00 09 00"+tcp4), want: tunnel(wantTCP4(98), 99)},
		{name: "gtpu_16_extensions", link: LinkEthernet, decap: Decap{GTPU: true},
			frame: outerUDP(2152, "34 ff 00 32 00 00 00 63 00 00 00 85"+strings.Repeat("01 00 09 85", 15)+"01 00 09 00"+tcp4), want: tunnel(wantTCP4(158), 99)},
		{name: "gtpu_17_extensions_stay_outer", link: LinkEthernet, decap: Decap{GTPU: true},
			frame: outerUDP(2152, "34 ff 00 32 00 00 00 63 00 00 00 85"+strings.Repeat("01 00 09 85", 16)+"01 00 09 00"+tcp4), want: wantOuterUDP(2152, 122)},
		{name: "gtpu_echo_stays_outer", link: LinkEthernet, decap: Decap{GTPU: true},
			frame: outerUDP(2152, "32 01 00 04 00 00 00 00 00 01 00 00"), want: wantOuterUDP(2152, 12)},
		{name: "gre_ip", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("00 00 08 00" + tcp4), want: tunnel(wantTCP4(78), 0)},
		{name: "gre_key_checksum_sequence", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("b0 00 08 00 00 00 00 00 00 00 00 2a 00 00 00 01" + tcp4), want: tunnel(wantTCP4(90), 42)},
		{name: "nvgre", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("20 00 65 58 00 13 88 00" + macs + "08 00" + tcp4), want: tunnel(wantTCP4(96), 0x00138800)},
		{name: "gre_mpls", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("00 00 88 47 00 01 01 40" + tcp4), want: tunnel(wantTCP4(82), 0)},
		{name: "gre_pptp", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("30 81 88 0b 00 2e 00 07 00 00 00 01 00 00 00 02 ff 03 00 21" + tcp4), want: tunnel(wantTCP4(94), 7)},
		{name: "gre_pptp_no_acknowledgement", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("30 01 88 0b 00 2e 00 07 00 00 00 01 ff 03 00 21" + tcp4), want: tunnel(wantTCP4(90), 7)},
		{name: "gre_pptp_no_sequence", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("20 01 88 0b 00 2e 00 07 ff 03 00 21" + tcp4), want: tunnel(wantTCP4(86), 7)},
		{name: "erspan1", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("00 00 88 be" + macs + "08 00" + tcp4), want: tunnel(wantTCP4(92), 0)},
		{name: "erspan2", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("10 00 88 be 00 00 00 01 10 05 00 21 00 00 00 00" + macs + "08 00" + tcp4), want: tunnel(wantTCP4(104), 33)},
		{name: "erspan3", link: LinkEthernet, decap: Decap{GRE: true},
			frame: outerGRE("10 00 22 eb 00 00 00 01 20 05 00 21 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00" + macs + "08 00" + tcp4),
			want:  tunnel(wantTCP4(116), 33)},
		{name: "gre_keepalive_stays_outer", link: LinkEthernet, decap: all, frame: outerGRE("00 00 00 00"),
			want: with(wantOuterUDP(0, 4), func(in *Info) {
				in.SrcPort, in.L3Len, in.PayloadOff, in.Protocol = 0, 24, 34, ProtoGRE
			})},
		{name: "vxlan_in_gre", link: LinkEthernet, decap: all,
			frame: outerGRE("00 00 08 00 45 00 00 5c 00 01 00 00 40 11 00 00 c0 00 02 01 c0 00 02 02 9c 40 12 b5 00 48 00 00" +
				"08 00 00 00 00 30 39 00" + macs + "08 00" + tcp4), want: tunnel(wantTCP4(128), 12345)},

		on("linux_cooked", LinkLinuxSLL, "00 00 00 01 00 06 02 00 00 00 00 01 00 00 08 00"+tcp4, wantTCP4(56)),
		on("linux_cooked_vlan", LinkLinuxSLL, "00 00 00 01 00 06 02 00 00 00 00 01 00 00 81 00 00 05 08 00"+tcp4,
			with(wantTCP4(60), func(in *Info) { in.VLAN = 5 })),
		on("linux_cooked_llc", LinkLinuxSLL, "00 00 00 01 00 06 02 00 00 00 00 01 00 00 00 04"+snap+"08 00"+tcp4, wantTCP4(64)),
		on("linux_cooked_v2", LinkLinuxSLL2, "08 00 00 00 00 00 00 02 00 01 00 06 02 00 00 00 00 01 00 00"+tcp4, wantTCP4(60)),
		on("null_little_endian", LinkNull, "02 00 00 00"+tcp4, wantTCP4(44)),
		on("null_big_endian_ip6", LinkNull, "00 00 00 1e"+udp6, wantUDP6(52)),
		on("null_windows_ip6", LinkNull, "17 00 00 00"+udp6, wantUDP6(52)),
		on("loop", LinkLoop, "00 00 00 02"+tcp4, wantTCP4(44)),
		on("raw_ip4", LinkRaw, tcp4, wantTCP4(40)),
		on("raw_ip6", LinkRaw, udp6, wantUDP6(48)),
		on("raw_12", LinkRawBSD, tcp4, wantTCP4(40)),
		on("raw_14", LinkRawOpenBSD, udp6, wantUDP6(48)),
		on("ipv4", LinkIPv4, tcp4, wantTCP4(40)),
		on("ipv6", LinkIPv6, udp6, wantUDP6(48)),
		on("ppp", LinkPPP, "ff 03 00 21"+tcp4, wantTCP4(44)),
		on("ppp_no_address", LinkPPP, "00 57"+udp6, wantUDP6(50)),
		on("ppp_mpls", LinkPPP, "02 81 00 01 01 40"+tcp4, wantTCP4(46)),
		on("ppp_hdlc", LinkPPPHDLC, "ff 03 00 21"+tcp4, wantTCP4(44)),
		on("ppp_hdlc_cisco", LinkPPPHDLC, "0f 00 08 00"+tcp4, wantTCP4(44)),
		on("ppp_ethernet", LinkPPPoE, "11 00 00 01 00 2c 00 21"+tcp4, wantTCP4(48)),
		on("cisco_hdlc", LinkCiscoHDLC, "8f 00 86 dd"+udp6, wantUDP6(52)),
		on("fddi", LinkFDDI, "50"+macs+snap+"08 00"+tcp4, wantTCP4(61)),
		on("atm_rfc1483", LinkATMRFC1483, snap+"08 00"+tcp4, wantTCP4(48)),
		on("atm_rfc1483_routed", LinkATMRFC1483, "fe fe 03 cc"+tcp4, wantTCP4(44)),
		on("pflog", LinkPFLog, "3d 02 00 00"+strings.Repeat("00", 56)+"01 00 00 00"+tcp4, wantTCP4(104)),
		on("wifi", LinkIEEE80211, "08 01 00 00"+strings.Repeat("02", 18)+"00 00"+snap+"08 00"+tcp4, wantTCP4(72)),
		on("wifi_qos", LinkIEEE80211, "88 02 00 00"+strings.Repeat("02", 18)+"10 00"+"05 00"+snap+"08 00"+tcp4, wantTCP4(74)),
		on("wifi_qos_ht", LinkIEEE80211, "88 82 00 00"+strings.Repeat("02", 18)+"10 00"+"05 00 00 00 00 00"+snap+"08 00"+tcp4, wantTCP4(78)),
		on("wifi_four_addresses", LinkIEEE80211, "08 03 00 00"+strings.Repeat("02", 18)+"00 00"+strings.Repeat("02", 6)+snap+"08 00"+tcp4, wantTCP4(78)),
		on("wifi_aggregate", LinkIEEE80211, "88 01 00 00"+strings.Repeat("02", 18)+"00 00"+"80 00"+macs+"00 32"+snap+"08 00"+tcp4, wantTCP4(88)),
		on("radiotap", LinkRadiotap, "00 00 08 00 00 00 00 00"+"08 01 00 00"+strings.Repeat("02", 18)+"00 00"+snap+"08 00"+tcp4, wantTCP4(80)),
		on("radiotap_more_presence_words", LinkRadiotap, "00 00 0c 00 00 00 00 80 00 00 00 00"+"08 01 00 00"+strings.Repeat("02", 18)+"00 00"+snap+"08 00"+tcp4, wantTCP4(84)),
		on("radiotap_padded_header", LinkRadiotap, "00 00 1c 00 03 00 00 a0 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 20 00 00 00"+
			"88 01 00 00"+strings.Repeat("02", 18)+"00 00"+"05 00 00 00"+snap+"08 00"+tcp4, wantTCP4(104)),
		on("prism", LinkPrism, "44 00 00 00 18 00 00 00"+strings.Repeat("77", 16)+"08 01 00 00"+strings.Repeat("02", 18)+"00 00"+snap+"08 00"+tcp4, wantTCP4(96)),
		on("prism_avs", LinkPrism, "80 21 10 01 00 00 00 40"+strings.Repeat("00", 56)+"08 01 00 00"+strings.Repeat("02", 18)+"00 00"+snap+"08 00"+tcp4, wantTCP4(136)),
		on("avs", LinkAVS, "80 21 10 01 00 00 00 40"+strings.Repeat("00", 56)+"08 01 00 00"+strings.Repeat("02", 18)+"00 00"+snap+"08 00"+tcp4, wantTCP4(136)),
		on("ppi_ethernet", LinkPPI, "00 00 08 00 01 00 00 00"+macs+"08 00"+tcp4, wantTCP4(62)),
	}
}

func TestGoldenFrames(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			p := Parser{Decap: s.decap}
			in := Info{TimestampNs: 77, Seq: 1, Ack: 2, VLAN: 3, TunnelID: 4, Flags: 0xff} // must all be overwritten
			require.Equal(t, s.verdict.String(), p.Parse(s.link, s.frame, s.wireLen(), &in).String())
			require.True(t, s.link.Known())
			if s.verdict != OK {
				return
			}
			want := s.want
			want.TimestampNs, want.WireLen = 77, s.wireLen()
			require.Equal(t, want, in)
			require.Len(t, in.Payload(s.frame), int(in.PayloadCap))
		})
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	all := samples()
	var in Info
	require.Zero(t, testing.AllocsPerRun(10, func() {
		for i := range all {
			p := Parser{Decap: all[i].decap}
			p.Parse(all[i].link, all[i].frame, all[i].wireLen(), &in)
		}
	}))
}
