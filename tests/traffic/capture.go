package traffic

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// Directions of a packet, as in agp/telemetry.
const (
	Fwd = 0 // from the flow's initiator
	Rev = 1
)

// Epoch is the time of the first packet of every profile.
const Epoch = int64(1_767_225_600_000_000_000) // 2026-01-01T00:00:00Z

// Capture is a set of flows and their packets.
type Capture struct {
	Rand    *rand.Rand
	flows   []*Flow
	packets []packet
	heads   [][]byte
	filler  []byte
	sorted  bool
}

// packet describes one frame; 40 bytes, because profiles hold millions of them.
type packet struct {
	at       int64
	seq, ack uint32
	flow     uint32
	head     int32 // index into heads, -1 for none: what follows the head is filler
	length   uint16
	window   uint16
	id       uint16 // IPv4 identification, sequence number of an ICMP echo
	dir      uint8
	flags    uint8
	again    bool // deliberate repetition of a segment
	late     bool // deliberate disorder
}

// New returns an empty capture. Equal seeds give equal random numbers.
func New(seed uint64) *Capture {
	c := &Capture{Rand: rand.New(rand.NewPCG(seed, 0x6167702d74726166))}
	c.filler = make([]byte, 1<<17)
	for i := 0; i < len(c.filler); i += 8 {
		binary.LittleEndian.PutUint64(c.filler[i:], c.Rand.Uint64())
	}
	return c
}

// Packets is the number of packets so far.
func (c *Capture) Packets() int { return len(c.packets) }

// Flows returns the flows in the order of their creation.
func (c *Capture) Flows() []*Flow { return c.flows }

func (c *Capture) head(b []byte) int32 {
	if b == nil {
		return -1
	}
	c.heads = append(c.heads, b)
	return int32(len(c.heads) - 1)
}

// sort brings the packets into time order; packets of equal time keep the order in which they were made.
func (c *Capture) sort() {
	if !c.sorted {
		slices.SortStableFunc(c.packets, func(a, b packet) int { return cmp.Compare(a.at, b.at) })
		c.sorted = true
	}
}

// Frame is a rendered packet.
type Frame struct {
	TimestampNs int64
	Data        []byte
}

// Each renders all frames in time order. Data is only valid during the call.
func (c *Capture) Each(f func(Frame) error) error {
	c.sort()
	buf := make([]byte, 0, 1<<16)
	for i := range c.packets {
		p := &c.packets[i]
		buf = c.render(buf[:0], p)
		if err := f(Frame{TimestampNs: p.at, Data: buf}); err != nil {
			return err
		}
	}
	return nil
}

// Frames renders all frames in time order into memory.
func (c *Capture) Frames() []Frame {
	frames := make([]Frame, 0, len(c.packets))
	_ = c.Each(func(f Frame) error {
		f.Data = slices.Clone(f.Data)
		frames = append(frames, f)
		return nil
	})
	return frames
}

// WritePcap writes a classic pcap file with nanosecond times and Ethernet frames.
func (c *Capture) WritePcap(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<20)
	var head [24]byte
	binary.LittleEndian.PutUint32(head[0:], 0xa1b23c4d)
	binary.LittleEndian.PutUint16(head[4:], 2)
	binary.LittleEndian.PutUint16(head[6:], 4)
	binary.LittleEndian.PutUint32(head[16:], 262144)
	binary.LittleEndian.PutUint32(head[20:], 1)
	if _, err := out.Write(head[:]); err != nil {
		return err
	}
	err := c.Each(func(f Frame) error {
		var rec [16]byte
		binary.LittleEndian.PutUint32(rec[0:], uint32(f.TimestampNs/int64(time.Second)))
		binary.LittleEndian.PutUint32(rec[4:], uint32(f.TimestampNs%int64(time.Second)))
		binary.LittleEndian.PutUint32(rec[8:], uint32(len(f.Data)))
		binary.LittleEndian.PutUint32(rec[12:], uint32(len(f.Data)))
		if _, err := out.Write(rec[:]); err != nil {
			return err
		}
		_, err := out.Write(f.Data)
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

// Flow returns a new flow whose clock stands at the given time. TCP flows start
// with random initial sequence numbers; call Handshake to open them.
func (c *Capture) Flow(protocol uint8, at int64, src, dst netip.AddrPort) *Flow {
	f := &Flow{
		Protocol: protocol, Src: src, Dst: dst, App: "",
		c: c, index: uint32(len(c.flows)), Now: at, RTT: 20 * time.Millisecond,
	}
	if protocol == TCP {
		f.seq = [2]uint32{c.Rand.Uint32(), c.Rand.Uint32()}
	}
	f.id = [2]uint16{uint16(c.Rand.Uint32()), uint16(c.Rand.Uint32())}
	c.flows = append(c.flows, f)
	return f
}
