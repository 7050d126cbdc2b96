package sketch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A decoder never panics, never allocates by what the input claims, and what it accepts it writes back the same.
func FuzzDecoders(f *testing.F) {
	for _, c := range codecs() {
		f.Add(must(c.full.MarshalBinary()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range codecs() {
			if c.twin.UnmarshalBinary(b) == nil {
				require.Equal(t, b, must(c.twin.MarshalBinary()))
			}
		}
	})
}

func FuzzHLLDecoder(f *testing.F) {
	s := must(NewHLL(4))
	f.Add(must(s.MarshalBinary()))
	f.Add([]byte{2, 1, 7, 12, 3, 8, 5, 8, 0xcb, 0xd7, 0xc2, 4, 0x2b, 0xf2, 0xfb, 6, 0x86, 0x2f, 0xf9, 0x0d, 0x75, 0x81, 0x66, 7, 0x81, 0xbc, 0x5d, 6})
	f.Add([]byte{3, 1, 7, 5, 5, 8, 0, 9, 1, 0, 0, 0, 0xcb, 0xd7, 0xc2, 4})
	for i := range uint64(200) {
		s.AddUint64(i)
	}
	f.Add(must(s.MarshalBinary()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s HLL
		if s.UnmarshalBinary(b) != nil {
			return
		}
		require.GreaterOrEqual(t, s.Estimate(), 0.0)
		var again HLL
		require.NoError(t, again.UnmarshalBinary(must(s.MarshalBinary())))
		require.Equal(t, s.reg, again.reg)
	})
}

func FuzzQuantilesDecoder(f *testing.F) {
	s := NewQuantiles()
	f.Add(must(s.MarshalBinary()))
	s.Add(3)
	s.Add(1e9)
	f.Add(must(s.MarshalBinary()))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewQuantiles()
		if s.UnmarshalBinary(b) != nil {
			return
		}
		again := NewQuantiles()
		require.NoError(t, again.UnmarshalBinary(must(s.MarshalBinary())))
		require.Equal(t, s.bins, again.bins)
		_, _ = s.Quantile(0.5)
	})
}
