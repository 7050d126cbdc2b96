package simt

import (
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// What lib/host.h asks for.
var (
	hostTriggers    = []uint64{1, 4, 16, 17}
	hostHeadPackets = uint64(16)
)

// heads keeps what a flow table says of flows that reach a trigger, as text.
type heads struct {
	table *flow.Table
	hash  uint64
	list  []string
}

func (h *heads) Started(flow.Ref, *flow.Packet)      {}
func (h *heads) Progress(flow.Ref, uint64, uint64)   {}
func (h *heads) Binned(uint64, []uint8, []uint8)     {}
func (h *heads) Ended(flow.Ref, telemetry.EndReason) {}
func (h *heads) Mature(r flow.Ref) {
	h.list = append(h.list, said(h.hash, h.table.Packets(r), h.table.Head(r)))
}
func said(hash, packets uint64, h *model.Head) string {
	if h == nil {
		return fmt.Sprintf("%016x %d nothing", hash, packets)
	}
	return fmt.Sprintf("%016x %d %x", hash, packets, unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Sizeof(*h)))
}

// TestHeadsAreThoseOfTheReference: at every trigger, byte for byte, also of frames that are several
// on the wire, of payload behind the part that the receive warp looks at, and in small rings, whose
// slots are soon used again.
func TestHeadsAreThoseOfTheReference(t *testing.T) {
	testcap.Program(t, compiler)
	r := &Replay{Rings: 2, Shards: 3, LogRQ: 4, Models: true}
	r.prepare()
	want := &heads{}
	want.table = flow.NewTable(flow.Config{Head: true, HeadPackets: hostHeadPackets, Triggers: hostTriggers}, want)
	var clock flow.Clock
	n := 0
	require.NoError(t, traffic.Bench(11, 5000, 400).Each(func(f traffic.Frame) error {
		n++
		frame := source.Frame{Data: f.Data, WireLen: uint32(len(f.Data)), TimestampNs: f.TimestampNs, LinkType: packet.LinkEthernet}
		if n%7 == 0 {
			frame.SegmentSize = uint16(20 + n%500)
		}
		r.Add(&frame)
		k := flow.Packet{Frame: f.Data, SegmentSize: frame.SegmentSize}
		if r.parser.Parse(frame.LinkType, frame.Data, frame.WireLen, &k.Info) != packet.OK {
			return nil
		}
		k.TimestampNs = f.TimestampNs
		if tick, due := clock.Pass(f.TimestampNs); due {
			want.table.Tick(tick)
		}
		k.FromB = k.Key.Set(&k.Info, flow.KeyOptions{})
		k.Hash = k.Key.Hash(r.header.Seed)
		want.hash = k.Hash
		parts := k.Segments()
		for i := range parts {
			one := k
			if parts > 1 {
				k.Segment(&one, i, parts)
			}
			want.table.Add(&one)
		}
		return nil
	}))
	res, err := r.Run(deadline(t), t.TempDir(), Plain)
	require.NoError(t, err)
	var got []string
	for _, line := range res.Records {
		b, err := hex.DecodeString(line)
		require.NoError(t, err)
		if h := (*abi.Record)(unsafe.Pointer(&b[0])); h.Kind == abi.RecordMature {
			f := (*abi.Flow)(unsafe.Pointer(&b[64]))
			b = b[64+unsafe.Sizeof(*f):]
			if h.Parts&abi.PartHist != 0 {
				b = b[unsafe.Sizeof(abi.Hist{}):]
			}
			var head *model.Head
			if h.Parts&abi.PartHead != 0 {
				head = &(*abi.Head)(unsafe.Pointer(&b[0])).Head
			}
			got = append(got, said(f.Hash, f.Dir[0].Packets+f.Dir[1].Packets, head))
		}
	}
	slices.Sort(got)
	slices.Sort(want.list)
	require.Greater(t, len(got), 500)
	require.Equal(t, want.list, got)
}
