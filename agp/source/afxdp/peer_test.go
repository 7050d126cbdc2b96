package afxdp

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// wire makes hostA - a0 = source = b0 - hostB.
func wire(t testing.TB, mtu, queues int, generic bool, cfg Config) *Source {
	t.Helper()
	namespace(t)
	veth(t, "a0", "hostA", queues, mtu)
	veth(t, "b0", "hostB", queues, mtu)
	per := max(cfg.PerQueue, 1)
	m := newMap(t, 2*queues*per)
	redirect(t, "a0", m, program{generic: generic, perQueue: per})
	redirect(t, "b0", m, program{generic: generic, perQueue: per, firstSlot: queues * per})
	cfg.Port = Port{Interface: "a0", Map: m}
	cfg.Peer = &Port{Interface: "b0", Map: m, FirstSlot: queues * per}
	return open(t, cfg)
}

func TestPeerSendsWhatThePortReceivesBothWays(t *testing.T) {
	for _, c := range []struct {
		name    string
		mtu     int
		queues  int
		generic bool
		cfg     Config
	}{
		{"native", 1500, 1, false, Config{}},
		{"generic", 1500, 1, true, Config{}},
		{"several queues and sockets", 1500, 2, false, Config{PerQueue: 2}},
		{"jumbo frames", 9000, 1, false, Config{}},
		{"few buffers", 1500, 1, false, Config{RingSize: 64, Frames: 64}},
		{"snapshots", 1500, 1, false, Config{SnapLen: 64}},
		{"without need-wakeup", 1500, 1, false, Config{DisableNeedWakeup: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := wire(t, c.mtu, c.queues, c.generic, c.cfg)
			fromA, fromB := newSender(t, "hostA"), newSender(t, "hostB")
			atA, atB := newListener(t, "hostA"), newListener(t, "hostB")
			b := source.Batch{Frames: make([]source.Frame, 0, 64)}
			for i := range 200 {
				var ab, ba [][]byte
				for j := range 4 {
					size := 60 + (i*41+j)%(c.mtu+14-60+1)
					ab = append(ab, testFrame(i*8+j, size))
					ba = append(ba, testFrame(i*8+4+j, size))
					fromA.send(ab[j])
					fromB.send(ba[j])
				}
				collect(t, s, &b, 8, func(f source.Frame) {
					j := seqOf(f) - i*8
					want := slices.Concat(ab, ba)[j]
					require.EqualValues(t, j/4, f.Interface, "0 is the port, 1 the peer")
					require.EqualValues(t, 1+j/4, f.Side)
					require.EqualValues(t, len(want), f.WireLen)
					if c.cfg.SnapLen > 0 {
						want = want[:min(len(want), c.cfg.SnapLen)]
					}
					require.Equal(t, want, f.Data)
				})
				var gotB, gotA [][]byte
				for range 4 {
					gotB = append(gotB, atB.next())
					gotA = append(gotA, atA.next())
				}
				if c.cfg.PerQueue > 1 { // sockets keep their order, not all of them one
					bySeq := func(a, b []byte) int { return int(a[seqAt+3]) - int(b[seqAt+3]) }
					slices.SortFunc(gotA, bySeq)
					slices.SortFunc(gotB, bySeq)
					slices.SortFunc(ab, bySeq)
					slices.SortFunc(ba, bySeq)
				}
				require.Equal(t, ab, gotB)
				require.Equal(t, ba, gotA)
			}
			require.Empty(t, s.Stats().Dropped)
			allBack(t, s)
		})
	}
}

// allBack checks that no buffer got lost: as many were given back to fill rings as
// were received.
func allBack(t *testing.T, s *Source) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		_, err := s.Next(new(source.Batch))
		require.NoError(t, err)
		var taken, given uint32
		for _, q := range s.queues {
			given += q.fill.next - uint32(s.cfg.Frames)
			for _, k := range q.sockets {
				taken += k.rx.next
			}
		}
		if given == taken {
			return
		}
		require.False(t, time.Now().After(deadline), "%d buffers were received, %d given back", taken, given)
	}
}

func TestFramesThatThePeerCannotSendAreCounted(t *testing.T) {
	s := wire(t, 1500, 1, false, Config{RingSize: 64, Frames: 256})
	down(t, "b0")
	out := newSender(t, "hostA")
	const sent = 300
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	for i := range sent {
		out.send(testFrame(i, 100))
		collect(t, s, &b, 1, func(f source.Frame) { require.Equal(t, i, seqOf(f)) }) // the pipeline has them all the same
	}
	require.Equal(t, map[string]uint64{"peer_tx_dropped": sent - 64}, s.Stats().Dropped, "64 wait on the ring")
	// When it is up again, it sends again.
	up(t, "b0")
	l := newListener(t, "hostB")
	for deadline := time.Now().Add(5 * time.Second); s.unsent(); {
		_, err := s.Next(&b)
		require.NoError(t, err)
		require.False(t, time.Now().After(deadline))
	}
	want := testFrame(1000, 100)
	out.send(want)
	collect(t, s, &b, 1, func(source.Frame) {})
	for got := l.next(); ; got = l.next() {
		if slices.Equal(got, want) {
			break
		}
	}
}

func TestFramesTooLongForThePeerAreCounted(t *testing.T) {
	namespace(t)
	veth(t, "a0", "hostA", 1, 9000)
	veth(t, "b0", "hostB", 1, 1500)
	m := newMap(t, 2)
	redirect(t, "a0", m, program{})
	redirect(t, "b0", m, program{firstSlot: 1})
	s := open(t, Config{Port: Port{Interface: "a0", Map: m}, Peer: &Port{Interface: "b0", Map: m, FirstSlot: 1}})
	out, l := newSender(t, "hostA"), newListener(t, "hostB")
	out.send(testFrame(0, 9000))
	out.send(testFrame(1, 1514))
	collect(t, s, new(source.Batch), 2, func(source.Frame) {})
	require.Equal(t, testFrame(1, 1514), l.next())
	require.Equal(t, map[string]uint64{"peer_tx_dropped": 1}, s.Stats().Dropped)
}

func TestFramesThatWaitForThePeerWhenTheSourceIsClosedAreCounted(t *testing.T) {
	s := wire(t, 9000, 1, false, Config{})
	down(t, "b0")
	out := newSender(t, "hostA")
	for i := range 10 {
		out.send(testFrame(i, 100+i*800))
	}
	collect(t, s, new(source.Batch), 10, func(source.Frame) {})
	require.Empty(t, s.Stats().Dropped)
	require.NoError(t, s.Close())
	require.Equal(t, map[string]uint64{"peer_tx_dropped": 10}, s.Stats().Dropped)
}

func TestPeerThatIsRemovedEndsTheSource(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy %v", busy), func(t *testing.T) {
			s := wire(t, 1500, 1, false, Config{})
			out := newSender(t, "hostA")
			l, err := netlink.LinkByName("b0")
			require.NoError(t, err)
			require.NoError(t, netlink.LinkDel(l))
			for deadline := time.Now().Add(5 * time.Second); err == nil; {
				if busy {
					out.send(testFrame(1, 100))
				}
				_, err = s.Next(new(source.Batch))
				require.False(t, time.Now().After(deadline))
			}
			require.ErrorIs(t, err, ErrGone)
			require.ErrorContains(t, err, "b0")
		})
	}
}
