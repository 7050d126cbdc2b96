//go:build race

package port

// stride is the distance of the crash points that are tried; the race detector makes
// each of them much slower.
const stride = 7
