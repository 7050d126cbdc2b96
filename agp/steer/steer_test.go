package steer

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

const (
	tcNext  = 0xffffffff // TC_ACT_UNSPEC, TCX_NEXT
	tcShot  = 2
	xdpDrop = 1
	xdpPass = 2
)

// load returns a datapath, or ends a test where the kernel or the user's rights do not allow one.
func load(t testing.TB, cfg Config) *Datapath {
	t.Helper()
	if cfg.RingBytes == 0 {
		cfg.RingBytes = 64 << 10
	}
	if cfg.MaxBlocked == 0 {
		cfg.MaxBlocked = 1 << 10
	}
	d, err := Load(cfg)
	if errors.Is(err, ErrPermission) || errors.Is(err, ErrUnsupported) {
		testcap.Missing(t, "%v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// run gives a frame to a program and returns its verdict.
func run(t testing.TB, d *Datapath, name string, frame []byte) uint32 {
	t.Helper()
	return runSKB(t, d, name, frame, nil)
}

// skb is struct __sk_buff up to gso_size, for what a test may set.
type skb struct {
	_       [36]byte
	_       uint32 // ingress_ifindex
	Ifindex uint32
	_       [120]byte
	GSOSegs uint32
	_       [8]byte
	GSOSize uint32
}

func runSKB(t testing.TB, d *Datapath, name string, frame []byte, ctx *skb) uint32 {
	t.Helper()
	d.mu.Lock()
	p, err := d.program(name, 0, 0)
	d.mu.Unlock()
	require.NoError(t, err)
	o := &ebpf.RunOptions{Data: frame, Repeat: 1}
	if ctx != nil {
		o.Context = ctx
	}
	v, err := p.Run(o)
	require.NoError(t, err)
	return v
}

func count(t testing.TB, d *Datapath) Counters {
	t.Helper()
	c, err := d.Counters()
	require.NoError(t, err)
	return c
}

func frame(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ls...))
	return buf.Bytes()
}

func ether(typ layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: typ}
}

// packet is an Ethernet frame with an IP packet of a protocol and 4 bytes of payload.
func packet(t testing.TB, proto layers.IPProtocol, src, dst string) []byte {
	t.Helper()
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	var l4 []gopacket.SerializableLayer
	switch proto {
	case layers.IPProtocolTCP:
		l4 = append(l4, &layers.TCP{SrcPort: layers.TCPPort(s.Port()), DstPort: layers.TCPPort(d.Port()), Window: 1})
	case layers.IPProtocolUDP:
		l4 = append(l4, &layers.UDP{SrcPort: layers.UDPPort(s.Port()), DstPort: layers.UDPPort(d.Port())})
	case layers.IPProtocolICMPv4:
		l4 = append(l4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)})
	}
	l4 = append(l4, gopacket.Payload("load"))
	if s.Addr().Is4() {
		return frame(t, append([]gopacket.SerializableLayer{ether(layers.EthernetTypeIPv4),
			&layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: s.Addr().AsSlice(), DstIP: d.Addr().AsSlice()}}, l4...)...)
	}
	return frame(t, append([]gopacket.SerializableLayer{ether(layers.EthernetTypeIPv6),
		&layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: s.Addr().AsSlice(), DstIP: d.Addr().AsSlice()}}, l4...)...)
}

func udp(t testing.TB, src, dst string) []byte { return packet(t, layers.IPProtocolUDP, src, dst) }

// record is one record of a ring.
type record struct {
	bpf.Event
	data []byte
	size int // of the record in the ring
}

// drain reads what is in the rings; the test's own small reader, for one goroutine.
func drain(t testing.TB, d *Datapath) []record {
	t.Helper()
	var out []record
	for _, m := range d.Rings() {
		out = append(out, readRing(t, m)...)
	}
	return out
}

func TestAMirrorPassesAndTakesASnapshot(t *testing.T) {
	d := load(t, Config{})
	f := udp(t, "66.9.149.187:2794", "161.142.100.80:1766")
	require.EqualValues(t, tcNext, run(t, d, bpf.SteerProgAgpIngress, f))
	got := drain(t, d)
	require.Len(t, got, 1)
	require.Equal(t, f, got[0].data)
	require.EqualValues(t, 0x9fcc9fcc, got[0].Hash)
	require.EqualValues(t, len(f), got[0].Len)
	require.EqualValues(t, 1, got[0].GSOSegs)
	require.Zero(t, got[0].GSOSize)
	require.EqualValues(t, bpf.HookIngress, got[0].Hook)
	c := count(t, d)
	require.Equal(t, Count{Frames: 1, Bytes: uint64(len(f))}, c.ToEngine)
	require.Equal(t, c.ToEngine, c.Pass)
	require.Equal(t, c.ToEngine, c.Seen())
}
