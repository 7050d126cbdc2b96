package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/internal/prefetch"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/live"
)

const (
	defaultBatch = 256
	// typicalFrame sizes the memory of a new batch, per frame.
	typicalFrame = 2048
	// burst is how many frames a socket may deliver before the next one's turn, and
	// after how many buffers go back to the kernel.
	burst = 64
	// maxWait bounds how long Next waits.
	maxWait = 50 * time.Millisecond
	// retry is how soon frames are offered again that a peer could not send.
	retry = time.Millisecond
	// pausePerEntry is how long frames may come together for each entry of a receive ring,
	// which is full after the pause only at 4 million frames per second.
	pausePerEntry = 250 * time.Nanosecond
	// bindPatience is how long Open waits for the kernel to release queues.
	bindPatience = 2 * time.Second
)

// Source receives from AF_XDP sockets. See the package comment for who may call
// what.
type Source struct {
	cfg     Config
	ports   []*port
	queues  []*queue  // of all ports; the index is that of the queue's buffers
	sockets []*socket // of all ports, in turn of service
	umem    []byte
	chunk   int
	home    int // shift from an address to the index of its queue
	got     attempt
	huge    bool
	links   *netlink.Handle

	clock clock
	sleep func(time.Duration)
	last  int64 // time of the last frame
	turn  int   // the socket to begin with
	pace  live.Pace
	final error // what Next returns from now on
	fds   []unix.PollFd

	frameCount, byteCount uint64
	timed                 uint64 // frames with a time of the device or the XDP program
	badTimes              uint64 // frames whose such time cannot be true
	invalid               uint64 // descriptors that lie outside of the buffers
	unread                uint64 // frames on receive rings that were closed
	txDropped             uint64
	dropped               drops

	mu          sync.Mutex // guards event and interrupted
	event       int        // eventfd, -1 once closed
	interrupted bool
}

var _ source.Source = (*Source)(nil)

// Open binds the sockets and enters them into the maps. It must be called in the
// network namespace of the interfaces; nothing later depends on it.
func Open(cfg Config) (*Source, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, event: -1, clock: newClock(cfg.Offset), sleep: live.System().Sleep}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Source) open() error {
	var err error
	if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if s.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	for i, p := range []*Port{&s.cfg.Port, s.cfg.Peer} {
		if p == nil {
			continue
		}
		if err := s.addPort(p, uint32(i)); err != nil {
			return err
		}
	}
	ways, err := attempts(&s.cfg, s.ports)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(bindPatience)
	var failed error
	unknown := true // the kernel does not know any of the ways
	for _, way := range ways {
		err := s.try(way, deadline)
		if err == nil {
			return s.enter()
		}
		if !refused(err) {
			return err
		}
		switch err = fmt.Errorf("%v: %w", way, err); {
		case failed == nil:
			failed = err
		case !strings.HasSuffix(failed.Error(), err.Error()): // without need-wakeup it is seldom another answer
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		unknown = unknown && errors.Is(err, unix.EINVAL)
	}
	if last := ways[len(ways)-1]; unknown && last.flags&unix.XDP_USE_SG != 0 {
		return fmt.Errorf("%s: %w for a kernel without several buffers per frame: %w", s.ports[0].name, ErrMTU, failed)
	}
	return fmt.Errorf("%s: %v: %w: %w", s.ports[0].name, s.cfg.Mode, ErrMode, failed)
}

func (s *Source) addPort(p *Port, number uint32) error {
	info, err := lookup(s.links, p)
	if err != nil {
		return err
	}
	added := &port{Port: *p, linkInfo: info, number: number}
	ids := p.Queues
	if len(ids) == 0 {
		for id := range info.queues {
			ids = append(ids, id)
		}
	}
	seen := make(map[int]bool)
	for _, id := range ids {
		q := &queue{p: added, id: id}
		switch {
		case id < 0 || id >= info.queues:
			return q.errorf("%w: it has %d", ErrQueue, info.queues)
		case seen[id]:
			return q.errorf("%w: named twice", ErrConfig)
		}
		seen[id] = true
		added.queues = append(added.queues, q)
		s.queues = append(s.queues, q)
	}
	s.ports = append(s.ports, added)
	return nil
}

// try opens and binds all sockets in one way; on failure none is left open.
func (s *Source) try(way attempt, deadline time.Time) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	if s.umem == nil || s.chunk != way.chunk {
		if err := s.free(); err != nil {
			return err
		}
		if s.umem, s.huge, err = allocate(s.frames()*way.chunk, s.cfg.HugePages); err != nil {
			return err
		}
	}
	s.chunk = way.chunk
	s.home = bits.TrailingZeros(uint(s.cfg.Frames * s.chunk))
	s.got = way
	var first *socket // of all
	for _, q := range s.queues {
		for range s.cfg.PerQueue {
			if err := s.openSocket(q, first); err != nil {
				return err
			}
			k := q.sockets[len(q.sockets)-1]
			// The fill ring is shared within a queue, the buffers by all.
			with := first
			if len(q.sockets) > 1 {
				with = q.sockets[0]
			}
			if err := s.bind(k, with, way.flags, deadline); err != nil {
				return err
			}
			if first == nil {
				first = k
			}
			s.sockets = append(s.sockets, k)
		}
	}
	return nil
}

// enter makes the sockets receive.
func (s *Source) enter() error {
	if len(s.ports) == 2 {
		s.pair(s.ports[0], s.ports[1])
		s.pair(s.ports[1], s.ports[0])
	}
	s.fds = make([]unix.PollFd, 0, len(s.sockets)+1)
	for _, k := range s.sockets {
		s.fds = append(s.fds, unix.PollFd{Fd: int32(k.fd), Events: unix.POLLIN})
	}
	s.fds = append(s.fds, unix.PollFd{Fd: int32(s.event), Events: unix.POLLIN})
	for _, q := range s.queues {
		for i, k := range q.sockets {
			if err := k.enter(s.cfg.PerQueue, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// frames returns the number of all buffers.
func (s *Source) frames() int { return s.cfg.Frames * len(s.queues) }

// completions returns the size of completion rings: without a peer nothing is sent,
// but the kernel wants one.
func (s *Source) completions() int {
	if s.cfg.Peer == nil {
		return minRing
	}
	return s.cfg.Frames
}

// homeOf returns the address of the first buffer of q. A buffer always goes back to
// the fill ring of its own queue, which has room for exactly those.
func (s *Source) homeOf(q *queue) uint64 {
	for i, other := range s.queues {
		if other == q {
			return uint64(i) << s.home
		}
	}
	panic("afxdp: queue of another source")
}

// takeBack gives the kernel the buffers that frames of b lay in.
func (s *Source) takeBack(b *source.Batch) {
	if len(b.Lent) == 0 {
		return
	}
	for _, addr := range b.Lent {
		s.queues[addr>>s.home].lent--
		s.recycle(addr)
	}
	b.Lent = b.Lent[:0]
	for _, q := range s.queues {
		q.fill.publish()
	}
}

// recycle puts a buffer on the fill ring of its queue.
func (s *Source) recycle(addr uint64) {
	if i := addr >> s.home; i < uint64(len(s.queues)) {
		s.queues[i].fill.push(addr &^ uint64(s.chunk-1))
	}
}

// Next implements source.Source. A batch without room for frames gets some.
func (s *Source) Next(b *source.Batch) (int, error) {
	if cap(b.Frames) == 0 {
		b.Frames = make([]source.Frame, 0, defaultBatch)
	}
	s.takeBack(b)
	b.Frames, b.Buf = b.Frames[:0], b.Buf[:cap(b.Buf)]
	if len(b.Buf) == 0 {
		b.Buf = make([]byte, cap(b.Frames)*typicalFrame)
	}
	for waited := false; s.final == nil; waited = true {
		if s.stopped() {
			s.final = io.EOF
			break
		}
		if !waited {
			s.gather()
		}
		s.reap()
		n := s.take(b)
		s.pace.Polled(n, cap(b.Frames), n == cap(b.Frames))
		if s.final = s.send(); s.final != nil && n == 0 {
			break
		}
		if n > 0 || waited {
			return n, nil
		}
		if err := s.wait(); err != nil {
			s.final = err
		}
	}
	return 0, s.final
}

// gather lets frames come together under load. Who waits in poll instead is woken for
// nearly every frame, at the cost of the CPU that receives it. What goes on to a peer
// does not wait.
func (s *Source) gather() {
	if d := min(s.pace.Pause(), time.Duration(s.cfg.RingSize)*pausePerEntry); d > 0 && s.cfg.Peer == nil {
		s.sleep(d)
	}
}

func (s *Source) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interrupted
}

// wait returns when there is something to do, at the latest after maxWait.
func (s *Source) wait() error {
	wait := maxWait
	if s.unsent() {
		wait = retry
	}
	n, err := unix.Poll(s.fds, int(wait/time.Millisecond))
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return os.NewSyscallError("poll", err)
	case n > 0:
		return nil
	}
	// Poll says nothing about an interface that was removed.
	for _, p := range s.ports {
		if k := p.queues[0].sockets[0]; errors.Is(k.wake(), unix.ENXIO) {
			return fmt.Errorf("%s: %w", p.name, ErrGone)
		}
	}
	return nil
}

// batch is what take fills.
type batch struct {
	frames []source.Frame
	buf    []byte
	lent   []uint64
	n, off int
	now    int64
}

// take moves what the sockets have to b.
func (s *Source) take(b *source.Batch) int {
	t := batch{frames: b.Frames[:cap(b.Frames)], buf: b.Buf, lent: b.Lent, now: s.clock.now()}
	if s.cfg.Timestamps {
		s.takeByTime(&t)
	} else {
		s.takeInTurn(&t)
	}
	b.Frames, b.Buf, b.Lent = t.frames[:t.n], t.buf, t.lent
	if t.n > 0 {
		for _, q := range s.queues {
			if s.got.flags&unix.XDP_USE_NEED_WAKEUP != 0 && q.fill.needsWakeup() {
				_ = q.sockets[0].wake() // an interface that is gone is found by wait
			}
		}
	}
	return t.n
}

// takeInTurn gives each socket its burst until all are empty or t is full.
func (s *Source) takeInTurn(t *batch) {
	for idle := 0; idle < len(s.sockets) && t.n < len(t.frames); idle++ {
		k := s.sockets[s.turn]
		taken := 0
		for taken < burst && t.n < len(t.frames) && k.head() {
			if !s.deliver(k, t, t.now) {
				k.handBack()
				return // this socket is the first to go on with
			}
			taken++
		}
		if taken > 0 {
			k.handBack()
			idle = -1
		}
		if s.turn++; s.turn == len(s.sockets) {
			s.turn = 0
		}
	}
}

// takeByTime takes the earliest frame of all sockets until all are empty or t is full.
func (s *Source) takeByTime(t *batch) {
	for _, k := range s.sockets {
		k.taken = 0
		if k.waiting = k.head(); k.waiting {
			s.stamp(k, t.now)
		}
	}
	for t.n < len(t.frames) {
		var k *socket
		for _, other := range s.sockets {
			if other.waiting && (k == nil || other.ts < k.ts) {
				k = other
			}
		}
		if k == nil || !s.deliver(k, t, k.ts) {
			break
		}
		if k.taken++; k.taken%burst == 0 {
			k.handBack()
		}
		if k.waiting = k.head(); k.waiting {
			s.stamp(k, t.now)
		}
	}
	for _, k := range s.sockets {
		if k.taken > 0 {
			k.handBack()
		}
	}
}

// head finds the frame at the head of the receive ring and reports whether it is
// there with all of its descriptors.
func (k *socket) head() bool {
	k.frame, k.descs = 0, 0
	ready := k.rx.ready()
	for {
		if k.descs == ready {
			if ready = k.rx.look(); k.descs == ready {
				return false
			}
		}
		d := k.rx.at(k.descs)
		k.frame += d.Len
		k.descs++
		if d.Options&unix.XDP_PKT_CONTD == 0 {
			return true
		}
	}
}

// handBack makes ring entries and buffers that were taken from k the kernel's again.
func (k *socket) handBack() {
	k.rx.publish()
	k.q.fill.publish()
}

// deliver gives t the frame at the head of k: the buffer itself while there are enough
// others, else a copy. It sends the frame on or frees its buffers. It returns false if
// t has no room.
func (s *Source) deliver(k *socket, t *batch, ts int64) bool {
	if i := k.descs + ahead; i < k.rx.ready() {
		s.prefetch(k.rx.at(i).Addr)
	}
	size := int(k.frame)
	if s.cfg.SnapLen > 0 {
		size = min(size, s.cfg.SnapLen)
	}
	var data []byte
	first, valid := k.rx.at(0), true
	if s.lends(k, first) {
		data, _ = s.bytes(first)
		data = data[:size:size]
		t.lent = append(t.lent, first.Addr)
		k.q.lent++
	} else {
		if t.off+size > len(t.buf) {
			if t.n > 0 {
				return false
			}
			t.buf = make([]byte, max(size, 2*len(t.buf)))
		}
		data = t.buf[t.off : t.off+size : t.off+size]
		rest := data
		for i := uint32(0); i < k.descs && valid; i++ {
			var part []byte
			part, valid = s.bytes(k.rx.at(i))
			rest = rest[copy(rest, part):]
		}
		t.off += size
		if k.peer == nil || !valid || !s.forward(k) {
			for i := range k.descs {
				s.recycle(k.rx.at(i).Addr)
			}
		}
	}
	if s.cfg.Timestamps {
		s.wipe(first.Addr)
	}
	k.rx.skip(k.descs)
	if !valid {
		s.invalid++
		return true
	}
	if k.stamped {
		s.timed++
	} else if k.doubted {
		s.badTimes++
	}
	s.last = max(s.last, ts)
	t.frames[t.n] = source.Frame{
		Data: data, TimestampNs: s.last, WireLen: k.frame,
		LinkType: k.q.p.linkType, Interface: k.q.p.number, Side: source.SideIn(k.q.p.number),
	}
	t.n++
	s.frameCount++
	s.byteCount += uint64(size)
	return true
}

// lends reports whether the frame at the head of k, which begins with d, can stay where
// it is: in one buffer, which nobody else waits for. The kernel keeps half of them at least.
func (s *Source) lends(k *socket, d *unix.XDPDesc) bool {
	home := d.Addr >> s.home
	_, valid := s.bytes(d)
	return k.peer == nil && k.descs == 1 && k.q.lent < s.cfg.Frames/2 && valid &&
		home < uint64(len(s.queues)) && s.queues[home] == k.q
}

// bytes returns what a descriptor points to, or false if that is not inside the buffers.
func (s *Source) bytes(d *unix.XDPDesc) ([]byte, bool) {
	from, to := d.Addr, d.Addr+uint64(d.Len)
	if from > to || to > uint64(len(s.umem)) {
		return nil, false
	}
	return s.umem[from:to], true
}

// ahead is how many frames before its turn a frame is asked for: another CPU has
// written it, and until it is here some others can be delivered.
const ahead = 4

// prefetch asks for the metadata and the headers of a frame at addr.
func (s *Source) prefetch(addr uint64) {
	if addr >= MetadataLen && addr < uint64(len(s.umem)) {
		prefetch.Line(unsafe.Pointer(&s.umem[addr-MetadataLen]))
		prefetch.Line(unsafe.Pointer(&s.umem[addr]))
	}
}

// What precedes a frame if the XDP program gives times; little endian.
const (
	// MetadataLen is the size of the metadata, which ends where the frame begins:
	// 8 bytes time in ns, 4 bytes MetadataMagic, 4 bytes clock.
	MetadataLen = 16
	// MetadataMagic says that the metadata are there.
	MetadataMagic = 0x54504741 // "AGPT"
	// ClockUTC: ns since the Unix epoch, such as of a device clock that PTP sets.
	ClockUTC = 0
	// ClockMonotonic: bpf_ktime_get_ns.
	ClockMonotonic = 1
)

// maxClockError is how far a frame's time may be from the host's to be believed.
const maxClockError = int64(time.Second)

// metadata returns what precedes a frame at addr if it is marked as ours.
func (s *Source) metadata(addr uint64) []byte {
	if addr < MetadataLen || addr > uint64(len(s.umem)) {
		return nil
	}
	m := s.umem[addr-MetadataLen : addr]
	if binary.LittleEndian.Uint32(m[8:]) != MetadataMagic {
		return nil
	}
	return m
}

// stamp finds the time of the frame at the head of k: that of its metadata if it has
// some that can be true, else now.
func (s *Source) stamp(k *socket, now int64) {
	k.ts, k.stamped, k.doubted = now, false, false
	m := s.metadata(k.rx.at(0).Addr)
	if m == nil {
		return
	}
	ts := int64(binary.LittleEndian.Uint64(m))
	if binary.LittleEndian.Uint32(m[12:]) == ClockMonotonic {
		ts += s.clock.offset
	}
	if d := now - ts; d > maxClockError || d < -maxClockError {
		k.doubted = true
		return
	}
	k.ts, k.stamped = ts, true
}

// wipe removes the mark of the metadata of a frame at addr, so that the next frame
// in this buffer is not taken to have them.
func (s *Source) wipe(addr uint64) {
	if m := s.metadata(addr); m != nil {
		binary.LittleEndian.PutUint32(m[8:], 0)
	}
}

// Interrupt implements source.Source.
func (s *Source) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = true
	if s.event >= 0 {
		_, _ = unix.Write(s.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if it is set already
	}
}

// Close takes the sockets out of the maps and frees everything. It must not run
// beside Next. A second Close does nothing.
func (s *Source) Close() error {
	if s.final == nil {
		s.final = io.EOF
	}
	_ = s.send() // what it cannot send is counted
	s.abandon()
	err := errors.Join(s.release(), s.free())
	if s.links != nil {
		s.links.Close()
		s.links = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event >= 0 {
		err = errors.Join(err, unix.Close(s.event))
		s.event = -1
	}
	return err
}

// release closes all sockets, after all have left the maps.
func (s *Source) release() error {
	var err error
	for _, q := range s.queues {
		for _, k := range q.sockets {
			err = errors.Join(err, k.leave())
		}
	}
	s.readDrops()
	for _, q := range s.queues {
		for _, k := range q.sockets {
			for ; k.rx.entries != nil && k.head(); k.rx.skip(k.descs) {
				s.unread++
			}
			err = errors.Join(err, k.close())
		}
		q.sockets, q.fill, q.done = nil, ring[uint64]{}, ring[uint64]{}
	}
	s.sockets, s.fds = nil, nil
	return err
}

func (s *Source) free() error {
	if s.umem == nil {
		return nil
	}
	mem := s.umem
	s.umem = nil
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}

// clock gives the time of frames: the monotonic clock with a fixed offset, so that
// steps of the host's time do not reach flows.
type clock struct {
	offset int64 // CLOCK_REALTIME minus CLOCK_MONOTONIC
}

func newClock(offset int64) clock {
	if offset != 0 {
		return clock{offset}
	}
	// The narrowest of a few readings has the smallest error.
	best := int64(math.MaxInt64)
	for range 5 {
		before := monotonic()
		real := time.Now().UnixNano()
		if took := monotonic() - before; took < best {
			best, offset = took, real-before-took/2
		}
	}
	return clock{offset}
}

func (c clock) now() int64 { return monotonic() + c.offset }

// monotonic is what bpf_ktime_get_ns returns.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return ts.Nano()
}

// kernelStats reads what the kernel counted for k.
func (k *socket) kernelStats() (st unix.XDPStatistics) {
	_ = getsockopt(k.fd, unix.XDP_STATISTICS, unsafe.Pointer(&st), unsafe.Sizeof(st)) // a kernel that counts less leaves zeros
	return st
}
