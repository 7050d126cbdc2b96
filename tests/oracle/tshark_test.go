package oracle

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// tsharkCaptures are those with the most retransmissions, disorder, closed
// windows and DNS answers.
var tsharkCaptures = []string{
	"0e328ab7-12b2-4843-8717-a5b3ebef33a8.pcap", "30a385ed-171e-4f15-ac3f-08c96be7bfd1.pcap", "9596cf60-0da6-47a7-a375-1f25ae32d843.pcap",
	"HTTPS_NWZ_Zeitung.pcap", "alexa-app.pcapng", "amp.dns.RRSIG.fragmented.pcap", "android.pcap", "bad-dns-traffic.pcap",
	"f9421792-7d2c-47d3-90e0-07eb54ae12fa.pcap", "mining.pcapng", "modbusBig.pcap", "pkt.TCP.synflood.spoofed.pcap", "ssh.pcap",
	"strrat-4423258f-59bc-4a88-bfec-d8ac08c88538.pcap", "test-cc-capture-1.pcap", "tor.pcap", "wechat.pcap",
	"ndpi/KakaoTalk_chat.pcap", "ndpi/fix2.pcap", "ndpi/ftp-start-tls.pcap", "ndpi/ipp.pcap", "ndpi/monero.pcap", "ndpi/radmin3.pcapng",
	"ndpi/telegram.pcap", "ndpi/viber.pcap", "ndpi/wow.pcap",
}

func TestParseTshark(t *testing.T) {
	list, err := parseTshark(bytes.NewBufferString(
		"12.5\t10.0.0.1\t10.0.0.2\t\t\t80\t4000\t\t\t3\t0x0018\t1\t\t1\t0.020000001\t\t\n" +
			"12.75\t\t\t2001:db8::1\t2001:db8::2\t\t\t53\t4000\t\t\t\t\t\t\t1\t0.25\n" +
			"13.0\t10.0.0.1\t10.0.0.2\t\t\t\t\t\t\t\t\t\t\t\t\t\t\n"))
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "10.0.0.1:80", list[0].Src.String())
	require.Equal(t, int64(12_500_000_000), list[0].TimeNs)
	require.Equal(t, 3, list[0].Stream)
	require.EqualValues(t, 0x18, list[0].TCPFlags)
	require.True(t, list[0].Retransmit && list[0].ZeroWindow && !list[0].OutOfOrder)
	require.Equal(t, int64(20_000_001), list[0].InitialRTT)
	require.Equal(t, "[2001:db8::1]:53", list[1].Src.String())
	require.True(t, list[1].DNSResponse)
	require.Equal(t, int64(250_000_000), list[1].DNSTimeNs)
	_, err = parseTshark(bytes.NewBufferString("1\t2\n"))
	require.ErrorIs(t, err, ErrTshark)
}

// Where the record's definitions differ from tshark's fields, and what is
// compared instead:
//
//   - tcp.analysis.initial_rtt runs from the last SYN to the next segment with ACK
//     and without SYN, of either side: also to the RST+ACK of a refusal. A record has a
//     handshake only if a SYN+ACK was seen and the initiator acknowledged it.
//   - tcp.analysis.retransmission includes repeated SYN+ACK; so does tcp_retransmits.
//     tcp_syn_retransmits counts repeated SYN without ACK only.
//   - A tcp.stream never ends and a SYN with a new sequence number begins a new one; a
//     record ends with the connection. Counts are summed up over the pair of end points;
//     times are compared where a pair has one record and one stream.
//   - dns.time runs from the query that the answer belongs to; first_reply_ns from the
//     flow's first query, which may have had no answer. Where it had, both are equal.
//
// tcp_retransmits, tcp_out_of_order and tcp_zero_windows have no exception.

// tally counts what was compared, so that the test cannot pass by comparing nothing.
type tally struct{ segments, retransmits, disorder, closed, handshakes, replies, dns int }

// loss are the sums over one pair, by sending end.
type loss struct{ retransmits, outOfOrder, zeroWindows [2]uint32 }

func TestTshark(t *testing.T) {
	testcap.Program(t, "tshark")
	dir := testcap.Dir(t)
	var total tally
	for _, name := range tsharkCaptures {
		t.Run(filepath.Base(name), func(t *testing.T) {
			capture := filepath.Join(dir, filepath.FromSlash(name))
			theirs, err := RunTshark(t.Context(), capture)
			require.NoError(t, err)
			byPair := map[pair][]TsharkPacket{}
			for _, p := range theirs {
				k, _ := makePair(p.Protocol, p.Src, p.Dst)
				byPair[k] = append(byPair[k], p)
			}
			ours := recordsByPair(records(t, capture, packet.Decap{}))
			for k, list := range byPair {
				for _, d := range total.compare(list, ours[k]) {
					t.Errorf("%d %s:%d %s:%d: %s", k.protocol, k.low, k.lowP, k.high, k.higP, d)
				}
			}
		})
	}
	t.Logf("%d captures: %+v", len(tsharkCaptures), total)
	require.Greater(t, total.segments, 80_000)
	require.Greater(t, total.retransmits, 900)
	require.Greater(t, total.disorder, 30)
	require.Greater(t, total.closed, 5)
	require.Greater(t, total.handshakes, 300)
	require.Greater(t, total.replies, 300)
	require.Greater(t, total.dns, 80)
}

func (n *tally) compare(list []TsharkPacket, ours []pairRecord) (diffs []string) {
	differ := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	var want, got loss
	var wantSyn, gotSyn uint32
	streams := map[int]bool{}
	for _, p := range list {
		_, high := makePair(p.Protocol, p.Src, p.Dst)
		e := index(high)
		if p.Protocol == packet.ProtoTCP {
			n.segments++
		}
		if p.Retransmit {
			n.retransmits++
			want.retransmits[e]++
			if p.TCPFlags&(packet.TCPSyn|packet.TCPAck) == packet.TCPSyn {
				wantSyn++
			}
		}
		if p.OutOfOrder {
			n.disorder++
			want.outOfOrder[e]++
		}
		if p.ZeroWindow {
			n.closed++
			want.zeroWindows[e]++
		}
		streams[p.Stream] = true
	}
	for _, r := range ours {
		for d := range 2 {
			e := d ^ index(r.high)
			got.retransmits[e] += r.Dir[d].Retransmits
			got.outOfOrder[e] += r.Dir[d].OutOfOrder
			got.zeroWindows[e] += r.Dir[d].ZeroWindows
		}
		gotSyn += r.TCPSynRetransmits
	}
	if want != got {
		differ("loss %v, tshark %v (%d records, %d streams)", got, want, len(ours), len(streams))
	}
	if wantSyn != gotSyn {
		differ("repeated SYN %d, tshark %d", gotSyn, wantSyn)
	}
	if len(ours) == 1 && len(streams) == 1 {
		diffs = append(diffs, n.compareTimes(list, &ours[0])...)
	}
	return diffs
}

// compareTimes compares the only record of a pair with its only stream.
func (n *tally) compareTimes(list []TsharkPacket, r *pairRecord) (diffs []string) {
	first, reply := list[0], int64(-1)
	for _, p := range list {
		if p.Src != first.Src {
			reply = p.TimeNs - first.TimeNs
			if p.DNSTimeNs >= 0 && p.TimeNs-p.DNSTimeNs == first.TimeNs {
				n.dns++
				reply = p.DNSTimeNs
			}
			n.replies++
			break
		}
	}
	if r.FirstReplyNs != reply {
		diffs = append(diffs, fmt.Sprintf("first reply %d, tshark %d", r.FirstReplyNs, reply))
	}
	if first.Protocol != packet.ProtoTCP {
		return diffs
	}
	rtt := handshake(list)
	if rtt >= 0 {
		n.handshakes++
	}
	if r.TCPHandshakeNs != rtt {
		diffs = append(diffs, fmt.Sprintf("handshake %d, tshark %d", r.TCPHandshakeNs, rtt))
	}
	return diffs
}

// handshake is tshark's initial RTT if there was a handshake.
func handshake(list []TsharkPacket) int64 {
	rtt, synAck, done := int64(-1), false, false
	for _, p := range list {
		switch p.TCPFlags & (packet.TCPSyn | packet.TCPAck | packet.TCPRst) {
		case packet.TCPSyn | packet.TCPAck:
			synAck = true
		case packet.TCPAck:
			done = done || synAck
		}
		rtt = max(rtt, p.InitialRTT)
	}
	if !done {
		return -1
	}
	return rtt
}
