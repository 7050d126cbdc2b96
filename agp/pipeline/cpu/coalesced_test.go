package cpu

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// super returns a TCP or UDP frame over IPv4 or IPv6 with payload bytes of payload, as
// it is before segmentation. A total length above 65,535 is written as 0 (BIG TCP).
func super(rng *rand.Rand, payload int) []byte {
	v6, udp := rng.IntN(2) == 0, rng.IntN(3) == 0
	l4 := 8
	if !udp {
		l4 = 20 + 4*rng.IntN(4)
	}
	f := make([]byte, 14, 14+40+l4+payload)
	ports := uint16(rng.IntN(40))
	if v6 {
		f[12], f[13] = 0x86, 0xdd
		ip := make([]byte, 40)
		ip[0] = 0x60
		if n := l4 + payload; n <= 65535 {
			binary.BigEndian.PutUint16(ip[4:], uint16(n))
		}
		ip[6], ip[7], ip[8], ip[24] = packet.ProtoTCP, 64, 0xfd, 0xfd
		if udp {
			ip[6] = packet.ProtoUDP
		}
		ip[23], ip[39] = 1, 2
		f = append(f, ip...)
	} else {
		f[12], f[13] = 8, 0
		ip := make([]byte, 20)
		ip[0] = 0x45
		if n := 20 + l4 + payload; n <= 65535 {
			binary.BigEndian.PutUint16(ip[2:], uint16(n))
		}
		ip[8], ip[9] = 64, packet.ProtoTCP
		if udp {
			ip[9] = packet.ProtoUDP
		}
		ip[12], ip[15], ip[16], ip[19] = 10, 1, 10, 2
		f = append(f, ip...)
	}
	h := make([]byte, l4)
	binary.BigEndian.PutUint16(h, 1000+ports)
	binary.BigEndian.PutUint16(h[2:], 80)
	if udp {
		if n := 8 + payload; n <= 65535 {
			binary.BigEndian.PutUint16(h[4:], uint16(n))
		}
	} else {
		binary.BigEndian.PutUint32(h[4:], rng.Uint32())
		h[12], h[13], h[14] = byte(l4/4)<<4, uint8(rng.IntN(256))&^(packet.TCPSyn|packet.TCPRst), 1
	}
	f = append(f, h...)
	for range payload {
		f = append(f, byte(rng.Uint32()))
	}
	return f
}

// split is segmentation as a network card does it, on bytes.
func split(f []byte, size int) (out [][]byte) {
	l3, l4, proto := 20, 8, f[14+9]
	if f[12] == 0x86 {
		l3, proto = 40, f[14+6]
	}
	if proto == packet.ProtoTCP {
		l4 = int(f[14+l3+12]>>4) * 4
	}
	head := 14 + l3 + l4
	payload := f[head:]
	for from := 0; from < len(payload); from += size {
		part := payload[from:min(from+size, len(payload))]
		s := append(append([]byte(nil), f[:head]...), part...)
		if l3 == 20 {
			binary.BigEndian.PutUint16(s[14+2:], uint16(l3+l4+len(part)))
		} else {
			binary.BigEndian.PutUint16(s[14+4:], uint16(l4+len(part)))
		}
		t := s[14+l3:]
		if proto == packet.ProtoUDP {
			binary.BigEndian.PutUint16(t[4:], uint16(8+len(part)))
		} else {
			binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(from))
			if from > 0 {
				t[13] &^= packet.TCPCwr
			}
			if from+size < len(payload) {
				t[13] &^= packet.TCPFin | packet.TCPPsh
			}
		}
		out = append(out, s)
	}
	return out
}

// TestCoalescedFramesCountAsTheFramesOnTheWire: a super-packet gives the record that its
// segments give when they come one by one at the same time, in packets, bytes and
// histograms, also if the source cut it short, and the record says how many came so.
func TestCoalescedFramesCountAsTheFramesOnTheWire(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	var whole, single []source.Frame
	ts := int64(1_700_000_000_000_000_000)
	var coalesced int
	for range 3000 {
		ts += rng.Int64N(3e6)
		payload, size := 1+rng.IntN(4000), 500+rng.IntN(1000)
		if rng.IntN(100) == 0 {
			payload = 66_000 + rng.IntN(100_000)
		}
		f := super(rng, payload)
		parts := split(f, size)
		w := source.Frame{Data: f[:min(len(f), 256)], WireLen: uint32(len(f)), TimestampNs: ts, LinkType: 1, SegmentSize: uint16(size)}
		whole = append(whole, w)
		left := 256
		for i, s := range parts {
			head := len(s) - min(size, payload-i*size)
			seen := len(s) // what of this segment lies within the first 256 bytes of the frame
			if len(f) > 256 {
				seen = head + max(0, min(len(s)-head, left-head-i*size))
			}
			single = append(single, source.Frame{Data: s[:seen], WireLen: uint32(len(s)), TimestampNs: ts, LinkType: 1})
		}
		if len(parts) > 1 {
			coalesced += len(parts)
		}
	}
	want, wantSnap := run(t, Config{Source: &frames{list: single}, Queues: 2})
	got, gotSnap := run(t, Config{Source: &frames{list: whole}, Queues: 2, Batch: 64})
	var said int
	for i, r := range got.records {
		at := strings.Index(r, `"packets_coalesced":`)
		if at >= 0 {
			end := at + strings.IndexByte(r[at:], ',') + 1
			var n int
			for _, c := range r[at+len(`"packets_coalesced":`) : end-1] {
				n = 10*n + int(c-'0')
			}
			said += n
			got.records[i] = r[:at] + r[end:]
		}
	}
	sameLines(t, want.records, got.records, "records")
	require.Equal(t, coalesced, said)
	require.EqualValues(t, len(single), gotSnap.Engine.PacketsSeen)
	require.Equal(t, wantSnap.Engine.PacketsRecorded, gotSnap.Engine.PacketsRecorded)
	require.Equal(t, wantSnap.Traffic, gotSnap.Traffic)
	require.Zero(t, gotSnap.Missing())
}
