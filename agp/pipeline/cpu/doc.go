// Package cpu is the reference pipeline: it needs nothing but a CPU and defines
// what every other pipeline must produce.
//
// Goroutines and what they own:
//
//	dispatcher (Run's caller)  source, parser, fragment table, capture clock
//	one worker per queue       flow table, sketches, model scorer of the queue
//	collector                  merges the queues' events by packet number; detectors, traffic rows, sink
//
// The dispatcher parses a batch once and shows it to all workers; a worker takes
// the packets of its queue. Whatever has to be independent of the number of
// queues and of batch sizes is decided by packet numbers and by the capture
// clock, which ticks at packet positions: records, alerts and their order are
// the same for 1 or 16 queues.
//
// Times are ns since the Unix epoch on the capture's clock; the wall clock is
// read only to measure packet-to-score latency, and by live sources to let time
// pass without packets.
package cpu
