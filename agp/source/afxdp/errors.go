package afxdp

import "errors"

// What Open and Next wrap with the interface and, where there is one, the queue.
var (
	// ErrConfig: the configuration contradicts itself.
	ErrConfig = errors.New("invalid configuration")
	// ErrInterface: there is no such interface in this network namespace.
	ErrInterface = errors.New("no such interface")
	// ErrQueue: the device has no such receive queue.
	ErrQueue = errors.New("no such receive queue")
	// ErrMode: the driver does not offer the mode that was asked for.
	ErrMode = errors.New("mode is not available")
	// ErrMTU: a frame of the interface's MTU does not fit one buffer and several
	// buffers per frame are not available.
	ErrMTU = errors.New("MTU is too large")
	// ErrBusy: another AF_XDP socket has the queue or its slot of the map.
	ErrBusy = errors.New("queue is in use by another AF_XDP socket")
	// ErrPermission: a capability is missing; the error names it.
	ErrPermission = errors.New("not permitted")
	// ErrMemory: the buffers cannot be allocated or pinned.
	ErrMemory = errors.New("no memory for packet buffers")
	// ErrUnsupported: the kernel has no AF_XDP.
	ErrUnsupported = errors.New("kernel has no AF_XDP")
	// ErrGone: the interface was removed or left the network namespace.
	ErrGone = errors.New("interface is gone")
)
