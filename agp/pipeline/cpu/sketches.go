package cpu

import (
	"encoding/binary"
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// SketchConfig says what is summarised beside the flow records.
type SketchConfig struct {
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

// Sizes. A heavy-hitter sketch keeps more keys than it reports, which lowers its error.
const (
	topCounters    = 1024
	hllLgK         = 12
	entropyWidth   = 1 << 14
	blockedWidth   = 1 << 13
	publishedWidth = 87381
	publishedBits  = 5592405
)

// Heavy-hitter lists; names are the metric tag.
const (
	topSrcBytes = iota
	topDstBytes
	topDstPortBytes
	topFlowBytes
	topSrcFlows
	topLists
)

var topNames = [topLists]string{"src_bytes", "dst_bytes", "dst_port_bytes", "flow_bytes", "src_flows"}

// Distinct counts.
const (
	distinctSources = iota
	distinctDestinations
	distinctDstPorts
	distinctFlows
	distinctLists
)

var distinctNames = [distinctLists]string{"sources", "destinations", "dst_ports", "flows"}

// features are the size and delay histograms of SketchFeature in one layout.
type features interface {
	// add counts packets of one flow by their bins, at the latest when flush is called.
	add(flow uint64, size, delay []uint8)
	flush()
}

// blocked lets some flows wait until the cache lines of all of them are on their way.
type blocked struct {
	sizes, delays *sketch.Blocked
	waiting       [8]blockedAdd
	n             int
}

type blockedAdd struct {
	lines         sketch.Lines
	sizes         [flow.BinnedPackets]uint8
	delays        [flow.BinnedPackets]uint8
	nSize, nDelay uint8
}

func (b *blocked) add(flow uint64, size, delay []uint8) {
	w := &b.waiting[b.n]
	w.lines = b.sizes.Lines(flow)
	b.sizes.Prefetch(w.lines)
	b.delays.Prefetch(w.lines)
	w.nSize, w.nDelay = uint8(copy(w.sizes[:], size)), uint8(copy(w.delays[:], delay))
	if b.n++; b.n == len(b.waiting) {
		b.flush()
	}
}

func (b *blocked) flush() {
	for i := range b.waiting[:b.n] {
		w := &b.waiting[i]
		b.sizes.AddAt(w.lines, w.sizes[:w.nSize])
		b.delays.AddAt(w.lines, w.delays[:w.nDelay])
	}
	b.n = 0
}

type published struct{ sizes, delays *sketch.Published }

func (p *published) add(flow uint64, size, delay []uint8) {
	for _, bin := range size {
		p.sizes.Add(flow, int(bin))
	}
	for _, bin := range delay {
		p.delays.Add(flow, int(bin))
	}
}

func (p *published) flush() {}

func newFeatures(layout string, key [16]byte) (features, error) {
	switch layout {
	case "":
		return nil, nil
	case "blocked":
		sizes, err := sketch.NewBlocked(blockedWidth, key)
		if err != nil {
			return nil, err
		}
		delays, err := sketch.NewBlocked(blockedWidth, key)
		return &blocked{sizes: sizes, delays: delays}, err
	case "published":
		// The artefact's 3 MB: 2 MB of Bloom filter, 1 MB of counters.
		sizes, err := sketch.NewPublished(telemetry.SizeBins, publishedWidth, publishedBits, key)
		if err != nil {
			return nil, err
		}
		delays, err := sketch.NewPublished(telemetry.DelayBins, publishedWidth, publishedBits, key)
		return &published{sizes, delays}, err
	}
	return nil, fmt.Errorf("%w: sketch feature %q, allowed are \"\", \"published\", \"blocked\"", ErrConfig, layout)
}

// summary is one window's sketches of one queue.
type summary struct {
	top      [topLists]*sketch.TopK
	distinct [distinctLists]*sketch.HLL
	entropy  [2]*sketch.Entropy // of source and destination addresses over packets
	size     *sketch.Quantiles  // L3 length, bytes
	delay    *sketch.Quantiles  // between packets of a flow, ns
	startNs  int64
	endNs    int64
}

// sketches are those of one queue: the running window and the last whole one.
type sketches struct {
	cfg       *SketchConfig
	hash      sketch.Hasher
	now, last *summary
	features  features // nil: off
}

func newSummary(key [16]byte) (*summary, error) {
	s := &summary{size: sketch.NewQuantiles(), delay: sketch.NewQuantiles()}
	var err error
	for i := range s.top {
		if s.top[i], err = sketch.NewTopK(topCounters, key); err != nil {
			return nil, err
		}
	}
	for i := range s.distinct {
		if s.distinct[i], err = sketch.NewHLL(hllLgK); err != nil {
			return nil, err
		}
	}
	for i := range s.entropy {
		if s.entropy[i], err = sketch.NewEntropy(entropyWidth, key); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func newSketches(cfg *SketchConfig, key [16]byte) (*sketches, error) {
	if cfg.TopK == 0 {
		cfg.TopK = DefaultTopK
	}
	if cfg.TopK < 1 || cfg.TopK > topCounters {
		return nil, fmt.Errorf("%w: top_k = %d, allowed are 1 to %d", ErrConfig, cfg.TopK, topCounters)
	}
	s := &sketches{cfg: cfg, hash: sketch.NewHasher(key)}
	var err error
	if s.now, err = newSummary(key); err != nil {
		return nil, err
	}
	if cfg.WindowNs > 0 {
		if s.last, err = newSummary(key); err != nil {
			return nil, err
		}
	}
	s.features, err = newFeatures(cfg.Feature, key)
	return s, err
}

// packet adds what is counted per packet; delay is negative for a flow's first.
func (s *sketches) packet(l3Len uint32, delay int64) {
	s.now.size.AddUint(uint64(l3Len))
	if delay >= 0 {
		s.now.delay.AddUint(uint64(delay))
	}
}

func addrBytes(a *[16]byte, version uint8) []byte {
	if version == 4 {
		return a[:4]
	}
	return a[:]
}

// start adds what is counted per flow.
func (s *sketches) start(src, dst *[16]byte, dstPort uint16, k *flow.Packet) {
	n := s.now
	n.distinct[distinctSources].Add(addrBytes(src, k.IPVersion))
	n.distinct[distinctDestinations].Add(addrBytes(dst, k.IPVersion))
	n.distinct[distinctDstPorts].AddUint64(uint64(k.Protocol)<<16 | uint64(dstPort))
	n.distinct[distinctFlows].AddUint64(k.Hash)
	s.addTop(topSrcFlows, src, k.IPVersion, 1)
}

// progress adds what a flow has carried since it was told last.
func (s *sketches) progress(e *flow.Endpoints, packets, bytes uint64) {
	n := s.now
	s.addTop(topSrcBytes, &e.Src, e.IPVersion, bytes)
	s.addTop(topDstBytes, &e.Dst, e.IPVersion, bytes)
	var key sketch.Key
	binary.BigEndian.PutUint16(key[0:], e.DstPort)
	key[2] = e.Protocol
	n.top[topDstPortBytes].Add(&key, bytes)
	key = sketch.Key{}
	copy(key[0:16], e.Src[:])
	copy(key[16:32], e.Dst[:])
	binary.BigEndian.PutUint16(key[32:], e.SrcPort)
	binary.BigEndian.PutUint16(key[34:], e.DstPort)
	key[36], key[37] = e.Protocol, e.IPVersion
	n.top[topFlowBytes].Add(&key, bytes)
	n.entropy[0].Add(s.hash.Addr(&e.Src), uint32(packets))
	n.entropy[1].Add(s.hash.Addr(&e.Dst), uint32(packets))
}

// addTop adds an address to a list of heavy hitters.
func (s *sketches) addTop(list int, addr *[16]byte, version uint8, weight uint64) {
	var key sketch.Key
	copy(key[:16], addr[:])
	key[16] = version
	s.now.top[list].Add(&key, weight)
}

// binned adds packets of one flow by their histogram bins.
func (s *sketches) binned(hash uint64, size, delay []uint8) {
	if s.features != nil {
		s.features.add(hash, size, delay)
	}
}

// flush adds what waits.
func (s *sketches) flush() {
	if s.features != nil {
		s.features.flush()
	}
}

// tick closes a window when the capture clock enters the next one.
func (s *sketches) tick(ns int64) {
	if s.now.startNs == 0 {
		s.now.startNs = ns
	}
	s.now.endNs = ns
	if w := s.cfg.WindowNs; w > 0 && ns/w != s.now.startNs/w {
		s.now, s.last = s.last, s.now
		s.now.reset(ns)
	}
}

func (s *summary) reset(startNs int64) {
	for _, t := range s.top {
		t.Reset()
	}
	for _, d := range s.distinct {
		d.Reset()
	}
	for _, e := range s.entropy {
		e.Reset()
	}
	s.size.Reset()
	s.delay.Reset()
	s.startNs, s.endNs = startNs, startNs
}

// reading is what a snapshot shows of a queue: the last whole window if there is one.
func (s *sketches) reading() *summary {
	if s.last != nil && s.last.startNs != 0 {
		return s.last
	}
	return s.now
}

// merge adds o to s; both were made by newSummary with one key, so nothing can differ.
func (s *summary) merge(o *summary) error {
	for i := range s.top {
		if err := s.top[i].Merge(o.top[i]); err != nil {
			return err
		}
	}
	for i := range s.distinct {
		if err := s.distinct[i].Merge(o.distinct[i]); err != nil {
			return err
		}
	}
	for i := range s.entropy {
		if err := s.entropy[i].Merge(o.entropy[i]); err != nil {
			return err
		}
	}
	if err := s.size.Merge(o.size); err != nil {
		return err
	}
	s.startNs, s.endNs = o.startNs, max(s.endNs, o.endNs)
	return s.delay.Merge(o.delay)
}

func addrText(b []byte, version uint8) string {
	return telemetry.Addr(version, (*[16]byte)(b)).String()
}

// topRows appends the heavy hitters.
func (s *summary) topRows(rows []telemetry.TopRow, n int) []telemetry.TopRow {
	var entries []sketch.TopEntry
	for list, t := range s.top {
		entries = t.Top(entries[:0], n)
		for i, e := range entries {
			r := telemetry.TopRow{Metric: topNames[list], Rank: uint16(i + 1), Value: e.Count, Error: t.Error()}
			k := &e.Key
			switch list {
			case topSrcBytes, topSrcFlows:
				r.Src = addrText(k[:16], k[16])
			case topDstBytes:
				r.Dst = addrText(k[:16], k[16])
			case topDstPortBytes:
				r.DstPort, r.Protocol = binary.BigEndian.Uint16(k[0:]), telemetry.ProtocolName(k[2])
			case topFlowBytes:
				r.Src, r.Dst = addrText(k[0:16], k[37]), addrText(k[16:32], k[37])
				r.SrcPort, r.DstPort = binary.BigEndian.Uint16(k[32:]), binary.BigEndian.Uint16(k[34:])
				r.Protocol = telemetry.ProtocolName(k[36])
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// sketchRows appends the readings.
func (s *summary) sketchRows(rows []telemetry.SketchRow, cfg *SketchConfig) []telemetry.SketchRow {
	var window int64
	if cfg.WindowNs > 0 {
		window = s.endNs - s.startNs
	}
	for i, d := range s.distinct {
		r := telemetry.SketchRow{Name: distinctNames[i], Kind: telemetry.SketchDistinct, Estimate: d.Estimate(), ErrorBound: d.RSE(), WindowNs: window}
		if !d.Empty() {
			r.Count = 1
		}
		if cfg.Serialize {
			r.State, r.Encoding = state(d), "hll_datasketches"
		}
		rows = append(rows, r)
	}
	for i, e := range s.entropy {
		name := [2]string{"src_entropy", "dst_entropy"}[i]
		rows = append(rows, telemetry.SketchRow{
			Name: name, Kind: telemetry.SketchEntropy, Count: e.Total(), Estimate: e.Estimate(),
			ErrorBound: e.Loss(s.distinct[i].Estimate()), WindowNs: window,
		})
	}
	rows = append(rows, quantileRow("size", s.size, window, cfg.Serialize))
	return append(rows, quantileRow("delay_ns", s.delay, window, cfg.Serialize))
}

func quantileRow(name string, q *sketch.Quantiles, window int64, serialize bool) telemetry.SketchRow {
	r := telemetry.SketchRow{Name: name, Kind: telemetry.SketchQuantile, Count: uint64(q.Count()), ErrorBound: sketch.QuantilesAccuracy, WindowNs: window}
	if r.Count > 0 {
		r.P50, r.P90, r.P99 = quantile(q, 0.5), quantile(q, 0.9), quantile(q, 0.99)
	}
	if serialize {
		r.State, r.Encoding = state(q), "ddsketch_proto"
	}
	return r
}

// quantile reads a sketch that is known not to be empty.
func quantile(q *sketch.Quantiles, p float64) float64 {
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
