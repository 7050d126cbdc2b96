package engine

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// numbered delivers frames whose length is their number and drops every tenth.
type numbered struct{ next, total int }

func (s *numbered) Next(b *source.Batch) (int, error) {
	n := 0
	for ; n < cap(b.Frames) && s.next < s.total; n++ {
		s.next++
		b.Frames = b.Frames[:cap(b.Frames)]
		b.Frames[n] = source.Frame{WireLen: uint32(s.next)}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (s *numbered) Stats() source.Stats {
	return source.Stats{Frames: uint64(s.next), Bytes: 1, Dropped: map[string]uint64{"cut": uint64(s.next / 10)}, Offset: int64(s.next)}
}

func (s *numbered) Interrupt()   {}
func (s *numbered) Close() error { return nil }

func TestSkipperLeavesOutExactlyWhatWasAccountedFor(t *testing.T) {
	for _, skip := range []uint64{1, 7, 8, 9, 16, 99, 100, 5000} {
		clock := newSkipClock(true)
		s := &skipper{Source: &numbered{total: 100}, left: skip, clock: clock}
		b := source.Batch{Frames: make([]source.Frame, 8)}
		want := uint32(skip)
		require.Zero(t, s.Stats().Frames, "while skipping nothing counts")
		for {
			n, err := s.Next(&b)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			require.Positive(t, n)
			for _, f := range b.Frames[:n] {
				want++
				require.Equal(t, want, f.WireLen, "skip %d", skip)
			}
		}
		if skip <= 100 {
			require.EqualValues(t, 100, want)
		}
		require.False(t, clock.moving)
		require.LessOrEqual(t, s.Stats().Dropped["cut"], uint64(10))
	}
}

func TestSkipClockRunsAheadThenWaits(t *testing.T) {
	c := newSkipClock(true)
	begin := time.Now()
	c.Wait(time.Hour, nil)
	require.WithinDuration(t, begin.Add(time.Hour), c.Now(), time.Minute, "an hour was skipped, not waited for")
	c.arrive()
	wake := make(chan struct{})
	close(wake)
	c.Wait(time.Hour, wake)
	require.Less(t, time.Since(begin), time.Minute)
}
