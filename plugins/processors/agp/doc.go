// Package agp is the telegraf streaming processor "agp": it runs the detectors on flows that
// other inputs have metered (NetFlow, IPFIX, sFlow, Suricata, cloud flow logs), and classifies
// metrics that carry this project's histograms.
//
// Every metric leaves in the order in which it came, at once and once; what is found comes beside
// it as agp_top, agp_sketch, agp_alert and agp_processor. A flow waits for its other direction in
// a buffer of fixed size (see buffer) and then goes to the detectors by its own times, which are ns
// since 1970. The wall clock only says how long a flow has waited.
//
// Goroutines: telegraf calls Init, Start, Add and Stop; one goroutine of the plugin's own turns
// the buffer over and reports. Both take the plugin's lock, which also guards the scorer.
package agp
