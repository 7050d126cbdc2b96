package flow

import "github.com/agp-net/telegraf-agp/agp/telemetry"

// Who can send frames into an interface can send both directions of a TCP
// connection that never was. A flow is confirmed when that is ruled out for
// everybody who does not also receive what the responder sends:
//
//   - The directions come from different sides (source.Frame.Side), each from one.
//     Frames of the other side are then not the sender's.
//   - Each end has acknowledged what the other has sent, counted from the other's
//     SYN. The initiator has so read the responder's initial sequence number, which
//     cannot be guessed (RFC 6528), and the responder means this connection: not an
//     older one with the same ports, on top of which somebody forges a SYN.
//   - The responder has sent payload, which an end does when the connection is open.
//     SYN+ACK and RST answer a forged SYN as well.
//   - No packet is far from its direction's sequence numbers. Blind forgeries are, all
//     but a few in a million: with FIN, RST and SYN they would cut a connection of real
//     ends into many short ones.
//
// What is not seen is not confirmed: lost snapshots, a direction that does not pass,
// both directions on one wire. Nor are connections into which an end itself sends
// packets out of sequence: he escapes the block, but has nobody else blocked.

// farSeq is how far a packet of a connection may be from the highest sequence number
// of its direction: retransmissions of a large window, and what was not captured.
const farSeq = 1 << 20

// cameFrom takes the side of a packet that has not the one of its direction.
func (f *state) cameFrom(dir int, side uint8) {
	if f.side[dir] != 0 {
		f.bits |= bitDoubt
		return
	}
	f.side[dir] = side
}

// confirm looks whether all that makes a flow confirmed has been seen.
func (f *state) confirm() {
	if f.side[telemetry.Fwd] != 0 && f.side[telemetry.Rev] != 0 && f.dir[telemetry.Rev].payloadBytes > 0 &&
		f.acknowledged(telemetry.Fwd) && f.acknowledged(telemetry.Rev) {
		f.bits |= bitConfirmed
	}
}

// acknowledged says whether the other end has acknowledged what dir has sent: its SYN,
// and not more than its payload and FIN besides.
func (f *state) acknowledged(dir int) bool {
	h, by := &f.tcp[dir], &f.tcp[1-dir]
	return h.seen&seenISN != 0 && uint64(by.lastAck-h.isn-1) <= f.dir[dir].payloadBytes+1
}

// confirmed says whether a flow was confirmed and nothing has cast doubt on it since.
func (f *state) confirmed() bool { return f.bits&(bitConfirmed|bitDoubt) == bitConfirmed }

// Confirmed says whether an active flow's two ends have proved to be two, so that its
// initiator's address is not forged.
func (t *Table) Confirmed(r Ref) bool { return t.flows.at(uint32(r)).confirmed() }
