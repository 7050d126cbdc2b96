package supervise

import (
	"slices"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// totals adds the counters of engines that are gone to those of the living one,
// so that a counter never steps back. Gauges, top lists and sketches are those
// of the living engine.
type totals struct {
	base    telemetry.Snapshot // counters of dead engines
	current telemetry.Snapshot // last snapshot of the living engine
	next    telemetry.Snapshot // being decoded
	seen    bool               // current was filled by the living engine

	packetsLost uint64 // packets seen that neither got into a record nor were dropped when an engine died
	flowsLost   uint64 // flows that were open then
}

// take makes the decoded snapshot the current one.
func (t *totals) take() {
	t.current, t.next = t.next, t.current
	t.seen = true
}

// lose counts what was inside the living engine when it died; it is lost and no
// longer active. A flow without a lost packet had its record.
func (t *totals) lose() {
	if !t.seen {
		return
	}
	e := &t.current.Engine
	// Open flows, and what was on its way between two stages.
	packets := uint64(max(0, int64(e.PacketsActive)+t.current.Missing()))
	t.packetsLost += packets
	t.flowsLost += min(e.FlowsActive, packets)
	e.PacketsActive, e.FlowsActive = 0, 0
}

// retire closes the account of an engine that is gone.
func (t *totals) retire() {
	var sum telemetry.Snapshot
	t.merged(&sum)
	sum.Top, sum.Sketches = nil, nil
	e := &sum.Engine
	e.PacketsActive, e.FlowsActive, e.StateBytes, e.RSSBytes, e.UptimeNs = 0, 0, 0, 0, 0
	e.PacketToScoreCount = 0 // its quantiles cannot be added
	t.base, t.current, t.seen = sum, telemetry.Snapshot{}, false
}

// merged fills dst with base plus current. dst shares no slice or map with t.
func (t *totals) merged(dst *telemetry.Snapshot) {
	b, c := &t.base, &t.current
	dst.Reset()
	dst.TimeNs = max(b.TimeNs, c.TimeNs)
	dst.Top = append(dst.Top, c.Top...)
	dst.Sketches = append(dst.Sketches, c.Sketches...)

	e := c.Engine
	if !t.seen {
		e.Source, e.Pipeline, e.Models = b.Engine.Source, b.Engine.Pipeline, b.Engine.Models
		e.PipelineReason = b.Engine.PipelineReason
	}
	e.PacketsSeen += b.Engine.PacketsSeen
	e.PacketsRecorded += b.Engine.PacketsRecorded
	e.Records += b.Engine.Records
	e.Alerts += b.Engine.Alerts
	e.Evictions += b.Engine.Evictions
	e.Inferences += b.Engine.Inferences
	e.TimeSteps += b.Engine.TimeSteps
	e.Suppressed += b.Engine.Suppressed
	e.CPUSeconds += b.Engine.CPUSeconds
	e.SkippedFields += b.Engine.SkippedFields
	e.MovedBuckets += b.Engine.MovedBuckets
	e.Drops = addCounts(b.Engine.Drops, c.Engine.Drops)
	e.Errors = addCounts(b.Engine.Errors, c.Engine.Errors)
	dst.Engine = e

	dst.Traffic = append(dst.Traffic, c.Traffic...)
	type trafficKey struct {
		app, class string
		protocol   uint8
	}
	at := make(map[trafficKey]int, len(c.Traffic))
	for i := range c.Traffic {
		r := &c.Traffic[i]
		at[trafficKey{r.App, r.Class, r.Protocol}] = i
	}
	for i := range b.Traffic {
		r := &b.Traffic[i]
		if k, ok := at[trafficKey{r.App, r.Class, r.Protocol}]; ok {
			dst.Traffic[k].Add(r)
			continue
		}
		dst.Traffic = append(dst.Traffic, *r)
	}

	queueAt := make(map[uint16]int, len(c.Queues))
	for i := range c.Queues {
		q := c.Queues[i]
		q.Drops = addCounts(q.Drops, nil)
		queueAt[q.Queue] = len(dst.Queues)
		dst.Queues = append(dst.Queues, q)
	}
	for i := range b.Queues {
		q := b.Queues[i]
		k, ok := queueAt[q.Queue]
		if !ok {
			q.Drops, q.Depth = addCounts(q.Drops, nil), -1
			dst.Queues = append(dst.Queues, q)
			continue
		}
		d := &dst.Queues[k]
		d.Packets += q.Packets
		d.Bytes += q.Bytes
		d.Drops = addCounts(d.Drops, q.Drops)
	}

	type steeringKey struct{ iface, target string }
	steeringAt := make(map[steeringKey]int, len(c.Steering))
	dst.Steering = append(dst.Steering, c.Steering...)
	for i := range c.Steering {
		steeringAt[steeringKey{c.Steering[i].Interface, c.Steering[i].Target}] = i
	}
	for i := range b.Steering {
		r := b.Steering[i]
		if k, ok := steeringAt[steeringKey{r.Interface, r.Target}]; ok {
			dst.Steering[k].Packets += r.Packets
			dst.Steering[k].Bytes += r.Bytes
			continue
		}
		r.Rules = 0 // they went with their engine
		dst.Steering = append(dst.Steering, r)
	}
	dst.GPUs = append(dst.GPUs, c.GPUs...)
	for i := range b.GPUs {
		was := &b.GPUs[i]
		k := slices.IndexFunc(c.GPUs, func(g telemetry.GPURow) bool { return g.UUID == was.UUID })
		if k < 0 {
			// Of what counts since the engine started.
			dst.GPUs = append(dst.GPUs, telemetry.GPURow{Index: was.Index, UUID: was.UUID, Name: was.Name, XidErrors: was.XidErrors})
			continue
		}
		if g := &dst.GPUs[k]; was.XidErrors != nil && g.XidErrors != nil {
			sum := *g.XidErrors + *was.XidErrors
			g.XidErrors = &sum
		}
	}
}

func addCounts(a, b map[string]uint64) map[string]uint64 {
	if len(a)+len(b) == 0 {
		return nil
	}
	sum := make(map[string]uint64, max(len(a), len(b)))
	for k, v := range a {
		sum[k] += v
	}
	for k, v := range b {
		sum[k] += v
	}
	return sum
}
