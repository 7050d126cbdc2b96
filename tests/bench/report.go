package bench

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
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

// Goal is a figure that the project must reach: at least Want, or at most.
type Goal struct {
	Text   string
	Unit   string // what Want and Got count
	Want   float64
	AtMost bool
	Got    float64
	Known  bool
}

// Missed says that the figure was measured and is not good enough.
func (g *Goal) Missed() bool {
	return g.Known && (g.AtMost && g.Got > g.Want || !g.AtMost && g.Got < g.Want)
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

// SpeedGoals compares our rows with the rivals'.
func SpeedGoals(rows []Row) []Goal {
	goal := func(text string, want float64, cpus int, ours string, rivals ...string) Goal {
		g := Goal{Text: text, Unit: "times as fast", Want: want}
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

// MemoryGoals are what a million active flows may cost, with and without models.
func MemoryGoals(rows []Row, idle map[string]Sample, flows int) []Goal {
	var goals []Goal
	for _, name := range []string{oursPlain, oursScored} {
		each := Goal{Text: "one of a million active flows: " + name, Unit: "bytes", Want: 704, AtMost: true}
		all := Goal{Text: "a million active flows, peak RSS: " + name, Unit: "MB", Want: 850, AtMost: true}
		r, ok := best(rows, 2, name)
		empty, measured := idle[name]
		if ok && flows > 0 {
			peak := r.Median().MaxRSS
			all.Got, all.Known = float64(peak)/MB, true
			if measured {
				each.Got, each.Known = float64(peak-empty.MaxRSS)/float64(flows), true
			}
		}
		goals = append(goals, each, all)
	}
	return goals
}

// ourRate finds our lines in what ort.py prints: kernels, batch, flows per second of CPU time.
var ourRate = regexp.MustCompile(`(?m)^telegraf-agp (\w+) +\d+ +([0-9,]+) `)

// ModelGoal is how many flows per second a core must score with the class model;
// text is what ort.py printed of it. Plain Go does not count: the goal is for vector code.
func ModelGoal(text string) Goal {
	g := Goal{Text: "class model, one core, vector code", Unit: "flows/s", Want: 60_000}
	for _, m := range ourRate.FindAllStringSubmatch(text, -1) {
		rate, err := strconv.ParseFloat(strings.ReplaceAll(m[2], ",", ""), 64)
		if err == nil && m[1] != "go" {
			g.Got, g.Known = max(g.Got, rate), true
		}
	}
	return g
}

// MB is the unit of memory in tables and goals.
const MB = 1e6

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
			m.Wall.Seconds(), low.Seconds(), high.Seconds(), m.CPU.Seconds(), float64(packets)/m.Wall.Seconds()/1e6, flows, m.MaxRSS/MB, wall, cpu)
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
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.2f\t\n", r.Tool.Name, m.MaxRSS/MB, empty.MaxRSS/MB, (m.MaxRSS-empty.MaxRSS)/int64(flows), m.Wall.Seconds())
	}
	w.Flush()
	return b.String()
}

// GoalTable prints the figures that must be reached and whether they were.
func GoalTable(goals []Goal) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "goal\tunit\twanted\tgot\t")
	for _, g := range goals {
		got, wanted := "not measured", "-"
		if g.Want > 0 {
			wanted = fmt.Sprintf(">= %.0f", g.Want)
			if g.AtMost {
				wanted = fmt.Sprintf("<= %.0f", g.Want)
			}
		}
		if g.Known {
			got = fmt.Sprintf("%.2f", g.Got)
			if g.Got >= 100 {
				got = fmt.Sprintf("%.0f", g.Got)
			}
			if g.Missed() {
				got += "  MISSED"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", g.Text, g.Unit, wanted, got)
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
