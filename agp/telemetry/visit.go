package telemetry

import (
	"math"
	"net/netip"
)

// Visitor receives the readings of a record in their public order. A name has
// the same type for ever. Slices are only valid during the call.
type Visitor interface {
	Uint(name string, v uint64)
	Int(name string, v int64)
	Float(name string, v float64) // always finite
	Bool(name string, v bool)
	String(name, v string)
	Addr(name string, v netip.Addr)
	Hist(name string, bins []uint32)
}

// halfNames are the public names of one direction.
type halfNames struct {
	packets, wireBytes, l3Bytes, payloadBytes, tcpFlags string
	lenMin, lenMean, lenMax, lenStd                     string
	delayMin, delayMean, delayMax, delayStd             string
	retransmits, outOfOrder, zeroWindows                string
}

func namesFor(suffix string) halfNames {
	return halfNames{
		packets: "packets" + suffix, wireBytes: "wire_bytes" + suffix, l3Bytes: "l3_bytes" + suffix,
		payloadBytes: "payload_bytes" + suffix, tcpFlags: "tcp_flags" + suffix,
		lenMin: "wire_len_min" + suffix, lenMean: "wire_len_mean" + suffix,
		lenMax: "wire_len_max" + suffix, lenStd: "wire_len_std" + suffix,
		delayMin: "delay_ns_min" + suffix, delayMean: "delay_ns_mean" + suffix,
		delayMax: "delay_ns_max" + suffix, delayStd: "delay_ns_std" + suffix,
		retransmits: "tcp_retransmits" + suffix, outOfOrder: "tcp_out_of_order" + suffix,
		zeroWindows: "tcp_zero_windows" + suffix,
	}
}

var dirNames = [2]halfNames{namesFor("_fwd"), namesFor("_rev")}

// Visit gives every reading of r to v. A reading that cannot exist is left out:
//
//   - ports of protocols without ports, ports and TCP readings of a port-less
//     fragment flow, TCP readings of other protocols;
//   - vlan_id and tunnel_id of packets without them, interface if unnamed;
//   - wire_len and tcp_flags of a direction without packets, delay_ns of a
//     direction with fewer than two;
//   - first_reply_ns and tcp_handshake_ns that were not seen;
//   - answers of models that did not speak.
//
// Counts and byte sums exist for both directions, also when they are 0.
func Visit(r *Record, v Visitor) {
	hasPorts := HasPorts(r.Protocol) && !r.Fragment
	isTCP := r.Protocol == 6 && !r.Fragment

	v.Uint("ip_version", uint64(r.IPVersion))
	v.String("protocol", ProtocolName(r.Protocol))
	v.Addr("src", Addr(r.IPVersion, &r.Src))
	v.Addr("dst", Addr(r.IPVersion, &r.Dst))
	if hasPorts {
		v.Uint("src_port", uint64(r.SrcPort))
		v.Uint("dst_port", uint64(r.DstPort))
	}
	if r.VLANID != 0 {
		v.Uint("vlan_id", uint64(r.VLANID))
	}
	if r.TunnelID != 0 {
		v.Uint("tunnel_id", uint64(r.TunnelID))
	}
	v.Int("start_ns", r.StartNs)
	v.Int("end_ns", r.EndNs)
	v.String("end_reason", r.EndReason.String())
	v.Bool("fragment", r.Fragment)

	for d := range r.Dir {
		visitHalf(&r.Dir[d], &dirNames[d], isTCP, v)
	}

	v.Hist("size_hist", r.SizeHist[:])
	v.Hist("delay_hist", r.DelayHist[:])
	if r.FirstReplyNs >= 0 {
		v.Int("first_reply_ns", r.FirstReplyNs)
	}
	if isTCP {
		if r.TCPHandshakeNs >= 0 {
			v.Int("tcp_handshake_ns", r.TCPHandshakeNs)
		}
		v.Uint("tcp_syn_retransmits", uint64(r.TCPSynRetransmits))
	}
	v.Uint("time_steps", uint64(r.TimeSteps))
	if r.Coalesced > 0 {
		v.Uint("packets_coalesced", r.Coalesced)
	}
	for i := range r.Outputs {
		VisitOutput(&r.Outputs[i], v)
	}
	v.Uint("queue", uint64(r.Queue))
	if r.Interface != "" {
		v.String("interface", r.Interface)
	}
}

// VisitOutput gives what a model said of a flow to v.
func VisitOutput(o *Output, v Visitor) {
	n, ok := outputNames[o.Field]
	if !ok {
		return // no model file may name another field
	}
	v.String(o.Field, o.Label)
	float(v, n.score, roundScore(o.Score))
	v.String(n.model, o.Model)
}

func visitHalf(h *Half, n *halfNames, isTCP bool, v Visitor) {
	v.Uint(n.packets, h.Packets)
	v.Uint(n.wireBytes, h.WireBytes)
	v.Uint(n.l3Bytes, h.L3Bytes)
	v.Uint(n.payloadBytes, h.PayloadBytes)
	if h.Packets > 0 {
		if isTCP {
			v.Uint(n.tcpFlags, uint64(h.TCPFlags))
		}
		v.Uint(n.lenMin, uint64(h.WireLenMin))
		float(v, n.lenMean, h.WireLenMean)
		v.Uint(n.lenMax, uint64(h.WireLenMax))
		float(v, n.lenStd, h.WireLenStd)
	}
	if h.Packets > 1 {
		v.Int(n.delayMin, h.DelayMinNs)
		float(v, n.delayMean, h.DelayMeanNs)
		v.Int(n.delayMax, h.DelayMaxNs)
		float(v, n.delayStd, h.DelayStdNs)
	}
	if isTCP {
		v.Uint(n.retransmits, uint64(h.Retransmits))
		v.Uint(n.outOfOrder, uint64(h.OutOfOrder))
		v.Uint(n.zeroWindows, uint64(h.ZeroWindows))
	}
}

// VisitAlert gives every reading of a to v, in public order. What the finding
// is not about is left out.
func VisitAlert(a *Alert, v Visitor) {
	v.Int("time_ns", a.TimeNs)
	v.String("kind", a.Kind)
	visitText(v, "class", a.Class)
	visitText(v, "src", a.Src)
	visitText(v, "dst", a.Dst)
	if a.SrcPort != 0 {
		v.Uint("src_port", uint64(a.SrcPort))
	}
	if a.DstPort != 0 {
		v.Uint("dst_port", uint64(a.DstPort))
	}
	if a.Protocol != 0 {
		v.String("protocol", ProtocolName(a.Protocol))
	}
	if a.Model == "" {
		v.Uint("count", a.Count)
	} else {
		float(v, "score", a.Score)
	}
	float(v, "threshold", a.Threshold)
	if a.WindowNs > 0 {
		v.Int("window_ns", a.WindowNs)
	}
	visitText(v, "model", a.Model)
	if a.Confirmed {
		v.Bool("confirmed", true)
	}
	visitText(v, "interface", a.Interface)
}

func visitText(v Visitor, name, s string) {
	if s != "" {
		v.String(name, s)
	}
}

// float leaves out what no store accepts.
func float(v Visitor, name string, f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return
	}
	v.Float(name, f)
}

// roundScore keeps six digits: a float32 has no more, and its exact value as a
// float64 is 17 digits of noise.
func roundScore(s float32) float64 { return math.Round(float64(s)*1e6) / 1e6 }
