package cpu

import (
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// use takes a set over; nothing is owed between batches.
func (w *worker) use(set *model.Set) {
	if w.scorer.Use(set) && w.p.cfg.Observe == nil {
		w.table.Collect(set.Needs(model.HeadSet), set.LastTrigger(model.HeadSet), set.Triggers())
	}
}

// Scores implements score.Places.
func (w *worker) Scores(r flow.Ref, start uint64) *[flow.MaxOutputs]flow.Score {
	if !w.table.Valid(r, start) {
		return nil
	}
	return w.table.Outputs(r)
}

// Record implements score.Places.
func (w *worker) Record(i int32) *telemetry.Record { return &w.out.records[i] }

// Alert implements score.Places.
func (w *worker) Alert(i int32) *telemetry.Alert { return &w.out.alerts[i] }

func (w *worker) evidence(r flow.Ref) score.Evidence {
	t := w.table
	start, end := t.Span(r)
	return score.Evidence{Ends: t.Endpoints(r), StartNs: start, EndNs: end, Packets: t.Packets(r), Confirmed: t.Confirmed(r)}
}

// mature is called when an active flow reaches a trigger.
func (w *worker) mature(r flow.Ref) {
	t := w.table
	head := t.Head(r)
	mask := w.scorer.Mature(t.Packets(r), head)
	if mask == 0 {
		return
	}
	var size [telemetry.SizeBins]uint32
	var delay [telemetry.DelayBins]uint32
	t.Histograms(r, &size, &delay)
	w.score(mask, model.Features{Size: &size, Delay: &delay, Head: head}, score.Owed{Ref: r, Start: t.StartSeq(r), Record: score.Active, Seen: w.evidence(r)})
}

// ended is called with the record of a flow that ends.
func (w *worker) ended(r flow.Ref, reason telemetry.EndReason, rec *telemetry.Record, index int32) {
	t := w.table
	start := t.StartSeq(r)
	w.scorer.Ended(start, reason, t.Outputs(r), rec, index)
	head := t.Head(r)
	if mask := w.scorer.End(t.Packets(r), head); mask != 0 {
		w.score(mask, model.Features{Size: &rec.SizeHist, Delay: &rec.DelayHist, Head: head}, score.Owed{Start: start, Record: index, Seen: w.evidence(r)})
	}
}

// score queues one flow. Its alert has a place in the order of events now and
// content, if any, after the batch has run.
func (w *worker) score(mask model.Mask, f model.Features, o score.Owed) {
	w.out.alerts = append(w.out.alerts, telemetry.Alert{})
	o.Alert = int32(len(w.out.alerts) - 1)
	w.scorer.Add(mask, f, o)
	w.event(eventAlert, o.Alert)
}
