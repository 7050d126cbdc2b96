//go:build !race

package packet_test

const raceFactor = 1
