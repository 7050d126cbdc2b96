package flow

import (
	"math"
	"slices"
	"testing"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// FuzzTable feeds arbitrary packets of few flows, six bytes each, and checks what
// must hold for any input: the accounting identity, histogram mass, finite and
// ordered readings; and, while time only goes forward, that looking at the table
// between packets changes no record.
func FuzzTable(f *testing.F) {
	f.Add([]byte("\x02\x00\x10\x00\x00\x00\x12\x01\x10\x01\x01\x00\x10\x00\x10\x01\x01\x00\x11\x00\x10\x01\x01\x00\x11\x01\x20\x01\x02\x00"), uint8(0))
	f.Add([]byte("\x02\x00\xff\x00\x00\x00\x02\x00\xff\x00\x00\x00\x04\x01\xff\x00\x00\x00"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, mode uint8) {
		cfg := Config{IdleNs: 5 * s, ActiveNs: 12 * s, LingerNs: 2 * s, Head: true, HeadPackets: 4, Triggers: []uint64{2, 4}}
		forward := mode&1 == 0
		if mode&2 != 0 {
			cfg.MaxFlows = 3
		}
		a, b := newRecorder(cfg), newRecorder(cfg)
		now, ticked, n := t0, t0/TickNs, uint64(0)
		b.t.Tick(ticked * TickNs)
		for ; len(data) >= 6; data = data[6:] {
			n++
			p := fuzzPacket(data, forward, &now)
			p.Seq = n
			a.t.Add(&p)
			if step := now / TickNs; step > ticked {
				ticked = step
				b.t.Tick(step * TickNs)
			}
			b.t.Add(&p)
		}
		a.t.Flush(now)
		b.t.Flush(now)
		for _, r := range []*recorder{a, b} {
			var got uint64
			for i := range r.records {
				checkRecord(t, &r.records[i])
				got += total(&r.records[i])
			}
			if got != n || r.t.Active() != 0 || r.told[0] != n {
				t.Fatalf("%d packets in, %d in records, %d told, %d flows left", n, got, r.told[0], r.t.Active())
			}
		}
		if forward && cfg.MaxFlows == 0 {
			compareRecords(t, a.records, b.records)
		}
	})
}

func fuzzPacket(data []byte, forward bool, now *int64) Packet {
	gap := int64(data[2]) * int64(data[2]) * 200 * us // up to 13 s
	if !forward && data[3]&0x80 != 0 {
		gap = -gap
	}
	*now += gap
	var p Packet
	p.TimestampNs = *now
	p.IPVersion, p.Protocol = 4, packet.ProtoTCP
	if data[1]&2 != 0 {
		p.Protocol = packet.ProtoUDP
	}
	p.Src, p.Dst = addr(1), addr(2)
	p.SrcPort, p.DstPort = uint16(data[1]>>4), 80
	if data[1]&1 != 0 {
		p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
	}
	if data[1]&4 != 0 {
		p.Dst, p.DstPort = p.Src, p.SrcPort
	}
	p.TCPFlags = data[0]
	p.PayloadLen = uint32(data[3] & 0x7f)
	p.L3Len, p.WireLen = p.PayloadLen+40, p.PayloadLen+54
	p.Info.Seq, p.Ack, p.Window = uint32(data[4]), uint32(data[5]), uint16(data[5]&1)
	p.Frame, p.PayloadCap = data, min(p.PayloadLen, uint32(len(data)))
	p.FromB = p.Key.Set(&p.Info, KeyOptions{})
	p.Hash = p.Key.Hash(1)
	return p
}

func checkRecord(t *testing.T, r *telemetry.Record) {
	n := total(r)
	if n == 0 || sum(r.SizeHist[:]) != n || sum(r.DelayHist[:]) != n-1 {
		t.Fatalf("histogram mass %d and %d of %d packets", sum(r.SizeHist[:]), sum(r.DelayHist[:]), n)
	}
	if r.EndNs < r.StartNs || r.FirstReplyNs < -1 || r.TCPHandshakeNs < -1 {
		t.Fatalf("time goes back: %+v", r)
	}
	for _, h := range r.Dir {
		for _, v := range []float64{h.WireLenMean, h.WireLenStd, h.DelayMeanNs, h.DelayStdNs} {
			if math.IsNaN(v) || v < 0 || math.IsInf(v, 0) {
				t.Fatalf("reading %v: %+v", v, h)
			}
		}
		if h.DelayMinNs < 0 || h.DelayMinNs > h.DelayMaxNs || float64(h.DelayMinNs) > h.DelayMeanNs+1 || float64(h.DelayMaxNs) < h.DelayMeanNs-1 {
			t.Fatalf("delays out of order: %+v", h)
		}
	}
}

func compareRecords(t *testing.T, a, b []telemetry.Record) {
	order := func(x, y telemetry.Record) int {
		switch {
		case x.StartNs != y.StartNs:
			return int(max(-1, min(1, x.StartNs-y.StartNs)))
		case x.Protocol != y.Protocol:
			return int(x.Protocol) - int(y.Protocol)
		case x.SrcPort != y.SrcPort:
			return int(x.SrcPort) - int(y.SrcPort)
		case x.DstPort != y.DstPort:
			return int(x.DstPort) - int(y.DstPort)
		}
		return int(max(-1, min(1, x.EndNs-y.EndNs)))
	}
	slices.SortStableFunc(a, order)
	slices.SortStableFunc(b, order)
	if len(a) != len(b) {
		t.Fatalf("%d records without ticks, %d with", len(a), len(b))
	}
	for i := range a {
		a[i].Outputs, b[i].Outputs = nil, nil
		x, y := string(telemetry.AppendJSON(nil, &a[i])), string(telemetry.AppendJSON(nil, &b[i]))
		if x != y {
			t.Fatalf("without ticks: %s\nwith ticks:    %s", x, y)
		}
	}
}
