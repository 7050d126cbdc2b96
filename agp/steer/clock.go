package steer

import "golang.org/x/sys/unix"

// realtime returns the ns from the monotonic clock, which is the programs', to the Unix
// epoch. The wall clock is read between two readings of the other.
func realtime() int64 {
	var before, wall, after unix.Timespec
	for _, c := range []struct {
		id int32
		to *unix.Timespec
	}{{unix.CLOCK_MONOTONIC, &before}, {unix.CLOCK_REALTIME, &wall}, {unix.CLOCK_MONOTONIC, &after}} {
		if err := unix.ClockGettime(c.id, c.to); err != nil {
			return 0 // then no time of a device is believed
		}
	}
	return wall.Nano() - (before.Nano()+after.Nano())/2
}
