// Package simt runs the device code of cuda/kernels on the host: it compiles it with g++ together
// with an emulator of warps (lib/simt.h says what it emulates and what it refuses), loads the
// result without cgo and gives it as a Device of agp/pipeline/cuda.
//
// A Library owns its memory, outside the Go heap, and the threads of its kernels; it may be used
// by several goroutines. Device addresses are host addresses, all memory is what AllocMapped
// gives on a GPU. Code that breaks a rule of the device ends the process, with a message of the
// emulator on standard error.
//
// Compiled libraries and programs are kept by the hash of all that they depend on, below build/
// of the repository.
package simt
