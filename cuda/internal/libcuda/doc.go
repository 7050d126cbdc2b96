// Package libcuda calls the driver's library, found at run time by dlopen: no
// toolkit, no header and no C compiler is needed. The library is loaded once
// and stays for the life of the process, as the driver keeps threads of its own.
//
// Memory that is passed to the driver for longer than one call is pinned until
// its owner says so (Log of a link).
package libcuda

import "errors"

// Errors of Load.
var (
	// ErrAbsent says that there is no library that could be loaded.
	ErrAbsent = errors.New("no CUDA driver: libcuda.so.1 cannot be loaded")
	// ErrTooOld says that the library lacks functions.
	ErrTooOld = errors.New("CUDA driver too old")
)
