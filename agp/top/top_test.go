package top

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

var update = flag.Bool("update", false, "write the golden frames anew")

// look is what an engine shows after so many seconds.
func look(second int) *control.View {
	n := uint64(second)
	power, busy := uint64(312_400), uint64(97)
	v := &control.View{
		Engine: control.Engine{State: "running", Restarts: 1, PacketsLost: 12, LastError: "engine died: signal: killed"},
		Time:   time.Unix(1_700_000_000+int64(second), 0), Interface: "eth0", Version: "v1",
	}
	s := &v.Snapshot
	s.Engine = telemetry.EngineRow{
		Source: "mirror", Pipeline: "cuda", Models: []string{"app@1", "class@1"}, PacketsSeen: 1_250_000 * n * n, Records: 100 * n, FlowsActive: 4711, Alerts: 2,
		CPUSeconds: 3.25, RSSBytes: 150_000_000, UptimeNs: int64(second) * int64(time.Second), Suppressed: 3,
		Drops: map[string]uint64{"not_ip": 40 * n, "ring_full": 7}, Errors: map[string]uint64{"bad_block": 1},
		PacketToScoreCount: 9, PacketToScoreP50Ns: 12_345, PacketToScoreP90Ns: 45_678, PacketToScoreP99Ns: 1_234_567,
	}
	s.Queues = []telemetry.QueueRow{{Queue: 0, Bytes: 500_000_000 * n, Depth: 3}, {Queue: 1, Bytes: 125_000_000 * n, Depth: -1}}
	for i := range 12 {
		s.Traffic = append(s.Traffic, telemetry.TrafficRow{App: fmt.Sprintf("app%d", i), Class: []string{"benign", "tunnel", ""}[i%3], Bytes: uint64(12-i) * 1_000_000 * n * uint64(1+second%3)})
	}
	for _, metric := range []string{"src_bytes", "src_flows"} {
		for i := range 10 {
			s.Top = append(s.Top, telemetry.TopRow{Metric: metric, Rank: uint16(i + 1), Src: fmt.Sprintf("192.0.2.%d", i), Value: uint64(10-i) * 1_000_000 * n})
		}
	}
	s.Sketches = []telemetry.SketchRow{{Name: "tcp_handshake_ns", Kind: telemetry.SketchQuantile, Count: 5, P50: 1e6, P90: 2e7, P99: 3.3e8}, {Name: "sources", Kind: telemetry.SketchDistinct, Count: 1}}
	s.GPUs = []telemetry.GPURow{{Index: 0, Name: "NVIDIA H200", PowerMilliwatts: &power, UtilizationPercent: &busy}}
	v.Alerts = []telemetry.Alert{
		{TimeNs: 1_700_000_000e9, Kind: "port_scan", Src: "198.51.100.7", Dst: "192.0.2.1", Count: 15},
		{TimeNs: 1_700_000_001e9, Kind: "classified", Class: "tunnel", Src: "192.0.2.9", SrcPort: 40000, Dst: "203.0.113.5", DstPort: 443, Count: 1},
	}
	return v
}

func watched(seconds int) *Screen {
	s := new(Screen)
	for i := range seconds {
		s.Update(look(i + 1))
	}
	return s
}

func TestFramesAreThoseOfTheGoldenFiles(t *testing.T) {
	for _, size := range [][2]int{{130, 40}, {80, 24}, {40, 12}, {20, 5}} {
		name := filepath.Join("testdata", fmt.Sprintf("%dx%d.golden", size[0], size[1]))
		got := ansi.Strip(watched(20).Render(size[0], size[1])) + "\n"
		if *update {
			require.NoError(t, os.WriteFile(name, []byte(got), 0o600))
		}
		want, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(want), got, name)
	}
}

func TestRatesAreDifferencesPerSecond(t *testing.T) {
	s := watched(1)
	require.Contains(t, ansi.Strip(s.Render(80, 24)), "packets                      - ", "one view has no rate")
	s.Update(look(2))
	frame := ansi.Strip(s.Render(80, 100))
	require.Regexp(t, `packets +3\.8 Mpkt/s █`, frame, "1.25 M (4 - 1) in a second")
	require.Regexp(t, `traffic +5\.0 Gbit/s █`, frame)
	late := look(3)
	late.Snapshot.Traffic = append(late.Snapshot.Traffic, telemetry.TrafficRow{App: "late", Bytes: 1000})
	s.Update(late)
	require.Equal(t, history{0, 8000}, *s.apps["late"], "what is new was silent before")
	// Twice the time halves the rate.
	later := look(5)
	later.Snapshot.Engine.PacketsSeen = s.last.packets + 500
	s.Update(later)
	require.InDelta(t, 250, s.packets.now(), 1e-9)
	// A plugin that starts again counts from 0: no rate goes below it.
	again := look(6)
	again.Snapshot.Engine.PacketsSeen, again.Snapshot.Queues, again.Snapshot.Traffic = 0, nil, nil
	s.Update(again)
	require.Zero(t, s.packets.now())
	require.Zero(t, s.bits.now())
	require.Zero(t, s.classes["benign"].now())
}

// No line is longer and no frame higher than the terminal, whatever its size.
func TestEverySizeIsKept(t *testing.T) {
	s := watched(300)
	for _, s := range []*Screen{s, {}} {
		for width := 0; width < 160; width += 1 + width/20 {
			for height := 0; height < 60; height += 1 + height/10 {
				frame := s.Render(width, height)
				if frame == "" {
					continue
				}
				lines := strings.Split(frame, "\n")
				require.LessOrEqual(t, len(lines), height)
				for _, l := range lines {
					require.LessOrEqual(t, ansi.StringWidth(l), width, l)
				}
			}
		}
	}
	require.Empty(t, s.Render(0, 0))
	require.Contains(t, ansi.Strip(s.Render(80, 1)), "telegraf-agp top  eth0  running")
}

func TestNamesFromOutsideDoNotReachTheTerminalAsTheyAre(t *testing.T) {
	evil := "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202e" + strings.Repeat("wide 漢字 ", 100)
	v := look(2)
	v.Interface, v.State, v.LastError = evil, evil, evil
	e := &v.Snapshot.Engine
	e.Source, e.Pipeline, e.Models = evil, evil, []string{evil}
	e.Drops, e.Errors = map[string]uint64{evil: 1}, map[string]uint64{evil: 2}
	for i := range v.Snapshot.Traffic {
		v.Snapshot.Traffic[i].App, v.Snapshot.Traffic[i].Class = evil, evil
	}
	for i := range v.Snapshot.Top {
		v.Snapshot.Top[i].Src, v.Snapshot.Top[i].Metric = evil, evil
	}
	v.Snapshot.Sketches[0].Name = evil + "_ns"
	v.Snapshot.GPUs[0].Name = evil
	v.Alerts = []telemetry.Alert{{Kind: evil, Class: evil, Src: evil, Dst: evil}}
	s := watched(1)
	s.Update(v)
	s.Lost(errors.New(evil))
	for _, width := range []int{20, 80, 200} {
		frame := s.Render(width, 100)
		for _, l := range strings.Split(ansi.Strip(frame), "\n") {
			require.NotContains(t, l, "\x1b")
			require.LessOrEqual(t, ansi.StringWidth(l), width)
		}
		for _, bad := range []string{"\x1b]", "\x1b[2J", "\x07", "\r", "\x9b", "\u202e"} {
			require.NotContains(t, frame, bad)
		}
	}
}

func TestWhatIsKeptDoesNotGrow(t *testing.T) {
	s := new(Screen)
	for i := range 3000 {
		v := look(i + 1)
		v.Snapshot.Traffic = []telemetry.TrafficRow{{App: fmt.Sprint("name ", i), Class: fmt.Sprint("name ", i), Bytes: 1}}
		s.Update(v)
	}
	require.Len(t, s.classes, maxNames)
	require.Len(t, s.packets, past)
	for _, h := range s.apps {
		require.LessOrEqual(t, len(*h), past)
	}
}

func TestSparklinesEndWithTheNewest(t *testing.T) {
	require.Equal(t, "▁▄█", ansi.Strip(sparkline(history{9, 0.001, 5, 10}, 3)))
	require.Equal(t, "  ", ansi.Strip(sparkline(history{0, 0}, 10)))
	require.Empty(t, ansi.Strip(sparkline(history{1}, -5)))
}

func TestKeysAndLostEngines(t *testing.T) {
	looks := 0
	failure := error(nil)
	m := NewModel(func() (*control.View, error) {
		looks++
		return look(looks), failure
	})
	key := func(k tea.Key) tea.Cmd { _, cmd := m.Update(tea.KeyPressMsg(k)); return cmd }
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 50})
	require.Contains(t, m.View().Content, "waiting for the engine")
	next := m.Init()
	for range 3 {
		_, next = m.Update(next())
	}
	require.Contains(t, m.View().Content, "TOP src_bytes")
	require.Nil(t, key(tea.Key{Code: tea.KeyTab}))
	require.Contains(t, m.View().Content, "TOP src_flows")
	key(tea.Key{Code: 'p', Text: "p"})
	before := ansi.Strip(m.View().Content)
	require.Contains(t, before, "paused")
	_, next = m.Update(next())
	require.Contains(t, m.View().Content, "300 records", "the third")
	key(tea.Key{Code: 'p', Text: "p"})
	_, next = m.Update(next())
	require.Contains(t, m.View().Content, "500 records")

	failure = errors.New("the plugin is gone")
	_, next = m.Update(next())
	require.Contains(t, m.View().Content, "the plugin is gone")
	require.Contains(t, m.View().Content, "500 records", "what was seen stays")
	failure = nil
	_, next = m.Update(next()) // waits, then tries again
	m.Update(next())
	require.NotContains(t, m.View().Content, "the plugin is gone")
	for _, k := range []tea.Key{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}, {Code: tea.KeyEscape}} {
		require.Equal(t, tea.QuitMsg{}, key(k)())
	}
}
