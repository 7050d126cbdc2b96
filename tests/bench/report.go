package bench

import (
	"bytes"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"
)

// Row is one contestant's result on one set of CPUs.
type Row struct {
	Tool    Tool
	CPUs    int
	Runs    []Sample
	Flows   uint64
	Counted bool
	Err     error
}

// Median is the run in the middle.
func (r *Row) Median() Sample { return Median(r.Runs) }

func (r *Row) ok() bool { return r.Err == nil && len(r.Runs) > 0 }

// Goal is a ratio that the project must reach.
type Goal struct {
	Text  string
	Want  float64
	Got   float64
	Known bool
}

// best is the fastest row of the named tools.
func best(rows []Row, cpus int, names ...string) (*Row, bool) {
	var found *Row
	for i := range rows {
		r := &rows[i]
		for _, n := range names {
			if r.Tool.Name == n && r.CPUs == cpus && r.ok() && (found == nil || r.Median().Wall < found.Median().Wall) {
				found = r
			}
		}
	}
	return found, found != nil
}

// Names of rows that goals refer to.
const (
	oursPlain   = "telegraf-agp, no models"
	oursRecords = "telegraf-agp, no models, all records"
	oursScored  = "telegraf-agp, both models"
)

// Goals compares our rows with the rivals'.
func Goals(rows []Row) []Goal {
	goal := func(text string, want float64, cpus int, ours string, rivals ...string) Goal {
		g := Goal{Text: text, Want: want}
		a, okA := best(rows, cpus, ours)
		b, okB := best(rows, cpus, rivals...)
		if okA && okB {
			g.Known = true
			g.Got = b.Median().Wall.Seconds() / a.Median().Wall.Seconds()
			g.Text += " (" + b.Tool.Name + ")"
		}
		return g
	}
	meters := []string{"argus", "nfpcapd", "softflowd"}
	return []Goal{
		goal("no models, 2 CPUs, best flow meter", 3, 2, oursPlain, meters...),
		goal("no models, all records as JSON, 2 CPUs, best flow meter", 0, 2, oursRecords, meters...),
		goal("no models, 1 CPU, best flow meter", 2, 1, oursPlain, meters...),
		goal("both models, 2 CPUs, ndpiReader", 4, 2, oursScored, "ndpiReader"),
		goal("both models, 2 CPUs, nfstream", 6, 2, oursScored, "nfstream"),
		goal("both models, 2 CPUs, best flow meter", 0, 2, oursScored, meters...),
	}
}

// SpeedTable prints rows with packets/s and ratios to our row on as many CPUs.
func SpeedTable(rows []Row, packets int) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "program\tCPUs\truns\twall s (median)\tmin\tmax\tCPU s\tMpackets/s\tflow records\tpeak RSS MB\twall / ours\tCPU / ours\t")
	for i := range rows {
		r := &rows[i]
		if !r.ok() {
			fmt.Fprintf(w, "%s\t%d\t\t%s\t\t\t\t\t\t\t\t\n", r.Tool.Name, r.CPUs, reason(r.Err))
			continue
		}
		m := r.Median()
		low, high := m.Wall, m.Wall
		for _, s := range r.Runs {
			low, high = min(low, s.Wall), max(high, s.Wall)
		}
		wall, cpu := "", ""
		if ours, ok := best(rows, r.CPUs, oursPlain); ok {
			wall = fmt.Sprintf("%.2f", m.Wall.Seconds()/ours.Median().Wall.Seconds())
			cpu = fmt.Sprintf("%.2f", m.CPU.Seconds()/ours.Median().CPU.Seconds())
		}
		flows := "not counted"
		if r.Counted {
			flows = fmt.Sprint(r.Flows)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%d\t%s\t%s\t\n", r.Tool.Name, r.CPUs, len(r.Runs),
			m.Wall.Seconds(), low.Seconds(), high.Seconds(), m.CPU.Seconds(), float64(packets)/m.Wall.Seconds()/1e6, flows, m.MaxRSS>>20, wall, cpu)
	}
	w.Flush()
	return b.String()
}

// MemoryTable prints what active flows cost.
func MemoryTable(rows []Row, idle map[string]Sample, flows int) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "program\tpeak RSS MB\tpeak RSS MB without flows\tbytes per active flow\twall s\t")
	for i := range rows {
		r := &rows[i]
		if !r.ok() {
			fmt.Fprintf(w, "%s\t%s\t\t\t\t\n", r.Tool.Name, reason(r.Err))
			continue
		}
		m := r.Median()
		empty := idle[r.Tool.Name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.2f\t\n", r.Tool.Name, m.MaxRSS>>20, empty.MaxRSS>>20, (m.MaxRSS-empty.MaxRSS)/int64(flows), m.Wall.Seconds())
	}
	w.Flush()
	return b.String()
}

// GoalTable prints the ratios that must be reached and whether they were.
func GoalTable(goals []Goal) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "times as fast as\twanted\tgot\t")
	for _, g := range goals {
		got, wanted := "not measured", "-"
		if g.Want > 0 {
			wanted = fmt.Sprintf("%.0f", g.Want)
		}
		if g.Known {
			got = fmt.Sprintf("%.2f", g.Got)
			if g.Got < g.Want {
				got += "  MISSED"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", g.Text, wanted, got)
	}
	w.Flush()
	return b.String()
}

func reason(err error) string {
	switch {
	case err == nil:
		return "not run"
	case errors.Is(err, ErrMissing):
		return "missing"
	default:
		return "failed"
	}
}

// Deadline bounds one run of one program.
const Deadline = 5 * time.Minute
