// Package cuda is a binding of the CUDA driver API: devices, a context, memory,
// modules, streams, launches and events. It needs no toolkit and no C compiler,
// the library is found when Open is called (internal/libcuda).
//
// # Ownership
//
// A Driver is for the life of the process. Device.Retain gives a Context, a share
// of the device's primary context; whoever retained it closes it, after everything
// that came from it: Module, Stream, Event, HostBuffer and what Alloc gave. Close,
// Free and Unload can be called twice. What is used after that answers ErrClosed;
// a DevicePtr is a number, the driver or the device finds out.
//
// # Threads
//
// Any goroutine may call any method at any time, save that nothing else of a
// Context may be running in its Close. CUDA keeps "the current context" per
// thread of the operating system and the Go runtime moves goroutines between
// threads, so every call holds its thread and sets its context first. No thread
// rule is left to a caller. A foreign library that wants a current context is
// called inside Context.Do.
//
// # A kernel that does not end
//
// While a persistent kernel runs, some calls do not return before it has ended,
// which is measured, not documented. The package takes note of a Launch that is
// Persistent and answers ErrBusy to these as long as it runs:
//
//   - Context.Load, Module.Unload and Module.Function, which may load
//   - Context.Free and HostBuffer.Free
//   - Context.Close
//   - a launch whose kernel needs more local memory per thread than any before it
//
// Everything else works meanwhile, in particular Alloc, HostAlloc, Link, copies,
// streams, events, and launches of functions that were looked up before. New code
// comes in by Link while the kernel runs, and Load and Launch after it has been
// told to stop. Persistence is known per Context value, so a process has one
// Context per device. All streams are non-blocking ones: they do not wait for
// the default stream, nor it for them.
//
// # Units
//
// Sizes are bytes, clocks kHz as CUDA has them. Times between events are those of
// the device, with a resolution of about half a microsecond.
package cuda
