package mirror

import (
	"testing"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// FuzzRing: whatever lies in the memory of two rings and in their positions, reading does not
// panic, does not hang, and delivers frames that lie within their bounds.
func FuzzRing(f *testing.F) {
	good := newFakeRing(4096)
	for i := range 5 {
		good.write(rec{ns: start + uint64(i), frame: frame(i, 100*i), gso: 300, tag: 0x8100}.bytes())
	}
	f.Add(good.data[:good.producer], uint64(0), uint64(good.producer), true)
	f.Add(good.data[:good.producer], uint64(8), uint64(4096), false)
	bad := rec{ns: 1 << 60, frame: frame(1, 50), ifindex: 8, hook: 7}.bytes()
	f.Add(append([]byte{44, 0, 0, 0x40, 0, 0, 0, 0}, bad...), uint64(1<<64-4096), uint64(0), true)
	f.Fuzz(func(t *testing.T, data []byte, consumer, producer uint64, duplicates bool) {
		s, rings, _ := open(2, Config{Duplicates: duplicates})
		r := rings[0]
		if len(data) > r.size() {
			data = data[:r.size()]
		}
		r.put(uintptr(consumer), data)
		r.consumer, r.producer = uintptr(consumer), uintptr(producer)
		s.rings[0] = r.ring()
		var e event
		if frame, ok := e.parse(data); ok && (len(frame) > maxCap || uint32(len(frame)) > e.length) {
			t.Fatal("a frame longer than it is")
		}
		b := source.Batch{Frames: make([]source.Frame, 0, 8)}
		for range 2 * r.size() / recordHeader {
			n, err := s.Next(&b)
			if err != nil {
				return
			}
			if n == 0 {
				return // all is read, or an unfinished record is never finished
			}
			for _, fr := range b.Frames {
				if int(fr.WireLen) < len(fr.Data) || len(fr.Data) == 0 || len(fr.Data) > maxCap+4 {
					t.Fatalf("%d bytes of %d", len(fr.Data), fr.WireLen)
				}
			}
		}
		t.Fatal("more frames than there is memory for")
	})
}
