package detect

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// dnsClient is what one client asks one server.
type dnsClient struct {
	queries, bytes float64
}

// dnsEnd: many long queries. A query is 12 bytes of header, the name and 4 to 43
// bytes more (EDNS with cookies); names average 20 to 40 bytes, and the longest in
// common use, reverse names of IPv6 addresses, have 74: 129 bytes at most. A
// higher mean takes data encoded into names. Missed: tunnels that only download,
// in large answers to short queries, and DNS inside TLS.
func (d *Detector) dnsEnd(r *telemetry.Record) {
	fwd := &r.Dir[telemetry.Fwd]
	if r.Protocol != packet.ProtoUDP || r.DstPort != 53 || fwd.Packets == 0 {
		return
	}
	id := d.subject(saltDNS, d.src, d.dst, 53)
	b, i := d.dns.at(id, r.EndNs)
	c := &b.v[i]
	c.queries += float64(fwd.Packets)
	c.bytes += float64(fwd.PayloadBytes)
	b.weight[i] = uint32(min(c.queries, 1<<30))
	if c.queries < d.cfg.DNSTunnel || c.bytes < d.cfg.DNSTunnelBytes*c.queries {
		return
	}
	if d.armed(id, flowWindow) {
		d.emit(client(DNSTunnel, r, c.queries, d.cfg.DNSTunnel, flowWindow))
	}
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
		if span := r.EndNs - r.StartNs; d.armed(d.subject(saltICMP, d.src, d.dst, 0), span) {
			a := client(ICMPTunnel, r, float64(h.Packets), d.cfg.ICMPTunnel, span)
			a.DstPort = 0 // the ICMP type
			d.emit(a)
		}
		return
	}
}

const (
	covertBytes = 100    // most payload per packet where the message is in the gaps
	covertTwo   = 0.9    // how close to two-valued a quantity is
	covertGap   = 0.2    // the two delays differ by at least this share of the larger
	covertPace  = 0.01e9 // ns; shorter delays are the network's
	covertRare  = 0.15   // both delays are at least this share of all
	covertEven  = 0.3    // both sizes are; a number that gains a digit is rarer or commoner
	covertSize  = 16     // bytes; sizes that differ more are kinds of messages
	covertMass  = 0.98   // of the longer delays in two bins of the histogram
	longDelay   = 40     // histogram bin of 1 ms: delays above are the sender's, not the stack's
)

// twoValued: for given extremes and mean the variance is largest,
// (max-mean)(mean-min), exactly when every value is one of the extremes (Bhatia
// and Davis, 2000); values spread evenly between them have a third of that.
func twoValued(lo, hi, mean, std, rare float64) bool {
	share := (mean - lo) / (hi - lo)
	return share >= rare && share <= 1-rare && std*std >= covertTwo*(hi-mean)*(mean-lo)
}

// twoDelays is the same by the histogram, which forgives single odd delays: two
// bins with a gap between them hold nearly all delays above 1 ms.
func twoDelays(hist *[telemetry.DelayBins]uint32, least float64) bool {
	var total, first, second float64
	a, b := -1, -1
	for i := longDelay; i < len(hist); i++ {
		n := float64(hist[i])
		total += n
		switch {
		case n > first:
			second, b = first, a
			first, a = n, i
		case n > second:
			second, b = n, i
		}
	}
	return total >= least && first+second >= covertMass*total && second >= covertRare*total && (a-b > 1 || b-a > 1)
}

// covertEnd: one side of a TCP connection sends many packets that are never
// answered with data, and either all have one small size and gaps that take two
// values only, or their sizes take two values a few bytes apart: a message keyed
// into them. Text and video vary in size, senders of measurements keep one pace,
// an answered protocol has payload both ways. Missed: codes with more than two
// values, what mixes a code with real traffic (the `class` model's part), and
// UDP, where audio and sensors come too close.
func (d *Detector) covertEnd(r *telemetry.Record) bool {
	if r.Protocol != packet.ProtoTCP {
		return false
	}
	for dir := range r.Dir {
		h, other := &r.Dir[dir], &r.Dir[1-dir]
		if float64(h.Packets) < d.cfg.CovertTiming || other.PayloadBytes != 0 || h.PayloadBytes == 0 {
			continue
		}
		lo, hi := float64(h.DelayMinNs), float64(h.DelayMaxNs)
		kind := ""
		switch {
		case h.PayloadBytes <= covertBytes*h.Packets && h.WireLenStd <= 1 &&
			(lo >= covertPace && hi-lo >= covertGap*hi && twoValued(lo, hi, h.DelayMeanNs, h.DelayStdNs, covertRare) ||
				twoDelays(&r.DelayHist, d.cfg.CovertTiming)):
			kind = CovertTiming
		case h.WireLenMax > h.WireLenMin && h.WireLenMax-h.WireLenMin <= covertSize &&
			twoValued(float64(h.WireLenMin), float64(h.WireLenMax), h.WireLenMean, h.WireLenStd, covertEven):
			kind = CovertSize
		}
		if span := r.EndNs - r.StartNs; kind != "" && d.armed(d.subject(saltCovert, d.src, d.dst, r.DstPort), span) {
			d.emit(single(kind, r, float64(h.Packets), d.cfg.CovertTiming, span))
		}
		return kind != ""
	}
	return false
}

const (
	pushSpan  = 60 * second
	pushBytes = 200 // most mean payload of a message; more is a transfer
)

// pushEnd: for a minute or more a client sends small messages into a TCP
// connection to a host outside, which acknowledges them and never sends a byte of
// data: no greeting, no handshake of an encryption, no answer. Implants report
// so, and covert senders. Uploads have large packets, what speaks TLS has
// payload both ways, loggers and metric senders of this kind stay inside a site;
// one that goes outside in clear deserves the alert.
func (d *Detector) pushEnd(r *telemetry.Record) {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	if r.Protocol != packet.ProtoTCP || rev.Packets == 0 || rev.PayloadBytes != 0 || rev.TCPFlags&packet.TCPAck == 0 ||
		fwd.PayloadBytes == 0 || fwd.PayloadBytes > pushBytes*fwd.Packets || float64(fwd.Packets) < d.cfg.OneWayPush ||
		r.EndNs-r.StartNs < pushSpan || local(r.IPVersion, &r.Dst) {
		return
	}
	if span := r.EndNs - r.StartNs; d.armed(d.subject(saltPush, d.src, d.dst, r.DstPort), span) {
		d.emit(single(OneWayPush, r, float64(fwd.Packets), d.cfg.OneWayPush, span))
	}
}
