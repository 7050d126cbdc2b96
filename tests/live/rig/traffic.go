package rig

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/tests/netns"
)

// Server answers in a namespace: a TCP port that echoes requests of 8 bytes
// direction, size and answer, and a UDP port that echoes.
type Server struct {
	tcp  net.Listener
	udp  *net.UDPConn
	done sync.WaitGroup
}

const (
	tcpPort = 5001
	udpPort = 5002
)

// Serve listens on an address of the namespace.
func Serve(ns *netns.NS, addr netip.Addr) (*Server, error) {
	s := &Server{}
	err := ns.Do(func() (err error) {
		if s.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, tcpPort))); err != nil {
			return err
		}
		s.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, udpPort)))
		return err
	})
	if err != nil {
		return nil, err
	}
	s.done.Go(func() {
		for {
			c, err := s.tcp.Accept()
			if err != nil {
				return
			}
			go echo(c.(*net.TCPConn))
		}
	})
	s.done.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := s.udp.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n <= echoMax { // what is longer is a load and wants no answer
				_, _ = s.udp.WriteToUDPAddrPort(b[:n], from)
			}
		}
	})
	return s, nil
}

const echoMax = 128

// echo answers requests, whose first 8 bytes say how much follows and how much
// is wanted, until the other side has no more.
func echo(c *net.TCPConn) {
	defer c.Close()
	if err := small(c); err != nil {
		return
	}
	head := make([]byte, 8)
	zeros := make([]byte, 1<<16)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		follows, wanted := number(head), number(head[4:])
		if _, err := io.CopyN(io.Discard, c, int64(follows)); err != nil {
			return
		}
		for wanted > 0 {
			n, err := c.Write(zeros[:min(wanted, len(zeros))])
			if err != nil {
				return
			}
			wanted -= n
		}
	}
}

func number(b []byte) int { return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]) }

func put(b []byte, n int) { b[0], b[1], b[2], b[3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n) }

// Close ends the server; its connections end with their clients.
func (s *Server) Close() {
	_ = s.tcp.Close()
	_ = s.udp.Close()
	s.done.Wait()
}

// Dial connects from a namespace to a server's TCP port.
func Dial(ns *netns.NS, addr netip.Addr) (c *net.TCPConn, err error) {
	err = ns.Do(func() (err error) {
		c, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, tcpPort)))
		return err
	})
	if err == nil {
		err = small(c)
	}
	return c, err
}

// small bounds what a connection has under way to what the queue of a veth end holds, 256
// frames: TCP would otherwise grow until one is lost.
func small(c *net.TCPConn) error {
	const buffer = 128 << 10 // the kernel doubles it, half of that is for its own use
	return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
}

// Ask sends a request of that many bytes and reads the answer that it wants.
func Ask(c net.Conn, send, receive int) error {
	b := make([]byte, 8+send)
	put(b, send)
	put(b[4:], receive)
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c, int64(receive))
	return err
}

// SendSegmented sends UDP payloads that the kernel cuts into datagrams of the given size.
func SendSegmented(ns *netns.NS, addr netip.Addr, size, payload, times int) error {
	var c *net.UDPConn
	err := ns.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, udpPort)))
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	if err := raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) }); err != nil || opt != nil {
		return errors.Join(err, opt)
	}
	b := make([]byte, payload)
	for range times {
		if _, err := c.Write(b); err != nil {
			return fmt.Errorf("UDP of %d bytes in segments of %d: %w", payload, size, err)
		}
		time.Sleep(200 * time.Microsecond) // the server's socket takes it
	}
	return nil
}

// Probe sends a datagram every millisecond and notes which answers come.
type Probe struct {
	Name string
	c    net.Conn
	icmp bool
	stop chan struct{}
	done sync.WaitGroup

	sent, answered atomic.Uint64
	last           time.Time // of an answer; read after done
	gap            time.Duration
	at             time.Time // end of the longest gap
}

// ProbeUDP starts probing a server's UDP port.
func ProbeUDP(ns *netns.NS, addr netip.Addr) (*Probe, error) {
	return probe("UDP", ns, "udp", netip.AddrPortFrom(addr, udpPort).String())
}

// ProbeICMP starts probing a kernel.
func ProbeICMP(ns *netns.NS, addr netip.Addr) (*Probe, error) {
	return probe("ICMP", ns, "ip4:icmp", addr.String())
}

func probe(name string, ns *netns.NS, network, addr string) (*Probe, error) {
	p := &Probe{Name: name, stop: make(chan struct{}), icmp: network != "udp"}
	if err := ns.Do(func() (err error) { p.c, err = net.Dial(network, addr); return err }); err != nil {
		return nil, err
	}
	p.last = time.Now()
	p.done.Go(p.receive)
	p.done.Go(p.send)
	return p, nil
}

const (
	probeInterval = time.Millisecond
	ipHeader      = 20
)

func (p *Probe) send() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	b := make([]byte, 32)
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		if p.icmp {
			clear(b)
			b[0], b[4], b[5] = 8, 0x41, 0x47
			n := p.sent.Load()
			b[6], b[7] = byte(n>>8), byte(n)
			sum := uint32(0)
			for i := 0; i < len(b); i += 2 {
				sum += uint32(b[i])<<8 | uint32(b[i+1])
			}
			sum = sum&0xffff + sum>>16
			sum = ^(sum&0xffff + sum>>16)
			b[2], b[3] = byte(sum>>8), byte(sum)
		}
		if _, err := p.c.Write(b); err == nil {
			p.sent.Add(1)
		}
	}
}

func (p *Probe) receive() {
	b := make([]byte, 256)
	for {
		n, err := p.c.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || p.icmp && (n <= ipHeader || b[ipHeader] != 0) { // an echo reply, header included
			continue
		}
		now := time.Now()
		if d := now.Sub(p.last); d > p.gap {
			p.gap, p.at = d, now
		}
		p.last = now
		p.answered.Add(1)
	}
}

// Result is what a probe has seen.
type Result struct {
	Sent, Answered uint64
	Gap            time.Duration // longest time between two answers
	At             time.Time     // its end
}

// Stop ends the probe, waits for late answers and returns the result.
func (p *Probe) Stop() Result {
	close(p.stop)
	for deadline := time.Now().Add(2 * time.Second); p.answered.Load() < p.sent.Load() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	_ = p.c.Close()
	p.done.Wait()
	return Result{Sent: p.sent.Load(), Answered: p.answered.Load(), Gap: p.gap, At: p.at}
}

// Stream is a TCP connection that is never idle.
type Stream struct {
	c    *net.TCPConn
	stop chan struct{}
	done chan error

	bytes int64
	gap   time.Duration
}

// StartStream moves small portions each way, 20 MB/s at most, until Stop.
func StartStream(ns *netns.NS, addr netip.Addr) (*Stream, error) {
	c, err := Dial(ns, addr)
	if err != nil {
		return nil, err
	}
	s := &Stream{c: c, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { s.done <- s.run() }()
	return s, nil
}

func (s *Stream) run() error {
	const portion = 40_000
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return nil
		case <-tick.C:
		}
		begin := time.Now()
		if err := Ask(s.c, portion, portion); err != nil {
			return err
		}
		s.gap = max(s.gap, time.Since(begin))
		s.bytes += 2 * portion
	}
}

// Stop ends the stream and returns the bytes that it moved, the longest time that a
// portion took and how many segments the kernel had to send again.
func (s *Stream) Stop() (bytes int64, gap time.Duration, again uint32, err error) {
	close(s.stop)
	err = <-s.done
	raw, e := s.c.SyscallConn()
	if e == nil {
		e = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil {
				again = info.Total_retrans
			}
		})
	}
	return s.bytes, s.gap, again, errors.Join(err, e, s.c.Close())
}

// Answered is the number of answers so far.
func (p *Probe) Answered() uint64 { return p.answered.Load() }

// Discard opens a UDP socket in a namespace that reads and forgets.
func Discard(ns *netns.NS, addr string) (c net.PacketConn, err error) {
	if err := ns.Do(func() (err error) { c, err = net.ListenPacket("udp4", addr); return err }); err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 1<<16)
		for {
			if _, _, err := c.ReadFrom(b); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	return c, nil
}
