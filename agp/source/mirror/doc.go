// Package mirror is the source.Source of frames that BPF programs copy while the
// traffic goes on to the kernel: it reads the per-CPU ring buffers
// (BPF_MAP_TYPE_RINGBUF) that the programs of package steer fill.
//
// One goroutine owns a Source; Interrupt alone may be called from any other. The
// package starts no goroutine. A Source owns its mappings of the rings, not the maps.
//
// Reading takes no system call: the rings are mapped and polled, without a sleep
// while batches are full, otherwise with one of 50 us to 2 ms. The kernel never
// wakes the reader, so that the traffic does not pay for it.
//
// Order: the rings are merged by the time that the programs stamped. What is
// younger than 100 us is left for the next poll, because an older record of another
// CPU may still be written. A record that is being written holds back what is
// younger than it can be, for at most 5 ms. What still comes late, or is out of order
// within one ring, is delivered with its own time and counted in
// Stats().Repaired["out_of_order"].
//
// Times: programs stamp CLOCK_MONOTONIC, frames have ns since the Unix epoch by an
// offset measured once, so that steps of the system's clock do not show. Time in
// suspend is therefore missing from them.
//
// Frames are copied into the batch's buffer, so that ring memory is free again when
// Next returns. A VLAN tag that hardware took out of a frame is put back and counts in
// WireLen. A frame that the kernel coalesced has its SegmentSize; the one kind that
// has no single size (GSO_BY_FRAGS, SCTP) is delivered as one frame and counted in
// Stats().Repaired["gso_by_frags"].
//
// The Side of a frame is the interface where it came in, at egress too if it is
// forwarded; SideOut is what this machine has made.
//
// Counted drops, in frames on the wire: ring_full (the programs' own count),
// duplicate (see live.Duplicates), malformed (a record that contradicts itself) and
// unknown_interface. A ring whose records do not follow each other ends the input with
// ErrCorrupt.
package mirror
