package afxdp

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// cabled returns the interfaces that AGP_TEST_ZEROCOPY names: four, of which the first
// is wired to the second and the third to the fourth, and whose driver has zero-copy.
// No software device has it; virtio_net of Linux 6.12 and later in a virtual machine
// does (iommu_platform=on).
func cabled(t *testing.T) []string {
	names := strings.Split(os.Getenv("AGP_TEST_ZEROCOPY"), ",")
	if len(names) != 4 {
		t.Skip("AGP_TEST_ZEROCOPY does not name four interfaces")
	}
	for _, name := range names {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.SetPromiscOn(l))
		require.NoError(t, netlink.LinkSetUp(l))
	}
	return names
}

// settle sends until a frame arrives: a device that was reset learns a little later
// that it has a link.
func settle(t *testing.T, s *Source, out *sender) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		_ = unix.Send(out.fd, testFrame(1<<20, 100), 0)
		n, err := s.Next(new(source.Batch))
		require.NoError(t, err)
		if n > 0 {
			return
		}
		require.False(t, time.Now().After(deadline), "nothing arrives: %+v", s.Stats())
	}
}

func TestZeroCopyReceivesWhatIsSent(t *testing.T) {
	names := cabled(t)
	for _, timestamps := range []bool{false, true} {
		for _, mode := range []Mode{ModeCopy, ModeZeroCopy} {
			t.Run(fmt.Sprintf("%v, timestamps %v", mode, timestamps), func(t *testing.T) {
				m := newMap(t, 64)
				redirect(t, names[1], m, program{stamp: timestamps})
				s := open(t, Config{Port: Port{Interface: names[1], Map: m}, Mode: mode, RingSize: 256, Timestamps: timestamps})
				for _, st := range s.Status() {
					require.Equal(t, mode, st.Mode)
					t.Logf("%+v", st)
				}
				out := newSender(t, names[0])
				settle(t, s, out)
				b := source.Batch{Frames: make([]source.Frame, 0, 64)}
				seq := 0
				for range 500 { // many times round the rings
					want := make(map[int][]byte)
					for range 16 {
						want[seq] = testFrame(seq, 60+seq*37%1455)
						out.send(want[seq])
						seq++
					}
					collect(t, s, &b, 16, func(f source.Frame) {
						require.Equal(t, want[seqOf(f)], f.Data)
						delete(want, seqOf(f))
					})
					require.Empty(t, want)
				}
				require.Empty(t, s.Stats().Dropped)
				t.Log(s.Timed(), "frames had a time")
			})
		}
	}
}

func TestZeroCopyPeer(t *testing.T) {
	names := cabled(t)
	m := newMap(t, 64)
	redirect(t, names[1], m, program{})
	redirect(t, names[2], m, program{firstSlot: 32})
	s := open(t, Config{
		Port: Port{Interface: names[1], Map: m, Queues: []int{0}}, Peer: &Port{Interface: names[2], Map: m, FirstSlot: 32, Queues: []int{0}},
		Mode: ModeZeroCopy, RingSize: 256,
	})
	fromA, fromB := newSender(t, names[0]), newSender(t, names[3])
	settle(t, s, fromA)
	settle(t, s, fromB)
	atA, atB := newListener(t, names[0]), newListener(t, names[3])
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	for i := range 500 {
		ab, ba := testFrame(2*i, 60+i), testFrame(2*i+1, 600+i)
		fromA.send(ab)
		fromB.send(ba)
		collect(t, s, &b, 2, func(source.Frame) {})
		require.Equal(t, ab, atB.next())
		require.Equal(t, ba, atA.next())
	}
	require.Empty(t, s.Stats().Dropped)
}
