// The state of one flow and what a packet does to it: a port of agp/flow, which says why things
// are as they are. One lane works on one flow at a time; nothing here is a collective but fold.
#ifndef AGP_FLOW_CUH
#define AGP_FLOW_CUH

#include "bins.cuh"
#include "key.cuh"

const int64_t second_ns = 1000000000;

namespace flow {

// Bits of agp_flow.bits.
enum {
	from_b = 1 << 0,    // the initiator is endpoint B
	closed = 1 << 1,    // TCP closed; lingering
	fragment = 1 << 2,  // a fragment whose first was not known
	syn = 1 << 3,       // initiator's SYN seen
	syn_ack = 1 << 4,   // responder's SYN+ACK seen
	handshake = 1 << 5, // handshake_ns is valid
	rtt = 1 << 6,       // rtt_ns is valid
	past_syn = 1 << 7,  // something other than a bare SYN was seen
	live = 1 << 8,      // slot in use
	empty = 1 << 9,     // cut by the active timeout, no packet since
	doubt = 1 << 10,    // a packet that the flow's two ends would not send
	confirmed = 1 << 11, // the two ends have proved to be two
	head = 1 << 12      // its agp_head is kept; agp/flow knows it otherwise
};

// Bits of agp_tcp_half.seen.
enum { segment = 1, isn = 2, fin = 4, fin_acked = 8, keep_alive = 16, zero_probe = 32 };

// End reasons: telemetry.EndReason.
enum { idle = 0, active = 1, tcp_end = 2, evicted = 3, flushed = 4 };

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16, CWR = 128 };
enum { TCP = 6 };

const int64_t never = INT64_MAX;
const int64_t reorder_ns = 3000000;
const int64_t fast_retransmit_ns = 20000000;
const uint32_t far_seq = 1 << 20;

// after adds a duration to a time without wrapping.
AGP_DEVICE int64_t after(int64_t ns, int64_t d) {
	int64_t sum = (int64_t)((uint64_t)ns + (uint64_t)d);
	return sum >= ns ? sum : never;
}

// deadline is when the flow is due if no packet comes, and why.
AGP_DEVICE int64_t deadline(const agp_flow &f, const agp_params &p, uint8_t *reason) {
	if (f.bits & closed) {
		*reason = tcp_end;
		return after(f.last_ns, p.linger_ns);
	}
	int64_t i = after(f.last_ns, p.idle_ns), a = after(f.start_ns, p.active_ns);
	if (a < i && !(f.bits & empty)) {
		*reason = active;
		return a;
	}
	*reason = idle;
	return i;
}

AGP_DEVICE int direction(const agp_flow &f, bool sender_b) { return sender_b != ((f.bits & from_b) != 0) && key::differ(f.key) ? 1 : 0; }

AGP_DEVICE uint64_t packets(const agp_flow &f) { return f.dir[0].packets + f.dir[1].packets; }

// new_connection reports whether a SYN opens another connection than the one f has seen.
AGP_DEVICE bool new_connection(const agp_flow &f, const agp_packet &p, int dir) {
	if ((p.tcp_flags & (SYN | ACK)) != SYN)
		return false;
	if (f.bits & closed)
		return true;
	if (f.tcp[dir].seen & isn)
		return f.tcp[dir].isn != p.seq;
	return (f.bits & past_syn) != 0;
}

// less orders flows by value: closed ones first, then few packets, then long unseen, then old.
AGP_DEVICE bool less(const agp_flow &f, const agp_flow &g) {
	if ((f.bits ^ g.bits) & closed)
		return (f.bits & closed) != 0;
	if (packets(f) != packets(g))
		return packets(f) < packets(g);
	if (f.last_ns != g.last_ns)
		return f.last_ns < g.last_ns;
	return f.start_seq < g.start_seq;
}

AGP_DEVICE void clear(void *p, int bytes) {
	for (int i = 0; i < bytes; i += 16)
		store16((char *)p + i, words{{0, 0, 0, 0}});
}

AGP_DEVICE void open(agp_flow *f, const agp_key &k, uint64_t hash, const agp_packet &p, bool sender_b) {
	clear(f, sizeof *f);
	f->key = k;
	f->hash = hash;
	if (p.protocol == TCP && (p.tcp_flags & (SYN | ACK)) == (SYN | ACK))
		sender_b = !sender_b; // the first packet answers: its receiver is the initiator
	f->bits = live | (sender_b ? from_b : 0);
}

// cut starts a new record of a flow at the active timeout; the one before was emitted.
AGP_DEVICE void cut(agp_flow *f) {
	clear(f->dir, sizeof f->dir);
	f->bits = (f->bits & (from_b | rtt | past_syn | live | doubt | confirmed)) | empty;
	f->tier = 0;
	f->time_steps = f->syn_retransmits = f->coalesced = f->told_bytes = 0;
}

// folds says whether there is no room for the bins of the record's next packet: fold comes first.
AGP_DEVICE bool folds(const agp_flow &f) {
	uint64_t n = packets(f);
	return n != 0 && n % AGP_BINNED == 0;
}

// fold adds the last bins of one flow to its histograms. All lanes call it: half of them take the
// sizes, half the delays.
AGP_DEVICE void fold(agp_flow *f, agp_hist *h) {
	uint32_t l = warp::lane(), half = l / AGP_BINNED, i = l % AGP_BINNED;
	bool fresh = f->tier == 0;
	uint64_t n = packets(*f);
	uint32_t *c = half ? &h->delay[f->bins[1][i]] : &h->size[f->bins[0][i]];
	warp::sync(warp::all); // all have looked
	if (fresh) {
		for (uint32_t at = l * 16; at < sizeof *h; at += AGP_LANES * 16)
			store16((char *)h + at, words{{0, 0, 0, 0}});
		if (l == 0)
			f->tier = 1;
		warp::sync(warp::all);
	}
	bool on = !(fresh && half && i == 0); // the record's first packet has no delay
	if (n < UINT32_MAX) {
		if (on)
			own::add(c, 1);
	} else { // a counter may be at its end, where it stays
		for (uint32_t turn = 0; turn < AGP_LANES; turn++) {
			if (on && l == turn && *c != UINT32_MAX)
				own::add(c, 1);
			warp::sync(warp::all);
		}
	}
}

AGP_DEVICE bool seq_lt(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }
AGP_DEVICE bool seq_le(uint32_t a, uint32_t b) { return (int32_t)(a - b) <= 0; }

// judge classifies a segment that carries data, SYN or FIN.
AGP_DEVICE void judge(agp_flow *f, const agp_packet &p, int dir, uint32_t end, int64_t ts) {
	agp_half *h = &f->dir[dir];
	const agp_tcp_half &fwd = f->tcp[dir], &rev = f->tcp[1 - dir];
	uint32_t len = p.payload_len;
	bool late = fwd.next_seq != 0 && seq_lt(p.seq, fwd.next_seq);
	if (len > 1 && p.seq == fwd.next_seq - 1)
		late = false; // goes on from a keep-alive's byte
	int64_t reorder = f->rtt_ns > 0 ? f->rtt_ns : reorder_ns;
	if (len > 0 && rev.last_ack != 0 && seq_le(p.seq + len, rev.last_ack)) {
		h->retransmits++; // spurious: all of it had been acknowledged
	} else if (!late) {
	} else if (rev.dup_acks >= 2 && rev.last_ack == p.seq && ts - f->dir[1 - dir].last_ns < fast_retransmit_ns) {
		h->retransmits++;
	} else if (ts - fwd.next_seq_ns < reorder && fwd.next_seq != end) {
		h->out_of_order++;
	} else {
		h->retransmits++;
		if ((p.tcp_flags & (SYN | ACK)) == SYN)
			f->syn_retransmits++;
	}
}

// shake follows SYN, SYN+ACK, ACK. Time counts from the last SYN.
AGP_DEVICE void shake(agp_flow *f, const agp_packet &p, int dir, int64_t ts) {
	bool s = p.tcp_flags & SYN, a = p.tcp_flags & ACK, r = p.tcp_flags & RST;
	agp_tcp_half *fwd = &f->tcp[dir];
	if (s) {
		fwd->isn = p.seq;
		fwd->seen |= isn;
	}
	if (s && !a) {
		f->syn_ns = ts;
		f->bits |= syn;
		return;
	}
	if (s) {
		f->bits |= syn_ack;
	} else if (a && (f->bits & syn)) {
		if (!(f->bits & rtt)) {
			f->rtt_ns = ts - f->syn_ns;
			f->bits |= rtt;
		}
		if (dir == 0 && !r && (f->bits & (syn_ack | handshake)) == syn_ack) {
			f->handshake_ns = ts - f->syn_ns;
			f->bits |= handshake;
		}
	}
	f->bits |= past_syn;
}

// track updates sequence state, loss counters, handshake and closing.
AGP_DEVICE void track(agp_flow *f, const agp_packet &p, int dir, int64_t ts) {
	if (p.flags & AGP_FRAGMENT)
		return; // the sequence space of a datagram in pieces is not readable from one of them
	agp_tcp_half *fwd = &f->tcp[dir], *rev = &f->tcp[1 - dir];
	bool s = p.tcp_flags & SYN, fi = p.tcp_flags & FIN, r = p.tcp_flags & RST, a = p.tcp_flags & ACK;
	bool control = s || fi || r;
	uint32_t len = p.payload_len, end = p.seq + len + (s || fi ? 1 : 0);
	if (fwd->next_seq != 0 && !s && p.seq - fwd->next_seq + far_seq > 2 * far_seq)
		f->bits |= doubt;
	if (s && !a && (fwd->seen & isn) && p.seq == fwd->isn)
		fwd->next_seq = fwd->max_seq; // the opening again

	bool probe = len == 1 && p.seq == fwd->next_seq && (rev->seen & segment) && rev->window == 0;
	bool keep = false;
	if (!probe) {
		if (p.window == 0 && !control)
			f->dir[dir].zero_windows++;
		keep = len <= 1 && p.seq == fwd->next_seq - 1 && !control;
		bool repeats = len == 0 && !control && (fwd->seen & segment) && p.window == fwd->window && p.seq == fwd->next_seq && p.ack == fwd->last_ack;
		bool answer = p.window != 0 ? (rev->seen & keep_alive) != 0 : (rev->seen & zero_probe) != 0;
		if (repeats && !answer && p.window != 0 && fwd->dup_acks < 127)
			fwd->dup_acks = fwd->dup_acks == -1 ? 1 : fwd->dup_acks + 1;
	}
	if (p.ack != fwd->last_ack)
		fwd->dup_acks = 0;
	if (a && rev->max_seq != 0 && seq_lt(rev->max_seq, p.ack)) { // what was not captured has arrived
		if (seq_lt(rev->max_seq, rev->next_seq))
			rev->max_seq = rev->next_seq;
		else
			rev->dup_acks = -1;
	}
	if ((len > 0 || s || fi) && !keep)
		judge(f, p, dir, end, ts);
	if (!probe) {
		if (fwd->next_seq == 0 || seq_lt(fwd->next_seq, end)) {
			fwd->next_seq = end;
			fwd->next_seq_ns = ts;
		}
		if (fwd->max_seq == 0 || p.seq == fwd->max_seq)
			fwd->max_seq = fwd->next_seq;
	}
	fwd->window = p.window;
	fwd->last_ack = p.ack;
	fwd->seen = (uint8_t)((fwd->seen & ~(keep_alive | zero_probe)) | segment | (keep ? keep_alive : 0) | (probe ? zero_probe : 0));
	shake(f, p, dir, ts);
	if (fi) {
		fwd->fin_seq = end;
		fwd->seen |= fin;
	}
	if (a && (rev->seen & (fin | fin_acked)) == fin && seq_le(rev->fin_seq, p.ack))
		rev->seen |= fin_acked;
	if (r || (fwd->seen & rev->seen & fin_acked))
		f->bits |= closed;
}

// acknowledged says whether the other end has acknowledged what dir has sent: its SYN, and not
// more than its payload and FIN besides.
AGP_DEVICE bool acknowledged(const agp_flow &f, int dir) {
	const agp_tcp_half &h = f.tcp[dir], &by = f.tcp[1 - dir];
	return (h.seen & isn) && (uint64_t)(uint32_t)(by.last_ack - h.isn - 1) <= f.dir[dir].payload_bytes + 1;
}

// from takes the side of a TCP packet, and confirm looks whether all that makes a flow
// confirmed has been seen.
AGP_DEVICE void from(agp_flow *f, int dir, uint8_t side) {
	if (f->side[dir] == side)
		return;
	if (f->side[dir] != 0)
		f->bits |= doubt;
	else
		f->side[dir] = side;
}

AGP_DEVICE void confirm(agp_flow *f) {
	if (f->side[0] != f->side[1] && !(f->bits & (doubt | confirmed)) && f->side[0] != 0 && f->side[1] != 0 && f->dir[1].payload_bytes > 0 &&
	    acknowledged(*f, 0) && acknowledged(*f, 1))
		f->bits |= confirmed;
}

// update adds a packet to the flow. opened says that it is the flow's first, not one that goes
// on after a cut. It returns whether time went back.
AGP_DEVICE bool update(agp_flow *f, const agp_packet &p, bool sender_b, bool opened, bool coalesced, uint64_t seq) {
	uint64_t n = packets(*f) + 1;
	int64_t ts = p.ts_ns;
	if (n == 1) {
		f->bits &= (uint16_t)~empty;
		int64_t start = !opened && f->last_ns > ts ? f->last_ns : ts;
		f->start_ns = f->last_ns = start;
		f->start_seq = seq;
	}
	int d = direction(*f, sender_b);
	agp_half *h = &f->dir[d];
	int64_t delay = (int64_t)((uint64_t)ts - (uint64_t)f->last_ns);
	bool back = delay < 0;
	if (back) {
		ts = f->last_ns;
		delay = 0;
		f->time_steps++;
	}
	f->last_ns = ts;
	if ((p.flags & AGP_FRAGMENT_LATER) && (p.src_port | p.dst_port) == 0)
		f->bits |= fragment;
	if (coalesced)
		f->coalesced++;
	uint32_t wire = p.wire_len;
	if (h->packets == 0) {
		h->first_ns = ts;
		h->wire_min = h->wire_max = wire;
	} else {
		int64_t gap = (int64_t)((uint64_t)ts - (uint64_t)h->last_ns);
		if (h->packets == 1 || gap < h->delay_min)
			h->delay_min = gap;
		if (h->packets == 1 || gap > h->delay_max)
			h->delay_max = gap;
		uint64_t lo = (uint64_t)gap * (uint64_t)gap;
		h->delay_sq_lo += lo;
		h->delay_sq_hi += mulhi((uint64_t)gap, (uint64_t)gap) + (h->delay_sq_lo < lo ? 1 : 0);
		h->wire_min = wire < h->wire_min ? wire : h->wire_min;
		h->wire_max = wire > h->wire_max ? wire : h->wire_max;
	}
	h->last_ns = ts;
	h->packets++;
	h->wire_bytes += wire;
	h->l3_bytes += p.l3_len;
	h->payload_bytes += p.payload_len;
	h->wire_sq += (uint64_t)wire * wire;
	int at = (int)((n - 1) % AGP_BINNED);
	f->bins[0][at] = bins::size(p.l3_len);
	f->bins[1][at] = n == 1 ? (uint8_t)0 : bins::delay(delay);
	if (p.protocol == TCP) {
		h->tcp_flags |= p.tcp_flags;
		from(f, d, p.side);
		track(f, p, d, ts);
		confirm(f);
	}
	return back;
}

// segments is how many frames on the wire a packet is: flow.Packet.Segments.
AGP_DEVICE uint32_t segments(const agp_packet &p) {
	return p.segment_size == 0 || p.payload_len <= p.segment_size ? 1 : (p.payload_len - 1) / p.segment_size + 1;
}

// split makes p frame i of the n that whole is: flow.Packet.Segment.
AGP_DEVICE void split(agp_packet *p, const agp_packet &whole, uint32_t i, uint32_t n) {
	uint32_t size = whole.segment_size, at = i * size, left = whole.payload_len - at;
	*p = whole;
	p->payload_len = size < left ? size : left;
	p->l3_len -= whole.payload_len - p->payload_len;
	p->wire_len -= whole.payload_len - p->payload_len;
	p->payload_off += at;
	left = whole.payload_cap - (at < whole.payload_cap ? at : whole.payload_cap);
	p->payload_cap = p->payload_len < left ? p->payload_len : left;
	if (p->protocol != TCP)
		return;
	p->seq += at;
	if (i > 0)
		p->tcp_flags &= (uint8_t)~CWR;
	if (i < n - 1)
		p->tcp_flags &= (uint8_t)~(FIN | PSH);
}

} // namespace flow

#endif
