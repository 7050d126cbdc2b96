package flow

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestTCPLoss(t *testing.T) {
	cases := map[string]struct {
		run                         func(f *feed)
		retransmits, ooo, zeroWinds uint32 // client side
	}{
		"clean transfer": {run: func(f *feed) {
			for i := range uint32(5) {
				f.tcp(ms, false, psh, 101+100*i, 501, 100)
				f.tcp(ms, true, ack, 501, 201+100*i, 0)
			}
		}},
		"retransmission after a timeout": {run: func(f *feed) {
			f.tcp(ms, false, psh, 101, 501, 100)
			f.tcp(200*ms, false, psh, 101, 501, 100)
		}, retransmits: 1},
		"spurious: already acknowledged": {run: func(f *feed) {
			f.tcp(ms, false, psh, 101, 501, 100)
			f.tcp(us, true, ack, 501, 201, 0)
			f.tcp(us, false, psh, 101, 501, 100)
		}, retransmits: 1},
		"fast retransmission": {run: func(f *feed) {
			f.tcp(ms, false, psh, 101, 501, 100)
			f.tcp(us, false, psh, 201, 501, 100)
			f.tcp(us, false, psh, 301, 501, 100)
			for range 4 {
				f.tcp(us, true, ack, 501, 101, 0)
			}
			f.tcp(us, false, psh, 101, 501, 100)
		}, retransmits: 1},
		"reordered within the round trip": {run: func(f *feed) {
			f.tcp(ms, false, psh, 201, 501, 100)
			f.tcp(us, false, psh, 101, 501, 50)
		}, ooo: 1},
		"keep-alive is no retransmission": {run: func(f *feed) {
			f.tcp(ms, false, psh, 101, 501, 100)
			f.tcp(us, true, ack, 501, 201, 0)
			f.tcp(10*s, false, ack, 200, 501, 1)
			f.tcp(10*s, false, ack, 200, 501, 0)
		}},
		"zero window": {run: func(f *feed) {
			p := f.packet(ms, false, 0)
			p.TCPFlags, p.Info.Seq, p.Ack, p.Window = ack, 101, 501, 0
			f.add(p)
			f.tcp(ms, true, ack, 501, 101, 1) // the server's probe is not counted
			p = f.packet(ms, false, 0)
			p.TCPFlags, p.Info.Seq, p.Ack, p.Window = rst, 101, 501, 0
			f.add(p) // a reset's window says nothing
		}, zeroWinds: 1},
		"sequence numbers wrap": {run: func(f *feed) {
			f.tcp(s, false, syn, 0xffffffff-100, 0, 0)
			f.tcp(us, true, synack, 900, 0xffffffff-99, 0)
			f.tcp(us, false, psh, 0xffffffff-99, 901, 100)
			f.tcp(us, false, psh, 0, 901, 100)
			f.tcp(us, false, psh, 100, 901, 100)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFeed(Config{}, packet.ProtoTCP)
			f.handshake()
			c.run(f)
			rs := f.flush()
			r := rs[len(rs)-1]
			require.Equal(t, c.retransmits, r.Dir[telemetry.Fwd].Retransmits, "retransmits")
			require.Equal(t, c.ooo, r.Dir[telemetry.Fwd].OutOfOrder, "out of order")
			require.Equal(t, c.zeroWinds, r.Dir[telemetry.Fwd].ZeroWindows, "zero windows")
			require.Zero(t, r.Dir[telemetry.Rev].Retransmits)
		})
	}
}

func TestHandshakeTime(t *testing.T) {
	f := newFeed(Config{}, packet.ProtoTCP)
	f.tcp(0, false, syn, 100, 0, 0)
	f.tcp(s, false, syn, 100, 0, 0)
	f.tcp(10*ms, true, synack, 500, 101, 0)
	f.tcp(5*ms, false, ack, 101, 501, 0)
	f.tcp(s, false, psh, 101, 501, 10)
	r := f.flush()[0]
	require.Equal(t, 15*ms, r.TCPHandshakeNs, "from the last SYN")
	require.Equal(t, s+10*ms, r.FirstReplyNs, "from the first packet")

	f = newFeed(Config{}, packet.ProtoTCP)
	f.tcp(0, false, syn, 100, 0, 0)
	f.tcp(ms, true, rst|ack, 0, 101, 0)
	r = f.flush()[0]
	require.EqualValues(t, -1, r.TCPHandshakeNs, "a refusal is no handshake")
	require.Equal(t, ms, r.FirstReplyNs)
}
