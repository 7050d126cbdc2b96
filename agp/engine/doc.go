// Package engine is the child process of the plugin, which holds no packet itself:
// it takes its configuration from the plugin over an inherited socket, runs one
// pipeline and reports. It holds whatever the pipeline holds and ends when the
// plugin does.
//
// Goroutines: Serve's caller sends snapshots, signs of life and answers to
// commands; one goroutine reads commands, one sends records and alerts, one runs
// the pipeline, which calls the emitter, and one per list of model files follows
// changes of them. They share the emitter, which locks, and the connection, whose
// Send may be called from all of them. Serve returns when the source has ended and everything was
// reported, when told to stop, or when the plugin is gone; in the last two cases
// it does not wait for the pipeline, because the process is about to end.
//
// A GPU that the configuration gives to the pipeline is chosen and opened before the
// source and belongs to the pipeline's GPU context and to the reader of its management
// library until Close. An engine whose GPU has failed ends: only another process can use
// it again, and the plugin tells that one whether to try.
//
// Clocks: rate limits and uptime use the wall clock of Options; packets carry
// their own time.
package engine
