// Package cuda is the host side of the packet path on a GPU: it allocates rings and flow tables,
// launches the kernel of cuda/kernels once, feeds the rings through agp/source/relay, and turns
// what comes back into records. It does nothing per packet. The host emulation of tests/simt runs
// the same kernels behind the same interface, Device.
//
// Goroutines: Run's caller reads record rings and counters, another one runs the relay. Snapshot
// may be called from any goroutine. Memory belongs to the Pipeline until Close; the kernel reads and
// writes it from Launch until it has ended, on command (abi.Control) or by itself.
//
// Config.Mode says how a ring's packets are taken: by one warp, or by several that take batches in
// turns, in the order of the ring. Nothing but the rate of a ring depends on it. In ModeStateless the
// state warps have counters in the place of flows: there are no records, and a frame that was
// counted is in PacketsRecorded.
//
// Records are those of the reference, byte for byte, and so are the answers of models in them, the
// alerts and the findings of detectors. The device keeps how flows begin (abi.Head), says when a
// flow has come to a packet count at which models score it, when one begins and when a second has
// passed; agp/pipeline/score does the rest in the goroutine that reads the record rings. With
// detectors everything is put into the reference's order: it waits until all shards have passed a
// second, so live findings come a second or two late, and of what waits there is a limit. Without
// detectors nothing waits, and records and alerts come in no order. A full record ring loses
// messages as it loses records: each kind is counted.
//
// The host looks at record rings every 0.5 to 15 ms, as the rings' size and what comes allow, after a
// second without a record every 45 ms, and at heartbeats every sixteenth of Config.Heartbeat. A warp whose heartbeat stands still for Config.Heartbeat is hung:
// Run says which, and returns after Config.Patience at the latest, ErrHung, if the kernel does not end on command; then
// only the end of the process ends it. ErrDevice is a GPU that has failed, see Explain. What was in
// flows then is DropDeviceState, so that every packet has a record or a counted reason. On a flush
// the device waits for the host; what it has no time for is counted.
//
// Sketches are those of the reference, but for distinct counts that are estimated from the history of
// registers: flows that begin in one batch of 32 may come in another order. That changes the estimate
// by about 1 % at most, less than its standard error, and the registers not at all. Lists of heavy
// hitters with more keys than counters agree within the errors that they state.
//
// Times are ns since the Unix epoch of the packets' clock, lengths bytes.
package cuda
