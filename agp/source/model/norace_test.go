//go:build !race

package model

// wrapFrames is past the 24 bits of the consumer index.
const wrapFrames = 1<<24 + 1<<17
