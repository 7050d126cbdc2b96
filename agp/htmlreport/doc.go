// Package htmlreport turns what a pipeline finds into one HTML page that needs nothing beside
// itself: no script, no font, no image from elsewhere, and a policy in the page that forbids
// them.
//
// A Builder is a pipeline's sink and belongs to the goroutine that calls it. Its memory, and
// with it the page, is bounded whatever the input: a fixed number of points per plot, and the
// largest of what can be many. Times are ns of the packets' clock, lengths bytes. Names come
// from traffic, files and models; none is trusted.
package htmlreport
