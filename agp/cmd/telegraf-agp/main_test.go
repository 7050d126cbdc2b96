package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/parsers/influx"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/packet"
	simt "github.com/agp-net/telegraf-agp/tests/simt/machine"
)

// The test binary is the program itself when this variable is set; its name
// begins with the program's, so that it is also what the plugin starts as engine.
const mainEnv = "AGP_TEST_MAIN"

// With this one the machine has a GPU, which is emulated.
const emulatedEnv = "AGP_TEST_EMULATED"

func TestMain(m *testing.M) {
	if os.Getenv(emulatedEnv) != "" {
		hardware = simt.Emulated()
	}
	if os.Getenv(mainEnv) != "" {
		os.Exit(run(context.Background(), append([]string{"telegraf-agp"}, os.Args[1:]...)))
	}
	os.Exit(m.Run())
}

func program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	return cmd
}

// call runs the program to its end.
func call(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program(args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	if err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

// capturePackets writes a capture of n UDP packets of two flows, a second apart, and one ARP frame.
func capturePackets(t *testing.T, n int) string {
	t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(b, 65535)
	b = le.AppendUint32(b, 1) // Ethernet
	add := func(second int, frame []byte) {
		b = le.AppendUint32(b, uint32(1_700_000_000+second))
		b = le.AppendUint32(b, 0)
		b = le.AppendUint32(b, uint32(len(frame)))
		b = le.AppendUint32(b, uint32(len(frame)))
		b = append(b, frame...)
	}
	for i := range n {
		f := make([]byte, 60)
		f[12] = 8 // IPv4
		ip := f[14:]
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], 40)
		copy(ip[12:], []byte{10, 0, 0, byte(i % 2), 10, 0, 1, 1})
		binary.BigEndian.PutUint16(ip[20:], 5000)
		binary.BigEndian.PutUint16(ip[22:], 53)
		binary.BigEndian.PutUint16(ip[24:], 20)
		add(i, f)
	}
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	add(n, arp)
	path := filepath.Join(t.TempDir(), "two flows.pcap")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

func parse(t *testing.T, lines string) []telegraf.Metric {
	t.Helper()
	p := &influx.Parser{}
	require.NoError(t, p.Init())
	m, err := p.Parse([]byte(lines))
	require.NoError(t, err)
	return m
}

func named(metrics []telegraf.Metric, name string) (out []telegraf.Metric) {
	for _, m := range metrics {
		if m.Name() == name {
			out = append(out, m)
		}
	}
	return out
}

func TestCommandLine(t *testing.T) {
	out, _, code := call(t, "version")
	require.Zero(t, code)
	require.Regexp(t, `^telegraf-agp \S+ \(commit \w+, go1\.\d+\S*, linux/\w+\)\n$`, out)

	out, _, code = call(t, "--sample-config")
	require.Zero(t, code)
	require.Contains(t, out, "[[inputs.agp]]")

	_, log, code := call(t, "no-such-command")
	require.Equal(t, 1, code)
	require.Contains(t, log, `unknown command "no-such-command"`)

	_, log, code = call(t, "engine")
	require.Equal(t, 1, code)
	require.Contains(t, log, "started by the plugin")

	_, log, code = call(t, "replay", "--decap", "ipip", capturePackets(t, 1))
	require.Equal(t, 1, code)
	require.Contains(t, log, `"ipip"`)
}

func TestRunRefusesBadConfigurationWithKeyAndLine(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "agp.conf")
	require.NoError(t, os.WriteFile(conf, []byte("[[inputs.agp]]\n  files = [\"x\"]\n  modles = []\n"), 0o600))
	_, log, code := call(t, "run", "--config", conf)
	require.Equal(t, 2, code)
	require.Contains(t, log, "modles")
	require.Contains(t, log, "3")
	require.True(t, strings.HasPrefix(log, "E! "), log)
}

func TestReplayPrintsThePointsOfThePluginAtCaptureTime(t *testing.T) {
	file := capturePackets(t, 10)
	out, _, code := call(t, "replay", "--models", "none", "--output", "influx", "--interface", "if0", file)
	require.Zero(t, code)
	metrics := parse(t, out)
	require.Len(t, named(metrics, "agp_flow"), 2)
	seen := map[string]bool{}
	for _, m := range metrics {
		key := fmt.Sprint(m.Name(), m.Tags(), m.Time().UnixNano())
		require.False(t, seen[key], key)
		seen[key] = true
		require.Equal(t, "if0", m.Tags()["interface"])
		require.Equal(t, 2023, m.Time().Year())
	}
	engine := named(metrics, "agp_engine")
	require.Len(t, engine, 1)
	require.Equal(t, int64(11), engine[0].Fields()["packets_seen"])
	require.Equal(t, int64(10), engine[0].Fields()["packets_recorded"])
	require.Equal(t, int64(1), engine[0].Fields()["drops_non_ip_arp"])

	out, _, code = call(t, "replay", "--models", "none", "--output", "json", file)
	require.Zero(t, code)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var sum map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &sum))
	require.InDelta(t, 11, sum["packets_seen"], 0)
}

// startPlugin runs the plugin on a capture at its pace and waits until the engine is there.
func startPlugin(t *testing.T, file string, speed float64) (cmd *exec.Cmd, stdin interface{ Close() error }, out *bytes.Buffer, engine int) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "agp.conf")
	text := fmt.Sprintf("[[inputs.agp]]\n  files = [%q]\n  models = [\"none\"]\n  speed = %v\n  [inputs.agp.flows]\n    emit = \"all\"\n", file, speed)
	require.NoError(t, os.WriteFile(conf, []byte(text), 0o600))
	cmd = program("run", "--config", conf)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out = &bytes.Buffer{}
	cmd.Stdout = out
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	log := bufio.NewReader(stderr)
	line, err := log.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "I! Engine")
	require.Contains(t, line, "ready")
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
	if err != nil {
		t.Skip("the kernel does not list children of a process")
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	require.NoError(t, err)
	for _, task := range tasks {
		list, err := os.ReadFile(task)
		if err == nil {
			children = append(children, list...)
		}
	}
	fields := strings.Fields(string(children))
	require.NotEmpty(t, fields)
	engine, err = strconv.Atoi(fields[0])
	require.NoError(t, err)
	return cmd, in, out, engine
}

func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestKilledPluginLeavesNoEngineAfter2s(t *testing.T) {
	cmd, _, _, engine := startPlugin(t, capturePackets(t, 1000), 1)
	require.False(t, gone(engine))
	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool { return gone(engine) }, 2*time.Second, 5*time.Millisecond)
}

func TestStopFlushesOpenFlowsAndAccountsForEveryPacket(t *testing.T) {
	for name, stop := range map[string]func(cmd *exec.Cmd, in interface{ Close() error }) error{
		"end of input": func(_ *exec.Cmd, in interface{ Close() error }) error { return in.Close() },
		"SIGTERM":      func(cmd *exec.Cmd, _ interface{ Close() error }) error { return cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd, in, out, engine := startPlugin(t, capturePackets(t, 1000), 100)
			begin := time.Now()
			require.NoError(t, stop(cmd, in))
			require.NoError(t, cmd.Wait(), "exit code 0")
			require.Less(t, time.Since(begin), 4*time.Second)
			require.True(t, gone(engine))
			last := named(parse(t, out.String()), "agp_engine")
			f := last[len(last)-1].Fields()
			require.Equal(t, f["packets_seen"], f["packets_recorded"].(int64)+f["drops"].(int64))
			require.Equal(t, int64(0), f["packets_active"])
		})
	}
}

func TestDoctorReportsAndSetsTheExitCode(t *testing.T) {
	file := capturePackets(t, 1)
	out, _, code := call(t, "doctor", "--capture", file)
	require.Zero(t, code, out)
	require.Regexp(t, `(?m)^ok +capture +`, out)
	for _, what := range []string{"processor", "memory", "kernel", "huge pages", "capabilities", "gpu", "pipeline", "models", "telegraf", "configuration"} {
		require.Regexp(t, `(?m)^(ok|note|warn) +`+what+` `, out)
	}

	out, _, code = call(t, "doctor", "--capture", "/does/not/exist")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^missing +capture `, out)
	out, _, code = call(t, "doctor", "--config", "/does/not/exist")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^missing +configuration `, out)
	out, _, code = call(t, "doctor", "--influx", "http://127.0.0.1:1")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^missing +influxdb `, out)
}

func TestDoctorNamesTheKernelsThatModelsRunWith(t *testing.T) {
	require.Contains(t, processor([]model.ISA{model.Go, model.AVX2, model.AVX512}).found, ", AVX-512")
	require.Regexp(t, ", AVX2$", processor([]model.ISA{model.Go, model.AVX2}).found)
	f := processor([]model.ISA{model.Go})
	require.NotContains(t, f.found, "AVX")
	require.Equal(t, levelWarn, f.level)
	out, _, _ := call(t, "doctor")
	here := processor(model.ISAs())
	require.Regexp(t, "(?m)^"+string(here.level)+" +processor +.*"+regexp.QuoteMeta(here.found), out)
}

func TestEveryTunnelOfTheOptionsCanBeOpened(t *testing.T) {
	d, err := parseDecap(options.Tunnels())
	require.NoError(t, err)
	require.Equal(t, packet.Decap{VXLAN: true, GRE: true, Geneve: true, GTPU: true}, d)
	for _, n := range options.Tunnels() {
		one, err := parseDecap([]string{n})
		require.NoError(t, err)
		require.NotZero(t, one, n)
	}
}

func TestDoctorAsksInfluxDB(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ping" {
			w.Header().Set("X-Influxdb-Version", "1.6.7")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer s.Close()
	require.Equal(t, levelOK, asks(s.URL).level)
	require.Equal(t, levelMissing, asks(s.URL+"/other").level)
}

func asks(url string) finding { return influxdb(context.Background(), url) }

func TestDoctorReadsTheMachine(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	m := machine{root: root}
	require.Equal(t, levelWarn, m.memory().level, "nothing is known")
	require.Equal(t, levelWarn, m.capabilities().level)

	write("proc/meminfo", "MemTotal: 1 kB\nMemAvailable:   1000000 kB\nHugePages_Total: 4\nHugepagesize: 2048 kB\n")
	require.Equal(t, levelOK, m.memory().level)
	require.Contains(t, m.memory().found, "976 MiB")
	require.Contains(t, m.hugepages().found, "4 of 2048 KiB")
	write("proc/meminfo", "MemAvailable:   100000 kB\n")
	require.Equal(t, levelWarn, m.memory().level)
	write("proc/self/status", "Name: x\nCapEff:\t0000000000003000\n")
	require.Equal(t, "net_raw net_admin", m.capabilities().found)
}

func TestDoctorJudgesTelegrafByItsVersion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/bin:/usr/bin")
	m := machine{}
	for version, want := range map[string]level{"1.37.2": levelOK, "1.32.0": levelOK, "1.31.9": levelWarn, "2.0.0": levelOK, "none": levelWarn} {
		script := "#!/bin/sh\necho Telegraf " + version + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "telegraf"), []byte(script), 0o700)) //nolint:gosec // to be executed
		require.Equal(t, want, m.telegraf(context.Background()).level, version)
	}
}

// Who replays captures needs neither.
func TestDoctorOnlyNotesThatThereIsNoTelegrafAndNoConfiguration(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.Equal(t, levelNote, (&machine{}).telegraf(context.Background()).level)
	if _, err := os.Stat(defaultConfig); err != nil {
		_, f := (&machine{config: defaultConfig}).configuration()
		require.Equal(t, levelNote, f.level)
	}
}
