package detect

import "math/bits"

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
	victim := 0
	var least uint64 = 1<<64 - 1
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
		// Free entries first, then those whose window has passed, then small ones.
		rank := uint64(e.weight) + 1<<32
		switch {
		case e.id == 0:
			rank = 0
		case now-e.lastN >= t.window:
			rank -= 1 << 32
			rank++
		}
		if rank < least {
			least, victim = rank, i
		}
	}
	e := &b[victim]
	if e.id != 0 {
		t.evicted++
	}
	*e = entry[T]{id: id, startN: now, lastN: now}
	return e
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
