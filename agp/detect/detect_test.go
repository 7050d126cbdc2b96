package detect

import (
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

const (
	syn = packet.TCPSyn
	ack = packet.TCPAck
	fin = packet.TCPFin
	rst = packet.TCPRst
	psh = packet.TCPPsh
	t0  = int64(1.7e18)
	ms  = int64(1e6)
)

// ip4 is an address outside, in 198.18.0.0/15 and up; in4 one inside.
func ip4(n int) (a [16]byte) {
	binary.BigEndian.PutUint32(a[:], 0xc6120000+uint32(n))
	return a
}

func in4(n int) (a [16]byte) {
	binary.BigEndian.PutUint32(a[:], 0x0a000000+uint32(n))
	return a
}

// flow is one synthetic flow.
type flow struct {
	at, span           int64
	src, dst           [16]byte
	sport, dport       uint16
	proto              uint8
	fwdFlags, revFlags uint8
	fwd, rev           uint64 // packets
	fwdBytes, revBytes uint64 // payload
	firstWire          uint32
	ending             telemetry.EndReason
	edit               func(*telemetry.Record)
}

type harness struct {
	*Detector
	alerts []telemetry.Alert
}

func newHarness(cfg Config) *harness {
	h := &harness{}
	h.Detector = New(cfg, func(a *telemetry.Alert) { h.alerts = append(h.alerts, *a) })
	return h
}

func (h *harness) kinds() []string {
	out := []string{}
	for i := range h.alerts {
		out = append(out, h.alerts[i].Kind)
	}
	return out
}

func (f *flow) start() *FlowStart {
	s := &FlowStart{TimeNs: f.at, Src: f.src, Dst: f.dst, SrcPort: f.sport, DstPort: f.dport, IPVersion: 4, Protocol: f.proto, WireLen: max(60, f.firstWire)}
	if f.proto == packet.ProtoTCP {
		switch {
		case f.fwd == 0:
			s.TCPFlags = f.revFlags
		case f.fwdFlags&syn != 0:
			s.TCPFlags = syn
			if f.fwdFlags&ack == 0 {
				s.TCPFlags = f.fwdFlags
			}
		default:
			s.TCPFlags = f.fwdFlags
		}
	}
	return s
}

func (f *flow) record() *telemetry.Record {
	r := &telemetry.Record{IPVersion: 4, Protocol: f.proto, Src: f.src, Dst: f.dst, SrcPort: f.sport, DstPort: f.dport,
		StartNs: f.at, EndNs: f.at + f.span, EndReason: f.ending, FirstReplyNs: -1, TCPHandshakeNs: -1}
	r.Dir[0] = telemetry.Half{Packets: f.fwd, PayloadBytes: f.fwdBytes, TCPFlags: f.fwdFlags}
	r.Dir[1] = telemetry.Half{Packets: f.rev, PayloadBytes: f.revBytes, TCPFlags: f.revFlags}
	if f.edit != nil {
		f.edit(r)
	}
	return r
}

// play feeds flows as a pipeline does: starts in time order, ends when the flow ended
// (answered TCP) or after the idle timeout, everything left at the end; ticks each second.
func (h *harness) play(flows []flow) {
	type event struct {
		at  int64
		end bool
		f   *flow
	}
	var ev []event
	for i := range flows {
		f := &flows[i]
		ended := f.at + f.span
		if f.ending != telemetry.EndTCP {
			ended += 60 * second
		}
		ev = append(ev, event{f.at, false, f}, event{ended, true, f})
	}
	slices.SortStableFunc(ev, func(a, b event) int { return int((a.at - b.at) / max(1, abs(a.at-b.at))) })
	tick := int64(math.MinInt64)
	for _, e := range ev {
		if e.at >= tick+second {
			tick = e.at
			h.Tick(tick)
		}
		if e.end {
			h.FlowEnd(e.f.record())
		} else {
			h.FlowStart(e.f.start())
		}
	}
	h.Flush(tick)
}

func abs(v int64) int64 { return max(v, -v) }

// Synthetic traffic. n is how much of it; step the time between flows.

func synFlood(n int, step int64) (out []flow) {
	for i := range n {
		out = append(out, flow{at: t0 + int64(i)*step, src: ip4(i), dst: in4(1), sport: uint16(i), dport: 443, proto: 6, fwdFlags: syn, fwd: 1})
	}
	return out
}

func synAckReflection(n int, step int64) (out []flow) {
	for i := range n {
		out = append(out, flow{at: t0 + int64(i)*step, src: in4(1), dst: ip4(i), sport: uint16(i), dport: 80, proto: 6, revFlags: syn | ack, rev: 1})
	}
	return out
}

func amplification(size uint32) func(int, int64) []flow {
	return func(n int, step int64) (out []flow) {
		for i := range n {
			out = append(out, flow{at: t0 + int64(i)*step, src: ip4(i), dst: in4(1), sport: 161, dport: 4444, proto: 17, fwd: 1, fwdBytes: 900, firstWire: size})
		}
		return out
	}
}

func oneWay(proto uint8) func(int, int64) []flow {
	return func(n int, step int64) (out []flow) {
		for i := range n {
			out = append(out, flow{at: t0 + int64(i)*step, src: ip4(i), dst: in4(1), sport: 40000, dport: uint16(i), proto: proto, fwd: 1, fwdBytes: 20})
		}
		return out
	}
}

func requestFlood(n int, step int64) (out []flow) {
	for i := range n {
		out = append(out, flow{at: t0 + int64(i)*step, src: ip4(1), dst: in4(1), sport: uint16(i), dport: 8080, proto: 6, fwdFlags: psh | ack, fwd: 1, fwdBytes: 140})
	}
	return out
}

func portScan(n int, step int64) (out []flow) {
	for i := range n {
		f := flow{at: t0 + int64(i)*step, src: ip4(1), dst: in4(1), sport: 40000, dport: uint16(1 + i), proto: 6, fwdFlags: syn, fwd: 1}
		if i%2 == 0 { // every other port refuses
			f.rev, f.revFlags, f.ending = 1, rst|ack, telemetry.EndTCP
		}
		out = append(out, f)
	}
	return out
}

func udpPortScan(n int, step int64) (out []flow) {
	for i := range n {
		out = append(out, flow{at: t0 + int64(i)*step, src: ip4(1), dst: in4(1), sport: 40000, dport: uint16(1 + i), proto: 17, fwd: 1})
	}
	return out
}

func hostScan(n int, step int64) (out []flow) {
	for i := range n {
		out = append(out, flow{at: t0 + int64(i)*step, src: ip4(1), dst: in4(i), sport: uint16(40000 + i), dport: 445, proto: 6, fwdFlags: syn, fwd: 1})
	}
	return out
}

func stealthScan(n int, step int64) (out []flow) {
	for i := range n {
		out = append(out, flow{at: t0 + int64(i)*step, src: ip4(1), dst: in4(1), sport: 40000, dport: uint16(1 + i), proto: 6,
			fwdFlags: []uint8{0, fin, fin | psh | packet.TCPUrg, syn | fin}[i%4], fwd: 1, rev: 1, revFlags: rst | ack, ending: telemetry.EndTCP})
	}
	return out
}

func logins(port uint16, span int64) func(int, int64) []flow {
	return func(n int, step int64) (out []flow) {
		for i := range n {
			out = append(out, flow{at: t0 + int64(i)*step, span: span, src: ip4(1), dst: in4(1), sport: uint16(40000 + i), dport: port, proto: 6,
				fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 11, rev: 10, fwdBytes: 1744, revBytes: uint64(1839 + i%3), ending: telemetry.EndTCP})
		}
		return out
	}
}

// refused: every third try is cut off at the door.
func refused(n int, step int64) []flow {
	out := logins(902, 2*second)(n, step)
	for i := range out {
		if i%3 == 2 {
			out[i].fwdBytes, out[i].revBytes, out[i].span = 24, 22, 10*ms
		}
	}
	return out
}

func beacons(jitter int64) func(int, int64) []flow {
	return func(n int, step int64) (out []flow) {
		r := rand.New(rand.NewPCG(1, 1))
		for i := range n + 1 { // n intervals
			out = append(out, flow{at: t0 + int64(i)*step + r.Int64N(jitter+1), span: 200 * ms, src: in4(1), dst: ip4(1), sport: uint16(40000 + i), dport: 443, proto: 6,
				fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 9, rev: 8, fwdBytes: 840, revBytes: 3900, ending: telemetry.EndTCP})
		}
		return out
	}
}

func dnsQueries(size uint64) func(int, int64) []flow {
	return func(n int, step int64) (out []flow) {
		for i := range n {
			out = append(out, flow{at: t0 + int64(i)*step, src: in4(1), dst: ip4(1), sport: uint16(40000 + i), dport: 53, proto: 17, fwd: 1, rev: 1, fwdBytes: size, revBytes: 200})
		}
		return out
	}
}

func echo(std float64) func(int, int64) []flow {
	return func(n int, step int64) []flow {
		return []flow{{at: t0, span: int64(n) * step, src: in4(1), dst: ip4(1), sport: 77, dport: 8 << 8, proto: 1, fwd: uint64(n), rev: uint64(n),
			edit: func(r *telemetry.Record) { r.Dir[0].WireLenStd = std }}}
	}
}

// covert is one flow of n packets of 12 bytes with the given delays in turn.
func covert(delays ...int64) func(int, int64) []flow {
	return func(n int, _ int64) []flow {
		var sum, sq float64
		lo, hi := int64(math.MaxInt64), int64(0)
		var hist [telemetry.DelayBins]uint32
		for i := range n - 1 {
			d := delays[i%len(delays)]
			sum += float64(d)
			sq += float64(d) * float64(d)
			lo, hi = min(lo, d), max(hi, d)
			hist[min(telemetry.DelayBins-1, int(4*math.Log2(float64(d)/1000)))]++
		}
		mean := sum / float64(n-1)
		return []flow{{at: t0, span: int64(sum), src: in4(1), dst: in4(2), sport: 44000, dport: 9999, proto: 6, fwdFlags: ack | psh, revFlags: ack,
			fwd: uint64(n), rev: uint64(n), fwdBytes: 12 * uint64(n), edit: func(r *telemetry.Record) {
				r.Dir[0].DelayMinNs, r.Dir[0].DelayMaxNs, r.Dir[0].DelayMeanNs = lo, hi, mean
				r.Dir[0].DelayStdNs = math.Sqrt(max(0, sq/float64(n-1)-mean*mean))
				r.Dir[0].WireLenMin, r.Dir[0].WireLenMax, r.Dir[0].WireLenMean = 78, 78, 78
				r.DelayHist = hist
			}}}
	}
}

func covertSizes(lo, hi uint32) func(int, int64) []flow {
	return func(n int, step int64) []flow {
		f := covert(300*ms)(n, step)
		f[0].fwdBytes = uint64(n) * 1000
		f[0].edit = func(r *telemetry.Record) {
			r.Dir[0].WireLenMin, r.Dir[0].WireLenMax = lo, hi
			r.Dir[0].WireLenMean, r.Dir[0].WireLenStd = float64(lo+hi)/2, float64(hi-lo)/2
		}
		return f
	}
}

func push(n int, step int64) []flow {
	return []flow{{at: t0, span: int64(n) * step, src: in4(1), dst: ip4(1), sport: 44000, dport: 8219, proto: 6, fwdFlags: syn | ack | psh, revFlags: syn | ack,
		fwd: uint64(n), rev: uint64(n), fwdBytes: 80 * uint64(n)}}
}

// rules: each with traffic of a given amount; fires at most at, is silent below. Counts of
// distinct values are estimates, hence some room between the two.
var rules = []struct {
	name      string
	kind      string
	make      func(n int, step int64) []flow
	below, at int
	step      int64
	ruleOff   Config
}{
	{"SYN flood", SYNFlood, synFlood, 149, 150, 10 * ms, Config{SYNFlood: -1}},
	{"SYN+ACK reflection", SYNACKReflection, synAckReflection, 149, 150, 10 * ms, Config{SYNACKReflection: -1}},
	{"amplification, small answers", Amplification, amplification(100), 85, 115, 10 * ms, Config{Amplification: -1, AmpLarge: -1}},
	{"amplification, large answers", Amplification, amplification(1000), 20, 30, 10 * ms, Config{Amplification: -1, AmpLarge: -1}},
	{"UDP flood", UDPFlood, oneWay(17), 4999, 5000, 1 * ms, Config{UDPFlood: -1}},
	{"ICMP flood", ICMPFlood, oneWay(1), 499, 500, 1 * ms, Config{ICMPFlood: -1}},
	{"requests outside of connections", RequestFlood, requestFlood, 149, 150, 10 * ms, Config{RequestFlood: -1}},
	{"port scan", PortScan, portScan, 13, 16, 100 * ms, Config{PortScan: -1}},
	{"UDP port scan", PortScan, udpPortScan, 105, 135, 10 * ms, Config{UDPPortScan: -1}},
	{"host scan", HostScan, hostScan, 22, 28, 100 * ms, Config{HostScan: -1}},
	{"stealth scan", StealthScan, stealthScan, 2, 3, second, Config{StealthScan: -1}},
	{"logins by port", BruteForce, logins(22, 100*ms), 19, 20, 2 * second, Config{BruteForce: -1}},
	{"logins on an odd port by shape", BruteForce, logins(12345, 2*second), 19, 20, 2 * second, Config{BruteForce: -1}},
	{"beacon", Beacon, beacons(100 * ms), 29, 30, 5 * second, Config{Beacon: -1}},
	{"DNS tunnel", DNSTunnel, dnsQueries(150), 39, 40, 100 * ms, Config{DNSTunnel: -1}},
	{"ICMP tunnel", ICMPTunnel, echo(100), 19, 20, second, Config{ICMPTunnel: -1}},
	{"logins on an odd port, refusals between", BruteForce, refused, 28, 30, 2 * second, Config{BruteForce: -1}},
	{"logins at a database by shape", BruteForce, logins(3306, 2*second), 19, 20, 2 * second, Config{BruteForce: -1}},
	{"covert timing by statistics", CovertTiming, covert(80*ms, 160*ms, 80*ms), 199, 200, 0, Config{CovertTiming: -1}},
	{"covert timing by histogram", CovertTiming, covert(20*ms, 40*ms), 199, 202, 0, Config{CovertTiming: -1}},
	{"covert sizes", CovertSize, covertSizes(1054, 1055), 199, 200, 0, Config{CovertTiming: -1}},
	{"one-way push", OneWayPush, push, 49, 50, 2 * second, Config{OneWayPush: -1}},
}

func TestRuleFiresAtItsThresholdAndNotBelow(t *testing.T) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			h := newHarness(Config{})
			h.play(r.make(r.below, r.step))
			require.Empty(t, h.alerts, "below")
			h = newHarness(Config{})
			h.play(r.make(r.at, r.step))
			require.Equal(t, []string{r.kind}, h.kinds(), "at")
			a := h.alerts[0]
			require.NotZero(t, a.Threshold)
			require.GreaterOrEqual(t, float64(a.Count), a.Threshold)
			require.NotZero(t, a.WindowNs)
			require.GreaterOrEqual(t, a.TimeNs, t0)
			h = newHarness(r.ruleOff)
			h.play(r.make(r.at, r.step))
			require.Empty(t, h.alerts, "switched off")
		})
	}
}

func TestAlertNamesWhoAndWhat(t *testing.T) {
	h := newHarness(Config{})
	h.play(synFlood(200, ms))
	require.Equal(t, "10.0.0.1", h.alerts[0].Dst)
	require.Empty(t, h.alerts[0].Src, "forged sources are not named")
	require.Equal(t, uint16(443), h.alerts[0].DstPort)
	h = newHarness(Config{})
	h.play(synAckReflection(200, ms))
	require.Equal(t, "10.0.0.1", h.alerts[0].Dst, "the victim, though it is the flows' initiator")
	h = newHarness(Config{})
	h.play(portScan(20, ms))
	require.Equal(t, []any{"198.18.0.1", "10.0.0.1", uint16(0)}, []any{h.alerts[0].Src, h.alerts[0].Dst, h.alerts[0].DstPort})
	h = newHarness(Config{})
	h.play(hostScan(40, ms))
	require.Equal(t, []any{"198.18.0.1", "", uint16(445)}, []any{h.alerts[0].Src, h.alerts[0].Dst, h.alerts[0].DstPort})
	v6 := push(60, 2*second)
	v6[0].edit = func(r *telemetry.Record) {
		r.IPVersion = 6
		r.Dst = [16]byte{0x20, 1, 0xd, 0xb8, 15: 1}
	}
	h = newHarness(Config{})
	h.play(v6)
	require.Equal(t, "2001:db8::1", h.alerts[0].Dst)
}

// A window cuts: the same number of events over more than the window is silent.
func TestEventsSpreadOverMoreThanTheWindowAreSilent(t *testing.T) {
	for name, flows := range map[string][]flow{
		"SYN flood":     synFlood(900, 100*ms), // 100 per 10 s
		"amplification": amplification(1000)(200, second),
		"port scan":     portScan(100, 10*second),
		"host scan":     hostScan(100, 6*second),
		"stealth":       stealthScan(10, 90*second),
		"logins":        logins(22, 100*ms)(100, 5*second),
		"DNS tunnel":    dnsQueries(150)(200, 3*second),
	} {
		h := newHarness(Config{})
		h.play(flows)
		require.Empty(t, h.alerts, name)
	}
}

func TestSameAlertIsHeldDownAndArmedAgain(t *testing.T) {
	h := newHarness(Config{})
	one := portScan(40, 10*ms)
	h.play(one)
	require.Equal(t, []string{PortScan}, h.kinds(), "more of the same is one alert")
	require.NotZero(t, h.Stats().Suppressed)
	again := func(after int64) {
		f := portScan(40, 10*ms)
		for i := range f {
			f[i].at += after
		}
		h.play(f)
	}
	again(200 * second)
	require.Len(t, h.alerts, 1, "within the hold-down")
	again(450 * second)
	require.Len(t, h.alerts, 1, "what was held back renewed it")
	again(2000 * second)
	require.Len(t, h.alerts, 2, "armed again after silence")
	// Another subject is not held.
	f := portScan(40, 10*ms)
	for i := range f {
		f[i].at += 2001 * second
		f[i].src = ip4(99)
	}
	h.play(f)
	require.Len(t, h.alerts, 3)
	require.Equal(t, h.Stats().Alerts, uint64(3))
}

func TestAlertRateIsLimitedAndTheRestCounted(t *testing.T) {
	h := newHarness(Config{MaxAlertsPerMinute: 5})
	for i := range 50 {
		f := portScan(20, ms)
		for j := range f {
			f[j].src = ip4(i)
			f[j].ending, f[j].rev, f[j].revFlags = telemetry.EndTCP, 1, rst|ack
		}
		h.play(f)
	}
	require.Len(t, h.alerts, 5)
	require.GreaterOrEqual(t, h.Stats().Suppressed, uint64(45))
}

func TestTimeGoingBackwardsNeitherPanicsNorJoinsWindows(t *testing.T) {
	for _, r := range rules {
		h := newHarness(Config{})
		flows := r.make(r.at, r.step)
		for i := range flows { // reversed time
			flows[i].at = t0 - flows[i].at + t0
		}
		slices.Reverse(flows)
		h.play(flows)

		h = newHarness(Config{})
		for i := range flows { // each flow years before the one before
			flows[i].at = t0 - int64(i)*3e16
			h.FlowStart(flows[i].start())
			h.FlowEnd(flows[i].record())
			h.Tick(flows[i].at)
		}
		h.Flush(math.MinInt64)
		if r.at > 2 && len(flows) > 1 {
			require.Empty(t, h.alerts, r.name)
		}
	}
	// A capture joined to an older one: the alert comes in both.
	h := newHarness(Config{})
	h.play(portScan(20, ms))
	f := portScan(20, ms)
	for i := range f {
		f[i].at -= 1e15
	}
	h.play(f)
	require.Len(t, h.alerts, 2)
}

// Benign hosts that resemble attackers.
func TestBenignLookAlikesStaySilent(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	web := func(at int64, src, dst [16]byte, port uint16) flow {
		return flow{at: at, span: r.Int64N(5 * second), src: src, dst: dst, sport: uint16(r.IntN(60000)), dport: port, proto: 6,
			fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 12, rev: 14,
			fwdBytes: 500 + r.Uint64N(3000), revBytes: 2000 + r.Uint64N(60000), ending: telemetry.EndTCP}
	}
	for name, make := range map[string]func() []flow{
		"NAT gateway: hundreds of clients behind one address, some targets dead": func() (out []flow) {
			for i := range 60_000 {
				f := web(t0+int64(i)*10*ms, ip4(1), ip4(100+r.IntN(3000)), []uint16{443, 443, 80, 993}[i%4])
				if r.IntN(20) == 0 {
					f.rev, f.revBytes, f.fwdBytes, f.fwdFlags, f.ending = 0, 0, 0, syn, telemetry.EndIdle
				}
				out = append(out, f)
			}
			return out
		},
		"busy web server: 500 connections a second, one in ten never completes": func() (out []flow) {
			for i := range 60_200 { // ends just after the rule's memory was renewed
				f := web(t0+int64(i)*2*ms, ip4(r.IntN(100_000)), in4(1), 443)
				f.span = 50 * ms
				if r.IntN(10) == 0 {
					f.rev, f.revBytes, f.fwdBytes, f.fwdFlags, f.ending = 0, 0, 0, syn, telemetry.EndIdle
				}
				out = append(out, f)
			}
			return out
		},
		"DNS resolver: many servers, mean name length": func() (out []flow) {
			for i := range 50_000 {
				out = append(out, flow{at: t0 + int64(i)*2*ms, src: ip4(1), dst: ip4(2 + r.IntN(5000)), sport: uint16(r.IntN(60000)), dport: 53, proto: 17,
					fwd: 1, rev: uint64(min(1, r.IntN(10))), fwdBytes: 30 + r.Uint64N(50), revBytes: 300})
			}
			return out
		},
		"resolver's tap sees answers only": func() (out []flow) {
			for i := range 50_000 {
				out = append(out, flow{at: t0 + int64(i)*20*ms, src: ip4(2 + r.IntN(5000)), dst: ip4(1), sport: 53, dport: uint16(r.IntN(60000)), proto: 17, fwd: 1, fwdBytes: 300, firstWire: 342})
			}
			return out
		},
		"web crawler: thousands of hosts, a tenth dead": func() (out []flow) {
			for i := range 20_000 {
				f := web(t0+int64(i)*20*ms, ip4(1), ip4(2+i), 443)
				if r.IntN(10) == 0 {
					f.rev, f.revBytes, f.fwdBytes, f.fwdFlags, f.ending = 0, 0, 0, syn, telemetry.EndIdle
				}
				out = append(out, f)
			}
			return out
		},
		"monitoring server: 200 hosts inside each 10 s, 5 checks, some down": func() (out []flow) {
			for round := range 60 {
				for host := range 200 {
					for c, port := range []uint16{22, 80, 443, 3306, 10050} {
						f := flow{at: t0 + int64(round)*10*second + int64(host)*20*ms + int64(c)*ms, span: 5 * ms, src: in4(9999), dst: in4(host), sport: uint16(r.IntN(60000)), dport: port, proto: 6,
							fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 6, rev: 5, fwdBytes: 80, revBytes: 400, ending: telemetry.EndTCP}
						if host%50 == 0 {
							f.rev, f.revBytes, f.fwdBytes, f.fwdFlags, f.revFlags, f.ending = 0, 0, 0, syn, 0, telemetry.EndIdle
						}
						out = append(out, f)
					}
				}
			}
			return out
		},
		"poller of one service: twice a second, alike, in milliseconds": func() (out []flow) {
			for i := range 1000 {
				out = append(out, flow{at: t0 + int64(i)*500*ms, span: 8 * ms, src: in4(1), dst: in4(2), sport: uint16(40000 + i), dport: 10050, proto: 6,
					fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 5, rev: 4, fwdBytes: 30, revBytes: 20, ending: telemetry.EndTCP})
			}
			return out
		},
		"backup: many ssh sessions that move data": func() (out []flow) {
			for i := range 300 {
				out = append(out, flow{at: t0 + int64(i)*second, span: 3 * second, src: in4(1), dst: in4(2), sport: uint16(40000 + i), dport: 22, proto: 6,
					fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 5000, rev: 2500, fwdBytes: 7e6, revBytes: 40_000, ending: telemetry.EndTCP})
			}
			return out
		},
		"web application: a database, directory and mail connection per request": func() (out []flow) {
			for i := range 6000 {
				out = append(out, flow{at: t0 + int64(i)*20*ms, span: 5 * ms, src: in4(1), dst: in4(2), sport: uint16(40000 + i), dport: []uint16{3306, 389, 143}[i%3], proto: 6,
					fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 9, rev: 8, fwdBytes: 600, revBytes: 900, ending: telemetry.EndTCP})
			}
			return out
		},
		"metrics from a new socket each time, 2000 a second from 50 hosts": func() (out []flow) {
			for i := range 60_000 {
				out = append(out, flow{at: t0 + int64(i)*ms/2, src: in4(10 + i%50), dst: in4(1), sport: uint16(i), dport: 8125, proto: 17, fwd: 1, fwdBytes: 30})
			}
			return out
		},
		"log collector: 10000 hosts, a line each now and then": func() (out []flow) {
			for i := range 30_000 {
				out = append(out, flow{at: t0 + int64(i)*10*ms, src: in4(10 + i%10_000), dst: in4(1), sport: 40000, dport: 514, proto: 17, fwd: 1, fwdBytes: 200})
			}
			return out
		},
		"reverse lookups of IPv6 addresses, EDNS with cookies": func() []flow { return dnsQueries(129)(5000, 10*ms) },
		"one-way measurements whose number gains a digit": func() []flow {
			f := covertSizes(100, 101)(5000, 0)
			edit := f[0].edit
			f[0].edit = func(r *telemetry.Record) {
				edit(r)
				r.Dir[0].WireLenMean, r.Dir[0].WireLenStd = 100.2, 0.4
			}
			return f
		},
		"traceroute": func() (out []flow) {
			for i := range 90 {
				out = append(out, flow{at: t0 + int64(i)*50*ms, src: in4(1), dst: ip4(1), sport: 40000, dport: uint16(33434 + i), proto: 17, fwd: 1, fwdBytes: 32})
			}
			return out
		},
		"ping, fixed size": func() []flow { return echo(0)(3600, second) },
		"audio, one pace":  func() []flow { return covert(20*ms, 20*ms+1000, 20*ms-1000)(20_000, 0) },
		"upload, large packets": func() []flow {
			f := push(5000, 50*ms)
			f[0].fwdBytes = 5000 * 1400
			return f
		},
		"log shipping inside": func() []flow {
			f := push(5000, 50*ms)
			f[0].dst = in4(5)
			return f
		},
		"NTP and one UDP association that keeps itself alive": func() (out []flow) {
			for i := range 300 {
				out = append(out, flow{at: t0 + int64(i)*64*second, src: in4(1), dst: ip4(1), sport: uint16(40000 + i), dport: 123, proto: 17, fwd: 1, rev: 1, fwdBytes: 48, revBytes: 48},
					flow{at: t0 + int64(i)*600*second, src: in4(1), dst: ip4(2), sport: 2011, dport: 2010, proto: 17, fwd: 2, rev: 2, fwdBytes: 20, revBytes: 13})
			}
			return out
		},
		"browser: irregular requests to one site": func() (out []flow) {
			at := t0
			for range 500 {
				at += int64(r.ExpFloat64() * 5e9)
				out = append(out, web(at, in4(1), ip4(1), 443))
			}
			return out
		},
		"discovery answers: a LAN full of devices": func() (out []flow) {
			for i := range 20 {
				out = append(out, flow{at: t0 + int64(i)*10*ms, src: in4(i), dst: in4(500), sport: 1900, dport: 50000, proto: 17, fwd: 1, fwdBytes: 350, firstWire: 392})
			}
			return out
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(Config{})
			h.play(make())
			require.Empty(t, h.alerts)
		})
	}
}

// Ten million random flows: the tables do not grow, nothing is allocated, and an attack among them is still found.
func TestMemoryIsBoundedUnderTenMillionRandomFlows(t *testing.T) {
	n := 10_000_000
	if testing.Short() || RaceEnabled {
		n = 500_000
	}
	h := newHarness(Config{})
	sizes := func() []int {
		return []int{cap(h.floods.buckets), cap(h.scans.buckets), cap(h.logins.buckets), cap(h.beacons.buckets), cap(h.dns.buckets), cap(h.held.buckets)}
	}
	before := sizes()
	r := rand.New(rand.NewPCG(3, 3))
	f := flow{sport: 40000, proto: 6, fwdFlags: syn, fwd: 1}
	s, rec := f.start(), f.record()
	scan := portScan(40, 0)
	random := func(i int) {
		v := r.Uint64()
		binary.LittleEndian.PutUint64(s.Src[:], v)
		binary.LittleEndian.PutUint64(s.Dst[:], r.Uint64())
		s.TimeNs = t0 + int64(i)*1000
		s.DstPort = uint16(v >> 16)
		s.Protocol = []uint8{6, 17, 1, 6}[v>>40&3]
		rec.Src, rec.Dst, rec.DstPort, rec.Protocol = s.Src, s.Dst, s.DstPort, s.Protocol
		rec.StartNs, rec.EndNs = s.TimeNs, s.TimeNs
		h.FlowStart(s)
		h.FlowEnd(rec)
	}
	for i := range n {
		random(i)
		if k := (i - n/2) / 2000; i >= n/2 && i%2000 == 0 && k < 40 { // a probe every 2 ms
			scan[k].at = s.TimeNs
			h.FlowStart(scan[k].start())
			h.FlowEnd(scan[k].record())
		}
	}
	require.Equal(t, before, sizes())
	require.Contains(t, h.kinds(), PortScan, "found among the noise")
	require.LessOrEqual(t, len(h.alerts), 3)
	require.NotZero(t, h.Stats().Evicted)
	i := n
	require.Zero(t, testing.AllocsPerRun(1000, func() { random(i); i++ }))
}

func TestEventsDoNotAllocateEvenDuringAnAttack(t *testing.T) {
	for _, r := range rules {
		h := newHarness(Config{})
		flows := r.make(r.at+20, r.step)
		h.play(flows)
		require.Equal(t, []string{r.kind}, h.kinds(), r.name)
		s, e := flows[len(flows)-1].start(), flows[len(flows)-1].record()
		require.Zero(t, testing.AllocsPerRun(200, func() { h.FlowStart(s); h.FlowEnd(e); h.Tick(s.TimeNs) }), r.name)
	}
}

func TestSameEventsGiveTheSameAlerts(t *testing.T) {
	var flows []flow
	for _, r := range rules {
		flows = append(flows, r.make(r.at+5, r.step)...)
	}
	a, b := newHarness(Config{}), newHarness(Config{})
	a.play(flows)
	b.play(flows)
	require.NotEmpty(t, a.alerts)
	require.Equal(t, a.alerts, b.alerts)
	require.Equal(t, a.Stats(), b.Stats())
}

func TestParseConfigKnowsEveryThresholdAndNamesUnknownOnes(t *testing.T) {
	require.ElementsMatch(t, options.ThresholdNames(), slices.Collect(maps.Keys(fields)))
	m := map[string]float64{}
	for i, n := range options.ThresholdNames() {
		m[n] = float64(i + 1)
	}
	c, err := ParseConfig(m)
	require.NoError(t, err)
	for i, n := range options.ThresholdNames() {
		require.Equal(t, float64(i+1), *fields[n](&c), n)
	}
	require.Equal(t, len(fields), reflect.TypeFor[Config]().NumField()-1, "all but the key are thresholds, each of them once")
	_, err = ParseConfig(map[string]float64{"sin_flood": 1})
	require.ErrorIs(t, err, options.ErrThreshold)
	require.ErrorContains(t, err, "sin_flood")
	require.ErrorContains(t, err, "syn_flood")
	_, err = ParseConfig(map[string]float64{"beacon": math.NaN()})
	require.ErrorIs(t, err, options.ErrThreshold)
	require.Equal(t, Config{}.withDefaults(), Config{}.withDefaults().withDefaults())
}

func TestDistinctCountsWithinItsError(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{1, 3, 15, 25, 100, 300} {
		var sum float64
		const trials = 200
		for range trials {
			var d distinct
			for range n {
				v := r.Uint64()
				d.add(v)
				d.add(v)
			}
			sum += d.count()
		}
		require.InEpsilon(t, float64(n), sum/trials, 0.03, "n=%d", n)
	}
	var full distinct
	for range 1 << 20 {
		full.add(r.Uint64())
	}
	require.InDelta(t, 1420, full.count(), 1)
}

func TestFullBucketKeepsWhatCountsMost(t *testing.T) {
	tb := newTable[int](ways, 60*second, second)
	add := func(id uint64, now int64, weight uint32) {
		b, i := tb.at(id, now)
		b.weight[i] = max(b.weight[i], weight)
	}
	has := func(id uint64) bool { _, _, ok := tb.find(id); return ok }
	for i := range ways {
		add(uint64(i+1), t0, uint32(10+i))
	}
	add(1, t0, 500)
	add(100, t0, 0) // evicts 2, the smallest
	require.False(t, has(2))
	require.True(t, has(1))
	for i := range 1000 {
		add(uint64(1000+i), t0+int64(i), 0)
	}
	require.True(t, has(1))
	require.True(t, has(ways), "newcomers displace each other")
	add(5000, t0+200*second, 0)
	add(5001, t0+200*second, 0)
	require.True(t, has(5000))
	require.True(t, has(5001), "subjects whose window has passed give way")
	require.Equal(t, uint64(1003), tb.evicted)
}

func BenchmarkEvents(b *testing.B) {
	run := func(name string, flows []flow) {
		var starts []FlowStart
		for i := range flows {
			starts = append(starts, *flows[i].start())
		}
		b.Run(name+"/start", func(b *testing.B) {
			h := newHarness(Config{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.FlowStart(&starts[i%len(starts)])
			}
		})
		b.Run(name+"/end", func(b *testing.B) {
			h := newHarness(Config{})
			for i := range starts {
				h.FlowStart(&starts[i])
			}
			b.ReportAllocs()
			var r telemetry.Record // one place, as in a pipeline: it was just written
			for i := 0; b.Loop(); i++ {
				f := &flows[i%len(flows)]
				r.Protocol, r.IPVersion, r.EndReason = f.proto, 4, f.ending
				r.Src, r.Dst, r.SrcPort, r.DstPort, r.StartNs, r.EndNs = f.src, f.dst, f.sport, f.dport, f.at, f.at+f.span
				fwd, rev := &r.Dir[0], &r.Dir[1]
				fwd.Packets, fwd.PayloadBytes, fwd.TCPFlags = f.fwd, f.fwdBytes, f.fwdFlags
				rev.Packets, rev.PayloadBytes, rev.TCPFlags = f.rev, f.revBytes, f.revFlags
				h.FlowEnd(&r)
			}
		})
	}
	r := rand.New(rand.NewPCG(9, 9))
	var mixed []flow
	for i := range 8192 {
		f := flow{at: t0 + int64(i)*ms, span: second, src: in4(r.IntN(2000)), dst: ip4(r.IntN(20_000)), sport: uint16(r.IntN(60000)), dport: 443, proto: 6,
			fwdFlags: syn | ack | psh | fin, revFlags: syn | ack | psh | fin, fwd: 12, rev: 14, fwdBytes: 900, revBytes: 9000, ending: telemetry.EndTCP}
		switch r.IntN(4) {
		case 0:
			f.proto, f.dport, f.fwdBytes, f.revBytes = 17, 53, 40, 200
		case 1:
			f.dport, f.revBytes = 22, 2000
		}
		mixed = append(mixed, f)
	}
	run("mixed", mixed)
	run("syn-flood", synFlood(8192, ms))
	run("port-scan", portScan(8192, ms))
}

// TestBruteForceIsConfirmedByAsManyConnectionsAsTheThreshold: one connection less does not do,
// and what becomes confirmed after its alert is reported once more, and then no more.
func TestBruteForceIsConfirmedByAsManyConnectionsAsTheThreshold(t *testing.T) {
	for name, port := range map[string]uint16{"by port": 22, "by shape": 12345} {
		for _, c := range []struct {
			of, unsure int
			want       []bool
		}{
			{20, 0, []bool{true}},
			{28, 0, []bool{true}},
			{20, 1, []bool{false}},
			{20, 20, []bool{false}},
			{21, 1, []bool{false, true}},
			{28, 1, []bool{false, true}},
			{28, 9, []bool{false}},
		} {
			h := newHarness(Config{})
			list := logins(port, 2*second)(c.of, 2*second)
			for i := range list {
				list[i].edit = func(r *telemetry.Record) { r.Confirmed = i >= c.unsure }
			}
			h.play(list)
			got := []bool{}
			for _, a := range h.alerts {
				require.Equal(t, BruteForce, a.Kind)
				got = append(got, a.Confirmed)
			}
			require.Equal(t, c.want, got, "%s: %d, %d of them not confirmed", name, c.of, c.unsure)
		}
	}
}

// TestConfirmedAlertSilencesTheSameWithoutConfirmation: for as long as any alert is.
func TestConfirmedAlertSilencesTheSameWithoutConfirmation(t *testing.T) {
	h := newHarness(Config{})
	list := logins(22, 100*ms)(50, second)
	for i := range list {
		list[i].edit = func(r *telemetry.Record) { r.Confirmed = i < 25 }
		if i >= 25 {
			list[i].at += 100 * second
		}
	}
	h.play(list)
	require.Len(t, h.alerts, 1)
	require.True(t, h.alerts[0].Confirmed)
}

// TestConfirmedTriesOfAnotherKindDoNotConfirm: where the shape decides, only tries of that
// shape count.
func TestConfirmedTriesOfAnotherKindDoNotConfirm(t *testing.T) {
	h := newHarness(Config{})
	list := logins(12345, 2*second)(54, second) // 30 of one kind, 24 of another between
	for i := range list {
		other := i%9%2 == 1
		list[i].edit = func(r *telemetry.Record) { r.Confirmed = other }
		if other {
			list[i].fwdBytes, list[i].revBytes = 24, 22
		}
	}
	h.play(list)
	require.Equal(t, []string{BruteForce}, h.kinds())
	require.False(t, h.alerts[0].Confirmed)
}

// TestAlertOfOneConnectionIsConfirmedByIt, and what was counted over several beacons by as many.
func TestAlertOfOneConnectionIsConfirmedByIt(t *testing.T) {
	for _, unsure := range []int{0, 15} {
		h := newHarness(Config{})
		list := beacons(0)(40, 20*second)
		for i := range list {
			list[i].edit = func(r *telemetry.Record) { r.Confirmed = i >= unsure }
		}
		h.play(list)
		require.NotEmpty(t, h.alerts)
		require.Equal(t, unsure == 0, h.alerts[0].Confirmed)
	}
	for _, sure := range []bool{true, false} {
		r := telemetry.Record{IPVersion: 4, Protocol: packet.ProtoTCP, Confirmed: sure}
		require.Equal(t, sure, single(CovertTiming, &r, 1, 1, 1).Confirmed)
		require.False(t, client(PortScan, &r, 1, 1, 1).Confirmed)
	}
}
