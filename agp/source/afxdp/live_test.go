package afxdp

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

func TestFramesSentAreTheFramesReceived(t *testing.T) {
	for _, c := range []struct {
		name string
		prog program
		cfg  Config
		mode Mode
	}{
		{"native", program{}, Config{}, ModeCopy},
		{"generic", program{generic: true}, Config{}, ModeGeneric},
		{"native, one buffer", program{oneBuffer: true}, Config{DisableMultiBuffer: true, DisableNeedWakeup: true}, ModeCopy},
		{"generic, one buffer", program{generic: true, oneBuffer: true}, Config{DisableMultiBuffer: true}, ModeGeneric},
		{"three sockets per queue", program{perQueue: 3, firstSlot: 5}, Config{PerQueue: 3}, ModeCopy},
		{"huge pages or not", program{}, Config{HugePages: true}, ModeCopy},
		{"large buffers", program{}, Config{FrameSize: 4096, RingSize: 256}, ModeCopy},
	} {
		t.Run(c.name, func(t *testing.T) {
			namespace(t)
			veth(t, "in0", "out0", 1, 1500)
			m := newMap(t, 16)
			redirect(t, "in0", m, c.prog)
			c.cfg.Interface, c.cfg.Map, c.cfg.FirstSlot = "in0", m, c.prog.firstSlot
			s := open(t, c.cfg)
			out := newSender(t, "out0")
			b := source.Batch{Frames: make([]source.Frame, 0, 64)}
			var last int64
			bytes, seq := 0, 0
			for round := range 100 {
				var want [][]byte
				for range 32 {
					frame := testFrame(seq, 60+seq*37%1455)
					want = append(want, frame)
					bytes += len(frame)
					out.send(frame)
					seq++
				}
				before := time.Now().Add(-time.Second).UnixNano()
				got := make([][]byte, 32)
				collect(t, s, &b, 32, func(f source.Frame) {
					require.GreaterOrEqual(t, f.TimestampNs, last)
					last = f.TimestampNs
					require.Greater(t, last, before)
					require.Less(t, last, time.Now().Add(time.Second).UnixNano())
					require.Equal(t, packet.LinkEthernet, f.LinkType)
					require.Zero(t, f.Interface)
					require.EqualValues(t, len(f.Data), f.WireLen)
					got[seqOf(f)-round*32] = slices.Clone(f.Data)
				})
				require.Equal(t, want, got)
			}
			st := s.Stats()
			require.EqualValues(t, seq, st.Frames)
			require.EqualValues(t, bytes, st.Bytes)
			require.Empty(t, st.Dropped)
			status := s.Status()
			require.Len(t, status, max(c.cfg.PerQueue, 1))
			for i, got := range status {
				require.Equal(t, "in0", got.Interface)
				require.Equal(t, i, got.Socket)
				require.Equal(t, c.mode, got.Mode)
				require.False(t, c.cfg.DisableMultiBuffer && got.MultiBuffer)
				require.NotEqual(t, c.cfg.DisableNeedWakeup, got.NeedWakeup)
			}
		})
	}
}

func TestSeveralQueuesShareTheirBuffers(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 4, 1500)
	m := newMap(t, 8)
	redirect(t, "in0", m, program{perQueue: 2})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}, PerQueue: 2})
	require.Len(t, s.Status(), 8)
	out := newSender(t, "out0")
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	for range 200 {
		seen := make(map[int]bool)
		for i := range 32 {
			frame := testFrame(i, 200)
			// UDP from various ports, so that frames spread over queues.
			copy(frame[12:], []byte{0x08, 0x00, 0x45, 0, 0, 186})
			copy(frame[22:], []byte{64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, byte(i), byte(i), 0, 9})
			out.send(frame)
		}
		for deadline := time.Now().Add(5 * time.Second); len(seen) < 32; {
			_, err := s.Next(&b)
			require.NoError(t, err)
			for _, f := range b.Frames {
				require.Len(t, f.Data, 200)
				seen[int(f.Data[34])] = true
			}
			require.False(t, time.Now().After(deadline), "%d frames came", len(seen))
		}
	}
	require.EqualValues(t, 200*32, s.Stats().Frames)
	used := 0
	for _, q := range s.queues {
		if q.fill.pending() > 0 && *q.fill.mine > uint32(s.cfg.Frames) {
			used++
		}
	}
	require.Greater(t, used, 1, "all frames came by one queue")
}

func TestJumboFramesComeInSeveralBuffers(t *testing.T) {
	for _, generic := range []bool{false, true} {
		t.Run(fmt.Sprintf("generic %v", generic), func(t *testing.T) {
			namespace(t)
			veth(t, "in0", "out0", 1, 9000)
			m := newMap(t, 1)
			redirect(t, "in0", m, program{generic: generic})
			s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
			require.True(t, s.Status()[0].MultiBuffer)
			out := newSender(t, "out0")
			b := source.Batch{Frames: make([]source.Frame, 0, 64)}
			sizes := []int{60, 1514, 1791, 1792, 1793, 2048, 3584, 3585, 4096, 5000, 8999, 9000, 9014}
			for seq := range 300 {
				want := testFrame(seq, sizes[seq%len(sizes)])
				out.send(want)
				collect(t, s, &b, 1, func(f source.Frame) {
					require.Equal(t, want, f.Data)
					require.EqualValues(t, len(want), f.WireLen)
				})
			}
			require.Empty(t, s.Stats().Dropped)
		})
	}
}

func TestFrameTooLongForOneBufferIsCounted(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}, DisableMultiBuffer: true})
	for _, name := range []string{"in0", "out0"} {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetMTU(l, 3000)) // afterwards
	}
	out := newSender(t, "out0")
	for i := range 5 {
		out.send(testFrame(i, 2500))
	}
	out.send(testFrame(9, 100))
	collect(t, s, new(source.Batch), 1, func(f source.Frame) { require.Equal(t, 9, seqOf(f)) })
	require.Equal(t, map[string]uint64{"rx_dropped": 5}, s.Stats().Dropped)
}

func TestFramesThatThePipelineDoesNotTakeAreCountedByReason(t *testing.T) {
	for _, c := range []struct {
		reason string
		cfg    Config
		sent   int
	}{
		{"rx_ring_full", Config{RingSize: 64, Frames: 1024}, 500},
		{"fill_ring_empty", Config{RingSize: 1024, Frames: 64}, 500},
		{"fill_ring_empty", Config{RingSize: 1024, Frames: 64, PerQueue: 2}, 500},
	} {
		t.Run(fmt.Sprintf("%s %d", c.reason, c.cfg.PerQueue), func(t *testing.T) {
			namespace(t)
			veth(t, "in0", "out0", 1, 1500)
			m := newMap(t, 2)
			redirect(t, "in0", m, program{perQueue: c.cfg.PerQueue})
			c.cfg.Interface, c.cfg.Map = "in0", m
			s := open(t, c.cfg)
			out := newSender(t, "out0")
			var before uint64
			for round := range 3 {
				for i := range c.sent {
					out.send(testFrame(i, 100))
				}
				sent := uint64((round + 1) * c.sent)
				deadline := time.Now().Add(5 * time.Second)
				b := source.Batch{Frames: make([]source.Frame, 0, 64)}
				for {
					_, err := s.Next(&b)
					require.NoError(t, err)
					st := s.Stats()
					if st.Frames+st.Dropped[c.reason] == sent {
						require.Len(t, st.Dropped, 1)
						require.Greater(t, st.Dropped[c.reason], before)
						before = st.Dropped[c.reason]
						break
					}
					require.False(t, time.Now().After(deadline), "sent %d, %+v", sent, st)
				}
			}
			require.NoError(t, s.Close())
			st := s.Stats()
			require.Equal(t, before, st.Dropped[c.reason], "counters survive Close")
			require.EqualValues(t, 3*c.sent, st.Frames+before)
		})
	}
}

func TestRefusedZeroCopyFallsBackToCopy(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 2, 1500) // has no zero-copy
	m := newMap(t, 2)
	redirect(t, "in0", m, program{})
	_, err := Open(Config{Port: Port{Interface: "in0", Map: m}, Mode: ModeZeroCopy})
	require.ErrorIs(t, err, ErrMode)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	require.ErrorContains(t, err, "in0: queue 0")
	require.NotContains(t, err.Error(), "\n")
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	require.Equal(t, ModeCopy, s.Mode())
	for _, st := range s.Status() {
		require.Equal(t, ModeCopy, st.Mode)
	}
}

func TestModeIsToldAsTheProgramIsAttached(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	require.Equal(t, ModeCopy, s.Mode())
	redirect(t, "in0", m, program{generic: true}) // attached after Open
	require.Equal(t, ModeGeneric, s.Mode())
}

func TestTimesOfTheProgramAreThoseOfTheFrames(t *testing.T) {
	for _, generic := range []bool{false, true} {
		t.Run(fmt.Sprintf("generic %v", generic), func(t *testing.T) {
			namespace(t)
			veth(t, "in0", "out0", 1, 1500)
			m := newMap(t, 2)
			redirect(t, "in0", m, program{generic: generic, stamp: true, perQueue: 2})
			s := open(t, Config{Port: Port{Interface: "in0", Map: m}, Timestamps: true, PerQueue: 2})
			out := newSender(t, "out0")
			type span struct{ from, to int64 }
			var sent []span
			for i := range 100 {
				sp := span{from: s.clock.now()}
				out.send(testFrame(i, 100+i*14))
				sp.to = s.clock.now() + int64(20*time.Millisecond) // the frame may be taken by another CPU
				sent = append(sent, sp)
			}
			var last int64
			next, distinct := 0, 0
			collect(t, s, new(source.Batch), 100, func(f source.Frame) {
				require.Equal(t, next, seqOf(f), "two sockets, merged by time")
				require.GreaterOrEqual(t, f.TimestampNs, sent[next].from)
				require.LessOrEqual(t, f.TimestampNs, sent[next].to)
				if f.TimestampNs > last {
					distinct++
				}
				last = f.TimestampNs
				next++
			})
			require.Greater(t, distinct, 90)
			require.EqualValues(t, 100, s.Timed())
		})
	}
}

func TestTimeOfTheProgramThatCannotBeIsReplaced(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{stamp: true, skew: 2e9})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}, Timestamps: true})
	newSender(t, "out0").send(testFrame(0, 100))
	collect(t, s, new(source.Batch), 1, func(f source.Frame) {
		require.LessOrEqual(t, f.TimestampNs, s.clock.now())
	})
	require.Equal(t, map[string]uint64{"bad_timestamp": 1}, s.Stats().Repaired)
	require.Zero(t, s.Timed())
}

func TestInterfaceThatIsRemovedEndsTheSource(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	out := newSender(t, "out0")
	for i := range 10 {
		out.send(testFrame(i, 100))
	}
	l, err := netlink.LinkByName("in0")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(l))
	collect(t, s, new(source.Batch), 10, func(source.Frame) {}) // what had arrived is not lost
	for deadline := time.Now().Add(5 * time.Second); ; {
		n, err := s.Next(new(source.Batch))
		require.Zero(t, n)
		if err != nil {
			require.ErrorIs(t, err, ErrGone)
			require.ErrorContains(t, err, "in0")
			break
		}
		require.False(t, time.Now().After(deadline))
	}
	_, err = s.Next(new(source.Batch))
	require.ErrorIs(t, err, ErrGone, "it stays so")
	require.EqualValues(t, 10, s.Stats().Frames)
}

func TestInterfaceThatIsDownAndUpAgainGoesOn(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	out := newSender(t, "out0")
	for range 3 {
		// The other end learns a little later that it may send again.
		for deadline := time.Now().Add(5 * time.Second); ; {
			_ = unix.Send(out.fd, testFrame(1, 100), 0)
			n, err := s.Next(new(source.Batch))
			require.NoError(t, err)
			if n > 0 {
				break
			}
			require.False(t, time.Now().After(deadline))
		}
		down(t, "in0")
		for range 3 {
			_, err := s.Next(new(source.Batch))
			require.NoError(t, err)
		}
		up(t, "in0")
	}
}

func TestNextWaitsABoundedTime(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	s := open(t, Config{Port: Port{Interface: "in0", Map: newMap(t, 1)}})
	start := time.Now()
	n, err := s.Next(new(source.Batch))
	require.NoError(t, err)
	require.Zero(t, n)
	require.GreaterOrEqual(t, time.Since(start), maxWait-5*time.Millisecond)
	require.Less(t, time.Since(start), time.Second)
}

func TestInterruptEndsAWaitingNext(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	s := open(t, Config{Port: Port{Interface: "in0", Map: newMap(t, 1)}})
	done := make(chan error)
	go func() {
		for {
			if _, err := s.Next(new(source.Batch)); err != nil {
				done <- err
				return
			}
		}
	}()
	s.Interrupt()
	s.Interrupt()
	select {
	case err := <-done:
		require.Equal(t, io.EOF, err)
	case <-time.After(5 * time.Second):
		require.FailNow(t, "Next did not end")
	}
}

func TestFramesThatNobodyTookAreCountedByClose(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 9000)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	out := newSender(t, "out0")
	for i := range 10 {
		out.send(testFrame(i, 60+i*800))
	}
	collect(t, s, &source.Batch{Frames: make([]source.Frame, 0, 1)}, 4, func(source.Frame) {})
	require.Eventually(t, func() bool { return s.sockets[0].rx.look() == 2+3+3+4+4+5 }, 5*time.Second, time.Millisecond)
	require.NoError(t, s.Close())
	st := s.Stats()
	require.EqualValues(t, 4, st.Frames)
	require.Equal(t, map[string]uint64{"unread": 6}, st.Dropped)
}

func TestCloseTwiceAndUseAfterClose(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	s := open(t, Config{Port: Port{Interface: "in0", Map: newMap(t, 1)}})
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Next(new(source.Batch))
	require.Equal(t, io.EOF, err)
	s.Interrupt()
	require.Zero(t, s.Stats().Frames)
	require.Empty(t, s.Status())
}

func TestClosedSourceLeavesTheMapAndFramesGoToTheHost(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	host, out := newListener(t, "in0"), newSender(t, "out0")
	out.send(testFrame(1, 100))
	collect(t, s, new(source.Batch), 1, func(source.Frame) {})
	require.NoError(t, s.Close())
	want := testFrame(2, 100)
	out.send(want)
	require.Equal(t, want, host.next(), "the frame before went to the source alone")
}

func TestSocketLeavesTheMapBeforeItIsClosed(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	host, out := newListener(t, "in0"), newSender(t, "out0")
	require.NoError(t, s.sockets[0].leave())
	want := testFrame(1, 100)
	out.send(want)
	require.Equal(t, want, host.next())
}

func TestMapThatWasClosedFirst(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	require.NoError(t, m.Close())
	require.NoError(t, s.Close())
	host, out := newListener(t, "in0"), newSender(t, "out0")
	want := testFrame(1, 100)
	out.send(want)
	require.Equal(t, want, host.next(), "the slot is empty all the same")
}

func TestTwoSourcesOnOneQueueIsErrBusy(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 2)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	_, err := Open(Config{Port: Port{Interface: "in0", Map: m, FirstSlot: 1}})
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "in0: queue 0")
	// The first one is as it was.
	newSender(t, "out0").send(testFrame(1, 100))
	collect(t, s, new(source.Batch), 1, func(source.Frame) {})
}

func TestSlotOfAnotherSourceIsNotTaken(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	veth(t, "in1", "out1", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	_, err := Open(Config{Port: Port{Interface: "in1", Map: m}})
	require.ErrorIs(t, err, ErrBusy)
	newSender(t, "out0").send(testFrame(1, 100))
	collect(t, s, new(source.Batch), 1, func(source.Frame) {})
	_, err = Open(Config{Port: Port{Interface: "in1", Map: m, FirstSlot: 1}})
	require.ErrorIs(t, err, ErrConfig)
}

// files returns how many descriptors of a kind this process has.
func files(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestOpenedAndClosedAgainAndAgainNothingIsLeft(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 2, 1500)
	m := newMap(t, 4)
	redirect(t, "in0", m, program{perQueue: 2})
	out := newSender(t, "out0")
	var before int
	for i := range 12 {
		s, err := Open(Config{Port: Port{Interface: "in0", Map: m}, PerQueue: 2})
		require.NoError(t, err)
		out.send(testFrame(i, 100))
		collect(t, s, new(source.Batch), 1, func(source.Frame) {})
		require.NoError(t, s.Close())
		// What fails must not leave anything either.
		_, err = Open(Config{Port: Port{Interface: "in0", Map: m, FirstSlot: 1}, PerQueue: 2})
		require.ErrorIs(t, err, ErrConfig)
		_, err = Open(Config{Port: Port{Interface: "in0", Map: m}, Mode: ModeZeroCopy})
		require.ErrorIs(t, err, ErrMode)
		if i == 1 {
			before = files(t)
		}
	}
	require.Equal(t, before, files(t))
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.NotContains(t, string(maps), "[xdp]")
	require.NotContains(t, string(maps), "socket:")
}

func TestQueueThatTheDeviceDoesNotHaveIsErrQueue(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 2, 1500)
	m := newMap(t, 16)
	for _, queues := range [][]int{{2}, {0, 7}, {-1}} {
		_, err := Open(Config{Port: Port{Interface: "in0", Map: m, Queues: queues}})
		require.ErrorIs(t, err, ErrQueue)
		require.ErrorContains(t, err, fmt.Sprintf("in0: queue %d", queues[len(queues)-1]))
	}
	_, err := Open(Config{Port: Port{Interface: "in0", Map: m, Queues: []int{1, 1}}})
	require.ErrorIs(t, err, ErrConfig)
}

func TestInterfaceThatDoesNotExistIsErrInterface(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	for _, p := range []Port{{Interface: "none0"}, {IfIndex: 4711}, {Interface: "none0", IfIndex: index(t, "in0")}} {
		p.Map = m
		_, err := Open(Config{Port: p})
		require.ErrorIs(t, err, ErrInterface)
	}
	open(t, Config{Port: Port{IfIndex: index(t, "in0"), Map: m}})
}

func TestMTUThatDoesNotFitIsErrMTU(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 9000)
	_, err := Open(Config{Port: Port{Interface: "in0", Map: newMap(t, 1)}, DisableMultiBuffer: true})
	require.ErrorIs(t, err, ErrMTU)
	require.ErrorContains(t, err, "in0")
	require.ErrorContains(t, err, "9000")
}

func TestMissingCapabilityIsNamed(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	withoutCapabilities(t, func() {
		_, err := Open(Config{Port: Port{Interface: "in0", Map: m}})
		require.ErrorIs(t, err, ErrPermission)
		require.ErrorContains(t, err, "CAP_NET_RAW")
	}, unix.CAP_NET_RAW)
	withoutCapabilities(t, func() {
		s, err := Open(Config{Port: Port{Interface: "in0", Map: m}})
		if err == nil { // everybody may use maps on this host
			require.NoError(t, s.Close())
			return
		}
		require.ErrorIs(t, err, ErrPermission)
		require.ErrorContains(t, err, "CAP_BPF")
		require.NotErrorIs(t, err, ErrMode)
	}, unix.CAP_BPF, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)
	open(t, Config{Port: Port{Interface: "in0", Map: m}})
}

// TestMemoryThatCannotBePinnedSaysWhatToRaise lowers limits for good, hence in a
// process of its own.
func TestMemoryThatCannotBePinnedSaysWhatToRaise(t *testing.T) {
	const child = "AFXDP_TEST_MEMLOCK"
	if os.Getenv(child) == "" {
		namespace(t) // skips
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	cfg := Config{Port: Port{Interface: "in0", Map: newMap(t, 1)}, RingSize: 64, Frames: 64}
	withoutCapabilities(t, func() {
		limit := unix.Rlimit{Cur: 65536, Max: 1 << 20}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
		require.NoError(t, open(t, cfg).Close(), "the limit is raised as far as it may be")
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
		require.Equal(t, unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}, limit)
		cfg.Frames = 1024
		_, err := Open(cfg)
		require.ErrorIs(t, err, ErrMemory)
		require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
		require.ErrorContains(t, err, "CAP_IPC_LOCK")
	}, unix.CAP_IPC_LOCK, unix.CAP_SYS_RESOURCE)
}

func TestReceivingDoesNotAllocate(t *testing.T) {
	namespace(t)
	veth(t, "in0", "out0", 1, 1500)
	m := newMap(t, 1)
	redirect(t, "in0", m, program{})
	s := open(t, Config{Port: Port{Interface: "in0", Map: m}})
	out := newSender(t, "out0")
	b := source.Batch{Frames: make([]source.Frame, 0, 64)}
	frame := testFrame(1, 1000)
	_, err := s.Next(&b)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range 32 {
			if _, err := unix.Write(out.fd, frame); err != nil {
				t.Fatal(err)
			}
		}
		for got := 0; got < 32; {
			n, err := s.Next(&b)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}))
}
