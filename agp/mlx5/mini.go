package mlx5

import "errors"

// Compressed sessions. In the basic layout a title CQE, of which ByteCnt is the number of
// packets, is followed by arrays of 8 mini CQEs; the session takes as many CQEs as it has
// packets. The first array is in the CQE after the title, the others at multiples of 8 CQEs
// from the title on. In the enhanced layout an array of up to 7 takes one CQE, whose op_own
// says how many, and the title is the last CQE that was not compressed.
const (
	MinisPerCQE         = 8
	MinisPerEnhancedCQE = 7
)

// ErrCompressed says that bytes are no compressed session.
var ErrCompressed = errors.New("mlx5: malformed compressed CQEs")

// MiniFormat says what the first word of a mini CQE is.
type MiniFormat uint8

// Formats of mini CQEs.
const (
	MiniHash       MiniFormat = 0 // rx_hash_result
	MiniCheckSum   MiniFormat = 1 // check_sum and stride index
	MiniFlowTag    MiniFormat = 2 // flow tag and stride index
	MiniCheckSum32 MiniFormat = 3 // check_sum and stride index of a striding queue
)

// MiniCQE is one packet of a compressed session.
type MiniCQE struct {
	RXHashResult uint32 // MiniHash
	CheckSum     uint16 // MiniCheckSum, MiniCheckSum32
	StrideIndex  uint16 // MiniCheckSum, MiniCheckSum32
	ByteCnt      uint32
}

// Encode writes the first MiniCQESize bytes of b.
func (m *MiniCQE) Encode(b []byte, f MiniFormat) {
	if f == MiniHash {
		be.PutUint32(b, m.RXHashResult)
	} else {
		be.PutUint16(b, m.CheckSum)
		be.PutUint16(b[2:], m.StrideIndex)
	}
	be.PutUint32(b[4:], m.ByteCnt)
}

// Decode reads the first MiniCQESize bytes of b.
func (m *MiniCQE) Decode(b []byte, f MiniFormat) {
	*m = MiniCQE{ByteCnt: be.Uint32(b[4:])}
	if f == MiniHash {
		m.RXHashResult = be.Uint32(b)
	} else {
		m.CheckSum, m.StrideIndex = be.Uint16(b), be.Uint16(b[2:])
	}
}

// MiniSlot says where in a basic session mini CQE i is: so many CQEs after the title, and
// which of the array there.
func MiniSlot(i int) (cqe, array int) {
	if i < MinisPerCQE {
		return 1, i
	}
	return i / MinisPerCQE * MinisPerCQE, i % MinisPerCQE
}

// CompressBasic writes a session of the frames in list, at least 2, into a completion queue
// from CQE number index on. They have format and owner set.
func CompressBasic(cq []byte, logCQ uint8, index uint64, list []CQE) {
	mask := uint64(1)<<logCQ - 1
	slot := func(i uint64) []byte { return cq[(i&mask)*CQESize:][:CQESize] }
	var m MiniCQE
	for i := range list {
		c, a := MiniSlot(i)
		m = MiniCQE{RXHashResult: list[i].RXHashResult, ByteCnt: list[i].ByteCnt}
		m.Encode(slot(index + uint64(c))[a*MiniCQESize:], MiniHash)
	}
	title, raw := list[0], [CQESize]byte{}
	title.ByteCnt = uint32(len(list))
	title.OpOwn = OpOwn(OpRespSend, FormatCompressed, Lap(index, logCQ))
	title.Encode(raw[:])
	WriteCQE(slot(index), &raw)
}

// ExpandBasic is CompressBasic's inverse: it appends the session that begins at consumer
// index ci to list. Hash and length are the packets' own, WQE indices count on from the
// title's, all else is the title's.
func ExpandBasic(list []CQE, cq []byte, logCQ uint8, ci uint64) ([]CQE, error) {
	mask := uint64(1)<<logCQ - 1
	slot := func(i uint64) []byte { return cq[(i&mask)*CQESize:][:CQESize] }
	var title CQE
	title.Decode(slot(ci))
	if FormatOf(title.OpOwn) != FormatCompressed || title.ByteCnt < 2 || uint64(title.ByteCnt) > mask {
		return list, ErrCompressed
	}
	n := title.ByteCnt
	title.OpOwn = OpOwn(OpcodeOf(title.OpOwn), FormatPlain, OwnerOf(title.OpOwn))
	var m MiniCQE
	for i := range n {
		at, a := MiniSlot(int(i))
		m.Decode(slot(ci + uint64(at))[a*MiniCQESize:], MiniHash)
		c := title
		c.RXHashResult, c.ByteCnt, c.WQECounter = m.RXHashResult, m.ByteCnt, title.WQECounter+uint16(i)
		list = append(list, c)
	}
	return list, nil
}

// CompressEnhanced fills one CQE of the enhanced layout with 1 to 7 frames.
func CompressEnhanced(b []byte, validity uint8, list []CQE) {
	var raw [CQESize]byte
	for i := range list {
		m := MiniCQE{RXHashResult: list[i].RXHashResult, ByteCnt: list[i].ByteCnt}
		m.Encode(raw[i*MiniCQESize:], MiniHash)
	}
	raw[CQESignatureOffset] = validity
	raw[CQEOpOwnOffset] = uint8(len(list)-1)<<4 | FormatCompressed<<formatShift | validity&OwnerMask
	WriteCQE(b, &raw)
}

// ExpandEnhanced is CompressEnhanced's inverse. The title is the last frame before it.
func ExpandEnhanced(list []CQE, b []byte, title *CQE) ([]CQE, error) {
	n := int(b[CQEOpOwnOffset]>>4) + 1
	if FormatOf(b[CQEOpOwnOffset]) != FormatCompressed || n > MinisPerEnhancedCQE {
		return list, ErrCompressed
	}
	var m MiniCQE
	for i := range n {
		m.Decode(b[i*MiniCQESize:], MiniHash)
		c := *title
		c.RXHashResult, c.ByteCnt, c.WQECounter = m.RXHashResult, m.ByteCnt, title.WQECounter+uint16(i)+1
		list = append(list, c)
	}
	return list, nil
}
