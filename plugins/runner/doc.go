// Package runner runs one telegraf input or streaming processor as a child of
// telegraf's inputs.execd or processors.execd. It speaks line protocol on
// standard output, log lines on standard error and gather requests (or, for a
// processor, metrics) on standard input, over telegraf's public interfaces
// only, so a plugin package that is registered with telegraf's registries runs
// unchanged both here and compiled in.
//
// # Ownership and goroutines
//
// Run owns everything it starts and returns when all of it has ended or the
// stop budget is spent:
//
//   - the caller's goroutine is the supervisor: signals, timers, start, stop;
//   - the reader owns standard input;
//   - the gatherer calls Gather, Reload and nothing else. Gather never runs in
//     parallel with itself, with Reload, with a processor's Add or with Stop;
//   - the writer is the only one that touches standard output;
//   - the log writer is the only one that touches standard error.
//
// A plugin may call its accumulator from any number of goroutines, from inside
// Start, Gather and Stop, and after Stop (those metrics are counted as drops).
//
// # Flow control
//
// Metrics are encoded by the goroutine that adds them, straight into a bounded
// queue of line protocol. When the queue is full because telegraf reads slowly,
// an input waits as long as telegraf makes progress. When telegraf reads nothing
// for Options.StallTimeout the metric is dropped and counted, and so is every
// further one until telegraf reads again: a plugin never hangs on its output. A processor instead
// stops reading its own input, so that back-pressure reaches telegraf and no
// metric is lost. Delivery is at most once: bytes in the pipe when telegraf
// dies are gone.
//
// # Values
//
// Lines equal those of telegraf's influx serializer except where that one
// writes what no parser reads back. Line protocol of InfluxDB 1.x has no
// unsigned integers: a uint64 is written as signed. Above 2^63-1 the value of a
// counter (AddCounter) wraps to its low 63 bits, which rate functions treat as
// one reset; any other value is clamped to 2^63-1 as telegraf does. NaN and
// infinite fields are left out. Two points of one series and time would
// overwrite each other in InfluxDB, so the later one is moved by 1 ns.
//
// Times are wall clock in nanoseconds since 1970; durations in self metrics are
// seconds; sizes are bytes.
//
// # Lifecycle
//
// End of standard input, SIGTERM, SIGINT, a closed standard output and the end
// of the context all stop the plugin: no further Gather or Add, then Stop, which
// may still emit, then flush, then a wait until telegraf has emptied the pipe
// (execd closes its end as soon as the child is gone). All this takes at most
// Options.StopTimeout, which is below the 5 s after which execd sends SIGTERM.
// A second signal exits at once. SIGUSR1 and SIGUSR2 gather; SIGHUP calls
// Reload of a plugin that has it, else it gathers too.
package runner
