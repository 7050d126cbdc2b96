package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/cuda"
)

// TestCountersOfAKernelThatDiedWhileItWroteAreThoseOfBefore: and reading them ends.
func TestCountersOfAKernelThatDiedWhileItWroteAreThoseOfBefore(t *testing.T) {
	shared, read := abi.Stats{Version: 4, Frames: 10}, abi.Stats{}
	readStats(&shared, &read)
	require.Equal(t, shared, read)
	shared.Version, shared.Frames = 5, 11
	readStats(&shared, &read)
	require.EqualValues(t, 10, read.Frames)
}

type endless struct{ Run }

func (endless) Done() <-chan struct{} { return nil }

// TestMemoryOfAKernelThatDoesNotEndStays: it would write into what is somebody else's then.
func TestMemoryOfAKernelThatDoesNotEndStays(t *testing.T) {
	p := &Pipeline{run: endless{}, mem: arena{held: []Addr{1}}}
	require.ErrorIs(t, p.Close(), ErrHung)
	require.Len(t, p.mem.held, 1)
}

// TestTablesShareTheirPages on a GPU, in the order in which they are asked for, and lie apart elsewhere.
func TestTablesShareTheirPages(t *testing.T) {
	g := playing(t, func(*played) cuda.Result { return 0 })
	for _, c := range []struct {
		dev  Device
		held int
	}{{g, 1}, {struct{ Device }{g}, 6}} {
		a := arena{dev: c.dev}
		all, err := a.pieces([]int{100, 256, 257}, 2)
		require.NoError(t, err)
		require.Len(t, a.held, c.held)
		if c.held == 1 {
			require.Equal(t, [][]Addr{{all[0][0], all[0][0] + 256, all[0][0] + 512}, {all[0][0] + 1024, all[0][0] + 1280, all[0][0] + 1536}}, all)
			require.EqualValues(t, 2048, a.size)
		}
		require.NoError(t, a.free())
	}
	require.NoError(t, g.Close())
}

// short is a device whose memory lasts for some more requests.
type short struct {
	Device
	left int
}

func (s *short) Alloc(n int) (Addr, error) {
	if s.left--; s.left < 0 {
		return 0, cuda.OutOfMemory
	}
	return s.Device.Alloc(n)
}

// TestHeadsThatThereWasNoMemoryForAreAllocatedTheNextTime: a shard without them would have the device
// write to nowhere.
func TestHeadsThatThereWasNoMemoryForAreAllocatedTheNextTime(t *testing.T) {
	g := playing(t, func(*played) cuda.Result { return 0 })
	dev := &short{g, 1 << 20}
	p := pipelineOf(t, dev, newIdle(), nil)
	dev.left = 3
	require.ErrorIs(t, p.newHeads(8), cuda.OutOfMemory)
	dev.left = 1 << 20
	require.NoError(t, p.newHeads(8))
	for _, r := range p.rings {
		table := make([]abi.Shard, len(r.shards))
		for i, d := range r.shards {
			require.NoError(t, g.Read(bytesOf(&table[i]), r.abi.Shards+Addr(i*len(bytesOf(&table[i])))))
			require.NotZero(t, d.abi.Heads)
			require.Equal(t, d.abi, table[i], "as the device knows it")
		}
	}
	held := len(p.mem.held)
	require.NoError(t, p.newHeads(8))
	require.Len(t, p.mem.held, held, "once")
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
}

// closing is a device that begins to use a window again while it is read.
type closing struct {
	Device
	shard *shard
	times int
}

func (c *closing) ReadAll(pieces []Piece) error {
	for i, piece := range pieces {
		if err := c.Read(piece.To, Addr(piece.From)); err != nil {
			return err
		}
		if i == len(pieces)/2 && c.times > 0 {
			c.times--
			s := c.shard.sketches
			if err := c.Write(s.Summary[1-s.Now], make([]byte, len(bytesOf(&abi.Summary{})))); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestAWindowThatIsClearedWhileItIsReadIsReadAgain: what no longer is the last whole one is not shown.
func TestAWindowThatIsClearedWhileItIsReadIsReadAgain(t *testing.T) {
	g := playing(t, func(*played) cuda.Result { return 0 })
	dev := &closing{Device: g}
	p := pipelineOf(t, dev, newIdle(), func(c *Config) { c.Sketch = &SketchConfig{WindowNs: 1e9} })
	dev.shard = p.rings[0].shards[0]
	whole, running := &abi.Summary{StartNs: 1e9, EndNs: 2e9}, &abi.Summary{StartNs: 2e9, EndNs: 2e9}
	require.NoError(t, g.Write(dev.shard.sketches.Summary[1], bytesOf(whole)))
	require.NoError(t, g.Write(dev.shard.sketches.Summary[0], bytesOf(running)))
	require.NoError(t, p.readSummary(dev.shard))
	require.EqualValues(t, 1e9, p.reads.raw.StartNs)
	dev.times = 1
	require.NoError(t, p.readSummary(dev.shard))
	require.Zero(t, dev.times)
	require.EqualValues(t, 2e9, p.reads.raw.StartNs, "the one that runs: no other is whole")
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
}
