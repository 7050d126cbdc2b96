package hugepage

import "testing"

// TestAdviseTakesAnySlice: short, empty and unaligned memory is left alone, long memory stays usable.
func TestAdviseTakesAnySlice(t *testing.T) {
	for _, n := range []int{0, 1, 4096, Size, 2*Size + 12345, 16 * Size} {
		s := make([]byte, n)
		Advise(s)
		for i := range s {
			s[i]++
		}
		for i := range s {
			if s[i] != 1 {
				t.Fatalf("byte %d of %d is %d", i, n, s[i])
			}
		}
	}
}
