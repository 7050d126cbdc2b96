package agp

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/influxdata/telegraf"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	inputs "github.com/agp-net/telegraf-agp/plugins/inputs/agp"
)

// ErrFeatures says that a model reads what flow metrics do not have.
var ErrFeatures = errors.New("feature set")

// loadModels loads those of the configuration, or of the models that come with the program
// those that metrics suffice for.
func loadModels(files []string) (*model.Set, error) {
	chosen := len(files) > 0
	switch {
	case len(files) == 1 && files[0] == "none":
		return model.NewSet()
	case !chosen:
		files = inputs.ShippedModels()
	}
	var list []*model.Model
	for i, f := range files {
		m, err := model.Load(f)
		if err != nil {
			return nil, fmt.Errorf("%w: models[%d]: %w", ErrConfig, i, err)
		}
		if m.Features == model.Histogram {
			list = append(list, m)
			continue
		}
		if chosen {
			why := "payload, which no metric carries"
			if m.Features == model.Summary {
				why = "counts of a flow, which this version does not collect for models"
			}
			return nil, fmt.Errorf("%w: models[%d] = %q: %w %q needs %s, allowed: models on %q",
				ErrConfig, i, f, ErrFeatures, m.Features, why, model.Histogram)
		}
	}
	set, err := model.NewSet(list...)
	if err != nil {
		return nil, fmt.Errorf("%w: models: %w", ErrConfig, err)
	}
	return set, nil
}

// classifier scores one metric at a time, so that their order stays. It is the place of its
// scorer's only record and alert.
type classifier struct {
	set     *model.Set
	scorer  *score.Scorer
	answers score.Answers
	record  telemetry.Record
	found   telemetry.Alert
}

func newClassifier(set *model.Set) *classifier {
	c := &classifier{set: set}
	c.scorer = score.New(c, &c.answers)
	c.scorer.Use(set)
	return c
}

// Scores implements score.Places: there are no active flows.
func (*classifier) Scores(flow.Ref, uint64) *[flow.MaxOutputs]flow.Score { return nil }

// Record implements score.Places.
func (c *classifier) Record(int32) *telemetry.Record { return &c.record }

// Alert implements score.Places.
func (c *classifier) Alert(int32) *telemetry.Alert { return &c.found }

var errHistogram = errors.New("histogram")

// classify adds what the models say to a metric with histograms. alert is nil unless a class is a finding.
// A metric that has an answer already keeps it.
func (c *classifier) classify(m telegraf.Metric) (scored bool, alert *telemetry.Alert, err error) {
	if len(c.set.Models()) == 0 {
		return false, nil, nil
	}
	sizes, ok := m.GetField("size_hist")
	if !ok {
		return false, nil, nil
	}
	r := &c.record
	*r = telemetry.Record{Outputs: r.Outputs[:0]}
	delays, _ := m.GetField("delay_hist") // one packet has none
	packets, err := histogram(r.SizeHist[:], sizes)
	if err != nil {
		return false, nil, err
	}
	if _, err := histogram(r.DelayHist[:], delays); err != nil {
		return false, nil, err
	}
	mask := c.set.End(packets)
	for i, model := range c.set.Models() {
		if has(m, model.Field) {
			mask &^= 1 << i
		}
	}
	if mask == 0 {
		return false, nil, nil
	}
	c.found = telemetry.Alert{}
	seen := c.evidence(m)
	seen.Packets = packets
	c.scorer.Add(mask, model.Features{Size: &r.SizeHist, Delay: &r.DelayHist}, score.Owed{Record: 0, Seen: seen})
	c.scorer.Flush()
	for i := range r.Outputs {
		telemetry.VisitOutput(&r.Outputs[i], answer{m: m})
	}
	if c.found.Kind != "" {
		alert = &c.found
	}
	return true, alert, nil
}

// ours are the names of our own flow records.
var ours = Mapping{
	Src: "src", Dst: "dst", SrcPort: "src_port", DstPort: "dst_port", Protocol: "protocol",
	Packets: "packets_fwd", Bytes: "l3_bytes_fwd", ReplyPackets: "packets_rev", ReplyBytes: "l3_bytes_rev",
	Start: "start_ns", End: "end_ns", TimeFormat: "unix_ns",
}

// evidence is as much of the flow as the metric tells.
func (c *classifier) evidence(m telegraf.Metric) score.Evidence {
	s, err := ours.read(m)
	if err != nil {
		return score.Evidence{EndNs: m.Time().UnixNano(), StartNs: m.Time().UnixNano()}
	}
	i := &s.info
	return score.Evidence{
		Ends:    flow.Endpoints{Src: i.Src, Dst: i.Dst, SrcPort: i.SrcPort, DstPort: i.DstPort, Protocol: i.Protocol, IPVersion: i.IPVersion},
		StartNs: s.start, EndNs: s.end,
	}
}

// histogram reads counts separated by commas, as agp_flow has them, and returns their sum.
func histogram(bins []uint32, v any) (sum uint64, err error) {
	if v == nil {
		return 0, nil
	}
	text, ok := v.(string)
	if !ok {
		return 0, fmt.Errorf("%w: %v is no text", errHistogram, v)
	}
	i := 0
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil || i == len(bins) {
			return 0, fmt.Errorf("%w: %q is no list of at most %d counts up to %d", errHistogram, text, len(bins), math.MaxUint32)
		}
		bins[i] = uint32(n)
		sum += n
		i++
	}
	return sum, nil
}

// answer adds readings to a metric: enumerations as tags, scores and models as fields, as agp_flow has them.
type answer struct {
	telemetry.Visitor
	m telegraf.Metric
}

func (a answer) String(name, v string) {
	if name == "app" || name == "class" {
		a.m.AddTag(name, v)
		return
	}
	a.m.AddField(name, v)
}

func (a answer) Float(name string, v float64) { a.m.AddField(name, v) }
