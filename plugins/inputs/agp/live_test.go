package agp

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/influxdata/telegraf/config"
	"github.com/stretchr/testify/require"
)

// livePlugin is a plugin that mirrors eth0.
func livePlugin(t *testing.T) *AGP {
	t.Helper()
	a := plugin(t)
	a.Source, a.Files, a.Interfaces = sourceMirror, nil, []string{"eth0"}
	return a
}

func TestLiveConfigurationReachesTheEngine(t *testing.T) {
	a := livePlugin(t)
	a.Interfaces = []string{"eth0", "eth1"}
	a.Live.EngineClasses, a.Live.SampleEvery, a.Live.SharePermille = []string{"tcp", "udp/53"}, 10, 500
	require.NoError(t, a.Init())
	s := a.conf.GetSource()
	require.Equal(t, "mirror", s.GetKind())
	require.Empty(t, s.GetFiles())
	l := s.GetLive()
	require.Equal(t, []string{"eth0", "eth1"}, l.GetInterfaces())
	require.EqualValues(t, 256, l.GetSnapLen())
	require.EqualValues(t, 4<<20, l.GetRingBytes())
	require.Equal(t, []string{"tcp", "udp/53"}, l.GetPolicy().GetEngine())
	require.EqualValues(t, 10, l.GetPolicy().GetSampleEvery())
	require.EqualValues(t, 500, l.GetPolicy().GetSharePermille())
	require.InDelta(t, 1.3, l.GetRebalanceSkew(), 0)
	require.Equal(t, "eth0+eth1", a.conf.GetInterface())
	require.Equal(t, int64(time.Minute), a.conf.GetSketchWindowNs(), "live readings are of the last minute")

	a = livePlugin(t)
	a.Source, a.Live.Peer, a.Live.RSS, a.Live.Channels = sourceDivert, "eth1", true, 4
	w := config.Duration(0)
	a.SketchWindow = &w
	require.NoError(t, a.Init())
	require.Equal(t, "eth1", a.conf.GetSource().GetLive().GetPeer())
	require.True(t, a.conf.GetSource().GetLive().GetRss())
	require.Zero(t, a.conf.GetSketchWindowNs())

	a = plugin(t)
	require.NoError(t, a.Init())
	require.Nil(t, a.conf.GetSource().GetLive())
	require.Zero(t, a.conf.GetSketchWindowNs(), "readings of a capture are of all of it")
}

func TestLiveConfigurationComplaintsNameTheKeyAndWhatIsAllowed(t *testing.T) {
	for want, change := range map[string]func(*AGP){
		"interfaces = [], allowed: at least one interface":               func(a *AGP) { a.Interfaces = nil },
		`interfaces[0] = "a/b"`:                                          func(a *AGP) { a.Interfaces[0] = "a/b" },
		`interfaces[0] = ""`:                                             func(a *AGP) { a.Interfaces[0] = "" },
		`interfaces[0] = "0123456789abcdef"`:                             func(a *AGP) { a.Interfaces[0] = "0123456789abcdef" },
		`interfaces[0] = "eth0\x00"`:                                     func(a *AGP) { a.Interfaces[0] = "eth0\x00" },
		`interfaces = [eth0 eth1], allowed: one with source = "divert"`:  func(a *AGP) { a.Source, a.Interfaces = sourceDivert, []string{"eth0", "eth1"} },
		`interfaces[1] = "eth0", allowed: each interface once`:           func(a *AGP) { a.Interfaces = []string{"eth0", "eth0"} },
		`files = [x.pcap], allowed: none with source = "mirror"`:         func(a *AGP) { a.Files = []string{"x.pcap"} },
		"live.snap_len = 63, allowed: 64 to 256":                         func(a *AGP) { a.Live.SnapLen = 63 },
		"live.snap_len = 257":                                            func(a *AGP) { a.Live.SnapLen = 257 },
		"live.ring_size = 65537, allowed: a power of two":                func(a *AGP) { a.Live.RingSize = 65537 },
		"live.ring_size = 4096":                                          func(a *AGP) { a.Live.RingSize = 4096 },
		`live.xdp_mode = "hw", allowed: "auto", "native", "generic"`:     func(a *AGP) { a.Live.XDPMode = "hw" },
		`live.zero_copy = "yes", allowed: "auto", "on", "off"`:           func(a *AGP) { a.Live.ZeroCopy = "yes" },
		"live.umem_frames = 1000, allowed: a power of two":               func(a *AGP) { a.Live.UMEMFrames = 1000 },
		`live.peer = "eth1", allowed: only with source = "divert"`:       func(a *AGP) { a.Live.Peer = "eth1" },
		`live.peer = "eth0", allowed: another interface`:                 func(a *AGP) { a.Source, a.Live.Peer = sourceDivert, "eth0" },
		`live.rss, live.channels, live.ring_entries, allowed: only with`: func(a *AGP) { a.Live.RSS = true },
		"live.channels = 1025":                                           func(a *AGP) { a.Source, a.Live.Channels = sourceDivert, 1025 },
		`live.engine_classes[0]: not a traffic class`:                    func(a *AGP) { a.Live.EngineClasses = []string{"tpc"} },
		`live.kernel_classes[1]: not a traffic class`:                    func(a *AGP) { a.Live.KernelClasses = []string{"tcp", "udp/0"} },
		"live.engine_classes and live.kernel_classes = 33, allowed: 32":  func(a *AGP) { a.Live.EngineClasses = manyClasses(33) },
		"live.sample_every = 0, allowed: 1 to":                           func(a *AGP) { a.Live.SampleEvery = 0 },
		"live.share_permille = 1001, allowed: 1 to 1000":                 func(a *AGP) { a.Live.SharePermille = 1001 },
		"live.max_blocked = 0":                                           func(a *AGP) { a.Live.MaxBlocked = 0 },
		"live.rebalance_skew = 1, allowed: 0 or 1.01":                    func(a *AGP) { a.Live.RebalanceSkew = 1 },
		"live.rebalance_skew = NaN":                                      func(a *AGP) { a.Live.RebalanceSkew = math.NaN() },
		`live.state_dir = "state", allowed: an absolute path`:            func(a *AGP) { a.Live.StateDir = "state" },
		"sketch_window = 1ms, allowed: 0s or 1s":                         func(a *AGP) { w := config.Duration(time.Millisecond); a.SketchWindow = &w },
	} {
		a := livePlugin(t)
		change(a)
		err := a.Init()
		require.ErrorIs(t, err, ErrConfig, want)
		require.ErrorContains(t, err, want)
	}
	a := plugin(t)
	a.Interfaces = []string{"eth0"}
	require.ErrorContains(t, a.Init(), `interfaces = [eth0], allowed: none with source = "pcap"`)
}

func manyClasses(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "tcp"
	}
	return list
}

// TestPortsArePutBackAfterEveryEngine: by the engine's own program, which is told where to look.
func TestPortsArePutBackAfterEveryEngine(t *testing.T) {
	dir := t.TempDir()
	a := livePlugin(t)
	a.Source, a.Live.Peer, a.Live.StateDir = sourceDivert, "eth1", dir
	script := filepath.Join(dir, "engine")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho \"$@\" >"+dir+"/args; exit $(cat "+dir+"/code)\n"), 0o700))
	a.EngineCommand = []string{script, "engine"}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "code"), []byte("0"), 0o600))
	a.takeBack()
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	require.NoError(t, err)
	require.Equal(t, "engine --restore "+dir+" --interface eth0 --interface eth1\n", string(args))
}
