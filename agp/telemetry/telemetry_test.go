package telemetry

import (
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func tcpRecord() *Record {
	r := &Record{
		IPVersion: 4, Protocol: 6, SrcPort: 40000, DstPort: 443, VLANID: 7, TunnelID: 9,
		StartNs: 1700000000000000000, EndNs: 1700000001000000000, EndReason: EndTCP,
		FirstReplyNs: 1500, TCPHandshakeNs: 3000, TCPSynRetransmits: 1, Queue: 3, Interface: "eth0",
		Outputs: []Output{{Field: "app", Label: "tls", Score: 0.9, Model: "app@1"}, {Field: "class", Label: "benign", Score: 0.75, Model: "class@1"}},
	}
	r.Src[0], r.Src[3] = 10, 1
	r.Dst[0], r.Dst[3] = 10, 2
	for d := range r.Dir {
		r.Dir[d] = Half{
			Packets: 5, WireBytes: 500, L3Bytes: 430, PayloadBytes: 300, TCPFlags: 0x1b,
			WireLenMin: 60, WireLenMax: 140, WireLenMean: 100.125, WireLenStd: 3.5,
			DelayMinNs: 10, DelayMaxNs: 1000, DelayMeanNs: 333.3, DelayStdNs: 12.25,
			Retransmits: 1, OutOfOrder: 2, ZeroWindows: 3,
		}
	}
	r.SizeHist[4], r.DelayHist[10] = 10, 9
	return r
}

func decode(t *testing.T, line []byte) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal(line, &m), "%s", line)
	return m
}

func TestJSONFlowHasTheNamesOfTheDesign(t *testing.T) {
	m := decode(t, AppendJSON(nil, tcpRecord()))
	want := strings.Fields(`type ip_version protocol src dst src_port dst_port vlan_id tunnel_id start_ns end_ns end_reason fragment
		size_hist delay_hist first_reply_ns tcp_handshake_ns tcp_syn_retransmits queue interface time_steps
		app app_score app_model class class_score class_model`)
	for _, n := range strings.Fields(`packets wire_bytes l3_bytes payload_bytes tcp_flags wire_len_min wire_len_mean wire_len_max wire_len_std
		delay_ns_min delay_ns_mean delay_ns_max delay_ns_std tcp_retransmits tcp_out_of_order tcp_zero_windows`) {
		want = append(want, n+"_fwd", n+"_rev")
	}
	got := make([]string, 0, len(m))
	for k := range m {
		got = append(got, k)
	}
	require.ElementsMatch(t, want, got)
	require.Equal(t, "flow", m["type"])
	require.Equal(t, "10.0.0.1", m["src"])
	require.Equal(t, "tcp", m["protocol"])
	require.Equal(t, "tcp_end", m["end_reason"])
	require.InDelta(t, 0.9, m["app_score"], 0)
	require.Len(t, m["size_hist"], SizeBins)
	require.Len(t, m["delay_hist"], DelayBins)
}

func TestReadingsThatCannotExistAreLeftOut(t *testing.T) {
	udp := &Record{IPVersion: 6, Protocol: 17, SrcPort: 53, DstPort: 5353, FirstReplyNs: -1, TCPHandshakeNs: -1}
	udp.Dir[Fwd] = Half{Packets: 1, WireBytes: 60, WireLenMin: 60, WireLenMax: 60, WireLenMean: 60}
	m := decode(t, AppendJSON(nil, udp))
	for _, absent := range strings.Fields(`vlan_id tunnel_id first_reply_ns tcp_handshake_ns tcp_syn_retransmits tcp_flags_fwd tcp_retransmits_fwd
		wire_len_min_rev wire_len_mean_rev delay_ns_mean_fwd delay_ns_mean_rev app class interface`) {
		require.NotContains(t, m, absent)
	}
	require.Contains(t, m, "wire_len_std_fwd", "one packet has a deviation of 0")
	require.InDelta(t, 0, m["packets_rev"], 0, "a count of 0 exists")
	require.Equal(t, "::", m["src"])

	icmp := &Record{IPVersion: 4, Protocol: 1, SrcPort: 8, DstPort: 1}
	require.NotContains(t, decode(t, AppendJSON(nil, icmp)), "src_port", "ICMP has no ports")

	frag := tcpRecord()
	frag.Fragment = true
	m = decode(t, AppendJSON(nil, frag))
	require.NotContains(t, m, "src_port", "a port-less fragment flow")
	require.NotContains(t, m, "tcp_flags_fwd")
	require.Equal(t, true, m["fragment"])
}

func TestJSONIsFiniteAndEscaped(t *testing.T) {
	r := tcpRecord()
	r.Dir[Fwd].WireLenMean, r.Dir[Rev].DelayStdNs = math.NaN(), math.Inf(1)
	r.Interface = "a\"b\\c\n\x01\xff\u00e9"
	m := decode(t, AppendJSON(nil, r))
	require.NotContains(t, m, "wire_len_mean_fwd")
	require.NotContains(t, m, "delay_ns_std_rev")
	require.Equal(t, "a\"b\\c\n\x01\ufffd\u00e9", m["interface"])
}

func TestJSONAlertAndSummary(t *testing.T) {
	m := decode(t, AppendAlertJSON(nil, &Alert{TimeNs: 5, Kind: "port_scan", Src: "10.0.0.1", Protocol: 6, Count: 100, Threshold: 50, WindowNs: 1e9}))
	require.Equal(t, map[string]any{"type": "alert", "time_ns": 5., "kind": "port_scan", "src": "10.0.0.1", "protocol": "tcp",
		"count": 100., "threshold": 50., "window_ns": 1e9}, m)
	m = decode(t, AppendAlertJSON(nil, &Alert{Kind: "classified", Class: "c2", Model: "class@1", Score: 0.5, Interface: "eth0"}))
	require.NotContains(t, m, "count", "a model's finding has a score, not a count")
	require.InDelta(t, 0.5, m["score"], 0)

	m = decode(t, AppendSummaryJSON(nil, &Summary{PacketsSeen: 9, PacketsRecorded: 6, Drops: map[string]uint64{"arp": 1, "b": 2}, Records: 3, Seconds: 0.5}))
	require.Equal(t, map[string]any{"type": "summary", "packets_seen": 9., "packets_recorded": 6., "drops": map[string]any{"arp": 1., "b": 2.},
		"errors": map[string]any{}, "records": 3., "alerts": 0., "seconds": 0.5}, m)
}

func TestAppendJSONDoesNotAllocate(t *testing.T) {
	r, buf := tcpRecord(), make([]byte, 0, 4096)
	require.Zero(t, testing.AllocsPerRun(200, func() { buf = AppendJSON(buf[:0], r) }))
}

func TestEndReasonsAreThoseOfTheDesign(t *testing.T) {
	require.Equal(t, "idle active tcp_end evicted flushed", strings.Join([]string{EndIdle.String(), EndActive.String(), EndTCP.String(),
		EndEvicted.String(), EndFlushed.String()}, " "))
	require.Equal(t, "end_reason_9", EndReason(9).String())
}

func TestMissingIsTheAccountingIdentity(t *testing.T) {
	s := Snapshot{Engine: EngineRow{PacketsSeen: 10, PacketsRecorded: 4, PacketsActive: 3, Drops: map[string]uint64{"arp": 2, "bad": 1}}}
	require.Zero(t, s.Missing())
	s.Engine.PacketsSeen++
	require.EqualValues(t, 1, s.Missing())
}

func TestResetKeepsMemoryAndNothingElse(t *testing.T) {
	s := Snapshot{TimeNs: 1, Traffic: make([]TrafficRow, 2, 8), Engine: EngineRow{Records: 4}}
	s.Reset()
	require.Equal(t, 8, cap(s.Traffic))
	require.Empty(t, s.Traffic)
	require.Zero(t, s.Engine)
	require.Zero(t, s.TimeNs)
}

func TestAddr(t *testing.T) {
	a := [16]byte{1, 2, 3, 4}
	require.Equal(t, netip.MustParseAddr("1.2.3.4"), Addr(4, &a))
	require.Equal(t, netip.MustParseAddr("102:304::"), Addr(6, &a))
}

func BenchmarkAppendJSON(b *testing.B) {
	r, buf := tcpRecord(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendJSON(buf[:0], r)
	}
	b.SetBytes(int64(len(buf)))
}
