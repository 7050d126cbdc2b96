package gpu

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Shape is what a kernel serves.
type Shape struct {
	Rings, PerBlock int // and how many of them share a multiprocessor
	Shards          int // state warps per ring
	Mode            cuda.Mode
	Receivers       int // receive warps per ring that take turns, in sequence mode
	Fill            int // cuda.Config.Fill
	LogRQ           uint8
	Flows           int // per ring
	FrameLen        int // without FCS
	Sketches        bool
}

// Warps are those of the kernel.
func (s Shape) Warps() int { return s.Rings * (max(1, s.Receivers) + s.Shards) }

// Blocks are those of the kernel, each on a multiprocessor.
func (s Shape) Blocks() int { return (s.Rings-1)/s.PerBlock + 1 }

func (s Shape) pitch() uint32 {
	return max(128, uint32(s.FrameLen+mlx5.StrideUnit-1)/mlx5.StrideUnit*mlx5.StrideUnit)
}

// config is that of a pipeline of this shape.
func (s Shape) config(g cuda.Device, port func([]mlx5.Queue) (cuda.Feeder, error)) cuda.Config {
	c := cuda.Config{
		Device: g, Sink: discard{}, Rings: s.Rings, PerBlock: s.PerBlock, Shards: s.Shards, LogRQ: s.LogRQ, Pitch: s.pitch(), LogRecords: 16,
		Mode: s.Mode, Receivers: s.Receivers, Fill: s.Fill,
		Flow: flow.Config{MaxFlows: s.Flows * s.Rings, IdleNs: 60e9, ActiveNs: 300e9, LingerNs: 10e9}, OnDevice: true, Port: port,
	}
	if s.LogRQ == 0 {
		c.LogRQ = 12
	}
	if s.Sketches {
		c.Sketch = &cuda.SketchConfig{}
	}
	return c
}

type discard struct{}

func (discard) Record(*telemetry.Record) {}
func (discard) Alert(*telemetry.Alert)   {}

// nobody feeds: the kernel is launched here.
type nobody struct{}

func (nobody) Run(context.Context) error { return nil }
func (nobody) ClockNs() int64            { return 0 }
func (nobody) Stats() source.Stats       { return source.Stats{} }
func (nobody) Interrupt()                {}
func (nobody) Stop(int) error            { return cuda.ErrRing }
func (nobody) Start(int) error           { return nil }

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// memory hands out memory of a device; the first error stays.
type memory struct {
	g    cuda.Device
	held []cuda.Addr
	err  error
}

func (m *memory) alloc(n int) cuda.Addr {
	if m.err != nil {
		return 0
	}
	a, err := m.g.Alloc(n)
	if m.err = err; err == nil {
		m.held = append(m.held, a)
	}
	return a
}

func (m *memory) mapped(n int) cuda.Mapped {
	if m.err != nil {
		return cuda.Mapped{Bytes: make([]byte, n)}
	}
	b, err := m.g.AllocMapped(n)
	if m.err = err; err != nil {
		return cuda.Mapped{Bytes: make([]byte, n)}
	}
	m.held = append(m.held, b.Addr)
	return b
}

// write is memory with p in it.
func (m *memory) write(p []byte) cuda.Addr {
	a := m.alloc(len(p))
	if m.err == nil {
		m.err = m.g.Write(a, p)
	}
	return a
}

func (m *memory) free() error {
	for _, a := range m.held {
		if err := m.g.Free(a); err != nil && m.err == nil {
			m.err = err
		}
	}
	m.held = nil
	return m.err
}

// bed is a pipeline's memory, with what a measurement puts in the place of some of it, and its
// kernel.
type bed struct {
	memory
	shape   Shape
	p       *cuda.Pipeline
	params  abi.Params
	rings   []abi.Ring
	shards  [][]abi.Shard
	control *abi.Control
}

// startNs is when the first packet of every ring comes, in the packets' time.
const startNs = 1_700_000_000_000_000_000

func newBed(g cuda.Device, s Shape, change func(*cuda.Config)) (*bed, error) {
	c := s.config(g, func([]mlx5.Queue) (cuda.Feeder, error) { return nobody{}, nil })
	if change != nil {
		change(&c)
	}
	p, err := cuda.New(c)
	if err != nil {
		return nil, err
	}
	b := &bed{memory: memory{g: g}, shape: s, p: p}
	b.params, b.rings, b.shards = p.Memory()
	control := b.mapped(4096)
	b.control = (*abi.Control)(unsafe.Pointer(&control.Bytes[0]))
	b.params.Control = control.Addr
	return b, b.err
}

// close gives everything back. What runs has ended.
func (b *bed) close() error {
	err := b.free()
	if late := b.p.Close(); err == nil {
		err = late
	}
	return err
}

// table puts rings and shards as they are now where the kernels find them.
func (b *bed) table() (cuda.Addr, error) {
	var table []byte
	for i := range b.rings {
		var shards []byte
		for j := range b.shards[i] {
			shards = append(shards, bytesOf(&b.shards[i][j])...)
		}
		b.rings[i].Shards = b.write(shards)
		table = append(table, bytesOf(&b.rings[i])...)
	}
	b.params.Rings = b.write(table)
	return b.params.Rings, b.err
}

// queues puts all rings' queues into one piece each of CQEs and of payload, at equal distances, and
// of so many packets.
func (b *bed) queues(logRQ, logCQ uint32, piece func(n int) cuda.Addr) error {
	cq, pitch := piece(b.shape.Rings*mlx5.CQESize<<logCQ), b.rings[0].Pitch
	payload := piece(b.shape.Rings * int(pitch) << logRQ)
	if b.err != nil {
		return b.err
	}
	empty := bytes.Repeat([]byte{0xff}, mlx5.CQESize<<logCQ)
	for i := range b.rings {
		r := &b.rings[i]
		r.LogRQ, r.LogCQ = logRQ, logCQ
		r.CQ, r.Payload = cq+cuda.Addr(i*mlx5.CQESize<<logCQ), payload+cuda.Addr(i*int(pitch)<<logRQ)
		if err := b.g.Write(r.CQ, empty); err != nil {
			return err
		}
	}
	return nil
}

// serve launches the kernel that takes the packets, up to so many of each ring (0: all).
func (b *bed) serve(limit uint64) (cuda.Run, error) {
	b.params.Limit = limit
	warps, shared := cuda.Block(b.shape.PerBlock, max(1, b.shape.Receivers), b.shape.Shards, b.params.Sketches)
	return b.g.Launch(b.p.Kernel(), b.shape.Blocks(), warps, shared, bytesOf(&b.params))
}

// tell gives the kernel a command.
func (b *bed) tell(command uint32, flushNs int64) {
	atomic.StoreInt64(&b.control.FlushNs, flushNs)
	atomic.StoreUint32(&b.control.Command, command)
}

// nic is the NIC model's kernel.
type nic struct {
	params  abi.NIC
	control *abi.Control
	late    []uint64
}

const feedersPerBlock = 4 // warps

// newNIC makes one with so many warps per ring.
func (m *memory) newNIC(rings cuda.Addr, count, warps int, n abi.NIC) *nic {
	control, late := m.mapped(4096), m.mapped(8*count*warps)
	n.Control, n.Rings, n.Late = control.Addr, rings, late.Addr
	n.Count, n.Warps, n.Seed, n.StartNs = uint32(count), uint32(warps), 7, startNs
	return &nic{n, (*abi.Control)(unsafe.Pointer(&control.Bytes[0])), unsafe.Slice((*uint64)(unsafe.Pointer(&late.Bytes[0])), count*warps)}
}

func (n *nic) launch(g cuda.Device) (cuda.Run, error) {
	warps := int(n.params.Count * n.params.Warps)
	return g.Launch("agp_nic_send", (warps-1)/feedersPerBlock+1, feedersPerBlock, 0, bytesOf(&n.params))
}

func (n *nic) stop() { atomic.StoreUint32(&n.control.Command, abi.CommandStop) }

// waited is how many batches were due before there was credit for them.
func (n *nic) waited() (sum uint64) {
	for i := range n.late {
		sum += atomic.LoadUint64(&n.late[i])
	}
	return sum
}

// patience is how long anything here may take at all.
const patience = 2 * time.Minute

// ending waits for a kernel; if it does not end, it and what feeds it are told to.
func (b *bed) ending(ctx context.Context, what string, run cuda.Run, feeder *nic) error {
	err := run.Wait(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	b.tell(abi.CommandStop, 0)
	if feeder != nil {
		feeder.stop()
	}
	short, cancel := context.WithTimeout(context.Background(), cuda.DefaultPatience)
	defer cancel()
	if stuck := run.Wait(short); stuck != nil {
		err = fmt.Errorf("%w, and it does not stop: %w", err, stuck)
	}
	st, shards := b.p.Counters(0)
	return fmt.Errorf("%s, %+v: ring 0 %+v, its first shard %+v: %w", what, b.shape, st, shards[0], err)
}
