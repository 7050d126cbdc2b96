package detect

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// A flood is judged from both ends of its flows. Starts give the rate, at once. Ends tell
// whether anybody answered: a busy server has the rate of a flood but completes its flows.
// An alert needs both: the rate within floodWindow, and unanswered flows that are as many
// as the threshold and at least floodShare of the flows ended.
//
// Unanswered flows end by the idle timeout, so the alert comes that much after
// the first packets, unless the flow table evicts earlier, or the rate is so high that
// missing ends are evidence enough: earlyFactor times the threshold within the
// window, and not one in twenty answered. Missed: floods below the threshold, and ones that
// use a new victim port for every packet, unless the rule counts per address.

const (
	floodMemory = 120 * second // how long rate and ends of a victim are remembered
	floodShare  = 0.8
	earlyFactor = 40
	udpSources  = 200 // fewer are programs that send metrics or logs from a new socket each time
	ampLarge    = 400 // mean wire bytes of a first packet that make an answer "large"
)

type floodKind uint8

const (
	floodNone floodKind = iota
	floodSYN
	floodSYNACK
	floodAmp
	floodUDP
	floodICMP
	floodRequest
)

// flood is one victim of one kind.
type flood struct {
	open       int64  // opening of the rate window
	count      uint32 // flows started in it
	peak       uint32 // most flows started in one window
	bytes      uint64 // of first packets
	unanswered uint32
	answered   uint32
	before     uint32 // answered in the memory before
	sources    distinct
	ports      distinct // of the victim
}

// amplifiers are UDP services known to answer small forged requests with
// larger packets (US-CERT TA14-017A and later additions), by port.
var amplifiers = func() (t [1024]uint64) {
	for _, p := range []uint16{17, 19, 53, 69, 111, 123, 137, 161, 177, 389, 427, 520, 623, 1434, 1604, 1900, 3283, 3478, 3702,
		5093, 5351, 5353, 5683, 10001, 10074, 11211, 17185, 20800, 26000, 27015, 27960, 30718, 32414, 33848, 37020, 37810, 47808} {
		t[p/64] |= 1 << (p % 64)
	}
	return t
}()

func amplifier(port uint16) bool { return amplifiers[port/64]>>(port%64)&1 == 1 }

const tcpOpen = packet.TCPSyn | packet.TCPAck | packet.TCPRst | packet.TCPFin

// victimOf says which kind of flood a flow would belong to by its first packet, and the subject.
func (d *Detector) victimOf(protocol, flags uint8, dst *[16]byte, srcPort, dstPort uint16) (floodKind, uint64) {
	switch protocol {
	case packet.ProtoTCP:
		switch {
		case flags&tcpOpen == packet.TCPSyn:
			return floodSYN, d.subject(uint64(floodSYN), 0, d.dst, dstPort)
		case flags&tcpOpen == packet.TCPSyn|packet.TCPAck:
			return floodSYNACK, d.subject(uint64(floodSYNACK), 0, d.src, 0)
		case flags&tcpOpen == packet.TCPAck:
			return floodRequest, d.subject(uint64(floodRequest), 0, d.dst, dstPort)
		}
	case packet.ProtoUDP:
		if multicast(dst) {
			return floodNone, 0
		}
		if amplifier(srcPort) && srcPort != dstPort {
			return floodAmp, d.subject(uint64(floodAmp), 0, d.dst, srcPort)
		}
		return floodUDP, d.subject(uint64(floodUDP), 0, d.dst, 0)
	case packet.ProtoICMP, packet.ProtoICMPv6:
		if multicast(dst) {
			return floodNone, 0
		}
		return floodICMP, d.subject(uint64(floodICMP), 0, d.dst, 0)
	}
	return floodNone, 0
}

func (d *Detector) floodStart(s *FlowStart) {
	kind, id := d.victimOf(s.Protocol, s.TCPFlags, &s.Dst, s.SrcPort, s.DstPort)
	if kind == floodNone {
		return
	}
	b, i, old := d.floods.roll(id, s.TimeNs)
	f := &b.v[i]
	f.before += old.answered
	if b.weight[i] == 0 || s.TimeNs-f.open >= floodWindow || s.TimeNs < f.open {
		f.open, f.count, f.bytes = s.TimeNs, 0, 0
		f.sources, f.ports = distinct{}, distinct{}
	}
	f.count++
	if kind == floodUDP {
		f.sources.add(d.src)
	}
	f.peak = max(f.peak, f.count)
	b.weight[i] = max(b.weight[i], f.count)
	if kind == floodAmp {
		f.bytes += uint64(s.WireLen)
		f.sources.add(d.src)
		f.ports.add(d.h.Uint64(uint64(s.DstPort)))
		d.judgeAmp(f, s, id)
		return
	}
	limit, name := d.floodLimit(kind)
	if kind == floodUDP && f.sources.count() < udpSources {
		return
	}
	if float64(f.count) >= earlyFactor*limit && float64(f.answered+f.before)*20 < float64(f.count) {
		d.fireFlood(name, kind, id, float64(f.count), limit, s.IPVersion, s.Protocol, &s.Src, &s.Dst, s.DstPort)
	}
}

// judgeAmp: many hosts that were not asked answer to one address from the port of one
// amplifying service. A resolver or a DHT node gets answers it asked for, which are
// reverse packets of its own flows. Where a tap sees only one direction of a resolver's
// traffic the answers go to many ports; forged requests mostly carry few. Missed: forged
// requests from random ports.
func (d *Detector) judgeAmp(f *flood, s *FlowStart, id uint64) {
	limit := d.cfg.Amplification
	if f.bytes >= ampLarge*uint64(f.count) {
		limit = d.cfg.AmpLarge
	}
	n := f.sources.count()
	if n < limit || f.ports.count() > n/2 {
		return
	}
	if d.armed(id, floodWindow) {
		d.emit(&telemetry.Alert{
			Kind: Amplification, Dst: telemetry.Addr(s.IPVersion, &s.Dst).String(), SrcPort: s.SrcPort, Protocol: s.Protocol,
			Count: uint64(n + 0.5), Threshold: limit, WindowNs: floodWindow,
		})
	}
}

func (d *Detector) floodLimit(k floodKind) (float64, string) {
	switch k {
	case floodSYN:
		return d.cfg.SYNFlood, SYNFlood
	case floodSYNACK:
		return d.cfg.SYNACKReflection, SYNACKReflection
	case floodUDP:
		return d.cfg.UDPFlood, UDPFlood
	case floodICMP:
		return d.cfg.ICMPFlood, ICMPFlood
	default:
		return d.cfg.RequestFlood, RequestFlood
	}
}

// FirstFlags reconstructs from a record which kind of a TCP packet its first one was.
func FirstFlags(r *telemetry.Record) uint8 {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	switch {
	case fwd.TCPFlags&packet.TCPSyn != 0:
		return packet.TCPSyn
	case rev.TCPFlags&(packet.TCPSyn|packet.TCPAck) == packet.TCPSyn|packet.TCPAck:
		return packet.TCPSyn | packet.TCPAck
	case fwd.TCPFlags&packet.TCPAck != 0 && fwd.TCPFlags&packet.TCPRst == 0:
		return packet.TCPAck
	}
	return 0
}

func (d *Detector) floodEnd(r *telemetry.Record) {
	kind, id := d.victimOf(r.Protocol, FirstFlags(r), &r.Dst, r.SrcPort, r.DstPort)
	if kind == floodNone || kind == floodAmp {
		return
	}
	b, i, ok := d.floods.find(id)
	if !ok {
		return // no start in memory: below any rate
	}
	f := &b.v[i]
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	var bad bool
	switch kind {
	case floodSYN:
		// The initiator never got as far as an ACK. True also where a tap sees one direction only.
		bad = fwd.TCPFlags&packet.TCPAck == 0 && rev.PayloadBytes == 0
	case floodSYNACK:
		bad = fwd.Packets == 0 && rev.PayloadBytes == 0
	case floodRequest:
		bad = rev.Packets == 0 && fwd.Packets <= 3
	default:
		bad = rev.Packets == 0
	}
	if !bad {
		f.answered++
		return
	}
	f.unanswered++
	limit, name := d.floodLimit(kind)
	if kind == floodUDP && f.sources.count() < udpSources {
		return
	}
	if float64(f.peak) < limit || float64(f.unanswered) < limit ||
		float64(f.unanswered) < floodShare*float64(f.unanswered+f.answered+f.before) {
		return
	}
	d.fireFlood(name, kind, id, float64(f.peak), limit, r.IPVersion, r.Protocol, &r.Src, &r.Dst, r.DstPort)
}

func (d *Detector) fireFlood(name string, kind floodKind, id uint64, count, limit float64, version, protocol uint8, src, dst *[16]byte, dstPort uint16) {
	if !d.armed(id, floodWindow) {
		return
	}
	a := telemetry.Alert{Kind: name, Protocol: protocol, Count: uint64(count), Threshold: limit, WindowNs: floodWindow}
	switch kind {
	case floodSYNACK:
		a.Dst = telemetry.Addr(version, src).String() // the victim is the supposed initiator
	case floodSYN, floodRequest:
		a.Dst, a.DstPort = telemetry.Addr(version, dst).String(), dstPort
	default:
		a.Dst = telemetry.Addr(version, dst).String()
	}
	d.emit(&a)
}
