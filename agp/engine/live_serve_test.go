package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

func isLog(ev *agppb.Event) bool { return ev.GetLog() != nil }

// TestSteeringCommandsReachThePort also shows what an engine without a port says.
func TestSteeringCommandsReachThePort(t *testing.T) {
	got := make(chan string, 4)
	p := beginBuilt(t, waiting, func(b *Built) {
		b.Steer = func(r *agppb.SteerRules) error { got <- r.GetAdd()[0].GetPrefix(); return nil }
		b.Policy = func(p *agppb.SteerPolicy) error { return errors.New("no such class") }
		b.Steering = func(s *telemetry.Snapshot) {
			s.Steering = append(s.Steering, telemetry.SteeringRow{Interface: "if0", Target: "kernel", Packets: 3})
		}
	})
	p.configure(&agppb.Configure{})
	p.send(&agppb.Command{Command: &agppb.Command_SteerRules{SteerRules: &agppb.SteerRules{Add: []*agppb.SteerRule{{Prefix: "192.0.2.1/32"}}}}})
	require.Equal(t, "192.0.2.1/32", <-got)
	p.send(&agppb.Command{Command: &agppb.Command_SteerPolicy{SteerPolicy: &agppb.SteerPolicy{}}})
	l := p.until(isLog).GetLog()
	require.Equal(t, agppb.Log_ERROR, l.GetLevel())
	require.Contains(t, l.GetText(), "no such class")
	row := p.until(func(ev *agppb.Event) bool { return ev.GetSnapshot() != nil }).GetSnapshot().GetSteering()[0]
	require.EqualValues(t, 3, row.GetPackets())
	p.send(&agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}})
	require.NoError(t, p.served())

	p = begin(t, waiting)
	p.configure(&agppb.Configure{})
	p.send(&agppb.Command{Command: &agppb.Command_SteerRules{SteerRules: &agppb.SteerRules{}}})
	require.Contains(t, p.until(isLog).GetLog().GetText(), "has no port")
}

// TestWhatOutlivesTheEngineIsTakenBackAtEveryEnd: told to stop, plugin gone, source failed.
func TestWhatOutlivesTheEngineIsTakenBackAtEveryEnd(t *testing.T) {
	failing := func(context.Context, pipeline.Sink) error { return errors.New("if0: gone") }
	for name, c := range map[string]struct {
		run func(context.Context, pipeline.Sink) error
		end func(*plugin)
	}{
		"stop":   {waiting, func(p *plugin) { p.send(&agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}}) }},
		"gone":   {waiting, func(p *plugin) { p.sock.Close() }},
		"failed": {failing, func(*plugin) {}},
	} {
		t.Run(name, func(t *testing.T) {
			var undone atomic.Int32
			p := beginBuilt(t, c.run, func(b *Built) {
				b.Live = true
				b.Undo = func() error { undone.Add(1); return nil }
			})
			p.configure(&agppb.Configure{})
			if name != "failed" {
				p.until(func(ev *agppb.Event) bool { return ev.GetSnapshot() != nil })
			}
			c.end(p)
			err := p.served()
			require.Positive(t, undone.Load())
			if name == "gone" {
				require.ErrorIs(t, err, ErrPluginGone)
				require.True(t, p.gone.Load())
			}
		})
	}
}

// TestAFailedInterfaceIsAnErrorThatARestartCanCure: no finished event, and not a
// complaint about the configuration.
func TestAFailedInterfaceIsAnErrorThatARestartCanCure(t *testing.T) {
	p := beginBuilt(t, func(context.Context, pipeline.Sink) error { return errors.New("if0: network is down") }, func(b *Built) { b.Live = true })
	p.configure(&agppb.Configure{})
	ev := p.until(func(ev *agppb.Event) bool { return isFinished(ev) || ev.GetError() != nil })
	require.Nil(t, ev.GetFinished())
	require.True(t, ev.GetError().GetFatal())
	require.False(t, ev.GetError().GetConfig())
	require.Equal(t, "if0: network is down", ev.GetError().GetText())
	require.Error(t, p.served())
}

// TestGPUReadingsReachThePlugin: what the reader appends is in every snapshot.
func TestGPUReadingsReachThePlugin(t *testing.T) {
	p := beginBuilt(t, waiting, func(b *Built) {
		b.GPU = func(s *telemetry.Snapshot) {
			s.GPUs = append(s.GPUs, telemetry.GPURow{UUID: "GPU-1", PowerMilliwatts: new(uint64(81000))})
		}
	})
	p.configure(&agppb.Configure{})
	rows := p.until(func(ev *agppb.Event) bool { return ev.GetSnapshot() != nil }).GetSnapshot().GetGpus()
	require.Len(t, rows, 1)
	require.Equal(t, "GPU-1", rows[0].GetUuid())
	require.EqualValues(t, 81000, rows[0].GetPowerMilliwatts())
	require.Nil(t, rows[0].EnergyMillijoules)
	p.send(&agppb.Command{Command: &agppb.Command_Stop{Stop: &agppb.Stop{}}})
	require.NoError(t, p.served())
}
