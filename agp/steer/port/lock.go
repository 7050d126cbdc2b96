package port

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// portLock is a lock file that this process holds. Its content is the process id.
type portLock struct{ f *os.File }

// acquire takes the lock of a port, or says who has it.
func acquire(dir string, netns uint64, l link) (*portLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%s: lock: %w", l.Name, err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%d-%d.lock", netns, l.Index))
	for {
		// Who can read a file can lock it, and keep everybody else from the port.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("%s: lock: %w", l.Name, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			content := make([]byte, 32)
			n, _ := f.ReadAt(content, 0)
			f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: lock %s: %w", l.Name, path, err)
			}
			pid, _ := strconv.Atoi(string(bytes.TrimSpace(content[:n])))
			return nil, &BusyError{Interface: l.Name, Pid: pid}
		}
		// The holder before us may have removed the file between our open and our lock.
		held, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, there) {
			_ = f.Chmod(0o600) // a file that is left may have another mode
			_ = f.Truncate(0)
			_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // for the message only
			return &portLock{f}, nil
		}
		f.Close()
	}
}

// release removes the file and gives up the lock.
func (p *portLock) release() {
	_ = os.Remove(p.f.Name())
	p.f.Close()
}
