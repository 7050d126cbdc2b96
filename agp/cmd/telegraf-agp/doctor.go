package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/plugins/inputs/agp"
	"github.com/agp-net/telegraf-agp/plugins/runner"
)

// level is the verdict of one check. A note is of what is not here and not needed by
// everybody. Only what the plugin cannot do without, or what was asked about by an
// option, can be missing.
type level string

const (
	levelOK      level = "ok"
	levelNote    level = "note"
	levelWarn    level = "warn"
	levelMissing level = "missing"
)

// finding is one line of the doctor.
type finding struct {
	level level
	what  string
	found string
	hint  string // what to do about it
}

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "say what this machine can do and what is missing",
		Description: "One line per check: ok, note (not here, and not needed by all commands), warn (works, with a\n" +
			"limit that the line names) or missing.\n" +
			"Exit status 1 if something is missing.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "capture", Usage: "also check that `FILE` can be read"},
			&cli.StringSliceFlag{Name: "interface", Usage: "also check that `NAME` can be captured from"},
			&cli.StringFlag{Name: "influx", Usage: "also check that InfluxDB answers at `URL`"},
			&cli.StringFlag{Name: "config", Usage: "configuration `FILE` of the plugin", Value: defaultConfig},
		},
		Action: func(c *cli.Context) error {
			m := machine{root: "/", config: c.String("config"), captures: c.StringSlice("capture"), interfaces: c.StringSlice("interface"), influx: c.String("influx")}
			return status(report(c.App.Writer, m.examine(c.Context)))
		},
	}
}

// report prints the findings and returns the exit code.
func report(w io.Writer, list []finding) (code int) {
	for _, f := range list {
		line := fmt.Sprintf("%-8s %-13s %s", f.level, f.what, f.found)
		if f.hint != "" {
			line += " (" + f.hint + ")"
		}
		fmt.Fprintln(w, line)
		if f.level == levelMissing {
			code = 1
		}
	}
	return code
}

// machine is what the doctor looks at.
type machine struct {
	root     string // "/", or a folder with proc and the like in tests
	config   string
	captures []string
	influx   string

	interfaces []string
}

func (m *machine) examine(ctx context.Context) []finding {
	list := []finding{
		processor(model.ISAs()), m.memory(), m.kernel(), m.hugepages(), m.capabilities(), m.memlock(), kernelFeatures(steer.Probe()),
	}
	conf, configured := m.configuration()
	list = append(list, gpuFindings(cuda.Open, conf, gpuReadings())...)
	list = append(list, m.models(conf), m.telegraf(ctx), configured)
	for _, c := range m.captures {
		list = append(list, capture(c))
	}
	for _, i := range m.interfaces {
		list = append(list, interfaceFindings(i)...)
	}
	if m.influx != "" {
		list = append(list, influxdb(ctx, m.influx))
	}
	return list
}

// processor says what models run with, by the rule of the package that runs them.
func processor(have []model.ISA) finding {
	f := finding{levelOK, "processor", fmt.Sprintf("%s, %d CPUs usable", runtime.GOARCH, runtime.GOMAXPROCS(0)), ""}
	switch {
	case slices.Contains(have, model.AVX512):
		f.found += ", AVX-512"
	case slices.Contains(have, model.AVX2):
		f.found += ", AVX2"
	default:
		f.level, f.hint = levelWarn, "no AVX2: models run in plain Go, several times slower"
	}
	return f
}

// field returns the first number after a name in a file of name-value lines.
func (m *machine) field(file, name string) (uint64, bool) {
	f, err := os.Open(filepath.Join(m.root, file))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name+":")
		if !ok {
			continue
		}
		base := 10
		if strings.HasPrefix(name, "Cap") {
			base = 16
		}
		parts := strings.Fields(rest)
		if len(parts) == 0 {
			return 0, false
		}
		v, err := strconv.ParseUint(parts[0], base, 64)
		return v, err == nil
	}
	return 0, false
}

// flowBytes is what one active flow takes; stateNeed what the default max_flows takes.
const (
	flowBytes = 704
	stateNeed = flowBytes << 18
)

func (m *machine) memory() finding {
	kib, ok := m.field("proc/meminfo", "MemAvailable")
	if !ok {
		return finding{levelWarn, "memory", "unknown", "no /proc/meminfo"}
	}
	free := kib << 10
	f := finding{levelOK, "memory", fmt.Sprintf("%d MiB available, room for %.1f million flows", free>>20, float64(free/2/flowBytes)/1e6), ""}
	if free < 2*stateNeed {
		f.level, f.hint = levelWarn, "lower max_flows"
	}
	return f
}

func (m *machine) kernel() finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return finding{levelWarn, "kernel", "unknown", err.Error()}
	}
	return finding{levelOK, "kernel", unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]), ""}
}

func (m *machine) hugepages() finding {
	n, _ := m.field("proc/meminfo", "HugePages_Total")
	kib, _ := m.field("proc/meminfo", "Hugepagesize")
	if n == 0 {
		return finding{levelOK, "huge pages", "none reserved, none needed for captures", ""}
	}
	return finding{levelOK, "huge pages", fmt.Sprintf("%d of %d KiB reserved", n, kib), ""}
}

func (m *machine) capabilities() finding {
	set, ok := m.field("proc/self/status", "CapEff")
	if !ok {
		return finding{levelWarn, "capabilities", "unknown", "no /proc/self/status"}
	}
	var have []string
	for _, c := range []struct {
		bit  uint
		name string
	}{{unix.CAP_NET_RAW, "net_raw"}, {unix.CAP_NET_ADMIN, "net_admin"}, {unix.CAP_BPF, "bpf"}, {unix.CAP_PERFMON, "perfmon"}, {unix.CAP_IPC_LOCK, "ipc_lock"}} {
		if set&(1<<c.bit) != 0 {
			have = append(have, c.name)
		}
	}
	found := "none, none needed for captures"
	if len(have) > 0 {
		found = strings.Join(have, " ")
	}
	return finding{levelOK, "capabilities", found, ""}
}

// modelFiles are those that the plugin would load.
func modelFiles(conf *agp.AGP) []string {
	switch {
	case slices.Equal(conf.Models, []string{"none"}):
		return nil
	case len(conf.Models) > 0:
		return conf.Models
	}
	return agp.ShippedModels()
}

func (m *machine) models(conf *agp.AGP) finding {
	paths := modelFiles(conf)
	switch {
	case len(conf.Models) > 0 && len(paths) == 0:
		return finding{levelOK, "models", "none, as configured", ""}
	case len(paths) == 0:
		return finding{levelWarn, "models", "none found", "flows are not classified; install the models or set models = [...]"}
	}
	var good []string
	for _, p := range paths {
		loaded, err := model.Load(p)
		if err != nil {
			hint := "install the models of this version"
			if len(conf.Models) > 0 {
				hint = "correct models = [...]"
			}
			return finding{levelMissing, "models", err.Error(), hint}
		}
		good = append(good, loaded.ID())
	}
	return finding{levelOK, "models", strings.Join(good, " ") + " from " + filepath.Dir(paths[0]), ""}
}

var telegrafVersion = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)`)

func (m *machine) telegraf(ctx context.Context) finding {
	const hint = "1.32 or later reads log levels of plugins, 1.37 is what we test with"
	path, err := exec.LookPath("telegraf")
	if err != nil {
		return finding{levelNote, "telegraf", "not in PATH, replay needs none", hint}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return finding{levelWarn, "telegraf", path + " does not run: " + err.Error(), hint}
	}
	v := telegrafVersion.FindStringSubmatch(string(out))
	if v == nil {
		return finding{levelWarn, "telegraf", path + ", version unknown", hint}
	}
	f := finding{levelOK, "telegraf", v[0] + " at " + path, ""}
	major, _ := strconv.Atoi(v[1])
	minor, _ := strconv.Atoi(v[2])
	if major < 1 || (major == 1 && minor < 32) {
		f.level, f.hint = levelWarn, hint
	}
	return f
}

// configuration reads the plugin's options; the defaults where there are none.
func (m *machine) configuration() (*agp.AGP, finding) {
	f, err := os.Open(m.config)
	if err != nil {
		if m.config == defaultConfig && errors.Is(err, os.ErrNotExist) {
			return agp.New(), finding{levelNote, "configuration", "no " + m.config + ", only telegraf-agp run needs one", "telegraf-agp --sample-config prints one"}
		}
		return agp.New(), finding{levelMissing, "configuration", err.Error(), "the user that runs telegraf must be able to read it"}
	}
	defer f.Close()
	p, err := runner.Read(runner.Options{Config: m.config, ConfigReader: f})
	if err != nil {
		return agp.New(), finding{levelMissing, "configuration", strings.ReplaceAll(err.Error(), "\n", "; "), "correct it"}
	}
	conf, ok := p.(*agp.AGP)
	if !ok { // of another plugin of this program
		conf = agp.New()
	}
	return conf, finding{levelOK, "configuration", m.config, ""}
}

// capture reads the first frames of a file.
func capture(path string) finding {
	r, err := pcap.Open([]string{path}, pcap.Options{})
	if err != nil {
		return finding{levelMissing, "capture", err.Error(), "give a readable pcap or pcapng file"}
	}
	defer r.Close()
	b := source.Batch{Frames: make([]source.Frame, 1)}
	n, err := r.Next(&b)
	switch {
	case n > 0:
		return finding{levelOK, "capture", path, ""}
	case errors.Is(err, io.EOF):
		return finding{levelWarn, "capture", path + " holds no packet", ""}
	}
	return finding{levelMissing, "capture", fmt.Sprintf("%s: %v", path, err), "give a readable pcap or pcapng file"}
}

func influxdb(ctx context.Context, url string) finding {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/ping", nil)
	if err != nil {
		return finding{levelMissing, "influxdb", err.Error(), ""}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return finding{levelMissing, "influxdb", err.Error(), "start it, or correct the URL in telegraf.conf"}
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return finding{levelMissing, "influxdb", fmt.Sprintf("%s answers %s", url, resp.Status), "correct the URL in telegraf.conf"}
	}
	return finding{levelOK, "influxdb", fmt.Sprintf("%s, version %s", url, resp.Header.Get("X-Influxdb-Version")), ""}
}
