//go:build !amd64

// Package prefetch asks the CPU for cache lines ahead of their use: hints without
// effect on results, which never fault, and nothing where the CPU has no such instruction.
// It keeps no state, so that any goroutine may call it, and reads no clock.
package prefetch

import "unsafe"

// Line does nothing here.
func Line(unsafe.Pointer) {}

// Lines8 does nothing here.
func Lines8(unsafe.Pointer) {}
