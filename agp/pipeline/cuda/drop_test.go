package cuda_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/source/relay"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// TestFramesWithoutRoomAreDroppedAndCounted: a source that does not wait, as an interface, gives more
// than the rings take. Every frame is in a record or has a reason.
func TestFramesWithoutRoomAreDroppedAndCounted(t *testing.T) {
	const packets = 30000
	path := filepath.Join(t.TempDir(), "synthetic.pcap")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, traffic.Bench(9, packets, 500).WritePcap(f))
	require.NoError(t, f.Close())
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	l := &lines{}
	p, err := cuda.New(cuda.Config{
		Device: simt.Device(t), Source: src, Sink: l, Rings: 2, LogRQ: 4, LogRecords: 16, Drop: true,
		Flow: flow.Config{MaxFlows: 1 << 13}, Patience: time.Minute,
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	var s telemetry.Snapshot
	p.Snapshot(&s)
	full := s.Engine.Drops[relay.DropFull]
	t.Logf("%d of %d frames dropped", full, s.Engine.PacketsSeen)
	require.NotZero(t, full)
	require.Equal(t, src.Stats().Frames, s.Engine.PacketsSeen)
	require.Zero(t, s.Engine.PacketsActive)
	require.Zero(t, s.Missing())
	require.NotEmpty(t, l.records)
	require.NoError(t, p.Close())
}
