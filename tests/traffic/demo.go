package traffic

import (
	"fmt"
	"net/netip"
	"time"
)

// Names of the scenarios in the demo's truth file.
const (
	EventPortScan = "port_scan"
	EventSynFlood = "syn_flood"
	EventBeacon   = "beacon"
	EventCovert   = "covert_timing"
)

// Addresses that the demo's scenarios use, so that a reader recognises them.
var (
	demoScanner  = netip.MustParseAddr("192.0.2.66")
	demoScanned  = netip.MustParseAddr("10.1.0.200")
	demoFlooded  = netip.MustParseAddr("10.1.0.80")
	demoInfected = netip.MustParseAddr("10.1.0.33")
	demoC2       = netip.MustParseAddr("198.51.100.77")
	demoLeaking  = netip.MustParseAddr("10.1.0.44")
	demoDrop     = netip.MustParseAddr("203.0.113.9")
)

// Demo is ten minutes of a small site: web, DNS and SSH, and among them a port
// scan, a SYN flood, a beacon and a covert timing channel. About 50,000 packets.
func Demo(seed uint64) *Capture {
	c := New(seed)
	h := c.hosts(24, 120, 0.15)
	span := 10 * time.Minute
	at := func() int64 { return Epoch + c.Rand.Int64N(int64(span-30*time.Second)) }
	for range 480 {
		c.web(h, at())
	}
	for range 220 {
		c.plainWeb(h, at())
	}
	for range 900 {
		c.lookup(h, at())
	}
	for range 8 {
		c.shell(h, at())
	}
	c.portScan(Epoch + int64(90*time.Second))
	c.synFlood(Epoch + int64(240*time.Second))
	c.beacon(Epoch+int64(3*time.Second), 10*time.Second, 58)
	c.covert(Epoch+int64(60*time.Second), 4000)
	return c
}

func (c *Capture) between(low, high time.Duration) time.Duration {
	return low + time.Duration(c.Rand.Int64N(int64(high-low)))
}

func (c *Capture) open(h *hosts, at int64, port uint16, app string) *Flow {
	src, dst := h.pair(port)
	f := c.Flow(TCP, at, src, dst)
	f.App, f.RTT = app, c.between(4*time.Millisecond, 60*time.Millisecond)
	return f.Handshake()
}

func (c *Capture) web(h *hosts, at int64) {
	f := c.open(h, at, 443, "tls")
	f.Wait(c.between(200*time.Microsecond, 2*time.Millisecond)).Send(Fwd, ClientHello(c.Rand, serverName(c.Rand.IntN(120))))
	f.Wait(f.RTT).sendHead(Rev, c.head(ServerHello(c.Rand)), MSS).Bulk(Rev, 1200+c.Rand.IntN(2400), 80*time.Microsecond)
	f.Wait(c.between(time.Millisecond, 4*time.Millisecond)).sendHead(Fwd, c.head(ApplicationData(69)), 74)
	for range 1 + c.Rand.IntN(4) {
		n := 180 + c.Rand.IntN(420)
		f.Wait(c.between(2*time.Millisecond, 900*time.Millisecond)).sendHead(Fwd, c.head(ApplicationData(n-5)), n)
		f.Wait(f.RTT + c.between(time.Millisecond, 60*time.Millisecond))
		c.loss(f)
		f.Bulk(Rev, 400+int(c.Rand.ExpFloat64()*9000), c.between(20*time.Microsecond, 400*time.Microsecond))
	}
	f.Wait(c.between(10*time.Millisecond, 5*time.Second))
	if c.Rand.IntN(12) == 0 {
		f.Reset(Fwd)
		return
	}
	f.Close()
}

// loss sometimes repeats a segment after a time-out or swaps two.
func (c *Capture) loss(f *Flow) {
	switch c.Rand.IntN(24) {
	case 0:
		f.Fill(Rev, MSS).Wait(f.RTT + 200*time.Millisecond).Repeat(Rev).Wait(f.RTT).Ack(Fwd)
	case 1:
		f.Swap(Rev, MSS, MSS, 100*time.Microsecond).Wait(50 * time.Microsecond).Ack(Fwd)
	}
}

func (c *Capture) plainWeb(h *hosts, at int64) {
	port := uint16(80)
	if c.Rand.IntN(10) == 0 {
		port = 8080
	}
	f := c.open(h, at, port, "http")
	for range 1 + c.Rand.IntN(2) {
		size := 300 + int(c.Rand.ExpFloat64()*6000)
		request := HTTPRequest(serverName(c.Rand.IntN(120)), fmt.Sprintf("/page/%d", c.Rand.IntN(1000)))
		f.Wait(c.between(time.Millisecond, 300*time.Millisecond)).Send(Fwd, request)
		f.Wait(f.RTT+c.between(time.Millisecond, 40*time.Millisecond)).sendHead(Rev, c.head(HTTPResponse(size)), min(MSS, size))
		f.Wait(40 * time.Microsecond).Ack(Fwd)
		if size > MSS {
			f.Bulk(Rev, size-MSS, 120*time.Microsecond)
		}
	}
	f.Wait(c.between(5*time.Millisecond, 2*time.Second)).Close()
}

func (c *Capture) lookup(h *hosts, at int64) *Flow {
	src, dst := h.pair(53)
	f := c.Flow(UDP, at, src, dst)
	f.App, f.RTT = "dns", c.between(300*time.Microsecond, 40*time.Millisecond)
	id, name, aaaa := uint16(c.Rand.Uint32()), serverName(c.Rand.IntN(4000)), c.Rand.IntN(3) == 0
	return f.Send(Fwd, DNSQuery(id, name, aaaa)).Wait(f.RTT).Send(Rev, DNSAnswer(id, name, public(aaaa, c.Rand.IntN(4000))))
}

func (c *Capture) shell(h *hosts, at int64) {
	f := c.open(h, at, 22, "ssh")
	c.sshOpen(f)
	for range 60 + c.Rand.IntN(200) {
		f.Wait(c.between(60*time.Millisecond, 420*time.Millisecond)).Fill(Fwd, 36)
		f.Wait(f.RTT).Fill(Rev, 36+8*c.Rand.IntN(40)).Wait(100 * time.Microsecond).Ack(Fwd)
	}
	f.Close()
}

func (c *Capture) sshOpen(f *Flow) {
	f.Wait(f.RTT).Send(Rev, SSHBanner(true)).Wait(time.Millisecond).Send(Fwd, SSHBanner(false))
	f.Wait(time.Millisecond).Send(Fwd, SSHKexInit(c.Rand)).Wait(f.RTT).Send(Rev, SSHKexInit(c.Rand))
	f.Wait(2*time.Millisecond).Fill(Fwd, 1208).Wait(f.RTT).Fill(Rev, 1100).Wait(time.Millisecond).Fill(Fwd, 16)
	f.Wait(40*time.Millisecond).Fill(Fwd, 44).Wait(f.RTT).Fill(Rev, 44).Wait(time.Millisecond).Fill(Fwd, 68)
	f.Wait(f.RTT).Fill(Rev, 52).Wait(time.Millisecond).Fill(Fwd, 148).Wait(f.RTT).Fill(Rev, 28)
}

// portScan probes 1,000 ports of one host within 12 seconds; three are open.
func (c *Capture) portScan(at int64) {
	for i, port := range c.Rand.Perm(1024)[:1000] {
		f := c.Flow(TCP, at+int64(i)*int64(12*time.Millisecond), netip.AddrPortFrom(demoScanner, uint16(40000+i)),
			netip.AddrPortFrom(demoScanned, uint16(port+1)))
		f.Event, f.Plain, f.RTT = EventPortScan, true, 3*time.Millisecond
		f.Syn()
		switch port + 1 {
		case 22, 80, 443:
			f.Wait(f.RTT).add(Rev, syn|ack, -1, 0)
			f.Wait(time.Millisecond).Reset(Fwd)
		default:
			f.Refuse()
		}
	}
}

// synFlood sends 6,000 SYN from forged addresses to one web server within six seconds; it answers the first 400.
func (c *Capture) synFlood(at int64) {
	target := netip.AddrPortFrom(demoFlooded, 443)
	for i := range 6000 {
		r := c.Rand.Uint32()
		src := netip.AddrFrom4([4]byte{11 + byte(r>>24)%80, byte(r >> 16), byte(r >> 8), byte(r)})
		f := c.Flow(TCP, at+int64(i)*int64(time.Millisecond), netip.AddrPortFrom(src, uint16(1024+i)), target)
		f.Event, f.RTT = EventSynFlood, 500*time.Microsecond
		f.Syn()
		if i < 400 {
			f.Wait(f.RTT).add(Rev, syn|ack, -1, 0)
		}
	}
}

// beacon calls home at a fixed interval with at most 2 % jitter, always with the same exchange.
func (c *Capture) beacon(at int64, every time.Duration, times int) {
	server := netip.AddrPortFrom(demoC2, 443)
	for i := range times {
		jitter := time.Duration((c.Rand.Float64() - 0.5) * 0.04 * float64(every))
		f := c.Flow(TCP, at+int64(i)*int64(every)+int64(jitter), netip.AddrPortFrom(demoInfected, uint16(50000+i)), server)
		f.App, f.Event, f.RTT = "tls", EventBeacon, 35*time.Millisecond
		f.Handshake().Wait(time.Millisecond).Send(Fwd, ClientHello(c.Rand, "cdn-77.example.net"))
		f.Wait(f.RTT).sendHead(Rev, c.head(ServerHello(c.Rand)), 1180).Wait(time.Millisecond).Ack(Fwd)
		f.Wait(time.Millisecond).sendHead(Fwd, c.head(ApplicationData(69)), 74)
		f.Wait(time.Millisecond).sendHead(Fwd, c.head(ApplicationData(211)), 216)
		f.Wait(f.RTT).sendHead(Rev, c.head(ApplicationData(123)), 128).Wait(time.Millisecond).Ack(Fwd).Close()
	}
}

// covert sends bits as delays of 40 or 80 ms between equal segments.
func (c *Capture) covert(at int64, symbols int) {
	f := c.Flow(TCP, at, netip.AddrPortFrom(demoLeaking, 44082), netip.AddrPortFrom(demoDrop, 9999))
	f.Event, f.RTT = EventCovert, 30*time.Microsecond
	f.Handshake()
	for range symbols {
		d := 40 * time.Millisecond
		if c.Rand.IntN(2) == 1 {
			d *= 2
		}
		f.Wait(d+c.between(40*time.Microsecond, 110*time.Microsecond)).Fill(Fwd, 12).Wait(10 * time.Microsecond).Ack(Rev)
	}
	f.Close()
}
