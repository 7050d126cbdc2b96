// Package place decides where a queue's memory and its doorbell go, by trying: what a driver, a
// kernel and a card allow together cannot be told from their versions. The calls are behind
// Host, so that each of them can be made to fail in a test.
//
// Choose keeps no state and belongs to the goroutine that calls it.
package place
