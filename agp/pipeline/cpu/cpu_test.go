package cpu

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// frames is a source over frames in memory.
type frames struct {
	list    []source.Frame
	pos     int
	err     error // instead of io.EOF
	stopped atomic.Bool
}

func (f *frames) Next(b *source.Batch) (int, error) {
	if f.pos == len(f.list) || f.stopped.Load() {
		if f.err != nil {
			return 0, f.err
		}
		return 0, io.EOF
	}
	n := copy(b.Frames, f.list[f.pos:])
	f.pos += n
	return n, nil
}
func (f *frames) Stats() source.Stats { return source.Stats{} }
func (f *frames) Interrupt()          { f.stopped.Store(true) }
func (f *frames) Close() error        { return nil }

// lines keeps everything a pipeline says, as JSON lines without the queue.
type lines struct {
	records []string
	alerts  []string
	packets uint64
}

func (l *lines) Record(r *telemetry.Record) {
	c := *r
	c.Queue = 0
	l.records = append(l.records, string(telemetry.AppendJSON(nil, &c)))
	l.packets += r.Dir[0].Packets + r.Dir[1].Packets
}
func (l *lines) Alert(a *telemetry.Alert) {
	l.alerts = append(l.alerts, string(telemetry.AppendAlertJSON(nil, a)))
}

// each calls a function for every record.
type each func(*telemetry.Record)

func (f each) Record(r *telemetry.Record) { f(r) }
func (each) Alert(*telemetry.Alert)       {}

func run(t testing.TB, cfg Config) (*lines, *telemetry.Snapshot) {
	l := &lines{}
	cfg.Sink = l
	p, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	return l, snapshotOf(p)
}

func snapshotOf(p *Pipeline) *telemetry.Snapshot {
	var s telemetry.Snapshot
	p.Snapshot(&s)
	return &s
}

// traffic makes frames of a few hundred flows: TCP with and without handshake,
// UDP, fragments, garbage; times go back now and then.
func traffic(seed uint64, n int) []source.Frame {
	rng := rand.New(rand.NewPCG(seed, 1))
	ts := int64(1_700_000_000_000_000_000)
	list := make([]source.Frame, n)
	for i := range list {
		ts += rng.Int64N(40e6)
		if rng.IntN(500) == 0 {
			ts += rng.Int64N(120e9)
		}
		if rng.IntN(400) == 0 {
			ts -= rng.Int64N(100e9)
		}
		list[i] = source.Frame{Data: frame(rng), TimestampNs: ts, LinkType: 1}
		list[i].WireLen = uint32(len(list[i].Data))
		if rng.IntN(20) == 0 { // cut by a snap length
			list[i].Data = list[i].Data[:rng.IntN(len(list[i].Data)+1)]
		}
	}
	return list
}

func frame(rng *rand.Rand) []byte {
	payload := rng.IntN(200)
	l4 := 8
	proto := byte(packet.ProtoUDP)
	if rng.IntN(2) == 0 {
		l4, proto = 20, packet.ProtoTCP
	}
	b := make([]byte, 14+20+l4+payload)
	b[12], b[13] = 8, 0
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, proto
	n := 20 + l4 + payload
	ip[2], ip[3] = byte(n>>8), byte(n)
	ip[5] = byte(rng.IntN(4)) // identification
	switch rng.IntN(30) {
	case 0:
		ip[6] = 0x20 // first fragment
	case 1:
		ip[7] = 5 // later fragment
	}
	a, c := byte(rng.IntN(12)), byte(rng.IntN(12))
	copy(ip[12:], []byte{10, 0, 0, a, 10, 0, 0, c})
	tp := ip[20:]
	tp[1], tp[3] = byte(rng.IntN(3)), byte(rng.IntN(3))
	if proto == packet.ProtoTCP {
		tp[7], tp[11], tp[12], tp[15] = byte(rng.IntN(50)), byte(rng.IntN(50)), 5<<4, byte(rng.IntN(3))
		tp[13] = []byte{2, 0x12, 0x10, 0x18, 0x11, 4, 0x14}[rng.IntN(7)]
	} else {
		u := 8 + payload
		tp[4], tp[5] = byte(u>>8), byte(u)
	}
	if rng.IntN(50) == 0 {
		b[12], b[13] = 8, 6 // ARP
	}
	for i := range payload {
		tp[l4+i] = byte(rng.Uint32())
	}
	return b
}

// shipped loads the models that come with the program.
func shipped(t testing.TB) *model.Set {
	var models []*model.Model
	for _, name := range []string{"app", "class"} {
		m, err := model.Load("../../../configs/models/" + name + ".onnx")
		require.NoError(t, err)
		models = append(models, m)
	}
	set, err := model.NewSet(models...)
	require.NoError(t, err)
	return set
}

// TestFeature14SameRecordsForAnyPartition: 1 or 16 queues, batch 1 or 32 give the
// same records, scores and alerts in the same order.
func TestFeature14SameRecordsForAnyPartition(t *testing.T) {
	models := shipped(t)
	for seed := range uint64(3) {
		list := traffic(seed, 6000)
		samePartitions(t, fmt.Sprintf("seed %d", seed), func(queues, batch int) Config {
			return Config{Source: &frames{list: list}, Queues: queues, Batch: batch, Models: models,
				Flow: flow.Config{IdleNs: 5e9, ActiveNs: 30e9, LingerNs: 2e9}}
		})
	}
}

func TestFeature14SameRecordsOfCaptures(t *testing.T) {
	dir, models := testcap.Dir(t), shipped(t)
	for _, name := range []string{"alexa-app.pcapng", "TCC_Faust_40_80.pcap", "bruteforce.pcap", "amp.dns.RRSIG.fragmented.pcap", "mining.pcapng"} {
		samePartitions(t, name, func(queues, batch int) Config {
			src, err := pcap.Open([]string{filepath.Join(dir, name)}, pcap.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { src.Close() })
			return Config{Source: src, Queues: queues, Batch: batch, Models: models}
		})
	}
}

func samePartitions(t *testing.T, what string, cfg func(queues, batch int) Config) {
	want, s := run(t, cfg(1, 1))
	require.NotEmpty(t, want.records)
	require.NotZero(t, s.Engine.Inferences, what)
	for _, q := range []int{1, 2, 3, 16} {
		for _, b := range []int{32, 4096} {
			got, s := run(t, cfg(q, b))
			require.Zero(t, s.Missing())
			sameLines(t, want.records, got.records, "%s, %d queues, batch %d", what, q, b)
			sameLines(t, want.alerts, got.alerts, "%s, %d queues, batch %d", what, q, b)
		}
	}
}

// sameLines is Equal with an answer that can be read.
func sameLines(t *testing.T, want, got []string, what string, args ...any) {
	t.Helper()
	require.Equal(t, len(want), len(got), append([]any{what}, args...)...)
	for i := range want {
		require.Equal(t, want[i], got[i], append([]any{what}, args...)...)
	}
}

// TestAccountingIdentity: packets seen = packets in records + packets counted by drop reason.
func TestAccountingIdentity(t *testing.T) {
	for seed := range uint64(20) {
		list := traffic(100+seed, 3000)
		l, s := run(t, Config{Source: &frames{list: list}, Queues: 3, Flow: flow.Config{MaxFlows: 10 + int(seed)}})
		var dropped uint64
		for _, n := range s.Engine.Drops {
			dropped += n
		}
		require.EqualValues(t, len(list), s.Engine.PacketsSeen)
		require.EqualValues(t, len(list), l.packets+dropped)
		require.Equal(t, l.packets, s.Engine.PacketsRecorded)
		require.EqualValues(t, len(l.records), s.Engine.Records)
		require.Zero(t, s.Engine.PacketsActive)
		require.Zero(t, s.Missing())
		require.NotZero(t, s.Engine.Evictions)
		require.NotZero(t, s.Engine.Drops["non_ip_arp"])
	}
}

// TestSketchFeatureHasEveryFlowsHistograms: what the sketches of all queues say of a flow is
// what its records say together; few flows, so that none collide.
func TestSketchFeatureHasEveryFlowsHistograms(t *testing.T) {
	key := [16]byte{7}
	var list []source.Frame
	for i := range 100 {
		for _, f := range traffic(5, 500) {
			f.TimestampNs += int64(i) * 3600e9
			list = append(list, f)
		}
	}
	for _, layout := range []string{"blocked", "published"} {
		for _, queues := range []int{1, 3} {
			type histograms struct {
				size  [telemetry.SizeBins]uint32
				delay [telemetry.DelayBins]uint32
			}
			want := make(map[uint64]*histograms)
			var longest uint64
			var seed uint64
			sink := each(func(r *telemetry.Record) {
				in := packet.Info{
					Src: r.Src, Dst: r.Dst, SrcPort: r.SrcPort, DstPort: r.DstPort, Protocol: r.Protocol, IPVersion: r.IPVersion,
				}
				var k flow.Key
				k.Set(&in, flow.KeyOptions{})
				hash := k.Hash(seed)
				h := want[hash]
				if h == nil {
					h = &histograms{}
					want[hash] = h
				}
				longest = max(longest, r.Dir[0].Packets+r.Dir[1].Packets)
				for b, n := range r.SizeHist {
					h.size[b] += n
				}
				for b, n := range r.DelayHist {
					h.delay[b] += n
				}
			})
			p, err := New(Config{Source: &frames{list: list}, Sink: sink, Queues: queues, Key: key, Sketch: SketchConfig{Feature: layout},
				Flow: flow.Config{IdleNs: 1e15, ActiveNs: 1e16}})
			require.NoError(t, err)
			seed = p.seed
			require.NoError(t, p.Run(context.Background()))
			require.Greater(t, longest, uint64(flow.BinnedPackets), "flows that are told of in parts")
			for hash, h := range want {
				var got histograms
				w := p.workers[flow.QueueOf(flow.BucketOf(hash), queues)]
				w.sketches.Features().Decode(hash, got.size[:], got.delay[:])
				require.Equal(t, *h, got, "%s, %d queues", layout, queues)
			}
		}
	}
}

func TestAccountingIdentityOnEveryCapture(t *testing.T) {
	for _, path := range testcap.All(t) {
		src, err := pcap.Open([]string{path}, pcap.Options{})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		l := &lines{}
		p, err := New(Config{Source: src, Sink: l, Queues: 2})
		require.NoError(t, err)
		runErr := p.Run(context.Background())
		var s telemetry.Snapshot
		p.Snapshot(&s)
		frames := src.Stats().Frames
		for _, n := range src.Stats().Dropped {
			frames += n
		}
		require.NoError(t, src.Close())
		if runErr != nil && !strings.Contains(path, "pgsql-5000") { // cut inside its last packet
			t.Errorf("%s: %v", path, runErr)
		}
		require.Zero(t, s.Missing(), path)
		require.Zero(t, s.Engine.PacketsActive, path)
		require.Equal(t, frames, s.Engine.PacketsSeen, path)
		require.Equal(t, l.packets, s.Engine.PacketsRecorded, path)
	}
}

func TestEndOfInputWithErrorStillFlushes(t *testing.T) {
	broken := fmt.Errorf("broken")
	l := &lines{}
	p, err := New(Config{Source: &frames{list: traffic(1, 500), err: broken}, Sink: l})
	require.NoError(t, err)
	require.ErrorIs(t, p.Run(context.Background()), broken)
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Zero(t, s.Missing())
	require.NotEmpty(t, l.records)
}

func TestCancelFlushesWhatWasRead(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l := &lines{}
	p, err := New(Config{Source: &frames{list: traffic(1, 5000)}, Sink: l})
	require.NoError(t, err)
	require.NoError(t, p.Run(ctx))
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Zero(t, s.Missing())
}

func TestConfigErrorsNameTheSetting(t *testing.T) {
	src := &frames{}
	for text, cfg := range map[string]Config{
		"source":         {Sink: &lines{}},
		"sink":           {Source: src},
		"queues = 1000":  {Source: src, Sink: &lines{}, Queues: 1000},
		"batch = -1":     {Source: src, Sink: &lines{}, Batch: -1},
		"top_k = 99999":  {Source: src, Sink: &lines{}, Sketch: SketchConfig{TopK: 99999}},
		`feature "wide"`: {Source: src, Sink: &lines{}, Sketch: SketchConfig{Feature: "wide"}},
	} {
		_, err := New(cfg)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, text)
	}
}

// TestLiveTimePassesWithoutPackets: with a clock, idle flows end while a source is silent.
func TestLiveTimePassesWithoutPackets(t *testing.T) {
	list := traffic(1, 100)
	now := list[len(list)-1].TimestampNs
	l := &lines{}
	silent := &quiet{frames: frames{list: list}}
	p, err := New(Config{Source: silent, Sink: l, Now: func() int64 { now += 2e9; return now }})
	require.NoError(t, err)
	silent.until = func() bool {
		var s telemetry.Snapshot
		p.Snapshot(&s)
		return s.Engine.FlowsActive == 0 && s.Engine.Records > 0
	}
	require.NoError(t, p.Run(context.Background()))
	require.False(t, slices.ContainsFunc(l.records, func(s string) bool { return strings.Contains(s, `"flushed"`) }))
}

// quiet delivers nothing after its frames until until holds.
type quiet struct {
	frames
	until func() bool
}

func (q *quiet) Next(b *source.Batch) (int, error) {
	if q.pos == len(q.list) && !q.until() {
		return 0, nil
	}
	return q.frames.Next(b)
}

// TestWindowsShowTheLastWholeOne: with a window, top lists and sketches cover that
// much capture time, not everything since the start.
func TestWindowsShowTheLastWholeOne(t *testing.T) {
	list := make([]source.Frame, 0, 400)
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 400 { // 40 s, 10 frames a second
		f := source.Frame{Data: frame(rng), TimestampNs: 1_700_000_000_000_000_000 + int64(i)*100e6, LinkType: 1}
		f.WireLen = uint32(len(f.Data))
		list = append(list, f)
	}
	count := func(window int64) (n uint64, covered int64) {
		_, s := run(t, Config{Source: &frames{list: list}, Queues: 2, Sketch: SketchConfig{WindowNs: window}})
		for _, r := range s.Sketches {
			if r.Name == "size" {
				return r.Count, r.WindowNs
			}
		}
		return 0, 0
	}
	all, covered := count(0)
	require.Greater(t, all, uint64(300))
	require.Zero(t, covered)
	part, covered := count(10e9)
	require.Less(t, part, all/3)
	require.NotZero(t, part)
	require.EqualValues(t, 10e9, covered)
}

// FuzzPipeline reads arbitrary bytes as a capture: the accounting identity holds,
// every readable frame is in a record or counted, and nothing panics.
func FuzzPipeline(f *testing.F) {
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	require.NoError(f, w.WriteFileHeader(262144, layers.LinkTypeEthernet))
	for _, fr := range traffic(1, 60) {
		require.NoError(f, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, fr.TimestampNs), CaptureLength: len(fr.Data), Length: int(fr.WireLen)}, fr.Data))
	}
	f.Add(b.Bytes(), uint8(1))
	f.Add(b.Bytes()[:len(b.Bytes())-7], uint8(0x12))
	f.Add([]byte{}, uint8(0))
	path := filepath.Join(f.TempDir(), "fuzz.pcap")
	f.Fuzz(func(t *testing.T, data []byte, mode uint8) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		src, err := pcap.Open([]string{path}, pcap.Options{})
		if err != nil {
			return
		}
		defer src.Close()
		l := &lines{}
		p, err := New(Config{Source: src, Sink: l, Queues: 1 + int(mode&3), Batch: 1 + int(mode>>2),
			Decap: packet.Decap{VXLAN: true, GRE: true, Geneve: true, GTPU: true}, Flow: flow.Config{MaxFlows: 1 + int(mode>>4)}})
		require.NoError(t, err)
		_ = p.Run(context.Background()) // what is unreadable is counted
		var s telemetry.Snapshot
		p.Snapshot(&s)
		st := src.Stats()
		seen := st.Frames
		for _, n := range st.Dropped {
			seen += n
		}
		require.Zero(t, s.Engine.PacketsActive)
		require.Equal(t, seen, s.Engine.PacketsSeen)
		require.Equal(t, l.packets, s.Engine.PacketsRecorded)
		for _, r := range l.records {
			require.True(t, json.Valid([]byte(r)), r)
		}
	})
}
