// Command agp-bench-live measures flow meters on a running interface.
//
// A veth pair joins two network namespaces. A sender on one CPU sends the same frames
// again and again as fast as it can; the meter at the other end has another CPU
// for itself. What the kernel does for the meter on receipt of a frame happens on the
// sender's CPU, for all of them alike. Contestants take turns.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/tests/bench"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

const (
	seed    = 1
	packets = 1_000_000
	flows   = 50_000
	mtu     = 1600 // the generator makes segments of 1460 bytes over IPv6 as well
	portion = 512  // frames between two looks at the clock
)

type options struct {
	plugin, models, dir, out string
	only                     string
	runs                     int
	span                     time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.plugin, "plugin", "build/telegraf-agp", "our `binary`")
	flag.StringVar(&o.models, "models", "configs/models", "`folder` of the shipped models")
	flag.StringVar(&o.dir, "dir", "build/bench-live", "scratch `folder`")
	flag.StringVar(&o.out, "out", "", "`file` to write the results to as well")
	flag.IntVar(&o.runs, "runs", 3, "runs of each program")
	flag.DurationVar(&o.span, "span", 8*time.Second, "how long each run sends")
	flag.StringVar(&o.only, "only", "", "`names` of meters to run, separated by semicolons")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "agp-bench-live:", err)
		os.Exit(1)
	}
}

// outcome is one run of one meter.
type outcome struct {
	sent    uint64        // frames
	counted uint64        // frames that the meter has put into flows
	missed  uint64        // frames that the meter says it missed
	cpu     time.Duration // of the meter
	span    time.Duration // of sending
	link    uint64        // frames that the veth pair lost
}

func (o outcome) rate() float64    { return float64(o.counted) / o.span.Seconds() }
func (o outcome) perCore() float64 { return float64(o.counted) / o.cpu.Seconds() }

// meter is one contestant; start returns functions that read and end it.
type meter struct {
	name, note string
	ours       bool
	start      func(b *board) (*running, error)
	runs       []outcome
	err        error
}

// running is a meter that has been started.
type running struct {
	pid int
	// counts waits until the meter has taken what came, ends it, and returns what it counted and missed.
	counts func() (counted, missed uint64, err error)
}

// board is where one run happens.
type board struct {
	host, far *netns.NS
	dir       string
	meterCPU  int
	expect    func() uint64 // frames that have come to the interface
}

func run(ctx context.Context, o options) error {
	cpus := bench.CPUs(2)
	if len(cpus) < 2 {
		return errors.New("two CPUs are needed, one for the sender and one for the meter")
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // build folder
		return err
	}
	models, err := filepath.Glob(filepath.Join(o.models, "*.onnx"))
	if err != nil {
		return err
	}
	for i := range models {
		if models[i], err = filepath.Abs(models[i]); err != nil {
			return err
		}
	}
	frames, err := load(filepath.Join(dir, "live.pcap"))
	if err != nil {
		return err
	}
	meters := []*meter{
		{name: "telegraf-agp mirror, no models", ours: true, start: ours(o.plugin, "mirror", nil), note: "tcx, 256 bytes of each frame; all features, sketches, detection"},
		{name: "telegraf-agp divert, no models", ours: true, start: ours(o.plugin, "divert", nil), note: "AF_XDP, copy mode; the same"},
		{name: "telegraf-agp mirror, both models", ours: true, start: ours(o.plugin, "mirror", models), note: "application and behaviour of every flow"},
		{name: "telegraf-agp divert, both models", ours: true, start: ours(o.plugin, "divert", models), note: "the same"},
		{name: "softflowd", start: softflowd, note: "`softflowd -d -i h0 -v 9 -6 -m 2000000 -n 127.0.0.1:9995`: AF_PACKET by libpcap, NetFlow 9 to a UDP socket that discards"},
		{name: "argus", start: argus, note: "`argus -i h0 -S 300 -w FILE`: AF_PACKET by libpcap, records to a file"},
	}
	if o.only != "" {
		meters = slices.DeleteFunc(meters, func(m *meter) bool { return !slices.Contains(strings.Split(o.only, ";"), m.name) })
	}
	for round := range o.runs {
		for _, m := range meters {
			if m.err != nil || ctx.Err() != nil {
				continue
			}
			r, err := once(ctx, m, dir, cpus, frames, o.span)
			if err != nil {
				m.err = err
				fmt.Fprintf(os.Stderr, "round %d, %s: %v\n", round+1, m.name, err)
				continue
			}
			m.runs = append(m.runs, r)
			fmt.Fprintf(os.Stderr, "round %d, %s: sent %.2f M/s, counted %.2f M/s, CPU %.0f %%\n", round+1, m.name,
				float64(r.sent)/r.span.Seconds()/1e6, r.rate()/1e6, 100*r.cpu.Seconds()/r.span.Seconds())
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var report bytes.Buffer
	print(io.MultiWriter(os.Stdout, &report), meters, o)
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, report.Bytes(), 0o644) //nolint:gosec // a report
}

func load(path string) ([][]byte, error) {
	f, err := os.Create(path) //nolint:gosec // in the scratch folder
	if err != nil {
		return nil, err
	}
	err = errors.Join(traffic.Bench(seed, packets, flows).WritePcap(f), f.Close())
	if err != nil {
		return nil, err
	}
	frames, err := rig.Frames(path, mtu+14)
	runtime.GC()
	return frames, errors.Join(err, os.Remove(path))
}

// once runs one meter on a veth pair of its own.
func once(ctx context.Context, m *meter, dir string, cpus []int, frames [][]byte, span time.Duration) (r outcome, err error) {
	b := &board{dir: dir, meterCPU: cpus[1]}
	if b.host, err = netns.New(); err != nil {
		return r, err
	}
	defer b.host.Close()
	if b.far, err = netns.New(); err != nil {
		return r, err
	}
	defer b.far.Close()
	if err := netns.Veth(netns.End{NS: b.host, Name: "h0"}, netns.End{NS: b.far, Name: "out0"}, 1, mtu); err != nil {
		return r, err
	}
	s, err := b.far.Sender("out0")
	if err != nil {
		return r, err
	}
	defer s.Close()
	b.expect = func() uint64 { return r.sent - b.lost() }
	run, err := m.start(b)
	if err != nil {
		return r, err
	}
	release, err := netns.Pin(cpus[0])
	if err != nil {
		return r, err
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20) // as the meter
	before := cpuTime(run.pid)
	begin := time.Now()
	for time.Since(begin) < span && ctx.Err() == nil {
		for at := 0; at < len(frames) && time.Since(begin) < span; at += portion {
			n, err := s.Send(frames[at:min(at+portion, len(frames))])
			r.sent += uint64(n)
			if err != nil {
				release()
				return r, err
			}
		}
	}
	r.span = time.Since(begin)
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
	release()
	r.cpu = cpuTime(run.pid) - before
	r.counted, r.missed, err = run.counts()
	r.link = b.lost()
	return r, err
}

// lost is what the veth pair dropped.
func (b *board) lost() uint64 {
	var n uint64
	for _, e := range []netns.End{{NS: b.host, Name: "h0"}, {NS: b.far, Name: "out0"}} {
		if l, err := e.NS.Link(e.Name); err == nil {
			n += l.Attrs().Statistics.RxDropped + l.Attrs().Statistics.TxDropped
		}
	}
	return n
}

// cpuTime is the time that a process has computed.
func cpuTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * time.Second / 100 // USER_HZ
}

func ours(binary, kind string, models []string) func(*board) (*running, error) {
	return func(b *board) (*running, error) {
		conf := rig.Live(kind, "h0")
		conf.Queues, conf.MaxFlows, conf.Models, conf.Emit.Flows = 1, 1<<20, models, "none"
		conf.SnapshotIntervalNs = int64(time.Second)
		conf.IdleTimeoutNs, conf.ActiveTimeoutNs = int64(time.Minute), int64(5*time.Minute)
		conf.Source.Live.StateDir = filepath.Join(b.dir, "state")
		// Room for what comes while the meter does not get its CPU, about 50,000 and 16,000 frames.
		conf.Source.Live.RingBytes, conf.Source.Live.UmemFrames = 16<<20, 1<<15
		e, err := rig.Start(b.host, binary, conf, b.meterCPU)
		if err != nil {
			return nil, err
		}
		if _, err := e.Ready(); err != nil {
			e.Kill()
			return nil, err
		}
		return &running{pid: e.Pid(), counts: func() (uint64, uint64, error) {
			err := e.Settled(b.expect(), rig.Patience)
			s := e.Snapshot().GetEngine()
			var drops uint64
			for _, n := range s.GetDrops() {
				drops += n
			}
			counted := s.GetPacketsRecorded() + s.GetPacketsActive()
			e.End()
			return counted, drops, err
		}}, nil
	}
}

// program starts a rival on the meter's CPU.
func program(b *board, args ...string) (*rig.Process, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], bench.ErrMissing)
	}
	return rig.RunOn(b.host, exec.Command(path, args[1:]...), b.meterCPU) //nolint:gosec // a rival
}

// warmUp is how long a rival may take to open the interface.
const warmUp = 2 * time.Second

func softflowd(b *board) (*running, error) {
	control := filepath.Join(b.dir, "softflowd.ctl")
	_ = os.Remove(control)
	sink, err := rig.Discard(b.host, "127.0.0.1:9995")
	if err != nil {
		return nil, err
	}
	p, err := program(b, "softflowd", "-d", "-i", "h0", "-v", "9", "-6", "-m", "2000000", "-n", "127.0.0.1:9995", "-c", control, "-p", filepath.Join(b.dir, "softflowd.pid"))
	if err != nil {
		sink.Close()
		return nil, err
	}
	time.Sleep(warmUp)
	if !p.Alive() {
		return nil, fmt.Errorf("softflowd ended: %s", p.Log())
	}
	return &running{pid: p.Pid(), counts: func() (counted, missed uint64, err error) {
		defer sink.Close()
		defer func() { err = errors.Join(err, p.Stop()) }()
		time.Sleep(time.Second) // what is in its buffer
		out, err := exec.Command("softflowctl", "-c", control, "statistics").CombinedOutput()
		if err != nil {
			return 0, 0, fmt.Errorf("softflowctl: %w: %s", err, out)
		}
		counted, err = after(string(out), "Packets processed: ")
		return counted, b.expect() - min(counted, b.expect()), err
	}}, nil
}

// after reads the number that follows a text.
func after(text, label string) (uint64, error) {
	_, rest, ok := strings.Cut(text, label)
	if !ok {
		return 0, fmt.Errorf("no %q in %s", label, text)
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	return strconv.ParseUint(rest[:max(end, 0)], 10, 64)
}

func argus(b *board) (*running, error) {
	file := filepath.Join(b.dir, "argus.out")
	_ = os.Remove(file)
	p, err := program(b, "argus", "-X", "-i", "h0", "-S", "300", "-w", file)
	if err != nil {
		return nil, err
	}
	time.Sleep(warmUp)
	if !p.Alive() {
		return nil, fmt.Errorf("argus ended: %s", p.Log())
	}
	return &running{pid: p.Pid(), counts: func() (uint64, uint64, error) {
		time.Sleep(time.Second) // what is in its buffer
		if err := p.Stop(); err != nil {
			return 0, 0, err
		}
		out, err := exec.Command("racount", "-r", file).CombinedOutput()
		if err != nil {
			return 0, 0, fmt.Errorf("racount: %w: %s", err, out)
		}
		counted, err := racount(string(out))
		return counted, b.expect() - min(counted, b.expect()), err
	}}, nil
}

// racount reads the column total_pkts of the line "sum".
func racount(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "sum" {
			return strconv.ParseUint(f[2], 10, 64)
		}
	}
	return 0, fmt.Errorf("no sum in %s", text)
}

// median is the run in the middle, by rate.
func median(runs []outcome) outcome {
	sorted := slices.Clone(runs)
	slices.SortFunc(sorted, func(a, b outcome) int { return int(a.rate() - b.rate()) })
	return sorted[len(sorted)/2]
}

func print(out io.Writer, meters []*meter, o options) {
	fmt.Fprintf(out, "# Benchmark results, live\n\n%s\n\n", bench.Machine("make bench-live"))
	fmt.Fprintf(out, "A veth pair between two network namespaces; one CPU sends %d packets of %d flows (about 380 bytes each) again and again for %v as fast as it can, "+
		"the meter has the other CPU for itself. What the kernel does on receipt, for the sockets of the rivals as for our programs, is on the sender's CPU, so the rate of sending differs. "+
		"Both have the highest priority (nice -20). Median of %d runs in turns. Counted: frames that are in flows. Missed: all others that came to the interface.\n\n```\n", packets, flows, o.span, o.runs)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "meter\tsent M/s\tcounted M/s\tmin\tmax\tmissed\tmeter CPU %\tcounted M per CPU second\t")
	bestRate, bestCore, rival := 0.0, 0.0, ""
	for _, m := range meters {
		if m.err != nil || len(m.runs) == 0 {
			fmt.Fprintf(w, "%s\t%v\t\t\t\t\t\t\t\n", m.name, m.err)
			continue
		}
		r := median(m.runs)
		low, high := r.rate(), r.rate()
		for _, x := range m.runs {
			low, high = min(low, x.rate()), max(high, x.rate())
		}
		fmt.Fprintf(w, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.1f %%\t%.0f\t%.3f\t\n", m.name, float64(r.sent)/r.span.Seconds()/1e6, r.rate()/1e6, low/1e6, high/1e6,
			100*float64(r.missed)/float64(r.sent-r.link), 100*r.cpu.Seconds()/r.span.Seconds(), r.perCore()/1e6)
		if !m.ours {
			if r.rate() > bestRate {
				bestRate, rival = r.rate(), m.name
			}
			bestCore = max(bestCore, r.perCore())
		}
	}
	w.Flush()
	fmt.Fprint(out, "```\n\n")
	for _, m := range meters {
		fmt.Fprintf(out, "- %s: %s.\n", m.name, m.note)
	}
	var goals []bench.Goal
	for _, m := range meters {
		if !m.ours || len(m.runs) == 0 {
			continue
		}
		want := 2.0
		if strings.HasSuffix(m.name, "both models") {
			want = 0 // no rival does anything like it
		}
		// The sender is the limit of meters that miss nothing: CPU time compares them all.
		g := bench.Goal{Text: m.name + ", beside " + rival, Unit: "times the packets/s"}
		per := bench.Goal{Text: m.name + ", at equal CPU, beside the better rival", Unit: "times the packets/s", Want: want}
		if bestRate > 0 {
			r := median(m.runs)
			g.Got, g.Known = r.rate()/bestRate, true
			per.Got, per.Known = r.perCore()/bestCore, true
		}
		goals = append(goals, g, per)
	}
	fmt.Fprintf(out, "\n## Goals\n\n```\n%s```\n", bench.GoalTable(goals))
}
