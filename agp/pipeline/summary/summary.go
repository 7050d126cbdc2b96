// Package summary is what a pipeline keeps of all traffic beside flow records: heavy hitters,
// distinct counts, entropies, quantiles and per-flow histograms in fixed memory, and the rows
// that a snapshot shows of them.
//
// A Sketches belongs to one queue and its goroutine, a Summary to who has it. Times are ns of
// the packets' clock, lengths bytes; nothing reads a clock.
package summary

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// ErrConfig says that a Config cannot be used.
var ErrConfig = errors.New("sketch configuration")

// DefaultTopK is how many entries a list of heavy hitters has by default.
const DefaultTopK = 10

// Config says what is summarised beside the flow records.
type Config struct {
	TopK int // entries per heavy-hitter list; default 10
	// WindowNs is the capture time that readings cover; 0: since the start.
	WindowNs int64
	// Feature keeps the per-flow histograms of all flows in fixed memory too:
	// "" (off), "published" or "blocked".
	Feature string
	// Serialize puts the state of distinct counts and quantiles into snapshots,
	// so that sketches of many hosts can be merged.
	Serialize bool
}

// SetDefaults fills in what is not set and checks the rest.
func (c *Config) SetDefaults() error {
	if c.TopK == 0 {
		c.TopK = DefaultTopK
	}
	if c.TopK < 1 || c.TopK > TopCounters {
		return fmt.Errorf("%w: top_k = %d, allowed are 1 to %d", ErrConfig, c.TopK, TopCounters)
	}
	return nil
}

// Sizes. A heavy-hitter sketch keeps more keys than it reports, which lowers its error.
const (
	TopCounters    = 1024
	HLLLgK         = 12
	EntropyWidth   = 1 << 14
	BlockedWidth   = 1 << 13
	PublishedWidth = 87381
	PublishedBits  = 5592405
)

// Heavy-hitter lists; names are the metric tag.
const (
	TopSrcBytes = iota
	TopDstBytes
	TopDstPortBytes
	TopFlowBytes
	TopSrcFlows
	TopLists
)

var topNames = [TopLists]string{"src_bytes", "dst_bytes", "dst_port_bytes", "flow_bytes", "src_flows"}

// Distinct counts.
const (
	DistinctSources = iota
	DistinctDestinations
	DistinctDstPorts
	DistinctFlows
	DistinctLists
)

var distinctNames = [DistinctLists]string{"sources", "destinations", "dst_ports", "flows"}

// Features are the size and delay histograms of SketchFeature in one layout.
type Features interface {
	// add counts packets of one flow by their bins, at the latest when flush is called.
	add(flow uint64, size, delay []uint8)
	flush()
	// Decode adds nothing and fills size and delay with a flow's histograms.
	Decode(flow uint64, size, delay []uint32)
}

// Blocked lets some flows wait until the cache lines of all of them are on their way.
type Blocked struct {
	Sizes, Delays *sketch.Blocked
	waiting       [8]blockedAdd
	n             int
}

type blockedAdd struct {
	lines         sketch.Lines
	sizes         [flow.BinnedPackets]uint8
	delays        [flow.BinnedPackets]uint8
	nSize, nDelay uint8
}

func (b *Blocked) add(flow uint64, size, delay []uint8) {
	w := &b.waiting[b.n]
	w.lines = b.Sizes.Lines(flow)
	b.Sizes.Prefetch(w.lines)
	b.Delays.Prefetch(w.lines)
	w.nSize, w.nDelay = uint8(copy(w.sizes[:], size)), uint8(copy(w.delays[:], delay))
	if b.n++; b.n == len(b.waiting) {
		b.flush()
	}
}

func (b *Blocked) flush() {
	for i := range b.waiting[:b.n] {
		w := &b.waiting[i]
		b.Sizes.AddAt(w.lines, w.sizes[:w.nSize])
		b.Delays.AddAt(w.lines, w.delays[:w.nDelay])
	}
	b.n = 0
}

// Decode implements Features.
func (b *Blocked) Decode(flow uint64, size, delay []uint32) {
	b.Sizes.Decode(flow, size)
	b.Delays.Decode(flow, delay)
}

// Published adds at once.
type Published struct{ Sizes, Delays *sketch.Published }

func (p *Published) add(flow uint64, size, delay []uint8) {
	for _, bin := range size {
		p.Sizes.Add(flow, int(bin))
	}
	for _, bin := range delay {
		p.Delays.Add(flow, int(bin))
	}
}

func (p *Published) flush() {}

// Decode implements Features.
func (p *Published) Decode(flow uint64, size, delay []uint32) {
	p.Sizes.Decode(flow, size)
	p.Delays.Decode(flow, delay)
}

// NewFeatures makes those of a layout: nil for "".
func NewFeatures(layout string, key [16]byte) (Features, error) {
	switch layout {
	case "":
		return nil, nil
	case "blocked":
		sizes, err := sketch.NewBlocked(BlockedWidth, key)
		if err != nil {
			return nil, err
		}
		delays, err := sketch.NewBlocked(BlockedWidth, key)
		return &Blocked{Sizes: sizes, Delays: delays}, err
	case "published":
		// The artefact's 3 MB: 2 MB of Bloom filter, 1 MB of counters.
		sizes, err := sketch.NewPublished(telemetry.SizeBins, PublishedWidth, PublishedBits, key)
		if err != nil {
			return nil, err
		}
		delays, err := sketch.NewPublished(telemetry.DelayBins, PublishedWidth, PublishedBits, key)
		return &Published{sizes, delays}, err
	}
	return nil, fmt.Errorf("%w: sketch feature %q, allowed are \"\", \"published\", \"Blocked\"", ErrConfig, layout)
}

// Summary is one window's sketches of one queue.
type Summary struct {
	Top      [TopLists]*sketch.TopK
	Distinct [DistinctLists]*sketch.HLL
	Entropy  [2]*sketch.Entropy // of source and destination addresses over packets
	Size     *sketch.Quantiles  // L3 length, bytes
	Delay    *sketch.Quantiles  // between packets of a flow, ns
	StartNs  int64
	EndNs    int64
}

// Sketches are those of one queue: the running window and the last whole one.
type Sketches struct {
	cfg       *Config
	hash      sketch.Hasher
	now, last *Summary
	features  Features // nil: off
}

// NewSummary returns an empty summary, into which the sketches of all queues are merged.
func NewSummary(key [16]byte) (*Summary, error) {
	s := &Summary{Size: sketch.NewQuantiles(), Delay: sketch.NewQuantiles()}
	var err error
	for i := range s.Top {
		if s.Top[i], err = sketch.NewTopK(TopCounters, key); err != nil {
			return nil, err
		}
	}
	for i := range s.Distinct {
		if s.Distinct[i], err = sketch.NewHLL(HLLLgK); err != nil {
			return nil, err
		}
	}
	for i := range s.Entropy {
		if s.Entropy[i], err = sketch.NewEntropy(EntropyWidth, key); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// New returns the sketches of one queue.
func New(cfg *Config, key [16]byte) (*Sketches, error) {
	if err := cfg.SetDefaults(); err != nil {
		return nil, err
	}
	s := &Sketches{cfg: cfg, hash: sketch.NewHasher(key)}
	var err error
	if s.now, err = NewSummary(key); err != nil {
		return nil, err
	}
	if cfg.WindowNs > 0 {
		if s.last, err = NewSummary(key); err != nil {
			return nil, err
		}
	}
	s.features, err = NewFeatures(cfg.Feature, key)
	return s, err
}

// Packet adds what is counted per packet; delay is negative for a flow's first.
func (s *Sketches) Packet(l3Len uint32, delay int64) {
	s.now.Size.AddUint(uint64(l3Len))
	if delay >= 0 {
		s.now.Delay.AddUint(uint64(delay))
	}
}

func addrBytes(a *[16]byte, version uint8) []byte {
	if version == 4 {
		return a[:4]
	}
	return a[:]
}

// Start adds what is counted per flow.
func (s *Sketches) Start(src, dst *[16]byte, dstPort uint16, k *flow.Packet) {
	n := s.now
	n.Distinct[DistinctSources].Add(addrBytes(src, k.IPVersion))
	n.Distinct[DistinctDestinations].Add(addrBytes(dst, k.IPVersion))
	n.Distinct[DistinctDstPorts].AddUint64(uint64(k.Protocol)<<16 | uint64(dstPort))
	n.Distinct[DistinctFlows].AddUint64(k.Hash)
	s.addTop(TopSrcFlows, src, k.IPVersion, 1)
}

// Progress adds what a flow has carried since it was told last.
func (s *Sketches) Progress(e *flow.Endpoints, packets, bytes uint64) {
	n := s.now
	s.addTop(TopSrcBytes, &e.Src, e.IPVersion, bytes)
	s.addTop(TopDstBytes, &e.Dst, e.IPVersion, bytes)
	var key sketch.Key
	binary.BigEndian.PutUint16(key[0:], e.DstPort)
	key[2] = e.Protocol
	n.Top[TopDstPortBytes].Add(&key, bytes)
	key = sketch.Key{}
	copy(key[0:16], e.Src[:])
	copy(key[16:32], e.Dst[:])
	binary.BigEndian.PutUint16(key[32:], e.SrcPort)
	binary.BigEndian.PutUint16(key[34:], e.DstPort)
	key[36], key[37] = e.Protocol, e.IPVersion
	n.Top[TopFlowBytes].Add(&key, bytes)
	n.Entropy[0].Add(s.hash.Addr(&e.Src), uint32(packets))
	n.Entropy[1].Add(s.hash.Addr(&e.Dst), uint32(packets))
}

// addTop adds an address to a list of heavy hitters.
func (s *Sketches) addTop(list int, addr *[16]byte, version uint8, weight uint64) {
	var key sketch.Key
	copy(key[:16], addr[:])
	key[16] = version
	s.now.Top[list].Add(&key, weight)
}

// Binned adds packets of one flow by their histogram bins.
func (s *Sketches) Binned(hash uint64, size, delay []uint8) {
	if s.features != nil {
		s.features.add(hash, size, delay)
	}
}

// Features returns the per-flow histograms, nil if they are off.
func (s *Sketches) Features() Features { return s.features }

// Flush adds what waits.
func (s *Sketches) Flush() {
	if s.features != nil {
		s.features.flush()
	}
}

// Tick closes a window when the capture clock enters the next one.
func (s *Sketches) Tick(ns int64) {
	if s.now.StartNs == 0 {
		s.now.StartNs = ns
	}
	s.now.EndNs = ns
	if w := s.cfg.WindowNs; w > 0 && ns/w != s.now.StartNs/w {
		s.now, s.last = s.last, s.now
		s.now.Reset(ns)
	}
}

// Reset begins a window.
func (s *Summary) Reset(startNs int64) {
	for _, t := range s.Top {
		t.Reset()
	}
	for _, d := range s.Distinct {
		d.Reset()
	}
	for _, e := range s.Entropy {
		e.Reset()
	}
	s.Size.Reset()
	s.Delay.Reset()
	s.StartNs, s.EndNs = startNs, startNs
}

// Reading is what a snapshot shows of a queue: the last whole window if there is one.
func (s *Sketches) Reading() *Summary {
	if s.last != nil && s.last.StartNs != 0 {
		return s.last
	}
	return s.now
}

// Merge adds o to s; both were made by NewSummary with one key, so nothing can differ.
func (s *Summary) Merge(o *Summary) error {
	for i := range s.Top {
		if err := s.Top[i].Merge(o.Top[i]); err != nil {
			return err
		}
	}
	for i := range s.Distinct {
		if err := s.Distinct[i].Merge(o.Distinct[i]); err != nil {
			return err
		}
	}
	for i := range s.Entropy {
		if err := s.Entropy[i].Merge(o.Entropy[i]); err != nil {
			return err
		}
	}
	if err := s.Size.Merge(o.Size); err != nil {
		return err
	}
	s.StartNs, s.EndNs = o.StartNs, max(s.EndNs, o.EndNs)
	return s.Delay.Merge(o.Delay)
}

func addrText(b []byte, version uint8) string {
	return telemetry.Addr(version, (*[16]byte)(b)).String()
}

// TopRows appends the heavy hitters.
func (s *Summary) TopRows(rows []telemetry.TopRow, n int) []telemetry.TopRow {
	var entries []sketch.TopEntry
	for list, t := range s.Top {
		entries = t.Top(entries[:0], n)
		for i, e := range entries {
			r := telemetry.TopRow{Metric: topNames[list], Rank: uint16(i + 1), Value: e.Count, Error: t.Error()}
			k := &e.Key
			switch list {
			case TopSrcBytes, TopSrcFlows:
				r.Src = addrText(k[:16], k[16])
			case TopDstBytes:
				r.Dst = addrText(k[:16], k[16])
			case TopDstPortBytes:
				r.DstPort, r.Protocol = binary.BigEndian.Uint16(k[0:]), telemetry.ProtocolName(k[2])
			case TopFlowBytes:
				r.Src, r.Dst = addrText(k[0:16], k[37]), addrText(k[16:32], k[37])
				r.SrcPort, r.DstPort = binary.BigEndian.Uint16(k[32:]), binary.BigEndian.Uint16(k[34:])
				r.Protocol = telemetry.ProtocolName(k[36])
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// SketchRows appends the readings.
func (s *Summary) SketchRows(rows []telemetry.SketchRow, cfg *Config) []telemetry.SketchRow {
	var window int64
	if cfg.WindowNs > 0 {
		window = s.EndNs - s.StartNs
	}
	for i, d := range s.Distinct {
		r := telemetry.SketchRow{Name: distinctNames[i], Kind: telemetry.SketchDistinct, Estimate: d.Estimate(), ErrorBound: d.RSE(), WindowNs: window}
		if !d.Empty() {
			r.Count = 1
		}
		if cfg.Serialize {
			r.State, r.Encoding = state(d), "hll_datasketches"
		}
		rows = append(rows, r)
	}
	for i, e := range s.Entropy {
		name := [2]string{"src_entropy", "dst_entropy"}[i]
		rows = append(rows, telemetry.SketchRow{
			Name: name, Kind: telemetry.SketchEntropy, Count: e.Total(), Estimate: e.Estimate(),
			ErrorBound: e.Loss(s.Distinct[i].Estimate()), WindowNs: window,
		})
	}
	rows = append(rows, QuantileRow("size", s.Size, window, cfg.Serialize))
	return append(rows, QuantileRow("delay_ns", s.Delay, window, cfg.Serialize))
}

// QuantileRow is the reading of quantiles; window is what they cover in ns, 0 for all.
func QuantileRow(name string, q *sketch.Quantiles, window int64, serialize bool) telemetry.SketchRow {
	r := telemetry.SketchRow{Name: name, Kind: telemetry.SketchQuantile, Count: uint64(q.Count()), ErrorBound: sketch.QuantilesAccuracy, WindowNs: window}
	if r.Count > 0 {
		r.P50, r.P90, r.P99 = Quantile(q, 0.5), Quantile(q, 0.9), Quantile(q, 0.99)
	}
	if serialize {
		r.State, r.Encoding = state(q), "ddsketch_proto"
	}
	return r
}

// Quantile reads a sketch that is known not to be empty.
func Quantile(q *sketch.Quantiles, p float64) float64 {
	v, err := q.Quantile(p)
	if err != nil {
		panic(err) // only ErrEmpty exists
	}
	return v
}

func state(m interface{ MarshalBinary() ([]byte, error) }) []byte {
	b, err := m.MarshalBinary()
	if err != nil {
		return nil // a row without state says so
	}
	return b
}
