package model

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/mlx5/poll"
)

// plain is a small queue: the completion queue has another size than the receive queue.
var plain = mlx5.Layout{LogCQ: 5, LogRQ: 4, Pitch: 2048}

const base = int64(1_700_000_000_000_000_000)

// udp is an Ethernet frame of n bytes, at least 60, with a number in it and the ports of a flow.
func udp(n int, flow uint16, number uint32) []byte {
	f := make([]byte, n)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
	copy(ip[12:], []byte{10, 0, byte(flow >> 8), byte(flow), 192, 168, 1, 1})
	binary.BigEndian.PutUint16(ip[20:], 1024+flow)
	binary.BigEndian.PutUint16(ip[22:], 53)
	binary.BigEndian.PutUint16(ip[24:], uint16(n-34))
	binary.BigEndian.PutUint32(ip[28:], number)
	return f
}

const numberAt = 42

// rig is a port with a poller for each queue, and what came out.
type rig struct {
	t      testing.TB
	port   *Port
	poll   []*poll.Poller
	list   []poll.Packet
	next   uint32
	frames [][]poll.Packet // by queue, Data copied
	errs   []error
}

func newRig(t testing.TB, cfg Config, change ...func(*poll.Config)) *rig {
	if cfg.Memory == nil && cfg.Layout == (mlx5.Layout{}) {
		cfg.Layout = plain
	}
	p, err := New(cfg)
	require.NoError(t, err)
	r := &rig{t: t, port: p, list: make([]poll.Packet, 0, poll.MaxBatch), frames: make([][]poll.Packet, p.Queues()), errs: make([]error, p.Queues())}
	for i := range p.Queues() {
		pc := poll.Config{Queue: p.Memory(i), Clock: cfg.Clock}
		for _, f := range change {
			f(&pc)
		}
		k, err := poll.New(pc)
		require.NoError(t, err)
		r.poll = append(r.poll, k)
	}
	return r
}

// inject gives the port n numbered frames of one flow to queue 0.
func (r *rig) inject(n int) (ok int) {
	for range n {
		if r.port.InjectTo(0, udp(60, 1, r.next), Meta{TimestampNs: base + int64(r.next)*1000}) {
			ok++
		}
		r.next++
	}
	return ok
}

// drain polls every queue until it is empty or has an error, and gives credit back. A poller
// that finds completions without end is stopped.
func (r *rig) drain() {
	for i, p := range r.poll {
		for range 64 {
			var err error
			if r.list, err = p.Poll(r.list); err != nil {
				r.errs[i] = err
			}
			for _, k := range r.list {
				k.Data = append([]byte(nil), k.Data...)
				r.frames[i] = append(r.frames[i], k)
			}
			p.Release()
			if err != nil || len(r.list) == 0 {
				break
			}
		}
	}
}

// numbers of the frames of queue i.
func (r *rig) numbers(i int) (list []uint32) {
	for _, k := range r.frames[i] {
		list = append(list, binary.BigEndian.Uint32(k.Data[numberAt:]))
	}
	return list
}

// sequence is 0 to n-1.
func sequence(n uint32) (list []uint32) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func TestFramesComeOutAsTheyWentIn(t *testing.T) {
	r := newRig(t, Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		r.inject(rng.IntN(16))
		r.drain()
	}
	require.NoError(t, r.errs[0])
	require.Equal(t, sequence(r.next), r.numbers(0))
	for i, k := range r.frames[0] {
		require.Equal(t, udp(60, 1, uint32(i)), k.Data)
		require.Equal(t, base+int64(i)*1000, k.TimestampNs)
	}
}

// A buffer that is copied elsewhere before anybody polls it: what a GPU gets as a prefilled ring.
func TestPrefilledBufferIsCopied(t *testing.T) {
	const address = 0x7f00_0000_0000 // where the copy will be
	l := mlx5.Layout{LogCQ: 6, LogRQ: 6, Pitch: 128}
	o := l.Offsets()
	arena := func() []byte {
		b := make([]byte, o.Size+mlx5.PageSize)
		for i := range mlx5.PageSize {
			if _, err := l.View(b[i : uint64(i)+o.Size]); err == nil {
				return b[i : uint64(i)+o.Size]
			}
		}
		panic("no page in it")
	}
	from, to := arena(), arena()
	here, err := l.View(from)
	require.NoError(t, err)
	here.Addr = address + o.Payload
	here.Init()
	r := newRig(t, Config{Memory: []mlx5.Queue{here}, Canary: true})
	require.Equal(t, 64, r.inject(100))
	copy(to, from)
	there, err := l.View(to)
	require.NoError(t, err)
	p, err := poll.New(poll.Config{Queue: there})
	require.NoError(t, err)
	for want := range 2 {
		list, err := p.Poll(r.list)
		require.NoError(t, err)
		require.Len(t, list, 32)
		for i, k := range list {
			n, ok := CheckCanary(k.Data)
			require.True(t, ok)
			require.EqualValues(t, want*32+i, n)
		}
	}
	var seg mlx5.DataSeg
	seg.Decode(there.WQE(3))
	require.EqualValues(t, address+o.Payload+3*128, seg.Addr)
}

func TestCanary(t *testing.T) {
	f := udp(101, 1, 7)
	require.True(t, PutCanary(f, 0xfffe))
	n, ok := CheckCanary(f)
	require.True(t, ok)
	require.EqualValues(t, 0xfffe, n)
	for i := range f {
		f[i] ^= 0x10
		_, ok := CheckCanary(f)
		require.False(t, ok, "byte %d", i)
		f[i] ^= 0x10
	}
	require.False(t, PutCanary(f[:CanaryMin-1], 0), "its headers would suffer")
	_, ok = CheckCanary(f[:CanaryMin-1])
	require.False(t, ok)
}
