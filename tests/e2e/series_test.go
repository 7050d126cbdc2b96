package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/plugins/inputs/agp"
	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

const (
	million = 1_000_000
	// maxSeries is how many series one plugin may have with its default settings.
	maxSeries = 2000
)

// A million distinct flows, each with its record, make few series: engine, models and
// the plugin's own encoder, and a real database that counts.
func TestAMillionFlowsMakeFewSeries(t *testing.T) {
	db := influx.Start(t)
	shipModels(t)
	cmd := exec.Command(agpBinary(t), "replay", "--output", "influx", writeCapture(t, traffic.ManyFlows(7, million)))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	first := map[string]string{} // point of each series
	flows := 0
	for r := bufio.NewReaderSize(out, 1<<20); ; {
		line, err := r.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if bytes.HasPrefix(line, []byte("agp_flow,")) {
			flows++
		}
		if key := seriesKey(line); first[string(key)] == "" {
			first[string(key)] = string(line)
		}
	}
	require.NoError(t, cmd.Wait())
	require.Equal(t, million, flows)
	require.LessOrEqual(t, len(first), maxSeries)

	db.Create("e2e")
	points := strings.Join(slices.Collect(maps.Values(first)), "")
	resp, err := http.Post(db.URL+"/write?"+url.Values{"db": {"e2e"}}.Encode(), "text/plain", strings.NewReader(points))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	require.EqualValues(t, len(first), db.SeriesCount("e2e"))
	t.Logf("%d flows, %d series", flows, len(first))
}

// seriesKey is the part of a line before the first space that is not escaped.
func seriesKey(line []byte) []byte {
	for i, c := range line {
		if c == ' ' && line[i-1] != '\\' {
			return line[:i]
		}
	}
	return line
}

// seriesSet counts the series of what is added, and keeps nothing else.
type seriesSet struct {
	telegraf.Accumulator
	seen map[string]bool
}

func (s *seriesSet) AddFields(name string, _ map[string]any, tags map[string]string, _ ...time.Time) {
	key := name
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		key += "," + tag + "=" + tags[tag]
	}
	s.seen[key] = true
}

func (s *seriesSet) AddCounter(name string, fields map[string]any, tags map[string]string, at ...time.Time) {
	s.AddFields(name, fields, tags, at...)
}

func (s *seriesSet) AddGauge(name string, fields map[string]any, tags map[string]string, at ...time.Time) {
	s.AddFields(name, fields, tags, at...)
}

// The worst that traffic can do: a million flows that differ in all that a tag is made
// of, on a machine with many queues and GPUs that sees alerts of every kind.
func TestNoTrafficMakesManySeries(t *testing.T) {
	const apps, classes, queues, listed = 46, 5, 64, 10
	c := agp.NewConverter(agp.ConverterOptions{Interface: "eth0", Source: "mirror", Pipeline: "cuda"})
	set := &seriesSet{seen: map[string]bool{}}
	now := time.Now()

	r := telemetry.Record{IPVersion: 4}
	for i := range uint32(million) {
		binary.BigEndian.PutUint32(r.Src[:], i)
		r.Protocol = uint8(i)
		r.Outputs = []telemetry.Output{
			{Field: "app", Label: fmt.Sprint("app", i/256%apps)}, {Field: "class", Label: fmt.Sprint("class", i/256/apps%classes)},
		}
		c.Record(&r, now, set)
	}
	require.Len(t, set.seen, agp.DefaultSeriesLimit+1, "all labels were tried")

	s := &telemetry.Snapshot{}
	for i := range apps * classes * 256 {
		s.Traffic = append(s.Traffic, telemetry.TrafficRow{App: fmt.Sprint("app", i/256%apps), Class: fmt.Sprint("class", i/256/apps), Protocol: uint8(i)})
	}
	for _, list := range []string{"src_bytes", "dst_bytes", "dst_port_bytes", "flow_bytes", "src_flows"} {
		for rank := range listed {
			s.Top = append(s.Top, telemetry.TopRow{Metric: list, Rank: uint16(rank + 1)})
		}
	}
	for i := range 10 {
		s.Sketches = append(s.Sketches, telemetry.SketchRow{Name: fmt.Sprint("sketch", i), Count: 1})
	}
	for i := range queues {
		s.Queues = append(s.Queues, telemetry.QueueRow{Queue: uint16(i)})
	}
	for i := range 8 {
		s.GPUs = append(s.GPUs, telemetry.GPURow{Index: uint32(i)})
	}
	for i := range 16 {
		s.Steering = append(s.Steering, telemetry.SteeringRow{Interface: "eth0", Target: fmt.Sprint("target", i)})
	}
	c.Metrics(s, supervise.Status{State: supervise.StateRunning, Up: true}, now, set)
	c.Enforcement(enforce.Stats{}, now, set)
	for i := range 32 {
		c.Alert(&telemetry.Alert{Kind: fmt.Sprint("kind", i)}, now, set)
	}
	for i := range classes {
		c.Alert(&telemetry.Alert{Kind: "classified", Class: fmt.Sprint("class", i)}, now, set)
	}
	require.Greater(t, len(set.seen), 2*agp.DefaultSeriesLimit)
	require.LessOrEqual(t, len(set.seen), maxSeries)
	t.Logf("%d series", len(set.seen))
}
