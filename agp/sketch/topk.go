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
	entries []TopEntry // in no order, at most 2k but for a moment in a merge
	hashes  []uint32   // of the entries
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
		index: make([]topIndex, size), entries: make([]TopEntry, 0, 2*k), hashes: make([]uint32, 0, 2*k), scratch: make([]uint64, 0, 2*k),
	}, nil
}

// find returns the key's place in the index, or the free one where it belongs.
func (s *TopK) find(k *Key) (at *topIndex, hash uint32) {
	hash = s.hash(k)
	return s.seek(k, hash), hash
}

func (s *TopK) hash(k *Key) uint32 { return uint32(s.h.Bytes(k[:])) }

func (s *TopK) seek(k *Key, hash uint32) *topIndex {
	for i := hash & s.mask; ; i = (i + 1) & s.mask {
		at := &s.index[i]
		if at.entry == 0 || at.hash == hash && s.entries[at.entry-1].Key == *k {
			return at
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
	s.push(key, hash, weight)
	*at = topIndex{hash, uint32(len(s.entries))}
}

func (s *TopK) push(key *Key, hash uint32, weight uint64) {
	s.entries = append(s.entries, TopEntry{*key, weight})
	s.hashes = append(s.hashes, hash)
}

// place puts the entries from a number on into the index, where they are not.
func (s *TopK) place(from int) {
	for n := from; n < len(s.hashes); n++ {
		i := s.hashes[n] & s.mask
		for s.index[i].entry != 0 {
			i = (i + 1) & s.mask
		}
		s.index[i] = topIndex{s.hashes[n], uint32(n + 1)}
	}
}

// reduce leaves at most k counters.
func (s *TopK) reduce() {
	s.scratch = s.scratch[:0]
	for i := range s.entries {
		s.scratch = append(s.scratch, s.entries[i].Count)
	}
	cut := nthLargest(s.scratch, s.k)
	s.err += cut
	kept, hashes := s.entries[:0], s.hashes[:0]
	for i := range s.entries {
		if e := &s.entries[i]; e.Count > cut {
			kept, hashes = append(kept, TopEntry{e.Key, e.Count - cut}), append(hashes, s.hashes[i])
		}
	}
	s.entries, s.hashes = kept, hashes
	clear(s.index)
	s.place(0)
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
	own := len(s.entries)
	for i := range o.entries {
		s.join(&o.entries[i].Key, o.hashes[i], o.entries[i].Count)
	}
	s.joined(own, o.n, o.err)
	return nil
}

// join adds one of the counters of another sketch. Their keys differ, so that one which s does not
// have needs no place in the index before it is known to stay.
func (s *TopK) join(key *Key, hash uint32, weight uint64) {
	if at := s.seek(key, hash); at.entry != 0 {
		s.entries[at.entry-1].Count += weight
		return
	}
	s.push(key, hash, weight)
}

// joined ends a merge: all counters of both are there before the one reduction. own were those of s.
func (s *TopK) joined(own int, n, bound uint64) {
	if len(s.entries) > 2*s.k {
		s.reduce()
	} else {
		s.place(own)
	}
	s.n += n
	s.err += bound
}

// Reset forgets everything added.
func (s *TopK) Reset() {
	clear(s.index)
	s.entries, s.hashes = s.entries[:0], s.hashes[:0]
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
