// Package mlx5 knows the memory formats of ConnectX receive and send queues: completion
// queue entries (CQE), receive and send work queue entries (WQE), doorbell records, and the
// rules by which both sides take turns. Fields have the names of the Programmer's Reference
// Manual; numbers in memory are big-endian.
//
// It holds no state and does no I/O. Values of its types may be shared as long as nobody
// writes them; bytes that device and host share are touched with the loads and stores of
// memory.go only where the order matters, and with plain copies under their protection.
//
// Indices that count on (consumer index, WQE index) are uint64 here; hardware sees their lower
// 24 and 16 bits. Lengths are bytes. Times are as the CQE has them until a Clock makes them ns
// since the Unix epoch.
//
// A ring that agp/source/relay writes has its own use for some fields that a port leaves
// alone, see Relay.
package mlx5
