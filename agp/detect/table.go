package detect

import (
	"math"
	"math/bits"
)

// ways is how many entries a bucket has; a subject's bucket follows from its hash.
const ways = 8

// entry is one subject of a table.
type entry[T any] struct {
	id     uint64 // keyed hash of the subject; 0: free
	startN int64  // opening of the window
	lastN  int64
	weight uint32 // what the rule counts; the smallest gives way
	v      T
}

// table is a set-associative table of fixed size.
type table[T any] struct {
	entries []entry[T]
	mask    uint64
	window  int64
	late    int64 // how much older than the window's opening an event may be
	evicted uint64
}

func newTable[T any](entries int, window, late int64) table[T] {
	return table[T]{entries: make([]entry[T], entries), mask: uint64(entries/ways - 1), window: window, late: late}
}

// find returns the subject's entry, if any.
func (t *table[T]) find(id uint64) *entry[T] {
	b := t.entries[id>>8&t.mask*ways:][:ways]
	for i := range b {
		if b[i].id == id {
			return &b[i]
		}
	}
	return nil
}

// at returns the subject's entry with a window that holds time now.
func (t *table[T]) at(id uint64, now int64) *entry[T] {
	b := t.entries[id>>8&t.mask*ways:][:ways]
	victim := &b[0]
	for i := range b {
		e := &b[i]
		if e.id == id {
			if now-e.startN >= t.window || e.startN-now > t.late {
				e.startN, e.weight = now, 0
				var zero T
				e.v = zero
			}
			e.lastN = max(e.lastN, now)
			return e
		}
		if t.cheaper(e, victim, now) {
			victim = e
		}
	}
	if victim.id != 0 {
		t.evicted++
	}
	*victim = entry[T]{id: id, startN: now, lastN: now}
	return victim
}

// cheaper says whether a gives way before b: free entries first, then those
// whose window has passed, then small counts, then the longest unused.
func (t *table[T]) cheaper(a, b *entry[T], now int64) bool {
	if a.id == 0 || b.id == 0 {
		return b.id != 0
	}
	pastA, pastB := now-a.lastN >= t.window, now-b.lastN >= t.window
	switch {
	case pastA != pastB:
		return pastA
	case a.weight != b.weight:
		return a.weight < b.weight
	}
	return a.lastN < b.lastN
}

// distinct counts different values by linear counting in 256 bits (Whang et
// al., TODS 1990): -256 ln(free/256), standard error below 7 % up to 150 values; it saturates at 1420.
type distinct [4]uint64

func (d *distinct) add(hash uint64) { d[hash>>62] |= 1 << (hash >> 56 & 63) }

func (d *distinct) count() float64 {
	n := 0
	for _, w := range d {
		n += bits.OnesCount64(w)
	}
	return linear[n]
}

// linear[n] is the linear-counting estimate for n of 256 bits set.
var linear = func() (out [257]float64) {
	for n := range 256 {
		out[n] = -256 * math.Log(float64(256-n)/256)
	}
	out[256] = 256 * math.Log(256)
	return out
}()
