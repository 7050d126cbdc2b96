package flow

import (
	"encoding/binary"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// recorder keeps every record that a table emits.
type recorder struct {
	t       *Table
	records []telemetry.Record
	started int
	mature  []uint64
	told    [2]uint64
	binned  [2][telemetry.SizeBins]uint32 // size and delay bins told by Binned
	head    *model.Head                   // at the last Mature
}

func newRecorder(cfg Config) *recorder {
	r := &recorder{}
	r.t = NewTable(cfg, r)
	return r
}

func (r *recorder) Started(Ref, *Packet) { r.started++ }
func (r *recorder) Progress(_ Ref, packets, bytes uint64) {
	r.told[0] += packets
	r.told[1] += bytes
}
func (r *recorder) Binned(_ uint64, size, delay []uint8) {
	for _, b := range size {
		r.binned[0][b]++
	}
	for _, b := range delay {
		r.binned[1][b]++
	}
}
func (r *recorder) Mature(f Ref) {
	r.mature = append(r.mature, r.t.Packets(f))
	if h := r.t.Head(f); h != nil {
		c := *h
		r.head = &c
	}
}
func (r *recorder) Ended(f Ref, reason telemetry.EndReason) {
	var rec telemetry.Record
	r.t.Record(f, reason, &rec)
	r.records = append(r.records, rec)
}

const (
	us = int64(1e3)
	ms = int64(1e6)
	s  = int64(1e9)
	t0 = int64(1_700_000_000) * s
)

// feed builds packets between client (10.0.0.1:40000) and server (10.0.0.2:80).
type feed struct {
	r        *recorder
	protocol uint8
	seq      uint64
	now      int64
}

func newFeed(cfg Config, protocol uint8) *feed {
	return &feed{r: newRecorder(cfg), protocol: protocol, now: t0}
}

func addr(v uint32) (a [16]byte) {
	binary.BigEndian.PutUint32(a[:], v)
	return a
}

// packet returns a packet after gap ns; rev is from server to client.
func (f *feed) packet(gap int64, rev bool, payload uint32) *Packet {
	f.now += gap
	f.seq++
	p := &Packet{Seq: f.seq}
	p.IPVersion, p.Protocol = 4, f.protocol
	p.Src, p.Dst, p.SrcPort, p.DstPort = addr(0x0a000001), addr(0x0a000002), 40000, 80
	if rev {
		p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
	}
	p.PayloadLen, p.L3Len, p.WireLen = payload, payload+40, payload+54
	p.TimestampNs = f.now
	p.Window = 1000
	return p
}

func (f *feed) add(p *Packet) *Packet {
	p.FromB = p.Key.Set(&p.Info, f.r.t.cfg.Key)
	p.Hash = p.Key.Hash(1)
	f.r.t.Add(p)
	return p
}

// tcp adds a TCP packet.
func (f *feed) tcp(gap int64, rev bool, flags uint8, seq, ack, payload uint32) *Packet {
	p := f.packet(gap, rev, payload)
	p.TCPFlags, p.Ack = flags, ack
	p.Info.Seq = seq
	return f.add(p)
}

const (
	syn    = packet.TCPSyn
	ack    = packet.TCPAck
	synack = packet.TCPSyn | packet.TCPAck
	finack = packet.TCPFin | packet.TCPAck
	rst    = packet.TCPRst
	psh    = packet.TCPPsh | packet.TCPAck
)

// handshake opens a connection with ISNs 100 and 500.
func (f *feed) handshake() {
	f.tcp(0, false, syn, 100, 0, 0)
	f.tcp(ms, true, synack, 500, 101, 0)
	f.tcp(ms, false, ack, 101, 501, 0)
}

// closing shuts a connection down that has sent 0 bytes after the handshake.
func (f *feed) closing() {
	f.tcp(ms, false, finack, 101, 501, 0)
	f.tcp(ms, true, finack, 501, 102, 0)
	f.tcp(ms, false, ack, 102, 502, 0)
}

func (f *feed) flush() []telemetry.Record {
	f.r.t.Flush(f.now)
	return f.r.records
}

func total(r *telemetry.Record) uint64 { return r.Dir[0].Packets + r.Dir[1].Packets }

func sum(h []uint32) (n uint64) {
	for _, v := range h {
		n += uint64(v)
	}
	return n
}
