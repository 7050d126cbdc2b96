package flow

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClock(t *testing.T) {
	const s = int64(1e9)
	var c Clock
	for _, v := range []struct {
		ns, tick int64
		due      bool
		now      int64
		backs    uint64
	}{
		{100*s + 5, 100 * s, true, 100*s + 5, 0},
		{100*s + 9, 0, false, 100*s + 9, 0},
		{99 * s, 0, false, 100*s + 9, 0}, // a little late
		{103 * s, 103 * s, true, 103 * s, 0},
		{43*s + 1, 0, false, 103 * s, 0},
		{43 * s, 43 * s, true, 43 * s, 1}, // a clock of its own
		{43*s + 1, 0, false, 43*s + 1, 1},
		{-s / 2, 0, false, 43*s + 1, 1},
		{-20 * s, -20 * s, true, -20 * s, 2},
	} {
		tick, due := c.Pass(v.ns)
		require.Equal(t, v.tick, tick, v.ns)
		require.Equal(t, v.due, due, v.ns)
		require.Equal(t, v.now, c.NowNs, v.ns)
		require.Equal(t, v.backs, c.Backs, v.ns)
	}
}
