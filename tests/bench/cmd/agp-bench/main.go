// Command agp-bench measures flow meters on the same capture in one run.
//
// Contestants take turns, so that a disturbance of the machine hits all of
// them; the capture is read once before each round, so that all find it in the
// page cache. A program that is not installed is reported as missing.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/agp-net/telegraf-agp/tests/bench"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

const (
	seed    = 1
	packets = 2_000_000
	flows   = 100_000
	active  = 1_000_000
)

type options struct {
	plugin, models, python, dir, out string
	runs                             int
	only                             string
	memory                           bool
}

func main() {
	var o options
	flag.StringVar(&o.plugin, "plugin", "build/telegraf-agp", "our `binary`")
	flag.StringVar(&o.models, "models", "configs/models", "`folder` of the shipped models")
	flag.StringVar(&o.python, "python", "python3", "`interpreter` that has nfstream and onnxruntime")
	flag.StringVar(&o.dir, "dir", "build/bench", "scratch `folder`, 3 GB")
	flag.StringVar(&o.out, "out", "", "`file` to write the results to as well")
	flag.IntVar(&o.runs, "runs", 3, "runs of each program")
	flag.StringVar(&o.only, "only", "", "`names` of programs to run, separated by semicolons")
	flag.BoolVar(&o.memory, "memory", true, "also measure memory with a million active flows")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "agp-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	sink, err := discard()
	if err != nil {
		return err
	}
	defer sink.Close()
	script, err := filepath.Abs("tests/bench/nfstream_run.py")
	if err != nil {
		return err
	}
	contestants := func(capture string) []bench.Tool {
		all := bench.Tools(o.plugin, o.models, o.python, script, capture, dir, sink.LocalAddr().String())
		if o.only == "" {
			return all
		}
		return slices.DeleteFunc(all, func(t bench.Tool) bool { return !slices.Contains(strings.Split(o.only, ";"), t.Name) })
	}

	var report bytes.Buffer
	out := io.MultiWriter(os.Stdout, &report)
	fmt.Fprintf(out, "# Benchmark results\n\n%s\n\n", bench.Machine("make bench"))
	capture := filepath.Join(dir, "bench.pcap")
	goals, err := speed(ctx, o, out, capture, contestants)
	if err != nil {
		return err
	}
	var million memoryResult
	if o.memory {
		if million, err = memory(ctx, out, dir, contestants); err != nil {
			return err
		}
	}
	goals = append(goals, bench.MemoryGoals(million.rows, million.idle, active)...)
	goals = append(goals, models(ctx, o, out))
	fmt.Fprintf(out, "## Goals\n\nRatios are of wall clock, to the fastest of the named rivals in this run.\n\n```\n%s```\n\n", bench.GoalTable(goals))
	if o.only == "" {
		section(ctx, out, "Allocations", "Go benchmarks of the packet path.", "go", "test", "-run", "^$", "-bench", "Benchmark(Parse|Add)/^(tcp4|udp6|vxlan|1k|100k)$", "-benchmem",
			"./agp/packet", "./agp/flow")
		section(ctx, out, "Metrics into telegraf", "Through telegraf's inputs.execd, beside telegraf's own shim.", "go", "run", "./tests/bench/execd")
	}
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, report.Bytes(), 0o644)
}

// discard opens a UDP socket that reads and forgets.
func discard() (net.PacketConn, error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 1<<16)
		for {
			if _, _, err := c.ReadFrom(b); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	return c, nil
}

// write makes the capture anew, so that it always is what the generator of this commit makes.
func write(path string, c *traffic.Capture) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.WritePcap(f); err != nil {
		return err
	}
	return f.Sync()
}

func warm(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

func speed(ctx context.Context, o options, out io.Writer, capture string, contestants func(string) []bench.Tool) ([]bench.Goal, error) {
	if err := write(capture, traffic.Bench(seed, packets, flows)); err != nil {
		return nil, err
	}
	runtime.GC()
	st, err := os.Stat(capture)
	if err != nil {
		return nil, err
	}
	var rows []bench.Row
	for _, cpus := range []int{2, 1} {
		for _, t := range contestants(capture) {
			if cpus == 2 || t.OneCPU {
				rows = append(rows, bench.Row{Tool: t, CPUs: cpus})
			}
		}
	}
	for round := range o.runs {
		if err := warm(capture); err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].Err != nil {
				continue
			}
			s, err := one(ctx, &rows[i], rows[i].Tool)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			fmt.Fprintf(os.Stderr, "round %d, %d CPUs, %s: %.2f s%s\n", round+1, rows[i].CPUs, rows[i].Tool.Name, s.Wall.Seconds(), failure(err))
		}
	}
	fmt.Fprintf(out, "## Speed\n\n%d packets, %d flows, %d MB, page cache warm; programs take turns; CPUs: pinned with taskset to that many.\n\n```\n%s```\n\n",
		packets, flows, st.Size()>>20, bench.SpeedTable(rows, packets))
	fmt.Fprint(out, "Commands:\n\n")
	for i := range rows {
		if rows[i].CPUs == 2 {
			fmt.Fprintf(out, "- %s: `%s`. %s.\n", rows[i].Tool.Name, show(rows[i].Tool.Args, o, capture), rows[i].Tool.Note)
		}
	}
	fmt.Fprintln(out)
	return bench.SpeedGoals(rows), nil
}

// one runs a contestant once and files the result under its row.
func one(ctx context.Context, r *bench.Row, t bench.Tool) (bench.Sample, error) {
	s, err := t.Run(ctx, r.CPUs)
	if err != nil {
		r.Err = err
		return s, err
	}
	r.Runs = append(r.Runs, s)
	if t.Flows != nil {
		if n, ok := t.Flows(s); ok {
			r.Flows, r.Counted = n, true
		}
	}
	return s, nil
}

// memoryResult is what each contestant took with a million flows, and with one.
type memoryResult struct {
	rows []bench.Row
	idle map[string]bench.Sample
}

func memory(ctx context.Context, out io.Writer, dir string, contestants func(string) []bench.Tool) (memoryResult, error) {
	capture, small := filepath.Join(dir, "million-flows.pcap"), filepath.Join(dir, "one-flow.pcap")
	if err := errors.Join(write(capture, traffic.ManyFlows(seed, active)), write(small, traffic.ManyFlows(seed, 1))); err != nil {
		return memoryResult{}, err
	}
	runtime.GC()
	idle := map[string]bench.Sample{}
	for _, t := range contestants(small) {
		if s, err := t.Run(ctx, 2); err == nil {
			idle[t.Name] = s
		}
	}
	var rows []bench.Row
	for _, t := range contestants(capture) {
		if t.Role == "stats" { // its flows are spread over processes of their own
			continue
		}
		r := bench.Row{Tool: t, CPUs: 2}
		s, err := one(ctx, &r, t)
		if ctx.Err() != nil {
			return memoryResult{}, ctx.Err()
		}
		fmt.Fprintf(os.Stderr, "memory, %s: %d MB%s\n", t.Name, s.MaxRSS/bench.MB, failure(err))
		rows = append(rows, r)
	}
	fmt.Fprintf(out, "## Memory\n\n%d flows active at the same time, 4 packets each; bytes per flow is the difference to a capture with one flow.\n\n```\n%s```\n\n",
		active, bench.MemoryTable(rows, idle, active))
	return memoryResult{rows, idle}, nil
}

// models times the shipped models beside ONNX Runtime; the goal is the class model's.
func models(ctx context.Context, o options, out io.Writer) bench.Goal {
	fmt.Fprint(out, "## Models\n\nOne thread; flows per second of CPU time.\n\n```\n")
	defer fmt.Fprint(out, "```\n\n")
	goal := bench.ModelGoal("")
	files, err := filepath.Glob(filepath.Join(o.models, "*.onnx"))
	if err != nil || len(files) == 0 {
		fmt.Fprintln(out, "no models found")
		return goal
	}
	for _, f := range files {
		cmd := exec.CommandContext(ctx, o.python, "tests/bench/ort.py", f, "--binary", o.plugin)
		text, err := cmd.CombinedOutput()
		if err != nil {
			fmt.Fprintf(out, "%s: not measured\n", filepath.Base(f))
			fmt.Fprintf(os.Stderr, "%v: %s\n", err, text)
			continue
		}
		fmt.Fprintf(out, "%s\n", text)
		if filepath.Base(f) == "class.onnx" {
			goal = bench.ModelGoal(string(text))
		}
	}
	return goal
}

func failure(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

// section prints what another benchmark of this repository prints.
func section(ctx context.Context, out io.Writer, title, about string, args ...string) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	fmt.Fprintf(out, "## %s\n\n%s `%s`\n\n```\n%s```\n\n", title, about, strings.Join(args, " "), text)
	if err != nil {
		fmt.Fprintf(out, "It ended with: %v\n\n", err)
	}
}

// show is a command as a reader would type it: without the scratch folder.
func show(args []string, o options, capture string) string {
	s := strings.Join(args, " ")
	s = strings.ReplaceAll(s, capture, "FILE")
	s = strings.ReplaceAll(s, filepath.Dir(capture)+"/", "")
	s = strings.ReplaceAll(s, o.python, "python3")
	if wd, err := os.Getwd(); err == nil {
		s = strings.ReplaceAll(s, wd+"/", "")
	}
	return s
}
