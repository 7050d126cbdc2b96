package simt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// Replay is frames on their way through the packet path's kernel in a program of its own
// (lib/run.cc), which can be built for a sanitizer. Its zero value has one ring.
type Replay struct {
	Rings      int
	PerBlock   int // rings of a block
	Shards     int // of a ring
	Receivers  int // of a ring, that take turns; 0: one that has it alone
	LogRQ      int
	Pitch      int // bytes of a frame that the device can see
	Batch      int
	Buckets    int // of a shard's flow table
	LogRecords int
	Order      uint64 // seed of the order of lanes
	Flow       flow.Config
	Decap      packet.Decap
	Sketches   uint32 // abi.Params.Sketches
	Stateless  bool   // packets are counted and forgotten
	Models     bool   // heads, triggers and events, see abi.Params.Messages
	Early      bool   // a fault of the host: completions come before their payload
	Lacks      string // a fault of the device: the fence it has not, "acquire" or "release"

	header replayHeader
	frames bytes.Buffer
	parser packet.Parser
	parts  *packet.FragmentTable
	nowNs  int64
	step   int64
}

type replayHeader struct {
	Order, Seed                                                                                      uint64
	IdleNs, ActiveNs, LingerNs, FlushNs                                                              int64
	Rings, LogRQ, Pitch, Batch, Buckets, LogRecords, Decap, Key, RingFlag, PerBlock, Early, Sketches uint32
	Shards, Models, Receivers, Stateless                                                             uint32
}

type replayFrame struct {
	TimestampNs             int64
	Ring, Captured, WireLen uint32
	LinkType, SegmentSize   uint16
	Side, Tick              uint8
	_                       [6]byte
}

const (
	clockBackNs  = 60e9 // as in agp/pipeline/cpu
	relayedFlag  = 1    // AGP_RELAY
	losslessFlag = 2    // AGP_LOSSLESS
)

// Add appends a frame, and the ticks of the clock that come before it. The ring is that of the
// flow, as the relay chooses it.
func (r *Replay) Add(f *source.Frame) {
	r.prepare()
	var p flow.Packet
	ring := 0
	if r.parser.Parse(f.LinkType, f.Data, f.WireLen, &p.Info) == packet.OK {
		p.TimestampNs = f.TimestampNs
		r.parts.Resolve(&p.Info)
		r.pass(f.TimestampNs)
		p.Key.Set(&p.Info, r.Flow.Key)
		ring = flow.QueueOf(int(p.Key.Hash(r.header.Seed)>>56), r.Rings)
	}
	data := f.Data[:min(len(f.Data), r.Pitch)]
	r.write(&replayFrame{
		TimestampNs: f.TimestampNs, Ring: uint32(ring), Captured: uint32(len(data)), WireLen: max(f.WireLen, uint32(len(f.Data))),
		LinkType: uint16(f.LinkType), SegmentSize: f.SegmentSize, Side: f.Side,
	}, data)
}

func (r *Replay) pass(now int64) {
	if now < r.nowNs && now > r.nowNs-clockBackNs {
		return
	}
	r.nowNs = now
	step := now / flow.TickNs
	if step == r.step {
		return
	}
	r.step = step
	for i := range r.Rings {
		r.write(&replayFrame{TimestampNs: step * flow.TickNs, Ring: uint32(i), Tick: 1}, nil)
	}
}

func (r *Replay) write(f *replayFrame, data []byte) {
	r.frames.Write(Bytes(f))
	r.frames.Write(data)
}

func (r *Replay) prepare() {
	if r.parts != nil {
		return
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&r.Rings, 1)
	def(&r.PerBlock, 1)
	def(&r.Shards, 1)
	def(&r.LogRQ, 6)
	def(&r.Pitch, 2048)
	def(&r.Batch, 32)
	def(&r.Buckets, 1024)
	def(&r.LogRecords, 14)
	r.parser.Decap = r.Decap
	r.parts = packet.NewFragmentTable(8192)
	r.header.Seed = 0x1234567890abcdef
}

// Result of a Replay.
type Result struct {
	Records []string // as agp.h has them, in hexadecimal, and a sum of each shard's sketches or counters, sorted
	Rings   []Ring
}

// Ring is what the kernel has counted on a ring, see agp_stats.
type Ring struct {
	Status                                                           uint32
	Frames, Bytes, Recorded, Dropped, Lost, Records, Evicted, Active uint64
}

// Run replays the frames in a program built for a sanitizer. dir is for the input.
func (r *Replay) Run(ctx context.Context, dir string, s Sanitizer) (*Result, error) {
	r.prepare()
	h := &r.header
	h.Order = r.Order
	h.IdleNs, h.ActiveNs, h.LingerNs = orDefault(r.Flow.IdleNs, flow.DefaultIdleNs), orDefault(r.Flow.ActiveNs, flow.DefaultActiveNs), orDefault(r.Flow.LingerNs, flow.DefaultLingerNs)
	h.FlushNs = r.nowNs
	h.Rings, h.LogRQ, h.Pitch, h.Batch = uint32(r.Rings), uint32(r.LogRQ), uint32(r.Pitch), uint32(r.Batch)
	h.Buckets, h.LogRecords, h.RingFlag = uint32(r.Buckets), uint32(r.LogRecords), relayedFlag|losslessFlag
	h.PerBlock, h.Shards, h.Receivers = uint32(r.PerBlock), uint32(r.Shards), uint32(r.Receivers)
	h.Decap = flags(r.Decap.VXLAN, r.Decap.GRE, r.Decap.Geneve, r.Decap.GTPU)
	h.Key = flags(r.Flow.Key.VLAN, r.Flow.Key.Tunnel)
	h.Early, h.Sketches, h.Models = flags(r.Early), r.Sketches, flags(r.Models)
	h.Stateless = flags(r.Stateless)
	path := filepath.Join(dir, "frames")
	if err := os.WriteFile(path, slices.Concat(Bytes(h), r.frames.Bytes()), 0o644); err != nil {
		return nil, err
	}
	program := "run"
	if r.Lacks != "" {
		program = "no_" + r.Lacks
	}
	out, err := Run(ctx, "tests/simt/lib/"+program+".cc", s, path)
	if err != nil {
		return nil, err
	}
	return parse(out)
}

// parse reads what lib/host.h prints.
func parse(out []byte) (*Result, error) {
	res := &Result{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var n Ring
		line := lines.Text()
		if _, err := fmt.Sscanf(line, "ring %d %d %d %d %d %d %d %d %d", &n.Status, &n.Frames, &n.Bytes, &n.Recorded, &n.Dropped, &n.Lost, &n.Records, &n.Evicted, &n.Active); err == nil {
			res.Rings = append(res.Rings, n)
		} else if _, err := hex.DecodeString(line); err == nil {
			res.Records = append(res.Records, line)
		} else {
			return nil, fmt.Errorf("simt: unexpected output: %.80s", line)
		}
	}
	slices.Sort(res.Records)
	return res, lines.Err()
}

func orDefault(v, d int64) int64 {
	if v > 0 {
		return v
	}
	return d
}

// flags sets bit i if the i-th argument is true.
func flags(on ...bool) (f uint32) {
	for i, v := range on {
		if v {
			f |= 1 << i
		}
	}
	return f
}
