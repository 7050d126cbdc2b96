package live

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

var built rig.Built

func TestMain(m *testing.M) {
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

func agpBinary(t testing.TB) string {
	t.Helper()
	path, err := built.Path("telegraf-agp", "agp/cmd/telegraf-agp")
	require.NoError(t, err)
	return path
}

// wire is a veth pair: what enters "out0" of far comes out of "h0" of host.
type wire struct {
	host, far *netns.NS
	queues    int
	sender    *netns.Sender
}

func newWire(t testing.TB, queues, mtu int) *wire {
	t.Helper()
	w := &wire{host: netns.Test(t), far: netns.Test(t), queues: queues}
	require.NoError(t, netns.Veth(netns.End{NS: w.host, Name: "h0"}, netns.End{NS: w.far, Name: "out0"}, queues, mtu))
	var err error
	w.sender, err = w.far.Sender("out0")
	require.NoError(t, err)
	t.Cleanup(w.sender.Close)
	return w
}

// config is rig.Live with a state folder of its own.
func config(t testing.TB, kind string, interfaces ...string) *agppb.Configure {
	t.Helper()
	c := rig.Live(kind, interfaces...)
	// A machine that does something else for a moment costs no frame.
	c.Source.Live.RingBytes, c.Source.Live.UmemFrames = 32<<20, 1<<14
	c.Source.Live.StateDir = t.TempDir()
	return c
}

// start starts an engine and waits until it captures.
func start(t testing.TB, ns *netns.NS, conf *agppb.Configure, cpus ...int) *rig.Engine {
	t.Helper()
	e, err := rig.Start(ns, agpBinary(t), conf, cpus...)
	require.NoError(t, err)
	t.Cleanup(e.End)
	_, err = e.Ready()
	require.NoError(t, err)
	return e
}

// send sends frames at a pace that the engine keeps up with, and waits until it has
// accounted for all.
func (w *wire) send(t testing.TB, e *rig.Engine, frames [][]byte) {
	t.Helper()
	done := rig.Accounted(e.Snapshot())
	const portion = 200
	for at := 0; at < len(frames); at += portion {
		part := frames[at:min(at+portion, len(frames))]
		sent, err := w.sender.Send(part)
		require.NoError(t, err)
		require.Equal(t, len(part), sent)
		done += uint64(sent)
		settle(time.Millisecond)
	}
	require.NoError(t, e.Settled(done, rig.Patience))
}

// drain ends the engine; every packet must be in a record.
func drain(t testing.TB, e *rig.Engine) ([]rig.Record, *agppb.Snapshot) {
	t.Helper()
	list, s, err := e.Drain()
	require.NoError(t, err)
	records, err := rig.FromProto(list)
	require.NoError(t, err)
	require.EqualValues(t, s.GetEngine().GetRecords(), len(records), "records that were not sent")
	require.Equal(t, rig.Seen(s), s.GetEngine().GetPacketsSeen(), e.Words())
	return records, s
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(rig.Patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.Fail(t, "not in time", what)
		}
	}
}

// lost is what the engine has dropped although it was for it.
func lost(s *agppb.Snapshot) map[string]uint64 {
	out := map[string]uint64{}
	for reason, n := range s.GetEngine().GetDrops() {
		switch reason {
		case "ring_full", "rx_dropped", "rx_ring_full", "fill_ring_empty", "rx_invalid", "kernel_drop", "redirect_fail":
			out[reason] = n
		}
	}
	return out
}
