package cuda

import (
	"fmt"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/pipeline/score"
)

// logFragments are the buckets of a ring's table of first fragments: as many datagrams as the
// reference remembers in all.
var logFragments = uint32(bits.Len(packet.FragmentDatagrams/abi.Ways - 1))

// ring is what the host has of one ring.
type ring struct {
	queue   mlx5.Queue
	abi     abi.Ring
	shards  []*shard
	stats   *abi.Stats
	seen    abi.Stats // last read
	resets  *uint32   // how often the queue was reset; written here, read by the device
	stopped bool      // it is in the reset state
	number  int
}

// shard is what the host has of a part of a ring's flows.
type shard struct {
	abi   abi.Shard
	buf   []byte // record ring
	head  *uint64
	tail  *uint64
	stats *abi.ShardStats
	seen  abi.ShardStats // last read

	sketches abi.Sketches // last read
	whole    bool         // a whole window was there then

	scored map[uint32]flow.Ref // by place: flows with scores
	mark   score.Position      // it has told all that was until then
}

// Block returns the warps and the bytes of shared memory of a block that serves so many rings, each with
// so many receive warps and shards.
func Block(rings, receivers, shards int, sketches uint32) (warps, shared int) {
	shared = rings * (receivers*abi.ReceiverScratch + shards*abi.ShardScratch)
	if sketches&abi.SketchQuantiles != 0 {
		shared += abi.TableScratch
	}
	return rings * (receivers + shards), shared
}

// buckets returns how many a shard has: 9 places in 20 more than it is to have flows, and some
// because flows are not spread evenly over shards. A flow goes into the emptier of two buckets. Of
// 2^20 flows in 64 shards, once as many are there, it finds both full in none of 2^20 cases (with 6
// places in 20 more, in 37), and while all the time one ends and another one comes, in one of 1000.
func (c *Config) buckets() int {
	flows := (c.Flow.MaxFlows-1)/(c.Rings*c.Shards) + 1
	return (flows*29/20 + 64 + abi.Ways - 1) / abi.Ways
}

// tables are the sizes of what a shard has to itself, in the order of its pieces.
func (c *Config) tables() []int {
	state := len(bytesOf(&abi.ShardState{}))
	if c.Mode == ModeStateless {
		return []int{state, len(bytesOf(&abi.Counts{}))}
	}
	places := abi.Ways * c.buckets()
	return []int{state, 4 * places, 4 * places, len(bytesOf(&abi.Flow{})) * places, len(bytesOf(&abi.Hist{})) * places}
}

// pieces are where a shard finds them.
func (c *Config) pieces(d *abi.Shard) []*Addr {
	if c.Mode == ModeStateless {
		return []*Addr{&d.State, &d.Counts}
	}
	d.Buckets = uint32(c.buckets())
	return []*Addr{&d.State, &d.Tags, &d.Due, &d.Flows, &d.Hists}
}

func (p *Pipeline) newRing(tables [][]Addr) (*ring, error) {
	c := &p.cfg
	layout := mlx5.Layout{LogRQ: c.LogRQ, LogCQ: c.LogRQ + 1, Pitch: c.Pitch} // as many again for time
	if err := layout.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r := &ring{number: len(p.rings)}
	o := layout.Offsets()
	queue, err := p.newQueue(r, layout)
	if err != nil {
		return nil, err
	}
	const line = mlx5.LineSize
	shared, err := p.mem.mapped(line + len(bytesOf(&abi.Stats{})))
	if err != nil {
		return nil, err
	}
	r.resets, r.stats = at[uint32](shared.Bytes), at[abi.Stats](shared.Bytes[line:])
	r.abi = abi.Ring{
		CQ: queue, CQDB: queue + Addr(o.CQDB), RQDB: queue + Addr(o.RQDB), Payload: queue + Addr(o.Payload),
		LogCQ: uint32(layout.LogCQ), LogRQ: uint32(layout.LogRQ), Pitch: layout.Pitch,
		Stats: shared.Addr + line, Resets: shared.Addr, LogFragments: logFragments,
	}
	if c.Port == nil {
		r.abi.Flags = abi.FlagRelay | abi.FlagNumbered
	}
	if c.Lossless {
		r.abi.Flags |= abi.FlagLossless
	}
	if r.abi.Fragments, err = p.mem.alloc(len(bytesOf(&abi.Fragment{})) * 8 << logFragments); err != nil {
		return nil, err
	}
	if r.abi.State, err = p.mem.alloc(len(bytesOf(&abi.RingState{}))); err != nil {
		return nil, err
	}
	var table []byte
	for i := range c.Shards {
		d, err := p.newShard(tables[i])
		if err != nil {
			return nil, err
		}
		r.shards = append(r.shards, d)
		table = append(table, bytesOf(&d.abi)...)
	}
	r.abi.Shards, err = p.write(table)
	return r, err
}

// newQueue makes the queue of a ring, ready for use, and returns where it begins.
func (p *Pipeline) newQueue(r *ring, layout mlx5.Layout) (Addr, error) {
	o := layout.Offsets()
	if !p.cfg.OnDevice {
		m, err := p.mem.mapped(int(o.Size))
		if err != nil {
			return 0, err
		}
		if r.queue, err = layout.View(m.Bytes); err != nil {
			return 0, err
		}
		r.queue.Addr = uint64(m.Addr) + o.Payload
		r.queue.Init()
		return m.Addr, nil
	}
	base, err := p.mem.alloc(int(o.Size))
	if err != nil {
		return 0, err
	}
	// The image of what comes before the payload.
	image := make([]byte, o.Payload)
	part := func(from, size uint64) []byte { return image[from : from+size : from+size] }
	r.queue = mlx5.Queue{
		Layout: layout, CQ: part(0, mlx5.CQESize<<layout.LogCQ), RQ: part(o.RQ, uint64(layout.WQESize())<<layout.LogRQ),
		CQDB: part(o.CQDB, mlx5.DoorbellSize), RQDB: part(o.RQDB, mlx5.DoorbellSize), Addr: uint64(base) + o.Payload,
	}
	r.queue.Init()
	r.queue.CQ, r.queue.RQ, r.queue.CQDB, r.queue.RQDB = nil, nil, nil, nil
	return base, p.cfg.Device.Write(base, image)
}

// Memory is what the kernel is given, for measurements that launch it themselves, with other rings
// or parameters. It is the pipeline's until Close.
func (p *Pipeline) Memory() (abi.Params, []abi.Ring, [][]abi.Shard) {
	rings, shards := make([]abi.Ring, len(p.rings)), make([][]abi.Shard, len(p.rings))
	for i, r := range p.rings {
		rings[i] = r.abi
		for _, d := range r.shards {
			shards[i] = append(shards[i], d.abi)
		}
	}
	return p.params, rings, shards
}

// Counters are what the device has counted of a ring and of its shards. Safe from any goroutine.
func (p *Pipeline) Counters(ring int) (abi.Stats, []abi.ShardStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read()
	r := p.rings[ring]
	shards := make([]abi.ShardStats, len(r.shards))
	for i, d := range r.shards {
		shards[i] = d.seen
	}
	return r.seen, shards
}

func (p *Pipeline) newShard(tables []Addr) (*shard, error) {
	c := &p.cfg
	const line = mlx5.LineSize
	shared, err := p.mem.mapped(2*line + 1<<c.LogRecords + len(bytesOf(&abi.ShardStats{})))
	if err != nil {
		return nil, err
	}
	m := shared.Bytes
	d := &shard{head: at[uint64](m), tail: at[uint64](m[line:]), buf: m[2*line : 2*line+1<<c.LogRecords]}
	d.stats = at[abi.ShardStats](m[2*line+1<<c.LogRecords:])
	d.abi = abi.Shard{
		Stats: shared.Addr + 2*line + 1<<c.LogRecords,
		Out:   abi.Out{Buf: shared.Addr + 2*line, Head: shared.Addr, Tail: shared.Addr + line, LogSize: uint32(c.LogRecords)},
	}
	for i, at := range c.pieces(&d.abi) {
		*at = tables[i]
	}
	return d, p.newSketches(d)
}
