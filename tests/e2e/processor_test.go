package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/testcap"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// exports are the packets that softflowd sends about a capture.
func exports(t *testing.T, capture string, args ...string) [][]byte {
	t.Helper()
	softflowd := testcap.Program(t, "softflowd")
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadBuffer(4<<20))
	packets, ended := make(chan [][]byte, 1), make(chan struct{})
	go func() {
		var list [][]byte
		buf := make([]byte, 1<<16)
		for {
			_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			n, err := conn.Read(buf)
			if err == nil {
				list = append(list, slices.Clone(buf[:n]))
				continue
			}
			select {
			case <-ended: // and nothing came since
				packets <- list
				return
			default:
			}
		}
	}()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), softflowd, append([]string{
		"-r", capture, "-n", conn.LocalAddr().String(), "-d", "-6", "-m", "100000", "-c", "none", "-p", filepath.Join(dir, "pid"),
	}, args...)...)
	out, err := cmd.CombinedOutput()
	close(ended)
	require.NoError(t, err, string(out))
	list := <-packets
	require.NotEmpty(t, list, string(out))
	return list
}

// freePort is one that nobody listens on now.
func freePort(t *testing.T) *net.UDPAddr {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr)
}

// sendPaced leaves the receiver time to take each packet.
func sendPaced(t *testing.T, to *net.UDPAddr, packets [][]byte) {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, to)
	require.NoError(t, err)
	defer conn.Close()
	for _, p := range packets {
		_, err := conn.Write(p)
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
	}
}

func netflowSection(to *net.UDPAddr, protocol string) string {
	return fmt.Sprintf("[[inputs.netflow]]\n  service_address = \"udp://%s\"\n  protocol = %q\n", to, protocol)
}

// processorKeys let all flows wait until the end, so that nothing depends on this machine's speed.
const processorKeys = "  models = [\"none\"]\n  pair_timeout = \"1h\"\n  report_interval = \"1s\"\n"

// processorSection is the execd section that runs the processor in the plugin's real binary.
func processorSection(t *testing.T) string {
	t.Helper()
	config := writeFile(t, filepath.Join(t.TempDir(), "agp.conf"), "[[processors.agp]]\n"+processorKeys)
	return fmt.Sprintf("[[processors.execd]]\n  command = [%q, \"run\", \"--config\", %q]\n  restart_delay = \"100ms\"\n", agpBinary(t), config)
}

// finding is what an alert is about.
type finding struct {
	Kind, Src, Dst   string
	SrcPort, DstPort int64
}

// packetFindings are those of the engine, which sees every packet.
func packetFindings(t *testing.T, capture string) (list []finding) {
	t.Helper()
	out, err := exec.Command(agpBinary(t), "replay", "--models", "none", "--no-records", "--output", "json", capture).Output()
	require.NoError(t, err)
	for line := range bytes.Lines(out) {
		var a struct {
			Type, Kind, Src, Dst string
			SrcPort              int64 `json:"src_port"`
			DstPort              int64 `json:"dst_port"`
		}
		require.NoError(t, json.Unmarshal(line, &a))
		if a.Type == "alert" {
			list = append(list, finding{a.Kind, a.Src, a.Dst, a.SrcPort, a.DstPort})
		}
	}
	return list
}

func flowFindings(t *testing.T, db *influx.Server) (list []finding) {
	t.Helper()
	if db.Int("e2e", `SELECT count("time_ns") FROM "agp_alert"`) == 0 {
		return nil
	}
	for _, m := range allPoints(t, db, "agp_alert") {
		f := finding{}
		f.Kind, _ = m.GetTag("kind")
		if v, ok := m.GetField("src"); ok {
			f.Src = v.(string)
		}
		if v, ok := m.GetField("dst"); ok {
			f.Dst = v.(string)
		}
		for name, to := range map[string]*int64{"src_port": &f.SrcPort, "dst_port": &f.DstPort} {
			if m.HasField(name) {
				*to = field(m, name)
			}
		}
		list = append(list, f)
	}
	return list
}

// notInFlows are findings of the demo's packets that flows cannot show, and why.
var notInFlows = map[finding]string{
	{"covert_timing", "10.1.0.44", "203.0.113.9", 0, 9999}: "the message is in the times of single packets, which no meter exports",
}

// Flows of a real exporter through telegraf's own input: every metric arrives, and the detectors
// find in flows what they find in the packets, except what is listed.
func TestProcessorFindsInNetflowWhatThePacketsShow(t *testing.T) {
	capture := writeCapture(t, traffic.Demo(1))
	packets := packetFindings(t, capture)
	var want []finding
	for _, f := range packets {
		if notInFlows[f] == "" {
			want = append(want, f)
		}
	}
	require.Len(t, packets, len(want)+len(notInFlows), "no exception is unused")
	for _, c := range []struct {
		protocol string
		args     []string
	}{
		{"ipfix", []string{"-v", "10", "-A", "milli"}}, // absolute times
		{"netflow v9", []string{"-v", "9"}},            // times since the exporter's start
		{"netflow v5", []string{"-v", "5"}},            // the same, and when that was
	} {
		t.Run(c.protocol, func(t *testing.T) {
			exported := exports(t, capture, c.args...)
			db := influx.Start(t)
			to := freePort(t)
			p := startTelegraf(t, agentConfig(db.URL)+netflowSection(to, c.protocol)+processorSection(t))
			eventually(t, "telegraf listens", func() bool { return strings.Contains(p.log.String(), "Listening on") })
			sendPaced(t, to, exported)
			const flows = `SELECT last("flows") FROM "agp_processor"`
			once := settled(t, db, flows)
			require.Positive(t, once)
			sendPaced(t, to, exported[1:4]) // the network repeats some
			twice := settled(t, db, flows)
			require.Greater(t, twice, once)
			p.stop()

			require.Equal(t, want, flowFindings(t, db))
			last := allPoints(t, db, "agp_processor")
			end := last[len(last)-1]
			require.Equal(t, twice, db.Int("e2e", `SELECT count("src") FROM "netflow"`), "every flow has passed")
			require.Equal(t, twice-once, field(end, "flows_duplicate"))
			require.Equal(t, once, field(end, "flows_analysed")+field(end, "flows_paired"), "one way or two")
			for _, name := range []string{"refused", "flows_late", "flows_continued", "flows_waiting", "clock_steps"} {
				require.Zero(t, field(end, name), name)
			}
			for _, measurement := range []string{"agp_sketch", "agp_top"} {
				require.Equal(t, []string{"flows"}, tagValues(t, db, measurement, "interface"), measurement)
			}
			p.requireCleanLog()
			requireNobodyLeft(t, agpBinary(t))
		})
	}
}

// packetsOnly are findings of real captures that flows cannot show, and why.
var packetsOnly = map[string]map[finding]string{
	"icmp-tunnel.pcap": {
		{"icmp_tunnel", "192.168.154.131", "192.168.154.132", 0, 0}: "sizes of single packets are not exported",
	},
	"TCC_Faust_40_80.pcap": {
		{"covert_timing", "143.93.191.117", "143.93.191.118", 0, 9999}: "times of single packets are not exported",
	},
	"Size_Mod_1000_1001_300ms_0925_1800.pcap": {
		{"covert_size", "192.168.0.46", "192.168.0.206", 0, 9999}: "sizes of single packets are not exported",
	},
}

// What captures hold is found in the flows that softflowd makes of them, except what is
// listed, and nothing else.
func TestProcessorOnRealCaptures(t *testing.T) {
	for _, name := range []string{
		"443-firefox.pcap", "amp.TCP.reflection.SYNACK.pcap", "amp.UDP.snmp.src161.pcapng", "bruteforce.pcap", "malicious-ssh-bruteforce.pcap",
		"bro.org.pcap", "dns_exfiltration.pcap", "icmp-tunnel.pcap", "WebattackRCE.pcap", "TCC_Faust_40_80.pcap", "Size_Mod_1000_1001_300ms_0925_1800.pcap",
	} {
		t.Run(name, func(t *testing.T) {
			capture := filepath.Join(testcap.Dir(t), name)
			exported := exports(t, capture, "-v", "10", "-A", "milli")
			db := influx.Start(t)
			to := freePort(t)
			p := startTelegraf(t, agentConfig(db.URL)+netflowSection(to, "ipfix")+processorSection(t))
			eventually(t, "telegraf listens", func() bool { return strings.Contains(p.log.String(), "Listening on") })
			sendPaced(t, to, exported)
			settled(t, db, `SELECT last("flows") FROM "agp_processor"`)
			p.stop()
			got, want := map[finding]bool{}, map[finding]bool{}
			for _, f := range flowFindings(t, db) {
				got[f] = true
			}
			for _, f := range packetFindings(t, capture) {
				want[f] = true
			}
			for f := range packetsOnly[name] {
				require.True(t, want[f], "listed and not found in packets: %v", f)
				delete(want, f)
			}
			require.Equal(t, want, got)
		})
	}
}

// The processor linked into an agent adds the same to Suricata's events as the one under execd.
func TestProcessorCompiledInAddsTheSame(t *testing.T) {
	eve, err := os.ReadFile("../../plugins/processors/agp/testdata/eve.json")
	require.NoError(t, err)
	events := int64(bytes.Count(eve, []byte("\n")))
	for name, start := range map[string]func(conf string) *process{
		"execd": func(conf string) *process { return startTelegraf(t, conf+processorSection(t)) },
		"compiled in": func(conf string) *process {
			path := writeFile(t, filepath.Join(t.TempDir(), "telegraf.conf"), conf+"[[processors.agp]]\n"+processorKeys)
			return startProcess(t, exec.Command(program(t, "compiledin", "tests/e2e/compiledin"), path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := influx.Start(t)
			socket := filepath.Join(t.TempDir(), "eve.sock")
			p := start(agentConfig(db.URL) + fmt.Sprintf("[[inputs.suricata]]\n  source = %q\n  version = \"2\"\n", socket))
			var conn net.Conn
			eventually(t, "telegraf listens", func() bool {
				conn, err = net.Dial("unix", socket)
				return err == nil
			})
			_, err = conn.Write(eve)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			db.WaitInt("e2e", `SELECT last("flows") FROM "agp_processor"`, events-1)
			p.stop()
			require.ElementsMatch(t, []finding{
				{"port_scan", "10.2.0.66", "10.2.0.5", 0, 0}, {"brute_force", "198.51.100.9", "10.2.0.7", 0, 22},
			}, flowFindings(t, db))
			last := allPoints(t, db, "agp_processor")
			require.Equal(t, events, field(last[len(last)-1], "metrics"))
			require.Equal(t, events-1, field(last[len(last)-1], "flows_analysed"), "all but a DNS event")
			p.requireCleanLog()
		})
	}
}

// settled is the value of a counter that has not grown for a while.
func settled(t *testing.T, db *influx.Server, query string) (n int64) {
	t.Helper()
	since := time.Now()
	eventually(t, query, func() bool {
		v := db.Int("e2e", query)
		if v != n {
			n, since = v, time.Now()
		}
		return n > 0 && time.Since(since) > 1500*time.Millisecond
	})
	return n
}
