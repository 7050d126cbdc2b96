// Package wire carries telemetry over the socket between plugin and engine:
// framing with limits, and conversion between telemetry values and agppb.
//
// A Conn may be used by one sender and one receiver at a time; Send locks, so
// several goroutines may send. Nothing here starts a goroutine or reads a clock.
package wire
