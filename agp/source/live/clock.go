package live

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the time that a live source works by.
type Clock interface {
	// Monotonic returns ns of the clock that bpf_ktime_get_ns reads.
	Monotonic() int64
	// Realtime returns what to add to Monotonic to get ns since the Unix epoch.
	// Each call measures it anew; a source asks once, so that its times never step.
	Realtime() int64
	// Sleep returns after about d.
	Sleep(d time.Duration)
}

// System returns the clock of this machine. Monotonic takes no system call.
func System() Clock {
	return &systemClock{base: time.Now(), ns: monotonic()}
}

type systemClock struct {
	base time.Time
	ns   int64 // of CLOCK_MONOTONIC at base
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux has this clock
	}
	return ts.Nano()
}

func (c *systemClock) Monotonic() int64 { return c.ns + int64(time.Since(c.base)) }

// Realtime takes the best of a few readings of both clocks: an interruption between
// them only makes a reading wider.
func (c *systemClock) Realtime() int64 {
	best, offset := int64(math.MaxInt64), int64(0)
	for range 16 {
		before := c.Monotonic()
		now := time.Now().UnixNano()
		after := c.Monotonic()
		if wide := after - before; wide < best {
			best, offset = wide, now-before-wide/2
		}
	}
	return offset
}

// Sleep is a nanosleep because the runtime's timers are as coarse as 1 ms while the
// process is otherwise idle.
func (c *systemClock) Sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal ends it early: one poll more
}

// Times of polling.
const (
	minPause = 50 * time.Microsecond
	maxPause = 2 * time.Millisecond
	// MaxWait is how long Next of a live source waits for a frame.
	MaxWait = 50 * time.Millisecond
)

// fill is how many quarters of a batch should have come when a pause ends.
const fill = 11

// Pace says how long to sleep before memory that the kernel fills is looked at again:
// not at all before it is empty, up to 2 ms while little comes, and in between so long
// that it holds nearly three batches, since each sleep costs a switch of threads. The
// zero value is ready.
type Pace struct {
	pause time.Duration
	came  int  // frames since the last pause
	more  bool // is waiting
}

// Polled takes the result of a poll: n frames in a batch for room. behind says that
// more is waiting than a batch takes.
func (p *Pace) Polled(n, room int, behind bool) {
	p.came += n
	if p.more = n >= room || behind; p.more {
		return
	}
	longest := min(2*p.pause, maxPause)
	if p.came > 0 {
		longest = min(longest, p.pause*time.Duration(fill*room)/time.Duration(4*p.came))
	}
	p.pause, p.came = max(longest, minPause), 0
}

// Pause returns the time to sleep before the next poll.
func (p *Pace) Pause() time.Duration {
	if p.more {
		return 0
	}
	return p.pause
}
