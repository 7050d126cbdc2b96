package cuda

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
)

// Times of the host's loop.
const (
	// How often it looks at the rings: as seldom as they allow, because each time costs a virtual
	// machine about 0.1 ms of a core, and often enough that a record is never older than 20 ms. When
	// none has come for a time, the next may be three times as old.
	leastPause = 500 * time.Microsecond
	mostPause  = 15 * time.Millisecond
	quietAfter = time.Second
	quietTimes = 3
	// A ring that nothing came from is left alone for as long as it takes to fill at this rate.
	fillRate = 64 << 20 // bytes per second
	// nowEvery is how often the device is told the time.
	nowEvery = 100 * time.Millisecond
	// The host may itself be stopped or slow: of the time between two looks at a ring so much of
	// the limit at most counts as silence of the ring.
	silentShare = 8
	// The heartbeats, which are in memory that the device writes, are looked at less often than records.
	beatShare = 2 * silentShare
)

// watch is the state of the host's loop. It belongs to the goroutine of Run.
type watch struct {
	p      *Pipeline
	beats  []beat
	at     time.Time     // of the last turn
	passed time.Duration // until it, since the one before
	unseen time.Duration // since heartbeats were looked at
	pause  time.Duration // until the next
	quiet  time.Duration // since there was a record
	most   time.Duration
	now    time.Time // when the device was told the time

	longest atomic.Int64 // ns of silence of any ring
}

// beat is the sign of life that was last seen of a warp.
type beat struct {
	count  uint64
	silent time.Duration
}

func newWatch(p *Pipeline) *watch {
	w := &watch{p: p, beats: make([]beat, len(p.rings)*(1+p.cfg.Shards)), at: time.Now()}
	w.most = time.Duration(float64(uint64(1)<<p.cfg.LogRecords) / fillRate * float64(time.Second))
	w.most = max(leastPause, min(w.most, mostPause))
	return w
}

// turn takes the records that there are, chooses the time to the next turn, and tells the device
// the time.
func (w *watch) turn(now time.Time) (n int) {
	w.passed, w.at = now.Sub(w.at), now
	w.unseen += w.passed
	w.setPause(w.p.fill())
	n = w.p.collect()
	if c := &w.p.cfg; c.Port != nil && c.Now != nil && now.Sub(w.now) >= nowEvery {
		w.now = now
		atomic.StoreInt64(&w.p.control.NowNs, c.Now())
	}
	return n
}

// check sees to rings in need, and says why the kernel has to end. beating: the rings' heartbeats
// have to go on.
func (w *watch) check(beating bool) error {
	err := w.p.check()
	if err == nil && beating && w.unseen >= w.p.cfg.Heartbeat/beatShare {
		err = w.look()
		w.unseen = 0
	}
	return err
}

// setPause chooses the time to the next turn: a quarter of a record ring should be full then. It
// grows step by step and shrinks at once.
func (w *watch) setPause(fill float64) {
	want := w.most
	if w.quiet += w.passed; fill > 0 {
		w.quiet = 0
	}
	if w.quiet > quietAfter {
		want *= quietTimes
	}
	if fill > 0 {
		want = min(want, time.Duration(float64(w.passed)/(4*fill)))
	}
	w.pause = min(want, max(2*w.pause, leastPause))
	if w.pause < leastPause {
		w.pause = 0
	}
}

// fill is how much of the fullest record ring is not taken yet, 0 to 1.
func (p *Pipeline) fill() float64 {
	most := uint64(0)
	for _, r := range p.rings {
		for _, d := range r.shards {
			most = max(most, atomic.LoadUint64(d.head)-*d.tail)
		}
	}
	return float64(most) / float64(uint64(1)<<p.cfg.LogRecords)
}

// sound says whether a message is one that the device writes. m begins with it; left is what there is
// in the ring.
func sound(h *abi.Record, m []byte, left uint64) bool {
	head, f := len(bytesOf(h)), len(bytesOf(&abi.Flow{}))
	n := int(h.Size)
	if n < head || n%head != 0 || n > len(m) || uint64(n) > left {
		return false
	}
	switch h.Kind {
	case abi.RecordSkip, abi.RecordTick:
		return true
	case abi.RecordStart:
		return n > head
	case abi.RecordFlow, abi.RecordMature:
		need, counters := head+f, h.Parts&abi.PartHist != 0
		if counters {
			need += len(bytesOf(&abi.Hist{}))
		}
		if h.Parts&abi.PartHead != 0 {
			need += len(bytesOf(&abi.Head{}))
		}
		return n >= need && counters == (at[abi.Flow](m[head:]).Tier != 0)
	}
	return false
}

// look finds a warp that shows no life.
func (w *watch) look() error {
	for i, r := range w.p.rings {
		beats := w.beats[i*(1+len(r.shards)):]
		lossless := r.abi.Flags&abi.FlagLossless != 0
		waits := false // for the host to take records
		written := uint64(0)
		for k, d := range r.shards {
			head := atomic.LoadUint64(d.head)
			full := lossless && head-*d.tail+abi.MaxRecord > uint64(len(d.buf))
			waits = waits || full
			written += head
			if w.late(&beats[1+k], atomic.LoadUint64(&d.stats.Heartbeat)+head, full) {
				return w.p.hung(i)
			}
		}
		// The receive warps, which report as one, may wait for a state warp that has many records to write.
		if w.late(&beats[0], atomic.LoadUint64(&r.stats.Heartbeat)+written, waits) {
			return w.p.hung(i)
		}
	}
	return nil
}

// late says whether a warp was silent for too long. count changes while it lives; it may not if it
// waits.
func (w *watch) late(b *beat, count uint64, waits bool) bool {
	if count != b.count || waits {
		b.count, b.silent = count, 0
		return false
	}
	b.silent += min(w.unseen, w.p.cfg.Heartbeat/silentShare)
	if int64(b.silent) > w.longest.Load() {
		w.longest.Store(int64(b.silent))
	}
	return b.silent > w.p.cfg.Heartbeat
}

// hung is the error of a ring without heartbeat.
func (p *Pipeline) hung(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rings[i]
	r.read()
	s := &r.seen
	return fmt.Errorf("%w: ring %d gave no heartbeat for more than %v: heartbeat %d, status %d, %d completions and %d frames taken, packets' clock %s",
		ErrHung, i, p.cfg.Heartbeat, s.Heartbeat, s.Status, s.CQEs, s.Frames, time.Unix(0, int64(s.ClockNs)).UTC().Format(time.RFC3339Nano))
}

// Silence is the longest time that a ring was seen without a heartbeat. Safe from any goroutine.
func (p *Pipeline) Silence() time.Duration { return time.Duration(p.watch.longest.Load()) }

// hurry has the end of a kernel that was told to end noticed at once.
func (p *Pipeline) hurry(run Run) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*p.cfg.Patience)
		defer cancel()
		_ = run.Wait(ctx)
	}()
}

// feederEnd waits for the feeder, which was told to end.
func (p *Pipeline) feederEnd(fed <-chan error) error {
	late := time.NewTimer(p.cfg.Patience)
	defer late.Stop()
	select {
	case err := <-fed:
		return err
	case <-late.C:
		return fmt.Errorf("%w: what feeds the rings does not end", ErrHung)
	}
}
