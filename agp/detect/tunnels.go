package detect

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// dnsClient is what one client asks one server.
type dnsClient struct {
	queries, bytes float64
}

// dnsEnd: many long queries. A query is 12 bytes of header, the name and 4 to
// 15 bytes more; names average 20 to 40 bytes. A mean of 100 bytes takes names of 75 bytes on average, which
// only data encoded into names has. Missed: tunnels that only download, in large answers to short queries.
func (d *Detector) dnsEnd(r *telemetry.Record) {
	fwd := &r.Dir[telemetry.Fwd]
	if r.Protocol != packet.ProtoUDP || r.DstPort != 53 || fwd.Packets == 0 {
		return
	}
	id := d.subject(saltDNS, &r.Src, &r.Dst, 53)
	e := d.dns.at(id, r.EndNs)
	e.v.queries += float64(fwd.Packets)
	e.v.bytes += float64(fwd.PayloadBytes)
	e.weight += uint32(min(fwd.Packets, 1<<20))
	if e.v.queries < d.cfg.DNSTunnel || e.v.bytes < d.cfg.DNSTunnelBytes*e.v.queries {
		return
	}
	d.fire(&telemetry.Alert{
		Kind: DNSTunnel, Src: address(r.IPVersion, &r.Src), Dst: address(r.IPVersion, &r.Dst), DstPort: 53, Protocol: r.Protocol,
		Count: uint64(e.v.queries), Threshold: d.cfg.DNSTunnel, WindowNs: flowWindow,
	}, id)
}

// icmpEnd: an echo conversation whose packets differ in size. ping sends one
// size until it ends; what carries somebody's data does not. Missed: tunnels that pad.
func (d *Detector) icmpEnd(r *telemetry.Record) {
	switch {
	case r.Protocol == packet.ProtoICMP && r.DstPort>>8 == 8:
	case r.Protocol == packet.ProtoICMPv6 && r.DstPort>>8 == 128:
	default:
		return
	}
	for dir := range r.Dir {
		h := &r.Dir[dir]
		if float64(h.Packets) < d.cfg.ICMPTunnel || h.WireLenStd < d.cfg.ICMPTunnelStd {
			continue
		}
		d.fire(&telemetry.Alert{
			Kind: ICMPTunnel, Src: address(r.IPVersion, &r.Src), Dst: address(r.IPVersion, &r.Dst), Protocol: r.Protocol,
			Count: h.Packets, Threshold: d.cfg.ICMPTunnel, WindowNs: r.EndNs - r.StartNs,
		}, d.subject(saltICMP, &r.Src, &r.Dst, 0))
		return
	}
}

const (
	covertBytes = 100    // most payload per packet
	covertTwo   = 0.9    // how close to two-valued the delays are
	covertGap   = 0.2    // the two values differ by at least this share of the larger
	covertPace  = 0.01e9 // ns; shorter delays are the network's
)

// covertEnd: one side sends many small packets of one size that are never
// answered with data, and its gaps take two values only, as a message keyed
// into them does. For given extremes and mean the variance is largest, (max-mean)(mean-min), exactly when every
// gap is one of the extremes (Bhatia and Davis, 2000); a fixed pace with jitter has a tenth of that. Audio
// keeps one pace, video varies in size, an answered protocol has payload both ways. Missed: codes with more than two gaps, and
// records with a single odd gap (the `class` model's part).
func (d *Detector) covertEnd(r *telemetry.Record) {
	if r.Protocol != packet.ProtoTCP && r.Protocol != packet.ProtoUDP {
		return
	}
	for dir := range r.Dir {
		h, other := &r.Dir[dir], &r.Dir[1-dir]
		if float64(h.Packets) < d.cfg.CovertTiming || other.PayloadBytes != 0 || h.PayloadBytes == 0 ||
			h.PayloadBytes > covertBytes*h.Packets || h.WireLenStd > 1 {
			continue
		}
		lo, hi := float64(h.DelayMinNs), float64(h.DelayMaxNs)
		most := (hi - h.DelayMeanNs) * (h.DelayMeanNs - lo)
		if lo < covertPace || hi-lo < covertGap*hi || h.DelayStdNs*h.DelayStdNs < covertTwo*most {
			continue
		}
		// Both values must be common: a pace with one pause has two values as well.
		if p := (h.DelayMeanNs - lo) / (hi - lo); p < 0.1 || p > 0.9 {
			continue
		}
		d.fire(&telemetry.Alert{
			Kind: CovertTiming, Src: address(r.IPVersion, &r.Src), Dst: address(r.IPVersion, &r.Dst),
			SrcPort: r.SrcPort, DstPort: r.DstPort, Protocol: r.Protocol,
			Count: h.Packets, Threshold: d.cfg.CovertTiming, WindowNs: r.EndNs - r.StartNs,
		}, d.subject(saltCovert, &r.Src, &r.Dst, r.DstPort))
		return
	}
}
