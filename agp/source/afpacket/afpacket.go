package afpacket

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/live"
)

const (
	defaultBatch     = 256
	defaultSnapLen   = 256
	defaultRingBytes = 8 << 20
	maxRings         = 4        // by default
	maxSnapLen       = 32 << 10 // what surely fits a block
	// hold is how long a frame waits for older ones of other rings: what is older lies in a
	// block that is handed over within twice the time that retireMs is with a timer of 100 Hz.
	hold = int64(25 * time.Millisecond)
	// maxSkip bounds the frames that one poll takes, in batches: most may be duplicates.
	maxSkip = 8
	// checkEvery is how often the interfaces are looked for.
	checkEvery = int64(100 * time.Millisecond)
)

// Config describes a Source.
type Config struct {
	Interfaces []string // names; source.Frame.Interface is the index
	SnapLen    int      // bytes of each frame that are delivered, 0 means 256
	Rings      int      // of each interface; 0 means one for each CPU, at most 4
	RingBytes  int      // of each ring, in units of 64 KiB; 0 means 8 MiB
	// Promiscuous makes the interfaces receive what is not addressed to them, as long as the
	// source is open.
	Promiscuous bool
	// Duplicates recognises frames that pass several interfaces, or the loopback
	// interface in both directions.
	Duplicates bool
	// Clock is the source's time; nil means the system's.
	Clock live.Clock
}

// Source reads the rings. See the package comment for who may call what.
type Source struct {
	cfg     Config
	clock   live.Clock
	devices []device
	rings   []ring
	dup     *live.Duplicates
	pace    live.Pace
	checkAt int64 // monotonic time of the next look for the interfaces
	newest  int64 // time of the youngest frame delivered
	final   error // what Next returns from now on

	frames, bytes         uint64
	duplicate, outOfOrder uint64
	malformed             uint64

	interrupted atomic.Bool
}

var _ source.Source = (*Source)(nil)

// Open starts to capture, in the network namespace of the calling thread.
func Open(cfg Config) (*Source, error) {
	if len(cfg.Interfaces) == 0 {
		return nil, fmt.Errorf("%w: none given", ErrNoInterface)
	}
	if cfg.SnapLen < 0 || cfg.SnapLen > maxSnapLen {
		return nil, fmt.Errorf("snap length %d: must be 1 to %d", cfg.SnapLen, maxSnapLen)
	}
	if cfg.SnapLen == 0 {
		cfg.SnapLen = defaultSnapLen
	}
	if cfg.Rings <= 0 {
		cfg.Rings = min(runtime.NumCPU(), maxRings)
	}
	if cfg.RingBytes <= 0 {
		cfg.RingBytes = defaultRingBytes
	}
	s := newSource(cfg)
	for i, name := range cfg.Interfaces {
		if err := s.add(uint32(i), name); err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("interface %q: %w", name, err)
		}
	}
	return s, nil
}

func newSource(cfg Config) *Source {
	if cfg.Clock == nil {
		cfg.Clock = live.System()
	}
	s := &Source{cfg: cfg, clock: cfg.Clock}
	if cfg.Duplicates {
		s.dup = live.NewDuplicates(cfg.SnapLen)
	}
	return s
}

// add opens the rings of one interface.
func (s *Source) add(i uint32, name string) error {
	first := len(s.rings)
	var d device
	for n := range s.cfg.Rings {
		fd, err := socket()
		if err != nil {
			return err
		}
		s.rings = append(s.rings, ring{fd: fd, iface: i})
		r := &s.rings[first+n]
		if n == 0 {
			if d, err = lookup(fd, name); err != nil {
				return err
			}
			s.devices = append(s.devices, d)
		}
		r.link = d.link
		if err := r.setup(&d, s.cfg.RingBytes, s.cfg.Promiscuous && n == 0); err != nil {
			return err
		}
	}
	if err := share(s.rings[first:]); err != nil {
		return err
	}
	for n := range s.rings[first:] {
		if err := filter(s.rings[first+n].fd, s.cfg.SnapLen); err != nil {
			return err
		}
	}
	return nil
}

// Next implements source.Source. It waits at most 50 ms.
func (s *Source) Next(b *source.Batch) (int, error) {
	if cap(b.Frames) == 0 {
		b.Frames = make([]source.Frame, 0, defaultBatch)
	}
	if need := cap(b.Frames) * (s.cfg.SnapLen + live.TagLen); cap(b.Buf) < need {
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
		n := s.poll(b, now)
		if now >= s.checkAt {
			s.checkAt = now + checkEvery
			s.check()
		}
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

// check ends the input, after what was read, when an interface is gone.
func (s *Source) check() {
	for i := range s.rings {
		r := &s.rings[i]
		if d := &s.devices[r.iface]; s.final == nil && !d.exists(r.fd) {
			s.final = fmt.Errorf("interface %q: %w", d.name, ErrGone)
		}
	}
}

// poll fills the batch with the oldest frames of all rings.
func (s *Source) poll(b *source.Batch, now int64) int {
	n, taken, frames, behind := 0, 0, b.Frames[:cap(b.Frames)], false
	for i := range s.rings {
		s.rings[i].look(now)
	}
	for n < len(frames) && taken < maxSkip*len(frames) {
		var first *ring
		quiet := false
		for i := range s.rings {
			r := &s.rings[i]
			switch {
			case !r.ready():
				quiet = true
			case first == nil || r.time < first.time:
				first = r
			}
		}
		if first == nil {
			break
		}
		behind = first.behind()
		if quiet && !behind && now-first.seen[first.next] < hold {
			break
		}
		if s.deliver(first, &frames[n], b) {
			n++
		}
		taken++
		first.stamp()
	}
	b.Frames = frames[:n]
	s.frames += uint64(n)
	s.bytes += uint64(len(b.Buf))
	s.pace.Polled(taken, len(frames), behind && taken > 0)
	return n
}

// deliver makes a frame of the one that r is at. It reports false if there is none to deliver.
func (s *Source) deliver(r *ring, f *source.Frame, b *source.Batch) bool {
	var in info
	at := r.time
	data, ok, lost := r.frame(s.cfg.SnapLen, &in)
	s.malformed += uint64(lost)
	if !ok {
		return false
	}
	if r.link != packet.LinkEthernet {
		in.tpid = 0 // there is no place for a tag
	}
	start := len(b.Buf)
	b.Buf = live.AppendFrame(b.Buf, data, in.tpid, in.tci)
	*f = source.Frame{
		Data:        b.Buf[start:len(b.Buf):len(b.Buf)],
		TimestampNs: at,
		WireLen:     in.length + uint32(len(b.Buf)-start-len(data)),
		LinkType:    r.link,
		SegmentSize: in.segment,
		Interface:   r.iface,
		Side:        source.SideIn(r.iface),
	}
	hook := 2 * r.iface
	if in.outgoing {
		f.Side = source.SideOut
		hook++
	}
	if s.dup != nil && s.dup.Duplicate(f.LinkType, f.Data, f.WireLen, f.SegmentSize, at, hook) {
		s.duplicate += live.Segments(f.LinkType, f.Data, f.WireLen, f.SegmentSize)
		b.Buf = b.Buf[:start]
		return false
	}
	if at < s.newest {
		s.outOfOrder++
	} else {
		s.newest = at
	}
	return true
}

// Stats implements source.Source.
func (s *Source) Stats() source.Stats {
	st := source.Stats{Frames: s.frames, Bytes: s.bytes, Dropped: make(map[string]uint64), Repaired: make(map[string]uint64)}
	var drops uint64
	for i := range s.rings {
		drops += s.rings[i].dropped()
	}
	for _, c := range []struct {
		m    map[string]uint64
		name string
		n    uint64
	}{
		{st.Dropped, "kernel_drop", drops},
		{st.Dropped, "duplicate", s.duplicate},
		{st.Dropped, "malformed", s.malformed},
		{st.Repaired, "out_of_order", s.outOfOrder},
	} {
		if c.n > 0 {
			c.m[c.name] = c.n
		}
	}
	return st
}

// Interrupt implements source.Source.
func (s *Source) Interrupt() { s.interrupted.Store(true) }

// Close closes the sockets. Next returns io.EOF from then on; Stats stays as it is.
func (s *Source) Close() (err error) {
	s.final = io.EOF
	for i := range s.rings {
		r := &s.rings[i]
		r.dropped()
		err = errors.Join(err, r.close())
	}
	return err
}
