// Package bpf holds the kernel's half of steering: the BPF programs (steer.bpf.c),
// their compiled objects, and the Go types that mirror the structures which
// programs and user space share (agp.h). Only agp/steer loads the programs; sources
// know Event alone.
//
// It has no state and no goroutine. Times are nanoseconds of the kernel's
// monotonic clock, lengths bytes, ports and VLAN types host order, addresses network order.
//
// "go generate" compiles with clang-19, whose output is the same on every host: the
// sources include nothing from outside this folder. A test compares.
package bpf

//go:generate sh generate.sh
