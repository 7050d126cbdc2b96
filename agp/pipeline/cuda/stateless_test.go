package cuda_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// stateless has packets counted and forgotten.
func stateless(c *cuda.Config) { c.Mode = cuda.ModeStateless }

// segmented joins the payload of long frames, as a mirror sees them.
type segmented struct{ source.Source }

const segment = 300

func (s segmented) Next(b *source.Batch) (int, error) {
	n, err := s.Source.Next(b)
	for i := range b.Frames {
		b.Frames[i].SegmentSize = segment
	}
	return n, err
}

// counted is what the stateless mode must say of an input, made of agp/packet and agp/sketch.
type counted struct {
	cuda.Counts
	seen, ok uint64
	drops    map[string]uint64
	all      *summary.Summary
}

func countPackets(t *testing.T, src source.Source) counted {
	t.Helper()
	all, err := summary.NewSummary([16]byte{})
	require.NoError(t, err)
	c := counted{drops: map[string]uint64{}, all: all}
	var parser packet.Parser
	fragments := packet.NewFragmentTable(packet.FragmentDatagrams)
	var b source.Batch
	for {
		_, err := src.Next(&b)
		for i := range b.Frames {
			f := &b.Frames[i]
			var p flow.Packet
			if v := parser.Parse(f.LinkType, f.Data, f.WireLen, &p.Info); v != packet.OK {
				c.seen++
				c.drops[v.String()]++
				continue
			}
			p.TimestampNs, p.SegmentSize = f.TimestampNs, f.SegmentSize
			fragments.Resolve(&p.Info)
			p.Key.Set(&p.Info, flow.KeyOptions{})
			n, version := p.Segments(), 0
			if p.IPVersion == 6 {
				version = 1
			}
			c.seen += uint64(n)
			c.ok += uint64(n)
			c.Packets[version][p.Protocol] += uint64(n)
			bytes := uint64(0)
			for i := range n {
				one := p
				if n > 1 {
					p.Segment(&one, i, n)
				}
				bytes += uint64(one.WireLen)
				all.Size.AddUint(uint64(one.L3Len))
			}
			c.Bytes[version][p.Protocol] += bytes
			ends(all, &p, uint32(n), bytes)
		}
		if errors.Is(err, io.EOF) || err != nil && len(b.Frames) == 0 {
			break
		}
	}
	for reason, n := range src.Stats().Dropped {
		c.drops[reason] += n
		c.seen += n
	}
	return c
}

// withoutHistory is what is left of the sketches when several have been merged: estimates of distinct
// things by their registers alone.
func (c *counted) withoutHistory(t *testing.T) *summary.Summary {
	t.Helper()
	s, err := summary.NewSummary([16]byte{})
	require.NoError(t, err)
	for range 2 { // the first is copied
		require.NoError(t, s.Merge(c.all))
	}
	all := *c.all
	all.Distinct = s.Distinct
	return &all
}

// ends adds a packet to the sketches of endpoints.
func ends(s *summary.Summary, p *flow.Packet, packets uint32, bytes uint64) {
	hash := sketch.NewHasher([16]byte{})
	for i, a := range [2]*[16]byte{&p.Src, &p.Dst} {
		b := a[:]
		if p.IPVersion == 4 {
			b = a[:4]
		}
		s.Distinct[i].Add(b)
		s.Entropy[i].Add(hash.Addr(a), packets)
		key := sketch.Key{16: p.IPVersion}
		copy(key[:], a[:])
		s.Top[i].Add(&key, bytes)
	}
	s.Distinct[summary.DistinctDstPorts].AddUint64(uint64(p.Protocol)<<16 | uint64(p.DstPort))
	s.Distinct[summary.DistinctFlows].AddUint64(p.Key.Hash(flow.Seed([16]byte{})))
	key := sketch.Key{2: p.Protocol}
	binary.BigEndian.PutUint16(key[:], p.DstPort)
	s.Top[summary.TopDstPortBytes].Add(&key, bytes)
	key = sketch.Key{36: p.Protocol, 37: p.IPVersion}
	copy(key[:], p.Src[:])
	copy(key[16:], p.Dst[:])
	binary.BigEndian.PutUint16(key[32:], p.SrcPort)
	binary.BigEndian.PutUint16(key[34:], p.DstPort)
	s.Top[summary.TopFlowBytes].Add(&key, bytes)
}

// TestStatelessModeCountsWhatTheParserSays: packets and bytes by protocol, drops by reason and
// sketches of all captures that do not take long, for one ring and several, small rings, single
// packets and packets of several frames.
func TestStatelessModeCountsWhatTheParserSays(t *testing.T) {
	dev := simt.Device(t)
	for i, path := range testcap.All(t) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		if info.Size() > 1<<20 {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			open := func() (src source.Source) {
				src, err := pcap.Open([]string{path}, pcap.Options{})
				require.NoError(t, err)
				t.Cleanup(func() { _ = src.Close() })
				if i%4 == 3 {
					return segmented{src}
				}
				return src
			}
			want := countPackets(t, open())
			l := &lines{}
			sketches := summary.Config{TopK: 50}
			p, err := cuda.New(cuda.Config{
				Patience: 2 * time.Minute, Device: dev, Source: open(), Sink: l, Mode: cuda.ModeStateless, Rings: []int{1, 2, 5}[i%3], Shards: []int{1, 3}[i%2],
				LogRQ: []uint8{8, 3, 6}[i%3], Batch: []int{32, 1, 7, 32}[i%4], Sketch: &sketches,
			})
			require.NoError(t, err)
			_ = p.Run(context.Background()) // a file that ends early
			require.Empty(t, l.records)
			counts, err := p.Counts()
			require.NoError(t, err)
			require.Equal(t, want.Counts, counts)
			var s telemetry.Snapshot
			p.Snapshot(&s)
			require.Equal(t, want.seen, s.Engine.PacketsSeen)
			require.Equal(t, want.ok, s.Engine.PacketsRecorded)
			require.Equal(t, want.drops, s.Engine.Drops)
			require.Zero(t, s.Missing())
			require.Zero(t, s.Engine.PacketsActive)
			sameTraffic(t, want.Counts, s.Traffic)

			sameTop(t, want.all.TopRows(nil, sketches.TopK), s.Top)
			rows, forgot := want.all.SketchRows(nil, &sketches), want.withoutHistory(t).SketchRows(nil, &sketches)
			for i := range rows {
				w, g := &forgot[i], row(t, &s, rows[i].Name)
				if w.Kind == telemetry.SketchDistinct && g.ErrorBound == rows[i].ErrorBound { // all came by one warp
					w = &rows[i]
					require.InDelta(t, w.Estimate, g.Estimate, 1.04/64*(1+w.Estimate), w.Name)
					g.Estimate = w.Estimate
				}
				if w.Kind == telemetry.SketchEntropy { // its bound comes from an estimate of its keys
					require.InDelta(t, w.ErrorBound, g.ErrorBound, 1e-3, w.Name)
					g.ErrorBound = w.ErrorBound
				}
				require.InEpsilon(t, 1+w.Estimate, 1+g.Estimate, 1e-9, w.Name)
				g.Estimate = w.Estimate
				require.Equal(t, *w, *g, w.Name)
			}
			require.NoError(t, p.Close())
			_, err = p.Counts()
			require.Error(t, err)
		})
	}
}

func row(t *testing.T, s *telemetry.Snapshot, name string) *telemetry.SketchRow {
	t.Helper()
	i := slices.IndexFunc(s.Sketches, func(r telemetry.SketchRow) bool { return r.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return &s.Sketches[i]
}

// sameTraffic compares the rows of agp_traffic.
func sameTraffic(t *testing.T, want cuda.Counts, rows []telemetry.TrafficRow) {
	t.Helper()
	var packets, bytes [256]uint64
	for _, r := range rows {
		require.Zero(t, packets[r.Protocol], "one row of a protocol")
		require.Zero(t, r.Flows)
		packets[r.Protocol], bytes[r.Protocol] = r.Packets, r.Bytes
	}
	for i := range packets {
		require.Equal(t, want.Packets[0][i]+want.Packets[1][i], packets[i], "protocol %d", i)
		require.Equal(t, want.Bytes[0][i]+want.Bytes[1][i], bytes[i], "protocol %d", i)
	}
}

// TestStatelessModeCountsAsTheReference: packets and bytes of each protocol are those that the CPU
// pipeline has in records, of what ports and profiles may do.
func TestStatelessModeCountsAsTheReference(t *testing.T) {
	for name, prof := range profiles {
		t.Run(name, func(t *testing.T) {
			traffic, err := model.NewTraffic(prof)
			require.NoError(t, err)
			ref, err := cpu.New(cpu.Config{Source: frameList{traffic}, Sink: &lines{}, Queues: 1})
			require.NoError(t, err)
			require.NoError(t, ref.Run(context.Background()))
			var want telemetry.Snapshot
			ref.Snapshot(&want)
			harmless := map[model.Fault]float64{model.FaultStaleDoorbell: 0.3, model.FaultInvalid: 0.05, model.FaultLateUpper: 0.1}
			_, feed, s, err := through(t, model.Config{Seed: 9, EndPadding: true}, harmless, prof, 2, stateless)
			require.NoError(t, err)
			require.Zero(t, feed.refused)
			require.EqualValues(t, prof.Packets, s.Engine.PacketsSeen)
			require.Zero(t, s.Missing())
			var c cuda.Counts
			for _, r := range want.Traffic {
				c.Packets[0][r.Protocol] += r.Packets
				c.Bytes[0][r.Protocol] += r.Bytes
			}
			sameTraffic(t, c, s.Traffic)
		})
	}
}

// TestErrorCompletionsInStatelessMode: what the port has delivered is counted once, before a reset and after it.
func TestErrorCompletionsInStatelessMode(t *testing.T) {
	faults := map[model.Fault]float64{model.FaultLocalLength: 0.02, model.FaultLocalQPOp: 0.002, model.FaultWRFlush: 0.002, model.FaultMinor: 0.02}
	_, feed, s, err := through(t, model.Config{Seed: 5}, faults, model.Profile{Seed: 6, Packets: 10000, Flows: 500}, 2, stateless)
	require.NoError(t, err)
	var frames, errs, counted, rows uint64
	for i := range 2 {
		c := feed.nic.Counters(i)
		frames += c.Frames
		for _, n := range c.Errors {
			errs += n
		}
	}
	for _, n := range s.Engine.Errors {
		counted += n
	}
	for _, r := range s.Traffic {
		rows += r.Packets
	}
	require.NotZero(t, errs)
	require.Equal(t, errs, counted, "%v", s.Engine.Errors)
	require.Equal(t, frames, s.Engine.PacketsSeen)
	require.Equal(t, frames, s.Engine.PacketsRecorded)
	require.Equal(t, frames, rows)
	require.Zero(t, s.Missing())
}

// TestHandoverInStatelessModeLosesNothing: counters and sketches go on.
func TestHandoverInStatelessModeLosesNothing(t *testing.T) {
	path := find(t, "wechat.pcap")
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	want := countPackets(t, src)
	src, err = pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	var p *cuda.Pipeline
	n := 0
	in := handovers(t, src, &p, &n)
	p, err = cuda.New(cuda.Config{
		Patience: 2 * time.Minute, Device: simt.Device(t), Source: in, Sink: &lines{}, Mode: cuda.ModeStateless, Rings: 2, Shards: 2, LogRQ: 9, Sketch: &summary.Config{},
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	require.Greater(t, n, 2)
	_, err = p.Handover(context.Background(), nil)
	require.ErrorIs(t, err, cuda.ErrEnded)
	counts, err := p.Counts()
	require.NoError(t, err)
	require.Equal(t, want.Counts, counts)
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Zero(t, s.Missing())
	require.Equal(t, want.seen, s.Engine.PacketsSeen)
	for _, w := range want.all.SketchRows(nil, &summary.Config{}) {
		if w.Kind == telemetry.SketchQuantile {
			require.Equal(t, w, *row(t, &s, w.Name))
		}
	}
	require.NoError(t, p.Close())
}
