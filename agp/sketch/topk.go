package sketch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// Key identifies one counted thing: an address, a flow key, a port; the caller
// lays it out and pads with zeros.
type Key [40]byte

// TopK finds the keys with the largest sums of weights.
//
// It is Misra-Gries with batched reduction: up to 2k counters; when they are full, the
// (k+1)-th largest count is subtracted from all and what falls to zero is dropped. With N
// the sum of all weights, a reported count is at most the truth and less by at most
// Error() <= N / (k+1): each reduction by c takes c from at least k+1 counters. So every
// key with more than N/(k+1) is present, and no order of arrival can hide one (Misra and
// Gries 1982; merge: Agarwal et al., "Mergeable summaries", PODS 2012, theorem 1: the
// bound holds for the merged N). Add is O(1) amortised, and the result does not depend on
// the hash key.
type TopK struct {
	h       Hasher
	k       int
	n       uint64
	err     uint64
	mask    uint32
	index   []topIndex // open addressing, linear probing, at most half full
	entries []TopEntry // in no order, at most 2k
	scratch []uint64
}

// topIndex is small, so that a search stays in the cache where keys would not.
type topIndex struct {
	hash  uint32
	entry uint32 // number in entries + 1; 0: free
}

// TopEntry is one heavy hitter: Count <= truth <= Count + Error().
type TopEntry struct {
	Key   Key
	Count uint64
}

// NewTopK makes a sketch that reports up to k keys, k from 1 to 2^20.
func NewTopK(k int, key [16]byte) (*TopK, error) {
	if k < 1 || k > 1<<20 {
		return nil, fmt.Errorf("%w: k %d, want 1 to 2^20", ErrParam, k)
	}
	size := 4
	for size < 4*k {
		size *= 2
	}
	return &TopK{
		h: NewHasher(key), k: k, mask: uint32(size - 1),
		index: make([]topIndex, size), entries: make([]TopEntry, 0, 2*k), scratch: make([]uint64, 0, 2*k),
	}, nil
}

// find returns the key's place in the index, or the free one where it belongs.
func (s *TopK) find(k *Key) (at *topIndex, hash uint32) {
	hash = uint32(s.h.Bytes(k[:]))
	for i := hash & s.mask; ; i = (i + 1) & s.mask {
		at = &s.index[i]
		if at.entry == 0 || at.hash == hash && s.entries[at.entry-1].Key == *k {
			return at, hash
		}
	}
}

// Add counts weight for key.
func (s *TopK) Add(key *Key, weight uint64) {
	if weight == 0 {
		return
	}
	s.n += weight
	s.add(key, weight)
}

func (s *TopK) add(key *Key, weight uint64) {
	at, hash := s.find(key)
	if at.entry != 0 {
		s.entries[at.entry-1].Count += weight
		return
	}
	if len(s.entries) == 2*s.k {
		s.reduce()
		at, hash = s.find(key)
	}
	s.entries = append(s.entries, TopEntry{*key, weight})
	*at = topIndex{hash, uint32(len(s.entries))}
}

// reduce leaves at most k counters.
func (s *TopK) reduce() {
	s.scratch = s.scratch[:0]
	for i := range s.entries {
		s.scratch = append(s.scratch, s.entries[i].Count)
	}
	cut := nthLargest(s.scratch, s.k)
	s.err += cut
	kept := s.entries[:0]
	for i := range s.entries {
		if e := &s.entries[i]; e.Count > cut {
			kept = append(kept, TopEntry{e.Key, e.Count - cut})
		}
	}
	s.entries = kept
	clear(s.index)
	for i := range s.entries {
		at, hash := s.find(&s.entries[i].Key)
		*at = topIndex{hash, uint32(i + 1)}
	}
}

// nthLargest returns the element that has n elements before it in descending order; it reorders v.
func nthLargest(v []uint64, n int) uint64 {
	for {
		// Median of three, so that sorted input is not the worst case.
		a, b, c := v[0], v[len(v)/2], v[len(v)-1]
		p := max(min(a, b), min(max(a, b), c))
		lo, i, hi := 0, 0, len(v)
		for i < hi {
			switch {
			case v[i] > p:
				v[i], v[lo] = v[lo], v[i]
				lo++
				i++
			case v[i] < p:
				hi--
				v[i], v[hi] = v[hi], v[i]
			default:
				i++
			}
		}
		switch {
		case n < lo:
			v = v[:lo]
		case n < hi:
			return p
		default:
			v, n = v[hi:], n-hi
		}
	}
}

// Count returns the lower bound of a key's sum; 0 if it is not kept.
func (s *TopK) Count(key *Key) uint64 {
	if at, _ := s.find(key); at.entry != 0 {
		return s.entries[at.entry-1].Count
	}
	return 0
}

// Total returns the sum of all weights.
func (s *TopK) Total() uint64 { return s.n }

// Error returns what any count may be short of, at most Total/(k+1).
func (s *TopK) Error() uint64 { return s.err }

// Top appends up to n entries to dst, largest count first, equal counts by key.
func (s *TopK) Top(dst []TopEntry, n int) []TopEntry {
	from := len(dst)
	dst = append(dst, s.entries...)
	part := dst[from:]
	slices.SortFunc(part, func(a, b TopEntry) int {
		if a.Count != b.Count {
			if a.Count > b.Count {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.Key[:], b.Key[:])
	})
	return dst[:from+max(0, min(n, s.k, len(part)))]
}

// Merge adds o to s.
func (s *TopK) Merge(o *TopK) error {
	if s.k != o.k || s.h != o.h {
		return fmt.Errorf("%w: top-k", ErrMismatch)
	}
	// All counters of both are added before the one reduction that the bound
	// allows: first make room by a table that holds both.
	sum := make(map[Key]uint64, len(s.entries)+len(o.entries))
	for _, t := range [2]*TopK{s, o} {
		for i := range t.entries {
			sum[t.entries[i].Key] += t.entries[i].Count
		}
	}
	var cut uint64
	if len(sum) > 2*s.k {
		counts := make([]uint64, 0, len(sum))
		for _, c := range sum {
			counts = append(counts, c)
		}
		cut = nthLargest(counts, s.k)
	}
	n, e := s.n+o.n, s.err+o.err+cut
	s.Reset()
	for k, c := range sum {
		if c > cut {
			s.add(&k, c-cut)
		}
	}
	s.n, s.err = n, e
	return nil
}

// Reset forgets everything added.
func (s *TopK) Reset() {
	clear(s.index)
	s.entries = s.entries[:0]
	s.n, s.err = 0, 0
}

// MarshalBinary implements encoding.BinaryMarshaler; entries are in key order.
func (s *TopK) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, wireHeader+40+48*len(s.entries))
	b = writeHeader(b, 'T')
	for _, v := range []uint64{uint64(s.k), s.h.fingerprint(), s.n, s.err, uint64(len(s.entries))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	all := slices.Clone(s.entries)
	slices.SortFunc(all, func(a, b TopEntry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	for i := range all {
		b = append(b, all[i].Key[:]...)
		b = binary.LittleEndian.AppendUint64(b, all[i].Count)
	}
	return b, nil
}

// UnmarshalBinary replaces the content of s, which must have been made with the same k and key.
func (s *TopK) UnmarshalBinary(b []byte) error {
	r := newReader(b, 'T')
	r.expect("k", uint64(s.k))
	r.expect("key fingerprint", s.h.fingerprint())
	n, e, used := r.u64(), r.u64(), r.u64()
	if r.err == nil && used > uint64(2*s.k) {
		return fmt.Errorf("%w: %d entries, at most %d", ErrFormat, used, 2*s.k)
	}
	r.exactly(int(used) * 48)
	if r.err != nil {
		return r.err
	}
	// Check everything before the first change.
	for i := 0; i < int(used); i++ {
		entry := r.b[48*i:]
		if binary.LittleEndian.Uint64(entry[40:]) == 0 {
			return fmt.Errorf("%w: entry without count", ErrFormat)
		}
		if i > 0 && bytes.Compare(r.b[48*(i-1):48*(i-1)+40], entry[:40]) >= 0 {
			return fmt.Errorf("%w: entries out of order", ErrFormat)
		}
	}
	s.Reset()
	for ; len(r.b) > 0; r.b = r.b[48:] {
		s.add((*Key)(r.b[:40]), binary.LittleEndian.Uint64(r.b[40:]))
	}
	s.n, s.err = n, e
	return nil
}
