// Package live has what sources of a running interface share: the clock and the
// pace of polling, the link type of a device, the VLAN tag that hardware took out of
// a frame, the number of frames that a coalesced one is on the wire, and the
// recognition of a frame that was captured twice.
//
// It owns no goroutine. Each value belongs to the one goroutine that uses it, except
// the system's Clock, which any may use.
//
// Units: bytes and ns. Two clocks occur: the monotonic one, which the kernel's BPF
// programs stamp frames with and which waits are measured by, and the realtime one of
// frames that are delivered.
package live
