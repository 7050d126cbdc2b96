// Package traffic writes synthetic captures whose content is known exactly.
//
// A Capture is a list of flows and of packet descriptions; frames are rendered
// only when they are written, so that millions of packets need little memory.
// The same seed always gives the same bytes. Times are nanoseconds since the
// Unix epoch in the capture's own clock; nothing here reads the wall clock.
// A Capture belongs to one goroutine.
//
// Tests build small captures flow by flow (see Flow) and ask for the Truth;
// Demo, Bench, Flood and ManyFlows are complete profiles. Synthetic traffic is
// for tests, benchmarks and the demo only: no accuracy figure comes from it.
package traffic
