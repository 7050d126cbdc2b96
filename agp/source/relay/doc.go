// Package relay publishes the frames of any source.Source as completions of mlx5 receive
// queues, so that whatever polls such queues, a GPU first of all, can have frames of any
// capture interface or file.
//
// A Relay plays the port: it copies a frame into the slot of the next posted receive WQE and
// writes a CQE with the fields of mlx5.Relay. A frame that is longer than the slot is cut; its
// wire length stays. The relay finds a frame's flow and gives all its frames to one queue, as the CPU
// pipeline does, so that records do not depend on the number of queues; frames that belong to
// no flow go to all queues in turn. At every tick of the packets' clock (flow.Clock) each
// queue gets a CQE without a packet, in its place among the packets.
//
// When a queue is full the relay waits, and with it all others, or, if Config.Drop is set, drops the
// frame and counts it as rx_ring_full; ticks wait then until there is room. An error of the
// queue's consumer shows as a queue that stays full.
//
// One goroutine calls Run. Stats and Counters may be called from any, ClockNs from that of Run
// and, once that has returned, from any. The memory of the queues is shared with their
// pollers, see agp/mlx5 for the order of loads and stores. Times are ns since the Unix epoch on the
// source's clock; the relay's own clock only paces its waiting.
package relay
