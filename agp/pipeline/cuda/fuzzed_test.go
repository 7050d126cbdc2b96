package cuda_test

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// seeds are frames to begin with: of all captures, if there are any, and of the model's profiles.
func seeds(t *testing.T) []source.Frame {
	t.Helper()
	var all []source.Frame
	add := func(b *source.Batch, most int) {
		for _, f := range b.Frames[:min(len(b.Frames), most)] {
			f.Data = append([]byte(nil), f.Data...)
			all = append(all, f)
		}
	}
	for _, p := range profiles {
		traffic, err := model.NewTraffic(p)
		require.NoError(t, err)
		b := source.Batch{Frames: make([]source.Frame, 0, 512)}
		_, err = frameList{traffic}.Next(&b)
		require.NoError(t, err)
		add(&b, 512)
	}
	if os.Getenv(testcap.Env) == "" {
		return all
	}
	for _, path := range testcap.All(t) {
		src, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		b := source.Batch{Frames: make([]source.Frame, 0, 256)}
		for left := 2048; left > 0; {
			if n, err := src.Next(&b); err != nil || n == 0 {
				break
			}
			add(&b, left)
			left -= len(b.Frames)
		}
		require.NoError(t, src.Close())
	}
	return all
}

// fuzzed is a source of frames that are no longer what they were: bytes in the headers are others,
// ends are missing, lengths lie, times jump. The same seed gives the same frames.
type fuzzed struct {
	from []source.Frame
	r    *rand.Rand
	left int
	ns   int64
	stop atomic.Bool
	st   source.Stats
}

func newFuzzed(from []source.Frame, seed uint64, n int) *fuzzed {
	return &fuzzed{from: from, r: rand.New(rand.NewPCG(seed, 1)), left: n, ns: 1_700_000_000_000_000_000}
}

func (f *fuzzed) Next(b *source.Batch) (int, error) {
	if cap(b.Frames) == 0 {
		b.Frames = make([]source.Frame, 0, 256)
	}
	b.Frames, b.Buf = b.Frames[:0], b.Buf[:0]
	for f.left > 0 && len(b.Frames) < cap(b.Frames) && !f.stop.Load() {
		f.left--
		one := f.from[f.r.IntN(len(f.from))]
		at := len(b.Buf)
		b.Buf = append(b.Buf, one.Data...)
		one.Data = b.Buf[at:len(b.Buf):len(b.Buf)]
		f.change(&one)
		f.ns += f.r.Int64N(400_000)
		one.TimestampNs = f.ns
		switch f.r.IntN(4096) {
		case 0:
			f.ns += 20_000_000_000 // flows end
		case 1:
			one.TimestampNs -= f.r.Int64N(5_000_000_000) // comes late
		}
		b.Frames = append(b.Frames, one)
		f.st.Frames++
		f.st.Bytes += uint64(len(one.Data))
	}
	if len(b.Frames) == 0 {
		return 0, io.EOF
	}
	return len(b.Frames), nil
}

func (f *fuzzed) change(one *source.Frame) {
	d := one.Data
	head := min(len(d), 96)
	for range f.r.IntN(4) {
		if head == 0 {
			break
		}
		i := f.r.IntN(head)
		switch f.r.IntN(4) {
		case 0:
			d[i] ^= 1 << f.r.IntN(8)
		case 1:
			d[i] = byte(f.r.Uint32())
		case 2:
			d[i] = []byte{0, 0xff, 0x7f, 0x45, 0x60, 4, 6, 17, 41, 44, 47}[f.r.IntN(11)]
		default:
			if i+2 <= len(d) {
				binary.BigEndian.PutUint16(d[i:], []uint16{0x0800, 0x86dd, 0x8100, 0x88a8, 0x8847, 0x6558, 4789, 2152, 6081, 20, 0xffff}[f.r.IntN(11)])
			}
		}
	}
	switch f.r.IntN(8) {
	case 0:
		one.Data = d[:f.r.IntN(len(d)+1)]
	case 1:
		one.WireLen += f.r.Uint32N(3000)
	case 2:
		one.LinkType = []packet.LinkType{packet.LinkEthernet, packet.LinkRaw, packet.LinkNull, packet.LinkLinuxSLL, packet.LinkLinuxSLL2}[f.r.IntN(5)]
	}
	one.WireLen = max(one.WireLen, uint32(len(one.Data)))
}

func (f *fuzzed) Stats() source.Stats { return f.st }
func (f *fuzzed) Interrupt()          { f.stop.Store(true) }
func (f *fuzzed) Close() error        { return nil }

// sums is a sink that keeps of all records their number and the sum of their hashes, so that millions
// can be compared in any order.
type sums struct {
	seed maphash.Seed
	buf  []byte
	n    int
	sum  uint64
}

func (s *sums) Record(r *telemetry.Record) {
	c := *r
	c.Queue, c.Outputs = 0, nil
	s.buf = telemetry.AppendJSON(s.buf[:0], &c)
	s.n++
	s.sum += maphash.Bytes(s.seed, s.buf)
}
func (s *sums) Alert(*telemetry.Alert) {}

var _ pipeline.Sink = &sums{}

// TestFuzzedPacketsGiveTheRecordsOfTheReference: frames of captures and profiles that were changed, on
// 1 to 64 rings. There are as many as AGP_FUZZED says, over all numbers of rings, in the host build
// 60,000 and on a GPU 10,000,000 if it says nothing.
func TestFuzzedPacketsGiveTheRecordsOfTheReference(t *testing.T) {
	dev := simt.Device(t)
	all := 60_000
	if _, gpu := dev.(*cuda.GPU); gpu {
		all = 10_000_000
	}
	if s := os.Getenv("AGP_FUZZED"); s != "" {
		var err error
		all, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	from := seeds(t)
	counts := []int{1, 2, 3, 5, 16, 64}
	for i, rings := range counts {
		t.Run(strconv.Itoa(rings)+" rings", func(t *testing.T) {
			seed, n, flows := uint64(100+i), all/len(counts), flow.Config{MaxFlows: 1 << 20}
			want := sums{seed: maphash.MakeSeed()}
			ref, err := cpu.New(cpu.Config{Source: newFuzzed(from, seed, n), Sink: &want, Queues: 1, Flow: flows})
			require.NoError(t, err)
			require.NoError(t, ref.Run(context.Background()))
			var wantSnap, s telemetry.Snapshot
			ref.Snapshot(&wantSnap)
			require.NotZero(t, want.n)

			got := sums{seed: want.seed}
			p, err := cuda.New(cuda.Config{
				Patience: 5 * time.Minute, Device: dev, Source: newFuzzed(from, seed, n), Sink: &got, Rings: rings, Shards: []int{3, 2, 1, 4, 2, 1}[i], LogRQ: 8, Pitch: 2048, LogRecords: 16,
				Lossless: true, Flow: flows,
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			require.NoError(t, p.Run(context.Background()))
			p.Snapshot(&s)
			t.Logf("%d frames, %d records", n, got.n)
			require.Equal(t, want.n, got.n)
			require.Equal(t, want.sum, got.sum, "records differ")
			require.Zero(t, s.Missing())
			require.Equal(t, wantSnap.Engine.PacketsSeen, s.Engine.PacketsSeen)
			require.Equal(t, wantSnap.Engine.Drops, s.Engine.Drops)
			require.ElementsMatch(t, wantSnap.Traffic, s.Traffic)
		})
	}
}
