// Package api is the seam between package cuda and the driver: the functions of
// libcuda that package cuda calls, with Go types. internal/libcuda implements it
// with the library, cuda/cudatest with memory of the process.
//
// A method has the name of its function without "cu" and returns what the
// function writes before the result. Nothing here knows which context is
// current or what may block: that is the business of package cuda.
package api
