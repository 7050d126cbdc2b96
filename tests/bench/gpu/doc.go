// Package gpu measures the packet path of a device that is fed by the NIC model: by a kernel of
// the same device, from rings that are full before they are read, or by copies from host memory.
// It runs on the host build of the device code as well, to be tested. Goroutines end with the
// function that has started them. Times are seconds of the host's clock, rates packets or flows
// per second, a pace is cycles of the device's clock per batch of 32 packets of one ring.
package gpu
