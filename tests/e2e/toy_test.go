package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs"
	"github.com/influxdata/telegraf/plugins/processors"

	"github.com/agp-net/telegraf-agp/plugins/runner"
	"github.com/agp-net/telegraf-agp/tests/e2e/agent"
)

const roleEnv = "AGP_E2E_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		code := m.Run()
		os.RemoveAll(built.dir)
		os.Exit(code)
	case "plugin":
		os.Exit(runner.Main(context.Background(), os.Args[1:], "toy", runner.Options{}))
	case "agent":
		if err := agent.Run(context.Background(), os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "E!", err)
			os.Exit(1)
		}
	}
}

// The toys are registered as real plugins are, so that the runner finds them in
// telegraf's registries.
func init() {
	inputs.Add("toy", func() telegraf.Input { return &toyInput{} })
	processors.AddStreaming("toy", func() telegraf.StreamingProcessor { return &toyProcessor{} })
}

// toyInput emits Count points of one series and one time, then one point per
// Every. It leaves a file "started.PID" when it starts and "stopped.PID" when it
// was stopped in order.
type toyInput struct {
	Count    int             `toml:"count"`
	Every    config.Duration `toml:"every"`
	Pad      string          `toml:"pad"`
	Distinct bool            `toml:"distinct_times"`
	Dir      string          `toml:"dir"`
	Log      telegraf.Logger `toml:"-"`

	quit    chan struct{}
	workers sync.WaitGroup
}

func (*toyInput) SampleConfig() string { return "" }

func (i *toyInput) Init() error {
	if i.Dir == "" {
		return errors.New("dir is not set")
	}
	return nil
}

func (*toyInput) Gather(telegraf.Accumulator) error { return nil }

func (i *toyInput) Start(acc telegraf.Accumulator) error {
	i.quit = make(chan struct{})
	i.Log.Info("Started")
	if err := i.mark("started"); err != nil {
		return err
	}
	i.workers.Go(func() { i.emit(acc) })
	return nil
}

func (i *toyInput) emit(acc telegraf.Accumulator) {
	tags := map[string]string{"kind": "toy"}
	now := time.Now()
	for n := range i.Count {
		at := now
		if i.Distinct {
			at = now.Add(time.Duration(n))
		}
		acc.AddFields("toy", map[string]interface{}{"n": n, "pad": i.Pad}, tags, at)
	}
	if i.Every <= 0 {
		return
	}
	ticker := time.NewTicker(time.Duration(i.Every))
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-i.quit:
			return
		case <-ticker.C:
			acc.AddFields("tick", map[string]interface{}{"n": n}, map[string]string{"pid": fmt.Sprint(os.Getpid())})
		}
	}
}

func (i *toyInput) Stop() {
	close(i.quit)
	i.workers.Wait()
	if err := i.mark("stopped"); err != nil {
		i.Log.Error(err)
	}
}

func (i *toyInput) mark(what string) error {
	return os.WriteFile(filepath.Join(i.Dir, fmt.Sprintf("%s.%d", what, os.Getpid())), nil, 0o600)
}

// toyProcessor keeps every metric until it is stopped or has Batch of them, as a
// classifier would that works in batches. It leaves a file "kept" in Dir when it
// has MarkAt of them.
type toyProcessor struct {
	Batch  int    `toml:"batch"`
	MarkAt int    `toml:"mark_at"`
	Dir    string `toml:"dir"`

	acc  telegraf.Accumulator
	kept []telegraf.Metric
}

func (*toyProcessor) SampleConfig() string { return "" }

func (p *toyProcessor) Start(acc telegraf.Accumulator) error {
	p.acc = acc
	return nil
}

func (p *toyProcessor) Add(m telegraf.Metric, _ telegraf.Accumulator) error {
	m.AddTag("seen", "yes")
	p.kept = append(p.kept, m)
	if len(p.kept) == p.MarkAt {
		if err := os.WriteFile(filepath.Join(p.Dir, "kept"), nil, 0o600); err != nil {
			return err
		}
	}
	if len(p.kept) >= p.Batch {
		p.flush()
	}
	return nil
}

func (p *toyProcessor) Stop() { p.flush() }

func (p *toyProcessor) flush() {
	for _, m := range p.kept {
		p.acc.AddMetric(m)
	}
	p.kept = p.kept[:0]
}
