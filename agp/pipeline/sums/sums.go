// Package sums adds records up: the rows of agp_traffic and the quantiles of first reply
// and handshake times.
//
// It owns its counters, starts no goroutine and reads no clock; a Sum belongs to one goroutine
// or to the lock of its user. Lengths are bytes, times ns.
package sums

import (
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Sum of all records of a pipeline.
type Sum struct {
	Records uint64
	Packets uint64 // in records
	Evicted uint64 // records that a full table has cut
	// FirstReply and Handshake are of TCP and all other flows that have such times.
	FirstReply, Handshake *sketch.Quantiles

	rows map[key]*telemetry.TrafficRow
	list []*telemetry.TrafficRow // in order of appearance
}

type key struct {
	app, class string
	protocol   uint8
}

// New returns an empty sum.
func New() *Sum {
	return &Sum{FirstReply: sketch.NewQuantiles(), Handshake: sketch.NewQuantiles(), rows: make(map[key]*telemetry.TrafficRow)}
}

// Add counts a record.
func (s *Sum) Add(r *telemetry.Record) {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	s.Records++
	s.Packets += fwd.Packets + rev.Packets
	if r.EndReason == telemetry.EndEvicted {
		s.Evicted++
	}
	t := s.row(r)
	t.Flows++
	t.Packets += fwd.Packets + rev.Packets
	t.Bytes += fwd.WireBytes + rev.WireBytes
	t.Retransmits += uint64(fwd.Retransmits) + uint64(rev.Retransmits)
	t.OutOfOrder += uint64(fwd.OutOfOrder) + uint64(rev.OutOfOrder)
	t.ZeroWindows += uint64(fwd.ZeroWindows) + uint64(rev.ZeroWindows)
	if r.FirstReplyNs >= 0 {
		t.FirstReplySumNs += uint64(r.FirstReplyNs)
		t.FirstReplyCount++
		s.FirstReply.AddUint(uint64(r.FirstReplyNs))
	}
	if r.TCPHandshakeNs >= 0 {
		t.HandshakeSumNs += uint64(r.TCPHandshakeNs)
		t.HandshakeCount++
		t.ConnectionsOpen++
		s.Handshake.AddUint(uint64(r.TCPHandshakeNs))
	} else if r.Protocol == packet.ProtoTCP && fwd.TCPFlags&packet.TCPSyn != 0 &&
		(rev.Packets == 0 || rev.TCPFlags&(packet.TCPRst|packet.TCPSyn) == packet.TCPRst) {
		t.ConnectionsFailed++ // refused or never answered
	}
}

// AppendRows appends all rows to list, in order of appearance.
func (s *Sum) AppendRows(list []telemetry.TrafficRow) []telemetry.TrafficRow {
	for _, r := range s.list {
		list = append(list, *r)
	}
	return list
}

// row finds the row of a record. Labels come from the loaded models, so the number of rows is
// bounded by their classes and the IP protocols seen.
func (s *Sum) row(r *telemetry.Record) *telemetry.TrafficRow {
	k := key{protocol: r.Protocol}
	for i := range r.Outputs {
		switch o := &r.Outputs[i]; o.Field {
		case "app":
			k.app = o.Label
		case "class":
			k.class = o.Label
		}
	}
	t := s.rows[k]
	if t == nil {
		t = &telemetry.TrafficRow{App: k.app, Class: k.class, Protocol: k.protocol}
		s.rows[k] = t
		s.list = append(s.list, t)
	}
	return t
}
