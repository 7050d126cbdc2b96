package live

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// forger makes frames of connections that do not exist, as anybody can who is on the
// segment of the interface.
type forger struct {
	t        *testing.T
	sender   *netns.Sender
	from, to net.HardwareAddr
	frames   [][]byte
}

// newForger is at the far end of the guarded host's interface.
func newForger(t *testing.T, g *guarded) *forger {
	t.Helper()
	near, err := g.host.Link("h0")
	require.NoError(t, err)
	far, err := g.far.Link("q0")
	require.NoError(t, err)
	f := &forger{t: t, from: far.Attrs().HardwareAddr, to: near.Attrs().HardwareAddr}
	f.sender, err = g.far.Sender("q0")
	require.NoError(t, err)
	t.Cleanup(f.sender.Close)
	return f
}

// route makes the host send on what is for another address, which it returns.
func route(t *testing.T, g *guarded) netip.Addr {
	t.Helper()
	beside := netip.MustParsePrefix("10.9.0.4/24")
	require.NoError(t, g.far.Addr("q0", beside))
	require.NoError(t, g.host.Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/h0/send_redirects", []byte("0"), 0))
	}))
	return beside.Addr()
}

// send sends the frames, some at a time.
func (f *forger) send(some int) {
	for at := 0; at < len(f.frames); at += some {
		part := f.frames[at:min(at+some, len(f.frames))]
		n, err := f.sender.Send(part)
		require.NoError(f.t, err)
		require.Equal(f.t, len(part), n)
		settle(2 * time.Millisecond)
	}
	f.frames = f.frames[:0]
}

func (f *forger) segment(src, dst netip.AddrPort, flags string, seq, ack uint32, payload int) {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: seq, Ack: ack, Window: 64000,
		SYN: strings.Contains(flags, "S"), ACK: strings.Contains(flags, "A"), RST: strings.Contains(flags, "R"), PSH: payload > 0, FIN: strings.Contains(flags, "F"),
	}
	require.NoError(f.t, tcp.SetNetworkLayerForChecksum(ip))
	b := gopacket.NewSerializeBuffer()
	require.NoError(f.t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: f.from, DstMAC: f.to, EthernetType: layers.EthernetTypeIPv4}, ip, tcp, gopacket.Payload(make([]byte, payload))))
	f.frames = append(f.frames, b.Bytes())
}

// logins appends that many failed logins, with both sides.
func (f *forger) logins(n int, client netip.Addr, server netip.AddrPort) {
	for i := range n {
		c := netip.AddrPortFrom(client, uint16(30000+i))
		f.segment(c, server, "S", 1000, 0, 0)
		f.segment(server, c, "SA", 5000, 1001, 0)
		f.segment(c, server, "A", 1001, 5001, 0)
		f.segment(server, c, "A", 5001, 1001, 40)
		f.segment(c, server, "A", 1001, 5041, 30)
		f.segment(server, c, "A", 5041, 1031, 20)
		f.segment(c, server, "FA", 1031, 5061, 0)
		f.segment(server, c, "FA", 5061, 1032, 0)
		f.segment(c, server, "A", 1032, 5062, 0)
	}
}

// figure is a reading of the rule list.
func (g *guarded) figure(t *testing.T, name string) (n int) {
	t.Helper()
	require.NoError(t, g.plugin.Gather())
	settle(50 * time.Millisecond)
	for line := range strings.Lines(g.plugin.Out()) {
		if !strings.HasPrefix(line, "agp_steering,interface=h0,target=enforcement ") {
			continue
		}
		if _, rest, ok := strings.Cut(line, name+"="); ok {
			v, err := strconv.Atoi(rest[:strings.IndexByte(rest, 'i')])
			require.NoError(t, err)
			n = v
		}
	}
	return n
}

func (g *guarded) rules(t *testing.T) (list []string) {
	t.Helper()
	g.ask(t, func(c *control.Client) error {
		list = nil
		_, err := c.List(func(r *agppb.ControlRule) error {
			list = append(list, r.GetPrefix()+" by "+r.GetBy())
			return nil
		})
		return err
	})
	return list
}

// refusing serves logins that all fail.
func refusing(t *testing.T, g *guarded, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	require.NoError(t, g.host.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write(make([]byte, 40))
				if _, err := io.ReadFull(c, make([]byte, 30)); err == nil {
					_, _ = c.Write(make([]byte, 20))
				}
			}()
		}
	}()
}

// guess fails to log in from the far host.
func guess(g *guarded, at netip.AddrPort, times int) error {
	return g.far.Do(func() error {
		for range times {
			c, err := net.DialTimeout("tcp", at.String(), 5*time.Second)
			if err != nil {
				return err
			}
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			_, err = io.ReadFull(c, make([]byte, 40))
			if err == nil {
				_, err = c.Write(make([]byte, 30))
			}
			if err == nil {
				_, err = io.ReadAll(c)
			}
			if err = errors.Join(err, c.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestForgedConnectionsBlockNobodyAndRealOnesTheirSource: a neighbour sends both sides of
// failed logins into the interface, of an address that lives and answers the host, and of
// one that does not; to an open and a closed port; and of a server to which the host sends
// them on, by the same interface. Then the far host really guesses passwords.
func TestForgedConnectionsBlockNobodyAndRealOnesTheirSource(t *testing.T) {
	g := guardOf(t, "    dry_run = false\n", "  idle_timeout = \"2s\"\n", "")
	open := netip.AddrPortFrom(hostNet.Addr(), 22)
	refusing(t, g, open)
	beside := route(t, g)
	f := newForger(t, g)

	attacks := 0
	for _, client := range []netip.Addr{farNet.Addr(), netip.MustParseAddr("10.9.0.77")} {
		for _, server := range []netip.AddrPort{open, netip.AddrPortFrom(hostNet.Addr(), 23), netip.AddrPortFrom(beside, 22)} {
			f.logins(60, client, server)
			f.send(9)
			attacks++
		}
	}
	eventually(t, "alerts about what was forged", func() bool { return g.figure(t, "refused_unconfirmed") >= attacks })
	require.Empty(t, g.rules(t))
	g.answers(t)

	require.NoError(t, guess(g, open, 30))
	g.silent(t)
	require.Equal(t, []string{farNet.Addr().String() + "/32 by alert"}, g.rules(t))
}

// TestWhatARouterSendsOnIsNotItsOwn: it takes a snapshot of every second frame. A neighbour
// makes it see the client's frames coming in, and the server's, which he forges as well, only
// where it sends them on.
func TestWhatARouterSendsOnIsNotItsOwn(t *testing.T) {
	g := guardOf(t, "    dry_run = false\n", "  idle_timeout = \"2s\"\n", "    sample_every = 2\n")
	client, server := farNet.Addr(), netip.AddrPortFrom(route(t, g), 22)
	f := newForger(t, g)
	filler := func() { // a frame that goes no further
		f.segment(netip.AddrPortFrom(client, 9), netip.AddrPortFrom(hostNet.Addr(), 9), "R", 1, 0, 0)
	}
	for i := range 800 {
		c := netip.AddrPortFrom(client, uint16(30000+i))
		f.segment(c, server, "S", 1000, 0, 0)
		filler()
		f.segment(server, c, "SA", 5000, 1001, 0)
		filler()
		f.segment(c, server, "A", 1001, 5001, 30)
		filler()
		f.segment(server, c, "FA", 5001, 1031, 40)
		filler()
		f.segment(c, server, "FA", 1031, 5042, 0)
		if i%2 == 1 {
			filler() // whichever frame of all was the first
		}
	}
	f.send(10)
	eventually(t, "alerts about what was forged", func() bool { return g.figure(t, "refused_unconfirmed") > 0 })
	require.Empty(t, g.rules(t))
}
