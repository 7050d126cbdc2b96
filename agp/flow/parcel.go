package flow

import (
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/model"
)

// Buckets is into how many ranges the hash space is cut; flows of one range are
// always in one table and go to another together.
const Buckets = 256

// BucketSet is a set of buckets.
type BucketSet [Buckets / 64]uint64

// Add puts a bucket into the set.
func (s *BucketSet) Add(bucket int) { s[bucket/64] |= 1 << (bucket % 64) }

// Has reports whether a bucket is in the set.
func (s *BucketSet) Has(bucket int) bool { return s[bucket/64]>>(bucket%64)&1 == 1 }

// Len returns the number of buckets in the set.
func (s *BucketSet) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// BucketOf returns the range that a hash belongs to.
func BucketOf(hash uint64) int { return int(hash >> 56) }

// Parcel holds flows on their way from one table to another.
type Parcel struct {
	flows []state // histRef and headRef count within the parcel
	small []smallHist
	large []largeHist
	heads []model.Head
}

// Len returns the number of flows.
func (p *Parcel) Len() int { return len(p.flows) }

// Take removes all flows of some buckets, without records, to be given to another table
// whose clock (Tick) stands at the same time. It looks at the whole index.
func (t *Table) Take(buckets *BucketSet) *Parcel {
	var refs []uint32
	for _, s := range t.slots {
		if s.ref != none && buckets.Has(BucketOf(t.flows.at(s.ref).hash)) {
			refs = append(refs, s.ref)
		}
	}
	p := &Parcel{flows: make([]state, 0, len(refs))}
	for _, ref := range refs {
		f := t.flows.at(ref)
		c := *f // with the wheel slot, where the other table takes it up
		t.unschedule(ref, f)
		switch c.tier {
		case tierSmall:
			c.histRef = uint32(len(p.small))
			p.small = append(p.small, *t.small.at(f.histRef))
		case tierLarge:
			c.histRef = uint32(len(p.large))
			p.large = append(p.large, *t.large.at(f.histRef))
		}
		if c.headRef != none {
			c.headRef = uint32(len(p.heads))
			p.heads = append(p.heads, *t.heads.at(f.headRef))
		}
		p.flows = append(p.flows, c)
		t.releaseHist(f)
		t.remove(ref, f)
	}
	return p
}

// Give adds the flows of a parcel. If there is no room, others are evicted.
func (t *Table) Give(p *Parcel) {
	for i := range p.flows {
		c := &p.flows[i]
		ref := t.insert(uint32(c.hash))
		f := t.flows.at(ref)
		*f = *c
		switch c.tier {
		case tierSmall:
			f.histRef = t.small.take()
			*t.small.at(f.histRef) = p.small[c.histRef]
		case tierLarge:
			f.histRef = t.large.take()
			*t.large.at(f.histRef) = p.large[c.histRef]
		}
		if c.headRef != none {
			f.headRef = t.heads.take()
			*t.heads.at(f.headRef) = p.heads[c.headRef]
		}
		t.link(ref, f, c.wheel)
	}
}
