package mlx5

import "encoding/binary"

// Sizes in bytes.
const (
	CQESize      = 64
	MiniCQESize  = 8
	DataSegSize  = 16 // also the receive WQE with one buffer
	MPRQWQESize  = 32 // receive WQE of a striding queue
	SendWQEBB    = 64 // basic block of send WQEs
	DoorbellSize = 8
)

var be = binary.BigEndian

// Opcode of a CQE: the upper half of op_own.
type Opcode uint8

// Opcodes.
const (
	OpReq         Opcode = 0  // a send WQE is done
	OpRespSend    Opcode = 2  // a frame has been received
	OpRespSendInv Opcode = 4  // 2 to 4 are kinds of receiving
	OpNoPacket    Opcode = 6  // in the relay's rings: time has passed
	OpReqErr      Opcode = 13 // error of a send queue
	OpRespErr     Opcode = 14 // error of a receive queue
	OpInvalid     Opcode = 15
	opcodeShift          = 4
)

// Format of a CQE: bits 3:2 of op_own.
const (
	FormatPlain      uint8 = 0
	FormatCompressed uint8 = 3
	formatShift            = 2
)

// OwnerMask is the owner bit of op_own.
const OwnerMask uint8 = 1

// OpOwn joins the parts of op_own.
func OpOwn(op Opcode, format, owner uint8) uint8 {
	return uint8(op)<<opcodeShift | format<<formatShift | owner&OwnerMask
}

// OpcodeOf takes the opcode out of op_own, as FormatOf and OwnerOf do for the rest.
func OpcodeOf(opOwn uint8) Opcode { return Opcode(opOwn >> opcodeShift) }

// FormatOf returns the format bits of op_own.
func FormatOf(opOwn uint8) uint8 { return opOwn >> formatShift & 3 }

// OwnerOf returns the owner bit of op_own.
func OwnerOf(opOwn uint8) uint8 { return opOwn & OwnerMask }

// Lap is the owner bit of the CQE that is number index of its queue.
func Lap(index uint64, logCQ uint8) uint8 { return uint8(index>>logCQ) & OwnerMask }

// Ready says whether the CQE at consumer index ci belongs to software: the opcode is valid
// and the owner bit is that of the lap.
func Ready(opOwn uint8, ci uint64, logCQ uint8) bool {
	return OpcodeOf(opOwn) != OpInvalid && OwnerOf(opOwn) == Lap(ci, logCQ)
}

// Validity is the validity iteration count of CQE number index in the enhanced layout.
func Validity(index uint64, logCQ uint8) uint8 { return uint8(index >> logCQ) }

// ReadyEnhanced is Ready in the enhanced compression layout, where signature holds the
// validity iteration count and compressed CQEs have no opcode.
func ReadyEnhanced(signature, opOwn uint8, ci uint64, logCQ uint8) bool {
	return signature == Validity(ci, logCQ) && (FormatOf(opOwn) == FormatCompressed || OpcodeOf(opOwn) != OpInvalid)
}

// Offsets in a CQE of what is read alone.
const (
	CQESignatureOffset = 0x3e
	CQEOpOwnOffset     = 0x3f
)

// CQE is a decoded completion queue entry, plain or title of a compressed session.
type CQE struct {
	PktInfo              uint8  // 0x00: bit 0 tunnelled, bit 1 outer IPv6
	WQEID                uint16 // 0x02: WQE index in striding queues
	LROTCPPshAbortDupAck uint8  // 0x04
	LROMinTTL            uint8  // 0x05
	LROTCPWin            uint16 // 0x06
	LROAckSeqNum         uint32 // 0x08
	RXHashResult         uint32 // 0x0c: Toeplitz
	RXHashType           uint8  // 0x10, see HashType
	CheckSum             uint16 // 0x14: over what follows the Ethernet header
	HDSIPExt             uint8  // 0x1c: L2OK, L3OK, L4OK
	L4HdrTypeEtc         uint8  // 0x1d, see HdrVLANStripped and so on
	VLANInfo             uint16 // 0x1e: TCI of the tag that was stripped
	LRONumSeg            uint8  // 0x20
	UserIndex            uint32 // 0x21, 24 bits
	FlowTableMetadata    uint32 // 0x24
	ByteCnt              uint32 // 0x2c: frame length, see also MPRQByteCnt
	Timestamp            uint64 // 0x30, see Clock
	SOPDropQPN           uint32 // 0x38: flow tag, or opcode and SQN of a send CQE
	WQECounter           uint16 // 0x3c: WQE index, stride index in striding queues
	Signature            uint8  // 0x3e
	OpOwn                uint8  // 0x3f
}

// Encode writes all of the first CQESize bytes of b; reserved ones become 0.
func (c *CQE) Encode(b []byte) {
	b = b[:CQESize]
	clear(b)
	b[0x00] = c.PktInfo
	be.PutUint16(b[0x02:], c.WQEID)
	b[0x04], b[0x05] = c.LROTCPPshAbortDupAck, c.LROMinTTL
	be.PutUint16(b[0x06:], c.LROTCPWin)
	be.PutUint32(b[0x08:], c.LROAckSeqNum)
	be.PutUint32(b[0x0c:], c.RXHashResult)
	b[0x10] = c.RXHashType
	be.PutUint16(b[0x14:], c.CheckSum)
	b[0x1c], b[0x1d] = c.HDSIPExt, c.L4HdrTypeEtc
	be.PutUint16(b[0x1e:], c.VLANInfo)
	be.PutUint32(b[0x20:], uint32(c.LRONumSeg)<<24|c.UserIndex&0xffffff)
	be.PutUint32(b[0x24:], c.FlowTableMetadata)
	be.PutUint32(b[0x2c:], c.ByteCnt)
	be.PutUint64(b[0x30:], c.Timestamp)
	be.PutUint32(b[0x38:], c.SOPDropQPN)
	be.PutUint16(b[0x3c:], c.WQECounter)
	b[0x3e], b[0x3f] = c.Signature, c.OpOwn
}

// Decode reads the first CQESize bytes of b.
func (c *CQE) Decode(b []byte) {
	b = b[:CQESize]
	c.DecodeLower(b)
	c.DecodeUpper(b)
}

// DecodeLower reads the first half of a CQE and leaves the rest of c alone. The halves are
// memory sectors of their own, see the rules of agp/mlx5/poll.
func (c *CQE) DecodeLower(b []byte) {
	b = b[:CQESize]
	c.PktInfo = b[0x00]
	c.WQEID = be.Uint16(b[0x02:])
	c.LROTCPPshAbortDupAck, c.LROMinTTL = b[0x04], b[0x05]
	c.LROTCPWin = be.Uint16(b[0x06:])
	c.LROAckSeqNum = be.Uint32(b[0x08:])
	c.RXHashResult = be.Uint32(b[0x0c:])
	c.RXHashType = b[0x10]
	c.CheckSum = be.Uint16(b[0x14:])
	c.HDSIPExt, c.L4HdrTypeEtc = b[0x1c], b[0x1d]
	c.VLANInfo = be.Uint16(b[0x1e:])
}

// DecodeUpper reads the second half, which holds op_own.
func (c *CQE) DecodeUpper(b []byte) {
	b = b[:CQESize]
	c.LRONumSeg = b[0x20]
	c.UserIndex = be.Uint32(b[0x20:]) & 0xffffff
	c.FlowTableMetadata = be.Uint32(b[0x24:])
	c.ByteCnt = be.Uint32(b[0x2c:])
	c.Timestamp = be.Uint64(b[0x30:])
	c.SOPDropQPN = be.Uint32(b[0x38:])
	c.WQECounter = be.Uint16(b[0x3c:])
	c.Signature, c.OpOwn = b[0x3e], b[0x3f]
}

// Bits of CQE.HDSIPExt.
const (
	L2OK uint8 = 1 << iota
	L3OK
	L4OK
)

// Bits of CQE.L4HdrTypeEtc.
const (
	HdrVLANStripped uint8 = 0x01
	HdrIPExt        uint8 = 0x02 // IPv4 options or IPv6 extension headers
	HdrL3v6         uint8 = 1 << 2
	HdrL3v4         uint8 = 2 << 2
	HdrL3Mask       uint8 = 3 << 2
	HdrTCP          uint8 = 1 << 4
	HdrUDP          uint8 = 2 << 4
	HdrTCPAck       uint8 = 3 << 4 // ACK without data
	HdrTCPAckData   uint8 = 4 << 4
	HdrL4Mask       uint8 = 7 << 4
	HdrFragment     uint8 = 0x80
)

// HashType is CQE.RXHashType: what went into the hash. Two versions of the layout exist with
// the groups exchanged, so it is a hint only; this is the newer one.
func HashType(ipVersion uint8, tcp, udp bool) (t uint8) {
	switch ipVersion {
	case 4:
		t = 1 << 2
	case 6:
		t = 2 << 2
	}
	switch {
	case tcp:
		t |= 1 << 6
	case udp:
		t |= 2 << 6
	}
	return t
}

// ErrorCQE is a decoded CQE of opcode OpReqErr or OpRespErr.
type ErrorCQE struct {
	WQEID         uint16   // 0x02
	Stride        uint16   // 0x14
	SRQN          uint32   // 0x20, 24 bits
	ByteCnt       uint32   // 0x2c
	HWErrSynd     uint8    // 0x34
	HWSyndType    uint8    // 0x35
	VendorErrSynd uint8    // 0x36
	Syndrome      Syndrome // 0x37
	OpcodeQPN     uint32   // 0x38
	WQECounter    uint16   // 0x3c
	Signature     uint8    // 0x3e
	OpOwn         uint8    // 0x3f
}

// Encode writes all of the first CQESize bytes of b; reserved ones become 0.
func (c *ErrorCQE) Encode(b []byte) {
	b = b[:CQESize]
	clear(b)
	be.PutUint16(b[0x02:], c.WQEID)
	be.PutUint16(b[0x14:], c.Stride)
	be.PutUint32(b[0x20:], c.SRQN&0xffffff)
	be.PutUint32(b[0x2c:], c.ByteCnt)
	b[0x34], b[0x35], b[0x36], b[0x37] = c.HWErrSynd, c.HWSyndType, c.VendorErrSynd, uint8(c.Syndrome)
	be.PutUint32(b[0x38:], c.OpcodeQPN)
	be.PutUint16(b[0x3c:], c.WQECounter)
	b[0x3e], b[0x3f] = c.Signature, c.OpOwn
}

// Decode reads the first CQESize bytes of b.
func (c *ErrorCQE) Decode(b []byte) {
	b = b[:CQESize]
	*c = ErrorCQE{
		WQEID: be.Uint16(b[0x02:]), Stride: be.Uint16(b[0x14:]), SRQN: be.Uint32(b[0x20:]) & 0xffffff,
		ByteCnt: be.Uint32(b[0x2c:]), HWErrSynd: b[0x34], HWSyndType: b[0x35], VendorErrSynd: b[0x36],
		Syndrome: Syndrome(b[0x37]), OpcodeQPN: be.Uint32(b[0x38:]), WQECounter: be.Uint16(b[0x3c:]),
		Signature: b[0x3e], OpOwn: b[0x3f],
	}
}

// Syndrome says what went wrong with a WQE.
type Syndrome uint8

// Syndromes.
const (
	SyndromeLocalLength    Syndrome = 0x01 // the frame is longer than the buffer
	SyndromeLocalQPOp      Syndrome = 0x02
	SyndromeLocalProt      Syndrome = 0x04 // memory key or address
	SyndromeWRFlush        Syndrome = 0x05 // the queue is in the error state
	SyndromeMWBind         Syndrome = 0x06
	SyndromeBadResp        Syndrome = 0x10
	SyndromeLocalAccess    Syndrome = 0x11
	SyndromeRemoteInvalReq Syndrome = 0x12
	SyndromeRemoteAccess   Syndrome = 0x13
	SyndromeRemoteOp       Syndrome = 0x14
	SyndromeTransportRetry Syndrome = 0x15
	SyndromeRNRRetry       Syndrome = 0x16
	SyndromeAborted        Syndrome = 0x22
)

var syndromeNames = map[Syndrome]string{
	SyndromeLocalLength: "local_length", SyndromeLocalQPOp: "local_qp_op", SyndromeLocalProt: "local_prot",
	SyndromeWRFlush: "wr_flush", SyndromeMWBind: "mw_bind", SyndromeBadResp: "bad_resp",
	SyndromeLocalAccess: "local_access", SyndromeRemoteInvalReq: "remote_inval_req",
	SyndromeRemoteAccess: "remote_access", SyndromeRemoteOp: "remote_op",
	SyndromeTransportRetry: "transport_retry", SyndromeRNRRetry: "rnr_retry", SyndromeAborted: "aborted",
}

// String is the syndrome's name in metrics.
func (s Syndrome) String() string {
	if n, ok := syndromeNames[s]; ok {
		return n
	}
	return "unknown"
}

// Reset says whether a receive queue that reports the syndrome must be reset. After any other
// one the WQE is lost and the queue goes on.
func (s Syndrome) Reset() bool {
	return s == SyndromeLocalQPOp || s == SyndromeLocalProt || s == SyndromeWRFlush
}
