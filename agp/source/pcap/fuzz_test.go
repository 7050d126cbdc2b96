package pcap

import (
	"bytes"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// FuzzReader reads anything as pcap, pcapng or gzip of either: nothing panics, all
// ends, frames are within bounds, and neither batches nor chunks change the result.
func FuzzReader(f *testing.F) {
	for _, c := range badInput() {
		if len(c.content) < 1<<16 {
			f.Add(c.content)
		}
	}
	for magic := range map[uint32]bool{magicMicro: true, magicNano: true, magicModified: true} {
		for _, o := range orders {
			f.Add(classicBytes(o, magic, 1, rec{1, 2, "abc", 0}, rec{3, 4, "defg", 9}))
		}
	}
	for _, o := range orders {
		f.Add((&ng{o: o}).section().iface(1, 0, "eth0", 9, 100).enhanced(0, 1<<40, "abc", 0).obsolete(0, 7, "de").simple(3, "fgh").block(99, 1).b)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		read := func(r *Reader, batch int) ([]source.Frame, string, source.Stats) {
			got, err := collect(t, r, batch)
			require.Error(t, err)
			return got, err.Error(), r.Stats()
		}
		r := memory(content)
		want, end, stats := read(r, 256)
		ifaces := uint32(len(r.Interfaces()))
		for _, fr := range want {
			if len(fr.Data) > maxFrame || uint64(fr.WireLen) < uint64(len(fr.Data)) || fr.Interface >= ifaces {
				t.Fatalf("frame out of bounds: %d of %d bytes, interface %d of %d", len(fr.Data), fr.WireLen, fr.Interface, ifaces)
			}
		}
		for _, batch := range []int{1, 5} {
			got, gotEnd, gotStats := read(readerOf(iotest.HalfReader(bytes.NewReader(content))), batch)
			require.Equal(t, briefs(want), briefs(got))
			require.Equal(t, end, gotEnd)
			require.Equal(t, stats.Dropped, gotStats.Dropped)
		}
	})
}
