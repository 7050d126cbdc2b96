package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrSize says that a frame cannot be sent over an interface.
var ErrSize = errors.New("frame does not fit the interface")

const sendBatch = 64

// Sender sends raw frames over an interface. It is used by one goroutine.
type Sender struct {
	fd   int
	iovs [sendBatch]unix.Iovec
	msgs [sendBatch]mmsghdr
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// Sender opens a sender on an interface of the namespace. Frames go to the driver
// without queueing discipline.
func (n *NS) Sender(name string) (*Sender, error) {
	l, err := n.Link(name)
	if err != nil {
		return nil, err
	}
	s := &Sender{fd: -1}
	err = n.Do(func() error {
		var err error
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20); err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index})
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("sender on %s: %w", name, err)
	}
	return s, nil
}

// Close closes the socket.
func (s *Sender) Close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
}

// Send sends the frames in order and returns how many went.
func (s *Sender) Send(frames [][]byte) (sent int, err error) {
	for sent < len(frames) {
		n := min(len(frames)-sent, sendBatch)
		for i, f := range frames[sent : sent+n] {
			s.iovs[i].Base = unsafe.SliceData(f)
			s.iovs[i].SetLen(len(f))
			s.msgs[i].hdr = unix.Msghdr{Iov: &s.iovs[i]}
			s.msgs[i].hdr.SetIovlen(1)
		}
		r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.msgs[0])), uintptr(n), 0, 0, 0)
		switch errno {
		case 0:
			sent += int(r)
		case unix.EINTR, unix.ENOBUFS, unix.EAGAIN: // the peer's backlog is full
		case unix.EMSGSIZE, unix.EINVAL:
			return sent, fmt.Errorf("%w: %d bytes", ErrSize, len(frames[sent]))
		default:
			return sent, errno
		}
	}
	runtime.KeepAlive(frames)
	return sent, nil
}

// Pin binds the calling goroutine's thread to a CPU until the function that it
// returns is called.
func Pin(cpu int) (release func(), err error) {
	runtime.LockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}, nil
}

// Sniffer writes what passes an interface in both directions to a pcap file.
type Sniffer struct {
	fd     int
	f      *os.File
	done   chan error
	stop   atomic.Bool
	frames atomic.Uint64
}

const (
	sniffBuffer  = 64 << 20
	pollInterval = 20 * time.Millisecond
	maxFrame     = 1 << 17
)

// Sniff starts writing to path. Frames have no VLAN tag that the kernel took off.
func (n *NS) Sniff(name, path string) (*Sniffer, error) {
	l, err := n.Link(name)
	if err != nil {
		return nil, err
	}
	s := &Sniffer{fd: -1, done: make(chan error, 1)}
	err = n.Do(func() error {
		var err error
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sniffBuffer); err != nil {
			return err
		}
		tv := unix.NsecToTimeval(int64(pollInterval))
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	})
	if err == nil {
		s.f, err = os.Create(path)
	}
	if err != nil {
		if s.fd >= 0 {
			_ = unix.Close(s.fd)
		}
		return nil, fmt.Errorf("sniffer on %s: %w", name, err)
	}
	go func() { s.done <- s.write() }()
	return s, nil
}

func (s *Sniffer) write() error {
	head := make([]byte, 24)
	binary.LittleEndian.PutUint32(head, 0xa1b23c4d) // nanoseconds
	binary.LittleEndian.PutUint16(head[4:], 2)
	binary.LittleEndian.PutUint16(head[6:], 4)
	binary.LittleEndian.PutUint32(head[16:], maxFrame)
	binary.LittleEndian.PutUint32(head[20:], 1)
	if _, err := s.f.Write(head); err != nil {
		return err
	}
	buf, oob := make([]byte, 16+maxFrame), make([]byte, 128)
	for {
		n, noob, _, _, err := unix.Recvmsg(s.fd, buf[16:], oob, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			if s.stop.Load() {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		at := time.Now()
		if list, err := unix.ParseSocketControlMessage(oob[:noob]); err == nil {
			for i := range list {
				if list[i].Header.Type == unix.SCM_TIMESTAMPNS {
					ts := *(*unix.Timespec)(unsafe.Pointer(&list[i].Data[0]))
					at = time.Unix(ts.Unix())
				}
			}
		}
		binary.LittleEndian.PutUint32(buf, uint32(at.Unix()))
		binary.LittleEndian.PutUint32(buf[4:], uint32(at.Nanosecond()))
		binary.LittleEndian.PutUint32(buf[8:], uint32(n))
		binary.LittleEndian.PutUint32(buf[12:], uint32(n))
		if _, err := s.f.Write(buf[:16+n]); err != nil {
			return err
		}
		s.frames.Add(1)
	}
}

// Frames is the number of frames so far.
func (s *Sniffer) Frames() uint64 { return s.frames.Load() }

// Stop writes what has come so far and returns the number of frames. It is an
// error if the kernel had to drop one.
func (s *Sniffer) Stop() (uint64, error) {
	s.stop.Store(true)
	err := <-s.done
	st, e := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if e == nil && st.Drops > 0 {
		err = errors.Join(err, fmt.Errorf("the sniffer missed %d frames", st.Drops))
	}
	return s.frames.Load(), errors.Join(err, e, s.f.Close(), unix.Close(s.fd))
}
