package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/simt"
)

// TestNICModelOnTheDeviceFeedsItsRings: every packet that the NIC model sends is in a flow, in all modes.
func TestNICModelOnTheDeviceFeedsItsRings(t *testing.T) {
	dev := simt.Device(t)
	for name, c := range map[string]Test{
		"prefilled":                {Rings: 2, Warps: 1, Shards: 1, Flows: 100, Prefill: true, Packets: 1 << 12, FrameLen: 60},
		"producer kernel":          {Rings: 3, Warps: 2, Shards: 2, Feeders: 4, Flows: 1000, Packets: 1 << 15, FrameLen: 60},
		"new flows, longer frames": {Rings: 1, Warps: 1, Shards: 3, Feeders: 4, Flows: 64, NewPer1024: 100, Packets: 1 << 14, FrameLen: 124},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Measure(dev, c)
			require.NoError(t, err)
			require.Equal(t, c.Packets*uint64(c.Rings), r.Sent)
			require.Equal(t, r.Sent, r.Seen)
			require.GreaterOrEqual(t, r.Started, uint64(c.Flows*c.Rings)*9/10)
		})
	}
}
