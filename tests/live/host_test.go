package live

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// pluginConfig writes a configuration of the plugin. keys are those of the table
// itself, live those of its table "live".
func pluginConfig(t testing.TB, source, keys, live string, interfaces ...string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "agp.conf")
	text := fmt.Sprintf("[[inputs.agp]]\n  source = %q\n  interfaces = [\"%s\"]\n  models = [\"none\"]\n%s  [inputs.agp.live]\n    state_dir = %q\n%s",
		source, strings.Join(interfaces, `", "`), keys, filepath.Join(dir, "state"), live)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func startPlugin(t testing.TB, ns *netns.NS, config string) *rig.Process {
	t.Helper()
	p, err := rig.Plugin(ns, agpBinary(t), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Stop()
		if t.Failed() {
			t.Logf("log of the plugin:\n%s", p.Log())
		}
	})
	return p
}

// attached waits until the interface has programs, and returns them.
func attached(t testing.TB, ns *netns.NS, name string) (list []string) {
	t.Helper()
	eventually(t, "programs on "+name, func() bool {
		var err error
		list, err = rig.Programs(ns, name)
		return err == nil && len(list) > 0
	})
	return list
}

// linkDrops is what the driver of an interface has dropped.
func linkDrops(t testing.TB, ns *netns.NS, name string) uint64 {
	t.Helper()
	l, err := ns.Link(name)
	require.NoError(t, err)
	s := l.Attrs().Statistics
	return s.RxDropped + s.TxDropped + s.RxErrors + s.TxErrors
}

// Mirror loses no packet of the host's own traffic while the engine starts, runs,
// is killed, reloads and stops.
func TestMirrorDisturbsNoTrafficOfTheHost(t *testing.T) {
	netns.NothingLeft(t)
	l := newLAN(t, true)
	config := pluginConfig(t, "mirror", "", "", "h0")
	drops := linkDrops(t, l.host, "h0") + linkDrops(t, l.far, "q0")

	udp, err := rig.ProbeUDP(l.host, farNet.Addr())
	require.NoError(t, err)
	icmp, err := rig.ProbeICMP(l.host, farNet.Addr())
	require.NoError(t, err)
	stream, err := rig.StartStream(l.host, farNet.Addr())
	require.NoError(t, err)

	began := time.Now()
	stage := func(name string) { t.Logf("%5.2f s %s", time.Since(began).Seconds(), name) }
	stage("traffic")
	settle(200 * time.Millisecond)
	for range 3 {
		stage("start")
		p := startPlugin(t, l.host, config)
		first := attached(t, l.host, "h0")
		settle(500 * time.Millisecond)
		stage("kill -9 of the engine")
		require.NoError(t, syscall.Kill(p.Engine(), syscall.SIGKILL))
		eventually(t, "another engine", func() bool {
			now, err := rig.Programs(l.host, "h0")
			return err == nil && len(now) > 0 && !sameAny(first, now)
		})
		settle(300 * time.Millisecond)
		stage("SIGHUP")
		p.Signal(syscall.SIGHUP)
		eventually(t, "reloaded", func() bool { return strings.Contains(p.Log(), "models exchanged") })
		settle(500 * time.Millisecond)
		stage("stop")
		require.NoError(t, p.Stop())
		settle(200 * time.Millisecond)
	}
	stage("end")

	bytes, gap, again, err := stream.Stop()
	require.NoError(t, err)
	t.Logf("TCP: %d MB, longest wait for 80 kB %v, segments sent again: %d", bytes>>20, gap.Round(time.Microsecond), again)
	for _, p := range []*rig.Probe{udp, icmp} {
		r := p.Stop()
		t.Logf("%s at 1 kHz: %d sent, %d answered, longest gap %v at %.2f s", p.Name, r.Sent, r.Answered, r.Gap.Round(time.Microsecond), r.At.Sub(began).Seconds())
		require.Equal(t, r.Sent, r.Answered, p.Name)
		require.Greater(t, r.Sent, uint64(1000))
		require.Less(t, r.Gap, time.Second)
	}
	require.Equal(t, drops, linkDrops(t, l.host, "h0")+linkDrops(t, l.far, "q0"), "drops at the interfaces")
	require.Positive(t, bytes)
}

// settle lets the traffic of a test run for a while.
func settle(d time.Duration) { <-time.After(d) }

// sameAny says whether the lists have a program in common.
func sameAny(a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				return true
			}
		}
	}
	return false
}
