// Package supervise owns one engine process: it starts it, speaks the protocol
// of agppb with it, watches it, restarts it and stops it. The plugin
// process holds no device, so whatever happens to the engine stays here.
//
// Goroutines: Start launches one loop goroutine, bound to its OS thread for as
// long as an engine lives, because the kernel sends the parent-death signal when
// that thread ends; per engine there is one goroutine that reads its events and
// calls Handler, one that collects its stderr and one that waits for its exit.
// Stop ends them all. Status, Send and SwapModels may be called from any goroutine.
//
// A GPU that fails three engines in a row is left alone for a while where the engine may
// choose: it is told so with its configuration, and why.
//
// Clocks: health and backoff use Config.Clock; socket deadlines use the wall
// clock of the kernel. Counters in Status are monotonic across restarts.
package supervise
