// Package afpacket is the source.Source of running interfaces where no BPF program can
// be attached: packet sockets with TPACKET_V3 rings, which show the frames of
// both directions while the traffic goes on.
//
// One goroutine owns a Source; Interrupt alone may be called from any other. The
// package starts no goroutine. A Source owns its sockets and their memory, which is
// fixed: RingBytes for each ring, and the kernel's drop count says when that
// was too little. The sockets belong to the network namespace of the thread that calls
// Open.
//
// Each interface has as many rings as the kernel is to fill at the same time
// (PACKET_FANOUT_HASH: both directions of a flow share one). The kernel hands over
// blocks of frames, full or after 8 ms. Rings are polled without system calls and
// merged by time; with several rings, a frame waits at most 25 ms for older ones of a ring
// that is quiet, and not at all if its ring is half full.
//
// Times are the kernel's, realtime in ns: a step of the system's clock shows. A frame that
// comes late is delivered with its own time and counted in
// Stats().Repaired["out_of_order"].
//
// Frames are cut to SnapLen by a filter and copied; WireLen is the true length. A VLAN tag that
// hardware took out of a frame is put back. Frames that the kernel coalesced have their
// SegmentSize (PACKET_VNET_HDR).
//
// Counted drops: kernel_drop (a ring was full, or a coalesced frame is neither TCP nor UDP; the
// kernel counts a coalesced frame once, so that this is a lower bound of frames on the wire),
// duplicate and malformed (frames on the wire).
//
// An interface that is down is waited for. One that was removed, or moved to another
// namespace, ends the input with ErrGone.
package afpacket
