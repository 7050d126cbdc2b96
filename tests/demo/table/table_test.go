package table

import (
	"bytes"
	"strings"
	"testing"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/parsers/influx"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/traffic"
)

var truth = traffic.Summary{
	Total: traffic.Total{Flows: 30, Packets: 300, Bytes: 9000}, Retransmits: 2, OutOfOrder: 1,
	Apps:   map[string]traffic.Total{"tls": {Flows: 20}},
	Events: []traffic.Event{{Kind: "port_scan", Src: "192.0.2.66", Dst: "10.1.0.200"}, {Kind: "syn_flood", Dst: "10.1.0.80"}},
}

const (
	counted = "agp_traffic,app=TLS,protocol=tcp flows=20i,packets=100i,bytes=3000i,tcp_retransmits=1i,tcp_out_of_order=0i 1\n" +
		"agp_traffic,app=TLS,protocol=tcp flows=20i,packets=250i,bytes=8000i,tcp_retransmits=2i,tcp_out_of_order=1i 2\n" +
		"agp_traffic,app=unknown,protocol=udp flows=10i,packets=50i,bytes=1000i,tcp_retransmits=0i,tcp_out_of_order=0i 2\n"
	alerted = "agp_alert,kind=port_scan src=\"192.0.2.66\",dst=\"10.1.0.200\" 3\nagp_alert,kind=syn_flood dst=\"10.1.0.80\" 4\n"
)

func parse(t *testing.T, lines string) []telegraf.Metric {
	t.Helper()
	p := &influx.Parser{}
	require.NoError(t, p.Init())
	m, err := p.Parse([]byte(lines))
	require.NoError(t, err)
	return m
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		lines  string
		missed string // row that must say so; empty if all is well
	}{
		"all found":      {counted + alerted, ""},
		"packet missing": {strings.Replace(counted, "packets=250i", "packets=249i", 1) + alerted, "packets"},
		"application":    {strings.ReplaceAll(counted, "app=TLS", "app=DNS") + alerted, "tls flows"},
		"no alert":       {counted + strings.Split(alerted, "\n")[0], "syn_flood alert"},
		"wrong kind":     {counted + strings.Replace(alerted, "syn_flood", "udp_flood", 1), "syn_flood alert"},
		"false alarm":    {counted + alerted + "agp_alert,kind=beacon src=\"10.1.0.1\",dst=\"198.18.0.1\" 5\n", "other alerts"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			missed := Compare(&out, truth, parse(t, c.lines))
			require.Equal(t, c.missed != "", missed, out.String())
			for line := range strings.Lines(out.String()) {
				require.Equal(t, c.missed != "" && strings.HasPrefix(line, c.missed+" "), strings.Contains(line, "MISSED"), line)
			}
		})
	}
}
