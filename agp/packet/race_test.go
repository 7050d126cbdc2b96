//go:build race

package packet_test

// raceFactor makes the longest tests shorter under the race detector; they run in full without it.
const raceFactor = 10
