package cuda

import (
	"fmt"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
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
}

// shard is what the host has of a part of a ring's flows.
type shard struct {
	abi   abi.Shard
	buf   []byte // record ring
	head  *uint64
	tail  *uint64
	stats *abi.ShardStats
	seen  abi.ShardStats // last read
}

// Block returns the warps and the bytes of shared memory of a block that serves so many rings.
func Block(rings, shards int) (warps, shared int) {
	return rings * (1 + shards), rings * (abi.ReceiverScratch + shards*abi.ShardScratch)
}

// buckets returns how many a shard has: half as many places again as it is to have flows, and
// some, because flows are not spread evenly.
func (c *Config) buckets() int {
	flows := (c.Flow.MaxFlows-1)/(c.Rings*c.Shards) + 1
	return (flows*3/2 + 64 + abi.Ways - 1) / abi.Ways
}

func (p *Pipeline) newRing() (*ring, error) {
	c := &p.cfg
	layout := mlx5.Layout{LogRQ: c.LogRQ, LogCQ: c.LogRQ + 1, Pitch: c.Pitch} // as many again for time
	if err := layout.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r := &ring{}
	o := layout.Offsets()
	queue, err := p.mem.mapped(int(o.Size))
	if err != nil {
		return nil, err
	}
	if r.queue, err = layout.View(queue.Bytes); err != nil {
		return nil, err
	}
	r.queue.Addr = uint64(queue.Addr) + o.Payload
	r.queue.Init()
	const line = mlx5.LineSize
	shared, err := p.mem.mapped(line + len(bytesOf(&abi.Stats{})))
	if err != nil {
		return nil, err
	}
	r.resets, r.stats = at[uint32](shared.Bytes), at[abi.Stats](shared.Bytes[line:])
	r.abi = abi.Ring{
		CQ: queue.Addr, CQDB: queue.Addr + Addr(o.CQDB), RQDB: queue.Addr + Addr(o.RQDB), Payload: queue.Addr + Addr(o.Payload),
		LogCQ: uint32(layout.LogCQ), LogRQ: uint32(layout.LogRQ), Pitch: layout.Pitch, Flags: abi.FlagRelay,
		Stats: shared.Addr + line, Resets: shared.Addr, LogFragments: logFragments,
	}
	if c.Port != nil {
		r.abi.Flags = 0
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
	for range c.Shards {
		d, err := p.newShard()
		if err != nil {
			return nil, err
		}
		r.shards = append(r.shards, d)
		table = append(table, bytesOf(&d.abi)...)
	}
	r.abi.Shards, err = p.write(table)
	return r, err
}

func (p *Pipeline) newShard() (*shard, error) {
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
		Stats: shared.Addr + 2*line + 1<<c.LogRecords, Buckets: uint32(c.buckets()),
		Out: abi.Out{Buf: shared.Addr + 2*line, Head: shared.Addr, Tail: shared.Addr + line, LogSize: uint32(c.LogRecords)},
	}
	places := abi.Ways * c.buckets()
	for _, part := range []struct {
		at   *Addr
		size int
	}{
		{&d.abi.Tags, 4 * places}, {&d.abi.Due, 4 * places},
		{&d.abi.Flows, len(bytesOf(&abi.Flow{})) * places}, {&d.abi.Hists, len(bytesOf(&abi.Hist{})) * places},
		{&d.abi.State, len(bytesOf(&abi.ShardState{}))},
	} {
		if *part.at, err = p.mem.alloc(part.size); err != nil {
			return nil, err
		}
	}
	d.abi.Sketches, err = p.newSketches()
	return d, err
}
