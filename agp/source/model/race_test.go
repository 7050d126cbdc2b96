//go:build race

package model

// wrapFrames is past the 16 bits of the WQE index; the detector makes more take minutes.
const wrapFrames = 1<<18 + 1<<13
