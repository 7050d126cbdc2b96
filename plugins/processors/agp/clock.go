package agp

import "time"

// An exporter's clock is taken as it is while it is this far from the time at which telegraf got
// the metric; beyond, and if it counts from the exporter's start, it is shifted.
const (
	behind = int64(time.Hour) // flows are reported when they have ended, or go on for long
	ahead  = int64(time.Minute)
)

// maxClocks bounds the exporters whose clocks are kept; all others share one.
const maxClocks = 1024

// clocks brings times of exporters to one time axis. A clock is shifted by what makes the first flow
// of an exporter end when it came, and again when that is an hour off: the exporter has started
// again, or its clock was set.
type clocks struct {
	offset map[string]int64
	steps  uint64
}

func newClocks() clocks { return clocks{offset: map[string]int64{}} }

func (c *clocks) set(s *seen, came int64) {
	if d := s.end - came; !s.relative && d >= -behind && d <= ahead {
		return
	}
	source := s.source
	offset, ok := c.offset[source]
	if !ok && len(c.offset) >= maxClocks {
		source = ""
		offset, ok = c.offset[source]
	}
	if d := s.end + offset - came; !ok || d < -behind || d > behind {
		if ok {
			c.steps++
		}
		offset = came - s.end
		c.offset[source] = offset
	}
	s.start += offset
	s.end += offset
}
