package detect_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// expected are the captures that hold an attack which a rule reaches, and the
// kinds of alert that are right for it. Every other capture must stay silent; that
// holds for all of captures/ndpi: none needs to be excused by what its oracle reports.
var expected = map[string][]string{
	"synscan.pcap":                  {detect.PortScan},
	"tcp_scan.pcapng":               {detect.StealthScan},
	"pkt.TCP.synflood.spoofed.pcap": {detect.SYNFlood},
	"tcp-session-syn-flood-drop-precedence-input.pcap": {detect.SYNFlood},
	"amp.TCP.reflection.SYNACK.pcap":                   {detect.SYNACKReflection},
	"amp.UDP.snmp.src161.pcapng":                       {detect.Amplification},
	"amp.UDP.bacnet.IOT.37810.pcapng":                  {detect.Amplification},
	"amp.dns.RRSIG.fragmented.pcap":                    {detect.Amplification},
	"malicious-ssh-bruteforce.pcap":                    {detect.BruteForce},
	"bruteforce.pcap":                                  {detect.BruteForce},
	"WebattackRCE.pcap":                                {detect.RequestFlood},
	"test-cc-capture-1.pcap":                           {detect.Beacon},
	"strrat-4423258f-59bc-4a88-bfec-d8ac08c88538.pcap": {detect.OneWayPush},
	"dns_exfiltration.pcap":                            {detect.DNSTunnel},
	"bad-dns-traffic.pcap":                             {detect.DNSTunnel},
	"icmp-tunnel.pcap":                                 {detect.ICMPTunnel},
	"TCC_Faust_40_80.pcap":                             {detect.CovertTiming},
	"TCC_RedBrownFox_80_160.pcap":                      {detect.CovertTiming, detect.OneWayPush},
	"SCC_Faust_ZIP_60.pcap":                            {detect.OneWayPush},
	"Size_Mod_1000_1001_300ms_0925_1800.pcap":          {detect.CovertSize},
}

// beyond are attacks that no rule here reaches; they are silent. Their traffic is single ordinary-looking
// connections, which the `class` model judges.
var beyond = []string{
	"0e328ab7-12b2-4843-8717-a5b3ebef33a8.pcap", "f9421792-7d2c-47d3-90e0-07eb54ae12fa.pcap", // AgentTesla
	"30a385ed-171e-4f15-ac3f-08c96be7bfd1.pcap", "9596cf60-0da6-47a7-a375-1f25ae32d843.pcap", // AsyncRAT, DCRat
	"mining.pcapng", "dns2tcp_tunnel.pcap",
}

type sink struct {
	alerts []telemetry.Alert
}

func (s *sink) Record(*telemetry.Record) {}
func (s *sink) Alert(a *telemetry.Alert) { s.alerts = append(s.alerts, *a) }

// replay runs a capture through the pipeline without models.
func replay(t *testing.T, path string, queues int, cfg detect.Config) []telemetry.Alert {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	s := &sink{}
	p, err := cpu.New(cpu.Config{Source: src, Sink: s, Queues: queues, Detect: cfg})
	require.NoError(t, err)
	_ = p.Run(context.Background()) // damaged captures end with an error after all that is readable
	return s.alerts
}

func kinds(alerts []telemetry.Alert) []string {
	out := []string{}
	for i := range alerts {
		if !slices.Contains(out, alerts[i].Kind) {
			out = append(out, alerts[i].Kind)
		}
	}
	slices.Sort(out)
	return out
}

func TestCapturesGiveTheRightAlertsAndOthersNone(t *testing.T) {
	seen := 0
	for _, path := range testcap.All(t) {
		name := filepath.Base(path)
		alerts := replay(t, path, 1, detect.Config{})
		want := append([]string{}, expected[name]...)
		slices.Sort(want)
		require.Equal(t, want, kinds(alerts), name)
		require.LessOrEqual(t, len(alerts), 3, "%s: one alert per kind and subject", name)
		if len(want) > 0 {
			seen++
		}
		if len(want) > 0 || slices.Contains(beyond, name) {
			t.Logf("%-50s %v", name, kinds(alerts))
		}
	}
	require.Equal(t, len(expected), seen, "captures with attacks found")
}

// The thresholds are not fitted to the captures: with all counts halved no other
// capture alerts either, and 30 % higher all attacks still do.
func TestThresholdsHaveMargin(t *testing.T) {
	counts := []string{"syn_flood", "syn_ack_reflection", "amplification", "amplification_large", "udp_flood", "icmp_flood", "request_flood",
		"port_scan", "udp_port_scan", "host_scan", "brute_force", "beacon", "dns_tunnel", "icmp_tunnel", "covert_timing", "one_way_push"}
	scaled := func(by float64) detect.Config {
		m := map[string]float64{}
		for _, t := range options.Thresholds() {
			if slices.Contains(counts, t.Name) {
				m[t.Name] = by * t.Default
			}
		}
		require.Len(t, m, len(counts))
		cfg, err := detect.ParseConfig(m)
		require.NoError(t, err)
		return cfg
	}
	half, more := scaled(0.5), scaled(1.3)
	for i, path := range testcap.All(t) {
		if detect.RaceEnabled && i%8 != 0 {
			continue // the same code ten times slower: a sample will do
		}
		name := filepath.Base(path)
		if want := expected[name]; want != nil {
			alerts := kinds(replay(t, path, 1, more))
			require.NotEmpty(t, alerts, name)
			require.Subset(t, want, alerts, name)
		} else {
			require.Empty(t, replay(t, path, 1, half), name)
		}
	}
}

// The demo's four attacks are found, its other traffic and mixed traffic stay silent.
func TestSyntheticTrafficGivesExactlyTheAlertsItHolds(t *testing.T) {
	write := func(c *traffic.Capture) string {
		path := filepath.Join(t.TempDir(), "synthetic.pcap")
		file, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, c.WritePcap(file))
		require.NoError(t, file.Close())
		return path
	}
	for seed := range uint64(3) {
		alerts := replay(t, write(traffic.Demo(seed)), 2, detect.Config{})
		require.Equal(t, []string{detect.Beacon, detect.CovertTiming, detect.PortScan, detect.SYNFlood}, kinds(alerts))
		require.Len(t, alerts, 4)
		require.Empty(t, replay(t, write(traffic.Bench(seed, 200_000, 10_000)), 2, detect.Config{}))
	}
}

func TestAlertsDoNotDependOnTheNumberOfQueues(t *testing.T) {
	for _, name := range []string{"synscan.pcap", "bruteforce.pcap", "test-cc-capture-1.pcap", "amp.UDP.snmp.src161.pcapng", "pkt.TCP.synflood.spoofed.pcap"} {
		path := filepath.Join(testcap.Dir(t), name)
		require.Equal(t, replay(t, path, 1, detect.Config{}), replay(t, path, 7, detect.Config{}), name)
	}
}
