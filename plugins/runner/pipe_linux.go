package runner

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeSize is asked of the kernel for standard output; any process may have it.
const pipeSize = 1 << 20

// pipe is what the kernel tells about standard output. A nil pipe is a standard
// output that is none.
type pipe struct {
	conn syscall.RawConn
	size int // bytes
}

func openPipe(w any) *pipe {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	p := &pipe{conn: conn}
	err = conn.Control(func(fd uintptr) {
		// A smaller pipe only costs speed.
		_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize)
		p.size, _ = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
	})
	if err != nil || p.size <= 0 {
		return nil
	}
	return p
}

// waiting returns how many bytes the reader has not taken yet.
func (p *pipe) waiting() int {
	n := 0
	if p.conn.Control(func(fd uintptr) {
		var err error
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); err != nil {
			n = 0
		}
	}) != nil {
		return 0
	}
	return n
}

// pace waits a few milliseconds at most until the pipe is half empty. A write
// into a full pipe would be woken for every page that the reader takes, which
// costs both sides a good part of their time.
func (p *pipe) pace() {
	if p == nil {
		return
	}
	for range 10 {
		if p.waiting() <= p.size/2 {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// drain waits until the reader has taken everything, at most until the deadline,
// and returns how much it left. execd closes its end of the pipe when the child
// exits and would lose what is still inside.
func (p *pipe) drain(deadline time.Time) (left int) {
	if p == nil {
		return 0
	}
	for {
		left = p.waiting()
		if left == 0 || p.orphaned() || !time.Now().Before(deadline) {
			return left
		}
		time.Sleep(time.Millisecond)
	}
}

// orphaned reports whether the reader is gone; the pipe then keeps its bytes.
func (p *pipe) orphaned() bool {
	gone := false
	err := p.conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
	})
	return err != nil || gone
}
