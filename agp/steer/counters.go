package steer

import (
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
)

// Count is a number of frames on the wire and their bytes.
type Count = bpf.Count

// Counters are sums over all CPUs and hooks since Load. They never fall. Each frame
// has exactly one fate; the remarks come on top.
type Counters struct {
	// Fates.
	ToEngine     Count // snapshot taken, or redirected to a socket
	KernelClass  Count // in a class that stays with the kernel
	OtherClass   Count // in none of the classes that go to the engine
	SampledOut   Count // not the Nth
	ShareOut     Count // flow outside the share
	Blocked      Count // dropped
	RateLimited  Count // dropped
	RingFull     Count // no room for the snapshot, passed
	RedirectFail Count // no socket at the index, passed
	NotIP        Count // not understood and therefore not for the engine, passed

	// Remarks.
	Pass       Count // went on to the kernel
	Unparsed   Count // not understood, whatever became of it
	WouldBlock Count // dry run
	WouldLimit Count // dry run
}

// Seen returns the sum of all fates: every frame that a program saw.
func (c Counters) Seen() Count {
	var sum Count
	for i, p := range c.list() {
		if i < bpf.Fates {
			sum.Frames += p.Frames
			sum.Bytes += p.Bytes
		}
	}
	return sum
}

// Each calls f with the name of each counter, as metrics have it, and its value.
func (c Counters) Each(f func(name string, n Count)) {
	for i, p := range c.list() {
		f(counterNames[i], *p)
	}
}

var counterNames = [bpf.Counts]string{
	bpf.ToEngine: "to_engine", bpf.KernelClass: "kernel_class", bpf.OtherClass: "other_class",
	bpf.SampledOut: "sampled_out", bpf.ShareOut: "share_out", bpf.Blocked: "blocked",
	bpf.RateLimited: "rate_limited", bpf.RingFull: "ring_full", bpf.RedirectFail: "redirect_fail",
	bpf.NotIP: "not_ip", bpf.Pass: "pass", bpf.Unparsed: "unparsed", bpf.WouldBlock: "would_block",
	bpf.WouldLimit: "would_limit",
}

func (c *Counters) list() [bpf.Counts]*Count {
	return [bpf.Counts]*Count{
		bpf.ToEngine: &c.ToEngine, bpf.KernelClass: &c.KernelClass, bpf.OtherClass: &c.OtherClass,
		bpf.SampledOut: &c.SampledOut, bpf.ShareOut: &c.ShareOut, bpf.Blocked: &c.Blocked,
		bpf.RateLimited: &c.RateLimited, bpf.RingFull: &c.RingFull, bpf.RedirectFail: &c.RedirectFail,
		bpf.NotIP: &c.NotIP, bpf.Pass: &c.Pass, bpf.Unparsed: &c.Unparsed, bpf.WouldBlock: &c.WouldBlock,
		bpf.WouldLimit: &c.WouldLimit,
	}
}

// Counters reads all counters.
func (d *Datapath) Counters() (Counters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var c Counters
	if d.closed {
		return c, ErrClosed
	}
	var cpus []bpf.Counters
	if err := d.maps[bpf.SteerMapCounters].Lookup(uint32(0), &cpus); err != nil {
		return c, fmt.Errorf("reading counters: %w", err)
	}
	for i, sum := range c.list() {
		for j := range cpus {
			sum.Frames += cpus[j].Count[i].Frames
			sum.Bytes += cpus[j].Count[i].Bytes
		}
	}
	return c, nil
}
