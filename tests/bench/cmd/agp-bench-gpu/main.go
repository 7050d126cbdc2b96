// Command agp-bench-gpu measures the packet path on a GPU, fed by the NIC model on the same
// GPU, and prints a table.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/tests/bench/gpu"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agp-bench-gpu:", err)
		os.Exit(1)
	}
}

func run() error {
	only := flag.Int("rings", 0, "measure this number of rings only")
	shards := flag.Int("shards", 0, "state warps per ring instead of what suits the test")
	runs := flag.Int("runs", 3, "runs of each test; the median counts")
	flag.Parse()
	all, err := driver.Open()
	if err != nil {
		return err
	}
	d, err := all.Device(0)
	if err != nil {
		return err
	}
	g, err := cuda.OpenGPU(d)
	if err != nil {
		return err
	}
	defer g.Close()
	sms := g.Info().SMs
	fmt.Printf("%s, %d SMs; NIC model on the same GPU; median of %d runs\n\n", g.Info().Name, sms, *runs)
	fmt.Printf("%-28s %6s %6s %6s %10s %9s %9s %9s %10s  %s\n", "frames, mode", "rings", "warps", "SMs", "flows", "Mpps", "per SM", "lost", "new M/s", "cycles per batch by stage: receive; state (packets)")
	for _, t := range tests {
		if *only != 0 && t.Rings != *only {
			continue
		}
		if t.FrameLen == 0 {
			t.FrameLen = 60
		}
		if *shards != 0 {
			t.Shards = *shards
		}
		var rates []float64
		var r gpu.Result
		for range *runs {
			if r, err = gpu.Measure(g, t); err != nil {
				return err
			}
			rates = append(rates, float64(r.Seen)/r.Seconds/1e6)
		}
		slices.Sort(rates)
		mode := "producer kernel"
		if t.Prefill {
			mode = "prefilled rings"
		}
		used := min(sms, (t.Rings+t.Warps-1)/t.Warps)
		mpps := rates[len(rates)/2]
		fmt.Printf("%-28s %6d %6d %6d %10d %9.1f %9.2f %9d %10.2f  %5.0f; %5.0f (%.1f)\n", fmt.Sprintf("%d B, %s", t.FrameLen+4, mode), t.Rings, t.Rings*(1+t.Shards), used, t.Flows*t.Rings, mpps, mpps/float64(used),
			int64(r.Sent)-int64(r.Seen), float64(r.Started)/r.Seconds/1e6, r.Receive, r.State[:3], r.StatePackets)
	}
	return nil
}

var tests = []gpu.Test{
	{Rings: 1, Warps: 1, Shards: 4, Flows: 4096, Prefill: true, Packets: 1 << 20},
	{Rings: 16, Warps: 1, Shards: 4, Flows: 1, Prefill: true, Packets: 1 << 20},
	{Rings: 16, Warps: 1, Shards: 4, Flows: 4096, Prefill: true, Packets: 1 << 20},
	{Rings: 16, Warps: 1, Shards: 4, Flows: 65536, Prefill: true, Packets: 1 << 20},
	{Rings: 16, Warps: 1, Shards: 4, Flows: 65536, NewPer1024: 256, Prefill: true, Packets: 1 << 20},
	{Rings: 16, Warps: 1, Shards: 4, Feeders: 4, Flows: 4096, Packets: 1 << 22},
	{Rings: 16, Warps: 1, Shards: 4, Feeders: 4, Flows: 65536, Packets: 1 << 22},
	{Rings: 128, Warps: 4, Shards: 1, Flows: 8192, Prefill: true, Packets: 1 << 18},
	{Rings: 64, Warps: 2, Shards: 4, Feeders: 4, Flows: 8192, Packets: 1 << 20},
	{Rings: 128, Warps: 4, Shards: 1, Feeders: 2, Flows: 8192, Packets: 1 << 20},
}
