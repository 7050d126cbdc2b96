package flow

// clockBackNs is how far packet times may run behind the clock before it follows them
// back (joined captures, interfaces with clocks of their own).
const clockBackNs = int64(60e9)

// Clock is the packets' clock: the latest time of a packet. It says when a Table's Tick is due.
// The zero Clock is at the epoch.
type Clock struct {
	NowNs int64
	Backs uint64 // times that it was set back
	step  int64  // NowNs in TickNs
}

// Pass moves the clock to the time of a packet, before that is added. If due, all tables get
// Tick(tickNs) before.
func (c *Clock) Pass(ns int64) (tickNs int64, due bool) {
	if ns < c.NowNs {
		if ns > c.NowNs-clockBackNs {
			return 0, false
		}
		c.Backs++
	}
	c.NowNs = ns
	step := ns / TickNs
	if step == c.step {
		return 0, false
	}
	c.step = step
	return step * TickNs, true
}
