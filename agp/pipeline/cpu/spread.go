package cpu

import (
	"github.com/agp-net/telegraf-agp/agp/flow"
)

// spread says which worker owns which bucket of flows. It belongs to the dispatcher.
// A bucket changes its owner between two batches, with its flows, so that records do
// not depend on it.
type spread struct {
	owner [flow.Buckets]uint16
	load  [flow.Buckets]uint64 // packets since the last look
	n     int
	skew  float64 // of the last look
	due   bool    // a look is due
}

// move hands the flows of some buckets to another worker. The old owner sends
// the parcel before, the new one takes it before their first packet of the batch.
type move struct {
	buckets  flow.BucketSet
	from, to int
	parcel   chan *flow.Parcel
}

// packetsPerLook is how many packets it takes to judge; fewer say nothing.
const packetsPerLook = 1000

func (s *spread) init(n int) {
	s.n = n
	for b := range s.owner {
		s.owner[b] = uint16(flow.QueueOf(b, n))
	}
}

// queue returns the owner of a packet's flow and counts the packet.
func (s *spread) queue(hash uint64) int {
	b := flow.BucketOf(hash)
	s.load[b]++
	return int(s.owner[b])
}

// move makes another worker the owner of a bucket and adds that to the moves, of which there is
// one for two workers: each costs a walk through a table.
func (s *spread) move(moves []move, bucket, to int) []move {
	from := int(s.owner[bucket])
	s.owner[bucket] = uint16(to)
	for i := range moves {
		if m := &moves[i]; m.from == from && m.to == to {
			m.buckets.Add(bucket)
			return moves
		}
	}
	m := move{from: from, to: to, parcel: make(chan *flow.Parcel, 1)}
	m.buckets.Add(bucket)
	return append(moves, m)
}

// plan measures the skew and, if it is above limit (0: no limit), moves buckets from the
// busiest to the idlest worker as long as that makes the busiest less busy. One flow that
// is a bucket's whole load stays where it is: nothing would be won.
func (s *spread) plan(limit float64) (moves []move) {
	s.due = false
	var total uint64
	var gone [flow.Buckets]bool
	queues := make([]uint64, s.n)
	for b, l := range s.load {
		queues[s.owner[b]] += l
		total += l
	}
	defer func() { s.load = [flow.Buckets]uint64{} }()
	if total < packetsPerLook {
		return nil
	}
	mean := float64(total) / float64(s.n)
	for look := range flow.Buckets {
		hi, lo := 0, 0
		for q, l := range queues {
			if l > queues[hi] {
				hi = q
			}
			if l < queues[lo] {
				lo = q
			}
		}
		if look == 0 {
			s.skew = float64(queues[hi]) / mean
		}
		if limit <= 0 || float64(queues[hi]) <= limit*mean {
			break
		}
		best, gap := -1, queues[hi]-queues[lo]
		for b, l := range s.load {
			if int(s.owner[b]) != hi || l == 0 || l >= gap || gone[b] {
				continue // afterwards the other would be as busy; a bucket moves once a look
			}
			if best < 0 || distance(l, gap/2) < distance(s.load[best], gap/2) {
				best = b
			}
		}
		if best < 0 {
			break
		}
		queues[hi] -= s.load[best]
		queues[lo] += s.load[best]
		gone[best] = true
		moves = s.move(moves, best, lo)
	}
	return moves
}

func distance(a, b uint64) uint64 {
	if a > b {
		return a - b
	}
	return b - a
}

// exchange hands buckets over. All that go are sent before one that comes is waited
// for, so that two workers never wait for each other.
func (w *worker) exchange(moves []move) {
	for i := range moves {
		if m := &moves[i]; m.from == w.id {
			m.parcel <- w.table.Take(&m.buckets)
		}
	}
	for i := range moves {
		if m := &moves[i]; m.to == w.id {
			w.mu.Unlock()
			p := <-m.parcel
			w.mu.Lock()
			w.table.Give(p)
		}
	}
}
