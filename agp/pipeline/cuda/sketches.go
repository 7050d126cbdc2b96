package cuda

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/summary"
	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/cuda"
)

// SketchConfig says what is summarised beside the flow records.
type SketchConfig = summary.Config

// errFreed says that what is read went with the device's memory.
var errFreed = errors.New("device memory is read after the end")

// errMoved says that the device was moving what was read, several times in a row.
var errMoved = errors.New("sketches were moved while they were read")

const (
	summarySketches = abi.SketchQuantiles | abi.SketchDistinct | abi.SketchTop | abi.SketchEntropy
	featureSketches = abi.SketchBlocked | abi.SketchPublished
)

// A device moves counters for some microseconds; on the host, where a warp is a thread, for as
// long as that thread waits for its turn.
const (
	readPause    = 10 * time.Microsecond
	maxReadPause = 5 * time.Millisecond
	readPatience = time.Second
)

// sketchReader is memory for what is read of the shards' sketches.
type sketchReader struct {
	table     Addr             // abi.QuantileTable, of all shards
	raw       *rawSummary      // of one shard; page-locked, so that nothing copies it once more
	part, all *summary.Summary // the same without heavy hitters, and of all shards
	pieces    []Piece
}

// rawSummary is a summary with what tells whether it has moved meanwhile.
type rawSummary struct {
	before, after abi.Sketches
	times, later  [2]int64 // of the other window, which the device may begin to use again
	lists, again  [summary.TopLists]abi.Top
	abi.Summary
}

func (c *Config) setSketches() error {
	if c.Sketch == nil {
		c.Sketches = 0
		return nil
	}
	s := *c.Sketch // the caller's stays as it is
	c.Sketch = &s
	if err := s.SetDefaults(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	layout := map[string]uint32{"": 0, "blocked": abi.SketchBlocked, "published": abi.SketchPublished}
	feature, ok := layout[s.Feature]
	if !ok {
		return fmt.Errorf("%w: sketch feature %q, allowed are \"\", \"published\", \"blocked\"", ErrConfig, s.Feature)
	}
	if c.Sketches == 0 {
		c.Sketches = summarySketches
	}
	c.Sketches = c.Sketches&summarySketches | feature
	return nil
}

// Kernel is the name of the one that does what is asked for.
func (p *Pipeline) Kernel() string {
	switch p.cfg.Mode {
	case ModeSequence:
		return sequenceKernel
	case ModeStateless:
		return packetsKernel
	}
	if p.cfg.Sketches != 0 || p.cfg.Models != nil || p.cfg.Detect != nil || p.params.Messages != 0 {
		return fullKernel
	}
	return ringsKernel
}

// write allocates device memory for a value.
func (p *Pipeline) write(b []byte) (Addr, error) {
	a, err := p.mem.alloc(len(b))
	if err != nil {
		return 0, err
	}
	return a, p.cfg.Device.Write(a, b)
}

// newSketches allocates the sketches of one shard, if there are any.
func (p *Pipeline) newSketches(d *shard) error {
	if p.cfg.Sketches == 0 {
		return nil
	}
	var err error
	if p.reads.table == 0 {
		var t abi.QuantileTable
		first, high := sketch.QuantileTable()
		copy(unsafe.Slice(&t.First[0][0], len(first)), first)
		copy(t.High[:], high)
		if p.reads.table, err = p.write(bytesOf(&t)); err != nil {
			return err
		}
		raw, err := p.mem.mapped(len(bytesOf(&rawSummary{})))
		if err != nil {
			return err
		}
		p.reads.raw = at[rawSummary](raw.Bytes)
		if p.reads.part, err = summary.NewSummary(p.cfg.Key); err != nil {
			return err
		}
		if p.reads.all, err = summary.NewSummary(p.cfg.Key); err != nil {
			return err
		}
	}
	s := abi.Sketches{WindowNs: p.cfg.Sketch.WindowNs, Table: p.reads.table}
	s.K0, s.K1 = sketch.NewHasher(p.cfg.Key).Words()
	for i := range s.Summary {
		if i > 0 && s.WindowNs == 0 {
			break
		}
		empty := &abi.Summary{}
		for j := range empty.Distinct {
			d := &empty.Distinct[j]
			d.KXQ[0] = float64(len(d.Reg)) // registers of 2^0
		}
		if s.Summary[i], err = p.write(bytesOf(empty)); err != nil {
			return err
		}
	}
	size := map[uint32]uintptr{abi.SketchBlocked: unsafe.Sizeof(abi.Blocked{}), abi.SketchPublished: unsafe.Sizeof(abi.Published{})}[p.cfg.Sketches&featureSketches]
	for i := range s.Feature {
		if size == 0 {
			break
		}
		if s.Feature[i], err = p.mem.alloc(int(size)); err != nil {
			return err
		}
	}
	d.sketches = s
	d.abi.Sketches, err = p.write(bytesOf(&s))
	return err
}

// sketchRows appends the readings of all rings together. p.mu is held.
func (p *Pipeline) sketchRows(s *telemetry.Snapshot) {
	serialize := p.cfg.Sketch != nil && p.cfg.Sketch.Serialize
	if p.cfg.Sketches != 0 {
		var err error
		all := p.reads.all
		all.Reset(0)
		for _, r := range p.rings {
			for _, d := range r.shards {
				if err == nil {
					err = p.readSummary(d)
				}
				if err == nil {
					err = mergeSummary(all, p.reads.part, &p.reads.raw.Summary)
				}
			}
		}
		if err != nil { // a snapshot without sketches rather than none
			s.Engine.Errors["sketch_read"]++
		} else {
			s.Top = all.TopRows(s.Top, p.cfg.Sketch.TopK)
			s.Sketches = all.SketchRows(s.Sketches, p.cfg.Sketch)
		}
	}
	p.order.found.Rows(s, serialize)
}

// readSummary reads into p.reads.raw what a snapshot shows of a shard: the last whole window if there
// is one. The device goes on meanwhile: counters may miss what it adds, but nothing is read that it
// moves. Which summary it will be is guessed, so that all is read at once.
func (p *Pipeline) readSummary(d *shard) error {
	m := p.reads.raw
	if m == nil {
		return errFreed
	}
	seen := &d.sketches
	for began, pause := time.Now(), readPause; time.Since(began) < readPatience; {
		at, other := seen.Summary[seen.Now], seen.Summary[1-seen.Now]
		if d.whole {
			at = other
		}
		p.reads.piece(bytesOf(&m.before), d.abi.Sketches)
		if seen.WindowNs > 0 {
			p.reads.piece(bytesOf(&m.times), other)
		}
		p.reads.heads(&m.lists, at)
		p.reads.piece(bytesOf(&m.Summary), at)
		p.reads.heads(&m.again, at)
		if seen.WindowNs > 0 {
			p.reads.piece(bytesOf(&m.later), other)
		}
		p.reads.piece(bytesOf(&m.after), d.abi.Sketches)
		err := p.cfg.Device.ReadAll(p.reads.pieces)
		p.reads.pieces = p.reads.pieces[:0]
		if err != nil {
			return err
		}
		whole := seen.WindowNs > 0 && m.times[0] != 0
		if m.before.Now != seen.Now || whole != d.whole {
			seen.Now, d.whole = m.before.Now, whole
			continue
		}
		steady := m.before.Now == m.after.Now && m.times == m.later
		for i := range m.lists {
			steady = steady && m.lists[i].Moves%2 == 0 && m.lists[i].Moves == m.again[i].Moves
		}
		if steady {
			for i := range m.lists { // what was added since may not yet be whole
				m.Top[i].Head.Used = min(m.lists[i].Used, m.Top[i].Head.Used)
			}
			return nil
		}
		time.Sleep(pause)
		pause = min(2*pause, maxReadPause)
	}
	return errMoved
}

// piece is read with the next ReadAll.
func (r *sketchReader) piece(to []byte, from Addr) {
	r.pieces = append(r.pieces, Piece{To: to, From: cuda.DevicePtr(from)})
}

// heads reads the heads of the lists of heavy hitters.
func (r *sketchReader) heads(to *[summary.TopLists]abi.Top, at Addr) {
	var s abi.Summary
	for i := range to {
		off := unsafe.Offsetof(s.Top) + uintptr(i)*unsafe.Sizeof(s.Top[0])
		r.piece(bytesOf(&to[i]), at+Addr(off))
	}
}

// mergeSummary adds a shard's sketches to all. s is memory for it, without heavy hitters: these are
// most of the work and come without a sketch between.
func mergeSummary(all, s *summary.Summary, raw *abi.Summary) error {
	s.StartNs, s.EndNs = raw.StartNs, raw.EndNs
	err := errors.Join(s.Size.Load(raw.Size.N, raw.Size.Zero, raw.Size.Bins[:]), s.Delay.Load(raw.Delay.N, raw.Delay.Zero, raw.Delay.Bins[:]))
	for i := range s.Distinct {
		d := &raw.Distinct[i]
		err = errors.Join(err, s.Distinct[i].Load(d.HIP, d.KXQ, d.Reg[:]))
	}
	for i := range s.Entropy {
		err = errors.Join(err, s.Entropy[i].Load(raw.Entropy[i].N, raw.Entropy[i].Cells[:]))
	}
	for i := range s.Top {
		t := &raw.Top[i]
		n := min(int(t.Head.Used), len(t.Keys))
		err = errors.Join(err, all.Top[i].MergeRaw(t.Head.N, t.Head.Err, t.Keys[:n], t.Counts[:n]))
	}
	if err != nil {
		return err
	}
	return all.Merge(s)
}

// Features reads the per-flow histograms of one shard of a ring; nil if there are none. They are
// whole once Run has returned.
func (p *Pipeline) Features(ring, shard int) (summary.Features, error) {
	if p.cfg.Sketches&featureSketches == 0 {
		return nil, nil
	}
	f, err := summary.NewFeatures(p.cfg.Sketch.Feature, p.cfg.Key)
	if err != nil {
		return nil, err
	}
	var s abi.Sketches
	if err := p.cfg.Device.Read(bytesOf(&s), p.rings[ring].shards[shard].abi.Sketches); err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case *summary.Blocked:
		raw := &abi.Blocked{}
		for i, to := range [2]*sketch.Blocked{f.Sizes, f.Delays} {
			if err := p.cfg.Device.Read(bytesOf(raw), s.Feature[i]); err != nil {
				return nil, err
			}
			if err := to.Load(s.Counted[i], raw.Lines[:], raw.Carry[:]); err != nil {
				return nil, err
			}
		}
	case *summary.Published:
		raw := &abi.Published{}
		for i, to := range [2]*sketch.Published{f.Sizes, f.Delays} {
			if err := p.cfg.Device.Read(bytesOf(raw), s.Feature[i]); err != nil {
				return nil, err
			}
			if err := to.Load(s.Counted[i], raw.Counters[:], raw.Bloom[:]); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}
