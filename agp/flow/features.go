package flow

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// count adds one packet to the flow's two histograms; n is its number in the record, from 1.
func (t *Table) count(f *state, n uint64, size, delay int) {
	i := (n - 1) % BinnedPackets
	if i == 0 && n > 1 {
		t.binned(f, n-1)
		t.fold(f)
	}
	f.bins[0][i], f.bins[1][i] = uint8(size), uint8(delay)
}

// pending returns the bins that are not yet counted of a record of n packets.
func (f *state) pending(n uint64) (size, delay []uint8) {
	if n == 0 {
		return nil, nil
	}
	n = (n-1)%BinnedPackets + 1
	size, delay = f.bins[0][:n], f.bins[1][:n]
	if f.tier == tierNone {
		delay = delay[1:]
	}
	return size, delay
}

// binned tells the handler of the pending bins.
func (t *Table) binned(f *state, n uint64) {
	size, delay := f.pending(n)
	t.h.Binned(f.hash, size, delay)
}

// fold counts BinnedPackets bins, in counters that are taken when the first are
// and widened before one could overflow.
func (t *Table) fold(f *state) {
	size, delay := f.bins[0][:], f.bins[1][:]
	switch f.tier {
	case tierNone:
		delay = delay[1:]
		f.tier, f.histRef = tierSmall, t.small.take()
		*t.small.at(f.histRef) = smallHist{}
		fallthrough
	case tierSmall:
		b := t.small.at(f.histRef)
		var high uint8
		for _, bin := range size {
			b[bin]++
			high = max(high, b[bin])
		}
		for _, bin := range delay {
			b[telemetry.SizeBins+int(bin)]++
			high = max(high, b[telemetry.SizeBins+int(bin)])
		}
		if high > math.MaxUint8-BinnedPackets {
			ref := t.large.take()
			l := t.large.at(ref)
			for i := range l {
				l[i] = uint32(b[i])
			}
			t.small.release(f.histRef)
			f.tier, f.histRef = tierLarge, ref
		}
	case tierLarge:
		l := t.large.at(f.histRef)
		for _, bin := range size {
			saturatingInc(&l[bin])
		}
		for _, bin := range delay {
			saturatingInc(&l[telemetry.SizeBins+int(bin)])
		}
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
	f.addPending(size, delay)
}

// addPending adds the bins that are not yet counted.
func (f *state) addPending(size *[telemetry.SizeBins]uint32, delay *[telemetry.DelayBins]uint32) {
	sizes, delays := f.pending(f.dir[0].packets + f.dir[1].packets)
	for _, bin := range sizes {
		saturatingInc(&size[bin])
	}
	for _, bin := range delays {
		saturatingInc(&delay[bin])
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
func (t *Table) Endpoints(r Ref) Endpoints { return t.flows.at(uint32(r)).endpoints() }

func (f *state) endpoints() Endpoints {
	k := &f.key
	if f.bits&bitFromB == 0 {
		return Endpoints{k.A, k.B, k.PortA, k.PortB, k.Protocol, k.IPVersion}
	}
	return Endpoints{k.B, k.A, k.PortB, k.PortA, k.Protocol, k.IPVersion}
}
