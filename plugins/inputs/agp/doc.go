// Package agp is the telegraf service input "agp": it supervises one engine
// process and turns what the engine reports into metrics. The rules of
// these: what has many values is a field and what has few is a tag, readings that
// do not exist are left out, counters never step back, and no field changes its type.
//
// Goroutines: telegraf calls Init, Start, Gather and Stop; records and alerts
// arrive on the supervisor's reading goroutine. The Converter, which both use,
// locks. Times of metrics are wall clock; capture times are in fields whose name
// ends in _ns. Integers are signed 64 bit, and counters beyond that wrap to
// their low 63 bits.
//
// The Converter is exported so that telegraf-agp replay prints the very same
// points.
package agp
