// Package oracle reads what independent programs say about a capture, so that
// tests can compare flow records with it: nDPI's per-flow lines (files beside
// the captures) and tshark's tcp.analysis fields (run by the test).
//
// Values keep the unit and the rounding of the program they come from; the
// comments say which. Nothing here is used outside tests.
package oracle
