package packet_test

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// other is what gopacket makes of a frame: its outermost IP packet.
type other struct {
	src, dst     []byte
	l3           uint32
	protocol     uint8
	sport, dport uint16
	ports        bool // there is a transport layer with ports
	payload      int  // captured bytes behind the transport header
	later        bool // a fragment without ports
	failed       bool // gopacket met an error
}

// decodeOther decodes with gopacket; false means that there is no IP packet.
func decodeOther(link packet.LinkType, frame []byte) (o other, ok bool) {
	var first gopacket.Decoder = layers.LinkType(link)
	switch link {
	case packet.LinkIPv4:
		first = layers.LayerTypeIPv4
	case packet.LinkIPv6:
		first = layers.LayerTypeIPv6
	case packet.LinkRawBSD, packet.LinkRawOpenBSD: // gopacket ties these to the operating system it runs on
		first = layers.LinkTypeRaw
	}
	p := gopacket.NewPacket(frame, first, gopacket.NoCopy)
	o.failed = p.ErrorLayer() != nil
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.IPv4:
			if ok {
				return o, ok
			}
			ok = true
			o.src, o.dst, o.l3, o.protocol = l.SrcIP, l.DstIP, uint32(l.Length), uint8(l.Protocol)
			if l.FragOffset != 0 {
				o.later = true
				return o, ok
			}
		case *layers.IPv6:
			if ok {
				return o, ok
			}
			ok = true
			o.src, o.dst, o.l3, o.protocol = l.SrcIP, l.DstIP, uint32(l.Length)+40, uint8(l.NextHeader)
		case *layers.IPv6HopByHop:
			o.protocol = uint8(l.NextHeader)
		case *layers.IPv6Routing:
			o.protocol = uint8(l.NextHeader)
		case *layers.IPv6Destination:
			o.protocol = uint8(l.NextHeader)
		case *layers.IPv6Fragment:
			if ok {
				o.protocol = uint8(l.NextHeader)
				if l.FragmentOffset != 0 {
					o.later = true
					return o, ok
				}
			}
		case *layers.TCP:
			if ok {
				o.sport, o.dport, o.ports, o.payload = uint16(l.SrcPort), uint16(l.DstPort), true, len(l.Payload)
				return o, ok
			}
		case *layers.UDP:
			if ok {
				o.sport, o.dport, o.ports, o.payload = uint16(l.SrcPort), uint16(l.DstPort), true, len(l.Payload)
				return o, ok
			}
		case *layers.SCTP:
			if ok {
				o.sport, o.dport, o.ports, o.payload = uint16(l.SrcPort), uint16(l.DstPort), true, len(l.Payload)
				return o, ok
			}
		default:
			if ok {
				return o, ok
			}
		}
	}
	return o, ok
}

// disagreements are the frames of the captures on which gopacket and this parser
// differ, by capture and frame number, with the reason.
var disagreements = map[string]map[int]string{
	"fuzz-2006-09-29-28586.pcap": {
		91:  "the version nibble is not 4, which gopacket does not check",
		111: "the IP length leaves 15 bytes for TCP, which gopacket counts as a header without ports",
	},
	"fuzz-2020-02-16-11740.pcap": {
		18:  "bad IPv4 options, which gopacket refuses; they do not matter for the flow",
		32:  "bad IPv4 options, as above",
		189: "protocol 0, an IPv6 extension header that gopacket follows inside IPv4 too",
		218: "the version nibble is not 4",
		238: "the version nibble is not 4",
		339: "the version nibble is not 4",
	},
	"kerberos_fuzz.pcapng": {
		1: "bad TCP options, behind which gopacket reports no payload",
	},
}

func TestCapturesParseLikeGopacket(t *testing.T) {
	var parser packet.Parser
	verdicts := map[string]int{}
	var compared, ports int
	for _, path := range testcap.All(t) {
		name := filepath.Base(path)
		known := disagreements[name]
		r, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		b := &source.Batch{}
		nr := 0
		for {
			if _, err := r.Next(b); err != nil {
				if err != io.EOF {
					require.ErrorIs(t, err, pcap.ErrTruncated)
				}
				break
			}
			for _, f := range b.Frames {
				nr++
				var in packet.Info
				v := parser.Parse(f.LinkType, f.Data, f.WireLen, &in)
				verdicts[v.String()]++
				if known[nr] != "" {
					continue
				}
				o, ok := decodeOther(f.LinkType, f.Data)
				if o.src == nil {
					ok = false // gopacket saw that there is IP, but could not read it
				}
				switch {
				case v != packet.OK:
					if ok {
						t.Errorf("%s %d: %v, but gopacket has %+v", name, nr, v, o)
					}
					continue
				case !ok:
					if !ciscoHDLC(f) && f.LinkType != packet.LinkPPI { // gopacket reads neither
						t.Errorf("%s %d: %+v, but gopacket has nothing", name, nr, in)
					}
					continue
				}
				compared++
				n := 4
				if in.IPVersion == 6 {
					n = 16
				}
				mine := other{
					src: in.Src[:n], dst: in.Dst[:n], l3: in.L3Len, protocol: in.Protocol,
					later: in.Flags&packet.FlagFragmentLater != 0, failed: o.failed,
				}
				if in.Flags&packet.FlagBadLength != 0 || o.l3 == 0 {
					mine.l3 = o.l3 // clamped; gopacket reports what the header says
				}
				if in.Flags&packet.FlagFragment == 0 && (in.Protocol == packet.ProtoTCP || in.Protocol == packet.ProtoUDP || in.Protocol == packet.ProtoSCTP) {
					// gopacket does not look at the ports of a first fragment.
					ports++
					mine.ports, mine.sport, mine.dport, mine.payload = true, in.SrcPort, in.DstPort, int(in.PayloadCap)
				}
				if !equalOther(mine, o) {
					t.Errorf("%s %d: %+v, but gopacket has %+v", name, nr, mine, o)
				}
			}
		}
		require.NoError(t, r.Close())
	}
	require.Positive(t, ports)
	t.Logf("%d frames compared, %d with ports; verdicts %v", compared, ports, verdicts)
}

func equalOther(a, b other) bool {
	return bytes.Equal(a.src, b.src) && bytes.Equal(a.dst, b.dst) && a.l3 == b.l3 && a.protocol == b.protocol &&
		a.sport == b.sport && a.dport == b.dport && a.ports == b.ports && a.payload == b.payload && a.later == b.later
}

// ciscoHDLC reports whether a frame of a serial link is Cisco HDLC.
func ciscoHDLC(f source.Frame) bool {
	return f.LinkType == packet.LinkCiscoHDLC || f.LinkType == packet.LinkPPP && len(f.Data) > 1 && f.Data[0]|0x80 == 0x8f && f.Data[1] == 0
}

// TestCapturedTunnelsOpenLikeGopacket compares inner packets of GTP-U, VXLAN, GRE and
// Geneve with those behind gopacket's last tunnel layer.
func TestCapturedTunnelsOpenLikeGopacket(t *testing.T) {
	parser := packet.Parser{Decap: packet.Decap{VXLAN: true, GRE: true, Geneve: true, GTPU: true}}
	opened, captures := map[gopacket.LayerType]int{}, map[string]bool{}
	for _, path := range testcap.All(t) {
		r, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		b := &source.Batch{}
		nr := 0
		for {
			if _, err := r.Next(b); err != nil {
				break
			}
			for _, f := range b.Frames {
				nr++
				var in packet.Info
				if parser.Parse(f.LinkType, f.Data, f.WireLen, &in) != packet.OK || in.Flags&packet.FlagTunnel == 0 {
					continue
				}
				var inner gopacket.NetworkLayer
				var kind gopacket.LayerType
				var sport, dport uint16
				for _, l := range gopacket.NewPacket(f.Data, layers.LinkType(f.LinkType), gopacket.NoCopy).Layers() {
					switch l := l.(type) {
					case *layers.GTPv1U, *layers.VXLAN, *layers.GRE, *layers.Geneve:
						inner, kind = nil, l.LayerType()
					case *layers.IPv4:
						inner = l
					case *layers.IPv6:
						inner = l
					case *layers.TCP:
						sport, dport = uint16(l.SrcPort), uint16(l.DstPort)
					case *layers.UDP:
						sport, dport = uint16(l.SrcPort), uint16(l.DstPort)
					}
				}
				if !assert.NotNil(t, inner, "%s %d: gopacket opens no tunnel: %+v", filepath.Base(path), nr, in) {
					continue
				}
				opened[kind]++
				captures[filepath.Base(path)] = true
				n := len(inner.NetworkFlow().Src().Raw())
				require.Equal(t, inner.NetworkFlow().Src().Raw(), in.Src[:n], "%s %d", filepath.Base(path), nr)
				require.Equal(t, inner.NetworkFlow().Dst().Raw(), in.Dst[:n], "%s %d", filepath.Base(path), nr)
				if in.Protocol == packet.ProtoTCP || in.Protocol == packet.ProtoUDP {
					require.Equal(t, [2]uint16{sport, dport}, [2]uint16{in.SrcPort, in.DstPort}, "%s %d", filepath.Base(path), nr)
				}
			}
		}
		require.NoError(t, r.Close())
	}
	t.Log(opened, captures)
	require.NotEmpty(t, opened)
}

// TestEveryLinkTypeOfGopacketGivesTheSameAddressesAndPorts fails too when gopacket
// learns a link type that the table does not know.
func TestEveryLinkTypeOfGopacketGivesTheSameAddressesAndPorts(t *testing.T) {
	const family4, family6 = 2, 30
	snap := func(et layers.EthernetType) []byte {
		return []byte{0xaa, 0xaa, 0x03, 0, 0, 0, byte(et >> 8), byte(et)}
	}
	wifi := func(et layers.EthernetType) []byte {
		h := append([]byte{0x08, 0x01, 0, 0}, make([]byte, 20)...)
		return append(h, snap(et)...)
	}
	cooked := func(et layers.EthernetType) []byte {
		return []byte{0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, byte(et >> 8), byte(et)}
	}
	none := func(layers.EthernetType, byte) []byte { return nil }
	before := map[packet.LinkType]func(et layers.EthernetType, family byte) []byte{
		packet.LinkNull: func(_ layers.EthernetType, f byte) []byte { return []byte{f, 0, 0, 0} },
		packet.LinkLoop: func(_ layers.EthernetType, f byte) []byte { return []byte{0, 0, 0, f} },
		packet.LinkEthernet: func(et layers.EthernetType, _ byte) []byte {
			return append(make([]byte, 12), byte(et>>8), byte(et))
		},
		packet.LinkPPP: func(et layers.EthernetType, _ byte) []byte {
			if et == layers.EthernetTypeIPv6 {
				return []byte{0xff, 0x03, 0x00, 0x57}
			}
			return []byte{0x00, 0x21}
		},
		packet.LinkFDDI: func(et layers.EthernetType, _ byte) []byte {
			return append(append([]byte{0x50}, make([]byte, 12)...), snap(et)...)
		},
		packet.LinkRaw:        none,
		packet.LinkRawBSD:     none,
		packet.LinkRawOpenBSD: none,
		packet.LinkIPv4:       none,
		packet.LinkIPv6:       none,
		packet.LinkPFLog: func(_ layers.EthernetType, f byte) []byte {
			return append([]byte{61, f}, make([]byte, 62)...)
		},
		packet.LinkIEEE80211: func(et layers.EthernetType, _ byte) []byte { return wifi(et) },
		packet.LinkPrism: func(et layers.EthernetType, _ byte) []byte {
			return append(append([]byte{0x44, 0, 0, 0, 24, 0, 0, 0}, make([]byte, 16)...), wifi(et)...)
		},
		packet.LinkRadiotap: func(et layers.EthernetType, _ byte) []byte {
			return append([]byte{0, 0, 8, 0, 0, 0, 0, 0}, wifi(et)...)
		},
		packet.LinkLinuxSLL: func(et layers.EthernetType, _ byte) []byte { return cooked(et) },
		packet.LinkLinuxSLL2: func(et layers.EthernetType, _ byte) []byte {
			return append([]byte{byte(et >> 8), byte(et)}, make([]byte, 18)...)
		},
	}
	withoutIP := map[packet.LinkType]bool{packet.LinkType(layers.LinkTypeLinuxUSB): true}
	for i, m := range layers.LinkTypeMetadata {
		link := packet.LinkType(i)
		if m.Name == "UnknownLinkType" || m.Name == "" || withoutIP[link] {
			continue
		}
		require.Contains(t, before, link, "gopacket decodes %s", m.Name)
	}
	ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
	tcp := &layers.TCP{SrcPort: 49152, DstPort: 443, SYN: true}
	require.NoError(t, tcp.SetNetworkLayerForChecksum(ip4))
	ip6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")}
	udp := &layers.UDP{SrcPort: 5353, DstPort: 53}
	require.NoError(t, udp.SetNetworkLayerForChecksum(ip6))
	serialize := func(l ...gopacket.SerializableLayer) []byte {
		buf := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...))
		return buf.Bytes()
	}
	// The payload is long enough for the 4 bytes that gopacket's 802.11 takes for the check sequence.
	packets := map[layers.EthernetType][]byte{
		layers.EthernetTypeIPv4: serialize(ip4, tcp, gopacket.Payload("hello, world")),
		layers.EthernetTypeIPv6: serialize(ip6, udp, gopacket.Payload("hello, world")),
	}
	for link, header := range before {
		require.True(t, link.Known())
		for et, family := range map[layers.EthernetType]byte{layers.EthernetTypeIPv4: family4, layers.EthernetTypeIPv6: family6} {
			if link == packet.LinkIPv4 && et != layers.EthernetTypeIPv4 || link == packet.LinkIPv6 && et != layers.EthernetTypeIPv6 {
				continue
			}
			frame := append(header(et, family), packets[et]...)
			o, ok := decodeOther(link, append(frame, 0, 0, 0, 0))
			require.True(t, ok, "link type %d, %v: gopacket reads the packet", link, et)
			require.True(t, o.ports)
			var in packet.Info
			var p packet.Parser
			require.Equal(t, packet.OK, p.Parse(link, frame, 0, &in), "link type %d, %v", link, et)
			n := len(o.src)
			require.Equal(t, []any{o.src, o.dst, o.sport, o.dport, o.protocol, o.l3},
				[]any{in.Src[:n], in.Dst[:n], in.SrcPort, in.DstPort, in.Protocol, in.L3Len}, "link type %d, %v", link, et)
			require.Equal(t, "hello, world", string(in.Payload(frame)))
		}
	}
}
