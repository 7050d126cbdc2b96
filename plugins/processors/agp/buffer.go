package agp

import (
	"cmp"
	"slices"

	"github.com/agp-net/telegraf-agp/agp/flow"
)

// held is a flow that waits for its other direction. dir[0] is what endpoint A of the key sent.
type held struct {
	key       flow.Key
	seq       uint64 // of arrival
	dir       [2]direction
	first     uint8 // direction that came first
	initiator uint8 // direction, where the metric says so
	sampling  uint64
}

const unknown = 2 // initiator

// direction is what was metered of one direction; without packets there is none.
type direction struct {
	half
	start, end int64
	source     string
}

func (h *held) start() int64 { return extreme(&h.dir, func(d *direction) int64 { return d.start }, -1) }
func (h *held) end() int64   { return extreme(&h.dir, func(d *direction) int64 { return d.end }, 1) }

// extreme is the smaller or the greater reading of the directions that there are.
func extreme(dir *[2]direction, of func(*direction) int64, sign int) int64 {
	a, b := of(&dir[0]), of(&dir[1])
	switch {
	case dir[1].packets == 0:
		return a
	case dir[0].packets == 0 || cmp.Compare(b, a) == sign:
		return b
	}
	return a
}

// verdict says what became of a flow that was given to the buffer.
type verdict uint8

const (
	duplicate verdict = iota // all of it was reported before
	continued                // another part of a direction that waits
	paired                   // the other direction of one that waits
	fresh
)

// buffer keeps flows until both directions have come. A flow waits in the young half until the
// next turn, then in the old one until the turn after that, and is released. Memory is bounded:
// each half has at most limit/2 flows, a full one is turned early.
//
// A direction is a duplicate of one that waits if it has the same times, packets and bytes, or if
// another exporter reports the same addresses and ports for overlapping times: two routers on
// one path. What the same exporter reports beside is the same flow going on, and added.
type buffer struct {
	young, old map[flow.Key]*held
	limit      int
	seq        uint64
}

func newBuffer(limit int) *buffer {
	return &buffer{young: map[flow.Key]*held{}, old: map[flow.Key]*held{}, limit: limit}
}

func (b *buffer) len() int { return len(b.young) + len(b.old) }

func (b *buffer) full() bool { return len(b.young) >= b.limit/2 }

// add takes a flow. The young half must have room.
func (b *buffer) add(s *seen) verdict {
	k, fromB := s.key()
	at := uint8(0)
	if fromB {
		at = 1
	}
	h := b.young[k]
	if h == nil {
		h = b.old[k]
	}
	v := duplicate
	if h == nil {
		b.seq++
		h = &held{key: k, seq: b.seq, first: at, initiator: unknown, sampling: s.sampling}
		b.young[k] = h
		v = fresh
	}
	if s.both {
		h.initiator = at
	}
	for i := range s.dir {
		if s.dir[i].packets > 0 {
			d := direction{s.dir[i], s.start, s.end, s.source}
			v = max(v, h.dir[at^uint8(i)].take(&d))
		}
	}
	return v
}

// take adds what was metered of one direction.
func (d *direction) take(o *direction) verdict {
	switch {
	case d.packets == 0:
		*d = *o
		return paired
	case d.start == o.start && d.end == o.end && d.packets == o.packets && d.bytes == o.bytes,
		d.source != o.source && d.start <= o.end && o.start <= d.end:
		return duplicate
	}
	d.packets += o.packets
	d.bytes += o.bytes
	d.flags |= o.flags
	d.hasFlags = d.hasFlags || o.hasFlags
	d.start, d.end = min(d.start, o.start), max(d.end, o.end)
	return continued
}

// turn makes the young half the old one and returns the flows that were in the old one, by
// their start.
func (b *buffer) turn() []*held {
	out := make([]*held, 0, len(b.old))
	for _, h := range b.old {
		out = append(out, h)
	}
	clear(b.old)
	b.young, b.old = b.old, b.young
	slices.SortFunc(out, func(x, y *held) int {
		return cmp.Or(cmp.Compare(x.start(), y.start()), cmp.Compare(x.seq, y.seq))
	})
	return out
}
