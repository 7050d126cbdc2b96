package flow

import (
	"math"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Record fills rec with everything the table knows of an active flow; Queue,
// Interface and Outputs are the caller's.
func (t *Table) Record(r Ref, reason telemetry.EndReason, rec *telemetry.Record) {
	f := t.flows.at(uint32(r))
	rec.SizeHist, rec.DelayHist = [telemetry.SizeBins]uint32{}, [telemetry.DelayBins]uint32{}
	t.histograms(f, &rec.SizeHist, &rec.DelayHist)
	f.record(reason, rec)
}

// record fills everything but the histograms.
func (f *state) record(reason telemetry.EndReason, rec *telemetry.Record) {
	e := f.endpoints()
	rec.IPVersion, rec.Protocol = e.IPVersion, e.Protocol
	rec.Src, rec.Dst, rec.SrcPort, rec.DstPort = e.Src, e.Dst, e.SrcPort, e.DstPort
	rec.VLANID, rec.TunnelID = f.key.VLAN, f.key.Tunnel
	rec.StartNs, rec.EndNs, rec.EndReason = f.startNs, f.lastNs, reason
	rec.Fragment, rec.Confirmed = f.bits&bitFragment != 0, f.confirmed()
	for d := range rec.Dir {
		f.dir[d].fill(&rec.Dir[d])
	}
	rec.FirstReplyNs, rec.TCPHandshakeNs = -1, -1
	if fwd, rev := &f.dir[0], &f.dir[1]; fwd.packets > 0 && rev.packets > 0 && rev.firstNs >= fwd.firstNs {
		rec.FirstReplyNs = rev.firstNs - fwd.firstNs
	}
	if f.bits&bitHandshake != 0 {
		rec.TCPHandshakeNs = f.handshakeNs
	}
	rec.TCPSynRetransmits, rec.TimeSteps, rec.Coalesced = f.synRetransmits, f.timeSteps, uint64(f.coalesced)
	rec.Outputs = rec.Outputs[:0]
}

func (h *half) fill(o *telemetry.Half) {
	*o = telemetry.Half{
		Packets: h.packets, WireBytes: h.wireBytes, L3Bytes: h.l3Bytes, PayloadBytes: h.payloadBytes,
		TCPFlags: h.tcpFlags, WireLenMin: h.wireMin, WireLenMax: h.wireMax,
		DelayMinNs: h.delayMin, DelayMaxNs: h.delayMax,
		Retransmits: h.retransmits, OutOfOrder: h.outOfOrder, ZeroWindows: h.zeroWindows,
	}
	if h.packets == 0 {
		return
	}
	o.WireLenMean = float64(h.wireBytes) / float64(h.packets)
	o.WireLenStd = deviation(h.packets, h.wireBytes, 0, h.wireSq)
	if h.packets > 1 {
		sum := uint64(h.lastNs - h.firstNs) // delays of a monotonic clock add up to the span
		o.DelayMeanNs = float64(sum) / float64(h.packets-1)
		o.DelayStdNs = deviation(h.packets-1, sum, h.delaySqHi, h.delaySqLo)
	}
}

// addSquare adds v squared to a 128-bit sum.
func addSquare(hi, lo *uint64, v uint64) {
	h, l := bits.Mul64(v, v)
	var c uint64
	*lo, c = bits.Add64(*lo, l, 0)
	*hi, _ = bits.Add64(*hi, h, c)
}

// deviation returns the population standard deviation of n values from their
// exact integer sum and 128-bit sum of squares: sqrt(n*sq - sum*sum) / n. The
// difference is formed in 192-bit integers, so equal values give exactly 0.
func deviation(n, sum, sqHi, sqLo uint64) float64 {
	h1, l1 := bits.Mul64(n, sqLo)
	h2, l2 := bits.Mul64(n, sqHi)
	m1, c := bits.Add64(h1, l2, 0)
	top := h2 + c
	sh, sl := bits.Mul64(sum, sum)
	l, b := bits.Sub64(l1, sl, 0)
	m, b := bits.Sub64(m1, sh, b)
	top -= b
	v := (float64(top)*0x1p64+float64(m))*0x1p64 + float64(l)
	return math.Sqrt(v) / float64(n)
}
