package mlx5

// Relay is what a CQE of a ring says that agp/source/relay writes: it stands for any capture
// interface, so it needs room for what a ConnectX port has no fields for. A CQE of opcode
// OpNoPacket only lets time pass to its timestamp and takes no receive WQE.
type Relay struct {
	LinkType    uint16 // wqe_id
	Side        uint8  // lro_tcppsh_abort_dupack
	SegmentSize uint16 // lro_tcp_win
	WireLen     uint32 // flow_table_metadata
	Captured    uint32 // byte_cnt
	TimestampNs int64  // timestamp
	// Number is that of the packet in the whole input, or of the one that the time comes before,
	// from 1; 0 if the frame is in no flow. lro_ack_seq_num, rx_hash_result.
	Number uint64
}

// Put sets the fields of c that r has.
func (r *Relay) Put(c *CQE) {
	c.WQEID, c.LROTCPPshAbortDupAck, c.LROTCPWin = r.LinkType, r.Side, r.SegmentSize
	c.FlowTableMetadata, c.ByteCnt, c.Timestamp = r.WireLen, r.Captured, uint64(r.TimestampNs)
	c.LROAckSeqNum, c.RXHashResult = uint32(r.Number>>32), uint32(r.Number)
}

// RelayOf reads them.
func RelayOf(c *CQE) Relay {
	return Relay{
		LinkType: c.WQEID, Side: c.LROTCPPshAbortDupAck, SegmentSize: c.LROTCPWin,
		WireLen: c.FlowTableMetadata, Captured: c.ByteCnt, TimestampNs: int64(c.Timestamp),
		Number: uint64(c.LROAckSeqNum)<<32 | uint64(c.RXHashResult),
	}
}
