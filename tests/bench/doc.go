// Package bench runs flow meters over the same capture and times them.
//
// Every program is a child process, timed from start to exit by the wall clock.
// CPU time comes from the kernel's accounting of that child, its own children
// included; peak memory is that of the child alone. One goroutine runs one
// program at a time. Sizes are bytes, times are seconds.
package bench
