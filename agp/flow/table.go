package flow

import (
	"math"
	"slices"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/internal/hugepage"
	"github.com/agp-net/telegraf-agp/agp/internal/prefetch"
	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Defaults of Config.
const (
	DefaultIdleNs   = 60e9
	DefaultActiveNs = 300e9
	DefaultLingerNs = 10e9
	DefaultMaxFlows = 1 << 20
)

// TickNs is the granularity of time passing without packets: the caller of Tick
// passes multiples of it.
const TickNs = int64(1e9)

// Config of a Table. Zero values take the defaults.
type Config struct {
	IdleNs   int64 // a flow without a packet for longer ends (idle)
	ActiveNs int64 // a record that spans more is cut (active)
	// LingerNs is how long a closed TCP flow waits for late ACKs and
	// retransmitted FINs before its record is emitted.
	LingerNs int64
	MaxFlows int // active flows; one more evicts the lowest-value neighbour
	Key      KeyOptions
	// Head says that a model needs the head feature set, HeadPackets is the last
	// packet count at which it does; the state is dropped after that.
	Head        bool
	HeadPackets uint64
	Triggers    []uint64 // packet counts at which Handler.Mature is called
}

// SetDefaults replaces what is not set.
func (c *Config) SetDefaults() {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.IdleNs, DefaultIdleNs)
	def(&c.ActiveNs, DefaultActiveNs)
	def(&c.LingerNs, DefaultLingerNs)
	c.LingerNs = min(c.LingerNs, c.IdleNs)
	if c.MaxFlows <= 0 {
		c.MaxFlows = DefaultMaxFlows
	}
}

// Packet is one parsed packet on its way into a Table.
type Packet struct {
	packet.Info
	Key   Key
	FromB bool   // sender is Key.B
	Hash  uint64 // Key.Hash
	Seq   uint64 // position in the input over all queues, from 1
	Frame []byte // the captured bytes; not kept
	// SegmentSize is that of source.Frame: the packet is several on the wire, see
	// Segments. Add takes them one by one.
	SegmentSize uint16
	Coalesced   bool  // one of several that came as one
	Side        uint8 // source.Frame.Side
}

// Ref names an active flow. It is valid during the callback that passes it; with
// StartSeq it can be kept and checked by Valid later.
type Ref uint32

// Handler is told what happens to flows, in packet order. Calls come from inside
// Add, Tick and Flush; a handler may call the read methods of the table but not those three.
type Handler interface {
	// Started is called after the first packet of a new flow was added; a record
	// that continues a flow after the active timeout is not a start.
	Started(r Ref, p *Packet)
	// Progress is called every ProgressPackets packets and before Ended with what
	// the flow has carried since the call before (wire bytes).
	Progress(r Ref, packets, bytes uint64)
	// Binned is called every BinnedPackets packets and before Ended with the
	// histogram bins of the packets since the call before: one size bin each, and a
	// delay bin for all but the record's first. hash is Key.Hash of the flow.
	Binned(hash uint64, size, delay []uint8)
	// Mature is called when a flow has reached one of Config.Triggers.
	Mature(r Ref)
	// Ended is called before the flow's state is released; Record reads it.
	Ended(r Ref, reason telemetry.EndReason)
}

// half is the per-direction state behind telemetry.Half.
type half struct {
	packets, wireBytes, l3Bytes, payloadBytes uint64
	wireSq                                    uint64 // sum of squared wire lengths
	delaySqHi, delaySqLo                      uint64 // sum of squared delays
	firstNs, lastNs                           int64
	delayMin, delayMax                        int64
	wireMin, wireMax                          uint32
	retransmits, outOfOrder, zeroWindows      uint32
	tcpFlags                                  uint8
}

// ProgressPackets is how many packets a flow may be ahead of what Progress has told.
const ProgressPackets = 64

// Bits of state.bits.
const (
	bitFromB     uint16 = 1 << iota // the initiator is Key.B
	bitClosed                       // TCP closed; lingering
	bitFragment                     // a fragment whose first was not known
	bitSyn                          // initiator's SYN seen
	bitSynAck                       // responder's SYN+ACK seen
	bitHandshake                    // handshakeNs is valid
	bitRTT                          // rttNs is valid
	bitPastSyn                      // something other than a bare SYN was seen
	bitLive                         // slot in use
	bitEmpty                        // cut by the active timeout, no packet since
	bitDoubt                        // a packet that the flow's two ends would not send: see confirm
	bitConfirmed                    // the two ends have proved to be two
)

// MaxOutputs is how many models' answers a flow keeps: one per record field.
const MaxOutputs = 2

// Score is a model's answer as a flow keeps it. Answer is a number that the
// caller gives to (model, label), 0 if there is none.
type Score struct {
	Answer uint16
	Score  float32
}

// BinnedPackets is for how many packets a flow keeps the bare bin numbers before
// they are counted: most flows never need counters, and the others touch them once
// in so many packets.
const BinnedPackets = 16

const none = ^uint32(0)

// tiers of histogram counters
const (
	tierNone  uint8 = iota
	tierSmall       // uint8
	tierLarge       // uint32
)

type smallHist [telemetry.SizeBins + telemetry.DelayBins + 1]uint8
type largeHist [telemetry.SizeBins + telemetry.DelayBins]uint32

// state is one active flow: no pointers, fields that every packet touches first.
type state struct {
	key            Key
	side           [2]uint8 // where each direction comes from
	hash           uint64   // Key.Hash; its low half is the index entry's
	lastNs         int64
	startNs        int64
	bits           uint16
	tier           uint8
	histRef        uint32
	headRef        uint32
	timeSteps      uint32
	dir            [2]half
	tcp            [2]tcpHalf
	bins           [2][BinnedPackets]uint8 // size and delay bins of the packets not yet counted
	startSeq       uint64
	toldPackets    uint32 // reported by Progress, modulo 2^32
	toldBytes      uint32
	synNs          int64
	handshakeNs    int64
	rttNs          int64 // SYN to the first ACK of either side
	synRetransmits uint32
	coalesced      uint32
	next, prev     uint32 // wheel list
	wheel          uint32 // wheel slot
	outputs        [MaxOutputs]Score
}

// StateBytes is the fixed memory of one active flow without head features,
// large histograms and index.
const StateBytes = int(unsafe.Sizeof(state{}))

type slot struct {
	hash uint32
	ref  uint32 // none = free
}

// wheelSlots is the number of TickNs steps the timing wheel spans; later deadlines are looked at once a turn.
const wheelSlots = 512

// Table holds the active flows of one queue.
type Table struct {
	cfg      Config
	h        Handler
	slots    []slot
	shift    uint
	active   int
	flows    slab[state]
	small    slab[smallHist]
	large    slab[largeHist]
	heads    slab[model.Head]
	wheel    [wheelSlots]uint32
	tick     int64 // last tick, in TickNs; 0 before the first
	expired  []uint32
	stats    Stats
	triggers triggers
}

// triggers answers fast whether a packet count is one of the configured ones.
type triggers struct {
	low  [257]bool
	high []uint64
	max  uint64
}

func makeTriggers(counts []uint64) (t triggers) {
	for _, n := range counts {
		t.max = max(t.max, n)
		if n < uint64(len(t.low)) {
			t.low[n] = true
		} else {
			t.high = append(t.high, n)
		}
	}
	return t
}

func (t *triggers) hit(n uint64) bool {
	if n < uint64(len(t.low)) {
		return t.low[n]
	}
	return n <= t.max && slices.Contains(t.high, n)
}

// Collect changes what models need, between two packets. Flows keep their state;
// those that run already have no head features if none were collected before.
func (t *Table) Collect(head bool, headPackets uint64, counts []uint64) {
	t.cfg.Head, t.cfg.HeadPackets, t.triggers = head, headPackets, makeTriggers(counts)
}

// Stats are monotonic counters of a table.
type Stats struct {
	Packets   uint64 // added
	Recorded  uint64 // of these in records that were emitted
	Records   uint64
	Evicted   uint64
	TimeSteps uint64
}

// NewTable returns an empty table.
func NewTable(cfg Config, h Handler) *Table {
	cfg.SetDefaults()
	t := &Table{cfg: cfg, h: h}
	t.triggers = makeTriggers(cfg.Triggers)
	t.resize(1024)
	for i := range t.wheel {
		t.wheel[i] = none
	}
	return t
}

// Active returns the number of active flows, including closed ones that linger.
func (t *Table) Active() int { return t.active }

// Bytes returns the memory the table holds, used or kept for reuse.
func (t *Table) Bytes() uint64 {
	return uint64(len(t.slots))*uint64(unsafe.Sizeof(slot{})) +
		t.flows.bytes() + t.small.bytes() + t.large.bytes() + t.heads.bytes()
}

// Stats returns the counters.
func (t *Table) Stats() Stats { return t.stats }

func (t *Table) resize(n int) {
	old := t.slots
	t.slots = make([]slot, n)
	hugepage.Advise(t.slots)
	for i := range t.slots {
		t.slots[i].ref = none
	}
	t.shift = 32
	for m := n; m > 1; m >>= 1 {
		t.shift--
	}
	for _, s := range old {
		if s.ref != none {
			t.place(s)
		}
	}
}

func (t *Table) place(s slot) {
	mask := uint32(len(t.slots) - 1)
	i := s.hash >> t.shift
	for t.slots[i].ref != none {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

func (t *Table) find(k *Key, h uint32) uint32 {
	mask := uint32(len(t.slots) - 1)
	for i := h >> t.shift; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s.ref == none {
			return none
		}
		if s.hash == h && t.flows.at(s.ref).key.equal(k) {
			return s.ref
		}
	}
}

// unlink removes a flow's index entry by shifting the probe run back.
func (t *Table) unlink(ref uint32, h uint32) {
	mask := uint32(len(t.slots) - 1)
	i := h >> t.shift
	for t.slots[i].ref != ref {
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		s := t.slots[j]
		if s.ref == none {
			break
		}
		if home := s.hash >> t.shift; (j-home)&mask >= (j-i)&mask {
			t.slots[i] = s
			i = j
		}
	}
	t.slots[i].ref = none
}

// deadline returns when the flow is due if no packet comes, and why. A flow is
// due when the clock is past the deadline, not at it.
func (t *Table) deadline(f *state) (int64, telemetry.EndReason) {
	if f.bits&bitClosed != 0 {
		return after(f.lastNs, t.cfg.LingerNs), telemetry.EndTCP
	}
	idle, active := after(f.lastNs, t.cfg.IdleNs), after(f.startNs, t.cfg.ActiveNs)
	if active < idle && f.bits&bitEmpty == 0 {
		return active, telemetry.EndActive
	}
	return idle, telemetry.EndIdle
}

// after adds a duration to a time without wrapping: captures can claim times at
// the end of the range, and configurations any timeout.
func after(ns, d int64) int64 {
	if sum := ns + d; sum >= ns {
		return sum
	}
	return math.MaxInt64
}

// Add puts one packet into its flow; timeouts cut before it is added. It returns
// the flow and the delay since the flow's packet before, -1 for a first one.
func (t *Table) Add(p *Packet) (r Ref, delay int64) {
	t.stats.Packets++
	ref := t.find(&p.Key, uint32(p.Hash))
	ts := p.TimestampNs
	if ref != none {
		f := t.flows.at(ref)
		if due, reason := t.deadline(f); ts > due {
			if reason == telemetry.EndActive && ts-f.lastNs <= t.cfg.IdleNs {
				t.cut(ref, f)
			} else {
				t.end(ref, f, reason)
				ref = none
			}
		}
		// Asked of a flow just cut, too: a tick may have cut it before this packet came.
		if ref != none && p.Protocol == packet.ProtoTCP && f.newConnection(&p.Info, f.direction(p)) {
			t.end(ref, f, telemetry.EndTCP)
			ref = none
		}
	}
	opened := ref == none
	if opened {
		ref = t.open(p)
	}
	f := t.flows.at(ref)
	n := f.dir[0].packets + f.dir[1].packets + 1
	if n == 1 {
		f.bits &^= bitEmpty
		start := ts
		if !opened { // goes on after an active cut: not before the record that was cut
			start = max(ts, f.lastNs)
			t.unschedule(ref, f)
		}
		f.startNs, f.lastNs, f.startSeq = start, start, p.Seq
		t.schedule(ref, f)
	}
	delay = t.update(ref, f, p, n)
	if opened {
		t.h.Started(Ref(ref), p)
	}
	if n%ProgressPackets == 0 {
		t.progress(ref, f)
	}
	if t.triggers.hit(n) {
		t.h.Mature(Ref(ref))
	}
	if f.headRef != none && n >= t.cfg.HeadPackets {
		t.heads.release(f.headRef)
		f.headRef = none
	}
	return Ref(ref), delay
}

// progress reports what the flow has carried since the last report.
func (t *Table) progress(ref uint32, f *state) {
	p, b := f.dir[0].packets+f.dir[1].packets, f.dir[0].wireBytes+f.dir[1].wireBytes
	if n := uint32(p) - f.toldPackets; n != 0 { // at most ProgressPackets
		t.h.Progress(Ref(ref), uint64(n), uint64(uint32(b)-f.toldBytes))
		f.toldPackets, f.toldBytes = uint32(p), uint32(b)
	}
}

func (f *state) direction(p *Packet) int {
	if p.FromB != (f.bits&bitFromB != 0) && p.Key.differ() {
		return telemetry.Rev
	}
	return telemetry.Fwd
}

// differ reports whether the endpoints can be told apart.
func (k *Key) differ() bool { return k.PortA != k.PortB || k.A != k.B }

// insert makes room for one flow and returns its place, which the caller fills.
func (t *Table) insert(h uint32) uint32 {
	if t.active >= t.cfg.MaxFlows {
		t.evict(h)
	}
	if 2*(t.active+1) > len(t.slots) {
		t.resize(2 * len(t.slots))
	}
	ref := t.flows.take()
	t.place(slot{h, ref})
	t.active++
	return ref
}

// remove takes a flow that is on no wheel list and has no histogram out of the table.
func (t *Table) remove(ref uint32, f *state) {
	t.unlink(ref, uint32(f.hash))
	f.bits = 0
	t.flows.release(ref)
	t.active--
}

// open makes room for and initialises a flow; its first packet is not yet added.
func (t *Table) open(p *Packet) uint32 {
	ref := t.insert(uint32(p.Hash))
	f := t.flows.at(ref)
	*f = state{key: p.Key, hash: p.Hash, bits: bitLive, histRef: none, headRef: none, next: none, prev: none, wheel: none}
	fromB := p.FromB
	if p.Protocol == packet.ProtoTCP && p.TCPFlags&(packet.TCPSyn|packet.TCPAck) == packet.TCPSyn|packet.TCPAck {
		fromB = !fromB // the first packet answers: its receiver is the initiator
	}
	if fromB {
		f.bits |= bitFromB
	}
	if t.cfg.Head {
		f.headRef = t.heads.take()
		*t.heads.at(f.headRef) = model.Head{Protocol: p.Protocol}
	}
	return ref
}

// cut emits a record at the active timeout and keeps the flow: orientation and
// sequence state go on, counters start again.
func (t *Table) cut(ref uint32, f *state) {
	t.emit(ref, f, telemetry.EndActive)
	t.releaseHist(f)
	f.dir = [2]half{}
	f.bits = f.bits&(bitFromB|bitRTT|bitPastSyn|bitLive|bitDoubt|bitConfirmed) | bitEmpty
	f.toldPackets, f.toldBytes = 0, 0
	f.timeSteps, f.synRetransmits, f.coalesced = 0, 0, 0
	// Scores stay: what the head of a connection said holds for all its records.
}

func (t *Table) emit(ref uint32, f *state, reason telemetry.EndReason) {
	t.stats.Records++
	t.stats.Recorded += f.dir[0].packets + f.dir[1].packets
	t.progress(ref, f)
	t.binned(f, f.dir[0].packets+f.dir[1].packets)
	t.h.Ended(Ref(ref), reason)
}

func (t *Table) releaseHist(f *state) {
	switch f.tier {
	case tierSmall:
		t.small.release(f.histRef)
	case tierLarge:
		t.large.release(f.histRef)
	}
	f.tier, f.histRef = tierNone, none
	if f.headRef != none {
		t.heads.release(f.headRef)
		f.headRef = none
	}
}

// end emits the flow's record, unless it is empty, and frees its state.
func (t *Table) end(ref uint32, f *state, reason telemetry.EndReason) {
	if f.bits&bitEmpty == 0 {
		t.emit(ref, f, reason)
	}
	t.releaseHist(f)
	t.unschedule(ref, f)
	t.remove(ref, f)
}

// evictWays is how many occupied index entries from the newcomer's home on compete.
const evictWays = 8

func (t *Table) evict(h uint32) {
	mask := uint32(len(t.slots) - 1)
	victim := none
	var v *state
	for i, seen := h>>t.shift, 0; seen < evictWays && seen < t.active; i = (i + 1) & mask {
		ref := t.slots[i].ref
		if ref == none {
			continue
		}
		seen++
		f := t.flows.at(ref)
		if victim == none || f.less(v) {
			victim, v = ref, f
		}
	}
	t.stats.Evicted++
	t.end(victim, v, telemetry.EndEvicted)
}

// less orders flows by value: closed ones first, then few packets, then long unseen, then old.
func (f *state) less(g *state) bool {
	if c, d := f.bits&bitClosed, g.bits&bitClosed; c != d {
		return c > d
	}
	if a, b := f.dir[0].packets+f.dir[1].packets, g.dir[0].packets+g.dir[1].packets; a != b {
		return a < b
	}
	if f.lastNs != g.lastNs {
		return f.lastNs < g.lastNs
	}
	return f.startSeq < g.startSeq
}

// update adds the packet, the record's n-th, to the flow's counters.
func (t *Table) update(ref uint32, f *state, p *Packet, n uint64) int64 {
	first := n == 1
	d := f.direction(p)
	h := &f.dir[d]
	ts := p.TimestampNs
	delay := ts - f.lastNs
	if delay < 0 {
		ts, delay = f.lastNs, 0
		f.timeSteps++
		t.stats.TimeSteps++
	}
	f.lastNs = ts
	if p.Flags&packet.FlagFragmentLater != 0 && p.SrcPort|p.DstPort == 0 {
		f.bits |= bitFragment
	}
	if p.Coalesced {
		f.coalesced++
	}
	wire := p.WireLen
	if h.packets == 0 {
		h.firstNs, h.wireMin, h.wireMax = ts, wire, wire
	} else {
		gap := ts - h.lastNs
		if h.packets == 1 {
			h.delayMin, h.delayMax = gap, gap
		} else {
			h.delayMin, h.delayMax = min(h.delayMin, gap), max(h.delayMax, gap)
		}
		addSquare(&h.delaySqHi, &h.delaySqLo, uint64(gap))
		h.wireMin, h.wireMax = min(h.wireMin, wire), max(h.wireMax, wire)
	}
	h.lastNs = ts
	h.packets++
	h.wireBytes += uint64(wire)
	h.l3Bytes += uint64(p.L3Len)
	h.payloadBytes += uint64(p.PayloadLen)
	h.wireSq += uint64(wire) * uint64(wire)
	sizeBin, delayBin := SizeBin(p.L3Len), 0
	if !first {
		delayBin = DelayBin(delay)
	}
	t.count(f, n, sizeBin, delayBin)
	if f.headRef != none {
		collect(t.heads.at(f.headRef), p, d, delayBin, first)
	}
	if p.Protocol == packet.ProtoTCP {
		h.tcpFlags |= p.TCPFlags
		closed := f.bits & bitClosed
		if f.side[d] != p.Side {
			f.cameFrom(d, p.Side)
		}
		f.trackTCP(&p.Info, d, ts)
		if f.side[0] != f.side[1] && f.bits&(bitDoubt|bitConfirmed) == 0 {
			f.confirm()
		}
		if f.bits&bitClosed != closed {
			t.unschedule(ref, f)
			t.schedule(ref, f)
		}
	}
	if first {
		return -1
	}
	return delay
}

// Prefetching hides the memory latency of large tables: a caller that knows its
// next packets calls PrefetchIndex for one some packets ahead and PrefetchState
// for the same one a little later, before Add. Both are hints without effect on results.

// PrefetchIndex asks for the index entries of a hash.
func (t *Table) PrefetchIndex(hash uint64) {
	prefetch.Line(unsafe.Pointer(&t.slots[uint32(hash)>>t.shift]))
}

// PrefetchState asks for the state of the flow that most likely has the hash.
func (t *Table) PrefetchState(hash uint64) {
	h := uint32(hash)
	mask := uint32(len(t.slots) - 1)
	for i := h >> t.shift; t.slots[i].ref != none; i = (i + 1) & mask {
		if t.slots[i].hash == h {
			prefetch.Lines8(unsafe.Pointer(t.flows.at(t.slots[i].ref)))
			return
		}
	}
}
