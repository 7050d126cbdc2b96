// Command execd measures how many metrics per second pass through telegraf's
// inputs.execd into outputs.file on /dev/null: once from this project's runner and
// once from telegraf's own shim, in turns on the same machine. A metric has 4 tags
// and 8 fields. It exits with 1 if the runner reaches neither 150,000 per second
// nor twice the shim.
//
// One goroutine starts one telegraf at a time, times it by the wall clock and owns
// the folder of its configuration.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/common/shim"
	"github.com/influxdata/telegraf/plugins/inputs"

	"github.com/agp-net/telegraf-agp/plugins/runner"
	"github.com/agp-net/telegraf-agp/tests/e2e/telegrafbin"
)

const (
	wantRate  = 150_000
	wantRatio = 2.0
	warmUp    = 2 * time.Second

	roleEnv   = "AGP_BENCH_ROLE"   // this program as a plugin: runner or shim
	resultEnv = "AGP_BENCH_RESULT" // file for the plugin's result
	spanEnv   = "AGP_BENCH_SPAN"   // how long to measure
)

func main() {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(plugin(role))
	}
	telegrafPath := flag.String("telegraf", "", "telegraf `binary`; built if empty")
	span := flag.Duration("span", 5*time.Second, "how long to measure each run")
	rounds := flag.Int("rounds", 2, "runs of each; the best counts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := compare(ctx, *telegrafPath, *span, *rounds)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "execd benchmark:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// result is what a plugin process leaves behind.
type result struct {
	Metrics uint64
	Seconds float64
	CPU     float64 // of the plugin process, seconds
}

func (r result) rate() float64 { return float64(r.Metrics) / r.Seconds }

func compare(ctx context.Context, path string, span time.Duration, rounds int) (bool, error) {
	if path == "" {
		var err error
		if path, err = telegrafbin.Path(ctx, os.Stderr); err != nil {
			return false, err
		}
	}
	load := loadAverage()
	best := map[string]result{}
	for range rounds {
		for _, role := range []string{"runner", "shim"} {
			r, err := measure(ctx, path, role, span)
			if err != nil {
				return false, fmt.Errorf("%s: %w", role, err)
			}
			if b, ok := best[role]; !ok || r.rate() > b.rate() {
				best[role] = r
			}
		}
	}
	ratio := best["runner"].rate() / best["shim"].rate()
	fmt.Printf("\nMetrics through telegraf %s inputs.execd to outputs.file /dev/null (4 tags, 8 fields)\n", telegrafbin.Version)
	fmt.Printf("%s, %d CPUs, %s, load of the machine beforehand %s, best of %d runs of %s\n\n",
		cpuModel(), runtime.NumCPU(), runtime.Version(), load, rounds, span)
	fmt.Printf("%-22s %14s %22s\n", "plugin process", "metrics/s", "its CPU us per metric")
	for _, role := range []string{"runner", "shim"} {
		name := map[string]string{"runner": "runner (this project)", "shim": "telegraf's shim"}[role]
		fmt.Printf("%-22s %14.0f %22.2f\n", name, best[role].rate(), best[role].CPU/float64(best[role].Metrics)*1e6)
	}
	fmt.Printf("\nratio %.2f (wanted: at least %d metrics/s or a ratio of %.0f)\n", ratio, wantRate, wantRatio)
	return best["runner"].rate() >= wantRate || ratio >= wantRatio, nil
}

func measure(ctx context.Context, path, role string, span time.Duration) (result, error) {
	dir, err := os.MkdirTemp("", "agp-bench-execd-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	config := filepath.Join(dir, "telegraf.conf")
	text := fmt.Sprintf(`[agent]
  interval = "10s"
  flush_interval = "200ms"
  metric_batch_size = 10000
  metric_buffer_limit = 1000000
  omit_hostname = true
[[inputs.execd]]
  command = [%q]
  signal = "none"
  data_format = "influx"
[[outputs.file]]
  files = ["/dev/null"]
`, self)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return result{}, err
	}
	out := filepath.Join(dir, "result")
	var log strings.Builder
	cmd := exec.CommandContext(ctx, path, "--config", config)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, resultEnv+"="+out, spanEnv+"="+span.String())
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-exited
	}()
	deadline := time.After(warmUp + span + 30*time.Second)
	for {
		var r result
		b, err := os.ReadFile(out)
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-exited
			if strings.Contains(log.String(), "overflow") {
				fmt.Fprintf(os.Stderr, "%s: telegraf dropped metrics\n", role)
			}
			return r, nil
		}
		select {
		case <-exited:
			return result{}, fmt.Errorf("telegraf ended: %s", log.String())
		case <-deadline:
			return result{}, errors.New("no result in time")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// generator adds metrics as fast as it is let.
type generator struct {
	count atomic.Uint64
	quit  chan struct{}
	done  chan struct{}
}

func (*generator) SampleConfig() string { return "" }

func (*generator) Gather(telegraf.Accumulator) error { return nil }

func (g *generator) Start(acc telegraf.Accumulator) error {
	g.quit, g.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(g.done)
		tags := map[string]string{"interface": "eth0", "app": "dns", "class": "benign", "protocol": "udp"}
		fields := map[string]interface{}{
			"flows": int64(12), "packets_fwd": int64(1234567), "packets_rev": int64(7654321), "bytes_fwd": int64(123456789012),
			"bytes_rev": int64(987654321098), "retransmits": int64(0), "first_reply_ns": 1234567.25, "active": true,
		}
		start := time.Now()
		for i := time.Duration(0); ; i++ {
			select {
			case <-g.quit:
				return
			default:
			}
			acc.AddFields("agp_traffic", fields, tags, start.Add(i))
			g.count.Add(1)
		}
	}()
	go g.report()
	return nil
}

func (g *generator) report() {
	span, err := time.ParseDuration(os.Getenv(spanEnv))
	if err != nil {
		return
	}
	time.Sleep(warmUp)
	before, start, cpu := g.count.Load(), time.Now(), cpuSeconds()
	time.Sleep(span)
	r := result{Metrics: g.count.Load() - before, Seconds: time.Since(start).Seconds(), CPU: cpuSeconds() - cpu}
	b, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(os.Getenv(resultEnv)+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(os.Getenv(resultEnv)+".new", os.Getenv(resultEnv))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "E!", err)
	}
}

func (g *generator) Stop() {
	close(g.quit)
	<-g.done
}

func plugin(role string) int {
	if role == "runner" {
		return runner.Run(context.Background(), runner.Options{
			Inputs: map[string]inputs.Creator{"generator": func() telegraf.Input { return &generator{} }},
		})
	}
	s := shim.New()
	if err := s.AddInput(&generator{}); err != nil {
		return 1
	}
	if err := s.Run(shim.PollIntervalDisabled); err != nil {
		return 1
	}
	return 0
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// loadAverage is that of the last minute: other work on the machine costs the
// runner more than the shim, whose process has two busy threads to its one.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}
