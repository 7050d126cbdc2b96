package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/influxdata/line-protocol/v2/lineprotocol"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// split writes each flow of a capture to one of n files.
func split(t *testing.T, c *traffic.Capture, n int) (paths []string) {
	t.Helper()
	var parts []*pcapgo.Writer
	for i := range n {
		path := filepath.Join(t.TempDir(), fmt.Sprint("part", i, ".pcap"))
		f, err := os.Create(path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		w := pcapgo.NewWriterNanos(f)
		require.NoError(t, w.WriteFileHeader(1<<18, layers.LinkTypeEthernet))
		parts, paths = append(parts, w), append(paths, path)
	}
	var parser packet.Parser
	require.NoError(t, c.Each(func(f traffic.Frame) error {
		var p flow.Packet
		part := 0
		if parser.Parse(packet.LinkEthernet, f.Data, uint32(len(f.Data)), &p.Info) == packet.OK {
			p.Key.Set(&p.Info, flow.KeyOptions{})
			part = int(p.Key.Hash(1) % uint64(n))
		}
		return parts[part].WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, f.TimestampNs), CaptureLength: len(f.Data), Length: len(f.Data)}, f.Data)
	}))
	return paths
}

// broker is a NATS server of this process.
func broker(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(patience))
	return s.ClientURL()
}

// Four agents, each with a part of the flows, send their readings over NATS to a central one, whose merged
// readings are those of an engine that saw everything: quantiles are the same, distinct
// counts and heavy hitters agree within the bounds that they state.
func TestFleetOverNATSIsMergedIntoWhatOneAgentWouldSay(t *testing.T) {
	const hosts = 4
	c := traffic.Bench(11, 30_000, 3_000)
	whole := writeCapture(t, c)
	db, url := influx.Start(t), broker(t)
	binary := program(t, "compiledin", "tests/e2e/compiledin")
	agent := func(conf string) *process {
		return startProcess(t, exec.Command(binary, writeFile(t, filepath.Join(t.TempDir(), "telegraf.conf"), conf)))
	}
	all := []*process{agent(agentConfig(db.URL) + fmt.Sprintf(`[[inputs.nats_consumer]]
  servers = [%q]
  subjects = ["agp"]
  data_format = "influx"
[[aggregators.agp]]
  period = "2s"
  grace = "1m"
  delay = "500ms"
  top_k = 20
  drop_original = true
  namepass = ["agp_sketch", "agp_top"]
`, url))}
	for i, path := range split(t, c, hosts) {
		conf := strings.Replace(agentConfig(""), "omit_hostname = true", fmt.Sprintf("hostname = \"host%d\"", i), 1)
		all = append(all, agent(conf+fmt.Sprintf("[[outputs.nats]]\n  servers = [%q]\n  subject = \"agp\"\n  data_format = \"influx\"\n[[inputs.agp]]\n  engine_command = [%q, \"engine\"]\n  files = [%q]\n  models = [\"none\"]\n  sketch_state = true\n  top_k = 100\n",
			url, agpBinary(t), path)))
	}
	out, err := exec.Command(agpBinary(t), "replay", "--models", "none", "--no-records", "--top", "999", "--output", "influx", whole).Output()
	require.NoError(t, err)
	sketches, tops := map[string]map[string]any{}, map[string]map[string]any{}
	d := lineprotocol.NewDecoderWithBytes(out)
	for d.Next() {
		name, tags, fields := point(t, d)
		switch name {
		case "agp_sketch":
			sketches[tags["sketch"]] = fields
		case "agp_top":
			tops[topKey(tags["metric"], fields)] = fields
		}
	}
	packets := sketches["size"]["count"].(int64)
	require.EqualValues(t, 30_000, packets)
	require.Equal(t, packets, db.WaitInt("e2e", `SELECT last("count") FROM "agp_fleet_sketch" WHERE "sketch" = 'size' AND "count" >= 30000`, packets))
	merged := latest(t, db, `SELECT * FROM "agp_fleet_sketch" WHERE "sources" = 4 GROUP BY "sketch" ORDER BY time DESC LIMIT 1`)
	compared := 0
	for name, want := range sketches {
		got, ok := merged[name]
		if !ok {
			require.Contains(t, name, "entropy", "has a state")
			continue
		}
		compared++
		for _, field := range []string{"count", "p50", "p90", "p99"} {
			if v, ok := want[field]; ok {
				require.InEpsilon(t, number(v), number(got[field]), 1e-9, "%s %s", name, field)
			}
		}
		if v, ok := want["distinct"]; ok { // by other estimators
			require.InEpsilon(t, v, number(got["distinct"]), 3*number(got["error_bound"]), name)
		}
	}
	require.Equal(t, 8, compared)
	rows, err := db.Query("e2e", `SELECT * FROM "agp_fleet_top" GROUP BY "metric", "rank" ORDER BY time DESC LIMIT 1`)
	require.NoError(t, err)
	require.Greater(t, len(rows), 4*20, "there are fewer ports")
	for _, s := range rows {
		f := fieldsOf(s)
		want, ok := tops[topKey(s.Tags["metric"], f)]
		require.True(t, ok, "%v %v", s.Tags, f)
		require.LessOrEqual(t, number(f["value"]), number(want["value"])+number(want["error"]))
		require.GreaterOrEqual(t, number(f["value"])+number(f["error"]), number(want["value"]))
	}
	for _, p := range all {
		p.stop()
		p.requireCleanLog()
	}
	requireNobodyLeft(t, agpBinary(t))
}

func topKey(list string, f map[string]any) string {
	return fmt.Sprint(list, " ", f["src"], " ", f["dst"], " ", f["protocol"], " ", f["src_port"], " ", f["dst_port"])
}

// point reads one point of line protocol.
func point(t *testing.T, d *lineprotocol.Decoder) (name string, tags map[string]string, fields map[string]any) {
	t.Helper()
	m, err := d.Measurement()
	require.NoError(t, err)
	name, tags, fields = string(m), map[string]string{}, map[string]any{}
	for {
		k, v, err := d.NextTag()
		require.NoError(t, err)
		if k == nil {
			break
		}
		tags[string(k)] = string(v)
	}
	for {
		k, v, err := d.NextField()
		require.NoError(t, err)
		if k == nil {
			return name, tags, fields
		}
		fields[string(k)] = v.Interface()
	}
}

// latest is the last point of each sketch.
func latest(t *testing.T, db *influx.Server, q string) map[string]map[string]any {
	t.Helper()
	series, err := db.Query("e2e", q)
	require.NoError(t, err)
	out := map[string]map[string]any{}
	for _, s := range series {
		out[s.Tags["sketch"]] = fieldsOf(s)
	}
	return out
}

func fieldsOf(s influx.Series) map[string]any {
	f := map[string]any{}
	for i, name := range s.Columns {
		f[name] = s.Values[0][i]
	}
	return f
}

// number is a number of line protocol or of InfluxDB.
func number(v any) float64 {
	switch v := v.(type) {
	case json.Number:
		f, _ := v.Float64()
		return f
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return 0
}
