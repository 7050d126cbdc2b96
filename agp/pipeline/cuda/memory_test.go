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
