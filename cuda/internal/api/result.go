package api

import "strconv"

// Result is what every function of the driver returns: CUresult. The values
// that a caller can do something about have names here.
type Result int32

// Results.
const (
	Success                   Result = 0
	InvalidValue              Result = 1
	OutOfMemory               Result = 2
	NotInitialized            Result = 3
	Deinitialized             Result = 4
	StubLibrary               Result = 34
	CallRequiresNewerDriver   Result = 36
	DeviceUnavailable         Result = 46
	NoDevice                  Result = 100
	InvalidDevice             Result = 101
	InvalidImage              Result = 200
	InvalidContext            Result = 201
	NoBinaryForGPU            Result = 209
	EccUncorrectable          Result = 214
	InvalidPTX                Result = 218
	NvlinkUncorrectable       Result = 220
	JITCompilerNotFound       Result = 221
	UnsupportedPTXVersion     Result = 222
	JITCompilationDisabled    Result = 223
	Contained                 Result = 226
	OperatingSystem           Result = 304
	InvalidHandle             Result = 400
	NotFound                  Result = 500
	NotReady                  Result = 600
	IllegalAddress            Result = 700
	LaunchOutOfResources      Result = 701
	LaunchTimeout             Result = 702
	ContextIsDestroyed        Result = 709
	Assert                    Result = 710
	HardwareStackError        Result = 714
	IllegalInstruction        Result = 715
	MisalignedAddress         Result = 716
	InvalidAddressSpace       Result = 717
	InvalidPC                 Result = 718
	LaunchFailed              Result = 719
	CooperativeLaunchTooLarge Result = 720
	NotPermitted              Result = 800
	NotSupported              Result = 801
	SystemNotReady            Result = 802
	SystemDriverMismatch      Result = 803
	CompatNotSupported        Result = 804
	MPSConnectionFailed       Result = 805
	FunctionNotLoaded         Result = 913
	Unknown                   Result = 999
)

// Names are the driver's names of the results above, for where no driver can be asked.
var Names = map[Result]string{
	Success:                   "CUDA_SUCCESS",
	InvalidValue:              "CUDA_ERROR_INVALID_VALUE",
	OutOfMemory:               "CUDA_ERROR_OUT_OF_MEMORY",
	NotInitialized:            "CUDA_ERROR_NOT_INITIALIZED",
	Deinitialized:             "CUDA_ERROR_DEINITIALIZED",
	StubLibrary:               "CUDA_ERROR_STUB_LIBRARY",
	CallRequiresNewerDriver:   "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
	DeviceUnavailable:         "CUDA_ERROR_DEVICE_UNAVAILABLE",
	NoDevice:                  "CUDA_ERROR_NO_DEVICE",
	InvalidDevice:             "CUDA_ERROR_INVALID_DEVICE",
	InvalidImage:              "CUDA_ERROR_INVALID_IMAGE",
	InvalidContext:            "CUDA_ERROR_INVALID_CONTEXT",
	NoBinaryForGPU:            "CUDA_ERROR_NO_BINARY_FOR_GPU",
	EccUncorrectable:          "CUDA_ERROR_ECC_UNCORRECTABLE",
	InvalidPTX:                "CUDA_ERROR_INVALID_PTX",
	NvlinkUncorrectable:       "CUDA_ERROR_NVLINK_UNCORRECTABLE",
	JITCompilerNotFound:       "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
	UnsupportedPTXVersion:     "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	JITCompilationDisabled:    "CUDA_ERROR_JIT_COMPILATION_DISABLED",
	Contained:                 "CUDA_ERROR_CONTAINED",
	OperatingSystem:           "CUDA_ERROR_OPERATING_SYSTEM",
	InvalidHandle:             "CUDA_ERROR_INVALID_HANDLE",
	NotFound:                  "CUDA_ERROR_NOT_FOUND",
	NotReady:                  "CUDA_ERROR_NOT_READY",
	IllegalAddress:            "CUDA_ERROR_ILLEGAL_ADDRESS",
	LaunchOutOfResources:      "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
	LaunchTimeout:             "CUDA_ERROR_LAUNCH_TIMEOUT",
	ContextIsDestroyed:        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	Assert:                    "CUDA_ERROR_ASSERT",
	HardwareStackError:        "CUDA_ERROR_HARDWARE_STACK_ERROR",
	IllegalInstruction:        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
	MisalignedAddress:         "CUDA_ERROR_MISALIGNED_ADDRESS",
	InvalidAddressSpace:       "CUDA_ERROR_INVALID_ADDRESS_SPACE",
	InvalidPC:                 "CUDA_ERROR_INVALID_PC",
	LaunchFailed:              "CUDA_ERROR_LAUNCH_FAILED",
	CooperativeLaunchTooLarge: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
	NotPermitted:              "CUDA_ERROR_NOT_PERMITTED",
	NotSupported:              "CUDA_ERROR_NOT_SUPPORTED",
	SystemNotReady:            "CUDA_ERROR_SYSTEM_NOT_READY",
	SystemDriverMismatch:      "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	CompatNotSupported:        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
	MPSConnectionFailed:       "CUDA_ERROR_MPS_CONNECTION_FAILED",
	FunctionNotLoaded:         "CUDA_ERROR_FUNCTION_NOT_LOADED",
	Unknown:                   "CUDA_ERROR_UNKNOWN",
}

// Error implements error, so that a Result is a target of errors.Is.
func (r Result) Error() string {
	if n := Names[r]; n != "" {
		return n
	}
	return "CUDA result " + strconv.Itoa(int(r))
}

// Poisons says that the context, and with most drivers the process, can do
// nothing more after this result: every later call returns it again.
func (r Result) Poisons() bool {
	switch r {
	case EccUncorrectable, NvlinkUncorrectable, Contained, IllegalAddress, LaunchTimeout, ContextIsDestroyed, Assert,
		HardwareStackError, IllegalInstruction, MisalignedAddress, InvalidAddressSpace, InvalidPC, LaunchFailed:
		return true
	}
	return false
}
