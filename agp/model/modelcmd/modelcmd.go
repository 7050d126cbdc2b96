// Package modelcmd is the "model" subcommand of telegraf-agp: it looks at model
// files without running an engine. It owns nothing beyond a command and starts no
// goroutine; "bench" ties its goroutine to a thread, whose CPU clock it reads beside
// the wall clock. Rates are flows per second of either, as their names say.
package modelcmd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/model"
)

// Command returns the subcommand; further ones may be appended to its Subcommands.
func Command() *cli.Command {
	return &cli.Command{
		Name:  "model",
		Usage: "inspect, validate and time model files",
		Subcommands: []*cli.Command{
			{
				Name:      "info",
				Usage:     "print metadata and layers of a model",
				ArgsUsage: "FILE",
				Flags:     []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}},
				Action:    info,
			},
			{
				Name:      "check",
				Usage:     "validate models as the engine does; exit code 1 if one is refused",
				ArgsUsage: "FILE...",
				Action:    check,
			},
			{
				Name:      "bench",
				Usage:     "time a model on one core with every instruction set of this machine",
				ArgsUsage: "FILE",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "isa", Usage: "only this one: go, avx2 or avx512"},
					&cli.IntFlag{Name: "batch", Value: model.BatchSize, Usage: "flows per call"},
					&cli.DurationFlag{Name: "time", Value: 2 * time.Second, Usage: "per instruction set"},
					&cli.StringFlag{Name: "input", Usage: "`FILE` of little-endian float32 rows instead of made-up flows"},
					&cli.BoolFlag{Name: "json", Usage: "print one JSON object per line"},
				},
				Action: bench,
			},
		},
	}
}

func one(c *cli.Context) (*model.Model, error) {
	if c.NArg() != 1 {
		return nil, cli.Exit(fmt.Sprintf("usage: %s FILE", c.Command.FullName()), 2)
	}
	return model.Load(c.Args().First())
}

// layerOf describes a layer in words: kind and size.
func layerOf(l model.Layer) (kind, detail string) {
	relu := func(on bool) string {
		if on {
			return ", relu"
		}
		return ""
	}
	switch o := l.Op.(type) {
	case *model.Conv:
		detail = fmt.Sprintf("%d filters %dx%dx%d at %dx%d", o.F, o.C/o.Group, o.KH, o.KW, o.OH, o.OW) + relu(o.Relu)
		if o.Pool > 1 {
			detail += fmt.Sprintf(", max pool %d", o.Pool)
		}
		return "conv", detail
	case *model.Dense:
		detail = fmt.Sprintf("%d to %d", o.K, o.N)
		if o.T > 1 {
			detail += fmt.Sprintf(" at %d positions", o.T)
		}
		return "dense", detail + relu(o.Relu)
	case *model.Pool:
		if o.Average {
			return "average pool", fmt.Sprintf("%dx%d", o.KH, o.KW)
		}
		return "max pool", fmt.Sprintf("%dx%d", o.KH, o.KW)
	case *model.Reduce:
		return "reduce " + o.Kind.String(), fmt.Sprintf("over %d", o.N)
	case *model.Gather:
		return "gather", fmt.Sprintf("%d rows", len(o.Index))
	case *model.Unary:
		return o.Kind.String(), ""
	case *model.Affine:
		return "affine", strings.TrimPrefix(relu(o.Relu), ", ")
	case *model.Binary:
		return o.Kind.String(), ""
	case *model.Embed:
		return "embed", fmt.Sprintf("%d x %d", o.N, o.D)
	case *model.Softmax:
		return "softmax", fmt.Sprintf("over %d", o.N)
	}
	return "?", ""
}

type layerInfo struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Detail string `json:"detail,omitempty"`
	Rows   int    `json:"outputs"`
}

type modelInfo struct {
	Name       string            `json:"name"`
	Version    string            `json:"version"`
	Features   string            `json:"feature_set"`
	Field      string            `json:"field"`
	Classes    []string          `json:"classes"`
	Benign     []string          `json:"benign"`
	Triggers   []uint64          `json:"triggers"`
	MinPackets uint64            `json:"min_packets"`
	Threshold  float32           `json:"threshold"`
	Notes      map[string]string `json:"notes,omitempty"`
	Inputs     int               `json:"inputs"`
	Outputs    int               `json:"outputs"`
	Parameters int               `json:"parameters"`
	FLOPs      int               `json:"flops"`
	ArenaBytes int               `json:"arena_bytes_per_flow"`
	Layers     []layerInfo       `json:"layers"`
}

func info(c *cli.Context) error {
	m, err := one(c)
	if err != nil {
		return err
	}
	p := m.Plan()
	mi := modelInfo{
		Name: m.Name, Version: m.Version, Features: m.Features.String(), Field: m.Field, Classes: m.Classes, Benign: m.Benign,
		Triggers: m.Triggers, MinPackets: m.MinPackets, Threshold: m.Threshold, Notes: m.Notes,
		Inputs: p.Inputs, Outputs: p.Outputs, Parameters: p.Params, FLOPs: p.FLOPs(), ArenaBytes: 4 * p.Arena,
	}
	for _, l := range p.Layers {
		kind, detail := layerOf(l)
		mi.Layers = append(mi.Layers, layerInfo{l.Name, kind, detail, p.Values[l.Out].Rows})
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(mi)
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "model\t%s\n", m.ID())
	fmt.Fprintf(w, "reads\t%s (%d floats)\n", mi.Features, mi.Inputs)
	fmt.Fprintf(w, "fills\t%s\n", mi.Field)
	fmt.Fprintf(w, "classes\t%s\n", strings.Join(mi.Classes, ", "))
	fmt.Fprintf(w, "no alert for\t%s\n", strings.Join(mi.Benign, ", "))
	fmt.Fprintf(w, "scored at\t%v packets, and at the end from %d packets\n", mi.Triggers, mi.MinPackets)
	fmt.Fprintf(w, "threshold\t%g\n", mi.Threshold)
	fmt.Fprintf(w, "size\t%d parameters, %d FLOP and %d bytes of memory per flow\n", mi.Parameters, mi.FLOPs, mi.ArenaBytes)
	fmt.Fprintf(w, "kernels\t%s\n", model.DefaultISA())
	fmt.Fprintf(w, "\nlayer\tkind\tdetail\toutputs\n")
	for _, l := range mi.Layers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", l.Name, l.Kind, l.Detail, l.Rows)
	}
	return w.Flush()
}

func check(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.Exit(fmt.Sprintf("usage: %s FILE...", c.Command.FullName()), 2)
	}
	bad := 0
	var models []*model.Model
	for _, f := range c.Args().Slice() {
		m, err := model.Load(f)
		if err != nil {
			bad++
			fmt.Fprintf(c.App.Writer, "refused: %v\n", err)
			continue
		}
		fmt.Fprintf(c.App.Writer, "ok: %s: %s\n", f, m.ID())
		models = append(models, m)
	}
	if _, err := model.NewSet(models...); err != nil {
		bad++
		fmt.Fprintf(c.App.Writer, "refused together: %v\n", err)
	}
	if bad > 0 {
		return cli.Exit("", 1)
	}
	return nil
}

// result is one line of bench. Rates per CPU second are what a core does when nothing else runs on it.
type result struct {
	Model       string  `json:"model"`
	Engine      string  `json:"engine"`
	Batch       int     `json:"batch"`
	FlowsPerSec float64 `json:"flows_per_second"`
	FlowsPerCPU float64 `json:"flows_per_cpu_second"`
	GFLOPs      float64 `json:"gflop_per_cpu_second"`
}

func bench(c *cli.Context) error {
	m, err := one(c)
	if err != nil {
		return err
	}
	batch := c.Int("batch")
	if batch < 1 || batch > 1<<16 {
		return fmt.Errorf("--batch %d, want 1 to 65536", batch)
	}
	in := m.SampleInputs(max(batch, 4096))
	if f := c.String("input"); f != "" {
		if in, err = readRows(f, m.Plan().Inputs, batch); err != nil {
			return err
		}
	}
	var results []result
	for _, isa := range model.ISAs() {
		if want := c.String("isa"); want != "" && want != isa.String() {
			continue
		}
		r, err := time1(m, isa, in, batch, c.Duration("time"))
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return fmt.Errorf("%w: %q", model.ErrISA, c.String("isa"))
	}
	if c.Bool("json") {
		e := json.NewEncoder(c.App.Writer)
		for _, r := range results {
			if err := e.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	printMachine(c.App.Writer)
	w := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "model\tkernels\tbatch\tflows/s\tflows/CPU s\tus/flow\tGFLOP/s\tratio\t\n")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%.0f\t%.2f\t%.1f\t%.2f\t\n", r.Model, r.Engine, r.Batch, r.FlowsPerSec, r.FlowsPerCPU,
			1e6/r.FlowsPerCPU, r.GFLOPs, r.FlowsPerCPU/results[0].FlowsPerCPU)
	}
	return w.Flush()
}

// time1 times one executor on one thread.
func time1(m *model.Model, isa model.ISA, in []float32, batch int, span time.Duration) (result, error) {
	e, err := model.NewExecutorISA(m.Plan(), isa)
	if err != nil {
		return result{}, err
	}
	runtime.LockOSThread() // so that the thread's CPU time is this loop's
	defer runtime.UnlockOSThread()
	rowLen := m.Plan().Inputs
	rows := len(in) / rowLen
	out := make([]float32, batch*m.Plan().Outputs)
	flows, at := 0, 0
	step := func() {
		if at+batch > rows {
			at = 0
		}
		e.Run(in[at*rowLen:], batch, out)
		at += batch
		flows += batch
	}
	step() // first touch of the memory
	flows = 0
	start, cpu := time.Now(), threadCPU()
	for flows == 0 || time.Since(start) < span {
		for range 16 {
			step()
		}
	}
	wall := time.Since(start).Seconds()
	used := (threadCPU() - cpu).Seconds()
	if used <= 0 {
		used = wall
	}
	return result{
		Model: m.ID(), Engine: isa.String(), Batch: batch,
		FlowsPerSec: float64(flows) / wall, FlowsPerCPU: float64(flows) / used,
		GFLOPs: float64(flows) * float64(m.Plan().FLOPs()) / used / 1e9,
	}, nil
}

var errRows = errors.New("input file does not hold whole rows")

func readRows(path string, width, atLeast int) ([]float32, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 || len(b)%(4*width) != 0 {
		return nil, fmt.Errorf("%s: %w of %d floats", path, errRows, width)
	}
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	if len(f)/width < atLeast {
		return nil, fmt.Errorf("%s: %w: %d rows, --batch needs %d", path, errRows, len(f)/width, atLeast)
	}
	return f, nil
}

func printMachine(w io.Writer) {
	name := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				name = strings.TrimSpace(v)
				break
			}
		}
	}
	fmt.Fprintf(w, "%s, %d CPUs, one used\n", name, runtime.NumCPU())
}
