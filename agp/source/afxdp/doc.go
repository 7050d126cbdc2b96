// Package afxdp receives frames from AF_XDP sockets as a source.Source. It owns the
// sockets, their rings and the packet buffers (UMEM); the XDP program that redirects
// to the sockets and the map they are entered into are the caller's.
//
// There is a socket per receive queue, or several (Config.PerQueue). All sockets of a
// source, those of a peer too, share one set of buffers; the sockets of a queue share
// its fill and completion ring. How the driver is used is found by trying, never by
// the kernel's version: zero-copy before copy, with several buffers per frame
// (multi-buffer) before one, with need-wakeup before without. Status says what came
// of it. The kernel's answer holds for all queues, since sockets that share buffers share
// the mode. Whether copy mode is native or generic is decided by how the XDP program is
// attached. If a program in generic mode is attached already, zero-copy is not tried,
// since it would bypass the program.
//
// One goroutine owns a Source; Interrupt alone may be called from any other. The
// package starts no goroutine. Open must run in the network namespace of the
// interfaces.
//
// Frames lie in their buffers until the batch comes back, as long as batches hold less
// than half of a queue's buffers; beyond that, and with a peer or several buffers per frame,
// they are copied to the batch's memory and the buffers given back at once, at the latest after
// 64 frames of a socket. So a slow pipeline never takes all: it shows as rx_ring_full.
// Sockets are served in turn. A batch that was given to a Source stays with it, and
// frames must not be read after Close. Next waits at most 50 ms.
//
// Lengths are bytes: Ethernet header to payload, no FCS. In copy mode a VLAN tag that the
// device has taken off is lost, and so is, in generic mode, how many frames a
// super-packet (TSO, GRO) was; both offloads belong switched off for diversion.
//
// Times are CLOCK_MONOTONIC plus an offset that is fixed at Open, ns since the Unix
// epoch: the time at which the batch was taken. With Config.Timestamps the XDP program
// can give each frame its own time: it reserves MetadataLen bytes with
// bpf_xdp_adjust_meta and stores
//
//	struct { __u64 time_ns; __u32 magic; __u32 clock; }
//
// with MetadataMagic and the clock that the time is of: ClockUTC for the device's
// (bpf_xdp_metadata_rx_timestamp, with a device clock that is set to UTC) or
// ClockMonotonic for bpf_ktime_get_ns. Frames without metadata get the time of the
// batch, and so do, counted in Stats().Repaired as bad_timestamp, those whose time
// differs by more than a second from the host's. Frames of several sockets are then
// merged by time. In any case times never decrease.
//
// An interface that is down delivers nothing; one that was removed ends the source
// with ErrGone. With a peer, a frame is sent as soon as it was taken; its buffer comes
// back after that. Frames whose checksum the sender has left to an offload are sent
// as they are.
package afxdp
