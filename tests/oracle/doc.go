// Package oracle reads what independent programs say about a capture, so that
// tests can compare flow records with it: nDPI's per-flow lines (files beside
// the captures) and tshark's tcp.analysis fields (run by the test).
//
// Nothing here keeps state, starts a goroutine or reads a clock; times are those
// of the capture. Values keep the unit and the rounding of the program they come from; the
// comments say which. Nothing here is used outside tests.
package oracle
