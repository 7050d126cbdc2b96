package cuda_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// inTurns has so many receive warps take the packets of a ring.
func inTurns(receivers int) func(*cuda.Config) {
	return func(c *cuda.Config) { c.Mode, c.Receivers = cuda.ModeSequence, receivers }
}

// TestSequenceModeGivesTheRecordsOfTheReference: byte for byte, for all captures that do not take long.
func TestSequenceModeGivesTheRecordsOfTheReference(t *testing.T) {
	dev := simt.Device(t)
	for i, path := range testcap.All(t) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		if info.Size() > 1<<20 {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, wantSnap := reference(t, path)
			src, err := pcap.Open([]string{path}, pcap.Options{})
			require.NoError(t, err)
			defer src.Close()
			l := &lines{}
			p, err := cuda.New(cuda.Config{
				Patience: 2 * time.Minute, Device: dev, Source: src, Sink: l, Mode: cuda.ModeSequence, Receivers: []int{2, 3, 4, 0, 1}[i%5],
				Rings: []int{1, 1, 2}[i%3], Shards: []int{1, 3}[i%2], LogRQ: []uint8{8, 3, 6}[i%3], LogRecords: 16, Lossless: true,
				Flow: flow.Config{MaxFlows: 1 << 16}, Batch: []int{32, 1, 7, 32}[i%4],
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			_ = p.Run(context.Background()) // a file that ends early
			same(t, want, l.sorted())
			var s telemetry.Snapshot
			p.Snapshot(&s)
			require.Zero(t, s.Missing())
			require.Zero(t, s.Engine.PacketsActive)
			require.Equal(t, wantSnap.Engine.PacketsSeen, s.Engine.PacketsSeen)
			require.Equal(t, wantSnap.Engine.Drops, s.Engine.Drops)
			require.ElementsMatch(t, wantSnap.Traffic, s.Traffic)
		})
	}
}

// TestSequenceModeGivesTheScoresAndFindingsOfTheReference: models see payload that is given back only
// when it has been read, and everything is in one order.
func TestSequenceModeGivesTheScoresAndFindingsOfTheReference(t *testing.T) {
	set := shipped(t, "app", "class")
	path := find(t, "wechat.pcap")
	want, _ := scored(t, path, set)
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	l := &sequence{}
	p, err := cuda.New(cuda.Config{
		Patience: 2 * time.Minute, Device: simt.Device(t), Source: src, Sink: l, Mode: cuda.ModeSequence, Receivers: 3, Rings: 1, Shards: 3, LogRQ: 6, LogRecords: 16,
		Lossless: true, Flow: flow.Config{MaxFlows: 1 << 14}, Models: set, Detect: &detect.Config{}, Interface: "eth0",
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NoError(t, p.Run(context.Background()))
	same(t, want, l.list)
}

// TestProfilesInSequenceModeGiveTheRecordsOfTheReference: with what a port may do without losing a
// frame, on one ring and on two.
func TestProfilesInSequenceModeGiveTheRecordsOfTheReference(t *testing.T) {
	for name, prof := range profiles {
		for rings, receivers := range map[int]int{1: 3, 2: 2} {
			t.Run(fmt.Sprint(name, " ", rings), func(t *testing.T) {
				traffic, err := model.NewTraffic(prof)
				require.NoError(t, err)
				want := &lines{}
				ref, err := cpu.New(cpu.Config{Source: frameList{traffic}, Sink: want, Queues: 1})
				require.NoError(t, err)
				require.NoError(t, ref.Run(context.Background()))
				harmless := map[model.Fault]float64{model.FaultStaleDoorbell: 0.3, model.FaultInvalid: 0.05, model.FaultLateUpper: 0.1}
				got, feed, s, err := through(t, model.Config{Seed: 9, EndPadding: true}, harmless, prof, rings, inTurns(receivers))
				require.NoError(t, err)
				require.Zero(t, feed.refused)
				same(t, want.sorted(), got.sorted())
				require.EqualValues(t, prof.Packets, s.Engine.PacketsSeen)
				require.Zero(t, s.Missing())
			})
		}
	}
}

// TestErrorCompletionsInSequenceMode: what was claimed behind an error is put back; what the port has
// delivered is counted once.
func TestErrorCompletionsInSequenceMode(t *testing.T) {
	faults := map[model.Fault]float64{model.FaultLocalLength: 0.02, model.FaultLocalQPOp: 0.002, model.FaultWRFlush: 0.002, model.FaultMinor: 0.02}
	for _, receivers := range []int{2, 3} {
		_, feed, s, err := through(t, model.Config{Seed: 5}, faults, model.Profile{Seed: 6, Packets: 10000, Flows: 500}, 1, inTurns(receivers))
		require.NoError(t, err)
		c := feed.nic.Counters(0)
		var errs, counted uint64
		for _, n := range c.Errors {
			errs += n
		}
		for _, n := range s.Engine.Errors {
			counted += n
		}
		require.NotZero(t, errs)
		require.Equal(t, errs, counted, "%v and %v", c.Errors, s.Engine.Errors)
		require.Equal(t, c.Frames, s.Engine.PacketsSeen)
		require.Equal(t, c.Frames, s.Engine.PacketsRecorded)
		require.Zero(t, s.Missing())
	}
}

// TestWhatARingCannotGoOnWithEndsTheRunInSequenceMode: with the reason, and with everything before in records.
func TestWhatARingCannotGoOnWithEndsTheRunInSequenceMode(t *testing.T) {
	for fault, says := range map[model.Fault]string{model.FaultReorder: "disagree", model.FaultLost: "disagree", model.FaultCompress: "compressed"} {
		cfg := model.Config{Seed: 5}
		if fault == model.FaultCompress {
			cfg.Compression = model.CompressBasic
		}
		_, _, s, err := through(t, cfg, map[model.Fault]float64{fault: 0.001}, model.Profile{Seed: 6, Packets: 1 << 40, Flows: 500}, 1, inTurns(3))
		require.ErrorIs(t, err, cuda.ErrRing)
		require.ErrorContains(t, err, says)
		require.NotZero(t, s.Engine.PacketsSeen)
		require.Zero(t, s.Missing())
	}
}

// TestHandoverInSequenceModeLosesNothing: while several warps have batches, and to and fro between
// kernels that are launched before and after the end of the one before.
func TestHandoverInSequenceModeLosesNothing(t *testing.T) {
	path := find(t, "wechat.pcap")
	want, wantSnap := reference(t, path)
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	defer src.Close()
	l := &lines{}
	var p *cuda.Pipeline
	n := 0
	in := handovers(t, src, &p, &n)
	p, err = cuda.New(cuda.Config{
		Patience: 2 * time.Minute, Device: simt.Device(t), Source: in, Sink: l, Mode: cuda.ModeSequence, Receivers: 3, Rings: 1, Shards: 2,
		LogRQ: 9, LogRecords: 14, Lossless: true, Flow: flow.Config{MaxFlows: 1 << 14},
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	require.Greater(t, n, 2)
	same(t, want, l.sorted())
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Zero(t, s.Missing())
	require.Equal(t, wantSnap.Engine.PacketsSeen, s.Engine.PacketsSeen)
	require.NoError(t, p.Close())
}

// TestModesThatCannotBe are refused with a reason.
func TestModesThatCannotBe(t *testing.T) {
	for says, c := range map[string]cuda.Config{
		`mode "fast", allowed`:      {Mode: "fast"},
		"2 receive warps per ring":  {Receivers: 2},
		"5 receive warps per ring":  {Mode: cuda.ModeSequence, Receivers: 5},
		"-1 receive warps per ring": {Mode: cuda.ModeSequence, Receivers: -1},
		"detectors look at flows":   {Mode: cuda.ModeStateless, Detect: &detect.Config{}},
		"models score flows":        {Mode: cuda.ModeStateless, Models: shipped(t, "app")},
		`sketch feature "blocked"`:  {Mode: cuda.ModeStateless, Sketch: &cuda.SketchConfig{Feature: "blocked"}},
		`mode "stateless" allows 1`: {Mode: cuda.ModeStateless, Receivers: 2},
		"1 rings of 9 warps":        {Mode: cuda.ModeSequence, Receivers: 4, Shards: 5},
	} {
		_, err := cuda.New(c)
		require.ErrorIs(t, err, cuda.ErrConfig)
		require.ErrorContains(t, err, says)
	}
}

// handovers has the kernel exchanged before each batch, launched by turns before and after the end of
// the one before, and counts.
func handovers(t *testing.T, src source.Source, p **cuda.Pipeline, n *int) source.Source {
	return swapping{src, func() {
		var load func() error
		if *n++; *n%2 == 0 {
			load = func() error { return nil }
		}
		_, err := (*p).Handover(context.Background(), load)
		assert.NoError(t, err)
	}}
}
