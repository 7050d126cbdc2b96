package mlx5

import (
	"errors"
	"fmt"
	"unsafe"
)

// Limits of a Layout.
const (
	MaxLogCQ    = 22
	MaxLogRQ    = 15 // the 16-bit count of posted WQEs must tell full from empty
	LineSize    = 128
	PageSize    = 4096
	StrideUnit  = 64
	MaxStrides  = 1 << 13
	MaxPitch    = 1 << 17
	defaultLKey = 0x1234
)

// Errors of this package.
var (
	ErrLayout = errors.New("mlx5: queue layout")
	ErrMemory = errors.New("mlx5: queue memory")
)

// Layout is the shape of a receive queue and its completion queue. There are at least as many
// CQEs as packets that posted WQEs can take, so that the completion queue never overruns.
type Layout struct {
	LogCQ, LogRQ uint8
	Pitch        uint32 // bytes from one WQE's slot to the next, a multiple of 64
	// Strides and StrideSize make it a striding queue (MPRQ): packets share a slot. Both are
	// powers of two, Pitch is their product; 0: it is a plain one.
	Strides, StrideSize uint32
}

// Check says what is wrong with l.
func (l *Layout) Check() error {
	switch {
	case l.LogRQ < 1 || l.LogRQ > MaxLogRQ:
		return fmt.Errorf("%w: 2^%d receive WQEs, allowed are 2^1 to 2^%d", ErrLayout, l.LogRQ, MaxLogRQ)
	case l.LogCQ > MaxLogCQ:
		return fmt.Errorf("%w: 2^%d CQEs, allowed are up to 2^%d", ErrLayout, l.LogCQ, MaxLogCQ)
	case l.Pitch == 0 || l.Pitch%StrideUnit != 0 || l.Pitch > MaxPitch:
		return fmt.Errorf("%w: slots of %d bytes, allowed are multiples of %d up to %d", ErrLayout, l.Pitch, StrideUnit, MaxPitch)
	case l.Striding() && (l.Strides&(l.Strides-1) != 0 || l.Strides > MaxStrides || l.StrideSize < StrideUnit ||
		l.StrideSize&(l.StrideSize-1) != 0 || l.Strides*l.StrideSize != l.Pitch):
		return fmt.Errorf("%w: %d strides of %d bytes in a slot of %d", ErrLayout, l.Strides, l.StrideSize, l.Pitch)
	case uint64(1)<<l.LogCQ < l.packets():
		return fmt.Errorf("%w: 2^%d CQEs for up to %d packets", ErrLayout, l.LogCQ, l.packets())
	}
	return nil
}

// Striding says whether packets share slots.
func (l *Layout) Striding() bool { return l.Strides != 0 }

// packets is how many packets the posted WQEs can take at most.
func (l *Layout) packets() uint64 {
	return uint64(max(l.Strides, 1)) << l.LogRQ
}

// WQESize is the size of a receive WQE in bytes.
func (l *Layout) WQESize() int {
	if l.Striding() {
		return MPRQWQESize
	}
	return DataSegSize
}

// Offsets says where the parts of a queue are in one piece of memory, for instance one that
// is registered with the port as a whole. The rings begin on pages of their own, and each
// doorbell record has a line of its own.
type Offsets struct{ CQ, RQ, CQDB, RQDB, Payload, Size uint64 }

// Offsets computes the places. l must be valid.
func (l *Layout) Offsets() (o Offsets) {
	page := func(n uint64) uint64 { return (n + PageSize - 1) &^ (PageSize - 1) }
	o.RQ = page(CQESize << l.LogCQ)
	o.CQDB = page(o.RQ + uint64(l.WQESize())<<l.LogRQ)
	o.RQDB = o.CQDB + LineSize
	o.Payload = page(o.RQDB + LineSize)
	o.Size = o.Payload + uint64(l.Pitch)<<l.LogRQ
	return o
}

// Queue is the memory of a receive queue and its completion queue, as this process sees it.
type Queue struct {
	Layout
	CQ, RQ, CQDB, RQDB, Payload []byte
	// Addr and LKey name Payload in the WQEs, as the port sees it.
	Addr uint64
	LKey uint32
}

// View finds the parts of a queue in arena, which is at least Offsets().Size bytes and aligned
// to a page. It writes nothing, see Init.
func (l *Layout) View(arena []byte) (q Queue, err error) {
	if err := l.Check(); err != nil {
		return q, err
	}
	o := l.Offsets()
	switch {
	case uint64(len(arena)) < o.Size:
		return q, fmt.Errorf("%w: %d bytes for a queue that takes %d", ErrMemory, len(arena), o.Size)
	case uintptr(unsafe.Pointer(unsafe.SliceData(arena)))%PageSize != 0:
		return q, fmt.Errorf("%w: not aligned to %d bytes", ErrMemory, PageSize)
	}
	part := func(from, size uint64) []byte { return arena[from : from+size : from+size] }
	return Queue{
		Layout: *l, LKey: defaultLKey,
		CQ: part(0, CQESize<<l.LogCQ), RQ: part(o.RQ, uint64(l.WQESize())<<l.LogRQ),
		CQDB: part(o.CQDB, DoorbellSize), RQDB: part(o.RQDB, DoorbellSize),
		Payload: part(o.Payload, uint64(l.Pitch)<<l.LogRQ),
	}, nil
}

// NewQueue makes a queue in this process's memory, ready for use.
func NewQueue(l Layout) (Queue, error) {
	if err := l.Check(); err != nil {
		return Queue{}, err
	}
	n := l.Offsets().Size
	arena := make([]byte, n+PageSize)
	arena = arena[-uintptr(unsafe.Pointer(unsafe.SliceData(arena)))&(PageSize-1):]
	q, err := l.View(arena[:n])
	q.Init()
	return q, err
}

// Init brings the memory into the state from which a port may begin: CQEs invalid on every
// lap (all bits set; zeroed ones would count as completions), one buffer per receive WQE,
// doorbell records as if all WQEs were posted.
func (q *Queue) Init() {
	for i := range q.CQ {
		q.CQ[i] = 0xff
	}
	for i := range uint64(1) << q.LogRQ {
		w := q.WQE(i)
		clear(w)
		s := DataSeg{ByteCount: q.Pitch, LKey: q.LKey, Addr: q.Addr + i*uint64(q.Pitch)}
		s.Encode(w[len(w)-DataSegSize:]) // behind the next segment of a striding queue
	}
	clear(q.CQDB)
	clear(q.RQDB)
	StoreBE32(q.RQDB, RQDoorbell(1<<q.LogRQ))
}

// Check says what is wrong with the memory.
func (q *Queue) Check() error {
	if err := q.Layout.Check(); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		b    []byte
		size int
	}{
		{"completion queue", q.CQ, CQESize << q.LogCQ}, {"receive queue", q.RQ, q.WQESize() << q.LogRQ},
		{"CQ doorbell record", q.CQDB, DoorbellSize}, {"RQ doorbell record", q.RQDB, DoorbellSize},
		{"payload", q.Payload, int(q.Pitch) << q.LogRQ},
	} {
		if len(p.b) < p.size || uintptr(unsafe.Pointer(unsafe.SliceData(p.b)))%DoorbellSize != 0 {
			return fmt.Errorf("%w: %s of %d bytes at %p, need %d aligned to %d", ErrMemory, p.name, len(p.b), unsafe.SliceData(p.b), p.size, DoorbellSize)
		}
	}
	return nil
}

// CQE returns the bytes of CQE number index.
func (q *Queue) CQE(index uint64) []byte {
	i := index & (1<<q.LogCQ - 1) * CQESize
	return q.CQ[i : i+CQESize : i+CQESize]
}

// WQE returns the bytes of receive WQE number index.
func (q *Queue) WQE(index uint64) []byte {
	n := uint64(q.WQESize())
	i := index & (1<<q.LogRQ - 1) * n
	return q.RQ[i : i+n : i+n]
}

// Slot returns the buffer of receive WQE number index.
func (q *Queue) Slot(index uint64) []byte {
	n := uint64(q.Pitch)
	i := index & (1<<q.LogRQ - 1) * n
	return q.Payload[i : i+n : i+n]
}

// State of a receive or send queue.
type State uint8

// States. A queue goes from StateRST to StateRDY, from any to StateERR, and from that back to
// StateRST, in which its indices are 0.
const (
	StateRST State = 0
	StateRDY State = 1
	StateERR State = 3
)

// String is the state's name.
func (s State) String() string {
	switch s {
	case StateRST:
		return "RST"
	case StateRDY:
		return "RDY"
	case StateERR:
		return "ERR"
	}
	return "invalid"
}
