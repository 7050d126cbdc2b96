package oracle

import (
	"context"
	"io"
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// pair identifies a flow as nDPI and tshark do, more coarsely than our key:
// without ICMP types and identifiers, VLAN and tunnel.
type pair struct {
	protocol   uint8
	low, high  string
	lowP, higP uint16
}

// makePair also tells whether a is the high end.
func makePair(protocol uint8, a, b netip.AddrPort) (p pair, high bool) {
	p = pair{protocol: protocol, low: AddressText(a.Addr()), high: AddressText(b.Addr())}
	if protocol == packet.ProtoTCP || protocol == packet.ProtoUDP {
		p.lowP, p.higP = a.Port(), b.Port()
	}
	if p.low > p.high || p.low == p.high && p.lowP > p.higP {
		p.low, p.high, p.lowP, p.higP = p.high, p.low, p.higP, p.lowP
		return p, true
	}
	return p, false
}

func address(version uint8, raw [16]byte, port uint16) netip.AddrPort {
	if version == 4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[:4])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(raw), port)
}

func index(high bool) int {
	if high {
		return 1
	}
	return 0
}

// seen is one packet of a pair; from is 0 for the low end, 1 for the high end.
type seen struct {
	ns       int64
	wire     uint32
	from     int
	tcpFlags uint8
}

// packets reads a capture and lists the packets of every pair.
func packets(t *testing.T, capture string, decap packet.Decap) map[pair][]seen {
	t.Helper()
	src, err := pcap.Open([]string{capture}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	parser := packet.Parser{Decap: decap}
	fragments := packet.NewFragmentTable(1024)
	list := map[pair][]seen{}
	batch := source.Batch{Frames: make([]source.Frame, 64)}
	for {
		n, err := src.Next(&batch)
		for _, f := range batch.Frames[:n] {
			var in packet.Info
			if parser.Parse(f.LinkType, f.Data, f.WireLen, &in) != packet.OK {
				continue
			}
			if in.Flags&packet.FlagFragment != 0 {
				fragments.Resolve(&in)
			}
			p, high := makePair(in.Protocol, address(in.IPVersion, in.Src, in.SrcPort), address(in.IPVersion, in.Dst, in.DstPort))
			list[p] = append(list[p], seen{ns: f.TimestampNs, wire: in.WireLen, from: index(high), tcpFlags: in.TCPFlags})
		}
		if err != nil {
			if err != io.EOF { //nolint:errorlint // the reader says what it could not read; the rest counts
				t.Logf("%s: %v", capture, err)
			}
			return list
		}
	}
}

// sink keeps the records.
type sink struct{ records []telemetry.Record }

func (s *sink) Record(r *telemetry.Record) { s.records = append(s.records, *r) }
func (s *sink) Alert(*telemetry.Alert)     {}

// records runs a capture through the pipeline; no time-out cuts a record.
func records(t *testing.T, capture string, decap packet.Decap) []telemetry.Record {
	t.Helper()
	src, err := pcap.Open([]string{capture}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	const never = math.MaxInt64 / 4
	var out sink
	p, err := cpu.New(cpu.Config{
		Source: src, Sink: &out, Decap: decap, Queues: 2,
		Flow: flow.Config{IdleNs: never, ActiveNs: never, LingerNs: never},
	})
	require.NoError(t, err)
	if err := p.Run(context.Background()); err != nil {
		t.Logf("%s: %v", capture, err)
	}
	return out.records
}

// recordsByPair groups records; high tells for each whether its initiator is the high end.
type pairRecord struct {
	telemetry.Record
	high bool
}

func recordsByPair(list []telemetry.Record) map[pair][]pairRecord {
	m := map[pair][]pairRecord{}
	for _, r := range list {
		p, high := makePair(r.Protocol, address(r.IPVersion, r.Src, r.SrcPort), address(r.IPVersion, r.Dst, r.DstPort))
		m[p] = append(m[p], pairRecord{r, high})
	}
	return m
}
