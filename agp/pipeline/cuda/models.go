package cuda

import (
	"fmt"
	"time"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// scoring keeps on the host what models have said of flows on the device, until their records
// come. A flow is known by its shard and place there, which it keeps until it ends. p.mu guards it.
type scoring struct {
	scorer  *score.Scorer
	answers score.Answers
	set     *model.Set
	refused uint64 // sets that the device cannot serve

	kept []kept // flow.Ref is an index
	free []flow.Ref

	// What scores are owed to since the scorer was last empty.
	records []*telemetry.Record
	alerts  []*telemetry.Alert
}

// kept are the scores of one flow.
type kept struct {
	hash   uint64
	born   [3]uint8
	start  uint64 // of its record, when it was scored last
	scores [flow.MaxOutputs]flow.Score
}

func newScoring() *scoring {
	s := &scoring{}
	s.scorer = score.New(s, &s.answers)
	return s
}

// Scores implements score.Places.
func (s *scoring) Scores(r flow.Ref, start uint64) *[flow.MaxOutputs]flow.Score {
	if k := &s.kept[r]; k.start == start {
		return &k.scores
	}
	return nil
}

// Record implements score.Places.
func (s *scoring) Record(i int32) *telemetry.Record { return s.records[i] }

// Alert implements score.Places.
func (s *scoring) Alert(i int32) *telemetry.Alert { return s.alerts[i] }

// flush has everything scored that waits for it.
func (s *scoring) flush() {
	s.scorer.Flush()
	s.records, s.alerts = s.records[:0], s.alerts[:0]
}

// find returns what is kept of a flow. A flow that had the place before and whose end was not
// told, or was lost, gives way.
func (s *scoring) find(d *shard, place uint32, f *abi.Flow) (flow.Ref, bool) {
	r, ok := d.scored[place]
	if !ok {
		return 0, false
	}
	if k := &s.kept[r]; k.hash != f.Hash || k.born != f.Born {
		s.drop(d, place, r)
		return 0, false
	}
	return r, true
}

func (s *scoring) drop(d *shard, place uint32, r flow.Ref) {
	delete(d.scored, place)
	s.kept[r] = kept{}
	s.free = append(s.free, r)
}

func (s *scoring) keep(d *shard, place uint32, f *abi.Flow) flow.Ref {
	r, ok := s.find(d, place, f)
	if ok {
		return r
	}
	if n := len(s.free); n > 0 {
		r, s.free = s.free[n-1], s.free[:n-1]
	} else {
		r = flow.Ref(len(s.kept))
		s.kept = append(s.kept, kept{})
	}
	s.kept[r].hash, s.kept[r].born = f.Hash, f.Born
	if d.scored == nil {
		d.scored = map[uint32]flow.Ref{}
	}
	d.scored[place] = r
	return r
}

// parts finds what follows a flow in a message.
func parts(h *abi.Record, m []byte) (f *abi.Flow, counters *abi.Hist, head *model.Head) {
	f = at[abi.Flow](m)
	m = m[len(bytesOf(f)):]
	if h.Parts&abi.PartHist != 0 {
		counters = at[abi.Hist](m)
		m = m[len(bytesOf(counters)):]
	}
	if h.Parts&abi.PartHead != 0 {
		head = &at[abi.Head](m).Head
	}
	return f, counters, head
}

func packets(r *telemetry.Record) uint64 {
	return r.Dir[telemetry.Fwd].Packets + r.Dir[telemetry.Rev].Packets
}

func evidence(r *telemetry.Record) score.Evidence {
	return score.Evidence{
		Ends:    flow.Endpoints{Src: r.Src, Dst: r.Dst, SrcPort: r.SrcPort, DstPort: r.DstPort, Protocol: r.Protocol, IPVersion: r.IPVersion},
		StartNs: r.StartNs, EndNs: r.EndNs, Packets: packets(r), Confirmed: r.Confirmed,
	}
}

// mature takes an active flow that has come to a trigger.
func (p *Pipeline) mature(r *ring, d *shard, h *abi.Record, m []byte) {
	s := p.scoring
	f, counters, head := parts(h, m)
	mask := s.scorer.Mature(f.Dir[0].Packets+f.Dir[1].Packets, head)
	if mask == 0 {
		return
	}
	rec := &p.record
	f.Record(counters, 0, rec)
	start := r.unique(f.StartSeq)
	ref := s.keep(d, h.Place, f)
	s.kept[ref].start = start
	p.score(r.position(h, f), mask, rec, head, score.Owed{Ref: ref, Start: start, Record: score.Active})
}

// finished takes a flow that has ended, or whose record has.
func (p *Pipeline) finished(number int, r *ring, d *shard, h *abi.Record, m []byte) {
	s := p.scoring
	f, counters, head := parts(h, m)
	rec := p.order.record()
	f.Record(counters, telemetry.EndReason(h.Reason), rec)
	rec.Queue, rec.Interface = uint16(number), p.cfg.Interface
	at := r.position(h, f)
	s.records = append(s.records, rec)
	index, start := int32(len(s.records)-1), r.unique(f.StartSeq)
	ref, known := s.find(d, h.Place, f)
	var scores *[flow.MaxOutputs]flow.Score
	if known {
		scores = &s.kept[ref].scores
	}
	s.scorer.Ended(start, rec.EndReason, scores, rec, index)
	if known && h.Flags&abi.FlagGoesOn == 0 {
		s.drop(d, h.Place, ref)
	}
	if mask := s.scorer.End(packets(rec), head); mask != 0 {
		p.score(at, mask, rec, head, score.Owed{Start: start, Record: index})
	}
	p.order.add(event{at: at, kind: eventEnd, record: rec})
}

// score queues a flow. Its alert has a place in the order of events now and content, if any, later.
func (p *Pipeline) score(at score.Position, mask model.Mask, rec *telemetry.Record, head *model.Head, o score.Owed) {
	s := p.scoring
	a := p.order.alert()
	s.alerts = append(s.alerts, a)
	o.Alert, o.Seen = int32(len(s.alerts)-1), evidence(rec)
	p.order.add(event{at: at, kind: eventAlert, alert: a})
	s.scorer.Add(mask, model.Features{Size: &rec.SizeHist, Delay: &rec.DelayHist, Head: head}, o)
}

// SwapModels implements pipeline.Pipeline. The device is told between two batches; a set that asks
// for more than it can do is refused and counted.
func (p *Pipeline) SwapModels(set *model.Set) {
	p.models.Store(set)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// need sets the parameters to what the models of a set and the detectors need of the device.
func (p *Pipeline) need(params *abi.Params, set *model.Set) error {
	if err := p.cfg.Mode.scores(set); err != nil {
		return err
	}
	t := set.Triggers()
	if len(t) > len(params.Triggers) {
		return fmt.Errorf("%w: models have %d different triggers, at most %d", ErrConfig, len(t), len(params.Triggers))
	}
	params.Triggers = [abi.Triggers]uint64{}
	params.TriggerCount = uint32(copy(params.Triggers[:], t))
	params.HeadPackets = 0
	if set.Needs(model.HeadSet) {
		params.HeadPackets = set.LastTrigger(model.HeadSet)
	}
	if len(set.Models()) > 0 {
		params.Messages |= abi.MessageCauses // for ever: flows keep what was said of them
	}
	if p.cfg.Detect != nil {
		params.Messages |= abi.MessageCauses | abi.MessageEvents
	}
	return nil
}

// adopt has other models score from now on, or from the generation on that is returned.
func (p *Pipeline) adopt() *swap {
	set := p.models.Load()
	params := p.params
	err := p.need(&params, set)
	if err == nil {
		err = p.newHeads(params.HeadPackets)
	}
	if err != nil {
		p.refuse()
		return nil
	}
	use := func() {
		p.collect()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.scoring.scorer.Use(set)
		p.scoring.set = set
	}
	if params == p.params {
		use()
		return nil
	}
	h := &swap{params: &params, then: use}
	if params.Messages != p.params.Messages {
		h.load = func() error { return nil } // messages that wait are to be taken for what they are
	}
	return h
}

func (p *Pipeline) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scoring.refused++
}

// newHeads allocates memory for how flows begin, if it is needed, for all shards that have none yet:
// the last time may have come to an end for some. The kernel that runs has read the tables that it changes.
func (p *Pipeline) newHeads(packets uint64) error {
	p.mu.Lock() // a snapshot reads how much memory there is
	defer p.mu.Unlock()
	if packets == 0 {
		return nil
	}
	for _, r := range p.rings {
		var table []byte
		for _, d := range r.shards {
			if d.abi.Heads == 0 {
				var err error
				if d.abi.Heads, err = p.mem.alloc(len(bytesOf(&abi.Head{})) * abi.Ways * int(d.abi.Buckets)); err != nil {
					return err
				}
			}
			table = append(table, bytesOf(&d.abi)...)
		}
		if err := p.cfg.Device.Write(r.abi.Shards, table); err != nil {
			return err
		}
	}
	return nil
}

// turned begins a look at the record rings: what is scored now came since the one before.
func (s *scoring) turned(now time.Time, last *time.Time) {
	if last.IsZero() {
		*last = now
	}
	s.scorer.Taken = *last
	*last = now
}
