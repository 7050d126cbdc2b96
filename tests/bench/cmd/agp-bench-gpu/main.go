// Command agp-bench-gpu measures the packet path on a GPU, fed by the NIC model, and prints a
// table in Markdown, row by row.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	nvml "github.com/agp-net/telegraf-agp/agp/telemetry/gpu"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/tests/bench"
	"github.com/agp-net/telegraf-agp/tests/bench/gpu"
)

// version is set by the linker: where the GPU is there may be no repository.
var version = "unknown"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agp-bench-gpu:", err)
		os.Exit(1)
	}
}

func run() error {
	which := flag.String("run", "", "regular expression: groups to measure, of "+strings.Join(gpu.Names(), " "))
	runs := flag.Int("runs", 3, "runs of each row; the median counts")
	shards := flag.Int("shards", 0, "state warps per ring where a ring has a multiprocessor, instead of what suits the row")
	out := flag.String("out", "", "file in which the table is replaced as well")
	commit := flag.String("commit", version, "commit that is measured")
	flag.Parse()
	groups, err := regexp.Compile(*which)
	if err != nil {
		return err
	}
	all, err := driver.Open()
	if err != nil {
		return err
	}
	d, err := all.Device(0)
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	readings := &readings{uuid: info.UUID}
	before, readable := readings.read() // nothing is on the GPU yet
	g, err := cuda.OpenGPU(d)
	if err != nil {
		return err
	}
	defer g.Close()

	command := strings.Join(append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...), " ")
	text := &bytes.Buffer{}
	say := func(line string) {
		fmt.Println(line)
		fmt.Fprintln(text, line)
	}
	say(fmt.Sprintf("%s (%d SMs, %.2f GHz, %s, CUDA %s); %s\n", info.Name, info.SMs, float64(info.ClockKHz)/1e6, driverVersion(), all.Version(), bench.MachineAt(*commit, command)))
	say(fmt.Sprintf("NIC model, no network card; median of %d runs.\n", *runs))
	say(gpu.Head())
	b := &gpu.Bench{
		Device: g, SMs: info.SMs, Clock: float64(info.ClockKHz) * 1e3, Runs: *runs, Shards: *shards,
		Print: func(r gpu.Row) { say(r.String()) },
	}
	if readable == nil && before.EnergyMillijoules != nil {
		b.Energy = readings.energy
	}
	if readable == nil && before.MemoryUsedBytes != nil {
		b.Used = func() (uint64, error) {
			now, err := readings.read()
			if err != nil || now.MemoryUsedBytes == nil {
				return 0, errors.Join(errors.New("memory in use is not known"), err)
			}
			return *now.MemoryUsedBytes - *before.MemoryUsedBytes, nil
		}
	}
	begin := time.Now()
	err = b.Run(groups)
	say(fmt.Sprintf("\nMeasured in %v.", time.Since(begin).Round(time.Second)))
	if *out != "" {
		err = errors.Join(err, gpu.Write(*out, text.String()))
	}
	return err
}

// readings of NVML, which is asked when something is to be known only, so that it costs nothing
// meanwhile.
type readings struct{ uuid string }

func (r *readings) read() (row telemetry.GPURow, err error) {
	reader, err := nvml.Open(nvml.Options{UUIDs: []string{r.uuid}, Interval: time.Hour})
	if err != nil {
		return row, err
	}
	var s telemetry.Snapshot
	reader.Read(&s)
	if len(s.GPUs) == 0 {
		err = errors.New("NVML: no reading")
	} else {
		row = s.GPUs[0]
	}
	return row, errors.Join(err, reader.Close())
}

func (r *readings) energy() (uint64, error) {
	row, err := r.read()
	if err != nil || row.EnergyMillijoules == nil {
		return 0, errors.Join(errors.New("energy is not known"), err)
	}
	return *row.EnergyMillijoules, nil
}

// driverVersion is what the kernel module says of itself.
func driverVersion() string {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return "driver unknown"
	}
	if v := regexp.MustCompile(`\b\d{3}\.\d+(\.\d+)?\b`).Find(text); v != nil {
		return "driver " + string(v)
	}
	return "driver unknown"
}
