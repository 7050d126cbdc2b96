package engine

import (
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// skipper leaves out the first frames of a source, which an engine before this
// one has accounted for. What the source could not deliver among them is not
// counted a second time.
type skipper struct {
	source.Source
	left  uint64
	clock *skipClock
	base  source.Stats
}

// Next implements source.Source.
func (s *skipper) Next(b *source.Batch) (int, error) {
	for s.left > 0 {
		n, err := s.Source.Next(b)
		if err != nil {
			s.done()
			return 0, err
		}
		if uint64(n) < s.left {
			s.left -= uint64(n)
			continue
		}
		skip := int(s.left)
		s.done()
		if skip < n {
			// The batch keeps its buffer; only the order of its frames changes.
			copy(b.Frames, b.Frames[skip:n])
			return n - skip, nil
		}
	}
	return s.Source.Next(b)
}

func (s *skipper) done() {
	s.left = 0
	s.base = s.Source.Stats()
	s.clock.arrive()
}

// Stats implements source.Source.
func (s *skipper) Stats() source.Stats {
	st := s.Source.Stats()
	if s.left > 0 {
		return source.Stats{Offset: st.Offset, Size: st.Size}
	}
	st.Frames -= s.base.Frames
	st.Bytes -= s.base.Bytes
	for reason, n := range s.base.Dropped {
		st.Dropped[reason] -= n
	}
	return st
}

// skipClock paces a capture. While frames are skipped it runs ahead instead of
// waiting, so that the pace goes on where the skipped part ends.
type skipClock struct {
	mu     sync.Mutex
	ahead  time.Duration
	moving bool
}

func newSkipClock(skipping bool) *skipClock { return &skipClock{moving: skipping} }

func (c *skipClock) arrive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moving = false
}

// Now implements pcap.Clock.
func (c *skipClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// Wait implements pcap.Clock.
func (c *skipClock) Wait(d time.Duration, wake <-chan struct{}) {
	c.mu.Lock()
	if c.moving {
		c.ahead += d
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	}
}
