package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
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
