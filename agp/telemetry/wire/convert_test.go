package wire

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// fill sets every field below v to a random value that its wire type can carry.
func fill(rng *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(rng, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(rng, v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(rng, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]uint64{"a": rng.Uint64(), "b": 1}))
	case reflect.Pointer:
		if rng.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(rng, v.Elem())
		}
	case reflect.String:
		v.SetString([]string{"x", "tcp", "émile"}[rng.IntN(3)])
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(float32(rng.Float64())))
	case reflect.Int64:
		v.SetInt(rng.Int64() - 1)
	default:
		v.SetUint(rng.Uint64() >> (64 - v.Type().Bits()))
	}
}

func randomRecord(rng *rand.Rand) *telemetry.Record {
	var r telemetry.Record
	fill(rng, reflect.ValueOf(&r).Elem())
	r.IPVersion = []uint8{4, 6}[rng.IntN(2)]
	if r.IPVersion == 4 {
		r.Src, r.Dst = [16]byte{1, 2, 3, 4}, [16]byte{5, 6, 7, 8}
	}
	r.FirstReplyNs = []int64{-1, 0, 77}[rng.IntN(3)]
	r.TCPHandshakeNs = []int64{-1, 0, 77}[rng.IntN(3)]
	r.Confirmed = false // stays in the engine
	r.Outputs = []telemetry.Output{
		{Field: "app", Label: "dns", Score: 0.25, Model: "app@1"}, {Field: "class", Label: "c2", Score: 1, Model: "class@1"},
	}[:rng.IntN(3)]
	if len(r.Outputs) == 0 {
		r.Outputs = nil
	}
	return &r
}

func TestRecordRoundTripKeepsEveryField(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		want := randomRecord(rng)
		var got telemetry.Record
		require.NoError(t, RecordFromProto(RecordToProto(want), &got))
		require.Equal(t, *want, got)
	}
}

func TestSnapshotAlertSummaryRoundTripKeepsEveryField(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var want, got telemetry.Snapshot
		fill(rng, reflect.ValueOf(&want).Elem())
		require.NoError(t, SnapshotFromProto(SnapshotToProto(&want), &got))
		require.Equal(t, want, got)

		var wa, ga telemetry.Alert
		fill(rng, reflect.ValueOf(&wa).Elem())
		require.NoError(t, AlertFromProto(AlertToProto(&wa), &ga))
		require.Equal(t, wa, ga)

		var ws telemetry.Summary
		fill(rng, reflect.ValueOf(&ws).Elem())
		require.Equal(t, ws, SummaryFromProto(SummaryToProto(&ws)))
	}
}

type nameList []string

func (n *nameList) Uint(name string, _ uint64)     { *n = append(*n, name) }
func (n *nameList) Int(name string, _ int64)       { *n = append(*n, name) }
func (n *nameList) Float(name string, _ float64)   { *n = append(*n, name) }
func (n *nameList) Bool(name string, _ bool)       { *n = append(*n, name) }
func (n *nameList) String(name, _ string)          { *n = append(*n, name) }
func (n *nameList) Addr(name string, _ netip.Addr) { *n = append(*n, name) }
func (n *nameList) Hist(name string, _ []uint32)   { *n = append(*n, name) }

func protoNames(fields interface {
	Len() int
}, name func(int) string) []string {
	var out []string
	for i := range fields.Len() {
		if n := name(i); n != "outputs" { // models that fill other fields: their names are data
			out = append(out, n)
		}
	}
	return out
}

func TestProtoFieldNamesAreTheRecordNames(t *testing.T) {
	r := randomRecord(rand.New(rand.NewPCG(5, 6)))
	r.Protocol, r.Fragment, r.FirstReplyNs, r.TCPHandshakeNs, r.VLANID, r.TunnelID = 6, false, 1, 1, 1, 1
	r.Outputs = []telemetry.Output{{Field: "app"}, {Field: "class"}}
	for d := range r.Dir {
		r.Dir[d].Packets = 2
	}
	var visited nameList
	telemetry.Visit(r, &visited)
	flow := (*agppb.FlowRecord)(nil).ProtoReflect().Descriptor().Fields()
	require.ElementsMatch(t, visited, protoNames(flow, func(i int) string { return string(flow.Get(i).Name()) }))

	a := telemetry.Alert{Kind: "k", Class: "c", Src: "s", Dst: "d", SrcPort: 1, DstPort: 1, Protocol: 6, WindowNs: 1, Interface: "i", Confirmed: true}
	var seen nameList
	telemetry.VisitAlert(&a, &seen)
	a.Model = "m"
	telemetry.VisitAlert(&a, &seen)
	unique := map[string]bool{}
	for _, n := range seen {
		unique[n] = true
	}
	alert := (*agppb.Alert)(nil).ProtoReflect().Descriptor().Fields()
	names := protoNames(alert, func(i int) string { return string(alert.Get(i).Name()) })
	require.Len(t, unique, len(names))
	for _, n := range names {
		require.Contains(t, unique, n)
	}
}

func TestRecordThatCannotBeIsRefused(t *testing.T) {
	good := func() *agppb.FlowRecord {
		return &agppb.FlowRecord{IpVersion: 4, Src: make([]byte, 4), Dst: make([]byte, 4)}
	}
	var r telemetry.Record
	require.NoError(t, RecordFromProto(good(), &r))
	for name, spoil := range map[string]func(*agppb.FlowRecord){
		"ip version":      func(p *agppb.FlowRecord) { p.IpVersion = 5 },
		"address length":  func(p *agppb.FlowRecord) { p.Dst = make([]byte, 16) },
		"port":            func(p *agppb.FlowRecord) { p.DstPort = 65536 },
		"protocol":        func(p *agppb.FlowRecord) { p.Protocol = 256 },
		"histogram":       func(p *agppb.FlowRecord) { p.SizeHist = make([]uint32, telemetry.SizeBins+1) },
		"delay histogram": func(p *agppb.FlowRecord) { p.DelayHist = make([]uint32, telemetry.DelayBins+1) },
		"end reason":      func(p *agppb.FlowRecord) { p.EndReason = -1 },
	} {
		p := good()
		spoil(p)
		require.ErrorIs(t, RecordFromProto(p, &r), ErrRange, name)
	}
	require.ErrorIs(t, AlertFromProto(&agppb.Alert{SrcPort: 1 << 20}, &telemetry.Alert{}), ErrRange)
	require.ErrorIs(t, SnapshotFromProto(&agppb.Snapshot{Queues: []*agppb.QueueRow{{Queue: 1 << 20}}}, &telemetry.Snapshot{}), ErrRange)
}
