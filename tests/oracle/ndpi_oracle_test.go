package oracle

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// How nDPI's numbers are defined, as far as it differs from the record's fields:
//
//   - It keys flows by addresses, ports and protocol: one flow for all ICMP of two
//     hosts, and no new flow for a SYN after a close. Records are summed up per pair.
//   - It takes inter-arrival times in milliseconds cut off (record: ns), between
//     packets of one direction, but forgets the previous packets of both directions
//     after every tenth packet of the flow, treats a time in the first second of
//     1970 as "no previous packet", leaves out steps back in time from the initiator and
//     leaves out SYN, FIN and RST packets of the responder.
//   - The minimum of inter-arrival times is only kept from the first value that is not 0 on.
//   - Standard deviations are of the population, from sums in 32-bit floats: for a
//     mean far above the deviation, the rounding of the squares shows.
//
// ndpiDelays encodes this. The test then closes the triangle: nDPI's numbers
// against our parser's packets by nDPI's definition, and our records against the
// same packets by the record's definition; where both definitions coincide (at
// most ten packets, no flags), records against nDPI's numbers directly.
func ndpiDelays(list []seen, responder int) (delays [2][]uint64) {
	var last [2]int64
	var known [2]bool
	for i, p := range list {
		d := p.from
		us, lastUs := p.ns/1000, last[d]/1000
		end := packet.TCPFin | packet.TCPSyn | packet.TCPRst
		if known[d] && (d != responder || p.tcpFlags&end == 0) && us >= lastUs {
			delays[d] = append(delays[d], uint64((us-lastUs)/1000))
		}
		last[d], known[d] = p.ns, p.ns/1e9 != 0
		if (i+1)%10 == 0 {
			known = [2]bool{}
		}
	}
	return delays
}

// summary are statistics in float64, with nDPI's minimum.
type summary struct{ low, mean, high, std float64 }

func summarize(values []uint64) (s summary) {
	if len(values) == 0 {
		return s
	}
	var sum, squares float64
	for _, v := range values {
		x := float64(v)
		if sum == 0 {
			s.low, s.high = x, x
		}
		s.low, s.high = min(s.low, x), max(s.high, x)
		sum += x
	}
	n := float64(len(values))
	s.mean = sum / n
	for _, v := range values {
		squares += (float64(v) - s.mean) * (float64(v) - s.mean)
	}
	s.std = math.Sqrt(squares / n)
	return s
}

// agrees within one unit; the deviation within what 32-bit sums of squares can resolve.
func (s summary) agrees(o Stats) bool {
	near := func(a float64, b uint64) bool { return math.Abs(a-float64(b)) <= 1 }
	noise := 4 * 0x1p-23 * (s.mean*s.mean + s.std*s.std)
	low, high := math.Sqrt(max(0, s.std*s.std-noise))-1, math.Sqrt(s.std*s.std+noise)+1
	return near(s.low, o.Min) && near(s.mean, o.Avg) && near(s.high, o.Max) && low <= float64(o.Std) && float64(o.Std) <= high
}

// ndpiTally counts what was compared, so that the test cannot pass by comparing nothing.
type ndpiTally struct {
	flows, packets  uint64 // lines of nDPI whose packets and bytes per direction were compared, and what they hold
	delays, lengths int    // directions whose statistics of nDPI were compared with our packets
	records         int    // directions whose delays in the record were compared with its packets
	recordLengths   int    // directions whose lengths in the record were compared with nDPI
	recordDelays    int    // directions whose delays in the record were compared with nDPI
}

// compareFlow returns what differs between nDPI's lines, our packets and our records of one pair.
func (n *ndpiTally) compareFlow(theirs []NDPIFlow, list []seen, ours []pairRecord) []string {
	var diffs []string
	differ := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	var packetsT, bytesT, packetsO, bytesO [2]uint64
	for _, f := range theirs {
		n.flows++
		_, high := makePair(f.Protocol, f.A, f.B)
		for d := range 2 {
			n.packets += f.Packets[d]
			packetsT[d^index(high)] += f.Packets[d]
			bytesT[d^index(high)] += f.Bytes[d]
		}
	}
	for _, r := range ours {
		for d := range 2 {
			packetsO[d^index(r.high)] += r.Dir[d].Packets
			bytesO[d^index(r.high)] += r.Dir[d].WireBytes
		}
	}
	if packetsT != packetsO || bytesT != bytesO {
		differ("packets %v, nDPI %v; bytes %v, nDPI %v", packetsO, packetsT, bytesO, bytesT)
		return diffs
	}
	if len(theirs) == 1 && theirs[0].HasStats {
		f := theirs[0]
		_, high := makePair(f.Protocol, f.A, f.B)
		delays := ndpiDelays(list, 1^index(high))
		for d := range 2 {
			end := d ^ index(high)
			if len(delays[end]) > 0 {
				n.delays++
			}
			if f.Packets[d] > 0 {
				n.lengths++
			}
			if s := summarize(delays[end]); !s.agrees(f.IAT[d]) {
				differ("direction %d: inter-arrival ms %.2f, nDPI %v", d, s, f.IAT[d])
			}
			if s := summarize(lengths(list, end)); !s.agrees(f.Len[d]) {
				differ("direction %d: length %.2f, nDPI %v", d, s, f.Len[d])
			}
		}
	}
	if len(ours) == 1 {
		return append(diffs, n.compareRecord(ours[0], list, theirs)...)
	}
	return diffs
}

func lengths(list []seen, end int) (v []uint64) {
	for _, p := range list {
		if p.from == end {
			v = append(v, uint64(p.wire))
		}
	}
	return v
}

// compareRecord checks the only record of a pair against its packets by the
// record's own definition, and against nDPI's line where definitions coincide.
func (n *ndpiTally) compareRecord(r pairRecord, list []seen, theirs []NDPIFlow) (diffs []string) {
	differ := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	for d := range 2 {
		end, h := d^index(r.high), r.Dir[d]
		if h.Packets == 0 {
			continue
		}
		var delays []float64
		last, clock, plain := int64(-1), int64(math.MinInt64), len(list) <= 10
		for _, p := range list {
			plain = plain && p.ns >= clock
			clock = max(clock, p.ns) // a flow's time never goes back
			if p.from != end {
				continue
			}
			if last >= 0 {
				delays = append(delays, float64(clock-last))
			}
			last = clock
			plain = plain && p.tcpFlags&(packet.TCPFin|packet.TCPSyn|packet.TCPRst) == 0
		}
		low, mean, high, std := moments(delays)
		if h.Packets > 1 {
			n.records++
		}
		if h.Packets > 1 && (float64(h.DelayMinNs) != low || float64(h.DelayMaxNs) != high ||
			!close64(h.DelayMeanNs, mean) || !close64(h.DelayStdNs, std)) {
			differ("direction %d: record's delays %d %f %d %f, its packets' %f %f %f %f", d,
				h.DelayMinNs, h.DelayMeanNs, h.DelayMaxNs, h.DelayStdNs, low, mean, high, std)
		}
		if len(theirs) != 1 || !theirs[0].HasStats {
			continue
		}
		_, highT := makePair(theirs[0].Protocol, theirs[0].A, theirs[0].B)
		line := end ^ index(highT)
		n.recordLengths++
		length := summary{float64(h.WireLenMin), h.WireLenMean, float64(h.WireLenMax), h.WireLenStd}
		if !length.agrees(theirs[0].Len[line]) {
			differ("direction %d: record's lengths %.2f, nDPI %v", d, length, theirs[0].Len[line])
		}
		// Cutting ms off lowers every value by up to one, on average by half of one.
		delay := summary{ms(float64(h.DelayMinNs)) - 0.5, ms(h.DelayMeanNs) - 0.5, ms(float64(h.DelayMaxNs)) - 0.5, ms(h.DelayStdNs)}
		if plain && h.Packets > 1 && h.DelayMinNs >= 1e6 {
			n.recordDelays++
			if iat := theirs[0].IAT[line]; !delay.agrees(iat) {
				differ("direction %d: record's delays ms %.2f, nDPI %v", d, delay, iat)
			}
		}
	}
	return diffs
}

func ms(ns float64) float64 { return ns / 1e6 }

// close64 allows for the order of float64 additions.
func close64(a, b float64) bool { return math.Abs(a-b) <= 1+1e-9*math.Abs(b) }

func moments(v []float64) (low, mean, high, std float64) {
	if len(v) == 0 {
		return 0, 0, 0, 0
	}
	low, high = slices.Min(v), slices.Max(v)
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		std += (x - mean) * (x - mean) / float64(len(v))
	}
	return low, mean, high, math.Sqrt(std)
}

func TestFeature16AgreesWithNDPI(t *testing.T) {
	reports, paths := oracles(t)
	var total ndpiTally
	for _, capture := range paths {
		name := filepath.Base(capture)
		t.Run(name, func(t *testing.T) {
			lines, err := ReadNDPI(reports[capture])
			require.NoError(t, err)
			theirs := map[pair][]NDPIFlow{}
			var decap packet.Decap
			for _, f := range lines {
				p, _ := makePair(f.Protocol, f.A, f.B)
				theirs[p] = append(theirs[p], f)
				decap.GTPU = decap.GTPU || f.Tunnel == "GTP"
				decap.VXLAN = decap.VXLAN || f.Tunnel == "VXLAN"
				decap.GRE = decap.GRE || f.Tunnel == "GRE"
			}
			list, ours := packets(t, capture, decap), recordsByPair(records(t, capture, decap))
			var differing []string
			for p := range union(theirs, ours) {
				if diffs := total.compareFlow(theirs[p], list[p], ours[p]); len(diffs) > 0 {
					differing = append(differing, fmt.Sprintf("%d %s:%d %s:%d: %s", p.protocol, p.low, p.lowP, p.high, p.higP, strings.Join(diffs, "; ")))
				}
			}
			want := ndpiExceptions[name]
			require.ElementsMatch(t, want.flows, differing, "flows that differ; known reason: %q", want.reason)
		})
	}
	for name := range ndpiExceptions {
		require.True(t, slices.ContainsFunc(paths, func(p string) bool { return filepath.Base(p) == name }), "%s has an exception and was not compared", name)
	}
	t.Logf("%d captures, %+v; %d captures with exceptions", len(paths), total, len(ndpiExceptions))
	require.Greater(t, len(paths), 260)
	require.Greater(t, total.flows, uint64(5_200))
	require.Greater(t, total.packets, uint64(45_000))
	require.Greater(t, total.delays, 1_700)
	require.Greater(t, total.lengths, 1_700)
	require.Greater(t, total.records, 2_000)
	require.Greater(t, total.recordLengths, 1_700)
	require.Greater(t, total.recordDelays, 90)
}

func union(a map[pair][]NDPIFlow, b map[pair][]pairRecord) map[pair]bool {
	all := map[pair]bool{}
	for p := range a {
		all[p] = true
	}
	for p := range b {
		all[p] = true
	}
	return all
}
