package live

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// ip4 returns an IPv4 packet without link header.
func ip4(proto uint8, payload []byte) []byte {
	p := make([]byte, 20, 20+len(payload))
	p[0], p[8], p[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(p[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(p[10:], 0xbeef)
	p[12], p[15], p[16], p[19] = 10, 1, 10, 2
	return append(p, payload...)
}

func ip6(proto uint8, payload []byte) []byte {
	p := make([]byte, 40, 40+len(payload))
	p[0], p[6], p[7] = 0x60, proto, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	p[8], p[23], p[24], p[39] = 0xfd, 1, 0xfd, 2
	return append(p, payload...)
}

// ether puts a MAC header with VLAN tags in front of a packet.
func ether(mac byte, p []byte, tags ...uint16) []byte {
	f := []byte{2, 0, 0, 0, 0, mac, 2, 0, 0, 0, 1, mac}
	for _, t := range tags {
		f = append(f, 0x81, 0, byte(t>>8), byte(t))
	}
	if len(p) > 0 && p[0]>>4 == 6 {
		f = append(f, 0x86, 0xdd)
	} else {
		f = append(f, 0x08, 0x00)
	}
	return append(f, p...)
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

const second = int64(time.Second)

// TestDuplicateAtAnotherHook: as it is, forwarded (other MAC, TTL, checksum), tagged in the
// frame, padded, without MAC header, and with or without the transport checksum.
func TestDuplicateAtAnotherHook(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int{30, 300, 1400} {
		for _, proto := range []uint8{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoSCTP, packet.ProtoICMP} {
			for _, v6 := range []bool{false, true} {
				body := random(rng, size)
				p := ip4(proto, body)
				l4, ttl := 20, 8
				if v6 {
					p, l4, ttl = ip6(proto, body), 40, 7
				}
				forwarded := append([]byte(nil), p...)
				forwarded[ttl]--
				if !v6 {
					forwarded[10]++
				}
				offloaded := append([]byte(nil), p...)
				switch proto {
				case packet.ProtoTCP:
					offloaded[l4+16]++
					offloaded[l4+17]++
				case packet.ProtoUDP:
					offloaded[l4+6]++
					offloaded[l4+7]++
				case packet.ProtoSCTP:
					offloaded[l4+8]++
					offloaded[l4+11]++
				}
				for name, again := range map[string][]byte{
					"same":      ether(1, p),
					"forwarded": ether(3, forwarded),
					"tagged":    ether(3, p, 5),
					"two tags":  ether(3, p, 5, 6),
					"padded":    append(ether(3, p), 0, 0, 0),
					"offloaded": ether(1, offloaded),
				} {
					d := NewDuplicates(256)
					first := ether(1, p)
					require.False(t, d.Duplicate(packet.LinkEthernet, first[:min(len(first), 256)], uint32(len(first)), 0, second, 1))
					require.Equal(t, ether(1, p), first, "the frame is as before")
					require.True(t, d.Duplicate(packet.LinkEthernet, again[:min(len(again), 256)], uint32(len(again)), 0, second+1000, 2), "%s %d %v %d", name, proto, v6, size)
					require.True(t, d.Duplicate(packet.LinkRaw, p[:min(len(p), 256)], uint32(len(p)), 0, second+1000, 3), "raw %d %v %d", proto, v6, size)
				}
			}
		}
	}
}

// TestNoDuplicate: another packet, another length, another time, and the same hook again.
func TestNoDuplicate(t *testing.T) {
	p := ip4(packet.ProtoUDP, make([]byte, 300))
	first := ether(1, p)
	ask := func(d *Duplicates, f []byte, wire int, ns int64, hook uint32) bool {
		return d.Duplicate(packet.LinkEthernet, f[:min(len(f), 256)], uint32(wire), 0, ns, hook)
	}
	fresh := func() *Duplicates {
		d := NewDuplicates(256)
		require.False(t, ask(d, first, len(first), second, 1))
		return d
	}
	require.True(t, ask(fresh(), first, len(first), second+9_999_000, 2))
	require.False(t, ask(fresh(), first, len(first), second+10_001_000, 2), "more than 10 ms later")
	require.False(t, ask(fresh(), first, len(first), second+1000, 1), "sent twice")
	other := append([]byte(nil), first...)
	other[100]++
	require.False(t, ask(fresh(), other, len(other), second, 2), "other payload")
	other = append([]byte(nil), first...)
	other[29]++
	require.False(t, ask(fresh(), other, len(other), second, 2), "other address")
	longer := ether(1, ip4(packet.ProtoUDP, make([]byte, 301)))
	require.False(t, ask(fresh(), longer, len(longer), second, 2), "other length")
	arp := append([]byte(nil), first...)
	arp[12], arp[13] = 8, 6
	require.False(t, ask(fresh(), arp, len(arp), second, 2), "other Ethernet type")
	super := append([]byte(nil), first...)
	super[16], super[17] = 0, 0 // BIG TCP: the length is only in the frame's
	d := NewDuplicates(256)
	require.False(t, ask(d, super, 70_000, second, 1))
	require.False(t, ask(d, super, 80_000, second, 2))
	require.True(t, ask(d, super, 80_000, second, 3))
}

// TestRetransmissionIsCountedOncePerHook: the same packet sent three times through two hooks is three
// frames, whether the hooks' events alternate or come in bursts; the place where it is counted changes
// after 10 ms only.
func TestRetransmissionIsCountedOncePerHook(t *testing.T) {
	f := ether(1, ip4(packet.ProtoUDP, make([]byte, 20)))
	for _, order := range [][]uint32{{1, 2, 1, 2, 1, 2}, {1, 1, 1, 2, 2, 2}, {1, 2, 1, 1, 2, 2}} {
		d := NewDuplicates(256)
		counted := 0
		for i, hook := range order {
			if !d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second+int64(i)*500_000, hook) {
				counted++
			}
		}
		require.Equal(t, 3, counted, "%v", order)
	}
	d := NewDuplicates(256)
	require.False(t, d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second, 1))
	require.True(t, d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second+6_000_000, 2))
	require.False(t, d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second+12_000_000, 2), "it goes through one hook now")
	require.True(t, d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second+13_000_000, 1))
}

// TestDuplicatesProperty: random packets pass one to four hooks with delays below 10 ms, some are sent
// again: each transmission is counted once. The clock of the hooks wraps within the test.
func TestDuplicatesProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	d := NewDuplicates(256)
	ns := int64(1<<32)*1000 - 3*second // us as 32 bits wrap after 3 s
	sent, counted := 0, 0
	for range 40_000 {
		ns += rng.Int64N(200_000)
		f := ether(1, ip4(packet.ProtoTCP, random(rng, 20+rng.IntN(500))))
		path := rng.Perm(6)[:1+rng.IntN(4)]
		for range 1 + rng.IntN(10)/9 {
			sent++
			for i, hook := range path {
				at := ns + int64(i)*rng.Int64N(2_000_000)
				if !d.Duplicate(packet.LinkEthernet, f[:min(len(f), 256)], uint32(len(f)), 0, at, uint32(hook)) {
					counted++
				}
			}
		}
	}
	require.Equal(t, sent, counted)
}

// tcpSegments returns a TCP packet with a payload of n bytes, and what segmentation makes of it.
func tcpSegments(rng *rand.Rand, v6 bool, n, size int) (whole []byte, parts [][]byte) {
	header := make([]byte, 32)
	copy(header, random(rng, 12))
	header[12], header[13] = 0x80, packet.TCPAck|packet.TCPPsh|packet.TCPFin|packet.TCPCwr
	header[16] = 0x55 // checksum
	body := random(rng, n)
	build := func(from, to int) []byte {
		h := append([]byte(nil), header...)
		binary.BigEndian.PutUint32(h[4:], binary.BigEndian.Uint32(h[4:])+uint32(from))
		if to < n {
			h[13] &^= packet.TCPFin | packet.TCPPsh
		}
		if from > 0 {
			h[13] &^= packet.TCPCwr
		}
		if from > 0 || to < n {
			h[16], h[17] = byte(from), 9
		}
		data := append(h, body[from:to]...)
		if v6 {
			return ip6(packet.ProtoTCP, data)
		}
		p := ip4(packet.ProtoTCP, data)
		binary.BigEndian.PutUint16(p[4:], uint16(from/size)) // identification
		return p
	}
	for from := 0; from < n; from += size {
		parts = append(parts, build(from, min(from+size, n)))
	}
	whole = build(0, n)
	if v6 && len(whole) > 65575 {
		whole[4], whole[5] = 0, 0
	} else if !v6 && len(whole) > 65535 {
		whole[2], whole[3] = 0, 0
	}
	return whole, parts
}

// TestCoalescedAtOneHookSplitAtTheNext: TCP is recognised in either order, also if it is joined
// otherwise, and other bytes of the connection are not.
func TestCoalescedAtOneHookSplitAtTheNext(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	for range 300 {
		v6, size, n := rng.IntN(2) == 0, 500+rng.IntN(1000), 2000+rng.IntN(60_000)
		if rng.IntN(10) == 0 {
			n += 100_000
		}
		whole, parts := tcpSegments(rng, v6, n, size)
		ask := func(d *Duplicates, p []byte, segment, hook int) bool {
			f := ether(byte(hook), p)
			return d.Duplicate(packet.LinkEthernet, f[:min(len(f), 256)], uint32(len(f)), uint16(segment), second, uint32(hook))
		}
		d := NewDuplicates(256)
		require.False(t, ask(d, whole, size, 1))
		for i, p := range parts {
			require.True(t, ask(d, p, 0, 2), "part %d", i)
		}
		require.True(t, ask(d, whole, size, 2))
		require.False(t, ask(d, whole, size, 1), "sent again")

		d = NewDuplicates(256)
		for _, p := range parts {
			require.False(t, ask(d, p, 0, 1))
		}
		require.True(t, ask(d, whole, size, 2))
		other, _ := tcpSegments(rng, v6, n, size)
		require.False(t, ask(d, other, size, 2))
		next := append([]byte(nil), whole...)
		l4 := 20
		if v6 {
			l4 = 40
		}
		binary.BigEndian.PutUint32(next[l4+4:], binary.BigEndian.Uint32(whole[l4+4:])+uint32(n))
		require.False(t, ask(d, next, size, 2), "the bytes that follow")
	}
}

// TestDuplicatesUnderLoad: memory is fixed, and frames of 10 ms at 2 million/s are all remembered.
func TestDuplicatesUnderLoad(t *testing.T) {
	d := NewDuplicates(256)
	f := ether(1, ip4(packet.ProtoUDP, make([]byte, 30)))
	const lag = 10_000 // frames between the two hooks: 5 ms
	missed := 0
	for i := range 200_000 {
		binary.BigEndian.PutUint64(f[50:], uint64(i))
		require.False(t, d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second+int64(i)*500, 1))
		if i >= lag {
			binary.BigEndian.PutUint64(f[50:], uint64(i-lag))
			if !d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, second+int64(i)*500, 2) {
				missed++
			}
		}
	}
	require.LessOrEqual(t, missed, 100, "0.05 %")
	require.Len(t, d.buckets, DuplicateEntries/ways)
}

// TestDuplicateDoesNotAllocate: the hash is taken in place.
func TestDuplicateDoesNotAllocate(t *testing.T) {
	d := NewDuplicates(256)
	f := ether(1, ip4(packet.ProtoUDP, make([]byte, 200)))
	require.Zero(t, testing.AllocsPerRun(100, func() { d.Duplicate(packet.LinkEthernet, f, 300, 0, second, 1) }))
}

// FuzzDuplicate: any bytes are recognised at another hook and left as they were.
func FuzzDuplicate(f *testing.F) {
	f.Add(ether(1, ip4(packet.ProtoTCP, make([]byte, 30)), 1, 2), uint32(90), uint32(1))
	f.Add(ip6(packet.ProtoUDP, make([]byte, 7)), uint32(0), uint32(101))
	f.Add([]byte{0x4f}, uint32(1<<31), uint32(101))
	f.Fuzz(func(t *testing.T, frame []byte, wire, link uint32) {
		d := NewDuplicates(64)
		was := append([]byte(nil), frame...)
		first := d.Duplicate(packet.LinkType(link), frame, wire, 0, 5, 1)
		second := d.Duplicate(packet.LinkType(link), frame, wire, 0, 6, 2)
		if first || !second {
			t.Fatal(first, second)
		}
		require.True(t, bytes.Equal(was, frame))
	})
}

// TestPace: no pause before everything was taken, up to 2 ms when little comes, and otherwise
// so long that nearly three batches come.
func TestPace(t *testing.T) {
	var p Pace
	require.Zero(t, p.Pause())
	p.Polled(0, 100, false)
	require.Equal(t, 50*time.Microsecond, p.Pause())
	for range 10 {
		p.Polled(1, 100, false)
	}
	require.Equal(t, 2*time.Millisecond, p.Pause())
	for range 2 {
		p.Polled(100, 100, false)
		require.Zero(t, p.Pause())
	}
	p.Polled(75, 100, false)
	require.Equal(t, 2*time.Millisecond, p.Pause(), "as much as wanted")
	for range 5 {
		p.Polled(100, 100, false)
		require.Zero(t, p.Pause())
	}
	p.Polled(50, 100, false)
	require.Equal(t, time.Millisecond, p.Pause(), "twice as much")
	p.Polled(1, 100, true)
	require.Zero(t, p.Pause(), "more is waiting")
	p.Polled(0, 100, false)
	require.Equal(t, 2*time.Millisecond, p.Pause())
}

// TestClock: monotonic time goes on with the kernel's, and the offset leads to the wall clock.
func TestClock(t *testing.T) {
	c := System()
	before := monotonic()
	now := c.Monotonic()
	require.LessOrEqual(t, before, now+1000)
	require.LessOrEqual(t, now, monotonic()+1000)
	require.InDelta(t, time.Now().UnixNano(), c.Monotonic()+c.Realtime(), 1e9)
	c.Sleep(time.Millisecond)
	require.GreaterOrEqual(t, c.Monotonic()-now, int64(time.Millisecond))
}

// TestLinkType: devices with and without MAC header, and those that cannot be read.
func TestLinkType(t *testing.T) {
	for hw, want := range map[uint16]packet.LinkType{1: 1, 772: 1, 0xfffe: 101, 512: 101, 768: 101, 519: 101, 803: 127} {
		got, err := LinkType(hw)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := LinkType(280)
	require.ErrorIs(t, err, ErrLinkType)
	require.ErrorContains(t, err, "280")
}

// TestSegments: as the flow table counts them.
func TestSegments(t *testing.T) {
	f := ether(1, ip4(packet.ProtoUDP, make([]byte, 8+3000)))
	f[39], f[38] = 0xc0, 0x0b // UDP length 3008
	require.EqualValues(t, 1, Segments(1, f, uint32(len(f)), 0))
	require.EqualValues(t, 1, Segments(1, f, uint32(len(f)), 3000))
	require.EqualValues(t, 2, Segments(1, f, uint32(len(f)), 2999))
	require.EqualValues(t, 3, Segments(1, f[:256], uint32(len(f)), 1000))
	require.EqualValues(t, 4, Segments(1, f, uint32(len(f)), 999))
	require.EqualValues(t, 1, Segments(1, f[:10], uint32(len(f)), 999))
}

func BenchmarkDuplicate(b *testing.B) {
	d := NewDuplicates(256)
	f := ether(1, ip4(packet.ProtoTCP, make([]byte, 222)))
	for i := range b.N {
		binary.BigEndian.PutUint64(f[50:], uint64(i))
		d.Duplicate(packet.LinkEthernet, f, uint32(len(f)), 0, int64(i)*500, 1)
	}
}
