// Package detect finds what only several flows together show: floods and reflections,
// scans, password guessing, beacons, tunnels over DNS and ICMP, two-valued timing. Its
// input is the first packet of every flow (FlowStart) and every finished flow (FlowEnd),
// its output are alerts.
//
// A Detector belongs to one goroutine, the pipeline's collector, which feeds it in one
// deterministic order; the alert function is called from there. All times are capture time
// in ns; the package never reads a clock. The same events give the same alerts.
//
// State is a handful of tables of fixed size, allocated by New. Subjects are named by
// keyed 64-bit hashes, distinct counts are 256-bit linear counters. When a table's bucket
// is full, the entry whose window has passed, else the one with the smallest count, gives
// way: whoever sends a million addresses cannot make the tables grow, nor drive out a
// subject that counts more than each of theirs. What is slower than the noise around it
// can be lost; Stats.Evicted tells how much noise there is.
//
// Windows are per subject: the first event opens one, an event later than its length opens
// the next. A finished flow may come up to the idle timeout after its last packet, so
// windows of finished flows also take events up to twice their length older than their
// opening. An event older still means that the clock has stepped back (joined captures):
// it opens a window too.
//
// A rule fires when its count is reached, once per kind and subject; it is armed again
// when nothing was found for HoldDown seconds of capture time. Alerts held back, by that
// or by MaxAlertsPerMinute, are counted.
//
// An alert is Confirmed if at least as many flows as its threshold asks for were
// (telemetry.Record.Confirmed), of one flow if that was. Floods, scans and what is not
// TCP never are: nothing proves who sent them. A finding that becomes confirmed after
// its alert is reported once more.
//
// Rules and thresholds do not know addresses. Each rule's comment says what it takes for
// an attack, why a benign host does not look like that, and what it misses.
package detect
