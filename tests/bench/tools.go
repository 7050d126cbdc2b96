package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// Tool is one contestant.
type Tool struct {
	Name   string
	Role   string // what it does: "ours", "meter", "dpi"
	Args   []string
	Env    []string
	Stdout string   // file that its records go to; empty if it writes a file itself or prints a report
	Needs  []string // files without which the tool counts as missing
	Clean  string   // file or folder to create anew before each run
	Flows  func(Sample) (uint64, bool)
	Note   string // what its flags do and how it counts
	OneCPU bool   // also a row on one CPU
}

// number returns a function that finds the first match of the pattern's group in the output.
func number(pattern string) func(Sample) (uint64, bool) {
	re := regexp.MustCompile(pattern)
	return func(s Sample) (uint64, bool) {
		m := re.FindStringSubmatch(s.Output)
		if m == nil {
			return 0, false
		}
		n, err := strconv.ParseUint(m[1], 10, 64)
		return n, err == nil
	}
}

// argusRecords counts the flow records of an argus file: each record states its
// type (0x80 for the probe's own status) and its length in 32-bit words.
func argusRecords(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	var n uint64
	for len(b) >= 4 {
		words := int(binary.BigEndian.Uint16(b[2:]))
		if words == 0 || words*4 > len(b) {
			return n, false
		}
		if b[0]&0xf0 != 0x80 {
			n++
		}
		b = b[words*4:]
	}
	return n, true
}

// sum adds up all matches of the pattern's group at the end of a file.
func sum(path, pattern string) func(Sample) (uint64, bool) {
	re := regexp.MustCompile(pattern)
	return func(Sample) (uint64, bool) {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, false
		}
		var total uint64
		found := re.FindAllSubmatch(b, -1)
		for _, m := range found {
			n, err := strconv.ParseUint(string(m[1]), 10, 64)
			if err != nil {
				return 0, false
			}
			total += n
		}
		return total, len(found) > 0
	}
}

// Tools lists the contestants for one capture. dir holds what they write,
// sink is the address of a UDP socket that discards what it gets.
func Tools(plugin, models, python, script, capture, dir, sink string) []Tool {
	app, class := filepath.Join(models, "app.onnx"), filepath.Join(models, "class.onnx")
	out := func(name string) string { return filepath.Join(dir, name) }
	return []Tool{
		{
			Name: oursPlain, Role: "ours", OneCPU: true,
			Args:   []string{plugin, "replay", "--output", "influx", "--no-records", "--max-flows", "1048576", "--sketch-feature", "blocked", "--models", "none", capture},
			Stdout: out("plain.influx"), Flows: sum(out("plain.influx"), `(?m)^agp_traffic,.*[ ,]flows=(\d+)i`),
			Note: "all features: histograms, all sketches with SketchFeature, detection; output is the metrics that telegraf gets; room for 1,048,576 flows",
		},
		{
			Name: oursRecords, Role: "ours", OneCPU: true,
			Args:   []string{plugin, "replay", "--output", "json", "--max-flows", "1048576", "--sketch-feature", "blocked", "--models", "none", capture},
			Stdout: out("records.json"), Flows: sum(out("records.json"), `(?m)^{"type":"summary",.*"records":(\d+)`),
			Note: "the same, and every flow record with both histograms as a line of JSON (130 MB) to a file",
		},
		{
			Name: oursScored, Role: "ours", OneCPU: true, Needs: []string{app, class},
			Args:   []string{plugin, "replay", "--output", "influx", "--no-records", "--max-flows", "1048576", "--sketch-feature", "blocked", "--models", app + "," + class, capture},
			Stdout: out("scored.influx"), Flows: sum(out("scored.influx"), `(?m)^agp_traffic,.*[ ,]flows=(\d+)i`),
			Note: "app and class on every flow; output is the metrics that telegraf gets; room for 1,048,576 flows",
		},
		{
			Name: "argus", Role: "meter", OneCPU: true,
			Args:  []string{"argus", "-X", "-r", capture, "-S", "300", "-w", out("argus.out")},
			Clean: out("argus.out"),
			Flows: func(Sample) (uint64, bool) { return argusRecords(out("argus.out")) },
			Note:  "bidirectional records to a file; status records every 300 s instead of 60 s, so that it writes one per flow",
		},
		{
			Name: "nfpcapd", Role: "meter", OneCPU: true,
			Args:  []string{"nfpcapd", "-r", capture, "-w", out("nfpcapd")},
			Clean: out("nfpcapd") + "/", Flows: number(`Flows: (\d+)`),
			Note: "unidirectional records to a file, not compressed; default time-outs (300 s, 60 s) and cache; has a second thread for output",
		},
		{
			Name: "softflowd", Role: "meter", OneCPU: true,
			Args:  []string{"softflowd", "-r", capture, "-n", sink, "-d", "-v", "9", "-6", "-m", "2000000", "-c", "none", "-p", out("softflowd.pid")},
			Flows: number(`Flows expired: (\d+)`),
			Note:  "bidirectional, NetFlow 9 to a UDP socket on loopback; room for 2,000,000 flows, because its default of 8,192 would evict; expires nothing before the end of a file",
		},
		{
			Name: "ndpiReader", Role: "dpi", OneCPU: true,
			Args: []string{"ndpiReader", "-i", capture}, Flows: number(`Unique flows:\s+(\d+)`),
			Note: "names protocols; prints a report and no records; ICMP flows without identifier",
		},
		{
			Name: "nfstream", Role: "stats",
			Args: []string{python, script, capture}, Flows: number(`flows (\d+)`),
			Note: "statistical_analysis=True, n_dissections=0; records are Python objects that are counted and dropped; uses a process per core",
		},
	}
}

// prepare removes what an earlier run left.
func (t Tool) prepare() error {
	if t.Clean == "" {
		return nil
	}
	if err := os.RemoveAll(t.Clean); err != nil {
		return fmt.Errorf("preparing %s: %w", t.Name, err)
	}
	if t.Clean[len(t.Clean)-1] == '/' {
		return os.MkdirAll(t.Clean, 0o755)
	}
	return nil
}

// Run runs the program once on that many CPUs.
func (t Tool) Run(ctx context.Context, cpus int) (Sample, error) {
	for _, f := range t.Needs {
		if _, err := os.Stat(f); err != nil {
			return Sample{}, fmt.Errorf("%w: %w", ErrMissing, err)
		}
	}
	if err := t.prepare(); err != nil {
		return Sample{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	c := Command{Args: t.Args, Env: append([]string{"GOMAXPROCS=" + strconv.Itoa(cpus)}, t.Env...), CPUs: CPUs(cpus)}
	return c.Run(ctx, t.Stdout)
}

// CPUs returns the numbers of the first n processors that this process may use.
func CPUs(n int) []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var list []int
	for i := 0; i < 1024 && len(list) < n; i++ {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list
}
