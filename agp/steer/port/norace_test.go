//go:build !race

package port

// stride is the distance of the crash points that are tried.
const stride = 1
