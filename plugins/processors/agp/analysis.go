package agp

import (
	"cmp"
	"crypto/rand"
	"math"
	"slices"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// analysis is what is known of all flows: detectors and sketches. Its clock is that of the flows and
// never goes back.
type analysis struct {
	detector *detect.Detector
	sketches *summary.Sketches
	conf     *summary.Config
	seed     uint64
	now      int64
	seq      uint64

	records []telemetry.Record // of a turn; kept for their memory
	events  []event
}

// event is the start or the end of records[i].
type event struct {
	ns  int64
	end bool
	i   int
}

func newAnalysis(detectors detect.Config, conf *summary.Config, alert func(*telemetry.Alert)) (*analysis, error) {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	detectors.Key = secret
	sketches, err := summary.New(conf, secret)
	if err != nil {
		return nil, err
	}
	return &analysis{detector: detect.New(detectors, alert), sketches: sketches, conf: conf, seed: flow.Seed(secret)}, nil
}

// take gives flows to the sketches and, unless they are sampled, to the detectors, which see
// starts and ends in the order of their times.
func (a *analysis) take(flows []*held) {
	a.records, a.events = a.records[:0], a.events[:0]
	for _, h := range flows {
		a.records = append(a.records, telemetry.Record{})
		r := &a.records[len(a.records)-1]
		h.record(r)
		a.sketch(h, r)
		if i := len(a.records) - 1; h.sampling <= 1 {
			a.events = append(a.events, event{r.StartNs, false, i}, event{r.EndNs, true, i})
		}
	}
	slices.SortStableFunc(a.events, func(x, y event) int { return cmp.Compare(x.ns, y.ns) })
	for _, e := range a.events {
		r := &a.records[e.i]
		if e.end {
			a.detector.FlowEnd(r)
			continue
		}
		a.seq++
		s := begin(r, a.seq)
		a.detector.FlowStarted(&s)
	}
}

// sketch counts a flow; of a sampled one, as many packets and bytes as it stands for.
func (a *analysis) sketch(h *held, r *telemetry.Record) {
	a.now = max(a.now, r.EndNs)
	a.sketches.Tick(a.now)
	p := flow.Packet{Info: packet.Info{IPVersion: r.IPVersion, Protocol: r.Protocol}, Hash: h.key.Hash(a.seed)}
	a.sketches.Start(&r.Src, &r.Dst, r.DstPort, &p)
	for d := range r.Dir {
		if half := &r.Dir[d]; half.Packets > 0 {
			e := flow.Endpoints{Src: r.Src, Dst: r.Dst, SrcPort: r.SrcPort, DstPort: r.DstPort, Protocol: r.Protocol, IPVersion: r.IPVersion}
			a.sketches.Progress(&e, min(half.Packets*h.sampling, math.MaxUint32), half.WireBytes*h.sampling)
		}
	}
}

// snapshot fills in what is reported. No meter exports the sizes and delays of packets.
func (a *analysis) snapshot(s *telemetry.Snapshot) {
	s.Reset()
	s.TimeNs = a.now
	reading := a.sketches.Reading()
	s.Top = reading.TopRows(s.Top, a.conf.TopK)
	s.Sketches = slices.DeleteFunc(reading.SketchRows(s.Sketches, a.conf), func(r telemetry.SketchRow) bool {
		return r.Kind == telemetry.SketchQuantile
	})
}
