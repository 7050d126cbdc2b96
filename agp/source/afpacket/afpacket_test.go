package afpacket

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// pair makes two namespaces with a veth pair, "a" in the first and "b" in the second.
func pair(t testing.TB) (a, b *netns.NS) {
	a, b = netns.Test(t), netns.Test(t)
	require.NoError(t, netns.Veth(netns.End{NS: a, Name: "a"}, netns.End{NS: b, Name: "b"}, 2, 1500))
	return a, b
}

func open(t testing.TB, n *netns.NS, cfg Config) *Source {
	var s *Source
	require.NoError(t, n.Do(func() (err error) {
		s, err = Open(cfg)
		return err
	}))
	t.Cleanup(func() { s.Close() })
	return s
}

// rawSocket sends frames through the stack, so that captures see them leave.
func rawSocket(t testing.TB, n *netns.NS, name string) (send func(f []byte)) {
	l, err := n.Link(name)
	require.NoError(t, err)
	var fd int
	require.NoError(t, n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	to := &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}
	return func(f []byte) { require.NoError(t, unix.Sendto(fd, f, 0, to)) }
}

// frame returns a UDP frame with a number in its payload, tagged if vlan is not 0.
func frame(n int, flow uint16, payload int, vlan uint16) []byte {
	f := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	if vlan != 0 {
		f = append(f, 0x81, 0, byte(vlan>>8), byte(vlan))
	}
	f = append(f, 8, 0)
	ip := make([]byte, 28+payload)
	ip[0], ip[8], ip[9] = 0x45, 64, packet.ProtoUDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], "\x0a\x00\x00\x01\x0a\x00\x00\x02")
	binary.BigEndian.PutUint16(ip[20:], 1024+flow)
	binary.BigEndian.PutUint16(ip[22:], 2000)
	binary.BigEndian.PutUint16(ip[24:], uint16(8+payload))
	binary.BigEndian.PutUint32(ip[28:], uint32(n))
	return append(f, ip...)
}

// copyOf keeps what the next batch overwrites.
func copyOf(f source.Frame) source.Frame {
	f.Data = bytes.Clone(f.Data)
	return f
}

// collect reads until done says so, for at most 10 s.
func collect(t testing.TB, s *Source, done func(got []source.Frame) bool) (got []source.Frame) {
	var b source.Batch
	for until := time.Now().Add(10 * time.Second); !done(got); {
		if time.Now().After(until) {
			require.Fail(t, "too few frames", "%d frames, %v", len(got), s.Stats())
		}
		n, err := s.Next(&b)
		require.NoError(t, err)
		for _, f := range b.Frames[:n] {
			got = append(got, copyOf(f))
		}
	}
	return got
}

// TestSentIsReceived: on one and several rings, in both directions, every frame comes once, in the
// order of sending, with its bytes up to the snapshot length, its true length, its tag and a time of now.
func TestSentIsReceived(t *testing.T) {
	a, b := pair(t)
	out, in := rawSocket(t, a, "a"), rawSocket(t, b, "b")
	for _, rings := range []int{1, 3} {
		s := open(t, a, Config{Interfaces: []string{"a"}, Rings: rings, RingBytes: 4 << 20})
		const n = 2000
		before := time.Now().UnixNano()
		var sent [][]byte
		var got []source.Frame
		for i := range n {
			vlan := uint16(i % 3 * 100)
			f := frame(i, uint16(i%50), 4+i%1400, vlan)
			sent = append(sent, f)
			if i%2 == 0 {
				out(f)
			} else {
				in(f)
			}
			if i%100 == 99 {
				got = append(got, collect(t, s, func(more []source.Frame) bool { return len(got)+len(more) > i })...)
			}
		}
		require.Len(t, got, n)
		last := before
		for i, f := range got {
			// A tag that the kernel took out of the frame is not part of the snapshot.
			require.GreaterOrEqual(t, len(f.Data), min(256, len(sent[i])), "frame %d", i)
			require.LessOrEqual(t, len(f.Data), 260)
			require.Equal(t, sent[i][:len(f.Data)], f.Data, "frame %d", i)
			require.EqualValues(t, len(sent[i]), f.WireLen)
			require.Equal(t, packet.LinkEthernet, f.LinkType)
			require.Zero(t, f.SegmentSize)
			require.GreaterOrEqual(t, f.TimestampNs, last)
			last = f.TimestampNs
		}
		require.LessOrEqual(t, last, time.Now().UnixNano())
		st := s.Stats()
		require.EqualValues(t, n, st.Frames)
		require.Empty(t, st.Dropped)
		require.Empty(t, st.Repaired)
		require.NoError(t, s.Close())
	}
}

// TestCoalescedTCPHasSegmentSize: with the port's segmentation offload, bulk TCP through a veth pair
// comes as super-packets with the segment size that the MTU gives, and the bytes add up.
func TestCoalescedTCPHasSegmentSize(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Addr("a", netip.MustParsePrefix("10.9.0.1/24")))
	require.NoError(t, b.Addr("b", netip.MustParsePrefix("10.9.0.2/24")))
	for _, end := range []struct {
		n    *netns.NS
		name string
	}{{a, "a"}, {b, "b"}} {
		require.NoError(t, end.n.Offload(end.name, true))
	}
	const total = 2 << 20
	for _, side := range []string{"a", "b"} {
		n := map[string]*netns.NS{"a": a, "b": b}[side]
		s := open(t, n, Config{Interfaces: []string{side}, Rings: 2})
		sendTCP(t, a, b, total)
		var parser packet.Parser
		type span struct{ from, to int64 }
		var spans []span
		var coalesced, fin int
		collect(t, s, func(got []source.Frame) bool {
			spans, coalesced, fin = nil, 0, 0
			for _, f := range got {
				var in packet.Info
				if parser.Parse(f.LinkType, f.Data, f.WireLen, &in) != packet.OK || in.Protocol != packet.ProtoTCP {
					continue
				}
				if in.DstPort == 5001 {
					spans = append(spans, span{int64(in.Seq), int64(in.Seq) + int64(in.PayloadLen)})
				}
				if in.PayloadLen > 1460 {
					coalesced++
					if f.SegmentSize != 1448 { // 1500 less 20, 20 and 12 of timestamps
						require.Fail(t, "segment size", "%d of a frame of %d bytes", f.SegmentSize, f.WireLen)
					}
				}
				if in.TCPFlags&packet.TCPFin != 0 {
					fin++
				}
			}
			return fin >= 2
		})
		// What TCP sent again counts once.
		base := uint32(spans[0].from + 1) // behind the SYN
		for i := range spans {
			d := int64(int32(uint32(spans[i].from) - base))
			spans[i] = span{d, d + spans[i].to - spans[i].from}
		}
		slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		var payload, end int64
		for _, s := range spans {
			payload += max(0, s.to-max(s.from, end))
			end = max(end, s.to)
		}
		require.EqualValues(t, total, payload, side)
		require.Positive(t, coalesced)
		require.Empty(t, s.Stats().Dropped)
	}
}

// sendTCP sends bytes from a to port 5001 of b.
func sendTCP(t testing.TB, a, b *netns.NS, total int) {
	var l net.Listener
	require.NoError(t, b.Do(func() (err error) {
		l, err = net.Listen("tcp", "10.9.0.2:5001")
		return err
	}))
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, c)
			c.Close()
		}
		done <- err
	}()
	require.NoError(t, a.Do(func() error {
		c, err := net.Dial("tcp", "10.9.0.2:5001")
		if err != nil {
			return err
		}
		_, err = c.Write(make([]byte, total))
		return errors.Join(err, c.Close())
	}))
	require.NoError(t, <-done)
}

// TestLoopbackFramesComeOnce: the loopback interface shows each frame leaving and arriving.
func TestLoopbackFramesComeOnce(t *testing.T) {
	n := netns.Test(t)
	s := open(t, n, Config{Interfaces: []string{"lo"}, Rings: 2, Duplicates: true})
	require.NoError(t, n.Do(func() error {
		l, err := net.ListenPacket("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer l.Close()
		for range 100 {
			if _, err := l.WriteTo([]byte("same content"), l.LocalAddr()); err != nil {
				return err
			}
		}
		return nil
	}))
	udp := 0
	collect(t, s, func(got []source.Frame) bool {
		udp = 0
		for _, f := range got {
			if f.Data[23] == packet.ProtoUDP {
				udp++
			}
		}
		return s.Stats().Dropped["duplicate"] >= 100 && udp >= 100
	})
	st := s.Stats()
	require.Equal(t, 100, udp)
	require.Equal(t, st.Frames, st.Dropped["duplicate"], "each frame was seen twice")
}

// TestTwoInterfacesOneOrder: frames of two interfaces in one source, by time, with the index of each; what goes
// through both is delivered once.
func TestTwoInterfacesOneOrder(t *testing.T) {
	n, far := netns.Test(t), netns.Test(t)
	for _, name := range []string{"x", "y"} {
		require.NoError(t, netns.Veth(netns.End{NS: n, Name: name}, netns.End{NS: far, Name: name + "0"}, 1, 1500))
	}
	x, y := rawSocket(t, far, "x0"), rawSocket(t, far, "y0")
	s := open(t, n, Config{Interfaces: []string{"x", "y"}, Rings: 1})
	for i := range 300 {
		x(frame(2*i, 1, 100, 0))
		y(frame(2*i+1, 2, 100, 0))
	}
	got := collect(t, s, func(got []source.Frame) bool { return len(got) >= 600 })
	for i, f := range got {
		require.EqualValues(t, i, binary.BigEndian.Uint32(f.Data[42:]))
		require.EqualValues(t, i%2, f.Interface)
		require.EqualValues(t, 1+i%2, f.Side)
	}
	require.NoError(t, s.Close())
}

// TestFrameThroughTwoInterfacesComesOnce: it leaves by one interface and arrives at the other.
func TestFrameThroughTwoInterfacesComesOnce(t *testing.T) {
	n := netns.Test(t)
	require.NoError(t, netns.Veth(netns.End{NS: n, Name: "x"}, netns.End{NS: n, Name: "y"}, 1, 1500))
	s := open(t, n, Config{Interfaces: []string{"x", "y"}, Rings: 1, Duplicates: true})
	x := rawSocket(t, n, "x")
	for i := range 50 {
		x(frame(i, 3, 100, 0))
	}
	got := collect(t, s, func(got []source.Frame) bool { return s.Stats().Dropped["duplicate"] >= 50 })
	require.Len(t, got, 50)
	for _, f := range got {
		require.Zero(t, f.Interface, "the first that saw it")
		require.Equal(t, source.SideOut, f.Side)
	}
}

// TestRemovedInterfaceIsAClearError: while running, what was sent before is delivered; being down is waited for.
func TestRemovedInterfaceIsAClearError(t *testing.T) {
	a, b := pair(t)
	s := open(t, a, Config{Interfaces: []string{"a"}})
	require.NoError(t, a.Down("a"))
	var batch source.Batch
	for range 5 {
		_, err := s.Next(&batch)
		require.NoError(t, err)
	}
	require.NoError(t, a.Up("a"))
	in := rawSocket(t, b, "b")
	in(frame(1, 1, 100, 0))
	collect(t, s, func(got []source.Frame) bool { return len(got) == 1 })
	require.NoError(t, a.Rename("a", "renamed"))
	for range 5 {
		_, err := s.Next(&batch)
		require.NoError(t, err, "another name is the same interface")
	}
	in(frame(2, 1, 100, 0))
	require.NoError(t, a.Remove("renamed"))
	frames := 0
	for until := time.Now().Add(5 * time.Second); ; {
		n, err := s.Next(&batch)
		frames += n
		if err != nil {
			require.ErrorIs(t, err, ErrGone)
			require.ErrorContains(t, err, `"a"`)
			break
		}
		require.True(t, time.Now().Before(until), "no error")
	}
	require.Equal(t, 1, frames)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Next(&batch)
	require.Equal(t, io.EOF, err)
}

// TestOpenRefuses: interfaces that are not there, lengths that cannot be, and a process without the capability.
func TestOpenRefuses(t *testing.T) {
	n := netns.Test(t)
	for _, name := range []string{"missing", "", "a name that is too long for one"} {
		require.ErrorIs(t, n.Do(func() error {
			_, err := Open(Config{Interfaces: []string{"lo", name}})
			return err
		}), ErrNoInterface)
	}
	_, err := Open(Config{})
	require.ErrorIs(t, err, ErrNoInterface)
	_, err = Open(Config{Interfaces: []string{"lo"}, SnapLen: 1 << 20})
	require.Error(t, err)

	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends without its capabilities
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			done <- err
			return
		}
		_, err := Open(Config{Interfaces: []string{"lo"}})
		done <- err
	}()
	err = <-done
	require.ErrorIs(t, err, ErrPermission)
	require.ErrorContains(t, err, "CAP_NET_RAW")
}

// TestPromiscuousWhileOpen: the interface is so as long as the source is open.
func TestPromiscuousWhileOpen(t *testing.T) {
	a, _ := pair(t)
	promiscuous := func() bool {
		l, err := a.Link("a")
		require.NoError(t, err)
		return l.Attrs().Promisc != 0
	}
	require.False(t, promiscuous())
	s := open(t, a, Config{Interfaces: []string{"a"}, Promiscuous: true})
	require.True(t, promiscuous())
	require.NoError(t, s.Close())
	require.False(t, promiscuous())
}

// TestFullRingIsCounted: frames that nobody reads in time are the kernel's drops; delivered and
// dropped together are what was sent.
func TestFullRingIsCounted(t *testing.T) {
	a, b := pair(t)
	in := rawSocket(t, b, "b")
	s := open(t, a, Config{Interfaces: []string{"a"}, Rings: 1, RingBytes: 1})
	const n = 4000
	for i := range n {
		in(frame(i, 1, 1000, 0))
	}
	var batch source.Batch
	require.Eventually(t, func() bool {
		_, err := s.Next(&batch)
		require.NoError(t, err)
		st := s.Stats()
		return st.Frames+st.Dropped["kernel_drop"] == n
	}, 10*time.Second, time.Millisecond)
	require.Positive(t, s.Stats().Dropped["kernel_drop"])
	st := s.Stats()
	require.NoError(t, s.Close())
	require.Equal(t, st, s.Stats())
}

// TestRawIPDevice: a device without MAC header delivers IP packets as such.
func TestRawIPDevice(t *testing.T) {
	n := netns.Test(t)
	var tun *os.File
	require.NoError(t, n.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		tun = os.NewFile(uintptr(fd), "tun")
		ifr, err := unix.NewIfreq("tun0")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}))
	defer tun.Close()
	require.NoError(t, n.Up("tun0"))
	s := open(t, n, Config{Interfaces: []string{"tun0"}, Rings: 1})
	p := frame(7, 1, 100, 0)[14:]
	_, err := tun.Write(p)
	require.NoError(t, err)
	got := collect(t, s, func(got []source.Frame) bool { return len(got) > 0 })
	require.Equal(t, packet.LinkRaw, got[0].LinkType)
	require.Equal(t, p, got[0].Data)
	require.EqualValues(t, len(p), got[0].WireLen)
}

// TestIdleAndInterrupt: Next returns soon without frames, and ends soon once interrupted.
func TestIdleAndInterrupt(t *testing.T) {
	a, _ := pair(t)
	s := open(t, a, Config{Interfaces: []string{"a"}})
	var b source.Batch
	before := time.Now()
	for range 4 {
		_, err := s.Next(&b)
		require.NoError(t, err)
	}
	require.Less(t, time.Since(before), 2*time.Second)
	done := make(chan error)
	go func() {
		for {
			if _, err := s.Next(&b); err != nil {
				done <- err
				return
			}
		}
	}()
	s.Interrupt()
	select {
	case err := <-done:
		require.Equal(t, io.EOF, err)
	case <-time.After(5 * time.Second):
		require.Fail(t, "not interrupted")
	}
}
