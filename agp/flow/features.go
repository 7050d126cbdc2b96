package flow

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// count adds one packet to the flow's two histograms. Short flows keep the bin
// numbers of their packets; longer ones a block of counters, widened when one is full.
func (t *Table) count(f *state, size, delay int, first bool) {
	n := f.dir[0].packets + f.dir[1].packets // with this packet
	if f.tier == tierInline {
		if n <= inlineHist {
			f.inline[0][n-1], f.inline[1][n-1] = uint8(size), uint8(delay)
			return
		}
		f.histRef = t.small.take()
		b := t.small.at(f.histRef)
		*b = smallHist{}
		for i := range inlineHist {
			b[f.inline[0][i]]++
			if i > 0 {
				b[telemetry.SizeBins+int(f.inline[1][i])]++
			}
		}
		f.tier = tierSmall
	}
	if f.tier == tierSmall {
		b := t.small.at(f.histRef)
		s, d := &b[size], &b[telemetry.SizeBins+delay]
		if *s < math.MaxUint8 && *d < math.MaxUint8 {
			*s++
			if !first {
				*d++
			}
			return
		}
		ref := t.large.take()
		l := t.large.at(ref)
		for i := range l {
			l[i] = uint32(b[i])
		}
		t.small.release(f.histRef)
		f.tier, f.histRef = tierLarge, ref
	}
	l := t.large.at(f.histRef)
	saturatingInc(&l[size])
	if !first {
		saturatingInc(&l[telemetry.SizeBins+delay])
	}
}

func saturatingInc(v *uint32) {
	if *v != math.MaxUint32 {
		*v++
	}
}

// histograms adds the flow's counters to size and delay.
func (t *Table) histograms(f *state, size *[telemetry.SizeBins]uint32, delay *[telemetry.DelayBins]uint32) {
	switch f.tier {
	case tierInline:
		n := int(f.dir[0].packets + f.dir[1].packets)
		for i := range n {
			size[f.inline[0][i]]++
			if i > 0 {
				delay[f.inline[1][i]]++
			}
		}
	case tierSmall:
		b := t.small.at(f.histRef)
		for i := range size {
			size[i] = uint32(b[i])
		}
		for i := range delay {
			delay[i] = uint32(b[telemetry.SizeBins+i])
		}
	case tierLarge:
		l := t.large.at(f.histRef)
		copy(size[:], l[:telemetry.SizeBins])
		copy(delay[:], l[telemetry.SizeBins:])
	}
}

// collect adds one packet to the head features while there is room.
func collect(h *model.Head, p *Packet, dir, delayBin int, first bool) {
	if h.Packets < model.HeadPackets {
		n := int32(min(p.L3Len, math.MaxInt16))
		if dir == telemetry.Rev {
			n = -n
		}
		h.Len[h.Packets] = int16(n)
		if !first {
			h.Delay[h.Packets] = uint8(delayBin) + 1
		}
		h.Packets++
	}
	if have := h.PayloadLen[dir]; have < model.HeadPayload && p.PayloadCap > 0 {
		h.PayloadLen[dir] += uint8(copy(h.Payload[dir][have:], p.Payload(p.Frame)))
	}
}

// Head returns the head features of an active flow, nil if they are not (or no longer) kept.
func (t *Table) Head(r Ref) *model.Head {
	if f := t.flows.at(uint32(r)); f.headRef != none {
		return t.heads.at(f.headRef)
	}
	return nil
}

// Histograms adds the flow's histograms to size and delay, which must be zero.
func (t *Table) Histograms(r Ref, size *[telemetry.SizeBins]uint32, delay *[telemetry.DelayBins]uint32) {
	t.histograms(t.flows.at(uint32(r)), size, delay)
}

// Packets returns the flow's packet count.
func (t *Table) Packets(r Ref) uint64 {
	f := t.flows.at(uint32(r))
	return f.dir[0].packets + f.dir[1].packets
}

// Span returns the times of the record's first and last packet.
func (t *Table) Span(r Ref) (startNs, endNs int64) {
	f := t.flows.at(uint32(r))
	return f.startNs, f.lastNs
}

// StartSeq returns the sequence number of the record's first packet.
func (t *Table) StartSeq(r Ref) uint64 { return t.flows.at(uint32(r)).startSeq }

// Valid reports whether r still is the record that began with packet startSeq.
func (t *Table) Valid(r Ref, startSeq uint64) bool {
	f := t.flows.at(uint32(r))
	return f.bits&bitLive != 0 && f.bits&bitEmpty == 0 && f.startSeq == startSeq
}

// Outputs returns the flow's scores for reading and writing.
func (t *Table) Outputs(r Ref) *[MaxOutputs]Score { return &t.flows.at(uint32(r)).outputs }

// Endpoints are a flow's two ends as its initiator sees them.
type Endpoints struct {
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
	Protocol         uint8
	IPVersion        uint8
}

// Endpoints returns the ends of an active flow.
func (t *Table) Endpoints(r Ref) Endpoints {
	f := t.flows.at(uint32(r))
	k := &f.key
	if f.bits&bitFromB == 0 {
		return Endpoints{k.A, k.B, k.PortA, k.PortB, k.Protocol, k.IPVersion}
	}
	return Endpoints{k.B, k.A, k.PortB, k.PortA, k.Protocol, k.IPVersion}
}
