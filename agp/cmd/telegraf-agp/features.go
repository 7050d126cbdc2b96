package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// featuresCommand exports what models see, so that training and scoring have one
// feature extraction.
func featuresCommand() *cli.Command {
	return &cli.Command{
		Name:      "features",
		Usage:     "print the feature vectors of all flows of captures, for training",
		ArgsUsage: "FILE...",
		Description: "One JSON object per flow and packet count of --at, and one when the flow ends: capture, addresses,\n" +
			"packets, end, size_hist, delay_hist and head (null once --head-packets is passed).",
		Flags: []cli.Flag{
			&cli.Int64SliceFlag{Name: "at", Value: cli.NewInt64Slice(8, 16, 32, 64, 128, 256, 512, 1024), Usage: "packet counts to look at"},
			&cli.IntFlag{Name: "head-packets", Value: model.HeadPackets, Usage: "last packet count with head features"},
			&cli.DurationFlag{Name: "idle-timeout", Value: flow.DefaultIdleNs, Usage: "as in replay"},
			&cli.DurationFlag{Name: "active-timeout", Value: flow.DefaultActiveNs, Usage: "as in replay"},
			&cli.StringSliceFlag{Name: "decap", Usage: "as in replay"},
		},
		Action: features,
	}
}

// featureLine is one line of the export.
type featureLine struct {
	Capture   string    `json:"capture"`
	Src       string    `json:"src"`
	Dst       string    `json:"dst"`
	SrcPort   uint16    `json:"src_port"`
	DstPort   uint16    `json:"dst_port"`
	Protocol  uint8     `json:"protocol"`
	Packets   uint64    `json:"packets"`
	End       bool      `json:"end"`
	SizeHist  []uint32  `json:"size_hist"`
	DelayHist []uint32  `json:"delay_hist"`
	Head      []float32 `json:"head"`
}

func features(c *cli.Context) error {
	if c.NArg() == 0 {
		return fmt.Errorf("model features: no capture given")
	}
	decap, err := parseDecap(c.StringSlice("decap"))
	if err != nil {
		return err
	}
	var triggers []uint64
	for _, n := range c.Int64Slice("at") {
		if n < 1 {
			return fmt.Errorf("at = %d, want packet counts from 1 on", n)
		}
		triggers = append(triggers, uint64(n))
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	enc := json.NewEncoder(out)
	failed := 0
	for _, path := range c.Args().Slice() {
		line := featureLine{Capture: baseName(path)}
		var writeErr error
		src, err := pcap.Open([]string{path}, pcap.Options{})
		if err != nil {
			return err
		}
		p, err := cpu.New(cpu.Config{
			Source: src, Sink: nowhere{}, Decap: decap,
			Flow: flow.Config{
				IdleNs: int64(c.Duration("idle-timeout")), ActiveNs: int64(c.Duration("active-timeout")),
				Head: true, HeadPackets: uint64(c.Int("head-packets")), Triggers: triggers,
			},
			Observe: func(t *flow.Table, r flow.Ref, end bool) {
				line.fill(t, r, end)
				if err := enc.Encode(&line); err != nil && writeErr == nil {
					writeErr = err
				}
			},
		})
		if err != nil {
			return err
		}
		if err := p.Run(context.Background()); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed++
		}
		if err := src.Close(); err != nil {
			return err
		}
		if writeErr != nil {
			return writeErr
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return cli.Exit(fmt.Sprintf("model features: a part of %d files was unreadable", failed), exitUnreadable)
	}
	return nil
}

func (l *featureLine) fill(t *flow.Table, r flow.Ref, end bool) {
	e := t.Endpoints(r)
	l.Src, l.Dst = telemetry.Addr(e.IPVersion, &e.Src).String(), telemetry.Addr(e.IPVersion, &e.Dst).String()
	l.SrcPort, l.DstPort, l.Protocol = e.SrcPort, e.DstPort, e.Protocol
	l.Packets, l.End = t.Packets(r), end
	var size [telemetry.SizeBins]uint32
	var delay [telemetry.DelayBins]uint32
	t.Histograms(r, &size, &delay)
	l.SizeHist, l.DelayHist, l.Head = size[:], delay[:], nil
	if h := t.Head(r); h != nil {
		l.Head = make([]float32, model.HeadInputs)
		h.Vector(l.Head)
	}
}

// nowhere is a sink for runs whose records nobody wants.
type nowhere struct{}

func (nowhere) Record(*telemetry.Record) {}
func (nowhere) Alert(*telemetry.Alert)   {}
