// Package engine is the child side of DESIGN §1: it takes its configuration from
// the plugin over an inherited socket, runs one pipeline and reports. It holds
// whatever the pipeline holds and ends when the plugin does.
//
// Goroutines: Serve's caller sends every event; one goroutine reads commands,
// one runs the pipeline, which calls the emitter. The emitter is the only thing
// they share. Serve returns when the source has ended and everything was
// reported, when told to stop, or when the plugin is gone; in the last two cases
// it does not wait for the pipeline, because the process is about to end.
//
// Clocks: rate limits and uptime use the wall clock of Options; packets carry
// their own time.
package engine
