package agp

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestViewersSeeWhatThePluginReports(t *testing.T) {
	t.Setenv(engineEnv, "1")
	dir, err := os.MkdirTemp("", "agp")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	a := plugin(t)
	a.Interface, a.ViewSocket = "lab", filepath.Join(dir, "run", "v")
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	v, err := control.DialView(context.Background(), a.ViewSocket)
	require.NoError(t, err)
	defer v.Close()
	h := handler{a.converter, &acc, nil, a.view}
	h.Alert(&telemetry.Alert{Kind: "port_scan", Src: "198.51.100.9", Count: 20})
	wait(t, "the alert is shown", func() bool {
		look, err := v.Next()
		require.NoError(t, err)
		require.Equal(t, "lab", look.Interface)
		for i := range look.Alerts { // the engine finds others
			if look.Alerts[i].Src == "198.51.100.9" {
				return look.State != ""
			}
		}
		return false
	})

	// Another plugin goes without, and says so.
	log := &testutil.CaptureLogger{}
	b := plugin(t)
	b.Log, b.ViewSocket = log, a.ViewSocket
	require.NoError(t, b.Init())
	require.NoError(t, b.Start(&acc))
	require.Contains(t, strings.Join(log.Warnings(), "\n"), "Nobody can watch this engine (view_socket = \""+a.ViewSocket+"\"): view socket: "+a.ViewSocket+": "+control.ErrInUse.Error())
	b.Stop()
	require.FileExists(t, a.ViewSocket, "it is not the other's")

	start := time.Now()
	a.Stop()
	require.Less(t, time.Since(start), 5*time.Second)
	require.NoFileExists(t, a.ViewSocket)
	require.NoDirExists(t, filepath.Dir(a.ViewSocket), "it was made for the socket")
	_, err = control.DialView(context.Background(), a.ViewSocket)
	require.ErrorIs(t, err, control.ErrNoView)
}
