// Package telemetry owns the vocabulary of what the engine reports: flow
// records, alerts, the periodic snapshot and the final summary, with their
// public names.
//
// Visit is the only place that knows the names, the order and the presence
// rules of a record; JSON lines, telegraf fields and the protobuf schema in
// agppb follow it (a test compares them).
//
// Units are in the names: _ns is nanoseconds, _bytes bytes; times are capture
// or NIC time since the Unix epoch. The package starts no goroutine; its values
// belong to whoever fills them and nothing here locks.
package telemetry
