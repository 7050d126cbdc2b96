package supervise

import "time"

// Backoff says how long to wait before an engine is started again. Zero values
// take the defaults.
type Backoff struct {
	Min        time.Duration // first delay; default 1 s
	Max        time.Duration // longest delay before jitter; default 1 min
	ResetAfter time.Duration // an engine that lived this long was healthy; default 1 min
}

func (b *Backoff) setDefaults() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&b.Min, time.Second}, {&b.Max, time.Minute}, {&b.ResetAfter, time.Minute}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	b.Max = max(b.Max, b.Min)
}

// delay returns the wait after the n-th failure in a row, n from 1. Jitter (0 to
// 25 % more, r in [0,1)) keeps a fleet from restarting in step.
func (b *Backoff) delay(n int, r float64) time.Duration {
	d := b.Min
	for ; n > 1 && d < b.Max; n-- {
		d *= 2
	}
	d = min(d, b.Max)
	return d + time.Duration(r*float64(d)/4)
}
