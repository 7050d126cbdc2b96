package detect

import "math"

// linear[n] is the linear-counting estimate for n of 256 bits set. Small counts
// are rounded down to n+collisions expected, so that few values read exactly.
var linear = func() (out [257]float64) {
	for n := range 256 {
		out[n] = -256 * math.Log(float64(256-n)/256)
	}
	out[256] = 256 * math.Log(256)
	return out
}()
