// Package poll takes packets out of an mlx5 receive queue in host memory. It is the reference
// of what cuda/kernels/ring.cuh does with one in GPU memory, and lets a CPU pipeline use the
// NIC model or the relay.
//
// The rules, for a batch:
//
//  1. Of the next CQEs, count those that are ready: a prefix, each judged by an acquiring load
//     of the word with op_own and by nothing else.
//  2. If writes of the port can be late (payload behind its CQE), flush them: Config.Flush.
//  3. Read the CQEs, the half with op_own first, and their payload.
//  4. A CQE must name the receive WQE that is next, else the queue is out of step: ErrDesync.
//     An error CQE with syndrome 02, 04 or 05 asks for a reset: ErrReset. Any other one
//     has lost its WQE and nothing more. A compressed CQE is refused: ErrCompressed. Other
//     opcodes are counted and take no WQE.
//  5. Give back in order, by releasing stores: the completion queue's doorbell record,
//     then that of the receive queue, which lets the port go on.
//
// A Poller belongs to one goroutine, and so does the memory that it was given, shared with
// whatever writes it. Packets point into slots and are valid until Release. Times are ns since
// the Unix epoch. Nothing allocates after New.
package poll
