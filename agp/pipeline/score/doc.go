// Package score is what all pipelines do with models and detectors once they have flows: which
// models score a flow and when, who gets the answers, what becomes an alert, and what records and
// alerts add up to.
//
// A Scorer belongs to one goroutine or to the lock of its user, as Findings do. Answers may be
// shared by the scorers of many goroutines. Times are ns since the Unix epoch of the packets'
// clock; the wall clock is read only to measure how long flows waited for their scores.
package score
