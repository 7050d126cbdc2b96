package detect

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// beacon is the rhythm of one source towards one service.
type beacon struct {
	last        int64
	port        uint16  // of the source, last time
	n           float64 // intervals
	sum, sum2   float64 // s
	ends, sure  float64 // flows that ended; of these, confirmed ones
	sumB, sumB2 float64 // bytes sent per flow
}

const (
	beaconMemory = 86400 * second
	beaconMin    = 1.0    // s; faster is a load, not a rhythm
	beaconMax    = 3600.0 // s
	beaconBytes  = 0.2    // spread of the bytes sent per flow
)

// local says whether an address belongs to a site's own network or to a group:
// what polls there is monitoring or discovery.
func local(version uint8, a *[16]byte) bool {
	if version == 4 {
		switch {
		case a[0] == 10, a[0] == 127, a[0] >= 224, a[0] == 0,
			a[0] == 172 && a[1]&0xf0 == 16, a[0] == 192 && a[1] == 168, a[0] == 169 && a[1] == 254,
			a[0] == 100 && a[1]&0xc0 == 64:
			return true
		}
		return false
	}
	return a[0] == 0xff || a[0]&0xfe == 0xfc || (a[0] == 0xfe && a[1]&0x80 == 0x80) || *a == [16]byte{15: 1}
}

// beaconStart and beaconEnd: one host opens connections to one service outside at equal
// intervals, and says about the same each time, as an implant asking for work does. People
// and browsers are irregular; monitoring polls inside; DNS and NTP have ports of their
// own. Missed: beacons with jitter above the spread, and ones inside a single connection
// (the `class` model's part). A program that polls a public service at a fixed pace looks
// the same: it is reported, and right to be looked at.
func (d *Detector) beaconStart(s *FlowStart) {
	if (s.Protocol != packet.ProtoTCP || s.TCPFlags&tcpOpen != packet.TCPSyn) && s.Protocol != packet.ProtoUDP ||
		s.DstPort == 53 || s.DstPort == 123 || local(s.IPVersion, &s.Dst) {
		return
	}
	t, i := d.beacons.at(d.subject(saltBeacon, d.src, d.dst, s.DstPort), s.TimeNs)
	b := &t.v[i]
	if t.weight[i] > 0 {
		gap := float64(s.TimeNs-b.last) / float64(second)
		if gap < beaconMin || gap > beaconMax || s.SrcPort == b.port {
			*b = beacon{} // a burst, a pause, or one association that keeps itself alive
			t.weight[i] = 0
		} else {
			b.n++
			b.sum += gap
			b.sum2 += gap * gap
		}
	}
	t.weight[i]++
	b.last, b.port = s.TimeNs, s.SrcPort
}

func (d *Detector) beaconEnd(r *telemetry.Record) {
	if r.Protocol != packet.ProtoTCP && r.Protocol != packet.ProtoUDP || r.DstPort == 53 || r.DstPort == 123 || local(r.IPVersion, &r.Dst) {
		return
	}
	v := float64(r.Dir[telemetry.Fwd].PayloadBytes)
	if v == 0 {
		return // not a word said
	}
	id := d.subject(saltBeacon, d.src, d.dst, r.DstPort)
	t, i, ok := d.beacons.find(id)
	if !ok {
		return
	}
	b := &t.v[i]
	b.ends++
	if r.Confirmed {
		b.sure++
	}
	b.sumB += v
	b.sumB2 += v * v
	if b.n < d.cfg.Beacon || spread(b.n, b.sum, b.sum2) > d.cfg.BeaconSpread ||
		b.ends < b.n/2 || spread(b.ends, b.sumB, b.sumB2) > beaconBytes {
		return
	}
	confirmed := b.sure >= d.cfg.Beacon
	if span := int64(b.sum * float64(second)); d.due(id, span, confirmed) {
		a := client(Beacon, r, b.n, d.cfg.Beacon, span)
		a.Confirmed = confirmed
		d.emit(a)
	}
}
