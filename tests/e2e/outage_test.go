package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// outage is long enough for a leak per write, per gather or per record to show.
const outage = time.Minute

// usage is what a process holds: memory in bytes and open files.
type usage struct{ rss, files int }

func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	var pages, resident int
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	_, err = fmt.Sscan(string(b), &pages, &resident)
	require.NoError(t, err)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return usage{resident * os.Getpagesize(), len(files)}
}

// InfluxDB is away while packets flow: plugin and engine go on as before and hold
// no more than before; afterwards no record and no gather is missing.
func TestAGPInfluxDownForAWhile(t *testing.T) {
	db := influx.Start(t)
	shipModels(t)
	// Few flow entries, so that the table does not grow meanwhile; before the flood begins.
	p := startTelegraf(t, agentConfig(db.URL)+agpSection(t, modelKeys(writeCapture(t, traffic.Demo(2)), "  speed = 5.0\n  max_flows = 4096\n")))
	db.WaitInt("e2e", countFlows, 20)
	db.WaitInt("e2e", `SELECT count("packets_seen") FROM "agp_engine"`, 4)
	engine := engineOf(t, agpBinary(t))
	plugin := parent(engine)
	pids := map[string]int{"engine": engine, "plugin": plugin}
	before := map[string]usage{}
	for name, pid := range pids {
		before[name] = usageOf(t, pid)
	}

	seen := db.Int("e2e", lastUp)
	db.Stop()
	down := time.Now()
	// Heaps and pools find their size in the first half.
	highest := map[string]int{}
	require.Eventually(t, func() bool {
		for name, pid := range pids {
			if time.Since(down) < outage/2 {
				highest[name] = max(highest[name], usageOf(t, pid).rss)
			}
		}
		return time.Since(down) >= outage
	}, 2*outage, 100*time.Millisecond)
	require.Greater(t, strings.Count(p.log.String(), "E! [agent] Error writing to"), 10)
	for name, pid := range pids {
		var now usage
		// A file may be open just now, to read from it.
		eventually(t, name+" holds no more files than before", func() bool {
			now = usageOf(t, pid)
			return now.files <= before[name].files
		})
		t.Logf("%s: %+v, before %+v, in the first half up to %d", name, now, before[name], highest[name])
		require.Less(t, now.rss, highest[name]+12<<20, name)
	}
	require.Equal(t, engine, engineOf(t, agpBinary(t)))
	require.Equal(t, plugin, parent(engine))

	db.Restart()
	db.WaitInt("e2e", lastUp, seen+1000)
	p.stop()
	points := allPoints(t, db, "agp_engine")
	last := points[len(points)-1]
	for i := range points[1:] {
		require.Less(t, points[i+1].Time().Sub(points[i].Time()), 5*time.Second, "a gather is missing")
	}
	require.Greater(t, last.Time().Sub(points[0].Time()), outage)
	require.Zero(t, field(last, "restarts"))
	require.Zero(t, field(last, "packets_active"))
	require.Equal(t, field(last, "records"), db.Int("e2e", countFlows))
	require.Equal(t, field(last, "packets_seen"), field(last, "packets_recorded")+field(last, "drops"))
	require.Equal(t, field(last, "packets_recorded"), db.Int("e2e", packetsFlows)+db.Int("e2e", packetsFlowsBack))
	require.Equal(t, field(last, "alerts"), db.Int("e2e", `SELECT count("time_ns") FROM "agp_alert"`))
	require.Zero(t, db.Int("e2e", `SELECT last("metrics_dropped") FROM "agp_runner"`))
	requireNobodyLeft(t, agpBinary(t))
}
