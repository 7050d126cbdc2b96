package mirror

// stamp reads the time of the record at the position of the ring. A record that has
// none, or one that cannot be, is taken at once, and deliver counts it.
func (r *ring) stamp(now uint64) {
	r.wrongTime = len(r.record) < eventSize
	if !r.wrongTime {
		r.time = eventTime(r.record)
		r.wrongTime = r.time > now+maxAhead
	}
	if r.wrongTime {
		r.time = r.last
	}
}

// push adds a ring that has a record.
func (s *Source) push(r *ring, now uint64) {
	r.stamp(now)
	s.heap = append(s.heap, r)
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if s.heap[up].time <= s.heap[i].time {
			return
		}
		s.heap[up], s.heap[i] = s.heap[i], s.heap[up]
		i = up
	}
}

// pop removes the first ring.
func (s *Source) pop() {
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	s.down()
}

// down restores the order after the record of the first ring changed.
func (s *Source) down() {
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(s.heap) {
			return
		}
		if c+1 < len(s.heap) && s.heap[c+1].time < s.heap[c].time {
			c++
		}
		if s.heap[i].time <= s.heap[c].time {
			return
		}
		s.heap[i], s.heap[c] = s.heap[c], s.heap[i]
		i = c
	}
}
