package port

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/internal/claim"
)

// portLock is what this process holds of a port: a lock file, whose content is the process
// id, and the port's name in the network namespace, which those with another directory
// of locks see too.
type portLock struct {
	f    *os.File
	name io.Closer
}

// wakeLimit is how long a process that was stopped may take to give its ports back.
const wakeLimit = time.Second

// acquire takes the lock of a port, or says who has it. A holder that was stopped (SIGSTOP)
// is continued: if its plugin has ended meanwhile, it puts the port back and ends.
func acquire(k kernel, dir string, l link) (*portLock, error) {
	p, err := try(k, dir, l)
	var busy *BusyError
	if !errors.As(err, &busy) || !wake(busy.Pid) {
		return p, err
	}
	for deadline := time.Now().Add(wakeLimit); errors.Is(err, ErrBusy) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		p, err = try(k, dir, l)
	}
	if errors.As(err, &busy) {
		busy.Woken = true
	}
	return p, err
}

func try(k kernel, dir string, l link) (*portLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%s: lock: %w", l.Name, err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%d-%d.lock", k.Netns(), l.Index))
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
		if err1 != nil || err2 != nil || !os.SameFile(held, there) {
			f.Close()
			continue
		}
		name, err := k.Claim(l)
		if err != nil {
			_ = os.Remove(path)
			f.Close()
			return nil, err
		}
		_ = f.Chmod(0o600) // a file that is left may have another mode
		_ = f.Truncate(0)
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // for the message, and to wake us
		return &portLock{f, name}, nil
	}
}

// release removes the file and gives up the lock.
func (p *portLock) release() {
	_ = p.name.Close()
	_ = os.Remove(p.f.Name())
	p.f.Close()
}

// Claim takes the name of a port in the network namespace of the calling thread. Where a stranger
// has it, only the lock file counts.
func (k *linux) Claim(l link) (io.Closer, error) {
	c, err := claim.Take(fmt.Sprintf("port/%d", l.Index))
	var taken *claim.TakenError
	if errors.As(err, &taken) {
		return nil, &BusyError{Interface: l.Name, Pid: taken.Pid}
	}
	return c, err
}

// wake continues a process if it is stopped and runs this program.
func wake(pid int) bool {
	if pid <= 0 || !stopped(pid) {
		return false
	}
	ours, err1 := os.Executable()
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	its = strings.TrimSuffix(its, " (deleted)") // by an upgrade
	return err1 == nil && err2 == nil && filepath.Base(ours) == filepath.Base(its) && syscall.Kill(pid, syscall.SIGCONT) == nil
}

// stopped says whether a process is stopped by a signal.
func stopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	return ok && len(rest) > 0 && rest[0] == 'T'
}
