// Package rig runs engines without a plugin and plugins without telegraf inside
// network namespaces, and compares what they report with what a capture holds.
//
// An Engine is a process with the protocol's socket; one goroutine reads its events
// and one collects its end. A Plugin is a process whose standard output is line
// protocol. Both may be used by several goroutines. Times are of the wall clock.
package rig
