package pcap

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// manualClock advances only by waiting.
type manualClock struct {
	now   time.Time
	waits int
	most  time.Duration
}

func (c *manualClock) Now() time.Time { return c.now }

func (c *manualClock) Wait(d time.Duration, _ <-chan struct{}) {
	c.waits++
	c.most = max(c.most, d)
	c.now = c.now.Add(d)
}

// play reads everything at a pace and returns when each frame came, as time since
// the start.
func play(t *testing.T, r *Reader, c *manualClock, batch int) (at []time.Duration, idle int) {
	t.Helper()
	start := c.now
	b := &source.Batch{Frames: make([]source.Frame, 0, batch)}
	for range 1_000_000 {
		n, err := r.Next(b)
		if err != nil {
			require.Equal(t, io.EOF, err)
			return at, idle
		}
		if n == 0 {
			idle++
		}
		for range b.Frames {
			at = append(at, c.now.Sub(start))
		}
	}
	t.Fatal("no end")
	return nil, 0
}

func paced(t *testing.T, opts Options, seconds ...uint32) ([]time.Duration, *manualClock, int) {
	t.Helper()
	var recs []rec
	for _, s := range seconds {
		recs = append(recs, rec{s, 0, "abc", 0})
	}
	c := &manualClock{now: time.Unix(1_700_000_000, 0)}
	opts.Clock = c
	at, idle := play(t, openBytes(t, classicBytes(binary.LittleEndian, magicMicro, 1, recs...), opts), c, 8)
	require.Len(t, at, len(seconds))
	return at, c, idle
}

func TestPaceFollowsTheCapture(t *testing.T) {
	const s = time.Second
	at, c, idle := paced(t, Options{Speed: 1}, 100, 100, 101, 105)
	require.Equal(t, []time.Duration{0, 0, s, 5 * s}, at)
	require.LessOrEqual(t, c.most, liveWait, "time passes while nothing arrives")
	require.Greater(t, idle, 40)

	at, _, _ = paced(t, Options{Speed: 4}, 100, 101, 105)
	require.Equal(t, []time.Duration{0, s / 4, 5 * s / 4}, at)

	at, c, _ = paced(t, Options{}, 100, 101, 105)
	require.Equal(t, []time.Duration{0, 0, 0}, at)
	require.Zero(t, c.waits)
}

func TestPaceWaitsForALongGapNoLongerThanTheBound(t *testing.T) {
	const s = time.Second
	at, _, _ := paced(t, Options{Speed: 1, MaxGap: 10 * s}, 100, 101, 4_000_000_000, 4_000_000_002)
	require.Equal(t, []time.Duration{0, s, 11 * s, 13 * s}, at)
}

func TestPaceStartsAnewAfterABackwardStep(t *testing.T) {
	const s = time.Second
	at, _, _ := paced(t, Options{Speed: 1}, 100, 103, 50, 52)
	require.Equal(t, []time.Duration{0, 3 * s, 3 * s, 5 * s}, at)
}

func TestPaceDoesNotWaitBetweenFiles(t *testing.T) {
	c := &manualClock{now: time.Unix(1_700_000_000, 0)}
	var paths []string
	for _, base := range []uint32{100, 5000} {
		paths = append(paths, tempFile(t, "x", classicBytes(binary.LittleEndian, magicMicro, 1, rec{base, 0, "a", 0}, rec{base + 1, 0, "b", 0})))
	}
	r, err := Open(paths, Options{Speed: 1, Clock: c})
	require.NoError(t, err)
	defer r.Close()
	at, _ := play(t, r, c, 8)
	require.Equal(t, []time.Duration{0, time.Second, time.Second, 2 * time.Second}, at)
}

func TestPacedFramesAreTheSameAndArePassedOnce(t *testing.T) {
	for name, content := range goodInputs() {
		want, err := collect(t, memory(content), 64)
		require.Equal(t, io.EOF, err)
		r := openBytes(t, content, Options{Speed: 1000, Clock: &manualClock{}})
		got, err := collect(t, r, 64)
		require.Equal(t, io.EOF, err)
		require.Equal(t, briefs(want), briefs(got), name)
		require.Equal(t, uint64(len(want)), r.Stats().Frames)
	}
}

func TestCaptureNowPassesBetweenFrames(t *testing.T) {
	c := &manualClock{now: time.Unix(1_700_000_000, 0)}
	r := openBytes(t, classicBytes(binary.LittleEndian, magicMicro, 1, rec{100, 0, "a", 0}, rec{110, 0, "b", 0}), Options{Speed: 2, Clock: c})
	_, ok := r.CaptureNow()
	require.False(t, ok)
	b := &source.Batch{Frames: make([]source.Frame, 0, 8)}
	n, err := r.Next(b)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	c.now = c.now.Add(3 * time.Second)
	ns, ok := r.CaptureNow()
	require.True(t, ok)
	require.Equal(t, int64(106*second), ns)
}

func TestInterruptEndsAWaitForTheNextFrame(t *testing.T) {
	r := openBytes(t, classicBytes(binary.LittleEndian, magicMicro, 1, rec{100, 0, "a", 0}, rec{1000, 0, "b", 0}), Options{Speed: 1})
	done := untilEnd(r)
	r.Interrupt()
	select {
	case err := <-done:
		require.Equal(t, io.EOF, err)
	case <-time.After(10 * time.Second):
		t.Fatal("still waiting")
	}
}
