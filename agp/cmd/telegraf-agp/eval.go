package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// evalCommand measures a model on captures whose truth is known.
func evalCommand() *cli.Command {
	return &cli.Command{
		Name:      "eval",
		Usage:     "score captures with a model and compare with labels",
		ArgsUsage: "MODEL CAPTURE...",
		Description: "LABELS has tab-separated lines: capture, label (all flows of the capture) or\n" +
			"capture, address, port, address, port, protocol, label (one flow, either direction).\n" +
			"# starts a comment. Flows without a label are left out. Prints one line per capture and per label.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "labels", Required: true, Usage: "`FILE` with the truth"},
			&cli.StringSliceFlag{Name: "decap", Usage: "as in replay"},
		},
		Action: eval,
	}
}

func eval(c *cli.Context) error {
	if c.NArg() < 2 {
		return fmt.Errorf("model eval: want a model and at least one capture")
	}
	m, err := model.Load(c.Args().First())
	if err != nil {
		return err
	}
	set, err := model.NewSet(m)
	if err != nil {
		return err
	}
	decap, err := parseDecap(c.StringSlice("decap"))
	if err != nil {
		return err
	}
	f, err := os.Open(c.String("labels"))
	if err != nil {
		return err
	}
	truth, err := readLabels(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", c.String("labels"), err)
	}
	all := newTally(m.Field)
	t := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "capture\tlabelled\tanswered\tright")
	for _, path := range c.Args().Slice()[1:] {
		one := newTally(m.Field)
		one.truth, one.capture = truth, baseName(path)
		src, err := pcap.Open([]string{path}, pcap.Options{})
		if err != nil {
			return err
		}
		p, err := cpu.New(cpu.Config{Source: src, Sink: one, Models: set, Decap: decap})
		if err != nil {
			return err
		}
		if err := p.Run(context.Background()); err != nil {
			fmt.Fprintf(c.App.ErrWriter, "%s: %v\n", path, err)
		}
		if err := src.Close(); err != nil {
			return err
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", one.capture, one.flows, one.answered, one.right)
		all.add(one)
	}
	all.print(t)
	return t.Flush()
}

// labels is the truth: per capture a label for all flows ("" key) or per flow.
type labels map[string]map[string]string

// flowID names a flow in either direction.
func flowID(a, aPort, b, bPort, protocol string) string {
	x, y := a+" "+aPort, b+" "+bPort
	if y < x {
		x, y = y, x
	}
	return protocol + " " + x + " " + y
}

func readLabels(r io.Reader) (labels, error) {
	out := labels{}
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		if s.Text() == "" || strings.HasPrefix(s.Text(), "#") {
			continue
		}
		p := strings.Split(s.Text(), "\t")
		id := ""
		switch len(p) {
		case 2:
		case 7:
			id = flowID(p[1], p[2], p[3], p[4], p[5])
		default:
			return nil, fmt.Errorf("line %d: %d columns, want 2 or 7", n, len(p))
		}
		if out[p[0]] == nil {
			out[p[0]] = map[string]string{}
		}
		out[p[0]][id] = p[len(p)-1]
	}
	return out, s.Err()
}

// tally counts answers against the truth.
type tally struct {
	field, capture         string
	truth                  labels
	flows, answered, right int
	classes                map[string]*confusion
}

type confusion struct{ flows, answered, right, wrongly int }

func newTally(field string) *tally { return &tally{field: field, classes: map[string]*confusion{}} }

func (t *tally) class(label string) *confusion {
	c := t.classes[label]
	if c == nil {
		c = &confusion{}
		t.classes[label] = c
	}
	return c
}

func (t *tally) Alert(*telemetry.Alert) {}

func (t *tally) Record(r *telemetry.Record) {
	of := t.truth[t.capture]
	want, ok := of[flowID(
		telemetry.Addr(r.IPVersion, &r.Src).String(), strconv.Itoa(int(r.SrcPort)),
		telemetry.Addr(r.IPVersion, &r.Dst).String(), strconv.Itoa(int(r.DstPort)), telemetry.ProtocolName(r.Protocol))]
	if !ok {
		want, ok = of[""]
	}
	i := slices.IndexFunc(r.Outputs, func(o telemetry.Output) bool { return o.Field == t.field })
	if !ok || i < 0 {
		return
	}
	t.flows++
	c := t.class(want)
	c.flows++
	got := r.Outputs[i].Label
	if got == model.Unknown {
		return
	}
	t.answered++
	c.answered++
	if got == want {
		t.right++
		c.right++
	} else {
		t.class(got).wrongly++
	}
}

func (t *tally) add(o *tally) {
	t.flows += o.flows
	t.answered += o.answered
	t.right += o.right
	for label, c := range o.classes {
		d := t.class(label)
		d.flows += c.flows
		d.answered += c.answered
		d.right += c.right
		d.wrongly += c.wrongly
	}
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (t *tally) print(w io.Writer) {
	fmt.Fprintln(w, "\nlabel\tflows\tanswered\tright\twrongly named so\tprecision\trecall\tF1")
	var f1 float64
	known := 0
	for _, label := range slices.Sorted(maps.Keys(t.classes)) {
		c := t.classes[label]
		precision, recall := ratio(c.right, c.right+c.wrongly), ratio(c.right, c.flows)
		f := 0.0
		if precision+recall > 0 {
			f = 2 * precision * recall / (precision + recall)
		}
		if c.flows > 0 {
			f1 += f
			known++
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%.3f\t%.3f\t%.3f\n", label, c.flows, c.answered, c.right, c.wrongly, precision, recall, f)
	}
	if known > 0 {
		f1 /= float64(known)
	}
	fmt.Fprintf(w, "\nflows %d\tanswered %.3f\tright of answered %.3f\tmacro F1 %.3f\n",
		t.flows, ratio(t.answered, t.flows), ratio(t.right, t.answered), f1)
}
