package cpu

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// gate is a sink that takes a record per token.
type gate struct{ tokens chan struct{} }

func (g gate) Record(*telemetry.Record) { <-g.tokens }
func (g gate) Alert(*telemetry.Alert)   {}

func TestSnapshotDoesNotWaitForTheFlushOfAllFlows(t *testing.T) {
	const flows = 50_000
	src := &frames{}
	for i := range flows {
		ip := make([]byte, 48)
		ip[0], ip[3], ip[8], ip[9] = 0x45, 48, 64, 17
		binary.BigEndian.PutUint32(ip[12:], uint32(10<<24+i))
		copy(ip[16:], []byte{10, 200, 0, 1, 19, 136, 0, 53, 0, 28})
		src.list = append(src.list, source.Frame{TimestampNs: 1e18, LinkType: 101, Data: ip, WireLen: 48})
	}
	g := gate{make(chan struct{})}
	p, err := New(Config{Source: src, Sink: g, Queues: 1, Flow: flow.Config{MaxFlows: 1 << 17}})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	g.tokens <- struct{}{} // the flush has begun
	var s telemetry.Snapshot
	taken := make(chan struct{})
	go func() {
		p.Snapshot(&s)
		close(taken)
	}()
	given := 1
	for done := false; !done && given < flows; {
		select {
		case g.tokens <- struct{}{}:
			given++
		case <-taken:
			done = true
		}
	}
	require.Less(t, given, flows, "a snapshot came while flows were waiting for the sink")
	require.Positive(t, s.Engine.FlowsActive)
	for ; given < flows; given++ {
		g.tokens <- struct{}{}
	}
	require.NoError(t, <-ended)
}
