package cpu

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// loop delivers the same frames again and again, at times that go on.
type loop struct {
	frames
	left  int
	shift int64
}

func (l *loop) Next(b *source.Batch) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	l.left--
	n := 0
	for n < len(b.Frames) && l.pos < len(l.list) {
		b.Frames[n] = l.list[l.pos]
		b.Frames[n].TimestampNs += l.shift
		n++
		l.pos++
	}
	if l.pos == len(l.list) {
		l.pos = 0
		l.shift += 1e9
	}
	return n, nil
}

type null struct{}

func (null) Record(*telemetry.Record) {}
func (null) Alert(*telemetry.Alert)   {}

// TestSteadyStateAllocatesNothingPerPacket: the same flows for twice as long cost no more allocations.
func TestSteadyStateAllocatesNothingPerPacket(t *testing.T) {
	list := traffic(7, 4096)
	for i := range list {
		list[i].TimestampNs = list[0].TimestampNs + int64(i)*1000
	}
	models := shipped(t)
	const batches = 800 // of 256 frames; enough to have touched all reused memory
	measure := func(batches int) float64 {
		return testing.AllocsPerRun(1, func() {
			p, err := New(Config{Source: &loop{frames: frames{list: list}, left: batches}, Sink: null{}, Queues: 2, Models: models, Sketch: SketchConfig{Feature: "blocked"}})
			require.NoError(t, err)
			require.NoError(t, p.Run(context.Background()))
		})
	}
	once, twice := measure(batches), measure(2*batches)
	t.Logf("%.0f allocations for %d packets, %.0f for twice as many", once, batches*256, twice)
	require.LessOrEqual(t, twice-once, 150.0, "pooled memory that is first touched late; one allocation in a thousand packets would be 205")
}
