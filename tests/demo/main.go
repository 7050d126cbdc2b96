// Command demo shows the plugin at work, on any machine with Go: it makes a
// capture whose content is known, lets a stock telegraf run the plugin on it and
// prints the metrics and, beside each other, what was expected and what was found.
// It exits with 1 if something expected was not found.
//
// It owns its scratch folder and the telegraf that it starts, from one goroutine.
// Times in the capture are the generator's; only the deadline is wall clock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/parsers/influx"

	"github.com/agp-net/telegraf-agp/tests/demo/table"
	"github.com/agp-net/telegraf-agp/tests/e2e/telegrafbin"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

const (
	seed     = 1
	patience = 90 * time.Second // until the engine has read the capture
	goodbye  = 20 * time.Second // until telegraf has ended
)

func main() {
	plugin := flag.String("plugin", "build/telegraf-agp", "telegraf-agp `binary`")
	models := flag.String("models", "", "`file` or folder of models; those that come with the program if empty")
	dir := flag.String("dir", "build/demo", "scratch `folder`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	missed, err := run(ctx, *plugin, *models, *dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	}
	if missed {
		os.Exit(1)
	}
}

func run(ctx context.Context, plugin, models, dir string) (missed bool, err error) {
	telegrafPath, err := telegrafbin.Path(ctx, os.Stderr)
	if err != nil {
		return false, err
	}
	for _, p := range []*string{&plugin, &dir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	truth, err := writeCapture(filepath.Join(dir, "demo.pcap"))
	if err != nil {
		return false, err
	}
	fmt.Printf("Capture: %d packets, %d flows, %.0f minutes of a small site's traffic\n", truth.Packets, truth.Flows,
		float64(truth.EndNs-truth.StartNs)/6e10)
	config, output, err := writeConfig(dir, plugin, models)
	if err != nil {
		return false, err
	}
	metrics, err := runTelegraf(ctx, telegrafPath, config, output, truth)
	if err != nil {
		return false, err
	}
	printMetrics(os.Stdout, metrics)
	return table.Compare(os.Stdout, truth, metrics), nil
}

func writeCapture(path string) (traffic.Summary, error) {
	c := traffic.Demo(seed)
	f, err := os.Create(path)
	if err != nil {
		return traffic.Summary{}, err
	}
	defer f.Close()
	return c.Summary("demo", seed), errors.Join(c.WritePcap(f), f.Close())
}

// writeConfig writes telegraf's configuration and the plugin's; they are what
// configs/ shows, but for paths and for how often metrics come.
func writeConfig(dir, plugin, models string) (config, output string, err error) {
	output = filepath.Join(dir, "metrics.influx")
	if err := os.RemoveAll(output); err != nil {
		return "", "", err
	}
	agp := fmt.Sprintf("[[inputs.agp]]\n  files = [%q]\n  interface = \"demo\"\n", filepath.Join(dir, "demo.pcap"))
	if models != "" {
		agp += fmt.Sprintf("  models = [%q]\n", models)
	}
	agp += "  [inputs.agp.flows]\n    emit = \"alerts\"\n"
	agpPath := filepath.Join(dir, "agp.conf")
	if err := os.WriteFile(agpPath, []byte(agp), 0o644); err != nil {
		return "", "", err
	}
	telegrafConfig := fmt.Sprintf(`[agent]
  interval = "1s"
  flush_interval = "1s"
  omit_hostname = true
  skip_processors_after_aggregators = true

[[inputs.execd]]
  command = [%q, "run", "--config", %q]
  signal = "STDIN"
  data_format = "influx"

[[outputs.file]]
  files = [%q]
  data_format = "influx"
`, plugin, agpPath, output)
	config = filepath.Join(dir, "telegraf.conf")
	return config, output, os.WriteFile(config, []byte(telegrafConfig), 0o644)
}

// runTelegraf runs telegraf until the metrics account for every packet of the
// capture, ends it and returns all metrics in the order of writing.
func runTelegraf(ctx context.Context, path, config, output string, truth traffic.Summary) ([]telegraf.Metric, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--config", config, "--quiet", "--strict-env-handling")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = goodbye
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline, tick := time.NewTimer(patience), time.NewTicker(200*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	var waiting error
	for waiting == nil {
		select {
		case err := <-ended:
			return nil, fmt.Errorf("telegraf ended early: %w", err)
		case <-deadline.C:
			waiting = fmt.Errorf("not all packets were accounted for within %v", patience)
		case <-tick.C:
			metrics, err := read(output)
			if err != nil || table.Last(metrics, "agp_engine", "packets_recorded") < truth.Packets {
				continue
			}
			waiting = io.EOF
		}
	}
	cancel()
	err := <-ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	metrics, readErr := read(output)
	if !errors.Is(waiting, io.EOF) {
		return nil, errors.Join(waiting, err, readErr)
	}
	return metrics, errors.Join(err, readErr)
}

// read parses what telegraf has written so far; an unfinished last line is left out.
func read(path string) ([]telegraf.Metric, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b = b[:strings.LastIndexByte(string(b), '\n')+1]
	p := &influx.Parser{}
	if err := p.Init(); err != nil {
		return nil, err
	}
	return p.Parse(b)
}
