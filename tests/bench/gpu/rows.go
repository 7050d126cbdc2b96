package gpu

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
)

// Bench is what the rows are measured with.
type Bench struct {
	Device cuda.Device
	SMs    int
	Clock  float64 // of the multiprocessors, Hz
	Runs   int     // of each row; the median counts
	Shards int     // state warps per ring instead of what suits the row, 0: that
	Tiny   bool    // to see that it works: few rings, few packets
	// Energy is what the GPU has used until now, in mJ; nil: not known.
	Energy func() (uint64, error)
	// Used is the GPU's memory in use, by whomever, beyond what was before this process came; nil: not known.
	Used  func() (uint64, error)
	Print func(Row)
}

type group struct {
	name string
	run  func(*Bench) error
}

// groups of rows, in the order in which they are measured: the process is small at first.
var groups = []group{
	{"host", (*Bench).host},
	{"64B-prefilled", (*Bench).prefilled},
	{"64B-16-rings", (*Bench).sixteen},
	{"64B-32-SMs", (*Bench).small},
	{"copies", (*Bench).copies},
	{"flows", (*Bench).flows},
	{"handover", (*Bench).handover},
	{"power", (*Bench).power},
}

// Names are what can be selected.
func Names() (names []string) {
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Run measures the rows whose group's name matches. What fails is said at the end; the rest is measured.
func (b *Bench) Run(which *regexp.Regexp) error {
	var failed []string
	for _, g := range groups {
		if !which.MatchString(g.name) {
			continue
		}
		if err := g.run(b); err != nil {
			failed = append(failed, g.name+": "+err.Error())
			b.Print(Row{Quantity: g.name, Measured: "failed: " + err.Error()})
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("not measured: %s", strings.Join(failed, "; "))
	}
	return nil
}

// scaled is a shape as it is measured here.
func (b *Bench) scaled(s Shape) Shape {
	if b.Shards != 0 && s.PerBlock == 1 {
		s.Shards = b.Shards
	}
	if s.FrameLen == 0 {
		s.FrameLen = 60
	}
	if b.Tiny {
		s.Rings, s.PerBlock, s.Shards, s.Flows = min(s.Rings, 2), 1, min(s.Shards, 2), min(s.Flows, 256)
		s.LogRQ = min(max(s.LogRQ, 9), 10)
	}
	return s
}

func (b *Bench) packets(n uint64) uint64 {
	if b.Tiny {
		return min(n, 1<<12)
	}
	return n
}

func (b *Bench) length(d time.Duration) time.Duration {
	if b.Tiny {
		return min(d, 50*time.Millisecond)
	}
	return d
}

// lasting is how many packets of each ring last so long at a rate of all.
func (b *Bench) lasting(d time.Duration, rate float64, rings int) uint64 {
	return b.packets(max(uint64(rate*d.Seconds()/float64(rings))&^31, 1<<12))
}

const (
	prefilled = "prefilled rings"
	producing = "producer kernel"
	paced     = "paced producer kernel"
	copying   = "copy engine from host memory"

	must16 = "148.8 Mpps (250)"
	must32 = "595 Mpps (1,190; or 595 on 8 SMs)"
	paper  = "66.6 Mpps, no loss"
)

// what is done with packets.
func (s Shape) what() string {
	what := "parse + flow"
	if s.Mode == cuda.ModeStateless {
		what = "parse + count (stateless mode)"
	}
	if s.Sketches {
		what += " + sketch"
	}
	if s.Receivers != 0 {
		what += fmt.Sprintf(", sequence mode (%d receive warps)", s.Receivers)
	}
	return what
}

func (b *Bench) grid(s Shape) (text string, used int) {
	used = min(b.SMs, s.Blocks())
	return fmt.Sprintf("%d, %d, %d", s.Rings, s.Warps(), used), used
}

// stages are the times of a batch.
func (b *Bench) stages(r *Result) string {
	if b.Clock == 0 {
		return ""
	}
	ns := func(cycles []float64) string {
		var parts []string
		for _, c := range cycles {
			parts = append(parts, fmt.Sprintf("%.0f", c/b.Clock*1e9))
		}
		return strings.Join(parts, " + ")
	}
	return fmt.Sprintf("%s; %s (%.1f)", ns(r.Receive[:]), ns(r.State[:3]), r.StatePackets)
}

// packetRow prints a row of packets per second.
func (b *Bench) packetRow(t *Test, r *Result, mode, must, was string) {
	grid, used := b.grid(t.Shape)
	lost := fmt.Sprint(int64(r.Sent) - int64(r.Seen))
	if t.Pace != 0 {
		lost += fmt.Sprintf(", %d batches late", r.Late)
	}
	if r.Evicted > 0 {
		lost += fmt.Sprintf("; %d flows evicted", r.Evicted)
	}
	b.Print(Row{
		Quantity: fmt.Sprintf("%d B, %s, %s flows", t.FrameLen+4, t.what(), thousands(t.Flows*t.Rings)), Mode: mode, Grid: grid,
		Measured: fmt.Sprintf("%.1f Mpps", r.Rate()/1e6), PerSM: fmt.Sprintf("%.2f Mpps", r.Rate()/1e6/float64(used)),
		Lost: lost, Stages: b.stages(r), Must: must, Paper: was,
	})
}

// thousands writes a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// median measures as often as it is to be and returns the run in the middle, and whether no batch was late in any.
func (b *Bench) median(t Test) (Result, bool, error) {
	var all []Result
	clean := true
	for range max(b.Runs, 1) {
		r, err := Measure(b.Device, t)
		if err != nil {
			return r, false, err
		}
		all = append(all, r)
		clean = clean && r.Late == 0 && r.Seen == r.Sent
	}
	slices.SortFunc(all, func(x, y Result) int {
		if x.Rate() < y.Rate() {
			return -1
		}
		return 1
	})
	return all[len(all)/2], clean, nil
}

// measured prints the row of a test without pace.
func (b *Bench) measured(t Test, must, was string) (Result, error) {
	t.Shape, t.Packets = b.scaled(t.Shape), b.packets(t.Packets)
	r, _, err := b.median(t)
	if err != nil {
		return r, err
	}
	mode := producing
	if t.Prefill {
		mode = prefilled
	}
	b.packetRow(&t, &r, mode, must, was)
	return r, nil
}

// Cycles of the host build's clock, which goes on by one with each look, mean nothing: a tiny bench
// begins here.
const tinyPace = 4

func (b *Bench) pace(rate float64, rings int) uint32 {
	if b.Clock == 0 {
		return tinyPace
	}
	return max(Pace(rate, rings, b.Clock), 1)
}

// highest prints the row of the highest paced rate at which no batch was late. rate is that
// without a pace.
func (b *Bench) highest(t Test, rate float64, must, was string) error {
	t.Shape, t.Packets = b.scaled(t.Shape), b.packets(t.Packets)
	steps := 6
	if b.Tiny {
		steps = 1
		t.LogRQ = 12 // room for all
	}
	short := t
	short.Packets = max(t.Packets/4, 1<<12)
	pace, ok, err := Highest(b.pace(rate*1.03, t.Rings), steps, func(pace uint32) (bool, error) {
		short.Pace = pace
		r, err := Measure(b.Device, short)
		return r.Late == 0 && r.Seen == r.Sent, err
	})
	if err != nil {
		return err
	}
	for tries := 0; ok && tries < 6; tries++ {
		t.Pace = pace
		r, clean, err := b.median(t)
		if err != nil {
			return err
		}
		if clean {
			b.packetRow(&t, &r, paced, must, was)
			return nil
		}
		pace += pace/50 + 1
	}
	b.Print(Row{Quantity: "highest rate without a late batch", Mode: paced, Measured: "none found", Must: must})
	return nil
}

func (b *Bench) prefilled() error {
	for _, t := range []Test{
		{Shape: Shape{Rings: 1, PerBlock: 1, Shards: 4, Flows: 4096}, Packets: 1 << 20},
		{Shape: Shape{Mode: cuda.ModeSequence, Rings: 1, PerBlock: 1, Receivers: 3, Shards: 4, Flows: 4096}, Packets: 1 << 20},
		{Shape: Shape{Rings: 16, PerBlock: 1, Shards: 4, Flows: 1}, Packets: 1 << 18},
		{Shape: Shape{Rings: 16, PerBlock: 1, Shards: 4, Flows: 4096}, Packets: 1 << 20},
		{Shape: Shape{Rings: 16, PerBlock: 1, Shards: 4, Flows: 65536}, Packets: 1 << 20},
		{Shape: Shape{Rings: 128, PerBlock: 4, Shards: 1, Flows: 8192}, Packets: 1 << 18},
		{Shape: Shape{Mode: cuda.ModeStateless, Rings: 16, PerBlock: 1, Shards: 2, Flows: 4096}, Packets: 1 << 20},
		{Shape: Shape{Mode: cuda.ModeStateless, Rings: 16, PerBlock: 1, Shards: 7, Flows: 4096, Sketches: true}, Packets: 1 << 20},
		{Shape: Shape{Mode: cuda.ModeStateless, Rings: 128, PerBlock: 4, Shards: 1, Flows: 8192}, Packets: 1 << 18},
	} {
		t.Prefill = true
		if _, err := b.measured(t, "", ""); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) sixteen() error {
	for _, sketches := range []bool{false, true} {
		must, shards := "", 4
		if sketches {
			must, shards = must16, fullShards
		}
		var rate float64
		for _, flows := range []int{4096, 65536} {
			t := Test{Shape: Shape{Rings: 16, PerBlock: 1, Shards: shards, Flows: flows, Sketches: sketches}, Feeders: 4, Packets: 1 << 23}
			r, err := b.measured(t, "", "")
			if err != nil {
				return err
			}
			rate = r.Rate()
		}
		t := Test{Shape: Shape{Rings: 16, PerBlock: 1, Shards: shards, Flows: 65536, LogRQ: 13, Sketches: sketches}, Feeders: 4, Packets: 1 << 23}
		if err := b.highest(t, rate, must, paper); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) small() error {
	best, rate := Test{}, 0.0
	for _, s := range []Shape{
		{Rings: 8, PerBlock: 1, Shards: 7},
		{Rings: 32, PerBlock: 1, Shards: 7},
		{Rings: 64, PerBlock: 2, Shards: 3},
		{Rings: 96, PerBlock: 3, Shards: 1},
		{Rings: 128, PerBlock: 4, Shards: 1},
	} {
		s.Flows = 1 << 20 / s.Rings
		t := Test{Shape: s, Feeders: 4, Packets: 1 << 27 / uint64(s.Rings)}
		r, err := b.measured(t, "", "")
		if err != nil {
			return err
		}
		if r.Rate() > rate {
			best, rate = t, r.Rate()
		}
	}
	best.LogRQ, best.Sketches = 13, true
	r, err := b.measured(best, "", "")
	if err != nil {
		return err
	}
	return b.highest(best, r.Rate(), must32, "")
}

func (b *Bench) copies() error {
	for _, c := range []struct {
		frame   int
		packets uint64
		must    string
	}{{60, 1 << 22, "150 Mpps (link limit)"}, {1496, 1 << 20, "350 Gb/s (link limit)"}} {
		t := FeedTest{Shape: b.scaled(Shape{Rings: 16, PerBlock: 1, Shards: 4, LogRQ: 13, Flows: 65536, FrameLen: c.frame}), Chunk: 1024, Streams: 4, Packets: b.packets(c.packets)}
		if b.Tiny {
			t.Chunk, t.Streams = 64, 2
		}
		link := t
		link.Alone = true
		alone, err := Feed(b.Device, link)
		if err != nil {
			return err
		}
		var all []FeedResult
		for range max(b.Runs, 1) {
			r, err := Feed(b.Device, t)
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		slices.SortFunc(all, func(x, y FeedResult) int { return int(x.Seconds*1e9) - int(y.Seconds*1e9) })
		r := all[len(all)/2]
		grid, used := b.grid(t.Shape)
		rate := float64(r.Seen) / r.Seconds / 1e6
		b.Print(Row{
			Quantity: fmt.Sprintf("feed across PCIe, %d B, %d packets of each ring per copy, %d streams", c.frame+4, t.Chunk, t.Streams), Mode: copying, Grid: grid,
			Measured: fmt.Sprintf("%.1f Mpps, %.0f Gb/s of frames, %.1f GB/s over the link (copies alone: %.1f)", rate, float64(r.Payload)*8/r.Seconds/1e9, float64(r.Link)/r.Seconds/1e9, float64(alone.Link)/alone.Seconds/1e9),
			PerSM:    fmt.Sprintf("%.2f Mpps", rate/float64(used)), Lost: fmt.Sprint(int64(r.Sent) - int64(r.Seen)), Stages: b.stages(&r.Batches), Must: c.must,
		})
	}
	return nil
}

func (b *Bench) flows() error {
	for _, c := range []struct {
		what string
		t    FlowTest
	}{
		{"TCP of 5 packets, from SYN to the last ACK", FlowTest{Shape: Shape{Rings: 16, PerBlock: 1, Shards: 4, Flows: 1 << 16}, PerFlow: 5, Packets: 1 << 22, GapNs: 10_000}},
		{"UDP of one packet", FlowTest{Shape: Shape{Rings: 16, PerBlock: 1, Shards: 4, Flows: 3 << 16}, PerFlow: 1, Packets: 1 << 21, GapNs: 20_000}},
		{"UDP of one packet", FlowTest{Shape: Shape{Rings: 64, PerBlock: 2, Shards: 3, Flows: 3 << 16}, PerFlow: 1, Packets: 1 << 19, GapNs: 20_000}},
	} {
		t := c.t
		t.Feeders, t.Open, t.EndNs, t.LogRecords = 4, 4096, 1e9, 22
		if t.Rings > 16 {
			t.LogRecords = 20
		}
		t.Shape, t.Packets = b.scaled(t.Shape), b.packets(t.Packets)
		if b.Tiny {
			t.Open, t.LogRecords, t.Flows = 64, 20, 1<<13
		}
		if err := b.flowRow(c.what, t); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) flowRow(what string, t FlowTest) error {
	r, err := NewFlows(b.Device, t)
	if err != nil {
		return err
	}
	mode := producing
	if r.Lost > 0 { // the host cannot keep up with that: the highest rate at which it does
		mode = paced
		b.printFlows(what+", as fast as it can", producing, t, &r)
		pace, ok, err := Highest(b.pace(float64(r.Packets)/r.Seconds, t.Rings), 4, func(pace uint32) (bool, error) {
			t.Pace = pace
			r, err := NewFlows(b.Device, t)
			return r.Lost == 0, err
		})
		if err != nil || !ok {
			return err
		}
		t.Pace = pace
	}
	var all []FlowResult
	for range max(b.Runs, 1) {
		if r, err = NewFlows(b.Device, t); err != nil {
			return err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y FlowResult) int { return int(y.Rate()) - int(x.Rate()) })
	b.printFlows(what, mode, t, &all[len(all)/2])
	return nil
}

func (b *Bench) printFlows(what, mode string, t FlowTest, r *FlowResult) {
	grid, used := b.grid(t.Shape)
	b.Print(Row{
		Quantity: "new flows, each with its full record read by the host; " + what, Mode: mode, Grid: grid,
		Measured: fmt.Sprintf("%.1f M flows/s, %.1f Mpps; %.1f GB/s of records, %.2f cores of the host; packets' clock %.0f times as fast as the host's",
			r.Rate()/1e6, float64(r.Packets)/r.Seconds/1e6, float64(r.Bytes)/r.Seconds/1e9, r.CPU.Seconds()/r.Seconds, float64(t.Packets)*float64(t.GapNs)/1e9/r.Seconds),
		PerSM: fmt.Sprintf("%.2f M flows/s", r.Rate()/1e6/float64(used)),
		Lost:  fmt.Sprintf("%d records; %d flows evicted; sums agree", r.Lost, r.Evicted), Stages: b.stages(&r.Batches), Must: "10 M flows/s (50)", Paper: "0.7 M flows/s (trace)",
	})
}

// fullShards is how many state warps a ring needs so that with sketches too its receive warp is what
// is waited for.
const fullShards = 5

// full is the shape of the whole pipeline.
func (b *Bench) full() Shape {
	return b.scaled(Shape{Rings: 16, PerBlock: 1, Shards: fullShards, Flows: 65536, LogRQ: 13, Sketches: true})
}

// host is what the pipeline needs of the host, and of the GPU's memory, at full load.
func (b *Bench) host() error {
	s := b.full()
	quick, err := Measure(b.Device, Test{Shape: s, Feeders: 4, Packets: b.packets(1 << 21)})
	if err != nil {
		return err
	}
	length := b.length(25 * time.Second)
	var used uint64
	var usedErr error
	t := LoadTest{
		Shape: s, Feeders: 4, Packets: b.lasting(length, quick.Rate(), s.Rings), Telemetry: b.length(10 * time.Second), Length: length,
		AtEnd: func() {
			if b.Used != nil {
				used, usedErr = b.Used()
			}
		},
	}
	r, err := Load(b.Device, t)
	if err != nil {
		return err
	}
	grid, _ := b.grid(s)
	b.Print(Row{
		Quantity: fmt.Sprintf("host CPU at full load, telemetry every %v, sketches on", t.Telemetry), Mode: producing, Grid: grid,
		Measured: fmt.Sprintf("%.2f %% of a core over %.1f s, of which %.2f %% while snapshots are taken (%d), at %.1f Mpps",
			100*r.CPU.Seconds()/r.Seconds, r.Seconds, 100*r.SnapshotCPU.Seconds()/r.Seconds, r.Snapshots, float64(r.Seen)/r.Fed/1e6),
		Lost: fmt.Sprint(r.Missing), Stages: b.stages(&r.Batches), Must: "2 % (0.5 %)", Paper: "0 cores",
	})
	memory := fmt.Sprintf("%.2f GB allocated by the pipeline", float64(r.DeviceAllocated)/1e9)
	if b.Used != nil && usedErr == nil {
		memory = fmt.Sprintf("%.2f GB with the context (%s)", float64(used)/1e9, memory)
	}
	b.Print(Row{
		Quantity: fmt.Sprintf("host RSS / GPU memory, room for %s flows", thousands(s.Flows*s.Rings)), Mode: producing, Grid: grid,
		Measured: fmt.Sprintf("%.2f GB, of which %.2f GB are record rings / %s", float64(r.RSS)/1e9, float64(r.RecordRings)/1e9, memory), Must: "0.35 GB / 2.4 GB (less)", Paper: "0.35 GB / 2.4 GB",
	})
	return usedErr
}

// handover exchanges the kernel under load: without sketches at the rate that a ring must bear, for
// which 8 rings have some to spare and 16 hardly any, and with sketches at the rate that these bear.
// A rate with late batches is followed by a lower one.
func (b *Bench) handover() error {
	for _, c := range []struct {
		shape Shape
		rate  float64 // per ring
	}{
		{Shape{Rings: 8, PerBlock: 1, Shards: 7, Flows: 65536}, 9e6},
		{Shape{Rings: 16, PerBlock: 1, Shards: 4, Flows: 65536}, 9e6},
		{Shape{Rings: 16, PerBlock: 1, Shards: fullShards, Flows: 65536, Sketches: true}, 9e6},
	} {
		c.shape.LogRQ = 13
		s, rate := b.scaled(c.shape), c.rate
		for range 3 {
			late, err := b.handoverRow(s, rate)
			if err != nil {
				return err
			}
			if late == 0 || b.Tiny {
				break
			}
			rate *= 3. / 4
		}
	}
	return nil
}

// handoverRow prints the row of a rate per ring and returns how many batches were late.
func (b *Bench) handoverRow(s Shape, rate float64) (uint64, error) {
	all, length := rate*float64(s.Rings), b.length(3*time.Second)
	t := LoadTest{Shape: s, Feeders: 4, Pace: b.pace(all, s.Rings), Packets: b.lasting(length, all, s.Rings), Handovers: 8, Length: length}
	r, err := Load(b.Device, t)
	if err != nil {
		return 0, err
	}
	grid, _ := b.grid(s)
	row := Row{
		Quantity: fmt.Sprintf("handover of the kernel, %s, at %.1f Mpps per ring, rings of %d", s.what(), rate/1e6, 1<<s.LogRQ), Mode: paced, Grid: grid,
		Measured: "no handover in time", Lost: fmt.Sprintf("%d of %d, %d batches late", r.Missing, r.Sent, r.Late), Stages: b.stages(&r.Batches), Must: "none lost at 9 Mpps per ring",
	}
	if len(r.Gaps) > 0 {
		slices.Sort(r.Gaps)
		row.Measured = fmt.Sprintf("%d handovers at %.1f Mpps, gap %v median, %v longest", len(r.Gaps), float64(r.Seen)/r.Fed/1e6,
			r.Gaps[len(r.Gaps)/2].Round(time.Microsecond), r.Gaps[len(r.Gaps)-1].Round(time.Microsecond))
	}
	b.Print(row)
	return r.Late, nil
}

// watts is the power over a time.
func (b *Bench) watts(d time.Duration) (float64, error) {
	first, err := b.Energy()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	time.Sleep(d)
	last, err := b.Energy()
	return float64(last-first) / 1e3 / time.Since(begin).Seconds(), err
}

func (b *Bench) power() error {
	if b.Energy == nil {
		b.Print(Row{Quantity: "added GPU power", Measured: "the GPU has no energy counter"})
		return nil
	}
	length := b.length(6 * time.Second)
	time.Sleep(length / 4) // clocks go down
	idle, err := b.watts(length * 8 / 10)
	if err != nil {
		return err
	}
	s := b.full()
	var polling float64
	if failed := Polling(b.Device, s, func() { polling, err = b.watts(length * 8 / 10) }); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	grid, _ := b.grid(s)
	b.Print(Row{Quantity: "added GPU power, rings without packets", Mode: "none", Grid: grid, Measured: fmt.Sprintf("%.1f W (idle %.1f W)", polling-idle, idle)})
	for _, c := range []struct {
		frame int
		rate  float64
	}{{60, 148.8e6}, {508, 23.5e6}} {
		s := s
		s.FrameLen = c.frame
		t := Test{Shape: s, Feeders: 4, Pace: b.pace(c.rate, s.Rings), Packets: b.lasting(length, c.rate, s.Rings)}
		var with, alone float64
		t.Around = func(running bool) {
			if running {
				time.Sleep(length / 20)
				with, err = b.watts(length * 8 / 10)
			}
		}
		r, failed := Measure(b.Device, t)
		if failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
		t.Alone = true
		t.Around = func(running bool) {
			if running {
				time.Sleep(length / 20)
				alone, err = b.watts(length * 8 / 10)
			}
		}
		if _, failed := Measure(b.Device, t); failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
		b.Print(Row{
			Quantity: fmt.Sprintf("added GPU power at %.1f Mpps of %d B, %.0f Gb/s on the wire", r.Rate()/1e6, c.frame+4, r.Rate()*float64(c.frame+24)*8/1e9), Mode: paced, Grid: grid,
			Measured: fmt.Sprintf("%.1f W by the packet path (%.1f W with the NIC model's kernel, which alone adds %.1f W; idle %.1f W)", with-alone, with-idle, alone-idle, idle),
			Lost:     fmt.Sprintf("%d, %d batches late", int64(r.Sent)-int64(r.Seen), r.Late), Stages: b.stages(&r), Must: "printed (20 W)", Paper: "20.1 W",
		})
	}
	return nil
}
