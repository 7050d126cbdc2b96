package model

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// Share is a frame length, with the 4 bytes of the frame's checksum, and how often it occurs.
type Share struct{ Length, Weight int }

// Lengths of frames.
var (
	Length64   = []Share{{64, 1}}
	LengthIMIX = []Share{{64, 7}, {594, 4}, {1518, 1}}
	Length1500 = []Share{{1518, 1}} // 1500 bytes of IP
)

// Limits of Profile.
const (
	minLength    = 64
	maxLength    = 9216
	checksumSize = 4 // of the frame, which receivers do not see
	maxFlows     = 1 << 26
)

// Profile is synthetic traffic. Zero values take the defaults.
type Profile struct {
	Seed    uint64
	Packets uint64  // 0: without end
	StartNs int64   // 0: 2024-01-01
	Rate    float64 // packets per second of the packets' clock, default 1e6
	Lengths []Share // default Length64
	Flows   int     // active at a time, default 1000
	Zipf    float64 // exponent of how packets spread over flows, above 1; 0: evenly
	// Shares of packets or, of IPv6 and UDP, of flows: 0 to 1.
	NewFlows  float64 // packets that end a flow (TCP: with RST); its successor begins with the next one
	SYNFlood  float64 // SYNs to one server, each from another address
	Elephants float64 // packets of the first 4 flows
	IPv6      float64
	UDP       float64
}

const elephants = 4

// Traffic is a source.Source of synthetic frames: Ethernet, the same for the same Profile.
// TCP flows have a handshake and go on in both directions in turn; payloads are zeros, checksums
// are right.
type Traffic struct {
	p       Profile
	rng     *rand.Rand
	zipf    *rand.Zipf
	weights int
	flows   []talk
	made    uint64 // flows begun
	sent    uint64
	bytes   uint64
	stop    atomic.Bool
}

// talk is an active flow.
type talk struct {
	id     uint64
	n      uint32 // packets so far
	seq    [2]uint32
	attack bool // one of a flood
}

// NewTraffic checks p.
func NewTraffic(p Profile) (*Traffic, error) {
	if p.StartNs == 0 {
		p.StartNs = 1_704_067_200_000_000_000
	}
	if p.Rate == 0 {
		p.Rate = 1e6
	}
	if p.Flows == 0 {
		p.Flows = 1000
	}
	if len(p.Lengths) == 0 {
		p.Lengths = Length64
	}
	t := &Traffic{p: p, rng: rand.New(rand.NewPCG(p.Seed, 0x74726166))}
	for _, s := range p.Lengths {
		if s.Length < minLength || s.Length > maxLength || s.Weight < 1 {
			return nil, fmt.Errorf("%w: frames of %d bytes with weight %d, allowed are %d to %d", ErrConfig, s.Length, s.Weight, minLength, maxLength)
		}
		t.weights += s.Weight
	}
	switch {
	case p.Flows < 1 || p.Flows > maxFlows:
		return nil, fmt.Errorf("%w: flows = %d, allowed are 1 to %d", ErrConfig, p.Flows, maxFlows)
	case !(p.Rate > 0):
		return nil, fmt.Errorf("%w: rate = %g", ErrConfig, p.Rate)
	case p.Zipf != 0 && !(p.Zipf > 1):
		return nil, fmt.Errorf("%w: zipf = %g, must be above 1", ErrConfig, p.Zipf)
	}
	for _, v := range []float64{p.NewFlows, p.SYNFlood, p.Elephants, p.IPv6, p.UDP} {
		if !(v >= 0 && v <= 1) {
			return nil, fmt.Errorf("%w: a share of %g", ErrConfig, v)
		}
	}
	if p.Zipf != 0 {
		t.zipf = rand.NewZipf(t.rng, p.Zipf, 1, uint64(p.Flows-1))
	}
	t.flows = make([]talk, p.Flows)
	for i := range t.flows {
		t.begin(&t.flows[i])
	}
	return t, nil
}

func (t *Traffic) begin(f *talk) {
	*f = talk{id: splitmix(t.p.Seed ^ t.made*0x9e3779b97f4a7c15)}
	f.seq = [2]uint32{uint32(f.id), uint32(f.id >> 32)}
	t.made++
}

// splitmix spreads a number over 64 bits.
func splitmix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Frame writes the next frame to buf, which has room for the longest of Lengths and for
// LongestHeaders, and returns its length and time. It is not ok after the last one.
func (t *Traffic) Frame(buf []byte) (n int, ns int64, ok bool) {
	if t.p.Packets != 0 && t.sent == t.p.Packets {
		return 0, 0, false
	}
	ns = t.p.StartNs + int64(float64(t.sent)*1e9/t.p.Rate)
	t.sent++
	n = t.length() - checksumSize
	if t.p.SYNFlood > 0 && t.rng.Float64() < t.p.SYNFlood {
		f := talk{id: t.rng.Uint64(), attack: true}
		return t.render(buf, n, &f, 0, packet.TCPSyn), ns, true
	}
	f := &t.flows[t.pick()]
	if t.p.NewFlows > 0 && t.rng.Float64() < t.p.NewFlows {
		n = t.render(buf, n, f, 0, packet.TCPRst|packet.TCPAck)
		t.begin(f)
		return n, ns, true
	}
	switch dir := int(f.n & 1); f.n {
	case 0:
		n = t.render(buf, n, f, dir, packet.TCPSyn)
	case 1:
		n = t.render(buf, n, f, dir, packet.TCPSyn|packet.TCPAck)
	default:
		n = t.render(buf, n, f, dir, packet.TCPPsh|packet.TCPAck)
	}
	f.n++
	return n, ns, true
}

func (t *Traffic) length() int {
	if len(t.p.Lengths) == 1 {
		return t.p.Lengths[0].Length
	}
	w := t.rng.IntN(t.weights)
	for _, s := range t.p.Lengths {
		if w -= s.Weight; w < 0 {
			return s.Length
		}
	}
	return minLength
}

func (t *Traffic) pick() int {
	if t.p.Elephants > 0 && t.rng.Float64() < t.p.Elephants {
		return t.rng.IntN(min(elephants, len(t.flows)))
	}
	if t.zipf != nil {
		return int(t.zipf.Uint64())
	}
	return t.rng.IntN(len(t.flows))
}

// LongestHeaders is the shortest frame of TCP over IPv6.
const LongestHeaders = ethSize + ip6Size + tcpSize

const (
	ethSize, ip4Size, ip6Size = 14, 20, 40
	tcpSize, udpSize          = 20, 8
	hopLimit                  = 64
)

// ports that flows go to.
var servers = [8]uint16{443, 80, 53, 22, 25, 993, 8080, 3306}

// render writes a frame of flow f, of n bytes or what its headers take, and returns its length.
// All about the flow follows from its number.
func (t *Traffic) render(b []byte, n int, f *talk, dir int, flags uint8) int {
	h := splitmix(f.id)
	udp := !f.attack && t.p.UDP > 0 && float64(h>>40)/(1<<24) < t.p.UDP
	v6 := t.p.IPv6 > 0 && float64(h&0xffffff)/(1<<24) < t.p.IPv6
	l4 := ethSize + ip4Size
	if v6 {
		l4 = ethSize + ip6Size
	}
	head := tcpSize
	if udp {
		head = udpSize
	}
	n = max(n, l4+head)
	b = b[:n]
	clear(b)
	end := n
	if !udp && flags&(packet.TCPSyn|packet.TCPRst) != 0 {
		end = l4 + head // the rest pads
	}
	client, server := uint32(f.id), uint32(h>>24)&0xffff
	cport, sport := uint16(1024+f.id>>32%60000), servers[h>>50&7]
	if f.attack {
		client, server, sport = uint32(f.id), 1, 443
	}
	ends := [2]uint32{client, server}
	ports := [2]uint16{cport, sport}
	b[5], b[11] = byte(1+dir), byte(2-dir)
	b[0], b[6] = 2, 2
	var sum uint32
	if v6 {
		be.PutUint16(b[12:], 0x86dd)
		ip := b[ethSize:]
		ip[0], ip[7] = 0x60, hopLimit
		be.PutUint16(ip[4:], uint16(end-l4))
		for side := range 2 {
			a := ip[8+16*side:]
			be.PutUint32(a, 0x20010db8)
			who := dir ^ side
			be.PutUint32(a[4:], uint32(who))
			be.PutUint32(a[12:], ends[who])
		}
		sum = sumOf(ip[8:40])
		ip[6] = packet.ProtoTCP
		if udp {
			ip[6] = packet.ProtoUDP
		}
		sum += uint32(ip[6])
	} else {
		be.PutUint16(b[12:], 0x0800)
		ip := b[ethSize:]
		ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, hopLimit, packet.ProtoTCP
		if udp {
			ip[9] = packet.ProtoUDP
		}
		be.PutUint16(ip[2:], uint16(end-ethSize))
		addr := [2]uint32{10<<24 | client&0xffffff, 192<<24 | 168<<16 | server}
		be.PutUint32(ip[12:], addr[dir])
		be.PutUint32(ip[16:], addr[1-dir])
		be.PutUint16(ip[10:], fold(sumOf(ip[:ip4Size])))
		sum = sumOf(ip[12:20]) + uint32(ip[9])
	}
	p := b[l4:]
	be.PutUint16(p, ports[dir])
	be.PutUint16(p[2:], ports[1-dir])
	sum += uint32(end - l4)
	if udp {
		be.PutUint16(p[4:], uint16(end-l4))
		if be.PutUint16(p[6:], fold(sum+sumOf(p[:udpSize]))); p[6] == 0 && p[7] == 0 {
			p[6], p[7] = 0xff, 0xff // 0 would mean that there is none
		}
		return n
	}
	be.PutUint32(p[4:], f.seq[dir])
	if flags&packet.TCPAck != 0 {
		be.PutUint32(p[8:], f.seq[1-dir])
	}
	p[12], p[13] = tcpSize/4<<4, flags
	be.PutUint16(p[14:], 0xfaf0)
	be.PutUint16(p[16:], fold(sum+sumOf(p[:tcpSize])))
	f.seq[dir] += uint32(end - l4 - tcpSize)
	if flags&packet.TCPSyn != 0 {
		f.seq[dir]++
	}
	return n
}

var be = binary.BigEndian

// sumOf adds the 16-bit words of b, of which there are an even number of bytes.
func sumOf(b []byte) (s uint32) {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	return s
}

// fold is the Internet checksum of a sum.
func fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return ^uint16(s>>16 + s)
}

// Next implements source.Source.
func (t *Traffic) Next(b *source.Batch) (int, error) {
	if t.stop.Load() {
		return 0, io.EOF
	}
	longest := LongestHeaders
	for _, s := range t.p.Lengths {
		longest = max(longest, s.Length)
	}
	if need := longest * len(b.Frames); len(b.Buf) < need {
		b.Buf = make([]byte, need)
	}
	at := 0
	for i := range b.Frames {
		n, ns, ok := t.Frame(b.Buf[at:])
		if !ok {
			if i == 0 {
				return 0, io.EOF
			}
			return i, nil
		}
		b.Frames[i] = source.Frame{Data: b.Buf[at : at+n : at+n], TimestampNs: ns, WireLen: uint32(n), LinkType: packet.LinkEthernet}
		at += n
		t.bytes += uint64(n)
	}
	return len(b.Frames), nil
}

// Stats implements source.Source.
func (t *Traffic) Stats() source.Stats { return source.Stats{Frames: t.sent, Bytes: t.bytes} }

// Interrupt implements source.Source.
func (t *Traffic) Interrupt() { t.stop.Store(true) }

// Close implements source.Source.
func (t *Traffic) Close() error { return nil }
