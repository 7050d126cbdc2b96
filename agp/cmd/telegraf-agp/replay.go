package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/htmlreport"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// exitUnreadable says that a part of the input could not be read; everything readable was processed.
const exitUnreadable = 3

func replayCommand() *cli.Command {
	return &cli.Command{
		Name:      "replay",
		Usage:     "run captures through the engine without telegraf",
		ArgsUsage: "FILE...",
		Description: "Reads pcap and pcapng files (\"-\" is standard input) one after the other as one input and prints records, alerts and a summary.\n" +
			"Exit status: 0 all read, 1 error, 3 a part of the input was unreadable (the rest was processed).",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: json (one object per line), influx (line protocol) or table"},
			&cli.StringFlag{Name: "pipeline", Value: options.PipelineAuto, Usage: "`WHO` processes the packets: auto (a GPU if one suffices, else the CPU), cpu or cuda"},
			&cli.StringFlag{Name: "mode", Value: options.ModeFlow, Usage: "`HOW` packets are processed on a GPU: flow, sequence (several warps take a queue's packets in turns) or stateless (counted and forgotten)"},
			&cli.StringFlag{Name: "gpu", Usage: "`GPU` to use, by number or UUID; default: the first that suffices"},
			&cli.StringFlag{Name: "models", Usage: "`LIST` of model files or folders, comma separated; none switches scoring off; default: the shipped models"},
			&cli.IntFlag{Name: "queues", Usage: "flow table shards, one goroutine each; 0: what suits this machine"},
			&cli.IntFlag{Name: "batch", Value: cpu.DefaultBatch, Usage: "frames per batch, on the CPU"},
			&cli.Float64Flag{Name: "speed", Usage: "1.0 replays at capture pace, 0 as fast as possible"},
			&cli.StringFlag{Name: "interface", Usage: "value of the interface tag; default: the file's name"},
			&cli.DurationFlag{Name: "idle-timeout", Value: flow.DefaultIdleNs, Usage: "a flow without packets for longer ends"},
			&cli.DurationFlag{Name: "active-timeout", Value: flow.DefaultActiveNs, Usage: "a record that spans more is cut"},
			&cli.IntFlag{Name: "max-flows", Value: flow.DefaultMaxFlows, Usage: "active flows over all queues; more evict the least valuable"},
			&cli.StringSliceFlag{Name: "decap", Usage: "tunnels to open: " + strings.Join(options.Tunnels(), ", ")},
			&cli.BoolFlag{Name: "key-vlan", Usage: "VLAN id is part of the flow key"},
			&cli.BoolFlag{Name: "key-tunnel", Usage: "tunnel id is part of the flow key"},
			&cli.IntFlag{Name: "top", Value: cpu.DefaultTopK, Usage: "entries per heavy-hitter list"},
			&cli.DurationFlag{Name: "window", Usage: "capture time that top lists and sketches cover; 0: all of it"},
			&cli.StringFlag{Name: "sketch-feature", Usage: "also keep per-flow histograms in fixed memory: published or blocked"},
			&cli.StringFlag{Name: "report", Usage: "also write a page with plots to `FILE`, to be opened in a browser"},
			&cli.BoolFlag{Name: "no-records", Usage: "leave flow records out of the output"},
		},
		Action: replay,
	}
}

func replay(c *cli.Context) error {
	if c.NArg() == 0 {
		return fmt.Errorf("replay: no capture given; try: %s replay FILE", c.App.Name)
	}
	switch {
	case c.Int("max-flows") < 1:
		return fmt.Errorf("max-flows = %d, want at least 1", c.Int("max-flows"))
	case c.Duration("idle-timeout") <= 0, c.Duration("active-timeout") <= 0:
		return fmt.Errorf("idle-timeout = %s, active-timeout = %s, want more than 0", c.Duration("idle-timeout"), c.Duration("active-timeout"))
	case c.Duration("window") < 0 || c.Float64("speed") < 0:
		return fmt.Errorf("window = %s, speed = %g, want 0 or more", c.Duration("window"), c.Float64("speed"))
	}
	ctx, stop := signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdout := &output{w: os.Stdout, failed: cancel}
	out := bufio.NewWriterSize(stdout, 1<<20)
	name := c.String("interface")
	if name == "" {
		name = baseName(c.Args().First())
	}
	sink, err := newSink(c.String("output"), out, !c.Bool("no-records"), name)
	if err != nil {
		return err
	}
	decap, err := parseDecap(c.StringSlice("decap"))
	if err != nil {
		return err
	}
	list := c.String("models")
	if c.String("mode") == options.ModeStateless && list == "" {
		list = noModels
	}
	models, err := openModels(list)
	if err != nil {
		return err
	}
	page, err := openReport(c.String("report"))
	if err != nil {
		return err
	}
	defer page.discard()
	sink = page.beside(sink)
	src, err := pcap.Open(c.Args().Slice(), pcap.Options{Speed: c.Float64("speed")})
	if err != nil {
		return err
	}
	defer src.Close()
	p, why, closeGPU, err := replayPipeline(c, name, src, sink, decap, models)
	if err != nil {
		return err
	}
	defer func() { _ = closeGPU() }() // the process ends anyway

	done := progress(ctx, p, src.Stats().Size)
	start := time.Now()
	runErr := p.Run(ctx)
	seconds := time.Since(start).Seconds()
	done()

	var snap telemetry.Snapshot
	p.Snapshot(&snap)
	snap.Engine.PipelineReason = why
	err = errors.Join(sink.finish(&snap, seconds), out.Flush())
	if stdout.err != nil {
		err = stdout.err // once, however many writes met it
	}
	if err != nil {
		return fmt.Errorf("replay: write output: %w", err)
	}
	why = unread(ctx, runErr, &snap)
	if err := page.write(htmlreport.Run{Files: c.Args().Slice(), Version: programVersion(), Note: why}, &snap, seconds); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if why != "" {
		return cli.Exit("replay: "+why, exitUnreadable)
	}
	return nil
}

// replayable is a pipeline that says how far it has read.
type replayable interface {
	Run(context.Context) error
	Snapshot(*telemetry.Snapshot)
	Progress() source.Stats
}

// replayPipeline makes the pipeline that the options name, and says why it is that one.
func replayPipeline(c *cli.Context, name string, src source.Source, sink replaySink, decap packet.Decap, models *model.Set) (p replayable, why string, closeGPU func() error, err error) {
	conf := &agppb.Configure{
		Interface: name, Source: &agppb.Source{Kind: "pcap"}, Pipeline: c.String("pipeline"), Mode: c.String("mode"), Gpu: c.String("gpu"), Queues: uint32(max(0, c.Int("queues"))),
		IdleTimeoutNs: int64(c.Duration("idle-timeout")), ActiveTimeoutNs: int64(c.Duration("active-timeout")), MaxFlows: uint64(c.Int("max-flows")),
		Decap:   &agppb.Decap{Vxlan: decap.VXLAN, Gre: decap.GRE, Geneve: decap.Geneve, Gtpu: decap.GTPU},
		KeyVlan: c.Bool("key-vlan"), KeyTunnel: c.Bool("key-tunnel"),
		TopK: uint32(max(0, c.Int("top"))), SketchWindowNs: int64(c.Duration("window")), SketchFeature: c.String("sketch-feature"),
	}
	if list := c.String("models"); list != "" && list != noModels {
		conf.Models = strings.Split(list, ",")
	}
	if !options.IsGPU(conf.Gpu) {
		return nil, "", nil, fmt.Errorf("gpu = %q, allowed: %s", conf.Gpu, options.GPUNames)
	}
	if !slices.Contains(options.Pipelines(), conf.Pipeline) {
		return nil, "", nil, fmt.Errorf("pipeline = %q, allowed are %s", conf.Pipeline, strings.Join(options.Pipelines(), ", "))
	}
	built, err := hardware.OnGPU(conf, src, models, sink, func(level agppb.Log_Level, format string, args ...any) {
		if level >= agppb.Log_WARN {
			fmt.Fprintf(os.Stderr, "replay: "+format+"\n", args...)
		}
	})
	if err != nil {
		return nil, "", nil, err
	}
	if built.Pipeline != nil {
		return built.Pipeline.(replayable), built.Why, built.Close, nil
	}
	q, err := cpu.New(cpu.Config{
		Source: src, SourceName: "pcap", Interface: name, Sink: sink,
		Queues: c.Int("queues"), Batch: c.Int("batch"), Decap: decap,
		Flow: flow.Config{
			IdleNs: int64(c.Duration("idle-timeout")), ActiveNs: int64(c.Duration("active-timeout")), MaxFlows: c.Int("max-flows"),
			Key: flow.KeyOptions{VLAN: c.Bool("key-vlan"), Tunnel: c.Bool("key-tunnel")},
		},
		Models: models,
		Sketch: cpu.SketchConfig{TopK: c.Int("top"), Feature: c.String("sketch-feature"), WindowNs: int64(c.Duration("window"))},
	})
	return q, built.Why, built.Close, err
}

// output ends the run at the first failed write: nobody would see the rest.
type output struct {
	w      io.Writer
	failed func()
	err    error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil && o.err == nil {
		o.err = err
		o.failed()
	}
	return n, err
}

// unread says why not all of the input was read, "" if it was.
func unread(ctx context.Context, runErr error, s *telemetry.Snapshot) string {
	if runErr != nil {
		return runErr.Error()
	}
	if ctx.Err() != nil {
		return "interrupted; what was read until then was processed"
	}
	var n uint64
	var reasons []string
	for reason, count := range s.Engine.Drops {
		if !slices.Contains(parserDrops, reason) {
			n += count
			reasons = append(reasons, reason)
		}
	}
	if n == 0 {
		return ""
	}
	slices.Sort(reasons)
	return fmt.Sprintf("%d frames could not be read (%s); the rest was processed", n, strings.Join(reasons, ", "))
}

// parserDrops are frames that were read and understood far enough to say why
// they are in no flow; they do not make an input unreadable.
var parserDrops = func() []string {
	var names []string
	for v := range packet.NumVerdicts {
		if v := packet.Verdict(v); v != packet.UnknownLinkType {
			names = append(names, v.String())
		}
	}
	return names
}()

func baseName(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		path = path[i+1:]
	}
	return path
}

// parseDecap turns tunnel names into the parser's switches.
func parseDecap(names []string) (d packet.Decap, err error) {
	for _, n := range names {
		switch strings.ToLower(n) {
		case options.VXLAN:
			d.VXLAN = true
		case options.GRE:
			d.GRE = true
		case options.Geneve:
			d.Geneve = true
		case options.GTPU:
			d.GTPU = true
		default:
			return d, fmt.Errorf("decap = %q, allowed are %s", n, strings.Join(options.Tunnels(), ", "))
		}
	}
	return d, nil
}

// progress draws a bar on standard error while a terminal is there to see it.
func progress(ctx context.Context, p replayable, size int64) (done func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		if size <= 0 {
			size = -1 // unknown: a spinner
		}
		bar := progressbar.DefaultBytes(size, "replay")
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				_ = bar.Clear()
				return
			case <-t.C:
				_ = bar.Set64(p.Progress().Offset)
			}
		}
	}()
	return func() { cancel(); <-finished }
}

// noModels is the list that switches scoring off.
const noModels = "none"

// openModels loads the models that the option names.
func openModels(list string) (*model.Set, error) {
	if list == noModels {
		return new(model.Set), nil
	}
	var paths []string
	if list != "" {
		paths = strings.Split(list, ",")
	}
	return loadModels(paths)
}

// replaySink prints what a pipeline finds.
type replaySink interface {
	Record(*telemetry.Record)
	Alert(*telemetry.Alert)
	finish(*telemetry.Snapshot, float64) error
}

func newSink(format string, w *bufio.Writer, records bool, iface string) (replaySink, error) {
	switch format {
	case "json":
		return &jsonSink{w: w, records: records}, nil
	case "table":
		return &tableSink{w: w}, nil
	case "influx":
		return newInfluxSink(w, records, iface)
	}
	return nil, fmt.Errorf("output = %q, allowed are json, influx, table", format)
}

// jsonSink prints one object per line.
type jsonSink struct {
	w       *bufio.Writer
	buf     []byte
	records bool
	err     error
}

func (s *jsonSink) line() {
	s.buf = append(s.buf, '\n')
	if _, err := s.w.Write(s.buf); err != nil && s.err == nil {
		s.err = err
	}
}

func (s *jsonSink) Record(r *telemetry.Record) {
	if s.records {
		s.buf = telemetry.AppendJSON(s.buf[:0], r)
		s.line()
	}
}

func (s *jsonSink) Alert(a *telemetry.Alert) {
	s.buf = telemetry.AppendAlertJSON(s.buf[:0], a)
	s.line()
}

func (s *jsonSink) finish(snap *telemetry.Snapshot, seconds float64) error {
	sum := telemetry.Summarize(snap, seconds)
	s.buf = telemetry.AppendSummaryJSON(s.buf[:0], &sum)
	s.line()
	return s.err
}

// tableSink prints totals for people.
type tableSink struct {
	w      io.Writer
	alerts []telemetry.Alert
}

// tableAlerts is how many alerts a table shows one by one.
const tableAlerts = 50

func (s *tableSink) Record(*telemetry.Record) {}
func (s *tableSink) Alert(a *telemetry.Alert) {
	if len(s.alerts) < tableAlerts {
		s.alerts = append(s.alerts, *a)
	}
}

func (s *tableSink) finish(snap *telemetry.Snapshot, seconds float64) error {
	e := &snap.Engine
	t := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "pipeline\t%s\t%s\n", e.Pipeline, e.PipelineReason)
	fmt.Fprintf(t, "packets\t%d\t%.2f Mpps\n", e.PacketsSeen, float64(e.PacketsSeen)/seconds/1e6)
	fmt.Fprintf(t, "in records\t%d\t%d records\n", e.PacketsRecorded, e.Records)
	for _, reason := range slices.Sorted(maps.Keys(e.Drops)) {
		fmt.Fprintf(t, "not in a flow\t%d\t%s\n", e.Drops[reason], reason)
	}
	for _, reason := range slices.Sorted(maps.Keys(e.Errors)) {
		fmt.Fprintf(t, "input fault\t%d\t%s\n", e.Errors[reason], reason)
	}
	fmt.Fprintf(t, "\nprotocol\tapp\tclass\tflows\tpackets\tbytes\n")
	for _, r := range snap.Traffic {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\n", telemetry.ProtocolName(r.Protocol), r.App, r.Class, r.Flows, r.Packets, r.Bytes)
	}
	fmt.Fprintf(t, "\ntop\trank\twhat\tvalue\n")
	for _, r := range snap.Top {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\n", r.Metric, r.Rank, r.Who(), r.Value)
	}
	fmt.Fprintf(t, "\nalerts\t%d\n", e.Alerts)
	for i := range s.alerts {
		a := &s.alerts[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s -> %s\tcount %d\n", time.Unix(0, a.TimeNs).UTC().Format(time.RFC3339), a.Kind, a.Class, telemetry.Endpoint(a.Src, a.SrcPort), telemetry.Endpoint(a.Dst, a.DstPort), a.Count)
	}
	return t.Flush()
}
