package traffic

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Bench is traffic of a busy link: exactly the given numbers of packets and
// flows (at least 12 packets per flow), most flows short, a few very long,
// payload sizes mixed (about 380 bytes per frame), one fifth IPv6, one in twelve
// of the longer ones of an unknown protocol. All flows
// have a key of their own and fall into one minute.
func Bench(seed uint64, packets, flows int) *Capture {
	c := New(seed)
	c.packets = make([]packet, 0, packets)
	b := &bench{Capture: c, hosts: c.hosts(5000, 3000, 0.2), span: time.Minute}
	b.shareHeads()
	dns, ntp, echo, failed := flows*30/100, flows*3/100, flows*2/100, flows*6/100
	for range dns {
		c.lookup(b.hosts, b.at(time.Second))
	}
	for range ntp {
		b.clock()
	}
	for range echo {
		b.ping()
	}
	for range failed {
		b.failure()
	}
	for i, n := range b.lengths(flows-dns-ntp-echo-failed, packets-len(c.packets)) {
		switch k := i % 59; {
		case k < 5:
			b.datagrams(n)
		case k < 17:
			b.stream(n, 80, "http")
		case k < 21:
			b.stream(n, 22, "ssh")
		case k < 26:
			b.stream(n, uint16(7000+b.Rand.IntN(20000)), "other")
		default:
			b.stream(n, 443, "tls")
		}
	}
	return c
}

type bench struct {
	*Capture
	hosts *hosts
	span  time.Duration

	hello, answer, request, response, quic, data []int32
}

// shareHeads prepares first payloads that many flows share.
func (b *bench) shareHeads() {
	for i := range 200 {
		b.hello = append(b.hello, b.head(ClientHello(b.Rand, serverName(i))))
		b.answer = append(b.answer, b.head(ServerHello(b.Rand)))
		b.request = append(b.request, b.head(HTTPRequest(serverName(i), "/"+serverName(i*7))))
		b.response = append(b.response, b.head(HTTPResponse(1000+i*37)))
		b.quic = append(b.quic, b.head(QUICInitial(b.Rand)))
	}
	for n := range MSS + 1 {
		b.data = append(b.data, b.head(ApplicationData(max(0, n-5))))
	}
}

func (b *bench) pick(heads []int32) int32 { return heads[b.Rand.IntN(len(heads))] }

func (b *bench) at(room time.Duration) int64 { return Epoch + b.Rand.Int64N(int64(b.span-room)) }

// lengths draws n flow lengths of at least 9 packets from a Pareto tail and makes their sum exactly total.
func (b *bench) lengths(n, total int) []int {
	const shortest, longest = 9, 30_000
	weight := make([]float64, n)
	for i := range weight {
		weight[i] = math.Pow(1-b.Rand.Float64(), -1/1.25) - 1
	}
	lengths := make([]int, n)
	fill := func(scale float64) int {
		s := 0
		for i, w := range weight {
			lengths[i] = shortest + int(min(w*scale, longest-shortest))
			s += lengths[i]
		}
		return s
	}
	low, high := 0.0, 1e6
	for range 60 {
		if mid := (low + high) / 2; fill(mid) > total {
			high = mid
		} else {
			low = mid
		}
	}
	rest := total - fill(low)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, c int) int { return cmp.Compare(lengths[c], lengths[a]) })
	for i := 0; rest > 0; i, rest = i+1, rest-1 {
		lengths[order[i%n]]++
	}
	return lengths
}

func (b *bench) clock() {
	src, dst := b.hosts.pair(123)
	f := b.Flow(UDP, b.at(time.Second), src, dst)
	f.App = "ntp"
	f.Send(Fwd, NTP(b.Rand, false)).Wait(f.RTT).Send(Rev, NTP(b.Rand, true))
}

func (b *bench) ping() {
	src, dst := b.hosts.pair(0)
	protocol := uint8(ICMP)
	if src.Addr().Is6() {
		protocol = ICMPv6
	}
	f := b.Flow(protocol, b.at(6*time.Second), src, dst)
	for range 1 + b.Rand.IntN(4) {
		f.Echo(56).Wait(time.Second)
	}
}

// failure is a connection attempt that is refused or never answered.
func (b *bench) failure() {
	src, dst := b.hosts.pair(uint16(1 + b.Rand.IntN(10000)))
	f := b.Flow(TCP, b.at(2*time.Second), src, dst)
	f.Syn()
	if b.Rand.IntN(2) == 0 {
		f.Refuse()
		return
	}
	b.packets[len(b.packets)-1].window = 64240
	again := b.packets[len(b.packets)-1]
	again.at += int64(time.Second)
	again.again = true
	b.packets = append(b.packets, again)
}

// gap is the mean time between packets that lets n of them fit into the capture.
func (b *bench) gap(n int) time.Duration {
	longest := float64(b.span) / 3 / float64(n)
	return time.Duration(min(longest, math.Exp(b.Rand.NormFloat64()*1.2)*float64(150*time.Millisecond)))
}

// step moves the clock by a random part of twice the gap.
func (b *bench) step(f *Flow, gap time.Duration) {
	f.Wait(time.Duration(b.Rand.Int64N(int64(2*gap) + 1)))
}

// size is a payload of the usual trimodal mix.
func (b *bench) size() int {
	switch r := b.Rand.IntN(10); {
	case r < 4:
		return 20 + b.Rand.IntN(130)
	case r < 8:
		return 450 + b.Rand.IntN(130)
	default:
		return MSS
	}
}

// stream is a TCP connection of exactly n >= 9 packets.
func (b *bench) stream(n int, port uint16, app string) {
	gap := b.gap(n)
	src, dst := b.hosts.pair(port)
	f := b.Flow(TCP, b.at(b.span/3*2), src, dst)
	f.App, f.RTT = app, b.between(time.Millisecond, 60*time.Millisecond)
	f.Handshake()
	b.step(f, gap)
	switch app {
	case "tls":
		f.sendHead(Fwd, b.pick(b.hello), 517).Wait(f.RTT).sendHead(Rev, b.pick(b.answer), MSS)
	case "http":
		f.sendHead(Fwd, b.pick(b.request), 280).Wait(f.RTT).sendHead(Rev, b.pick(b.response), b.size())
	case "ssh":
		f.Wait(f.RTT).Send(Rev, SSHBanner(true)).Wait(time.Millisecond).Send(Fwd, SSHBanner(false))
	default: // a binary protocol that nobody knows
		f.Fill(Fwd, 80+b.Rand.IntN(60)).Wait(f.RTT).Fill(Rev, b.size())
	}
	for i := range n - 8 {
		b.step(f, gap)
		switch {
		case i%3 == 0:
			f.Ack(Fwd)
		case i%16 == 7:
			b.content(f, Fwd, 60+b.Rand.IntN(300))
		case i%200 == 101:
			f.Wait(f.RTT).Repeat(Rev)
		default:
			b.content(f, Rev, b.size())
		}
	}
	b.step(f, gap)
	f.Close()
}

// content adds a payload packet in the middle of a flow.
func (b *bench) content(f *Flow, dir, n int) {
	head := int32(-1)
	if f.App == "tls" {
		head = b.data[n]
	}
	f.sendHead(dir, head, n)
}

// datagrams is a QUIC-like UDP flow of exactly n packets.
func (b *bench) datagrams(n int) {
	gap := b.gap(n)
	src, dst := b.hosts.pair(443)
	f := b.Flow(UDP, b.at(b.span/3*2), src, dst)
	f.App = "quic"
	f.sendHead(Fwd, b.pick(b.quic), 1200).Wait(f.RTT).sendHead(Rev, b.pick(b.quic), 1200)
	for i := range n - 2 {
		b.step(f, gap)
		if i%4 == 0 {
			f.Fill(Fwd, 30+b.Rand.IntN(50))
		} else {
			f.Fill(Rev, min(1250, b.size()))
		}
	}
}

// Flood is one packet per flow: SYN from forged addresses to one server.
func Flood(seed uint64, packets int) *Capture {
	c := New(seed)
	target := netip.AddrPortFrom(demoFlooded, 443)
	for i := range packets {
		src := netip.AddrFrom4([4]byte{11 + byte(i>>24), byte(i >> 16), byte(i >> 8), byte(i)})
		f := c.Flow(TCP, Epoch+int64(i)*int64(5*time.Microsecond), netip.AddrPortFrom(src, uint16(1024+c.Rand.IntN(60000))), target)
		f.Event = EventSynFlood
		f.Syn()
	}
	return c
}

// ManyFlows keeps the given number of flows open at the same time: they all
// start within ten seconds, have four packets each and none of them ends.
func ManyFlows(seed uint64, flows int) *Capture {
	c := New(seed)
	c.packets = make([]packet, 0, 4*flows)
	b := &bench{Capture: c, hosts: c.hosts(50_000, 3000, 0.2), span: 10 * time.Second}
	b.shareHeads()
	for i := range flows {
		port, protocol := uint16(443), uint8(TCP)
		if i%4 == 0 {
			port, protocol = 4500, UDP
		}
		src, dst := b.hosts.pair(port)
		f := b.Flow(protocol, b.at(0), src, dst)
		if protocol == TCP {
			f.Handshake().Wait(time.Millisecond).sendHead(Fwd, b.pick(b.hello), 100)
			continue
		}
		for k := range 4 {
			f.Fill(k%2, 60).Wait(f.RTT)
		}
	}
	return c
}
