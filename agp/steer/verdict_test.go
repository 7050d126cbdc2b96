package steer

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
	"github.com/agp-net/telegraf-agp/agp/steer/toeplitz"
)

const (
	ingress = bpf.SteerProgAgpIngress
	egress  = bpf.SteerProgAgpEgress
	divert  = bpf.SteerProgAgpDivert
	mirror  = bpf.SteerProgAgpMirror
)

func block(p string) Rule { return Rule{Prefix: netip.MustParsePrefix(p), Action: Block} }

func prefixes(ps ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestABlockedHostIsDroppedInBothDirections(t *testing.T) {
	for _, c := range []struct{ name, rule, from, to string }{
		{"IPv4 host", "192.0.2.1/32", "192.0.2.1:1", "198.51.100.1:2"},
		{"IPv4 network", "192.0.2.0/24", "192.0.2.77:1", "198.51.100.1:2"},
		{"IPv6 host", "2001:db8::1/128", "[2001:db8::1]:1", "[2001:db9::1]:2"},
		{"IPv6 network", "2001:db8::/32", "[2001:db8:1::1]:1", "[2001:db9::1]:2"},
		{"host bits do not matter", "192.0.2.9/24", "192.0.2.77:1", "198.51.100.1:2"},
		{"IPv4 written as IPv6", "::ffff:192.0.2.1/128", "192.0.2.1:1", "198.51.100.1:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, Config{})
			require.NoError(t, d.Add([]Rule{block(c.rule)}))
			require.Equal(t, 1, d.Blocked())
			in, out := udp(t, c.from, c.to), udp(t, c.to, c.from)
			require.EqualValues(t, tcShot, run(t, d, ingress, in))
			require.EqualValues(t, tcShot, run(t, d, egress, out))
			require.EqualValues(t, xdpDrop, run(t, d, divert, in))
			require.EqualValues(t, xdpDrop, run(t, d, mirror, in))
			// The address matched is the remote one.
			require.EqualValues(t, tcNext, run(t, d, ingress, out))
			require.EqualValues(t, tcNext, run(t, d, egress, in))
			require.EqualValues(t, xdpPass, run(t, d, mirror, out))
			n := count(t, d)
			require.Equal(t, Count{Frames: 4, Bytes: uint64(4 * len(in))}, n.Blocked)
			require.EqualValues(t, 3, n.Pass.Frames)
			require.EqualValues(t, 7, n.Seen().Frames)

			require.NoError(t, d.Remove(prefixes(c.rule)))
			require.Zero(t, d.Blocked())
			require.EqualValues(t, tcNext, run(t, d, ingress, in), "removed")
		})
	}
}

func TestFragmentsOfABlockedHostAreDropped(t *testing.T) {
	d := load(t, Config{})
	require.NoError(t, d.Add([]Rule{block("192.0.2.1/32")}))
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	binary.BigEndian.PutUint16(f[20:], 5)
	require.EqualValues(t, tcShot, run(t, d, ingress, f))
}

// The kernel delivers all of these; what of them is not understood begins behind the address.
func TestABlockedHostDoesNotHideBehindHeadersThatAreNotUnderstood(t *testing.T) {
	const extensions = 9 // one more than the programs follow
	headers := []byte{}
	for i := range extensions {
		next := byte(layers.IPProtocolIPv6Destination)
		if i == extensions-1 {
			next = byte(layers.IPProtocolUDP)
		}
		headers = append(headers, next, 0, 1, 4, 0, 0, 0, 0)
	}
	six := func(src, dst string) []byte {
		f := udp(t, src, dst)
		f[14+6] = byte(layers.IPProtocolIPv6Destination)
		binary.BigEndian.PutUint16(f[14+4:], binary.BigEndian.Uint16(f[14+4:])+uint16(len(headers))) //nolint:gosec // small
		return slices.Insert(f, 14+40, headers...)
	}
	// The first fragment ends within the header of the transport.
	four := func(src, dst string) []byte {
		f := packet(t, layers.IPProtocolSCTP, src, dst)
		binary.BigEndian.PutUint16(f[14+2:], 28)
		binary.BigEndian.PutUint16(f[14+6:], 0x2000)
		return f
	}
	for _, c := range []struct {
		name, rule, from, to string
		frame                func(src, dst string) []byte
	}{
		{"extension headers", "2001:db8::1/128", "[2001:db8::1]:1", "[2001:db9::1]:2", six},
		{"short first fragment", "192.0.2.1/32", "192.0.2.1:1", "198.51.100.1:2", four},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, Config{})
			in, out := c.frame(c.from, c.to), c.frame(c.to, c.from)
			require.EqualValues(t, tcNext, run(t, d, ingress, in))
			require.EqualValues(t, 1, count(t, d).Unparsed.Frames)
			require.NoError(t, d.Add([]Rule{block(c.rule)}))
			require.EqualValues(t, tcShot, run(t, d, ingress, in))
			require.EqualValues(t, tcShot, run(t, d, egress, out))
			require.EqualValues(t, xdpDrop, run(t, d, divert, in))
			require.EqualValues(t, xdpDrop, run(t, d, mirror, in))
			require.EqualValues(t, tcNext, run(t, d, ingress, out))
			n := count(t, d)
			require.EqualValues(t, 4, n.Blocked.Frames)
			require.EqualValues(t, 6, n.Unparsed.Frames)
			require.EqualValues(t, 6, n.Seen().Frames)
		})
	}
}

func TestDryRunCountsAndDropsNothing(t *testing.T) {
	d := load(t, Config{})
	r := block("192.0.2.1/32")
	r.DryRun = true
	limit := Rule{Prefix: netip.MustParsePrefix("192.0.2.2/32"), Action: RateLimit, PacketsPerSecond: 1, DryRun: true}
	require.NoError(t, d.Add([]Rule{r, limit}))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "192.0.2.1:1", "198.51.100.1:2")))
	for range 5 {
		require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "192.0.2.2:1", "198.51.100.1:2")))
	}
	n := count(t, d)
	require.EqualValues(t, 1, n.WouldBlock.Frames)
	require.EqualValues(t, 4, n.WouldLimit.Frames)
	require.Zero(t, n.Blocked.Frames+n.RateLimited.Frames)
	require.EqualValues(t, 6, n.ToEngine.Frames, "they still go to the engine")
	require.EqualValues(t, 6, n.Pass.Frames)
}

func TestTheMostSpecificRuleCounts(t *testing.T) {
	d := load(t, Config{})
	dry := block("192.0.2.1/32")
	dry.DryRun = true
	wide := block("192.0.0.0/16")
	narrow := block("192.0.3.0/24")
	narrow.DryRun = true
	require.NoError(t, d.Add([]Rule{wide, narrow, dry}))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "192.0.2.1:1", "198.51.100.1:2")))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "192.0.3.1:1", "198.51.100.1:2")))
	require.EqualValues(t, tcShot, run(t, d, ingress, udp(t, "192.0.4.1:1", "198.51.100.1:2")))
}

func TestARateLimitLetsTheBurstAndThenTheRatePass(t *testing.T) {
	d := load(t, Config{})
	const pps = 200
	require.NoError(t, d.Add([]Rule{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Action: RateLimit, PacketsPerSecond: pps}}))
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	run(t, d, ingress, udp(t, "198.51.100.9:1", "198.51.100.1:2")) // loads the program
	start := time.Now()
	var sent, passed int
	var pauses time.Duration // of this busy machine, in which nothing was sent
	for last := start; last.Sub(start)-pauses < 500*time.Millisecond; {
		sent++
		if run(t, d, ingress, f) == tcNext {
			passed++
		}
		now := time.Now()
		if gap := now.Sub(last); gap > 10*time.Millisecond {
			pauses += gap
		}
		last = now
	}
	seconds := time.Since(start).Seconds()
	burst := pps*float64(BurstNs)/1e9 + 1
	t.Logf("%d of %d frames in %.3f s, %.3f s of them pauses", passed, sent, seconds, pauses.Seconds())
	require.LessOrEqual(t, float64(passed), pps*seconds+burst+1)
	require.GreaterOrEqual(t, float64(passed), pps*(seconds-pauses.Seconds())+burst-2)
	n := count(t, d)
	require.EqualValues(t, sent-passed, n.RateLimited.Frames)
	require.EqualValues(t, passed+1, n.Pass.Frames)

	for range 100 {
		require.EqualValues(t, tcNext, run(t, d, egress, udp(t, "198.51.100.1:2", "192.0.2.1:1")), "replies are free")
	}
}

func TestARateLimitCountsTheFramesOfACoalescedOne(t *testing.T) {
	d := load(t, Config{})
	require.NoError(t, d.Add([]Rule{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Action: RateLimit, PacketsPerSecond: 100}}))
	f := tcp(t, 1000, "192.0.2.1:1", "198.51.100.1:2")
	passed := 0
	for range 10 {
		if runSKB(t, d, ingress, f, &skb{GSOSize: 100, GSOSegs: 10, Ifindex: 1}) == tcNext {
			passed++
		}
	}
	require.Equal(t, 2, passed, "11 frames are a burst of 100 ms; the second ten overdraws")
	require.EqualValues(t, 80, count(t, d).RateLimited.Frames)
}

// tcp is a TCP frame with a payload of n bytes.
func tcp(t testing.TB, n int, src, dst string) []byte {
	t.Helper()
	f := packet(t, layers.IPProtocolTCP, src, dst)
	if f[12] == 8 {
		binary.BigEndian.PutUint16(f[14+2:], uint16(20+20+n))
		return append(f[:14+20+20], make([]byte, n)...)
	}
	binary.BigEndian.PutUint16(f[14+4:], uint16(20+n))
	return append(f[:14+40+20], make([]byte, n)...)
}

func TestACoalescedFrameCountsAsThoseOnTheWire(t *testing.T) {
	for _, c := range []struct {
		src, dst string
		headers  int
	}{{"192.0.2.1:1", "198.51.100.1:2", 54}, {"[2001:db8::1]:1", "[2001:db9::1]:2", 74}} {
		d := load(t, Config{})
		f := tcp(t, 2500, c.src, c.dst)
		// The number of segments that the kernel says may be absent: it is not needed.
		runSKB(t, d, egress, f, &skb{GSOSize: 1000, Ifindex: 1})
		n := count(t, d)
		require.Equal(t, Count{Frames: 3, Bytes: uint64(2500 + 3*c.headers)}, n.ToEngine)
		r := drain(t, d)
		require.Len(t, r, 1)
		require.EqualValues(t, 1000, r[0].GSOSize)
		require.EqualValues(t, 3, r[0].GSOSegs)
		require.EqualValues(t, len(f), r[0].Len, "the length of the super-packet")
		require.EqualValues(t, bpf.HookEgress, r[0].Hook)
	}
}

func TestTheSnapshotIsCutAndRecordsHaveThreeSizes(t *testing.T) {
	for _, c := range []struct{ snap, frame, cap, size int }{
		{0, 60, 60, 64}, {0, 64, 64, 64}, {0, 65, 65, 128}, {0, 128, 128, 128}, {0, 129, 129, 256}, {0, 256, 256, 256},
		{0, 257, 256, 256}, {0, 1514, 256, 256}, {64, 1514, 64, 64}, {100, 1514, 100, 128}, {200, 1514, 200, 256}, {200, 100, 100, 128},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			d := load(t, Config{SnapLen: c.snap})
			f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
			for i := range c.frame - len(f) {
				f = append(f, byte(i))
			}
			for _, prog := range []string{ingress, mirror} {
				run(t, d, prog, f)
				r := drain(t, d)
				require.Len(t, r, 1)
				require.EqualValues(t, c.cap, r[0].Cap)
				require.Equal(t, f[:c.cap], r[0].data)
				require.Equal(t, bpf.EventSize+c.size, r[0].size)
				require.EqualValues(t, len(f), r[0].Len)
			}
		})
	}
}

func TestSnapshotsTellHookClockAndWhatTheyAre(t *testing.T) {
	d := load(t, Config{})
	arp := frame(t, ether(layers.EthernetTypeARP), &layers.ARP{AddrType: 1, Protocol: 0x800, Operation: 1, SourceHwAddress: make([]byte, 6), SourceProtAddress: make([]byte, 4), DstHwAddress: make([]byte, 6), DstProtAddress: make([]byte, 4)})
	frag := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	binary.BigEndian.PutUint16(frag[20:], 5)
	run(t, d, mirror, arp)
	run(t, d, egress, frag)
	run(t, d, bpf.SteerProgAgpIngressIp, udp(t, "66.9.149.187:2794", "161.142.100.80:1766")[14:])
	// Threads may move to another CPU between runs, hence another ring.
	byHook := map[uint8]record{}
	for _, r := range drain(t, d) {
		byHook[r.Hook] = r
	}
	require.Len(t, byHook, 3)
	x, e, i := byHook[bpf.HookXDP], byHook[bpf.HookEgress], byHook[bpf.HookIngress]
	require.EqualValues(t, bpf.EventUnparsed, x.Flags)
	require.Zero(t, x.Hash)
	require.EqualValues(t, bpf.EventFragment, e.Flags)
	require.EqualValues(t, bpf.EventRaw, i.Flags)
	require.EqualValues(t, 0x9fcc9fcc, i.Hash)
	require.Less(t, x.TimeNs, e.TimeNs)
	require.Less(t, e.TimeNs, i.TimeNs)
	require.EqualValues(t, 1, count(t, d).Unparsed.Frames)
	require.EqualValues(t, 3, count(t, d).ToEngine.Frames, "what is not understood is mirrored too")
}

func TestWhatIsNotUnderstoodStaysWithTheKernelInDivert(t *testing.T) {
	d := load(t, Config{})
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	f[12], f[13] = 0x88, 0x47
	require.EqualValues(t, xdpPass, run(t, d, divert, f))
	n := count(t, d)
	require.EqualValues(t, 1, n.NotIP.Frames)
	require.EqualValues(t, 1, n.Pass.Frames)

	require.NoError(t, d.SetPolicy(Policy{IPOnly: true}))
	require.EqualValues(t, tcNext, run(t, d, ingress, f))
	require.Empty(t, drain(t, d), "IPOnly")
	require.EqualValues(t, 2, count(t, d).NotIP.Frames)
}

func TestAFullRingPassesAndCounts(t *testing.T) {
	d := load(t, Config{RingBytes: 4096})
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	for range 500 {
		require.EqualValues(t, tcNext, run(t, d, ingress, f))
	}
	n := count(t, d)
	require.NotZero(t, n.RingFull.Frames)
	require.EqualValues(t, 500, n.RingFull.Frames+n.ToEngine.Frames)
	require.EqualValues(t, 500, n.Pass.Frames)
	require.Len(t, drain(t, d), int(n.ToEngine.Frames))
}

func TestARedirectWithoutSocketPasses(t *testing.T) {
	d := load(t, Config{Sockets: 4, PerQueue: 2})
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	require.EqualValues(t, xdpPass, run(t, d, divert, f))
	n := count(t, d)
	require.EqualValues(t, 1, n.RedirectFail.Frames)
	require.EqualValues(t, 1, n.Pass.Frames)
	require.Zero(t, n.ToEngine.Frames)
}

func TestPolicy(t *testing.T) {
	dns := Class{Protocol: 17, PortMin: 53, PortMax: 53}
	ssh := Class{Protocol: 6, PortMin: 22, PortMax: 22}
	dnsQuery := udp(t, "192.0.2.1:4000", "198.51.100.1:53")
	dnsReply := udp(t, "198.51.100.1:53", "192.0.2.1:4000")
	sshFrame := packet(t, layers.IPProtocolTCP, "192.0.2.1:22", "198.51.100.1:4000")
	ping := packet(t, layers.IPProtocolICMPv4, "192.0.2.1:0", "198.51.100.1:0")
	other := udp(t, "192.0.2.1:4000", "198.51.100.1:5000")
	fragment := udp(t, "192.0.2.1:4000", "198.51.100.1:53")
	binary.BigEndian.PutUint16(fragment[20:], 7)

	const toEngine, kernelClass, otherClass = "to_engine", "kernel_class", "other_class"
	for _, c := range []struct {
		name   string
		policy Policy
		frame  []byte
		fate   string
	}{
		{"everything", Policy{}, other, toEngine},
		{"kernel class, query", Policy{Kernel: []Class{dns}}, dnsQuery, kernelClass},
		{"kernel class, reply", Policy{Kernel: []Class{dns}}, dnsReply, kernelClass},
		{"kernel class, another protocol", Policy{Kernel: []Class{{Protocol: 6, PortMin: 53, PortMax: 53}}}, dnsQuery, toEngine},
		{"kernel class of all protocols", Policy{Kernel: []Class{{PortMin: 50, PortMax: 60}}}, dnsQuery, kernelClass},
		{"kernel class without ports", Policy{Kernel: []Class{{Protocol: 1}}}, ping, kernelClass},
		{"kernel class of everything", Policy{Kernel: []Class{{}}}, other, kernelClass},
		{"engine class", Policy{Classes: []Class{dns, ssh}}, sshFrame, toEngine},
		{"no engine class", Policy{Classes: []Class{dns, ssh}}, other, otherClass},
		{"no ports, no range", Policy{Classes: []Class{{PortMin: 0, PortMax: 65535}}}, ping, otherClass},
		{"kernel wins", Policy{Classes: []Class{dns}, Kernel: []Class{dns}}, dnsQuery, kernelClass},
		{"range starts", Policy{Classes: []Class{{PortMin: 5000, PortMax: 6000}}}, other, toEngine},
		{"range ends", Policy{Classes: []Class{{PortMin: 4001, PortMax: 4999}}}, other, otherClass},
		{"a fragment that may be of a kernel class is mirrored", Policy{Kernel: []Class{dns}}, fragment, toEngine},
		{"a fragment that may be of an engine class is mirrored", Policy{Classes: []Class{dns}}, fragment, toEngine},
		{"a fragment of another protocol", Policy{Classes: []Class{ssh}}, fragment, otherClass},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, Config{Policy: c.policy})
			require.EqualValues(t, tcNext, run(t, d, ingress, c.frame))
			n := count(t, d)
			n.Each(func(name string, v Count) {
				if name == c.fate || name == "pass" {
					require.EqualValues(t, 1, v.Frames, name)
				} else {
					require.Zero(t, v.Frames, name)
				}
			})
		})
	}

	t.Run("divert leaves doubtful fragments to the kernel", func(t *testing.T) {
		for _, p := range []Policy{{Kernel: []Class{dns}}, {Classes: []Class{dns}}} {
			d := load(t, Config{Policy: p})
			require.EqualValues(t, xdpPass, run(t, d, divert, fragment))
			n := count(t, d)
			require.EqualValues(t, 1, n.KernelClass.Frames+n.OtherClass.Frames)
		}
	})

	t.Run("changed live", func(t *testing.T) {
		d := load(t, Config{})
		run(t, d, ingress, dnsQuery)
		require.NoError(t, d.SetPolicy(Policy{Kernel: []Class{dns}}))
		run(t, d, ingress, dnsQuery)
		require.NoError(t, d.SetPolicy(Policy{}))
		run(t, d, ingress, dnsQuery)
		n := count(t, d)
		require.EqualValues(t, 2, n.ToEngine.Frames)
		require.EqualValues(t, 1, n.KernelClass.Frames)
	})

	t.Run("32 classes", func(t *testing.T) {
		var p Policy
		for i := range 31 {
			p.Kernel = append(p.Kernel, Class{Protocol: 6, PortMin: uint16(i + 1), PortMax: uint16(i + 1)})
		}
		p.Classes = []Class{dns}
		p.Kernel[30] = Class{Protocol: 17, PortMin: 9, PortMax: 9}
		d := load(t, Config{Policy: p})
		run(t, d, ingress, udp(t, "192.0.2.1:9", "198.51.100.1:53"))
		run(t, d, ingress, dnsQuery)
		n := count(t, d)
		require.EqualValues(t, 1, n.KernelClass.Frames)
		require.EqualValues(t, 1, n.ToEngine.Frames)
	})
}

func TestOneOfNIsSampled(t *testing.T) {
	d := load(t, Config{Policy: Policy{SampleN: 10}, RingBytes: 1 << 20})
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	for range 1000 {
		run(t, d, ingress, f)
	}
	n := count(t, d)
	// Each CPU counts for itself and begins with a frame that is taken.
	require.InDelta(t, 100, n.ToEngine.Frames, 2)
	require.EqualValues(t, 1000, n.ToEngine.Frames+n.SampledOut.Frames)
}

func TestAShareTakesWholeFlowsInBothDirections(t *testing.T) {
	d := load(t, Config{Policy: Policy{SharePermille: 250}, RingBytes: 4 << 20})
	r := rand.New(rand.NewPCG(1, 1))
	taken := 0
	const flows = 4000
	for range flows {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), uint16(r.Uint32())).String()
		b := netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), 443).String()
		before := count(t, d).ToEngine.Frames
		run(t, d, ingress, udp(t, a, b))
		run(t, d, egress, udp(t, b, a))
		got := count(t, d).ToEngine.Frames - before
		require.Contains(t, []uint64{0, 2}, got, "a flow is taken whole or not at all")
		taken += int(got / 2)
	}
	sd := math.Sqrt(flows * 0.25 * 0.75)
	require.InDelta(t, flows/4, taken, 5*sd)
}

func TestTheHashIsToeplitzInEveryProgram(t *testing.T) {
	d := load(t, Config{RingBytes: 1 << 20})
	h := toeplitz.New(toeplitz.Symmetric)
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var a, b [16]byte
		binary.BigEndian.PutUint64(a[8:], r.Uint64())
		binary.BigEndian.PutUint64(b[8:], r.Uint64())
		a[0], b[0] = 0x20, 0x26
		src := netip.AddrPortFrom(netip.AddrFrom16(a), uint16(r.Uint32()))
		dst := netip.AddrPortFrom(netip.AddrFrom16(b), uint16(r.Uint32()))
		run(t, d, ingress, udp(t, src.String(), dst.String()))
		run(t, d, egress, udp(t, dst.String(), src.String()))
		run(t, d, mirror, udp(t, src.String(), dst.String()))
		got := drain(t, d)
		require.Len(t, got, 3)
		for _, e := range got {
			require.Equal(t, h.Flow(src, dst), e.Hash)
		}
	}
}

func TestShortFramesPass(t *testing.T) {
	d := load(t, Config{})
	for n := 14; n < 20; n++ {
		f := make([]byte, n)
		require.EqualValues(t, tcNext, run(t, d, ingress, f))
		require.EqualValues(t, xdpPass, run(t, d, divert, f))
	}
	require.EqualValues(t, 12, count(t, d).Unparsed.Frames)
}
