package simt

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

var links = []packet.LinkType{packet.LinkEthernet, packet.LinkRaw, packet.LinkLinuxSLL, packet.LinkLinuxSLL2, packet.LinkNull, packet.LinkLoop, packet.LinkPPP, packet.LinkPPPoE, packet.LinkATMRFC1483, packet.LinkFDDI, packet.LinkIEEE80211, packet.LinkRadiotap, packet.LinkPPI, packet.LinkPrism, packet.LinkAVS, packet.LinkCiscoHDLC, packet.LinkPFLog, 7777}

// feed adds frames of a profile: every third is damaged or cut, has another link type, was joined
// from several, or comes at a time before others.
func feed(t *testing.T, r *Replay, seed uint64, packets int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := traffic.Bench(seed, packets, packets/20)
	n := 0
	require.NoError(t, c.Each(func(f traffic.Frame) error {
		if n++; n > packets {
			return nil
		}
		out := source.Frame{Data: f.Data, WireLen: uint32(len(f.Data)), TimestampNs: f.TimestampNs, LinkType: packet.LinkEthernet, Side: uint8(rnd.IntN(4))}
		switch rnd.IntN(18) {
		case 0:
			out.Data = slices.Clone(f.Data)
			for range 1 + rnd.IntN(8) {
				out.Data[rnd.IntN(min(len(out.Data), 80))] = byte(rnd.Uint32())
			}
		case 1:
			out.Data = out.Data[:rnd.IntN(len(out.Data)+1)]
		case 2:
			out.LinkType = links[rnd.IntN(len(links))]
		case 3:
			out.SegmentSize = uint16(rnd.IntN(1500))
		case 4:
			out.TimestampNs += rnd.Int64N(4e9) - 2e9
		case 5: // a fragment
			out.Data = slices.Clone(f.Data)
			out.Data[20], out.Data[21] = byte(rnd.IntN(2))<<5, byte(rnd.IntN(2))*20
			out.Data[18], out.Data[19] = 0, byte(rnd.IntN(8))
		}
		r.Add(&out)
		return nil
	}))
}

// TestKernelIsCleanUnderSanitizers: addresses, undefined behaviour and data races, for whole
// batches and single packets, one ring and several, small tables and record rings, with the same
// records as without a sanitizer and in every order of lanes. Nothing is lost where the table is
// full; which flow has to go depends on the batches there, unless they are of one packet.
func TestKernelIsCleanUnderSanitizers(t *testing.T) {
	testcap.Program(t, compiler)
	everything := packet.Decap{VXLAN: true, GRE: true, Geneve: true, GTPU: true}
	for _, c := range []struct {
		name    string
		replay  Replay
		packets int
		evicts  bool
	}{
		{"one ring", Replay{}, 6000, false},
		{"three rings, a small table", Replay{Rings: 3, Buckets: 4, LogRecords: 12, Decap: everything, Flow: flow.Config{Key: flow.KeyOptions{VLAN: true, Tunnel: true}}}, 4000, true},
		{"two rings of two shards in a block, batches of 5", Replay{Rings: 2, PerBlock: 2, Shards: 2, Batch: 5, LogRQ: 4, Flow: flow.Config{IdleNs: 2e9, ActiveNs: 5e9}}, 3000, false},
		{"sketches of three shards, blocked", Replay{Shards: 3, Sketches: 15 | abi.SketchBlocked}, 4000, false},
		{"sketches of a ring, published, a small table", Replay{Buckets: 4, Sketches: 15 | abi.SketchPublished}, 2000, true},
		{"models and detectors, three rings", Replay{Rings: 3, Shards: 2, LogRQ: 4, Models: true, Flow: flow.Config{IdleNs: 2e9, ActiveNs: 5e9}}, 3000, false},
		{"models and detectors of a ring, small record rings, sketches", Replay{LogRecords: 12, Batch: 5, Models: true, Sketches: 15}, 2000, false},
		{"two receive warps in turns", Replay{Receivers: 2, Shards: 3, LogRQ: 7}, 4000, false},
		{"three receive warps in turns, two rings, batches of 5, models and sketches", Replay{Rings: 2, Receivers: 3, Batch: 5, Models: true, Sketches: 15, Flow: flow.Config{IdleNs: 2e9, ActiveNs: 5e9}}, 2000, false},
		{"packets counted and forgotten, two rings of three shards in a block, sketches", Replay{Stateless: true, Rings: 2, Shards: 3, PerBlock: 2, Batch: 7, LogRQ: 4, Sketches: 15, Decap: everything}, 3000, false},
		{"single packets, a small table", Replay{Batch: 1, Pitch: 128, Buckets: 4}, 1500, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &c.replay
			feed(t, r, 7, c.packets)
			ctx := deadline(t)
			r.Order = 1
			want, err := r.Run(ctx, t.TempDir(), Plain)
			require.NoError(t, err)
			require.NotEmpty(t, want.Records)
			for order, s := range []Sanitizer{Plain, Plain, Plain, Address, Thread} {
				r.Order = uint64(10 + order)
				got, err := r.Run(ctx, t.TempDir(), s)
				require.NoError(t, err)
				for i, n := range got.Rings {
					require.Equal(t, uint32(3), n.Status, "ring %d: %+v", i, n) // all flows have ended
					require.Zero(t, n.Lost)
					require.Zero(t, n.Active)
					require.Equal(t, n.Frames, n.Recorded+n.Dropped, "ring %d: %+v", i, n)
					if c.evicts {
						require.NotZero(t, n.Evicted)
						n.Records, n.Evicted = want.Rings[i].Records, want.Rings[i].Evicted
					}
					require.Equal(t, want.Rings[i], n, "%s, order %d, ring %d", s, r.Order, i)
				}
				if !c.evicts {
					require.Equal(t, strings.Join(want.Records, "\n"), strings.Join(got.Records, "\n"), "%s, order %d", s, r.Order)
				}
			}
		})
	}
}

// TestACompletionBeforeItsPayloadIsFound: ThreadSanitizer sees it, whatever the processor makes of it.
func TestACompletionBeforeItsPayloadIsFound(t *testing.T) {
	testcap.Program(t, compiler)
	r := &Replay{Early: true}
	feed(t, r, 7, 500)
	_, err := r.Run(deadline(t), t.TempDir(), Thread)
	require.ErrorContains(t, err, "data race")
}

// TestADeviceWithoutItsFencesIsFound: the order that the poller keeps is what the runs without a
// race go by.
func TestADeviceWithoutItsFencesIsFound(t *testing.T) {
	testcap.Program(t, compiler)
	for _, fence := range []string{"acquire", "release"} {
		r := &Replay{Lacks: fence}
		feed(t, r, 7, 500)
		_, err := r.Run(deadline(t), t.TempDir(), Thread)
		require.ErrorContains(t, err, "data race", fence)
	}
}

// TestThePortOnTheDeviceIsCleanUnderSanitizers: the NIC model's kernel beside the one that reads
// its rings, one warp and several for a ring, with the same records in every build and order.
func TestThePortOnTheDeviceIsCleanUnderSanitizers(t *testing.T) {
	testcap.Program(t, compiler)
	const packets = 3200
	ctx := deadline(t)
	run := func(s Sanitizer, warps, order int) *Result {
		out, err := Run(ctx, "tests/simt/lib/port.cc", s, "2", strconv.Itoa(warps), strconv.Itoa(packets), strconv.Itoa(order))
		require.NoError(t, err)
		res, err := parse(out)
		require.NoError(t, err)
		require.Len(t, res.Rings, 2)
		for _, n := range res.Rings {
			require.Equal(t, uint64(packets), n.Frames)
			require.Equal(t, uint64(packets), n.Recorded)
		}
		return res
	}
	want := run(Plain, 1, 1)
	for order, s := range []Sanitizer{Plain, Address, Thread} {
		for warps := 1; warps <= 3; warps++ {
			require.Equal(t, want, run(s, warps, 2+order), "%s, %d warps", s, warps)
		}
	}
}
