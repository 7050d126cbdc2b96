package flow

import "github.com/agp-net/telegraf-agp/agp/packet"

// Loss analysis follows the rules of Wireshark's tcp.analysis (version 4.0): one
// pass, fixed state per direction, sequence numbers compared modulo 2^32. The
// definitions that differ are listed with the tshark comparison in tests/oracle.

const (
	// reorderNs is how soon after the highest segment an older one counts as
	// reordered, while no handshake has told the round-trip time.
	reorderNs = 3_000_000
	// fastRetransmitNs is how soon after the last duplicate ACK a segment counts as a fast retransmission.
	fastRetransmitNs = 20_000_000
)

// Bits of tcpHalf.seen.
const (
	seenSegment uint8 = 1 << iota // window and lastAck are valid
	seenISN
	seenFin
	finAcked
	lastKeepAlive
	lastZeroProbe
)

// tcpHalf is what is known of one direction's sequence space; 0 means unknown
// for nextSeq, maxSeq and lastAck.
type tcpHalf struct {
	nextSeqNs int64  // when nextSeq last moved
	nextSeq   uint32 // highest end of a segment
	maxSeq    uint32 // highest end reached without a hole
	lastAck   uint32
	isn       uint32
	finSeq    uint32 // the ACK number that confirms this direction's FIN
	window    uint16 // unscaled
	dupAcks   int8
	seen      uint8
}

func seqLT(a, b uint32) bool { return int32(a-b) < 0 }
func seqLE(a, b uint32) bool { return int32(a-b) <= 0 }

// newConnection reports whether a SYN (without ACK) opens another connection
// than the one f has seen: that one is closed, has another initial sequence
// number, or was joined in its middle.
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
	return f.bits&bitPastSyn != 0
}

// trackTCP updates sequence state, loss counters, handshake and closing.
func (f *state) trackTCP(in *packet.Info, dir int, ts int64) {
	if in.Flags&packet.FlagFragment != 0 {
		return // the sequence space of a datagram in pieces is not readable from one of them
	}
	fwd, rev := &f.tcp[dir], &f.tcp[1-dir]
	h := &f.dir[dir]
	flags := in.TCPFlags
	syn, fin, rst, ack := flags&packet.TCPSyn != 0, flags&packet.TCPFin != 0, flags&packet.TCPRst != 0, flags&packet.TCPAck != 0
	control := syn || fin || rst
	segLen := in.PayloadLen
	end := in.Seq + segLen
	if syn || fin {
		end++
	}
	if fwd.nextSeq != 0 && !syn && in.Seq-fwd.nextSeq+farSeq > 2*farSeq {
		f.bits |= bitDoubt
	}
	if syn && !ack && fwd.seen&seenISN != 0 && in.Seq == fwd.isn {
		fwd.nextSeq = fwd.maxSeq // the opening again
	}

	zeroProbe := segLen == 1 && in.Seq == fwd.nextSeq && rev.seen&seenSegment != 0 && rev.window == 0
	keepAlive := false
	if !zeroProbe {
		if in.Window == 0 && !control {
			h.zeroWindows++
		}
		keepAlive = segLen <= 1 && in.Seq == fwd.nextSeq-1 && !control
		repeats := segLen == 0 && !control && fwd.seen&seenSegment != 0 && in.Window == fwd.window &&
			in.Seq == fwd.nextSeq && in.Ack == fwd.lastAck
		switch {
		case repeats && in.Window != 0 && rev.seen&lastKeepAlive != 0:
		case repeats && in.Window == 0 && rev.seen&lastZeroProbe != 0:
		case repeats && in.Window != 0 && fwd.dupAcks < 127:
			if fwd.dupAcks++; fwd.dupAcks == 0 {
				fwd.dupAcks = 1
			}
		}
	}
	if in.Ack != fwd.lastAck {
		fwd.dupAcks = 0
	}
	if ack && rev.maxSeq != 0 && seqLT(rev.maxSeq, in.Ack) { // what was not captured has arrived
		if seqLT(rev.maxSeq, rev.nextSeq) {
			rev.maxSeq = rev.nextSeq
		} else {
			rev.dupAcks = -1
		}
	}
	if (segLen > 0 || syn || fin) && !keepAlive {
		f.judge(in, dir, end, ts)
	}
	if !zeroProbe {
		if fwd.nextSeq == 0 || seqLT(fwd.nextSeq, end) {
			fwd.nextSeq, fwd.nextSeqNs = end, ts
		}
		if fwd.maxSeq == 0 || in.Seq == fwd.maxSeq {
			fwd.maxSeq = fwd.nextSeq
		}
	}
	fwd.window, fwd.lastAck = in.Window, in.Ack
	fwd.seen = fwd.seen&^(lastKeepAlive|lastZeroProbe) | seenSegment
	if keepAlive {
		fwd.seen |= lastKeepAlive
	}
	if zeroProbe {
		fwd.seen |= lastZeroProbe
	}
	f.handshake(in, dir, ts)

	if fin {
		fwd.finSeq = end
		fwd.seen |= seenFin
	}
	if ack && rev.seen&(seenFin|finAcked) == seenFin && seqLE(rev.finSeq, in.Ack) {
		rev.seen |= finAcked
	}
	if rst || fwd.seen&rev.seen&finAcked != 0 {
		f.bits |= bitClosed
	}
}

// judge classifies a segment that carries data, SYN or FIN.
func (f *state) judge(in *packet.Info, dir int, end uint32, ts int64) {
	h, fwd, rev := &f.dir[dir], &f.tcp[dir], &f.tcp[1-dir]
	segLen := in.PayloadLen
	late := fwd.nextSeq != 0 && seqLT(in.Seq, fwd.nextSeq)
	if segLen > 1 && in.Seq == fwd.nextSeq-1 {
		late = false // goes on from a keep-alive's byte
	}
	reorder := int64(reorderNs)
	if f.rttNs > 0 {
		reorder = f.rttNs
	}
	switch {
	case segLen > 0 && rev.lastAck != 0 && seqLE(in.Seq+segLen, rev.lastAck):
		h.retransmits++ // spurious: all of it had been acknowledged
	case !late:
	case rev.dupAcks >= 2 && rev.lastAck == in.Seq && ts-f.dir[1-dir].lastNs < fastRetransmitNs:
		h.retransmits++
	case ts-fwd.nextSeqNs < reorder && fwd.nextSeq != end:
		h.outOfOrder++
	default:
		h.retransmits++
		if in.TCPFlags&(packet.TCPSyn|packet.TCPAck) == packet.TCPSyn {
			f.synRetransmits++
		}
	}
}

// handshake follows SYN, SYN+ACK, ACK. Time counts from the last SYN.
func (f *state) handshake(in *packet.Info, dir int, ts int64) {
	syn, ack, rst := in.TCPFlags&packet.TCPSyn != 0, in.TCPFlags&packet.TCPAck != 0, in.TCPFlags&packet.TCPRst != 0
	fwd := &f.tcp[dir]
	if syn {
		fwd.isn = in.Seq
		fwd.seen |= seenISN
	}
	switch {
	case syn && !ack:
		f.synNs = ts
		f.bits |= bitSyn
		return
	case syn:
		f.bits |= bitSynAck
	case ack && f.bits&bitSyn != 0:
		if f.bits&bitRTT == 0 {
			f.rttNs = ts - f.synNs
			f.bits |= bitRTT
		}
		if dir == 0 && !rst && f.bits&(bitSynAck|bitHandshake) == bitSynAck {
			f.handshakeNs = ts - f.synNs
			f.bits |= bitHandshake
		}
	}
	f.bits |= bitPastSyn
}
