package detect

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// scan is a source's probing: of one address over ports, or of one port over addresses, or
// with odd flags.
type scan struct {
	probed distinct
	good   uint32 // flows on the same port that carried data, in this window
	before uint32 // and in the one before
}

const (
	saltPorts = 16 + iota
	saltHosts
	saltUDPPorts
	saltStealth
	saltLogin
	saltBeacon
	saltDNS
	saltICMP
	saltCovert
	saltPush
	saltConfirmed
)

// scanMargin: who scans for hosts finds few. Probed hosts must outnumber the flows that
// carried data.
const scanMargin = 3

// scanEnd: one source tries many ports of an address, or one port of many addresses, and
// gets no data: no answer, a refusal, or a connection closed without a byte. Clients talk
// to services that exist, so their flows carry data. Behind a NAT gateway, a crawler or a
// monitor there are dead targets too, but many more that answer: hosts are a scan only by
// a margin over them. Traceroute (UDP, up to 90 ports) stays below the UDP count. Missed:
// scans slower than the threshold per window, ones spread over many sources, and a scan
// for hosts from behind a gateway that uses the same port much.
func (d *Detector) scanEnd(r *telemetry.Record) {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	switch r.Protocol {
	case packet.ProtoTCP:
		d.stealthEnd(r)
		if fwd.TCPFlags&packet.TCPSyn == 0 {
			return // the rest of a connection that began earlier
		}
		probe := fwd.PayloadBytes == 0 && rev.PayloadBytes == 0
		if probe {
			d.probePort(saltPorts, r, d.cfg.PortScan)
		}
		d.hostEnd(r, probe)
	case packet.ProtoUDP:
		if rev.Packets == 0 && !multicast(&r.Dst) && !r.Fragment {
			d.probePort(saltUDPPorts, r, d.cfg.UDPPortScan)
		}
	}
}

// probePort takes a port of r.Dst that gave r.Src no data.
func (d *Detector) probePort(salt uint64, r *telemetry.Record, limit float64) {
	id := d.subject(salt, d.src, d.dst, 0)
	b, i := d.scans.at(id, r.EndNs)
	b.v[i].probed.add(d.h.Uint64(uint64(r.DstPort)))
	b.weight[i]++
	if n := b.v[i].probed.count(); n >= limit && d.armed(id, flowWindow) {
		a := client(PortScan, r, n, limit, flowWindow)
		a.DstPort = 0
		d.emit(a)
	}
}

// hostEnd takes a flow of r.Src on a port, which carried data or was a probe.
func (d *Detector) hostEnd(r *telemetry.Record, probe bool) {
	id := d.subject(saltHosts, d.src, 0, r.DstPort)
	b, i, old := d.scans.roll(id, r.EndNs)
	s := &b.v[i]
	s.before += old.good
	if !probe {
		s.good++
		return
	}
	s.probed.add(d.dst)
	b.weight[i]++ // probes alone: sources that only do well give way
	n := s.probed.count()
	if n >= d.cfg.HostScan && n >= scanMargin*float64(s.good+s.before) && d.armed(id, flowWindow) {
		a := client(HostScan, r, n, d.cfg.HostScan, flowWindow)
		a.Dst = ""
		d.emit(a)
	}
}

// multicast says whether an address, as records keep it, is of a group or a broadcast:
// never answered from.
func multicast(a *[16]byte) bool { return a[0]&0xf0 == 0xe0 || a[0] == 0xff }

// impossible says whether all packets of a flow's initiator had flags that no
// TCP stack opens a connection with: none at all, FIN or URG or PSH without ACK, SYN
// with FIN. A FIN of a real connection always has ACK (RFC 9293, 3.10.7).
func impossible(flags uint8) bool {
	switch flags & tcpOpen {
	case 0, packet.TCPFin, packet.TCPFin | packet.TCPSyn, packet.TCPFin | packet.TCPSyn | packet.TCPAck:
		return true
	}
	return false
}

// stealthEnd: bare NULL, FIN, XMAS and SYN+FIN probes, whose only use is to see how a host
// reacts to them. A few suffice, but not one: a damaged packet may look like that.
// Fragments and packets with payload are damage or noise, not probes.
func (d *Detector) stealthEnd(r *telemetry.Record) {
	fwd := &r.Dir[telemetry.Fwd]
	if fwd.Packets == 0 || fwd.Packets > 3 || fwd.PayloadBytes != 0 || r.Fragment || !impossible(fwd.TCPFlags) {
		return
	}
	id := d.subject(saltStealth, d.src, 0, 0)
	b, i := d.scans.at(id, r.EndNs)
	b.v[i].probed.add(d.h.Pair(d.dst, uint64(r.DstPort)))
	b.weight[i]++
	if n := b.v[i].probed.count(); n >= d.cfg.StealthScan && d.armed(id, flowWindow) {
		a := client(StealthScan, r, n, d.cfg.StealthScan, flowWindow)
		a.DstPort = 0
		d.emit(a)
	}
}
