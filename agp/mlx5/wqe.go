package mlx5

import "errors"

// TerminatorLKey ends the list of buffers of a receive WQE early.
const TerminatorLKey = 0x100

// InlineFlag in DataSeg.ByteCount says that the data follows the count.
const InlineFlag = 1 << 31

// DataSeg is a data segment: a buffer of a WQE.
type DataSeg struct {
	ByteCount uint32
	LKey      uint32
	Addr      uint64
}

// Encode writes the first DataSegSize bytes of b.
func (s *DataSeg) Encode(b []byte) {
	be.PutUint32(b, s.ByteCount)
	be.PutUint32(b[4:], s.LKey)
	be.PutUint64(b[8:], s.Addr)
}

// Decode reads the first DataSegSize bytes of b.
func (s *DataSeg) Decode(b []byte) {
	*s = DataSeg{ByteCount: be.Uint32(b), LKey: be.Uint32(b[4:]), Addr: be.Uint64(b[8:])}
}

// Opcodes of send WQEs.
const (
	SendNop  uint8 = 0x00
	SendSend uint8 = 0x0a
	SendTSO  uint8 = 0x0e
	SendWait uint8 = 0x0f
	SendDump uint8 = 0x23 // reads memory and sends nothing
	SendEMPW uint8 = 0x29
)

// Values of CtrlSeg.FMCESE that say when a send WQE makes a CQE.
const (
	CQEOnError uint8 = 0x04
	CQEAlways  uint8 = 0x08
)

// CtrlSeg is the control segment of a send WQE.
type CtrlSeg struct {
	OpMod     uint8
	Index     uint16 // in basic blocks
	Opcode    uint8
	SQN       uint32 // 24 bits
	DS        uint8  // length of the WQE in units of 16 bytes
	Signature uint8
	FMCESE    uint8
	Imm       uint32
}

// Encode writes the first 16 bytes of b.
func (s *CtrlSeg) Encode(b []byte) {
	be.PutUint32(b, uint32(s.OpMod)<<24|uint32(s.Index)<<8|uint32(s.Opcode))
	be.PutUint32(b[4:], s.SQN<<8|uint32(s.DS))
	b[8], b[9], b[10], b[11] = s.Signature, 0, 0, s.FMCESE
	be.PutUint32(b[12:], s.Imm)
}

// Decode reads the first 16 bytes of b.
func (s *CtrlSeg) Decode(b []byte) {
	op, qpn := be.Uint32(b), be.Uint32(b[4:])
	*s = CtrlSeg{OpMod: uint8(op >> 24), Index: uint16(op >> 8), Opcode: uint8(op), SQN: qpn >> 8, DS: uint8(qpn),
		Signature: b[8], FMCESE: b[11], Imm: be.Uint32(b[12:])}
}

// Doorbell is what is written to the UAR to make a send queue work: the first 8 bytes of the
// WQE, as a big-endian number.
func (s *CtrlSeg) Doorbell() uint64 {
	return uint64(s.OpMod)<<56 | uint64(s.Index)<<40 | uint64(s.Opcode)<<32 | uint64(s.SQN)<<8 | uint64(s.DS)
}

// Bits of EthSeg.CSFlags.
const (
	CSumL3 uint8 = 0x40
	CSumL4 uint8 = 0x80
)

// EthSeg is the Ethernet segment of a send WQE. Inline is at most 18 bytes, 2 of them in the
// segment; VLAN insertion excludes it.
type EthSeg struct {
	CSFlags  uint8
	MSS      uint16
	Metadata uint32
	Inline   []byte
	Insert   bool   // a VLAN tag
	TCI      uint16 // of it
}

const (
	ethSegSize  = 16
	ethInline   = 2
	vlanInsert  = 1 << 31
	maxWQEUnits = 63
)

// ErrWQE says that a send WQE contradicts itself.
var ErrWQE = errors.New("mlx5: malformed send WQE")

// Size is the segment's length with what is inline, in bytes.
func (s *EthSeg) Size() int {
	if n := len(s.Inline); n > ethInline {
		return ethSegSize + (n-ethInline+15)/16*16
	}
	return ethSegSize
}

// Encode writes the first Size bytes of b.
func (s *EthSeg) Encode(b []byte) {
	clear(b[:s.Size()])
	b[4] = s.CSFlags
	be.PutUint16(b[6:], s.MSS)
	be.PutUint32(b[8:], s.Metadata)
	if s.Insert {
		be.PutUint32(b[12:], vlanInsert|uint32(s.TCI))
		return
	}
	be.PutUint16(b[12:], uint16(len(s.Inline)))
	copy(b[14:], s.Inline)
}

// Decode reads a segment from the start of b; Inline points into b.
func (s *EthSeg) Decode(b []byte) error {
	if len(b) < ethSegSize {
		return ErrWQE
	}
	*s = EthSeg{CSFlags: b[4], MSS: be.Uint16(b[6:]), Metadata: be.Uint32(b[8:])}
	if v := be.Uint32(b[12:]); v&vlanInsert != 0 {
		s.Insert, s.TCI = true, uint16(v)
		return nil
	}
	n := int(be.Uint16(b[12:]))
	if 14+n > len(b) {
		return ErrWQE
	}
	s.Inline = b[14 : 14+n : 14+n]
	return nil
}

// Blocks is how many basic blocks a send WQE of ds units takes; 0: ds is not valid.
func Blocks(ds uint8) int {
	if ds == 0 || ds > maxWQEUnits {
		return 0
	}
	return (int(ds) + 3) / 4
}

// SendCQE splits CQE.SOPDropQPN of a send queue's CQE.
func SendCQE(sopDropQPN uint32) (opcode uint8, sqn uint32) {
	return uint8(sopDropQPN >> 24), sopDropQPN & 0xffffff
}
