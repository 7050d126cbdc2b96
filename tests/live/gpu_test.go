package live

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// onGPU is config for an engine whose flows are kept by device code.
func onGPU(t *testing.T, kind string) *agppb.Configure {
	t.Helper()
	c := config(t, kind, "h0")
	c.Pipeline, c.Queues, c.MaxFlows = options.PipelineCUDA, 2, 1<<14
	return c
}

// TestFramesOfAnInterfaceReachTheGPU: what a relay of mirror and of divert gives to device code, here
// on the host, becomes the same records as on the CPU, times aside; nothing is lost.
func TestFramesOfAnInterfaceReachTheGPU(t *testing.T) {
	testcap.Program(t, "g++")
	frames := make([][]byte, 0, 6000)
	require.NoError(t, traffic.Bench(11, 6000, 200).Each(func(f traffic.Frame) error {
		if len(f.Data) <= plainSize {
			frames = append(frames, slices.Clone(f.Data))
		}
		return nil
	}))
	emulated, err := built.Path("agp-engine-simt", "tests/simt/cmd/agp-engine-simt")
	require.NoError(t, err)
	for _, kind := range []string{"mirror", "divert"} {
		t.Run(kind, func(t *testing.T) {
			netns.NothingLeft(t)
			release, err := netns.Pin(0)
			require.NoError(t, err)
			defer release()
			run := func(binary, pipeline string) []rig.Record {
				w := newWire(t, 2, 1500)
				c := onGPU(t, kind)
				c.Pipeline = pipeline
				e, err := rig.Start(w.host, binary, c)
				require.NoError(t, err)
				t.Cleanup(e.End)
				ready, err := e.Ready()
				require.NoError(t, err)
				require.Equal(t, pipeline, ready.GetPipeline())
				w.send(t, e, frames)
				records, s := drain(t, e)
				require.EqualValues(t, len(frames), rig.Accounted(s), e.Words())
				require.Empty(t, lost(s), e.Words())
				require.Equal(t, pipeline, s.GetEngine().GetPipeline())
				return records
			}
			want := run(agpBinary(t), options.PipelineCPU)
			require.Greater(t, len(want), 100)
			got := run(emulated, options.PipelineCUDA)
			require.Empty(t, rig.Difference(want, got))
		})
	}
}
