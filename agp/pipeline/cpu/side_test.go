package cpu

import (
	"context"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// verdicts keeps what was confirmed.
type verdicts struct{ records, alerts []bool }

func (v *verdicts) Record(r *telemetry.Record) { v.records = append(v.records, r.Confirmed) }
func (v *verdicts) Alert(a *telemetry.Alert) {
	if a.Kind == detect.BruteForce {
		v.alerts = append(v.alerts, a.Confirmed)
	}
}

// login is a failed login from a port, whose directions come from the given sides; in
// VXLAN if tunnel is set.
func login(t *testing.T, at int64, port uint16, sides [2]uint8, tunnel bool) (list []source.Frame) {
	a, b := net.IP{198, 51, 100, 7}, net.IP{192, 0, 2, 1}
	say := func(dir int, syn, fin bool, seq, ack uint32, payload int) {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: a, DstIP: b}
		tcp := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: 22, Seq: seq, Ack: ack, SYN: syn, ACK: ack != 0, FIN: fin, Window: 1000}
		if dir == telemetry.Rev {
			ip.SrcIP, ip.DstIP, tcp.SrcPort, tcp.DstPort = b, a, 22, tcp.SrcPort
		}
		eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
		all := []gopacket.SerializableLayer{eth, ip, tcp, gopacket.Payload(make([]byte, payload))}
		if tunnel {
			outer := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
			udp := &layers.UDP{SrcPort: 5000, DstPort: 4789}
			require.NoError(t, udp.SetNetworkLayerForChecksum(outer))
			all = append([]gopacket.SerializableLayer{eth, outer, udp, &layers.VXLAN{ValidIDFlag: true, VNI: 7}}, all...)
		}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
		buf := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...))
		at += 1e6
		list = append(list, source.Frame{Data: buf.Bytes(), WireLen: uint32(len(buf.Bytes())), TimestampNs: at, LinkType: packet.LinkEthernet, Side: sides[dir]})
	}
	say(0, true, false, 1000, 0, 0)
	say(1, true, false, 5000, 1001, 0)
	say(0, false, false, 1001, 5001, 0)
	say(1, false, false, 5001, 1001, 40)
	say(0, false, true, 1001, 5041, 30)
	say(1, false, true, 5041, 1032, 0)
	say(0, false, false, 1032, 5042, 0)
	return list
}

// TestRecordsAndAlertsAreConfirmedByTheSidesOfFrames: not by those of a tunnel's frames, which
// are where the tunnel ends.
func TestRecordsAndAlertsAreConfirmedByTheSidesOfFrames(t *testing.T) {
	for _, c := range []struct {
		sides  [2]uint8
		tunnel bool
		want   bool
	}{
		{[2]uint8{1, source.SideOut}, false, true},
		{[2]uint8{1, 2}, false, true},
		{[2]uint8{1, 1}, false, false},
		{[2]uint8{source.SideOut, source.SideOut}, false, false},
		{[2]uint8{}, false, false},
		{[2]uint8{1, source.SideOut}, true, false},
	} {
		var list []source.Frame
		for i := range 20 {
			list = append(list, login(t, 1_700_000_000_000_000_000+int64(i)*1e8, uint16(40000+i), c.sides, c.tunnel)...)
		}
		var v verdicts
		p, err := New(Config{Source: &frames{list: list}, Sink: &v, Queues: 2, Decap: packet.Decap{VXLAN: true}})
		require.NoError(t, err)
		require.NoError(t, p.Run(context.Background()))
		require.Len(t, v.records, 20, "%+v", c)
		for _, got := range v.records {
			require.Equal(t, c.want, got, "%+v", c)
		}
		require.Equal(t, []bool{c.want}, v.alerts, "%+v", c)
	}
}
