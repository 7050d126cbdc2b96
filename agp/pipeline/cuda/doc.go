// Package cuda is the host side of the packet path on a GPU: it allocates rings and flow tables,
// launches the kernel of cuda/kernels once, feeds the rings through agp/source/relay, and turns
// what comes back into records. It does nothing per packet. The host emulation of tests/simt runs
// the same kernels behind the same interface, Device.
//
// Goroutines: Run's caller reads record rings and counters, another one runs the relay. Snapshot
// may be called from any goroutine. Memory belongs to the Pipeline until Close; the kernel reads and
// writes it from Launch until it has ended, on command (abi.Control) or by itself.
//
// Records are those of the reference, byte for byte, in no order. Not yet here: models, sketches,
// detectors, and packets that come from a port by itself.
//
// Times are ns since the Unix epoch of the packets' clock, lengths bytes.
package cuda
