package control

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// show serves an engine whose counter is n.
func show(t *testing.T, interval time.Duration, n *atomic.Uint64) *ViewServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "agp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := ListenView(ViewConfig{
		Path: filepath.Join(dir, "v"), Version: "v1", Interface: "eth0", Log: &logLines{}, Interval: interval,
		Snapshot: func(s *telemetry.Snapshot) Engine {
			s.Reset()
			s.Engine.PacketsSeen = n.Add(1)
			s.Sketches = append(s.Sketches, telemetry.SketchRow{Name: "sources", Kind: telemetry.SketchDistinct, State: make([]byte, 100_000), Encoding: "hll_datasketches"})
			for i := range 200 {
				s.Top = append(s.Top, telemetry.TopRow{Metric: "src_bytes", Rank: uint16(i), Src: strings.Repeat("x", 100)})
			}
			return Engine{State: "running", Restarts: 2, PacketsLost: 7, LastError: "engine died"}
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func watch(t *testing.T, s *ViewServer) *Viewer {
	t.Helper()
	v, err := DialView(context.Background(), s.cfg.Path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = v.Close() })
	return v
}

func TestViewersSeeTheEngine(t *testing.T) {
	s := show(t, time.Millisecond, new(atomic.Uint64))
	for i := range viewAlerts + 3 {
		s.Alert(&telemetry.Alert{Kind: fmt.Sprint("kind ", i)})
	}
	viewers := []*Viewer{watch(t, s), watch(t, s), watch(t, s)}
	for _, v := range viewers {
		a, err := v.Next()
		require.NoError(t, err)
		require.Equal(t, Engine{State: "running", Restarts: 2, PacketsLost: 7, LastError: "engine died"}, a.Engine)
		require.Equal(t, []string{"v1", "eth0"}, []string{a.Version, a.Interface})
		require.Len(t, a.Snapshot.Top, 200)
		require.Empty(t, a.Snapshot.Sketches[0].State, "states of sketches are left out")
		require.Len(t, a.Alerts, viewAlerts)
		require.Equal(t, "kind 3", a.Alerts[0].Kind)
		require.Equal(t, fmt.Sprint("kind ", viewAlerts+2), a.Alerts[viewAlerts-1].Kind)
		b, err := v.Next()
		require.NoError(t, err)
		require.Greater(t, b.Snapshot.Engine.PacketsSeen, a.Snapshot.Engine.PacketsSeen)
	}
	require.NoError(t, s.Close())
	var err error
	for err == nil {
		_, err = viewers[0].Next()
	}
	require.ErrorContains(t, err, s.cfg.Path)
}

// A viewer that reads nothing takes a socket's buffer and no more, and holds nobody up.
func TestAStoppedViewerDisturbsNobody(t *testing.T) {
	var n atomic.Uint64
	s := show(t, time.Millisecond, &n)
	var stopped []net.Conn
	for range 4 {
		c, err := net.Dial("unix", s.cfg.Path)
		require.NoError(t, err)
		defer c.Close()
		stopped = append(stopped, c)
	}
	// Until all of them are full, so that the readings stand still.
	full := func() bool {
		before := n.Load()
		time.Sleep(50 * time.Millisecond)
		return before > 0 && n.Load() == before
	}
	require.Eventually(t, full, 4*time.Second, time.Millisecond)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	for i := range 100_000 {
		s.Alert(&telemetry.Alert{Kind: "port_scan", Count: uint64(i)})
	}
	require.Less(t, time.Since(start), 3*time.Second, "an alert waits for nobody")
	v := watch(t, s)
	for range 50 {
		_, err := v.Next()
		require.NoError(t, err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(2<<20))
	closing := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(closing), time.Second, "nor does the end")
	require.Len(t, stopped, 4)
}

func TestViewersThatLeaveMakeRoom(t *testing.T) {
	s := show(t, time.Hour, new(atomic.Uint64))
	var viewers []*Viewer
	for range maxClients {
		v := watch(t, s)
		_, err := v.Next()
		require.NoError(t, err)
		viewers = append(viewers, v)
	}
	_, err := watch(t, s).Next()
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, ErrBusy.Error())
	require.NoError(t, viewers[0].Close())
	require.Eventually(t, func() bool { _, err := watch(t, s).Next(); return err == nil }, 10*time.Second, time.Millisecond)
}

func TestTheViewSocketIsForOwnerAndGroup(t *testing.T) {
	s := show(t, time.Hour, new(atomic.Uint64))
	info, err := os.Stat(s.cfg.Path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	require.ErrorIs(t, s.check(&peer{uid: 12345, gid: 12345}), ErrDenied)
	_, err = DialView(context.Background(), "/does/not/exist")
	require.ErrorIs(t, err, ErrNoView)
	require.ErrorContains(t, err, "/does/not/exist")
}
