package detect

import (
	"math"
	"math/bits"
)

// ways is how many subjects a bucket holds; a subject's bucket follows from its hash.
const ways = 8

// bucket keeps each property of its subjects together, so that a search reads one cache line.
type bucket[T any] struct {
	id     [ways]uint64 // keyed hash of the subject; 0: free
	last   [ways]int64  // latest event
	start  [ways]int64  // opening of the window
	weight [ways]uint32 // what the rule counts; the smallest gives way
	v      [ways]T
}

// table is a set-associative table of fixed size.
type table[T any] struct {
	buckets []bucket[T]
	mask    uint64
	window  int64
	late    int64 // how much older than the window's opening an event may be
	evicted uint64
}

func newTable[T any](subjects int, window, late int64) table[T] {
	n := subjects / ways
	return table[T]{buckets: make([]bucket[T], n), mask: uint64(n - 1), window: window, late: late}
}

// find returns the subject's place, if any.
func (t *table[T]) find(id uint64) (b *bucket[T], i int, ok bool) {
	b = &t.buckets[id>>8&t.mask]
	for i, v := range b.id {
		if v == id {
			return b, i, true
		}
	}
	return b, 0, false
}

// at returns the subject's place with a window that holds time now; a value of an earlier
// window is gone.
func (t *table[T]) at(id uint64, now int64) (b *bucket[T], i int) {
	b, i, _ = t.roll(id, now)
	return b, i
}

// roll is at, and hands out the value of the window that it closed.
func (t *table[T]) roll(id uint64, now int64) (b *bucket[T], i int, old T) {
	b, i, ok := t.find(id)
	switch {
	case !ok:
		i = t.cheapest(b, now)
		if b.id[i] != 0 {
			t.evicted++
		}
		b.id[i], b.last[i] = id, now
	case now-b.start[i] < t.window && b.start[i]-now <= t.late:
		b.last[i] = max(b.last[i], now)
		return b, i, old
	default:
		old = b.v[i]
		b.last[i] = max(b.last[i], now)
	}
	var zero T
	b.start[i], b.weight[i], b.v[i] = now, 0, zero
	return b, i, old
}

// cheapest returns which subject gives way: free places first, then those whose
// window has passed, then small counts, then the longest unused.
func (t *table[T]) cheapest(b *bucket[T], now int64) int {
	best := 0
	for i := range ways {
		if b.id[i] == 0 {
			return i
		}
		past, pastBest := now-b.last[i] >= t.window, now-b.last[best] >= t.window
		if past != pastBest {
			if past {
				best = i
			}
			continue
		}
		if b.weight[i] < b.weight[best] || b.weight[i] == b.weight[best] && b.last[i] < b.last[best] {
			best = i
		}
	}
	return best
}

// distinct counts different values by linear counting in 256 bits (Whang et al., TODS
// 1990): -256 ln(free/256), standard error below 7 % up to 150 values; it saturates at
// 1420.
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
