package afxdp

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// headroom is what the kernel keeps free in front of a frame in its buffer.
const headroom = unix.XDP_PACKET_HEADROOM

// socket is one AF_XDP socket.
type socket struct {
	q    *queue
	fd   int
	slot uint32 // in the port's map, once inMap
	rx   ring[unix.XDPDesc]
	tx   ring[unix.XDPDesc] // only with a peer
	maps [][]byte           // what is mapped of this socket's rings

	peer  *socket // whose tx ring takes what is received here
	inMap bool
	zero  bool   // got zero-copy
	frame uint32 // length of the frame at the head of rx, of
	descs uint32 // that many descriptors
	ts    int64  // and its time

	stamped bool // which its metadata say
	doubted bool // which its metadata say wrongly

	waiting bool // in takeByTime: there is such a frame
	taken   int  // in takeByTime: frames of this batch
}

// queue is a receive queue of a device. Its sockets share the fill and completion
// rings, which are mapped from the first socket.
type queue struct {
	p       *port
	id      int
	fill    ring[uint64]
	done    ring[uint64]
	sockets []*socket
	lent    int // buffers that batches hold
}

type port struct {
	Port
	linkInfo
	number uint32 // Frame.Interface: 0 the port, 1 the peer
	queues []*queue
}

func (q *queue) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: queue %d: %w", q.p.name, q.id, fmt.Errorf(format, args...))
}

// attempt is one way of binding the sockets.
type attempt struct {
	flags uint16
	chunk int
}

func (a attempt) String() string {
	mode := "copy"
	if a.flags&unix.XDP_ZEROCOPY != 0 {
		mode = "zero-copy"
	}
	if a.flags&unix.XDP_USE_SG != 0 {
		mode += " with several buffers per frame"
	}
	return mode
}

// attempts lists the ways to bind that serve the configuration, the best first.
// What a kernel does not know it refuses with EINVAL, so that trying is probing.
func attempts(c *Config, ports []*port) ([]attempt, error) {
	mtu, generic := 0, false
	for _, p := range ports {
		mtu = max(mtu, p.mtu)
		generic = generic || p.generic
	}
	// Zero-copy buffers bypass an XDP program in generic mode.
	modes := []uint16{unix.XDP_ZEROCOPY, unix.XDP_COPY}
	switch {
	case c.Mode == ModeZeroCopy:
		modes = modes[:1]
	case c.Mode != ModeAuto || generic:
		modes = modes[1:]
	}
	wakeups := []uint16{unix.XDP_USE_NEED_WAKEUP, 0}
	if c.DisableNeedWakeup {
		wakeups = wakeups[1:]
	}
	small, large := c.FrameSize, c.FrameSize
	if c.FrameSize == 0 {
		small, large = smallFrame, smallFrame
		if mtu+frameOverhead > smallFrame-headroom {
			large = largeFrame
		}
	}
	fits := mtu+frameOverhead <= large-headroom
	var several, one []attempt
	for _, mode := range modes {
		for _, w := range wakeups {
			if !c.DisableMultiBuffer {
				several = append(several, attempt{mode | w | unix.XDP_USE_SG, small})
			}
			if fits {
				one = append(one, attempt{mode | w, large})
			}
		}
	}
	switch {
	case len(several)+len(one) == 0:
		return nil, fmt.Errorf("%s: %w: %d, with one buffer per frame at most %d", ports[0].name, ErrMTU, mtu, large-headroom-frameOverhead)
	case !fits || len(one) == 0 || len(several) == 0:
		return append(several, one...), nil
	}
	// Everything fits one buffer: zero-copy is worth more than several buffers.
	var all []attempt
	per := len(wakeups)
	for i := range modes {
		all = append(all, several[i*per:(i+1)*per]...)
		all = append(all, one[i*per:(i+1)*per]...)
	}
	return all, nil
}

// refused reports whether a bind error says that the way of binding is at fault.
func refused(err error) bool {
	for _, e := range []error{ErrPermission, ErrBusy, ErrGone, ErrMemory, ErrUnsupported, ErrQueue} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

// openSocket creates a socket of q with its rings. first is the socket that has
// registered the buffers, nil if this one does.
func (s *Source) openSocket(q *queue, first *socket) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return q.errorf("%w: AF_XDP sockets need CAP_NET_RAW", ErrPermission)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return q.errorf("%w", ErrUnsupported)
	case err != nil:
		return q.errorf("%w", os.NewSyscallError("socket", err))
	}
	k := &socket{q: q, fd: fd}
	owner := len(q.sockets) == 0 // of the queue's fill and completion rings
	q.sockets = append(q.sockets, k)
	if first == nil {
		if err := s.register(k); err != nil {
			return err
		}
	}
	set := func(option, n int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, n); err != nil {
			return q.errorf("ring of %d entries: %w", n, memoryError(err))
		}
		return nil
	}
	if err := set(unix.XDP_RX_RING, s.cfg.RingSize); err != nil {
		return err
	}
	if s.cfg.Peer != nil {
		if err := set(unix.XDP_TX_RING, s.cfg.RingSize); err != nil {
			return err
		}
	}
	if owner {
		if err := set(unix.XDP_UMEM_FILL_RING, s.cfg.Frames); err != nil {
			return err
		}
		// With a peer all buffers may wait to be sent by one queue.
		if err := set(unix.XDP_UMEM_COMPLETION_RING, s.completions()); err != nil {
			return err
		}
	}
	var off unix.XDPMmapOffsets
	if err := getsockopt(fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off)); err != nil {
		return q.errorf("%w", err)
	}
	if err := mapRing(k, &k.rx, off.Rx, s.cfg.RingSize, unix.XDP_PGOFF_RX_RING, false); err != nil {
		return err
	}
	if s.cfg.Peer != nil {
		if err := mapRing(k, &k.tx, off.Tx, s.cfg.RingSize, unix.XDP_PGOFF_TX_RING, true); err != nil {
			return err
		}
	}
	if owner {
		if err := mapRing(k, &q.fill, off.Fr, s.cfg.Frames, unix.XDP_UMEM_PGOFF_FILL_RING, true); err != nil {
			return err
		}
		if err := mapRing(k, &q.done, off.Cr, s.completions(), unix.XDP_UMEM_PGOFF_COMPLETION_RING, false); err != nil {
			return err
		}
		// Drivers take buffers while the socket is bound.
		for i := range uint64(s.cfg.Frames) {
			q.fill.push(s.homeOf(q) + i*uint64(s.chunk))
		}
		q.fill.publish()
	}
	return nil
}

// bind binds k. A socket that was closed a moment ago holds its queue until the
// kernel has cleaned up in the background, hence the retries until deadline.
func (s *Source) bind(k, first *socket, flags uint16, deadline time.Time) error {
	q := k.q
	sa := unix.SockaddrXDP{Flags: flags, Ifindex: uint32(q.p.index), QueueID: uint32(q.id)}
	if first != nil {
		sa.Flags, sa.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(first.fd)
	}
	err := unix.Bind(k.fd, &sa)
	for errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
		err = unix.Bind(k.fd, &sa)
	}
	switch {
	case err == nil:
	case errors.Is(err, unix.EBUSY):
		return q.errorf("%w", ErrBusy)
	case errors.Is(err, unix.EPERM):
		return q.errorf("%w: bind needs CAP_NET_RAW", ErrPermission)
	case errors.Is(err, unix.ENODEV):
		return q.errorf("%w", ErrGone)
	case errors.Is(err, unix.EINVAL) && first != nil && first.q.p == q.p && first.q != q:
		// The same call was good for the first queue.
		return q.errorf("%w: %w", ErrQueue, os.NewSyscallError("bind", err))
	default:
		return q.errorf("%w", os.NewSyscallError("bind", err))
	}
	var options uint32
	if err := getsockopt(k.fd, unix.XDP_OPTIONS, unsafe.Pointer(&options), unsafe.Sizeof(options)); err == nil {
		k.zero = options&unix.XDP_OPTIONS_ZEROCOPY != 0
	}
	return nil
}

// enter puts k into the map, from when on it receives frames.
func (k *socket) enter(perQueue, index int) error {
	q := k.q
	k.slot = uint32(q.p.FirstSlot + q.id*perQueue + index)
	if k.slot >= q.p.Map.MaxEntries() {
		return q.errorf("%w: slot %d of a map of %d entries", ErrConfig, k.slot, q.p.Map.MaxEntries())
	}
	err := q.p.Map.Update(k.slot, uint32(k.fd), ebpf.UpdateNoExist)
	switch {
	case err == nil:
		k.inMap = true
		return nil
	case errors.Is(err, ebpf.ErrKeyExist):
		return q.errorf("%w: slot %d of the map is taken", ErrBusy, k.slot)
	case errors.Is(err, unix.EPERM):
		return q.errorf("%w: changing the map needs CAP_BPF and CAP_NET_ADMIN", ErrPermission)
	default:
		return q.errorf("slot %d of the map: %w", k.slot, err)
	}
}

// leave takes k out of the map. If the map was closed before, the kernel does so when
// the socket is.
func (k *socket) leave() error {
	if !k.inMap {
		return nil
	}
	k.inMap = false
	if err := k.q.p.Map.Delete(k.slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, unix.EBADF) {
		return k.q.errorf("slot %d of the map: %w", k.slot, err)
	}
	return nil
}

func (k *socket) close() error {
	err := unix.Close(k.fd)
	for _, m := range k.maps {
		err = errors.Join(err, unix.Munmap(m))
	}
	k.maps = nil
	return err
}

// mapRing maps a ring of n entries. producer says that this side writes it.
func mapRing[T any](k *socket, r *ring[T], off unix.XDPRingOffset, n int, pgoff int64, producer bool) error {
	var entry T
	mem, err := unix.Mmap(k.fd, pgoff, int(off.Desc)+n*int(unsafe.Sizeof(entry)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return k.q.errorf("%w", memoryError(os.NewSyscallError("mmap", err)))
	}
	k.maps = append(k.maps, mem)
	word := func(at uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[at])) }
	mine, theirs := word(off.Consumer), word(off.Producer)
	if producer {
		mine, theirs = theirs, mine
	}
	*r = newRing(mine, theirs, word(off.Flags), unsafe.Slice((*T)(unsafe.Pointer(&mem[off.Desc])), n))
	return nil
}

// getsockopt reads an option of SOL_XDP that fills all of size bytes.
func getsockopt(fd, option int, p unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(p), uintptr(unsafe.Pointer(&n)), 0)
	runtime.KeepAlive(p)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	if uintptr(n) != size {
		return fmt.Errorf("%w of this kind: option %d has %d bytes", ErrUnsupported, option, n)
	}
	return nil
}

// wake tells the kernel to go on with the queue's fill ring.
func (k *socket) wake() error {
	_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(k.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// kick tells the kernel to send what is on the transmit ring.
func (k *socket) kick() error {
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(k.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
