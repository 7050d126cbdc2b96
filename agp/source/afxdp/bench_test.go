package afxdp

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// flood sends a frame again and again until stop is set, many per system call.
func flood(fd int, frame []byte, stop *atomic.Bool) error {
	type mmsghdr struct {
		hdr unix.Msghdr
		_   uint32
		_   [4]byte
	}
	iov := unix.Iovec{Base: &frame[0]}
	iov.SetLen(len(frame))
	msgs := make([]mmsghdr, 64)
	for i := range msgs {
		msgs[i].hdr.Iov = &iov
		msgs[i].hdr.SetIovlen(1)
	}
	for !stop.Load() {
		_, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), 0, 0, 0)
		if errno != 0 && errno != unix.ENOBUFS {
			return os.NewSyscallError("sendmmsg", errno)
		}
	}
	runtime.KeepAlive(frame)
	return nil
}

// BenchmarkVeth receives what a flood over a veth pair delivers: a sender, the kernel's
// part of receiving and ours share the machine's cores, so that this is not what a NIC
// would give. The CPU time of ours alone is BenchmarkVethNext.
func BenchmarkVeth(b *testing.B) {
	for _, size := range []int{64, 1514} {
		for _, generic := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d bytes, generic %v", size, generic), func(b *testing.B) {
				namespace(b)
				veth(b, "in0", "out0", 1, 1500)
				m := newMap(b, 1)
				redirect(b, "in0", m, program{generic: generic})
				s, err := Open(Config{Port: Port{Interface: "in0", Map: m}})
				require.NoError(b, err)
				defer s.Close()
				out := newSender(b, "out0")
				require.NoError(b, unix.SetsockoptInt(out.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
				var stop atomic.Bool
				done := make(chan error)
				go func() { done <- flood(out.fd, testFrame(1, size), &stop) }()
				batch := source.Batch{Frames: make([]source.Frame, 0, 256)}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				start := time.Now()
				got := 0
				for got < b.N {
					n, err := s.Next(&batch)
					require.NoError(b, err)
					got += n
				}
				b.ReportMetric(float64(got)/time.Since(start).Seconds(), "frames/s")
				b.StopTimer()
				var lost uint64
				for _, n := range s.Stats().Dropped {
					lost += n
				}
				stop.Store(true)
				require.NoError(b, <-done)
				b.ReportMetric(float64(lost)/float64(uint64(got)+lost), "dropped/sent")
			})
		}
	}
}

// BenchmarkVethNext is our part of receiving: the time of Next for frames that are on
// the ring.
func BenchmarkVethNext(b *testing.B) {
	for _, size := range []int{64, 1514} {
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			namespace(b)
			veth(b, "in0", "out0", 1, 1500)
			m := newMap(b, 1)
			redirect(b, "in0", m, program{})
			s, err := Open(Config{Port: Port{Interface: "in0", Map: m}})
			require.NoError(b, err)
			defer s.Close()
			out := newSender(b, "out0")
			frame := testFrame(1, size)
			batch := source.Batch{Frames: make([]source.Frame, 0, 256)}
			b.SetBytes(int64(size))
			for left := b.N; left > 0; {
				b.StopTimer()
				sent := min(left, 1024)
				for range sent {
					out.send(frame)
				}
				for s.sockets[0].rx.look() < uint32(sent) {
					runtime.Gosched()
				}
				b.StartTimer()
				for got := 0; got < sent; {
					n, err := s.Next(&batch)
					require.NoError(b, err)
					got += n
				}
				left -= sent
			}
		})
	}
}
