// Package asm holds the vector kernels of the executor, generated with avo.
//
// A vector is one value of several flows (lanes): 8 with AVX2, 16 with AVX-512. A
// kernel therefore never mixes flows, and the order of its additions depends on
// nothing but the layer.
//
// The Product kernels compute, for Blocks groups of filters, at a few neighbouring
// positions p:
//
//	out[f][p] = max(Lo, b[f] + sum over k of w[k][f] * x[Off[k] + p*XStep])
//
// adding in ascending k. With a pool of n, the maximum of each n positions is stored
// instead. A kernel is named <filters>x<positions>p<pool>. Every kernel of one
// instruction set, and both instruction sets, give the same bits.
//
// Callers check at run time that the CPU and the operating system have the
// instruction set, and that all memory a kernel touches is theirs.
package asm

//go:generate go run gen.go -out kernels_amd64.s -stubs kernels_amd64.go -pkg asm

import "unsafe"

// Args are the arguments of one call. The kernels know this layout.
type Args struct {
	X      unsafe.Pointer // first position, in the input value
	W      unsafe.Pointer // [Blocks][K][filters] weights
	B      unsafe.Pointer // [Blocks][filters] biases
	Off    unsafe.Pointer // [K] int64, bytes from X; K > 0
	Out    unsafe.Pointer // first filter, first position
	K      int
	Blocks int // > 0
	XStep  int // bytes from one input position to the next
	OutP   int // bytes from one output position to the next
	OutF   int // bytes from one output filter to the next
	Lo     float32
}
