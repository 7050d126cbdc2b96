package control

import (
	"errors"
	"net"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peer is who is at the other end of a socket, as the kernel says.
type peer struct {
	uid, gid uint32
	groups   []uint32 // supplementary
}

// check says whether the peer may use the socket whose file has this owner.
func (p *peer) check(uid, gid uint32) error {
	if p.uid == 0 || p.uid == uid || p.gid == gid || slices.Contains(p.groups, gid) {
		return nil
	}
	return ErrDenied
}

func peerOf(c *net.UnixConn) (peer, error) {
	var p peer
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = err
			return
		}
		p.uid, p.gid = cred.Uid, cred.Gid
		p.groups, failed = peerGroups(fd)
	})
	return p, errors.Join(err, failed)
}

// peerGroups reads SO_PEERGROUPS, for which the unix package has no function. Kernels
// before 4.13 do not have it; the primary group has to do there.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4) //nolint:gosec // small
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // the call's form
		switch errno {
		case 0:
			return groups[:size/4], nil
		case unix.ERANGE: // size is what it takes
			groups = make([]uint32, size/4)
		case unix.ENOPROTOOPT, unix.ENODATA:
			return nil, nil
		default:
			return nil, errno
		}
	}
}
