// Package flow owns the flow semantics that every pipeline reproduces: the key,
// the record's counters, timeouts, TCP closing and loss analysis. It is the
// reference; the CUDA pipeline is compared with it byte for byte.
//
// A Table belongs to one goroutine. All times are ns since the Unix epoch on the
// capture's clock; the package never reads a clock of its own. Steady state
// (packets of known flows) allocates nothing; state lives in pointer-free slabs
// that grow with the number of active flows and are reused, never shrunk.
package flow
