//go:build !race

package detect

// RaceEnabled says that the race detector slows this test binary down.
const RaceEnabled = false
