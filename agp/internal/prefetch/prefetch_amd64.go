// Package prefetch asks the CPU for cache lines ahead of their use: hints without
// effect on results, which never fault, and nothing where the CPU has no such instruction.
// It keeps no state, so that any goroutine may call it, and reads no clock.
package prefetch

import "unsafe"

// Line asks for the cache line of p.
//
//go:noescape
func Line(p unsafe.Pointer)

// Lines8 asks for eight cache lines from p on.
//
//go:noescape
func Lines8(p unsafe.Pointer)
