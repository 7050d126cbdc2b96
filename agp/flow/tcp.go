package flow

import "github.com/agp-net/telegraf-agp/agp/packet"

// Loss analysis follows the rules of Wireshark's tcp.analysis as far as one pass
// with fixed state can (no list of unacknowledged segments, no SACK). What
// differs is listed with the tshark comparison in tests/oracle.

const (
	// reorderNs is how soon after the highest segment an older one counts as
	// reordered, while no handshake has told the round-trip time.
	reorderNs = 3_000_000
	// fastRetransmitNs is how soon after the last duplicate ACK a segment counts as a fast retransmission.
	fastRetransmitNs = 20_000_000
)

// Bits of tcpHalf.seen.
const (
	seenISN uint8 = 1 << iota
	seenSeq
	seenAck
	seenFin
	finAcked
	lastKeepAlive
	lastZeroProbe
)

// tcpHalf is what is known of one direction's sequence space.
type tcpHalf struct {
	nextSeqNs int64 // when the highest sequence number was first sent
	ackNs     int64 // when the last ACK was sent
	nextSeq   uint32
	lastAck   uint32
	isn       uint32
	finSeq    uint32 // the ACK number that confirms this direction's FIN
	window    uint16
	dupAcks   uint8
	seen      uint8
}

func seqLT(a, b uint32) bool { return int32(a-b) < 0 }
func seqLE(a, b uint32) bool { return int32(a-b) <= 0 }

// newConnection reports whether a SYN (without ACK) opens another connection
// than the one f has seen: its initial sequence number differs, or the flow was
// joined in the middle of a connection.
func (f *state) newConnection(in *packet.Info, dir int) bool {
	if in.TCPFlags&(packet.TCPSyn|packet.TCPAck) != packet.TCPSyn {
		return false
	}
	if f.bits&bitClosed != 0 {
		return true
	}
	if f.tcp[dir].seen&seenISN != 0 {
		return f.tcp[dir].isn != in.Seq
	}
	return f.tcp[dir].seen&seenSeq != 0 || f.bits&bitPastSyn != 0
}

// trackTCP updates sequence state, loss counters, handshake and closing.
func (f *state) trackTCP(in *packet.Info, dir int, ts int64) {
	fwd, rev := &f.tcp[dir], &f.tcp[1-dir]
	h := &f.dir[dir]
	flags := in.TCPFlags
	syn, fin, rst, ack := flags&packet.TCPSyn != 0, flags&packet.TCPFin != 0, flags&packet.TCPRst != 0, flags&packet.TCPAck != 0
	segLen := in.PayloadLen
	known := fwd.seen&seenSeq != 0
	control := syn || fin || rst
	var keepAlive, zeroProbe, keepAliveAck bool

	switch {
	case known && segLen == 1 && in.Seq == fwd.nextSeq && rev.seen&seenAck != 0 && rev.window == 0:
		zeroProbe = true
	case known && segLen <= 1 && in.Seq == fwd.nextSeq-1 && !control:
		keepAlive = true
	}
	if in.Window == 0 && !control {
		h.zeroWindows++
	}
	if segLen == 0 && !control && known && in.Seq == fwd.nextSeq && in.Window != 0 &&
		in.Window == fwd.window && fwd.seen&seenAck != 0 && in.Ack == fwd.lastAck {
		switch {
		case rev.seen&lastKeepAlive != 0:
			keepAliveAck = true
		case fwd.dupAcks < 255:
			fwd.dupAcks++
		}
	}
	if ack && in.Ack != fwd.lastAck {
		fwd.dupAcks = 0
	}

	if known && (segLen > 0 || syn || fin) && seqLT(in.Seq, fwd.nextSeq) && !keepAlive && !zeroProbe && !keepAliveAck {
		end := in.Seq + segLen
		if syn || fin {
			end++
		}
		threshold := int64(reorderNs)
		if f.handshakeNs > 0 {
			threshold = f.handshakeNs
		}
		switch {
		case segLen > 0 && rev.seen&seenAck != 0 && seqLE(in.Seq+segLen, rev.lastAck):
			h.retransmits++ // spurious: all of it had been acknowledged
		case rev.dupAcks >= 2 && rev.lastAck == in.Seq && ts-rev.ackNs < fastRetransmitNs:
			h.retransmits++
		case ts-fwd.nextSeqNs < threshold && fwd.nextSeq != end:
			h.outOfOrder++
		default:
			h.retransmits++
			if syn && !ack {
				f.synRetransmits++
			}
		}
	}

	next := in.Seq + segLen
	if syn || fin {
		next++
	}
	if !zeroProbe && !rst && (!known || seqLT(fwd.nextSeq, next)) {
		fwd.nextSeq, fwd.nextSeqNs = next, ts
		fwd.seen |= seenSeq
	}
	fwd.window = in.Window
	if ack {
		fwd.lastAck, fwd.ackNs = in.Ack, ts
		fwd.seen |= seenAck
	}
	fwd.seen &^= lastKeepAlive | lastZeroProbe
	if keepAlive {
		fwd.seen |= lastKeepAlive
	}
	if zeroProbe {
		fwd.seen |= lastZeroProbe
	}

	switch {
	case syn:
		fwd.isn = in.Seq
		fwd.seen |= seenISN
		if !ack && dir == 0 {
			f.synNs = ts
			f.bits |= bitSyn
		} else if ack && dir == 1 {
			f.bits |= bitSynAck
		}
	case dir == 0 && ack && f.bits&(bitSyn|bitSynAck|bitHandshake) == bitSyn|bitSynAck && !rst:
		f.handshakeNs = ts - f.synNs
		f.bits |= bitHandshake
	}
	if !syn || ack {
		f.bits |= bitPastSyn
	}
	if fin {
		fwd.finSeq = next
		fwd.seen |= seenFin
	}
	if ack && rev.seen&(seenFin|finAcked) == seenFin && seqLE(rev.finSeq, in.Ack) {
		rev.seen |= finAcked
	}
	if rst || fwd.seen&rev.seen&finAcked != 0 {
		f.bits |= bitClosed
	}
}
