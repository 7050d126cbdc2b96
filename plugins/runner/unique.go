package runner

// uniqueWindow is how many points each of the two generations remembers.
const uniqueWindow = 1 << 17

// unique finds a free time for every point, so that no two points of a series
// share one. It remembers the last uniqueWindow to 2*uniqueWindow points; memory
// is bounded by that. It keys on a 64-bit fingerprint of series and time: two
// different points with the same fingerprint cost a needless nanosecond, never a
// lost point. It is not safe for concurrent use; the queue's lock guards it.
type unique struct {
	// The value is the distance to the first time after the key's that may be
	// free, so that n equal points cost n steps and not n*n/2.
	current, previous map[uint64]int64
	window            int
}

func newUnique(window int) *unique {
	return &unique{current: map[uint64]int64{}, previous: map[uint64]int64{}, window: window}
}

// claim returns the first time not before ns that the series has not used.
func (u *unique) claim(series uint64, ns int64) int64 {
	t := ns
	for {
		next, used := u.lookup(fingerprint(series, t))
		if !used {
			break
		}
		t += next
	}
	// Shorten the way for those that come after.
	for at := ns; at < t; {
		fp := fingerprint(series, at)
		next, used := u.lookup(fp)
		if !used {
			break // forgotten meanwhile
		}
		u.store(fp, t-at+1)
		at += next
	}
	u.store(fingerprint(series, t), 1)
	return t
}

func (u *unique) lookup(fp uint64) (int64, bool) {
	if next, ok := u.current[fp]; ok {
		return next, true
	}
	next, ok := u.previous[fp]
	return next, ok
}

func (u *unique) store(fp uint64, next int64) {
	if len(u.current) >= u.window {
		u.previous, u.current = u.current, u.previous
		clear(u.current)
	}
	u.current[fp] = next
}

// fingerprint mixes time into the series hash (the finalizer of SplitMix64,
// because consecutive times must not give neighbouring keys).
func fingerprint(series uint64, ns int64) uint64 {
	x := series ^ uint64(ns)*0x9e3779b97f4a7c15
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
