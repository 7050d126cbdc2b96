//go:build !amd64

package flow

import "unsafe"

func prefetchLine(unsafe.Pointer)  {}
func prefetchState(unsafe.Pointer) {}
