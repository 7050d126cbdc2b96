package traffic

import (
	"net/netip"
	"time"
)

// IP protocol numbers of the flows that this package makes.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
)

// TCP flags.
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
)

// MSS is the payload of a full TCP segment with time-stamp option.
const MSS = 1448

// Flow is one conversation. Its methods append packets at the flow's clock
// (Now) and move the clock; they return the flow so that a test reads as a story:
//
//	c.Flow(traffic.TCP, t0, client, server).Handshake().Send(traffic.Fwd, request).Send(traffic.Rev, reply).Close()
type Flow struct {
	Protocol uint8
	Src, Dst netip.AddrPort // of the initiator and of the responder; ports of ICMP flows are identifier and 0
	VLAN     uint16         // 802.1Q id, 0 for none
	App      string         // what the flow speaks, for truth files
	Event    string         // scenario that the flow belongs to, for truth files
	Now      int64          // clock, ns
	RTT      time.Duration  // round trip between the end points
	Plain    bool           // TCP without options

	c     *Capture
	index uint32
	seq   [2]uint32 // next sequence number
	id    [2]uint16
	last  [2]int // index + 1 of the last payload packet, for Repeat
}

// Wait moves the clock.
func (f *Flow) Wait(d time.Duration) *Flow {
	f.Now += int64(d)
	return f
}

func (f *Flow) add(dir int, flags uint8, head int32, length int) *packet {
	other := 1 - dir
	p := packet{
		at: f.Now, flow: f.index, dir: uint8(dir), flags: flags, head: head,
		length: uint16(length), window: 501, id: f.id[dir], seq: f.seq[dir],
	}
	f.id[dir]++
	if flags&ack != 0 {
		p.ack = f.seq[other]
	}
	f.c.packets = append(f.c.packets, p)
	f.c.sorted = false
	f.seq[dir] += uint32(length)
	if flags&(syn|fin) != 0 {
		f.seq[dir]++
	}
	if length > 0 {
		f.last[dir] = len(f.c.packets)
	}
	return &f.c.packets[len(f.c.packets)-1]
}

func (f *Flow) dataFlags() uint8 {
	if f.Protocol == TCP {
		return psh | ack
	}
	return 0
}

// Handshake adds SYN, SYN+ACK and ACK; the reply comes one RTT after the SYN.
func (f *Flow) Handshake() *Flow {
	f.add(Fwd, syn, -1, 0).window = 64240
	f.Wait(f.RTT)
	f.add(Rev, syn|ack, -1, 0).window = 65160
	f.Wait(50 * time.Microsecond)
	f.add(Fwd, ack, -1, 0)
	return f
}

// Syn adds a lone SYN.
func (f *Flow) Syn() *Flow {
	f.add(Fwd, syn, -1, 0).window = 1024
	return f
}

// Refuse adds the RST+ACK that answers a SYN, one RTT later.
func (f *Flow) Refuse() *Flow {
	f.Wait(f.RTT)
	f.add(Rev, rst|ack, -1, 0).window = 0
	return f
}

// Send adds one packet with this payload.
func (f *Flow) Send(dir int, payload []byte) *Flow {
	f.add(dir, f.dataFlags(), f.c.head(payload), len(payload))
	return f
}

// Fill adds one packet with n bytes of random payload.
func (f *Flow) Fill(dir, n int) *Flow {
	f.add(dir, f.dataFlags(), -1, n)
	return f
}

// sendHead is Fill for a payload that many packets share.
func (f *Flow) sendHead(dir int, head int32, n int) *Flow {
	f.add(dir, f.dataFlags(), head, n)
	return f
}

// Ack adds a TCP segment without payload.
func (f *Flow) Ack(dir int) *Flow {
	f.add(dir, ack, -1, 0)
	return f
}

// ZeroWindow adds an ACK that announces a full receive buffer.
func (f *Flow) ZeroWindow(dir int) *Flow {
	f.add(dir, ack, -1, 0).window = 0
	return f
}

// Bulk adds n bytes as full segments, gap apart, with an ACK for every second one.
func (f *Flow) Bulk(dir, n int, gap time.Duration) *Flow {
	for i := 0; n > 0; i++ {
		size := min(n, MSS)
		n -= size
		f.Wait(gap)
		f.add(dir, f.dataFlags(), -1, size)
		if i%2 == 1 || n == 0 {
			f.Wait(30 * time.Microsecond)
			f.Ack(1 - dir)
		}
	}
	return f
}

// Repeat sends the last payload segment of a direction once more.
// The caller moves the clock: a repetition later than one RTT is a retransmission.
func (f *Flow) Repeat(dir int) *Flow {
	if f.last[dir] == 0 {
		return f
	}
	p := f.c.packets[f.last[dir]-1]
	p.at, p.again, p.id = f.Now, true, f.id[dir]
	f.id[dir]++
	f.c.packets = append(f.c.packets, p)
	f.c.sorted = false
	return f
}

// Swap sends two segments in the wrong order, gap apart: the second arrives first.
func (f *Flow) Swap(dir, first, second int, gap time.Duration) *Flow {
	f.add(dir, f.dataFlags(), -1, first)
	f.add(dir, f.dataFlags(), -1, second)
	n := len(f.c.packets)
	a, b := &f.c.packets[n-2], &f.c.packets[n-1]
	*a, *b = *b, *a
	b.at = a.at + int64(gap)
	b.late = true
	f.Now = b.at
	f.last[dir] = n - 1 // the highest segment
	return f
}

// Close ends a TCP flow with FIN in both directions and their ACK.
func (f *Flow) Close() *Flow {
	f.add(Fwd, fin|ack, -1, 0)
	f.Wait(f.RTT)
	f.add(Rev, fin|ack, -1, 0)
	f.Wait(50 * time.Microsecond)
	f.add(Fwd, ack, -1, 0)
	return f
}

// Reset ends a TCP flow from one side.
func (f *Flow) Reset(dir int) *Flow {
	f.add(dir, rst|ack, -1, 0).window = 0
	return f
}

// Echo adds an ICMP echo request with n bytes of data and, after one RTT, its reply.
func (f *Flow) Echo(n int) *Flow {
	f.id[Rev] = f.id[Fwd]
	f.add(Fwd, 0, -1, n)
	f.Wait(f.RTT)
	f.add(Rev, 0, -1, n)
	return f
}
