package flow

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

const (
	in  = uint8(1)
	in2 = uint8(2)
	out = uint8(255)
)

// talk is a TCP connection whose packets say where they come from.
type talk struct {
	*feed
	fwd, rev uint8
}

func newTalk(cfg Config) *talk { return &talk{newFeed(cfg, packet.ProtoTCP), in, out} }

func (k *talk) say(side uint8, rev bool, flags uint8, seq, ack, payload uint32) {
	p := k.packet(ms, rev, payload)
	p.TCPFlags, p.Ack, p.Side = flags, ack, side
	p.Info.Seq = seq
	k.add(p)
}

func (k *talk) open() {
	k.say(k.fwd, false, syn, 100, 0, 0)
	k.say(k.rev, true, synack, 500, 101, 0)
	k.say(k.fwd, false, ack, 101, 501, 0)
}

// login is a greeting, a request and a refusal.
func (k *talk) login() {
	k.say(k.rev, true, psh, 501, 101, 20)
	k.say(k.fwd, false, psh, 101, 521, 30)
	k.say(k.rev, true, psh, 521, 131, 40)
}

func (k *talk) close() {
	k.say(k.rev, true, finack, 561, 131, 0)
	k.say(k.fwd, false, finack, 131, 562, 0)
	k.say(k.rev, true, ack, 562, 132, 0)
}

func (k *talk) confirmed(t *testing.T) bool {
	t.Helper()
	records := k.flush()
	require.NotEmpty(t, records)
	return records[len(records)-1].Confirmed
}

// TestConnectionOfTwoEndsIsConfirmed: from whichever sides, also when the first word is the
// initiator's, in pieces of a coalesced frame, and with retransmissions.
func TestConnectionOfTwoEndsIsConfirmed(t *testing.T) {
	for _, sides := range [][2]uint8{{in, out}, {out, in}, {in, in2}, {254, in}} {
		k := newTalk(Config{})
		k.fwd, k.rev = sides[0], sides[1]
		k.open()
		k.login()
		k.close()
		require.True(t, k.confirmed(t), "%v", sides)
	}
	k := newTalk(Config{})
	k.open()
	k.say(in, false, psh, 101, 501, 30)
	k.say(in, false, psh, 101, 501, 30) // again
	big := k.packet(ms, true, 3000)
	big.TCPFlags, big.Ack, big.Side, big.SegmentSize = psh, 131, out, 1448
	big.Info.Seq = 501
	var piece Packet
	for i := range big.Segments() {
		big.Segment(&piece, i, big.Segments())
		k.add(&piece)
	}
	require.True(t, k.confirmed(t))
}

// TestWhatOneSenderCanForgeIsNotConfirmed: he sends into an interface and does not receive
// what this machine sends to the address that he forges.
func TestWhatOneSenderCanForgeIsNotConfirmed(t *testing.T) {
	for name, forge := range map[string]func(k *talk){
		"both directions": func(k *talk) {
			k.rev = in
			k.open()
			k.login()
			k.close()
		},
		"a file, which knows no sides": func(k *talk) {
			k.fwd, k.rev = 0, 0
			k.open()
			k.login()
			k.close()
		},
		"a SYN that the host answers": func(k *talk) {
			k.say(in, false, syn, 100, 0, 0)
			k.say(out, true, synack, 500, 101, 0)
			k.say(in, false, psh, 101, 7777, 30)
			k.say(out, true, rst, 7777, 0, 0)
		},
		"the answers beside the host's": func(k *talk) {
			k.say(in, false, syn, 100, 0, 0)
			k.say(out, true, synack, 500, 101, 0)
			k.rev = in
			k.open()
			k.login()
			k.close()
		},
		"the host's answer and then payload of his own": func(k *talk) {
			k.say(in, false, syn, 100, 0, 0)
			k.say(out, true, synack, 500, 101, 0)
			k.say(in, false, ack, 101, 501, 0) // a lucky guess would be needed for more
			k.rev = in
			k.login()
		},
		"payload of the host that the initiator has not read (TCP fast open without a cookie)": func(k *talk) {
			k.say(in, false, syn, 100, 0, 30)
			k.say(out, true, synack, 500, 131, 0)
			k.say(out, true, psh, 501, 131, 40)
			k.say(in, false, psh, 131, 7777, 30)
			k.say(in, false, finack, 161, 7777, 0)
		},
		"a SYN on top of a connection that has payload under way": func(k *talk) {
			k.open()
			k.login()
			k.say(in, false, syn, 7777, 0, 0)
			k.say(out, true, psh, 561, 131, 40)
			k.say(in, false, psh, 7778, 9999, 30)
			k.say(out, true, psh, 601, 131, 40)
			k.say(in, false, rst, 7808, 0, 0)
		},
		"such a SYN with a number that fits": func(k *talk) {
			k.open()
			k.login()
			k.say(in, false, syn, 120, 0, 0)
			k.say(in, false, psh, 121, 1, 30)
			k.say(out, true, psh, 561, 131, 40)
			k.say(in, false, rst, 151, 0, 0)
		},
		"a SYN between a real one and its answer": func(k *talk) {
			k.say(in, false, syn, 100, 0, 0)
			k.say(in, false, syn, 5000, 0, 0)
			k.say(out, true, synack, 500, 101, 0)
			k.say(in, false, ack, 101, 501, 0)
			k.login()
		},
		"an end of which it is not known where it is": func(k *talk) {
			k.fwd = 0
			k.open()
			k.login()
		},
		"the other end of which it is not known": func(k *talk) {
			k.rev = 0
			k.open()
			k.login()
		},
		"a router sends on what is forged, and is seen doing it": func(k *talk) {
			for _, side := range []uint8{in, out} {
				k.fwd, k.rev = side, side
				k.open()
				k.login()
			}
		},
		"a FIN into a connection": func(k *talk) {
			k.open()
			k.login()
			k.say(in, false, finack, 0x80000000, 521, 0)
		},
		"a RST into a connection": func(k *talk) {
			k.open()
			k.login()
			k.say(in, false, rst, 0x80000000, 0, 0)
		},
		"the responder's FIN into a connection": func(k *talk) {
			k.open()
			k.login()
			k.say(in, true, finack, 561, 131, 0)
		},
		"the initiator's packets by another interface": func(k *talk) {
			k.open()
			k.login()
			k.say(in2, false, psh, 131, 561, 30)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTalk(Config{})
			forge(k)
			require.False(t, k.confirmed(t))
		})
	}
}

// TestHandshakeAloneAndUDPAreNotConfirmed.
func TestHandshakeAloneAndUDPAreNotConfirmed(t *testing.T) {
	k := newTalk(Config{})
	k.open()
	k.say(in, false, psh, 101, 501, 30)
	k.say(out, true, ack, 501, 131, 0)
	require.False(t, k.confirmed(t))

	f := newFeed(Config{}, packet.ProtoUDP)
	for i := range 10 {
		p := f.packet(ms, i%2 == 1, 50)
		p.Side = []uint8{in, out}[i%2]
		f.add(p)
	}
	require.False(t, f.flush()[0].Confirmed)
}

// TestConfirmationGoesWithTheFlow: over an active cut, and to another table.
func TestConfirmationGoesWithTheFlow(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		k := newTalk(Config{ActiveNs: 5 * s})
		k.open()
		k.login()
		if doubt {
			k.say(in, true, psh, 561, 131, 40)
		}
		k.now += 6 * s
		k.close()
		other := newRecorder(Config{ActiveNs: 5 * s})
		var all BucketSet
		for b := range Buckets {
			all.Add(b)
		}
		parcel := k.r.t.Take(&all)
		require.Equal(t, 1, parcel.Len())
		other.t.Give(parcel)
		other.t.Flush(k.now)
		require.Equal(t, telemetry.EndActive, k.r.records[0].EndReason)
		require.Equal(t, !doubt, k.r.records[0].Confirmed)
		require.Equal(t, !doubt, other.records[0].Confirmed)
	}
}

// TestNextConnectionOfTheSamePortsIsConfirmedByItself.
func TestNextConnectionOfTheSamePortsIsConfirmedByItself(t *testing.T) {
	k := newTalk(Config{})
	k.open()
	k.login()
	k.close()
	k.say(in, false, syn, 90000, 0, 0)
	k.say(in, false, psh, 90001, 1, 30)
	records := k.flush()
	require.Len(t, records, 2)
	require.True(t, records[0].Confirmed)
	require.False(t, records[1].Confirmed)
}
