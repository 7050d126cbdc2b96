// Package cudatest is a driver for tests. Its devices keep memory in the process,
// run kernels written in Go, and have the habits that matter: the current context
// belongs to a thread, streams work in order, freeing and loading wait for the
// kernels that run, memory runs out, a kernel that fails leaves its context
// useless. Every call can be made to fail, and what is not given back is listed.
//
// Everything is safe for concurrent use. A kernel runs in a goroutine that ends
// when the kernel's function returns.
package cudatest
