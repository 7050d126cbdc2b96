package model

import "encoding/binary"

// A canary is the last 6 bytes of a frame, instead of what was there: a 32-bit sum over all
// bytes before, and a 16-bit number that counts the frames of a queue, both little-endian. It
// shows a frame that was read before all of it had arrived, and one that is missing.
const (
	CanarySize = 6
	// CanaryMin is the shortest frame that has one: the headers of a shorter one would suffer.
	CanaryMin = 60
)

const canaryPrime = 0x9e3779b1

// PutCanary writes a canary and says whether the frame is long enough.
func PutCanary(frame []byte, serial uint16) bool {
	if len(frame) < CanaryMin {
		return false
	}
	n := len(frame) - CanarySize
	binary.LittleEndian.PutUint32(frame[n:], canarySum(frame[:n], serial))
	binary.LittleEndian.PutUint16(frame[n+4:], serial)
	return true
}

// CheckCanary returns a frame's number and whether the frame is whole.
func CheckCanary(frame []byte) (serial uint16, ok bool) {
	if len(frame) < CanaryMin {
		return 0, false
	}
	n := len(frame) - CanarySize
	serial = binary.LittleEndian.Uint16(frame[n+4:])
	return serial, binary.LittleEndian.Uint32(frame[n:]) == canarySum(frame[:n], serial)
}

// canarySum adds the 32-bit little-endian words, each times an odd number that differs from
// its neighbours', so that parts can be summed in any order. Missing bytes are 0.
func canarySum(b []byte, serial uint16) uint32 {
	sum, weight := uint32(serial)*canaryPrime, uint32(1)
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.LittleEndian.Uint32(b) * weight
		weight += 2
	}
	var last [4]byte
	copy(last[:], b)
	return sum + binary.LittleEndian.Uint32(last[:])*weight
}
