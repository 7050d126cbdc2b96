package traffic

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

var (
	client = netip.MustParseAddrPort("10.0.0.1:40000")
	server = netip.MustParseAddrPort("10.0.0.2:443")
)

func pcap(t *testing.T, c *Capture) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, c.WritePcap(&b))
	return b.Bytes()
}

func TestSameSeedGivesSameBytes(t *testing.T) {
	for name, build := range map[string]func(uint64) *Capture{
		"demo":          Demo,
		"bench":         func(s uint64) *Capture { return Bench(s, 24_000, 1_000) },
		"flood":         func(s uint64) *Capture { return Flood(s, 1_000) },
		"million-flows": func(s uint64) *Capture { return ManyFlows(s, 1_000) },
	} {
		t.Run(name, func(t *testing.T) {
			one := sha256.Sum256(pcap(t, build(7)))
			require.Equal(t, one, sha256.Sum256(pcap(t, build(7))))
			require.NotEqual(t, one, sha256.Sum256(pcap(t, build(8))))
		})
	}
}

// key is a flow's identity as an independent decoder sees it.
type key struct{ network, transport gopacket.Flow }

func (k key) canonical() key {
	if r := (key{k.network.Reverse(), k.transport.Reverse()}); r.network.String()+r.transport.String() < k.network.String()+k.transport.String() {
		return r
	}
	return k
}

// decode checks every frame with gopacket, lengths and check sums too, and counts packets per flow.
func decode(t *testing.T, file []byte) (packets int, flows map[key]int) {
	t.Helper()
	r, err := pcapgo.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	flows = map[key]int{}
	var last time.Time
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return packets, flows
		}
		require.NoError(t, err)
		require.False(t, info.Timestamp.Before(last), "time order")
		require.Equal(t, info.Length, info.CaptureLength)
		require.GreaterOrEqual(t, len(data), 60)
		last = info.Timestamp
		packets++
		p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.DecodeOptions{})
		require.Nil(t, p.ErrorLayer())
		for _, l := range p.Layers() {
			if c, ok := l.(interface {
				SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
			}); ok {
				require.NoError(t, c.SetNetworkLayerForChecksum(p.NetworkLayer()))
			}
		}
		failed, mismatches := p.VerifyChecksums()
		require.NoError(t, failed)
		require.Empty(t, mismatches)
		require.False(t, p.Metadata().Truncated)
		k := key{network: p.NetworkLayer().NetworkFlow()}
		if l4 := p.TransportLayer(); l4 != nil {
			k.transport = l4.TransportFlow()
		} else if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
			k.transport = gopacket.NewFlow(layers.EndpointUDPPort, []byte{byte(l.Id >> 8), byte(l.Id)}, []byte{byte(l.Id >> 8), byte(l.Id)})
		} else {
			l := p.Layer(layers.LayerTypeICMPv6Echo).(*layers.ICMPv6Echo)
			k.transport = gopacket.NewFlow(layers.EndpointUDPPort, []byte{byte(l.Identifier >> 8), byte(l.Identifier)}, []byte{byte(l.Identifier >> 8), byte(l.Identifier)})
		}
		flows[k.canonical()]++
	}
}

func TestBenchHasExactCountsAndDistinctFlows(t *testing.T) {
	c := Bench(1, 60_000, 3_000)
	packets, flows := decode(t, pcap(t, c))
	require.Equal(t, 60_000, packets)
	require.Len(t, flows, 3_000)
	most := 0
	for _, n := range flows {
		most = max(most, n)
	}
	require.Greater(t, most, 600, "a heavy tail")
}

func TestDemoFramesAreValidAndTruthAddsUp(t *testing.T) {
	c := Demo(1)
	packets, flows := decode(t, pcap(t, c))
	s := c.Summary("demo", 1)
	require.EqualValues(t, packets, s.Packets)
	require.EqualValues(t, len(flows), s.Flows)
	require.Greater(t, packets, 20_000)
	require.Less(t, packets, 60_000)
	want := map[string]uint64{EventPortScan: 1000, EventSynFlood: 6000, EventBeacon: 58, EventCovert: 1}
	for _, e := range s.Events {
		require.Equal(t, want[e.Kind], e.Flows, e.Kind)
		delete(want, e.Kind)
	}
	require.Empty(t, want)
	for _, app := range []string{"tls", "http", "dns", "ssh"} {
		require.NotZero(t, s.Apps[app].Flows, app)
	}
	require.NotZero(t, s.Retransmits)
	require.NotZero(t, s.OutOfOrder)
}

func TestFloodAndManyFlowsHaveOneKeyPerFlow(t *testing.T) {
	_, flows := decode(t, pcap(t, Flood(1, 2_000)))
	require.Len(t, flows, 2_000)
	packets, flows := decode(t, pcap(t, ManyFlows(1, 2_000)))
	require.Len(t, flows, 2_000)
	require.Equal(t, 8_000, packets)
}

func TestTruthOfOneFlowByHand(t *testing.T) {
	c := New(1)
	f := c.Flow(TCP, 1_000, client, server)
	f.RTT = 10 * time.Millisecond
	f.Handshake().Wait(time.Millisecond).Fill(Fwd, 100).Wait(f.RTT).Fill(Rev, 200).
		Wait(300 * time.Millisecond).Repeat(Rev).Wait(time.Millisecond).ZeroWindow(Fwd)
	truth := c.Truth()[0]
	fwd, rev := truth.Dir[Fwd], truth.Dir[Rev]
	require.EqualValues(t, 4, fwd.Packets)
	require.EqualValues(t, 3, rev.Packets)
	require.EqualValues(t, 60+52+52+100+52, fwd.L3Bytes)
	require.EqualValues(t, 74+66+166+66, fwd.WireBytes)
	require.EqualValues(t, 400, rev.PayloadBytes)
	require.EqualValues(t, 10*time.Millisecond, truth.FirstReplyNs)
	require.EqualValues(t, 10*time.Millisecond+50*time.Microsecond, truth.HandshakeNs)
	require.EqualValues(t, 1, rev.Retransmits)
	require.EqualValues(t, 1, fwd.ZeroWindows)
	require.Zero(t, rev.OutOfOrder)
	require.EqualValues(t, 11_050*time.Microsecond, rev.DelayMinNs)
	require.EqualValues(t, 300*time.Millisecond, rev.DelayMaxNs)
	require.InDelta(t, 155_525_000, rev.DelayMeanNs, 1e-6)
	require.InDelta(t, 144_475_000, rev.DelayStdNs, 1e-6)
}

func TestShortFramesArePadded(t *testing.T) {
	c := New(1)
	f := c.Flow(UDP, 0, client, server)
	f.VLAN = 42
	f.Fill(Fwd, 1)
	require.Len(t, c.Frames()[0].Data, 60)
	truth := c.Truth()[0]
	require.EqualValues(t, 29, truth.Dir[Fwd].L3Bytes)
	require.EqualValues(t, 60, truth.Dir[Fwd].WireBytes)
}

func TestSwapDeliversTheSecondSegmentFirst(t *testing.T) {
	c := New(1)
	f := c.Flow(TCP, 0, client, server)
	f.Plain = true
	f.Swap(Fwd, 10, 20, time.Millisecond)
	frames := c.Frames()
	require.Len(t, frames, 2)
	require.Len(t, frames[0].Data, 74)
	require.Len(t, frames[1].Data, 64)
	require.EqualValues(t, 1, c.Truth()[0].Dir[Fwd].OutOfOrder)
}
