package pcap

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

const (
	defaultBatch  = 256
	maxInterfaces = 65536
	// recordOverhead is about what a record takes besides the frame.
	recordOverhead = 32
	// defaultMaxGap bounds one wait for the next frame, in capture time.
	defaultMaxGap = time.Hour
	// stepBack is the backward step from which on the pace starts anew.
	stepBack = second
)

// Clock is the time that a capture is paced by.
type Clock interface {
	Now() time.Time
	// Wait returns after d, or sooner if wake is closed.
	Wait(d time.Duration, wake <-chan struct{})
}

// Options configure a Reader.
type Options struct {
	// Speed is the pace relative to the capture's own: 1 delivers frames when
	// they are due, 2 twice as fast, 0 (the default) without waiting.
	Speed float64
	// MaxGap bounds, in capture time, how long the pace waits for one frame, so that a
	// leap of the capture's clock does not stop the input. 0 means one hour.
	MaxGap time.Duration
	// Clock paces; nil means the system's.
	Clock Clock
}

// Interface is a capturing interface of the input.
type Interface struct {
	Name     string // if_name of pcapng, else empty
	LinkType packet.LinkType
	SnapLen  uint32 // as stated; 0 if unlimited
}

// Reader reads captures one after the other. See the package comment for who may
// call what.
type Reader struct {
	opts   Options
	paths  []string // not opened yet
	cur    *file
	w      window
	start  int     // where the last record begins in w.buf
	errs   []error // of finished files
	final  error   // what Next returns from now on
	size   int64   // of all files, 0 if unknown
	passed int64   // bytes of finished files

	frames, bytes uint64
	dropped       [numReasons]uint64
	badWireLen    uint64 // frames whose wire length was replaced by the captured one

	paced    bool // the pace has a start
	baseNs   int64
	baseWall time.Time
	lastNs   int64

	mu     sync.RWMutex
	ifaces []Interface
	index  map[ifaceKey]uint32

	interrupted         atomic.Bool
	once                sync.Once
	wake                chan struct{}
	wakeRead, wakeWrite int // pipe that wakes a poll; -1 if no input needs it
}

var _ source.Source = (*Reader)(nil)

type ifaceKey struct {
	Interface
	scale timescale
}

// Open prepares the reading of the captures at paths, in that order; Stdin stands
// for the standard input. A path that cannot be read is an error here, what is wrong
// inside a file comes at the end of Next.
func Open(paths []string, opts Options) (*Reader, error) {
	if len(paths) == 0 {
		return nil, errors.New("no capture given")
	}
	if opts.Speed < 0 || math.IsNaN(opts.Speed) || math.IsInf(opts.Speed, 0) {
		return nil, fmt.Errorf("speed %v: must be 0 or more", opts.Speed)
	}
	r := newReader(opts)
	r.paths = append(r.paths, paths...)
	known, live := true, false
	for _, path := range paths {
		var (
			st  os.FileInfo
			err error
		)
		if path == Stdin {
			st, err = os.Stdin.Stat()
		} else {
			st, err = os.Stat(path)
		}
		switch {
		case err != nil:
			return nil, err
		case st.IsDir():
			return nil, fmt.Errorf("%s: %w: is a folder", path, ErrNotCapture)
		case !st.Mode().IsRegular():
			known, live = false, true
		case path != Stdin && unix.Access(path, unix.R_OK) != nil:
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrPermission}
		}
		r.size += st.Size()
	}
	if !known {
		r.size = 0
	}
	if live {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, os.NewSyscallError("pipe2", err)
		}
		r.wakeRead, r.wakeWrite = p[0], p[1]
	}
	return r, nil
}

func newReader(opts Options) *Reader {
	if opts.Clock == nil {
		opts.Clock = &systemClock{}
	}
	if opts.MaxGap <= 0 {
		opts.MaxGap = defaultMaxGap
	}
	return &Reader{opts: opts, w: window{avg: 512}, index: make(map[ifaceKey]uint32), wake: make(chan struct{}), wakeRead: -1, wakeWrite: -1}
}

// Next implements source.Source. A batch without room for frames gets some.
func (r *Reader) Next(b *source.Batch) (int, error) {
	if cap(b.Frames) == 0 {
		b.Frames = make([]source.Frame, 0, defaultBatch)
	}
	b.Frames = b.Frames[:0]
	if r.final != nil {
		return 0, r.final
	}
	r.w.attach(b)
	n, size := 0, 0
	frames := b.Frames[:cap(b.Frames)]
	var err error
	for n < len(frames) {
		if r.interrupted.Load() {
			err = io.EOF
			break
		}
		r.w.left = len(frames) - n
		fr := &frames[n]
		if err = r.read(fr, n == 0); err != nil {
			break
		}
		if r.opts.Speed > 0 && !r.due(fr.TimestampNs, n == 0) {
			r.w.pos = r.start // read it again when its time has come
			break
		}
		r.w.pinned = true
		size += len(fr.Data)
		n++
	}
	b.Frames, b.Buf = frames[:n], r.w.buf
	r.frames += uint64(n)
	r.bytes += uint64(size)
	if n > 0 {
		r.w.avg += (size/n + recordOverhead - r.w.avg) / 4
	}
	if err != nil && !pause(err) {
		r.final = err
		if n == 0 {
			return 0, err
		}
	}
	return n, nil
}

// read reads the next frame from whichever file has it. first says that the batch
// is empty, so that waiting for data holds nothing up.
func (r *Reader) read(fr *source.Frame, first bool) error {
	for {
		if r.cur == nil {
			if len(r.paths) == 0 {
				if len(r.errs) > 0 {
					return errors.Join(r.errs...)
				}
				return io.EOF
			}
			path := r.paths[0]
			r.paths = r.paths[1:]
			if err := r.open(path); err != nil {
				r.errs = append(r.errs, err)
				continue
			}
			r.paced = false // what lies between two files is not a pause
		}
		if r.cur.live != nil {
			r.cur.live.patient = first
		}
		var err error
		if r.cur.format == nil {
			err = r.recognise()
		}
		if err == nil {
			err = r.cur.format(r, fr)
		}
		if err == nil || pause(err) {
			return err
		}
		if r.interrupted.Load() {
			return io.EOF // the input did not end, it was left
		}
		r.finish(err)
	}
}

// finish leaves the current file; err is io.EOF if all was well.
func (r *Reader) finish(err error) {
	if err != io.EOF {
		r.errs = append(r.errs, err)
	}
	r.passed += r.consumed()
	r.cur.close()
	r.cur = nil
}

// consumed returns how many bytes of the current file were used.
func (r *Reader) consumed() int64 {
	if r.cur.counted != nil {
		return r.cur.counted.n
	}
	return r.w.offset()
}

// due reports whether the time of a frame has come. If it has not and wait is true,
// it waits a little first.
func (r *Reader) due(ts int64, wait bool) bool {
	now := r.opts.Clock.Now()
	if !r.paced {
		r.paced, r.baseNs, r.baseWall, r.lastNs = true, ts, now, ts
	}
	switch gap := r.opts.MaxGap.Nanoseconds(); {
	case ts < r.lastNs && (r.lastNs-ts >= stepBack || r.lastNs-ts < 0):
		r.baseNs, r.baseWall = ts, now
	case ts > r.lastNs && (ts-r.lastNs > gap || ts-r.lastNs < 0):
		// Wait no longer than the largest gap from here on.
		r.baseNs, r.baseWall = ts, r.wallOf(r.lastNs).Add(r.wallFor(gap))
	}
	r.lastNs = ts
	at := r.wallOf(ts)
	if !now.Before(at) {
		return true
	}
	if !wait {
		return false
	}
	r.opts.Clock.Wait(min(at.Sub(now), liveWait), r.wake)
	return !r.opts.Clock.Now().Before(at)
}

// wallOf returns when the frame of capture time ns is due.
func (r *Reader) wallOf(ns int64) time.Time { return r.baseWall.Add(r.wallFor(ns - r.baseNs)) }

// wallFor returns how long a span of capture time takes.
func (r *Reader) wallFor(ns int64) time.Duration {
	d := float64(ns) / r.opts.Speed
	return time.Duration(max(min(d, math.MaxInt64/2), math.MinInt64/2))
}

// CaptureNow returns the capture time that a paced input has reached, also while
// no frame is due. It is false without a pace or before the first frame.
func (r *Reader) CaptureNow() (ns int64, ok bool) {
	if r.opts.Speed == 0 || !r.paced {
		return 0, false
	}
	passed := float64(r.opts.Clock.Now().Sub(r.baseWall)) * r.opts.Speed
	return addClamped(int64(max(min(passed, math.MaxInt64/2), 0)), r.baseNs), true
}

// addInterface returns the number of an interface, the same for equal ones in
// different sections and files.
func (r *Reader) addInterface(i Interface, scale timescale) (uint32, error) {
	key := ifaceKey{i, scale}
	if n, ok := r.index[key]; ok {
		return n, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ifaces) >= maxInterfaces {
		return 0, ErrCorrupt
	}
	n := uint32(len(r.ifaces))
	r.ifaces = append(r.ifaces, i)
	r.index[key] = n
	return n, nil
}

// Interfaces returns the interfaces seen so far; Frame.Interface is an index into
// it. The list only grows.
func (r *Reader) Interfaces() []Interface {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.ifaces[:len(r.ifaces):len(r.ifaces)]
}

// Stats implements source.Source.
func (r *Reader) Stats() source.Stats {
	s := source.Stats{Frames: r.frames, Bytes: r.bytes, Dropped: make(map[string]uint64), Offset: r.passed, Size: r.size}
	if r.cur != nil {
		s.Offset += r.consumed()
	}
	if r.badWireLen > 0 {
		s.Repaired = map[string]uint64{"bad_wire_length": r.badWireLen}
	}
	for i, n := range r.dropped {
		if n > 0 {
			s.Dropped[reasonNames[i]] = n
		}
	}
	return s
}

// Interrupt implements source.Source.
func (r *Reader) Interrupt() {
	r.once.Do(func() {
		r.interrupted.Store(true)
		close(r.wake)
		if r.wakeWrite >= 0 {
			_, _ = unix.Write(r.wakeWrite, []byte{0}) // the pipe is empty, so that this cannot fail for want of room
		}
	})
}

// Close releases the inputs. It must not run beside Next. Interrupt after it does
// nothing.
func (r *Reader) Close() error {
	r.once.Do(func() { close(r.wake) })
	if r.cur != nil {
		r.finish(io.EOF)
	}
	r.final = io.EOF
	var err error
	if r.wakeRead >= 0 {
		err = errors.Join(err, unix.Close(r.wakeRead), unix.Close(r.wakeWrite))
		r.wakeRead, r.wakeWrite = -1, -1
	}
	return err
}

// systemClock is the real time.
type systemClock struct {
	timer *time.Timer
}

func (c *systemClock) Now() time.Time { return time.Now() }

func (c *systemClock) Wait(d time.Duration, wake <-chan struct{}) {
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	select {
	case <-c.timer.C:
	case <-wake:
		c.timer.Stop()
	}
}

// maxWire is the longest frame that a record can truly speak of: twice what the
// largest offloads hand to a capture.
const maxWire = 1 << 20

// wireLen returns the frame's length on the wire. A record that claims more than
// any frame has is believed only in what it holds.
func (r *Reader) wireLen(claimed, captured uint32) uint32 {
	if claimed > maxWire {
		r.badWireLen++
		return captured
	}
	return max(claimed, captured)
}
