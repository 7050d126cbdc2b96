// Package claim lets one process at a time have a thing that other programs of this project look
// for too: it takes a name in the network namespace of the calling thread, an abstract unix socket,
// which ends with the process. Each name has one goroutine, which Close ends.
//
// Any user can take such a name. One who is neither root nor the user of this process cannot
// keep a thing from us: then, and where there are no such sockets, nothing is taken and all is well.
package claim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// TakenError says who has a name.
type TakenError struct {
	Name string
	Pid  int // 0 if it is not known
}

func (e *TakenError) Error() string {
	if e.Pid == 0 {
		return e.Name + " is in use by another process"
	}
	return fmt.Sprintf("%s is in use by process %d", e.Name, e.Pid)
}

// Take takes a name, or returns a TakenError.
func Take(name string) (io.Closer, error) {
	address := &net.UnixAddr{Net: "unix", Name: "@telegraf-agp/" + name}
	for range 10 {
		s, err := net.ListenUnix("unix", address)
		if err == nil {
			go accept(s)
			return s, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return unclaimed{}, nil
		}
		who, err := peer(address)
		switch {
		case err != nil: // it has just ended
			continue
		case who.Uid != 0 && int(who.Uid) != os.Geteuid():
			return unclaimed{}, nil
		}
		return nil, &TakenError{name, int(who.Pid)}
	}
	return nil, &TakenError{Name: name}
}

type unclaimed struct{}

func (unclaimed) Close() error { return nil }

// accept answers those who ask who has a name, until the socket is closed.
func accept(s *net.UnixListener) {
	for {
		c, err := s.AcceptUnix()
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// peer says which process listens at an address.
func peer(address *net.UnixAddr) (who *unix.Ucred, err error) {
	c, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return who, errors.Join(err, cerr)
}
