package gpu

// Highest finds the shortest pace, in cycles per batch, at which try says that all was well, by
// bisection: from is a pace that is probably too short, twice that is probably long enough. ok is
// false if not even eight times it is.
func Highest(from uint32, steps int, try func(pace uint32) (bool, error)) (pace uint32, ok bool, err error) {
	short, long := from, from
	for ok = false; !ok; {
		if long > 4*from {
			return 0, false, nil
		}
		short, long = long, 2*long
		if ok, err = try(long); err != nil {
			return 0, false, err
		}
	}
	for range steps {
		mid := short + (long-short)/2
		if mid == short {
			break
		}
		good, err := try(mid)
		if err != nil {
			return 0, false, err
		}
		if good {
			long = mid
		} else {
			short = mid
		}
	}
	return long, true, nil
}

// Pace is cycles per batch of each of so many rings at a rate of all together and a clock in Hz.
func Pace(rate float64, rings int, clock float64) uint32 {
	return uint32(clock * 32 * float64(rings) / rate)
}
