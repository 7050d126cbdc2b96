package mlx5

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Loads and stores of words that the other side may touch at the same time. Loads acquire:
// what is read after them is at least as new. Stores release: what was written before is
// visible before them. b is at least 4 bytes, aligned to 4.

// LoadBE32 loads a big-endian word.
func LoadBE32(b []byte) uint32 { return native(atomic.LoadUint32(word(b))) }

// StoreBE32 stores a big-endian word.
func StoreBE32(b []byte, v uint32) { atomic.StoreUint32(word(b), native(v)) }

func word(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(b[:4]))) }

var littleEndian = func() bool {
	v := uint16(1)
	return *(*byte)(unsafe.Pointer(&v)) == 1
}()

func native(v uint32) uint32 {
	if littleEndian {
		return bits.ReverseBytes32(v)
	}
	return v
}

// LoadOpOwn loads op_own and signature, which are polled.
func LoadOpOwn(cqe []byte) (opOwn, signature uint8) {
	v := LoadBE32(cqe[0x3c:CQESize])
	return uint8(v), uint8(v >> 8)
}

// WriteCQE hands a CQE over: the word with op_own is stored last.
func WriteCQE(slot []byte, c *[CQESize]byte) {
	copy(slot[:0x3c], c[:0x3c])
	StoreBE32(slot[0x3c:CQESize], be.Uint32(c[0x3c:]))
}

// CQDoorbell is the word SET_CI, the first of a completion queue's doorbell record.
func CQDoorbell(ci uint64) uint32 { return uint32(ci) & 0xffffff }

// RQDoorbell is the word RCV, the first of a receive queue's doorbell record, when posted
// WQEs have been given to the port in all.
func RQDoorbell(posted uint64) uint32 { return uint32(posted) & 0xffff }

// SQDoorbell is the word SND, the second of a send queue's doorbell record.
func SQDoorbell(posted uint64) uint32 { return uint32(posted) & 0xffff }

// SQDoorbellOffset is where SND is in a doorbell record.
const SQDoorbellOffset = 4

// Since returns how far the counter of so many bits, of which the lower ones are known, is
// ahead of base.
func Since(value uint32, base uint64, bits uint) uint64 {
	return (uint64(value) - base) & (1<<bits - 1)
}

// ArmAny and ArmSolicited are commands of CQArm.
const (
	ArmAny       uint32 = 0
	ArmSolicited uint32 = 1 << 24
)

// CQArm returns what asks a completion queue for an event: the word ARM, second of its
// doorbell record, and the 64 bits for the UAR at offset 0x20. sn counts events.
func CQArm(sn uint8, command uint32, ci uint64, cqn uint32) (record uint32, uar uint64) {
	record = uint32(sn&3)<<28 | command | CQDoorbell(ci)
	return record, uint64(record)<<32 | uint64(cqn)
}
