// Package gpu reads what NVIDIA's management library says about GPUs: power,
// energy, clocks, memory, traffic on PCIe, errors, and the memory of this process.
//
// The library is found at run time by dlopen, as the driver's is, so that the
// program needs no C compiler. github.com/NVIDIA/go-nvml needs one, which is why
// it is only asked by the tests: there its mock servers stand behind the same
// narrow interface, and its structures are compared with ours.
//
// A Reader owns one goroutine, which asks the library again and again: some
// answers take 20 ms, and a library that hangs must not hold up the engine's
// reports. Read copies the last answers and is safe for concurrent use.
//
// Units are in the names of telemetry.GPURow.
package gpu
