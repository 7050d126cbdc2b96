package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
	"github.com/agp-net/telegraf-agp/cuda/internal/libcuda"
)

// Errors that do not come from the driver.
var (
	// ErrNoDriver says that libcuda.so.1 is not there or cannot be loaded.
	ErrNoDriver = libcuda.ErrAbsent
	// ErrOldDriver says that libcuda.so.1 lacks functions.
	ErrOldDriver = libcuda.ErrTooOld
	// ErrBusy says that the call would not return before a persistent kernel ends.
	ErrBusy = errors.New("a persistent kernel is running")
	// ErrClosed says that something is used after it was given back.
	ErrClosed = errors.New("already closed")
	// ErrArgument says that an argument cannot be right.
	ErrArgument = errors.New("bad argument")
)

// Result is what a function of the driver returns. As an error it is a target
// for errors.Is.
type Result = api.Result

// Results that a caller can do something about.
const (
	OutOfMemory               = api.OutOfMemory
	InvalidValue              = api.InvalidValue
	StubLibrary               = api.StubLibrary
	CallRequiresNewerDriver   = api.CallRequiresNewerDriver
	DeviceUnavailable         = api.DeviceUnavailable // in use, in exclusive mode
	NoDevice                  = api.NoDevice
	InvalidDevice             = api.InvalidDevice
	InvalidImage              = api.InvalidImage
	InvalidContext            = api.InvalidContext
	NoBinaryForGPU            = api.NoBinaryForGPU
	EccUncorrectable          = api.EccUncorrectable
	NvlinkUncorrectable       = api.NvlinkUncorrectable
	Contained                 = api.Contained // an uncorrectable error that only this process had to do with
	InvalidPTX                = api.InvalidPTX
	JITCompilerNotFound       = api.JITCompilerNotFound
	UnsupportedPTXVersion     = api.UnsupportedPTXVersion
	InvalidHandle             = api.InvalidHandle
	NotFound                  = api.NotFound
	NotReady                  = api.NotReady
	IllegalAddress            = api.IllegalAddress
	LaunchOutOfResources      = api.LaunchOutOfResources
	LaunchTimeout             = api.LaunchTimeout
	ContextIsDestroyed        = api.ContextIsDestroyed
	Assert                    = api.Assert
	HardwareStackError        = api.HardwareStackError
	IllegalInstruction        = api.IllegalInstruction
	MisalignedAddress         = api.MisalignedAddress
	InvalidAddressSpace       = api.InvalidAddressSpace
	InvalidPC                 = api.InvalidPC
	LaunchFailed              = api.LaunchFailed
	CooperativeLaunchTooLarge = api.CooperativeLaunchTooLarge
	NotPermitted              = api.NotPermitted
	NotSupported              = api.NotSupported
	SystemNotReady            = api.SystemNotReady
	SystemDriverMismatch      = api.SystemDriverMismatch // library and kernel module
	Unknown                   = api.Unknown
)

// Error is a call that the driver refused. errors.Is finds its Result.
type Error struct {
	Call string // "cuMemAlloc"
	Code Result
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // "out of memory", the driver's own words
	Log  string // what its compiler said, if it was asked for something
}

// Error implements error.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, int(e.Code))
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Log != "" {
		s += ": " + e.Log
	}
	return s
}

// Unwrap returns the result.
func (e *Error) Unwrap() error { return e.Code }

// Poisoned says that err leaves the context, and as a rule the process, unable to
// do anything more on the device.
func Poisoned(err error) bool {
	var r Result
	return errors.As(err, &r) && r.Poisons()
}

// failed returns nil for Success.
func failed(d api.Driver, call string, r Result) error {
	if r == api.Success {
		return nil
	}
	e := &Error{Call: call, Code: r, Name: d.GetErrorName(r), Text: d.GetErrorString(r)}
	if e.Name == "" {
		e.Name = r.Error()
	}
	return e
}

// withLog adds the compiler's words to an error of failed.
func withLog(err error, log *api.Log) error {
	var e *Error
	if errors.As(err, &e) {
		e.Log = strings.Join(strings.Fields(api.Text(log.Error)), " ")
	}
	return err
}
