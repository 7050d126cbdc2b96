package runner

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drain waits until the reader of a pipe has taken everything out of it, at most
// until the deadline. execd closes its end of the pipe when the child exits and
// would lose what is still inside. Anything but a pipe needs no wait.
func drain(w any, deadline time.Time) {
	f, ok := w.(*os.File)
	if !ok {
		return
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	for time.Now().Before(deadline) {
		waiting := 0
		if conn.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) != nil || err != nil || waiting == 0 {
			return
		}
		// A pipe whose reader is gone keeps its bytes for ever.
		if orphaned(conn) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func orphaned(conn interface{ Control(func(uintptr)) error }) bool {
	gone := false
	err := conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
	})
	return err != nil || gone
}
