package detect

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// scan is a source's probing: of one address over ports, or of one port over addresses, or with odd flags.
type scan struct {
	probed distinct
	good   uint32 // flows that carried data
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
)

// scanMargin: a scanner finds little. Probes must outnumber the flows that carried data.
const scanMargin = 3

// scanEnd: one source tries many ports of an address, or one port of many
// addresses, and gets no data: no answer, a refusal, or a connection closed without a byte. Clients talk to
// services that exist, so their flows carry data; a crawler or monitor with a few dead targets stays below the
// count and the margin. Ports: traceroute (UDP, up to 90 ports) stays below the UDP count. Missed: scans slower than the
// threshold per window, and ones spread over many sources.
func (d *Detector) scanEnd(r *telemetry.Record) {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	switch r.Protocol {
	case packet.ProtoTCP:
		d.stealthEnd(r)
		if fwd.TCPFlags&packet.TCPSyn == 0 {
			return // the rest of a connection that began earlier
		}
		probe := fwd.PayloadBytes == 0 && rev.PayloadBytes == 0
		d.probe(saltPorts, probe, r, &r.Dst, 0, uint64(r.DstPort), d.cfg.PortScan, PortScan)
		d.probe(saltHosts, probe, r, nil, r.DstPort, 0, d.cfg.HostScan, HostScan)
	case packet.ProtoUDP:
		if r.Dst[0]&0xf0 == 0xe0 || r.Dst[0] == 0xff || r.Fragment {
			return
		}
		d.probe(saltUDPPorts, rev.Packets == 0, r, &r.Dst, 0, uint64(r.DstPort), d.cfg.UDPPortScan, PortScan)
	}
}

func (d *Detector) probe(salt uint64, isProbe bool, r *telemetry.Record, dst *[16]byte, port uint16, item uint64, limit float64, kind string) {
	id := d.subject(salt, &r.Src, dst, port)
	if !isProbe {
		// Only a source that already probes needs its successes counted.
		if e := d.scans.find(id); e != nil {
			e.v.good++
		}
		return
	}
	e := d.scans.at(id, r.EndNs)
	if dst == nil {
		item = d.h.Addr(&r.Dst)
	} else {
		item = d.h.Uint64(item)
	}
	e.v.probed.add(item)
	e.weight++
	n := e.v.probed.count()
	if n < limit || n < scanMargin*float64(e.v.good) {
		return
	}
	a := telemetry.Alert{
		Kind: kind, Src: address(r.IPVersion, &r.Src), Protocol: r.Protocol, DstPort: port,
		Count: uint64(n + 0.5), Threshold: limit, WindowNs: flowWindow,
	}
	if dst != nil {
		a.Dst = address(r.IPVersion, dst)
	}
	d.fire(&a, id)
}

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

// stealthEnd: bare NULL, FIN, XMAS and SYN+FIN probes, whose only use is to see
// how a host reacts to them. A few suffice, but not one: a damaged packet may look like that. Fragments
// and packets with payload are damage or noise, not probes.
func (d *Detector) stealthEnd(r *telemetry.Record) {
	fwd := &r.Dir[telemetry.Fwd]
	if fwd.Packets == 0 || fwd.Packets > 3 || fwd.PayloadBytes != 0 || r.Fragment || !impossible(fwd.TCPFlags) {
		return
	}
	id := d.subject(saltStealth, &r.Src, nil, 0)
	e := d.scans.at(id, r.EndNs)
	e.v.probed.add(d.h.Pair(d.h.Addr(&r.Dst), uint64(r.DstPort)))
	e.weight++
	if n := e.v.probed.count(); n >= d.cfg.StealthScan {
		d.fire(&telemetry.Alert{
			Kind: StealthScan, Src: address(r.IPVersion, &r.Src), Dst: address(r.IPVersion, &r.Dst), Protocol: r.Protocol,
			Count: uint64(n + 0.5), Threshold: d.cfg.StealthScan, WindowNs: flowWindow,
		}, id)
	}
}
