package mlx5

import (
	"encoding/hex"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/require"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		panic(err)
	}
	return b
}

func TestGoldenReceiveTCPv4(t *testing.T) {
	want := unhex(`00000000 00000000 00000000 51ccc178 44000000 beef0000 00000000 07180000
		00000000 00000000 00000000 000005dc 00000000 65432100 00000000 00070121`)
	c := CQE{
		RXHashResult: 0x51ccc178, RXHashType: HashType(4, true, false), CheckSum: 0xbeef,
		HDSIPExt: L2OK | L3OK | L4OK, L4HdrTypeEtc: HdrL3v4 | HdrTCP, ByteCnt: 1500, Timestamp: 0x65432100,
		WQECounter: 7, Signature: 1, OpOwn: OpOwn(OpRespSend, FormatPlain, Lap(1<<6, 6)),
	}
	checkCQE(t, want, c)
}

func TestGoldenReceiveUDPv6WithoutItsVLANTag(t *testing.T) {
	want := unhex(`00000000 00000000 00000000 000000d1 88000000 00000000 00000000 07256064
		00000000 00000000 00000000 0000003c 6553f100 3b9ac9ff 00000000 ffff0020`)
	clock := Clock{Format: TimeReal}
	ns := time.Unix(1_700_000_000, 999_999_999).UnixNano()
	c := CQE{
		RXHashResult: 0xd1, RXHashType: HashType(6, false, true), HDSIPExt: L2OK | L3OK | L4OK,
		L4HdrTypeEtc: HdrVLANStripped | HdrL3v6 | HdrUDP, VLANInfo: 0x6064, ByteCnt: 60,
		Timestamp: clock.Timestamp(ns), WQECounter: 65535, OpOwn: OpOwn(OpRespSend, FormatPlain, 0),
	}
	checkCQE(t, want, c)
	require.Equal(t, ns, clock.Ns(c.Timestamp))
}

func checkCQE(t *testing.T, want []byte, c CQE) {
	t.Helper()
	got := make([]byte, CQESize)
	c.Encode(got)
	require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(got))
	var back CQE
	back.Decode(want)
	require.Equal(t, c, back)
}

func TestGoldenMark(t *testing.T) {
	b := make([]byte, CQESize)
	c := CQE{SOPDropQPN: PutMark(41), WQECounter: 3, OpOwn: OpOwn(OpRespSend, FormatPlain, 0)}
	c.Encode(b)
	require.Equal(t, unhex("002a0000 00030020"), b[0x38:])
	id, ok := Mark(c.SOPDropQPN)
	require.True(t, ok)
	require.EqualValues(t, 41, id)
	_, ok = Mark(0)
	require.False(t, ok, "unmarked")
	id, ok = Mark(PutMarkFlag())
	require.True(t, ok)
	require.Equal(t, MarkFlag, id, "FLAG has no id")
	for _, m := range []uint32{0, 1, 255, 256, 0x123456, MaxMark} {
		id, ok := Mark(PutMark(m))
		require.True(t, ok)
		require.Equal(t, m, id)
	}
	require.EqualValues(t, 0x123456, FlowTag(0xab123456), "a raw tag is big-endian")
}

func TestGoldenError(t *testing.T) {
	b := make([]byte, CQESize)
	c := ErrorCQE{Syndrome: SyndromeLocalProt, OpcodeQPN: 0x123, WQECounter: 9, OpOwn: OpOwn(OpRespErr, FormatPlain, 1)}
	c.Encode(b)
	require.Equal(t, unhex("00000004 00000123 000900e1"), b[0x34:])
	var back ErrorCQE
	back.Decode(b)
	require.Equal(t, c, back)
}

func TestGoldenSend(t *testing.T) {
	b := make([]byte, CQESize)
	done := CQE{SOPDropQPN: uint32(SendSend)<<24 | 0x123, WQECounter: 5}
	done.Encode(b)
	require.Equal(t, unhex("0a000123 00050000"), b[0x38:])
	op, sqn := SendCQE(done.SOPDropQPN)
	require.Equal(t, SendSend, op)
	require.EqualValues(t, 0x123, sqn)

	ctrl := CtrlSeg{Index: 5, Opcode: SendSend, SQN: 0x123, DS: 3, FMCESE: CQEAlways}
	ctrl.Encode(b)
	require.Equal(t, unhex("0000050a 00012303 00000008 00000000"), b[:16])
	var back CtrlSeg
	back.Decode(b)
	require.Equal(t, ctrl, back)
	require.EqualValues(t, 0x0000050a00012303, ctrl.Doorbell())
	StoreBE32(b, SQDoorbell(6))
	require.Equal(t, unhex("00000006"), b[:4])

	data := DataSeg{ByteCount: 1500, LKey: 0x1234, Addr: 0x7f0012340000}
	data.Encode(b)
	require.Equal(t, unhex("000005dc 00001234 00007f00 12340000"), b[:16])
	var seg DataSeg
	seg.Decode(b)
	require.Equal(t, data, seg)

	eth := EthSeg{Insert: true, TCI: 3<<13 | 100}
	eth.Encode(b)
	require.Equal(t, unhex("80006064"), b[12:16])
}

func TestGoldenArm(t *testing.T) {
	record, uar := CQArm(1, ArmAny, 0x123456, 0x80)
	require.EqualValues(t, 0x10123456, record)
	require.EqualValues(t, 0x1012345600000080, uar)
}

func TestGoldenMPRQ(t *testing.T) {
	require.EqualValues(t, 0x001805dc, MPRQByteCnt(1500, 24, false))
	require.EqualValues(t, 0x81e80000, MPRQByteCnt(0, 488, true))
	length, strides, filler := SplitMPRQByteCnt(0x81e80000)
	require.Zero(t, length)
	require.EqualValues(t, 488, strides)
	require.True(t, filler)
}

// Every field survives, and no two share a byte.
func TestFieldsSurvive(t *testing.T) {
	b := make([]byte, CQESize)
	require.NoError(t, quick.Check(func(c CQE) bool {
		c.UserIndex &= 0xffffff
		c.Encode(b)
		var back CQE
		back.Decode(b)
		return back == c
	}, nil))
	require.NoError(t, quick.Check(func(c ErrorCQE) bool {
		c.SRQN &= 0xffffff
		c.Encode(b)
		var back ErrorCQE
		back.Decode(b)
		return back == c
	}, nil))
	require.NoError(t, quick.Check(func(s CtrlSeg) bool {
		s.SQN &= 0xffffff
		s.Encode(b)
		var back CtrlSeg
		back.Decode(b)
		return back == s
	}, nil))
	require.NoError(t, quick.Check(func(r Relay) bool {
		var c CQE
		r.Put(&c)
		c.Encode(b)
		c = CQE{}
		c.Decode(b)
		return RelayOf(&c) == r
	}, nil))
	require.NoError(t, quick.Check(func(n uint16, strides uint16, filler bool) bool {
		l, s, f := SplitMPRQByteCnt(MPRQByteCnt(n, strides&0x3fff, filler))
		return l == n && s == strides&0x3fff && f == filler
	}, nil))
}

func TestEthernetSegments(t *testing.T) {
	b := make([]byte, 64)
	for n := range 19 {
		s := EthSeg{CSFlags: CSumL3, MSS: 1448, Metadata: 7, Inline: []byte("0123456789abcdefgh")[:n]}
		require.Equal(t, []int{16, 32}[min(max(n-2, 0), 1)], s.Size())
		s.Encode(b)
		var back EthSeg
		require.NoError(t, back.Decode(b))
		require.Equal(t, string(s.Inline), string(back.Inline))
	}
	var s EthSeg
	be.PutUint16(b[12:], 60)
	require.ErrorIs(t, s.Decode(b), ErrWQE, "more inline than there is")
	require.ErrorIs(t, s.Decode(b[:15]), ErrWQE)
	require.Equal(t, []int{0, 1, 1, 2, 16, 0}, []int{Blocks(0), Blocks(1), Blocks(4), Blocks(5), Blocks(63), Blocks(64)})
}

func TestOwnerOfEveryLap(t *testing.T) {
	const log = 3
	for ci := range uint64(5 << log) {
		for owner := range uint8(2) {
			want := owner == uint8(ci>>log&1)
			require.Equal(t, want, Ready(OpOwn(OpRespSend, 0, owner), ci, log))
			require.False(t, Ready(OpOwn(OpInvalid, 0, owner), ci, log), "invalid on lap %d", ci>>log)
		}
		require.False(t, Ready(0xff, ci, log), "as initialised")
		require.Equal(t, ci>>log == 0, Ready(0, ci, log) && ci < 1<<log, "zeroed memory counts as completed on the first lap")
		require.True(t, ReadyEnhanced(uint8(ci>>log), OpOwn(OpRespSend, 0, 0), ci, log))
		require.False(t, ReadyEnhanced(uint8(ci>>log)+1, OpOwn(OpRespSend, 0, 0), ci, log))
	}
}

func TestSyndromePolicy(t *testing.T) {
	for s := range 256 {
		require.Equal(t, s == 2 || s == 4 || s == 5, Syndrome(s).Reset())
		require.NotEmpty(t, Syndrome(s).String())
	}
	require.Equal(t, "local_length", SyndromeLocalLength.String())
}

func TestClockFreeRunning(t *testing.T) {
	base := time.Unix(1_700_000_000, 0).UnixNano()
	for _, khz := range []uint32{1_000_000, 156_250, 312_500, 78_125} {
		c := FreeClock(khz, 1<<63-1000, base) // wraps soon
		rng := rand.New(rand.NewPCG(uint64(khz), 0))
		tick := int64(1_000_000/khz) + 1
		last := int64(math.MinInt64)
		for ns := base - int64(time.Second); ns < base+int64(time.Hour); ns += rng.Int64N(int64(time.Second)) {
			ts := c.Timestamp(ns)
			require.Zero(t, ts>>63, "the upper bit is clear")
			got := c.Ns(ts)
			require.InDelta(t, 0, got-ns, float64(tick), "%d kHz", khz)
			require.GreaterOrEqual(t, got, last)
			last = got
		}
	}
}

func TestClockRealTimeWrapsItsNanoseconds(t *testing.T) {
	c := Clock{Format: TimeReal}
	for _, ns := range []int64{999_999_999, 1_000_000_000, 1_000_000_001, 1_700_000_000_999_999_999} {
		require.Equal(t, ns, c.Ns(c.Timestamp(ns)))
	}
	plain := Clock{}
	require.EqualValues(t, -5, plain.Ns(plain.Timestamp(-5)))
}

func TestCompressedSessions(t *testing.T) {
	const log = 6
	for _, n := range []int{2, 3, 7, 8, 9, 15, 16, 17, 31} {
		for _, at := range []uint64{0, 60, 64, 200} {
			cq := make([]byte, CQESize<<log)
			var list []CQE
			for i := range n {
				list = append(list, CQE{RXHashResult: uint32(i) * 77, ByteCnt: uint32(60 + i), WQECounter: uint16(65530 + i),
					L4HdrTypeEtc: HdrL3v4 | HdrUDP, Timestamp: 5, OpOwn: OpOwn(OpRespSend, FormatPlain, Lap(at, log))})
			}
			CompressBasic(cq, log, at, list)
			got, err := ExpandBasic(nil, cq, log, at)
			require.NoError(t, err)
			require.Equal(t, list, got, "%d from %d", n, at)
		}
	}
	// Where arrays are: after the title, then at multiples of 8 from it on.
	for i, want := range map[int][2]int{0: {1, 0}, 7: {1, 7}, 8: {8, 0}, 15: {8, 7}, 16: {16, 0}} {
		cqe, array := MiniSlot(i)
		require.Equal(t, want, [2]int{cqe, array}, i)
	}
	b := make([]byte, CQESize)
	title := CQE{WQECounter: 9, L4HdrTypeEtc: HdrTCP}
	list := []CQE{{ByteCnt: 60, RXHashResult: 1}, {ByteCnt: 61, RXHashResult: 2}}
	CompressEnhanced(b, 3, list)
	require.True(t, ReadyEnhanced(b[CQESignatureOffset], b[CQEOpOwnOffset], 3<<log, log))
	got, err := ExpandEnhanced(nil, b, &title)
	require.NoError(t, err)
	require.Equal(t, []CQE{{ByteCnt: 60, RXHashResult: 1, WQECounter: 10, L4HdrTypeEtc: HdrTCP}, {ByteCnt: 61, RXHashResult: 2, WQECounter: 11, L4HdrTypeEtc: HdrTCP}}, got)
}

func TestMalformedCompressedSessionsAreRefused(t *testing.T) {
	cq := make([]byte, CQESize<<3)
	put := func(format uint8, n uint32) {
		c := CQE{ByteCnt: n, OpOwn: OpOwn(OpRespSend, format, 0)}
		c.Encode(cq)
	}
	for _, v := range []struct {
		format uint8
		n      uint32
	}{{FormatPlain, 2}, {FormatCompressed, 0}, {FormatCompressed, 1}, {FormatCompressed, 8}, {FormatCompressed, math.MaxUint32}} {
		put(v.format, v.n)
		_, err := ExpandBasic(nil, cq, 3, 0)
		require.ErrorIs(t, err, ErrCompressed)
	}
	b := make([]byte, CQESize)
	b[CQEOpOwnOffset] = 7<<4 | FormatCompressed<<2
	_, err := ExpandEnhanced(nil, b, &CQE{})
	require.ErrorIs(t, err, ErrCompressed, "8 in an array of 7")
	b[CQEOpOwnOffset] = 0
	_, err = ExpandEnhanced(nil, b, &CQE{})
	require.ErrorIs(t, err, ErrCompressed)
}

func TestBadLayoutsAreRefused(t *testing.T) {
	for name, l := range map[string]Layout{
		"no receive WQE":              {LogCQ: 4, Pitch: 2048},
		"65536 receive WQEs":          {LogCQ: 16, LogRQ: 16, Pitch: 2048},
		"completion queue too small":  {LogCQ: 3, LogRQ: 4, Pitch: 2048},
		"completion queue too large":  {LogCQ: 23, LogRQ: 4, Pitch: 2048},
		"no slot":                     {LogCQ: 4, LogRQ: 4},
		"slot is no multiple of 64":   {LogCQ: 4, LogRQ: 4, Pitch: 100},
		"slot too large":              {LogCQ: 4, LogRQ: 4, Pitch: MaxPitch * 2},
		"strides do not fill the WQE": {LogCQ: 9, LogRQ: 1, Pitch: 2048, Strides: 16, StrideSize: 64},
		"strides no power of two":     {LogCQ: 9, LogRQ: 1, Pitch: 192, Strides: 3, StrideSize: 64},
		"a CQE per stride is missing": {LogCQ: 4, LogRQ: 1, Pitch: 2048, Strides: 32, StrideSize: 64},
	} {
		_, err := NewQueue(l)
		require.ErrorIs(t, err, ErrLayout, name)
		_, err = l.View(nil)
		require.ErrorIs(t, err, ErrLayout, name)
	}
	good := Layout{LogCQ: 4, LogRQ: 4, Pitch: 2048}
	_, err := good.View(make([]byte, 100))
	require.ErrorIs(t, err, ErrMemory)
	_, err = good.View(make([]byte, good.Offsets().Size+PageSize)[8:])
	require.ErrorIs(t, err, ErrMemory, "not aligned")
	q, err := NewQueue(good)
	require.NoError(t, err)
	require.NoError(t, q.Check())
	q.CQ = q.CQ[1:]
	require.ErrorIs(t, q.Check(), ErrMemory)
}

func TestPartsOfAQueueDoNotOverlap(t *testing.T) {
	for _, l := range []Layout{{LogCQ: 1, LogRQ: 1, Pitch: 64}, {LogCQ: 9, LogRQ: 8, Pitch: 2048}, {LogCQ: 8, LogRQ: 2, Pitch: 2048, Strides: 32, StrideSize: 64}} {
		q, err := NewQueue(l)
		require.NoError(t, err)
		o := l.Offsets()
		for _, v := range []uint64{o.CQ, o.RQ, o.Payload, o.CQDB} {
			require.Zero(t, v%PageSize)
		}
		for _, p := range [][]byte{q.CQ, q.RQ, q.CQDB, q.RQDB, q.Payload} {
			for i := range p {
				p[i] = 0x55
			}
		}
		q.Init()
		var first DataSeg
		first.Decode(q.WQE(1)[l.WQESize()-DataSegSize:])
		require.Equal(t, DataSeg{ByteCount: l.Pitch, LKey: q.LKey, Addr: uint64(l.Pitch)}, first)
		require.False(t, Ready(q.CQE(0)[CQEOpOwnOffset], 0, l.LogCQ))
		require.EqualValues(t, 1<<l.LogRQ, LoadBE32(q.RQDB))
		require.Zero(t, LoadBE32(q.CQDB))
		require.EqualValues(t, 0x55, q.Payload[len(q.Payload)-1])
	}
}

func TestCountersOfFewBits(t *testing.T) {
	require.EqualValues(t, 3, Since(1, 0xfffe, 16))
	require.EqualValues(t, 0, Since(0x1234, 0x51234, 16))
	require.EqualValues(t, 2, Since(1, 1<<40-1, 24))
}

func TestCodecsDoNotAllocate(t *testing.T) {
	b, c, e := make([]byte, CQESize), CQE{ByteCnt: 60}, ErrorCQE{}
	clock := FreeClock(156_250, 0, 0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Encode(b)
		c.Decode(b)
		e.Encode(b)
		e.Decode(b)
		clock.Ns(clock.Timestamp(12345))
	}))
}

func TestEveryCQEFieldIsBigEndianInItsPlace(t *testing.T) {
	for off, c := range map[int]CQE{
		0x02: {WQEID: 0x0102}, 0x06: {LROTCPWin: 0x0102}, 0x08: {LROAckSeqNum: 0x01020304}, 0x0c: {RXHashResult: 0x01020304},
		0x14: {CheckSum: 0x0102}, 0x1e: {VLANInfo: 0x0102}, 0x21: {UserIndex: 0x010203}, 0x24: {FlowTableMetadata: 0x01020304},
		0x2c: {ByteCnt: 0x01020304}, 0x30: {Timestamp: 0x0102030405060708}, 0x38: {SOPDropQPN: 0x01020304}, 0x3c: {WQECounter: 0x0102},
	} {
		b := make([]byte, CQESize)
		c.Encode(b)
		for i := range b {
			want := byte(0)
			if v := reflect.ValueOf(c); i >= off {
				for f := range v.NumField() {
					if !v.Field(f).IsZero() {
						if size := map[int]int{0x21: 3}[off]; size != 0 && i < off+size || size == 0 && i < off+int(v.Field(f).Type().Size()) {
							want = byte(i - off + 1)
						}
					}
				}
			}
			require.Equal(t, want, b[i], "offset %#x of the field at %#x", i, off)
		}
	}
}
