package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// TestNICModelOnTheDeviceFeedsItsRings: every packet that the NIC model sends is in a flow, in all modes.
func TestNICModelOnTheDeviceFeedsItsRings(t *testing.T) {
	dev := simt.Device(t)
	for name, c := range map[string]Test{
		"prefilled":                {Shape: Shape{Rings: 2, PerBlock: 1, Shards: 1, Flows: 100, FrameLen: 60}, Prefill: true, Packets: 1 << 12},
		"producer kernel":          {Shape: Shape{Rings: 3, PerBlock: 2, Shards: 2, Flows: 1000, FrameLen: 60}, Feeders: 4, Packets: 1 << 14},
		"producer kernel, paced":   {Shape: Shape{Rings: 2, PerBlock: 2, Shards: 1, Flows: 1000, FrameLen: 60}, Feeders: 4, Packets: 1 << 13, Pace: 20},
		"new flows, longer frames": {Shape: Shape{Rings: 1, PerBlock: 1, Shards: 3, Flows: 64, FrameLen: 124}, Feeders: 4, NewPer1024: 100, Packets: 1 << 13},
		"stateless mode":           {Shape: Shape{Mode: cuda.ModeStateless, Rings: 2, PerBlock: 2, Shards: 2, Flows: 200, FrameLen: 60}, Feeders: 4, Packets: 1 << 12},
		"sequence mode":            {Shape: Shape{Mode: cuda.ModeSequence, Rings: 2, PerBlock: 1, Receivers: 3, Shards: 2, Flows: 200, FrameLen: 60}, Packets: 1 << 12},
		"with sketches":            {Shape: Shape{Rings: 2, PerBlock: 1, Shards: 2, Flows: 200, FrameLen: 60, Sketches: true}, Packets: 1 << 12},
	} {
		t.Run(name, func(t *testing.T) {
			var around []bool
			c.Around = func(running bool) { around = append(around, running) }
			r, err := Measure(dev, c)
			require.NoError(t, err)
			require.Equal(t, c.Packets*uint64(c.Rings), r.Sent)
			require.Equal(t, r.Sent, r.Seen)
			if c.Mode == cuda.ModeStateless {
				require.Zero(t, r.Started)
				r.State[0], r.State[2] = 1, 1 // there is nothing to find and to write back
			} else {
				require.GreaterOrEqual(t, r.Started, uint64(c.Flows*c.Rings)*9/10)
			}
			require.NotZero(t, r.Rate())
			require.NotZero(t, r.Receive[0])
			require.NotZero(t, r.State[0])
			require.NotZero(t, r.State[1])
			require.Regexp(t, `^\d+ \+ \d+ \+ \d+ \+ \d+; \d+ \+ \d+ \+ \d+ \(\d+\.\d\)$`, (&Bench{Clock: 1e9}).stages(&r))
			require.Equal(t, []bool{true, false}, around)
		})
	}
}

// TestBatchesWithoutCreditAreCounted: a ring of two batches, and a pace that nobody can keep; and none
// if there is room for all packets from the start.
func TestBatchesWithoutCreditAreCounted(t *testing.T) {
	dev := simt.Device(t)
	c := Test{Shape: Shape{Rings: 1, PerBlock: 1, Shards: 1, LogRQ: 6, Flows: 100, FrameLen: 60}, Packets: 1 << 12, Pace: 1}
	r, err := Measure(dev, c)
	require.NoError(t, err)
	require.Equal(t, r.Sent, r.Seen)
	require.NotZero(t, r.Late)
	c.LogRQ = 12
	r, err = Measure(dev, c)
	require.NoError(t, err)
	require.Zero(t, r.Late)
}

// TestTheProducerAlone needs nobody who takes the packets.
func TestTheProducerAlone(t *testing.T) {
	dev := simt.Device(t)
	s := Shape{Rings: 2, PerBlock: 1, Shards: 1, LogRQ: 6, Flows: 100, FrameLen: 60}
	r, err := Measure(dev, Test{Shape: s, Packets: 1 << 12, Pace: 2, Alone: true})
	require.NoError(t, err)
	require.Zero(t, r.Started)
	require.EqualValues(t, 2<<12, r.Sent)
	called := false
	require.NoError(t, Polling(dev, s, func() { called = true }))
	require.True(t, called)
}

// TestHighestPaceIsFound by trying, for any pace that there is, to the precision of the steps.
func TestHighestPaceIsFound(t *testing.T) {
	for _, limit := range []uint32{1, 999, 1000, 1001, 1500, 2001, 4000, 7999, 8000} {
		tries := 0
		pace, ok, err := Highest(1000, 12, func(p uint32) (bool, error) { tries++; return p >= limit, nil })
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, max(limit, 1001), pace, limit)
		require.LessOrEqual(t, tries, 15)
	}
	_, ok, err := Highest(1000, 12, func(p uint32) (bool, error) { return p > 8000, nil })
	require.NoError(t, err)
	require.False(t, ok)
	broken := errors.New("broken")
	_, _, err = Highest(1000, 12, func(uint32) (bool, error) { return false, broken })
	require.ErrorIs(t, err, broken)
	require.EqualValues(t, 2000*32, Pace(1e6, 2, 1e9))

	dev := simt.Device(t)
	pace, ok, err := Highest(4, 3, func(p uint32) (bool, error) {
		r, err := Measure(dev, Test{Shape: Shape{Rings: 1, PerBlock: 1, Shards: 1, LogRQ: 12, Flows: 100, FrameLen: 60}, Packets: 1 << 12, Pace: p})
		return r.Late == 0 && r.Seen == r.Sent, err
	})
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 5, pace)
}

// TestNewFlowsAreInRecords: connections and single datagrams, to the packet, with room for all.
func TestNewFlowsAreInRecords(t *testing.T) {
	dev := simt.Device(t)
	for name, c := range map[string]FlowTest{
		"connections": {PerFlow: 7, Open: 60, Packets: 1 << 13},
		"datagrams":   {PerFlow: 1, Open: 50, Packets: 1 << 12},
		"exchanges":   {PerFlow: 2, Open: 64, Packets: 1 << 12},
	} {
		t.Run(name, func(t *testing.T) {
			c.Shape = Shape{Rings: 2, PerBlock: 1, Shards: 2, LogRQ: 9, Flows: 1 << 13, FrameLen: 60}
			c.GapNs, c.EndNs, c.LogRecords = 1_000_000, 1e9, 21
			r, err := NewFlows(dev, c)
			require.NoError(t, err)
			require.Zero(t, r.Lost)
			require.Zero(t, r.Evicted)
			require.EqualValues(t, 2*c.Packets, r.Packets)
			require.GreaterOrEqual(t, r.Flows, r.Packets/uint64(c.PerFlow))
			require.NotZero(t, r.Records)
			require.NotZero(t, r.Rate())
			if c.PerFlow < 5 {
				require.Zero(t, r.Closed)
			} else { // all but those whose last packets were not sent
				require.InDelta(t, r.Flows, r.Closed, float64(2*c.Open))
				require.NotEqual(t, r.Flows, r.Closed)
			}
		})
	}
}

// TestRecordsWithoutRoomAreLostAndCounted: one shard's ring holds fewer than come at once.
func TestRecordsWithoutRoomAreLostAndCounted(t *testing.T) {
	dev := simt.Device(t)
	r, err := NewFlows(dev, FlowTest{
		Shape:   Shape{Rings: 1, PerBlock: 1, Shards: 1, LogRQ: 9, Flows: 1 << 8, FrameLen: 60}, // flows have to give way
		PerFlow: 1, Open: 50, Packets: 1 << 13, GapNs: 1_000_000, EndNs: 1e9, LogRecords: 12,
	})
	require.NoError(t, err)
	require.NotZero(t, r.Lost)
}

// TestCopiesFromHostMemoryFeedTheRings: every packet is in a flow, over several laps of all counters.
func TestCopiesFromHostMemoryFeedTheRings(t *testing.T) {
	dev := simt.Device(t)
	for name, c := range map[string]FeedTest{
		"64 B, two streams":  {Shape: Shape{Rings: 3, PerBlock: 1, Shards: 1, LogRQ: 8, Flows: 100, FrameLen: 60}, Chunk: 64, Streams: 2, Packets: 1 << 12},
		"1500 B":             {Shape: Shape{Rings: 1, PerBlock: 1, Shards: 1, LogRQ: 6, Flows: 50, FrameLen: 1496}, Chunk: 32, Streams: 1, Packets: 1 << 10},
		"all of the counter": {Shape: Shape{Rings: 1, PerBlock: 1, Shards: 2, LogRQ: 11, Flows: 50, FrameLen: 60}, Chunk: 512, Streams: 1, Packets: 1<<16 + 1<<11},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Feed(dev, c)
			require.NoError(t, err)
			require.Equal(t, c.Packets*uint64(c.Rings), r.Sent)
			require.Equal(t, r.Sent, r.Seen)
			require.Equal(t, r.Sent*uint64(c.FrameLen), r.Payload)
			require.Equal(t, r.Sent*uint64((c.FrameLen+63)/64*64+64), r.Link)
			require.Equal(t, 2*c.Packets/uint64(c.Chunk)*uint64(c.Streams), r.Copies)
		})
	}
	r, err := Feed(dev, FeedTest{Shape: Shape{Rings: 2, PerBlock: 1, Shards: 1, LogRQ: 8, Flows: 50, FrameLen: 60}, Chunk: 64, Streams: 2, Packets: 1 << 12, Alone: true})
	require.NoError(t, err)
	require.EqualValues(t, 2<<12, r.Sent)
	require.Zero(t, r.Seen)
	for name, c := range map[string]FeedTest{
		"chunks of all sizes":     {Chunk: 48, Streams: 1, Packets: 96},
		"a chunk of all there is": {Chunk: 256, Streams: 1, Packets: 256},
		"half a chunk":            {Chunk: 64, Streams: 1, Packets: 96},
		"streams without rings":   {Chunk: 64, Streams: 2, Packets: 64},
	} {
		c.Shape = Shape{Rings: 1, PerBlock: 1, Shards: 1, LogRQ: 8, Flows: 50, FrameLen: 60}
		_, err := Feed(dev, c)
		require.ErrorIs(t, err, cuda.ErrConfig, name)
	}
}

// TestThePipelineUnderLoad: snapshots and handovers while the NIC model's kernel feeds it.
func TestThePipelineUnderLoad(t *testing.T) {
	dev := simt.Device(t)
	atEnd, packets := 0, uint64(1<<15)
	if _, on := dev.(*cuda.GPU); on {
		packets = 1 << 22
	}
	r, err := Load(dev, LoadTest{
		Shape:   Shape{Rings: 2, PerBlock: 1, Shards: 2, LogRQ: 8, Flows: 200, FrameLen: 60, Sketches: true},
		Packets: packets, Telemetry: 10 * time.Millisecond, Handovers: 2, Length: 30 * time.Millisecond, AtEnd: func() { atEnd++ },
	})
	require.NoError(t, err)
	require.Equal(t, 2*packets, r.Sent)
	require.Equal(t, r.Sent, r.Seen)
	require.Zero(t, r.Missing)
	require.NotEmpty(t, r.Gaps)
	require.NotZero(t, r.Snapshots)
	require.NotZero(t, r.RSS)
	require.NotZero(t, r.CPU)
	require.NotZero(t, r.DeviceAllocated)
	require.Equal(t, 1, atEnd)
}

// TestAllRowsOfTheBenchmark, tiny: each is printed, with its figures, and nothing is lost.
func TestAllRowsOfTheBenchmark(t *testing.T) {
	energy := uint64(0)
	var rows []Row
	b := &Bench{
		Device: simt.Device(t), SMs: 132, Runs: 1, Tiny: true, Print: func(r Row) { rows = append(rows, r) },
		Energy: func() (uint64, error) { energy += 1000; return energy, nil },
		Used:   func() (uint64, error) { return 3e9, nil },
	}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rows = nil
			require.NoError(t, b.Run(regexp.MustCompile("^"+name+"$")))
			require.NotEmpty(t, rows)
			for _, r := range rows {
				t.Log(r)
				require.NotEmpty(t, r.Quantity)
				require.NotEmpty(t, r.Measured)
				require.NotContains(t, r.Measured, "none")
				require.NotRegexp(t, `^[1-9]`, r.Lost)
			}
		})
	}
	require.ErrorContains(t, (&Bench{Device: failing{}, Runs: 1, Tiny: true, Print: b.Print}).Run(regexp.MustCompile("copies|64B-p")), "64B-prefilled: ")
}

// failing is a device without memory.
type failing struct{ cuda.Device }

func (failing) Alloc(int) (cuda.Addr, error)         { return 0, errNone }
func (failing) AllocMapped(int) (cuda.Mapped, error) { return cuda.Mapped{}, errNone }

var errNone = errors.New("no memory")

// TestTableGoesWhereItWas: what is written by hand around it stays.
func TestTableGoesWhereItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "RESULTS.md")
	require.NoError(t, Write(path, "one"))
	require.NoError(t, Write(path, "two"))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "# Benchmark results, GPU\n\n"+markBegin+"\ntwo\n"+markEnd+"\n", string(text))
	require.NoError(t, os.WriteFile(path, []byte("before\n"+string(text)+"after\n"), 0o600))
	require.NoError(t, Write(path, "three"))
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "before\n# Benchmark results, GPU\n\n"+markBegin+"\nthree\n"+markEnd+"\nafter\n", string(text))
	require.NoError(t, os.WriteFile(path, []byte(markBegin), 0o600))
	require.ErrorContains(t, Write(path, "x"), markEnd)
	require.Error(t, Write(t.TempDir(), "x"))
	require.Equal(t, "| a | – | – | – | – | – | – | – | b/c |", Row{Quantity: "a", Paper: "b|c"}.String())
	require.Equal(t, []string{"1", "999", "1,000", "1,048,576"}, []string{thousands(1), thousands(999), thousands(1000), thousands(1 << 20)})
}
