// Package agp is telegraf's aggregator "agp": it merges the sketches and the lists of heavy hitters that
// inputs.agp of many hosts report, per period, so that one reading is about all of them. Distinct
// counts are united and quantiles added, which gives what one sketch of all traffic would say; heavy
// hitters are added by key, with a bound for what the lists do not show.
//
// A host's readings replace each other: of each series the latest in time counts, and what comes late
// is counted and left out. Counts, bytes and times are in the units of agp_sketch and agp_top.
//
// Telegraf calls Add, Push and Reset from one goroutine at a time. Memory is bounded by max_sources.
package agp
