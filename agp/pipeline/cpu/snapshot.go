package cpu

import (
	"maps"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Snapshot implements pipeline.Pipeline. Parts of it are read one after the other
// while Run works: what is in records first, what was seen last, so that packets
// on their way count as active.
func (p *Pipeline) Snapshot(s *telemetry.Snapshot) {
	s.Reset()
	c := p.collector
	c.mu.Lock()
	e := &s.Engine
	c.found.Counters(s)
	c.mu.Unlock()
	e.Source, e.Pipeline = p.cfg.SourceName, "cpu"
	score.Models(e, p.models.Load())
	all, err := summary.NewSummary(p.cfg.Key)
	latency := sketch.NewQuantiles()
	for _, w := range p.workers {
		w.mu.Lock()
		stats := w.table.Stats()
		e.TimeSteps += stats.TimeSteps
		e.FlowsActive += uint64(w.table.Active())
		e.StateBytes += w.table.Bytes()
		e.Inferences += w.scorer.Inferences
		if err == nil {
			err = all.Merge(w.sketches.Reading())
		}
		if err == nil {
			err = latency.Merge(w.scorer.Latency)
		}
		s.Queues = append(s.Queues, telemetry.QueueRow{
			Queue: uint16(w.id), Packets: w.counters.packets, Bytes: w.counters.bytes, Depth: int64(len(w.in)),
		})
		w.mu.Unlock()
	}
	if err != nil { // unequal parameters: all sketches come from one constructor
		panic(err)
	}
	p.mu.Lock()
	seen, src := p.seen, p.sourceStats
	p.mu.Unlock()
	s.TimeNs = seen.clock.NowNs
	e.PacketsSeen, e.QueueSkew, e.MovedBuckets = seen.frames, seen.skew, seen.moved
	e.Drops, e.Errors = map[string]uint64{}, map[string]uint64{}
	for v, n := range seen.drops {
		if n > 0 {
			e.Drops[packet.Verdict(v).String()] = n
		}
	}
	if seen.badLength > 0 {
		e.Errors["bad_ip_length_clamped"] = seen.badLength
	}
	if seen.clock.Backs > 0 {
		e.Errors["clock_back"] = seen.clock.Backs
	}
	// A frame that the source knew of and could not deliver was seen and dropped.
	for reason, n := range src.Dropped {
		e.Drops[reason] += n
		e.PacketsSeen += n
	}
	maps.Copy(e.Errors, src.Repaired)
	e.PacketsActive = e.PacketsSeen - e.PacketsRecorded
	for _, n := range e.Drops {
		e.PacketsActive -= n
	}
	// A frame that is in no flow has no queue; the first one counts it, so that
	// the queues add up to all that was seen.
	s.Queues[0].Drops = e.Drops
	score.Latency(e, latency)
	s.Top = all.TopRows(s.Top, p.cfg.Sketch.TopK)
	s.Sketches = all.SketchRows(s.Sketches, &p.cfg.Sketch)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.found.Rows(s, p.cfg.Sketch.Serialize)
}

// Progress returns how far the source has been read. Safe from any goroutine.
func (p *Pipeline) Progress() source.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sourceStats
}
