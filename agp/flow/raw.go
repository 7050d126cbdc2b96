package flow

import "github.com/agp-net/telegraf-agp/agp/telemetry"

// Raw is the state of one flow as a pipeline on a device keeps it: the agp_flow of
// cuda/kernels/agp.h, with which it shares sizes, order and meaning of all fields. Only
// integers cross the border, so that all arithmetic behind a record is in one place.
type Raw struct {
	A, B           [16]byte
	PortA, PortB   uint16
	Tunnel         uint32
	VLAN           uint16
	Protocol       uint8
	IPVersion      uint8
	_              uint32
	Hash           uint64
	LastNs         int64
	StartNs        int64
	StartSeq       uint64
	Bits           uint16
	Tier           uint8 // not 0: the flow has counters
	Side           [2]uint8
	Born           [3]uint8
	TimeSteps      uint32
	SynRetransmits uint32
	Coalesced      uint32
	ToldBytes      uint32
	SynNs          int64
	HandshakeNs    int64
	RTTNs          int64
	Dir            [2]RawHalf
	TCP            [2]RawTCP
	Bins           [2][BinnedPackets]uint8
}

// RawHalf is the agp_half of one direction.
type RawHalf struct {
	Packets, WireBytes, L3Bytes, PayloadBytes uint64
	WireSq                                    uint64
	DelaySqHi, DelaySqLo                      uint64
	FirstNs, LastNs                           int64
	DelayMin, DelayMax                        int64
	WireMin, WireMax                          uint32
	Retransmits, OutOfOrder, ZeroWindows      uint32
	TCPFlags                                  uint8
	_                                         [3]uint8
}

// RawTCP is the agp_tcp_half of one direction.
type RawTCP struct {
	NextSeqNs                             int64
	NextSeq, MaxSeq, LastAck, ISN, FinSeq uint32
	Window                                uint16
	DupAcks                               int8
	Seen                                  uint8
}

// RawCounters are the agp_hist of a flow of more than BinnedPackets packets.
type RawCounters struct {
	Size  [telemetry.SizeBins]uint32
	Delay [telemetry.DelayBins]uint32
	_     uint32
}

// Record fills rec as Table.Record does. c are the flow's counters, used if Tier is not 0.
func (r *Raw) Record(c *RawCounters, reason telemetry.EndReason, rec *telemetry.Record) {
	f := state{
		key:  Key{r.A, r.B, r.PortA, r.PortB, r.Tunnel, r.VLAN, r.Protocol, r.IPVersion},
		hash: r.Hash, lastNs: r.LastNs, startNs: r.StartNs, bits: r.Bits, startSeq: r.StartSeq,
		timeSteps: r.TimeSteps, synRetransmits: r.SynRetransmits, coalesced: r.Coalesced,
		handshakeNs: r.HandshakeNs, bins: r.Bins,
	}
	for d := range f.dir {
		h := &r.Dir[d]
		f.dir[d] = half{
			packets: h.Packets, wireBytes: h.WireBytes, l3Bytes: h.L3Bytes, payloadBytes: h.PayloadBytes,
			wireSq: h.WireSq, delaySqHi: h.DelaySqHi, delaySqLo: h.DelaySqLo, firstNs: h.FirstNs, lastNs: h.LastNs,
			delayMin: h.DelayMin, delayMax: h.DelayMax, wireMin: h.WireMin, wireMax: h.WireMax,
			retransmits: h.Retransmits, outOfOrder: h.OutOfOrder, zeroWindows: h.ZeroWindows, tcpFlags: h.TCPFlags,
		}
	}
	rec.SizeHist, rec.DelayHist = [telemetry.SizeBins]uint32{}, [telemetry.DelayBins]uint32{}
	if r.Tier != 0 {
		f.tier = tierLarge
		rec.SizeHist, rec.DelayHist = c.Size, c.Delay
	}
	f.addPending(&rec.SizeHist, &rec.DelayHist)
	f.record(reason, rec)
}
