package flow

import "unsafe"

// prefetchLine asks for one cache line; it never faults.
//
//go:noescape
func prefetchLine(p unsafe.Pointer)

// prefetchState asks for the cache lines of a state.
//
//go:noescape
func prefetchState(p unsafe.Pointer)
