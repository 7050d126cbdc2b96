package gpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	driver "github.com/agp-net/telegraf-agp/cuda"
)

// FeedTest is a measurement of packets that come from host memory by copies: payload first, then
// its completions on the same stream, with credit from doorbell records in host memory.
type FeedTest struct {
	Shape
	Chunk   int    // packets of a ring per copy, a power of two, at most half a ring
	Streams int    // each copies for as many of the rings, one chunk of all at once
	Packets uint64 // per ring, a multiple of Chunk
	Alone   bool   // nobody takes the packets, and credit is without end: what the link can do
}

// FeedResult is what came of it.
type FeedResult struct {
	Seconds    float64
	Sent, Seen uint64
	Payload    uint64 // bytes of frames, without FCS
	Link       uint64 // bytes over the bus to the device
	Copies     uint64
	Batches    Result // times of a batch
}

// period is after how many packets a ring's completions repeat: their counter of WQEs has 16 bits,
// and every lap's owner bit is in it too.
const period = 1 << 16

// pinned is host memory that copies begin at.
type pinned struct {
	bytes []byte
	buf   *driver.HostBuffer // nil: of the host build
}

// region is device memory that copies end at.
type region struct {
	addr  cuda.Addr
	bytes []byte // of the host build
}

// copier copies in order; rows as driver.Rows says.
type copier interface {
	rows(to region, at, pitch int, from pinned, off, srcPitch, width, count int) error
	wait() error
	close() error
}

type streamCopier struct{ *driver.Stream }

func (s streamCopier) rows(to region, at, pitch int, from pinned, off, srcPitch, width, count int) error {
	return s.CopyRowsToDevice(driver.Rows{Dst: driver.DevicePtr(to.addr) + driver.DevicePtr(at), DstPitch: pitch, SrcPitch: srcPitch, Width: width, Count: count}, from.buf, off)
}
func (s streamCopier) wait() error  { return s.Synchronize() }
func (s streamCopier) close() error { return s.Close() }

// hostCopier is that of the host build. Whoever polls for the last byte of a completion must not
// see it before the rest.
type hostCopier struct{}

func (hostCopier) rows(to region, at, pitch int, from pinned, off, srcPitch, width, count int) error {
	for i := range count {
		dst, src := to.bytes[at+i*pitch:][:width], from.bytes[off+i*srcPitch:][:width]
		for j := 0; j < width; j += mlx5.CQESize {
			mlx5.WriteCQE(dst[j:], (*[mlx5.CQESize]byte)(src[j:]))
		}
	}
	return nil
}
func (hostCopier) wait() error  { return nil }
func (hostCopier) close() error { return nil }

// feedMemory is what a feed needs of either kind of device.
type feedMemory struct {
	b   *bed
	gpu *cuda.GPU // nil: the host build
}

// piece is device memory.
func (f *feedMemory) piece(n int) region {
	if f.gpu != nil {
		return region{addr: f.b.alloc(n)}
	}
	m := f.b.mapped(n)
	return region{m.Addr, m.Bytes}
}

func (f *feedMemory) pinned(n int) (pinned, error) {
	if f.gpu == nil {
		m := f.b.mapped(n)
		return pinned{bytes: m.Bytes}, f.b.err
	}
	buf, err := f.gpu.Context().HostAlloc(n)
	if err != nil {
		return pinned{}, err
	}
	return pinned{buf.Bytes, buf}, nil
}

func (p pinned) free() error {
	if p.buf == nil {
		return nil
	}
	return p.buf.Free()
}

func (f *feedMemory) copier() (copier, error) {
	if f.gpu == nil {
		return hostCopier{}, nil
	}
	s, err := f.gpu.Context().NewStream()
	return streamCopier{s}, err
}

// lane feeds the rings of one stream.
type lane struct {
	copier
	first, count int // rings
	sent         uint64
	copies       uint64
}

// feed is a running FeedTest.
type feed struct {
	t             FeedTest
	doorbells     []byte // a line for each record of each ring
	cq, payload   region
	cqes, frames  pinned
	logRQ, logCQ  uint32
	pitch         int
	lanes         []*lane
	stopped       context.Context
	cqLap, rqLap  int // bytes of a ring's queue
	frameInterval int // bytes from the frames of a ring to the next ring's
}

const doorbellLine = 256

func (f *feed) rqDoorbell(ring int) []byte {
	return f.doorbells[ring*doorbellLine+mlx5.LineSize:][:mlx5.DoorbellSize]
}

// credit is how many packets all rings of a lane have room for.
func (f *feed) credit(l *lane) int {
	least := 1 << 16
	for i := l.first; i < l.first+l.count; i++ {
		least = min(least, int(mlx5.Since(mlx5.LoadBE32(f.rqDoorbell(i))&0xffff, l.sent, 16)))
	}
	return least
}

// run sends what a lane has to, as fast as there is credit.
func (f *feed) run(l *lane) error {
	chunk := uint64(f.t.Chunk)
	slots, cqes := uint64(1)<<f.logRQ, uint64(1)<<f.logCQ
	for l.sent < f.t.Packets {
		for spins := 1; !f.t.Alone && f.credit(l) < f.t.Chunk; spins++ {
			if f.stopped.Err() != nil {
				return context.Cause(f.stopped)
			}
			if runtime.Gosched(); spins%1000 == 0 {
				time.Sleep(10 * time.Microsecond)
			}
		}
		slot := int(l.sent%slots) * f.pitch
		err := l.rows(f.payload, l.first*f.rqLap+slot, f.rqLap, f.frames, l.first*f.frameInterval+slot, f.frameInterval, f.t.Chunk*f.pitch, l.count)
		if err == nil {
			err = l.rows(f.cq, l.first*f.cqLap+int(l.sent%cqes)*mlx5.CQESize, f.cqLap, f.cqes, (l.first*period+int(l.sent%period))*mlx5.CQESize, period*mlx5.CQESize, f.t.Chunk*mlx5.CQESize, l.count)
		}
		if err != nil {
			return err
		}
		l.copies += 2
		l.sent += chunk
	}
	return l.wait()
}

// fill writes the frames of one lap and the completions of one period.
func (f *feed) fill() {
	for ring := range f.t.Rings {
		for i := range uint64(period) {
			w := f.cqes.bytes[(uint64(ring)*period+i)*mlx5.CQESize:][:mlx5.CQESize]
			clear(w)
			binary.BigEndian.PutUint16(w[0x1c:], 0x0018)
			binary.BigEndian.PutUint32(w[0x2c:], uint32(f.t.FrameLen))
			binary.BigEndian.PutUint64(w[0x30:], startNs+i*100)
			binary.BigEndian.PutUint16(w[0x3c:], uint16(i))
			w[0x3f] = 2<<4 | byte(i>>f.logCQ&1)
		}
		for i := range uint64(1) << f.logRQ {
			fillFrame(f.frames.bytes[ring*f.frameInterval+int(i)*f.pitch:][:f.t.FrameLen], ring, i, f.t.Flows)
		}
	}
}

// fillFrame makes packet i of a ring: TCP over IPv4 of one of its flows, like the NIC model's kernel.
func fillFrame(p []byte, ring int, i uint64, flows int) {
	h := (i + 1) * 0x9e3779b97f4a7c15
	h = (h ^ h>>31) * 0xd6e8feb86659fd93
	h ^= h >> 29
	flow := uint32(h % uint64(flows))
	copy(p, "\x02\x22\x22\x22\x22\x22\x11\x11\x11\x11\x11\x11\x08\x00\x45\x00")
	be := binary.BigEndian
	be.PutUint16(p[16:], uint16(len(p)-14))
	be.PutUint16(p[18:], uint16(i))
	be.PutUint16(p[20:], 0x4000)
	p[22], p[23] = 64, 6
	client, server, cport, sport := 0x0a000000|flow, 0xc0000000|uint32(ring)<<16|flow>>8, uint16(1024+flow%60000), uint16(443)
	if h>>63 != 0 {
		client, server, cport, sport = server, client, sport, cport
	}
	be.PutUint32(p[26:], client)
	be.PutUint32(p[30:], server)
	be.PutUint16(p[34:], cport)
	be.PutUint16(p[36:], sport)
	be.PutUint32(p[38:], uint32(i)*uint32(len(p)-54)+1)
	be.PutUint32(p[42:], 1)
	be.PutUint16(p[46:], 0x5010)
	be.PutUint16(p[48:], 0x1000)
}

// Feed runs a test.
func Feed(g cuda.Device, t FeedTest) (res FeedResult, err error) {
	logRQ := uint32(max(t.LogRQ, 5))
	if slots := uint64(1) << logRQ; t.Chunk < 1 || t.Chunk&(t.Chunk-1) != 0 || uint64(t.Chunk)*2 > slots || t.Packets%uint64(t.Chunk) != 0 || t.Streams < 1 || t.Streams > t.Rings {
		return res, fmt.Errorf("%w: chunks of %d on %d streams for %d rings of %d", cuda.ErrConfig, t.Chunk, t.Streams, t.Rings, slots)
	}
	b, err := newBed(g, t.Shape, func(c *cuda.Config) { c.LogRQ, c.Pitch = 5, uint32(t.FrameLen+63)/64*64 }) // the queues are made here
	if err != nil {
		return res, err
	}
	m := feedMemory{b: b}
	m.gpu, _ = g.(*cuda.GPU)
	f := &feed{t: t, logRQ: logRQ, logCQ: logRQ + 1, pitch: int(b.rings[0].Pitch)}
	f.rqLap, f.cqLap = f.pitch<<f.logRQ, mlx5.CQESize<<f.logCQ
	f.frameInterval = f.rqLap
	defer func() {
		for _, l := range f.lanes {
			err = errors.Join(err, l.close())
		}
		err = errors.Join(err, f.cqes.free(), f.frames.free(), b.close())
	}()
	if err := f.prepare(&m); err != nil {
		return res, err
	}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stopped, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f.stopped = stopped
	begin := time.Now()
	var consumer cuda.Run
	if !t.Alone {
		if consumer, err = b.serve(t.Packets); err != nil {
			return res, err
		}
	}
	var wg sync.WaitGroup
	failed := make([]error, len(f.lanes))
	for i, l := range f.lanes {
		wg.Go(func() {
			if failed[i] = f.run(l); failed[i] != nil {
				stop(failed[i])
			}
		})
	}
	if !t.Alone {
		err = b.ending(stopped, "copies", consumer, nil)
		res.Seconds = time.Since(begin).Seconds()
		stop(err)
	}
	wg.Wait()
	if t.Alone {
		res.Seconds = time.Since(begin).Seconds()
	}
	if err = errors.Join(append(failed, err)...); err != nil {
		return res, err
	}
	var counted Result
	b.count(&counted)
	res.Seen, res.Batches = counted.Seen, counted
	for _, l := range f.lanes {
		res.Sent += l.sent * uint64(l.count)
		res.Copies += l.copies
	}
	res.Payload = res.Sent * uint64(t.FrameLen)
	res.Link = res.Sent * uint64(f.pitch+mlx5.CQESize)
	return res, nil
}

// prepare allocates and fills everything.
func (f *feed) prepare(m *feedMemory) (err error) {
	b := m.b
	var parts []region
	if err := b.queues(f.logRQ, f.logCQ, func(n int) cuda.Addr {
		parts = append(parts, m.piece(n))
		return parts[len(parts)-1].addr
	}); err != nil {
		return err
	}
	f.cq, f.payload = parts[0], parts[1]
	doorbells := b.mapped(f.t.Rings * doorbellLine)
	f.doorbells = doorbells.Bytes
	for i := range b.rings {
		b.rings[i].CQDB = doorbells.Addr + cuda.Addr(i*doorbellLine)
		b.rings[i].RQDB = b.rings[i].CQDB + mlx5.LineSize
		mlx5.StoreBE32(f.rqDoorbell(i), mlx5.RQDoorbell(1<<f.logRQ))
	}
	if _, err := b.table(); err != nil {
		return err
	}
	if f.cqes, err = m.pinned(f.t.Rings * period * mlx5.CQESize); err != nil {
		return err
	}
	if f.frames, err = m.pinned(f.t.Rings * f.frameInterval); err != nil {
		return err
	}
	f.fill()
	for i := range f.t.Streams {
		c, err := m.copier()
		if err != nil {
			return err
		}
		first := i * f.t.Rings / f.t.Streams
		f.lanes = append(f.lanes, &lane{copier: c, first: first, count: (i+1)*f.t.Rings/f.t.Streams - first})
	}
	return nil
}
