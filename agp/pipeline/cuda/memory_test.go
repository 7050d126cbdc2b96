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
