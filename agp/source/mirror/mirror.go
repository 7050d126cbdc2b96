package mirror

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/live"
)

const (
	defaultBatch = 256
	defaultSlack = 100 * time.Microsecond
	// busyWait bounds how long an unfinished record holds up those of other CPUs. Its
	// program was interrupted, or its virtual CPU does not run.
	busyWait = uint64(5 * time.Millisecond)
	// maxSkip bounds the records that one poll takes, in batches: most may be duplicates.
	maxSkip = 8
	// maxAhead is how far a record may be ahead of the clock, which was read before the ring.
	maxAhead = uint64(time.Second)
	// maxLinks bounds the interfaces that are remembered.
	maxLinks = 4096
)

// Link says what frames of an interface are.
type Link struct {
	Interface uint32 // for source.Frame
	Type      packet.LinkType
}

// Config describes a Source.
type Config struct {
	// Rings are the ring buffers, one per CPU. They may be closed after Open.
	Rings []*ebpf.Map
	// SnapLen is the snapshot length that the programs were loaded with; 0 means 256.
	SnapLen int
	// Links returns what frames of an interface are, false if it is not known. It is
	// asked once for each known interface.
	Links func(ifindex int) (Link, bool)
	// Duplicates recognises frames that pass several hooks. It is worth its time only
	// if there are several.
	Duplicates bool
	// Dropped returns the programs' own drops by reason, in frames on the wire; nil if
	// there are none to report. It is called by Stats.
	Dropped func() map[string]uint64
	// Slack is the age from which on all rings are expected to have their records of a
	// time; 0 means 100 us.
	Slack time.Duration
	// Clock is the source's time; nil means the system's.
	Clock live.Clock
}

// Source reads the rings. See the package comment for who may call what.
type Source struct {
	cfg    Config
	clock  live.Clock
	offset int64 // ns from monotonic time to realtime
	slack  uint64
	rings  []ring
	heap   []*ring // those with a record, the oldest first
	links  map[uint32]Link
	dup    *live.Duplicates
	pace   live.Pace
	newest uint64 // time of the youngest frame delivered
	final  error  // what Next returns from now on

	lastIndex uint32 // ifindex of the frame before, 0 if there is none
	lastLink  Link

	frames, bytes                 uint64
	duplicate, malformed, unknown uint64 // frames on the wire
	byFrags, outOfOrder           uint64

	interrupted atomic.Bool
}

var _ source.Source = (*Source)(nil)

// Open maps the rings.
func Open(cfg Config) (*Source, error) {
	if len(cfg.Rings) == 0 {
		return nil, fmt.Errorf("%w: no map given", ErrRing)
	}
	if cfg.Links == nil {
		return nil, errors.New("mirror: no link types given")
	}
	var rings []ring
	for cpu, m := range cfg.Rings {
		r, err := mapRing(m)
		if err != nil {
			for i := range rings {
				_ = rings[i].unmap()
			}
			return nil, fmt.Errorf("ring of CPU %d: %w", cpu, err)
		}
		rings = append(rings, r)
	}
	return newSource(cfg, rings), nil
}

func newSource(cfg Config, rings []ring) *Source {
	if cfg.Clock == nil {
		cfg.Clock = live.System()
	}
	if cfg.Slack <= 0 {
		cfg.Slack = defaultSlack
	}
	if cfg.SnapLen <= 0 || cfg.SnapLen > maxCap {
		cfg.SnapLen = maxCap
	}
	s := &Source{
		cfg:    cfg,
		clock:  cfg.Clock,
		offset: cfg.Clock.Realtime(),
		slack:  uint64(cfg.Slack),
		rings:  rings,
		heap:   make([]*ring, 0, len(rings)),
		links:  make(map[uint32]Link),
	}
	if cfg.Duplicates {
		s.dup = live.NewDuplicates(cfg.SnapLen)
	}
	now := uint64(s.clock.Monotonic())
	for i := range rings {
		rings[i].emptyAt = now
	}
	return s
}

// Next implements source.Source. It waits at most 50 ms.
func (s *Source) Next(b *source.Batch) (int, error) {
	if cap(b.Frames) == 0 {
		b.Frames = make([]source.Frame, 0, defaultBatch)
	}
	if need := cap(b.Frames) * (maxCap + live.TagLen); cap(b.Buf) < need {
		b.Buf = make([]byte, 0, need)
	}
	b.Frames, b.Buf = b.Frames[:0], b.Buf[:0]
	until := int64(math.MinInt64)
	for {
		if s.final != nil {
			return 0, s.final
		}
		if s.interrupted.Load() {
			return 0, io.EOF
		}
		if d := s.pace.Pause(); d > 0 {
			s.clock.Sleep(d)
		}
		now := s.clock.Monotonic()
		n := s.poll(b, uint64(now))
		if n > 0 {
			return n, nil
		}
		if until == math.MinInt64 {
			until = now + int64(live.MaxWait-2*time.Millisecond) // less one sleep
		}
		if s.final == nil && now >= until {
			return 0, nil
		}
	}
}

// poll fills the batch with what the rings hold up to now less the slack.
func (s *Source) poll(b *source.Batch, now uint64) int {
	limit := uint64(math.MaxUint64)
	if len(s.rings) > 1 {
		limit = now - min(now, s.slack)
	}
	s.heap = s.heap[:0]
	var behind bool
	for i := range s.rings {
		r := &s.rings[i]
		st, err := r.look(now)
		switch {
		case err != nil:
			s.fail(r, err)
		case st == busy:
			limit = min(limit, s.unfinished(r, now))
		case st == ready:
			s.push(r, now)
		}
		behind = behind || r.waiting() > r.mask/8
	}
	n, taken, frames := 0, 0, b.Frames[:cap(b.Frames)]
	for n < len(frames) && taken < maxSkip*len(frames) && len(s.heap) > 0 {
		r := s.heap[0]
		if r.time > limit {
			break
		}
		if s.deliver(r, &frames[n], b) {
			n++
		}
		r.last = r.time
		r.take()
		taken++
		st, err := r.peek()
		switch {
		case err != nil:
			s.fail(r, err)
			s.pop()
		case st == ready:
			r.stamp(now)
			s.down()
		default:
			if st == busy {
				limit = min(limit, s.unfinished(r, now))
			}
			s.pop()
		}
	}
	for i := range s.rings {
		s.rings[i].publish()
	}
	b.Frames = frames[:n]
	s.frames += uint64(n)
	s.bytes += uint64(len(b.Buf))
	s.pace.Polled(taken, len(frames), behind && taken > 0)
	return n
}

// fail ends the input after what this poll delivers.
func (s *Source) fail(r *ring, err error) {
	for cpu := range s.rings {
		if r == &s.rings[cpu] {
			s.final = fmt.Errorf("ring of CPU %d: %w", cpu, err)
		}
	}
}

// unfinished returns the time up to which other rings may be read while the record at
// the position of r is written. Its time is unknown, but not before that of the record
// before, and the ring was once seen without it.
func (s *Source) unfinished(r *ring, now uint64) uint64 {
	if r.busyAt == 0 {
		r.busyAt = max(now, 1)
	}
	if now-r.busyAt > busyWait {
		return math.MaxUint64
	}
	return max(r.last, r.emptyAt-min(r.emptyAt, s.slack))
}

// deliver makes a frame of the record of r. It reports false if the record is none.
func (s *Source) deliver(r *ring, f *source.Frame, b *source.Batch) bool {
	var e event
	frame, ok := e.parse(r.record)
	if !ok || r.wrongTime {
		s.malformed++
		return false
	}
	if e.ifindex != s.lastIndex || e.ifindex == 0 {
		l, ok := s.link(e.ifindex)
		if !ok {
			s.unknown += live.Segments(packet.LinkEthernet, frame, e.length, e.segment())
			return false
		}
		s.lastIndex, s.lastLink = e.ifindex, l
	}
	proto := e.vlanProto
	if s.lastLink.Type != packet.LinkEthernet {
		proto = 0 // there is no place for a tag
	}
	start := len(b.Buf)
	b.Buf = live.AppendFrame(b.Buf, frame, proto, e.vlanTCI)
	*f = source.Frame{
		Data:        b.Buf[start:len(b.Buf):len(b.Buf)],
		TimestampNs: int64(r.time) + s.offset,
		WireLen:     e.length + uint32(len(b.Buf)-start-len(frame)),
		LinkType:    s.lastLink.Type,
		SegmentSize: e.segment(),
		Interface:   s.lastLink.Interface,
		Side:        source.SideIn(s.lastLink.Interface),
	}
	if e.hook == hookEgress {
		f.Side = s.origin(e.from)
	}
	if s.dup != nil && s.dup.Duplicate(f.LinkType, f.Data, f.WireLen, f.SegmentSize, int64(r.time), e.ifindex*numHooks+uint32(e.hook)) {
		s.duplicate += live.Segments(f.LinkType, f.Data, f.WireLen, f.SegmentSize)
		b.Buf = b.Buf[:start]
		return false
	}
	if e.gsoSize == gsoByFrags {
		s.byFrags++
	}
	if r.time < s.newest {
		s.outOfOrder++
	} else {
		s.newest = r.time
	}
	return true
}

// origin returns the side of a frame that goes out.
func (s *Source) origin(from uint32) uint8 {
	if from == 0 {
		return source.SideOut
	}
	if l, ok := s.link(from); ok {
		return source.SideIn(l.Interface)
	}
	return source.SideOther
}

func (s *Source) link(ifindex uint32) (Link, bool) {
	if l, ok := s.links[ifindex]; ok {
		return l, true
	}
	l, ok := s.cfg.Links(int(ifindex))
	if !ok {
		return l, false
	}
	if len(s.links) >= maxLinks {
		clear(s.links) // indices of interfaces that came and went
	}
	s.links[ifindex] = l
	return l, true
}

// Stats implements source.Source.
func (s *Source) Stats() source.Stats {
	st := source.Stats{Frames: s.frames, Bytes: s.bytes, Dropped: make(map[string]uint64), Repaired: make(map[string]uint64)}
	if s.cfg.Dropped != nil {
		maps.Copy(st.Dropped, s.cfg.Dropped())
	}
	for _, c := range []struct {
		m    map[string]uint64
		name string
		n    uint64
	}{
		{st.Dropped, "duplicate", s.duplicate},
		{st.Dropped, "malformed", s.malformed},
		{st.Dropped, "unknown_interface", s.unknown},
		{st.Repaired, "gso_by_frags", s.byFrags},
		{st.Repaired, "out_of_order", s.outOfOrder},
	} {
		if c.n > 0 {
			c.m[c.name] += c.n
		}
	}
	return st
}

// Interrupt implements source.Source.
func (s *Source) Interrupt() { s.interrupted.Store(true) }

// Close unmaps the rings. Next returns io.EOF from then on.
func (s *Source) Close() (err error) {
	s.final = io.EOF
	s.heap = nil
	for i := range s.rings {
		err = errors.Join(err, s.rings[i].unmap())
	}
	s.rings = nil
	return err
}
