package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// producer feeds the rings with the NIC model's kernel of the same device.
type producer struct {
	dev     cuda.Device
	params  abi.NIC
	control *abi.Control
	sent    []uint64
	held    []cuda.Addr
}

func of[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// newProducer takes what it needs of the device's memory, before a kernel runs.
func newProducer(dev cuda.Device, queues []mlx5.Queue, params abi.NIC) (*producer, error) {
	p := &producer{dev: dev, params: params}
	var table []byte
	for i := range queues {
		q := &queues[i]
		o := q.Offsets()
		base := cuda.Addr(q.Addr - o.Payload)
		table = append(table, of(&abi.Ring{
			CQ: base + cuda.Addr(o.CQ), CQDB: base + cuda.Addr(o.CQDB), RQDB: base + cuda.Addr(o.RQDB), Payload: cuda.Addr(q.Addr),
			LogCQ: uint32(q.LogCQ), LogRQ: uint32(q.LogRQ), Pitch: q.Pitch,
		})...)
	}
	shared, err := dev.AllocMapped(4096 + 8*len(queues))
	if err != nil {
		return nil, err
	}
	rings, err := dev.Alloc(len(table))
	p.held = []cuda.Addr{shared.Addr, rings}
	if err == nil {
		err = dev.Write(rings, table)
	}
	p.control = (*abi.Control)(unsafe.Pointer(&shared.Bytes[0]))
	p.sent = unsafe.Slice((*uint64)(unsafe.Pointer(&shared.Bytes[4096])), len(queues))
	p.params.Control, p.params.Rings, p.params.Sent, p.params.Count = shared.Addr, rings, shared.Addr+4096, uint32(len(queues))
	return p, err
}

func (p *producer) Run(ctx context.Context) error {
	run, err := p.dev.Launch("agp_nic_send", int(p.params.Count*p.params.Warps), 1, 0, of(&p.params))
	if err != nil {
		return err
	}
	select { // Wait would ask the driver more often
	case <-run.Done():
	case <-ctx.Done():
		p.Interrupt()
		<-run.Done()
	}
	return errors.Join(context.Cause(ctx), run.Wait(context.Background()))
}

func (p *producer) total() (n uint64) {
	for i := range p.sent {
		n += atomic.LoadUint64(&p.sent[i])
	}
	return n
}

func (p *producer) ClockNs() int64 {
	most := uint64(0)
	for _, n := range p.sent {
		most = max(most, n)
	}
	return p.params.StartNs + int64(most)*int64(p.params.GapNs)
}
func (p *producer) Stats() source.Stats { return source.Stats{} }
func (p *producer) Interrupt()          { atomic.StoreUint32(&p.control.Command, abi.CommandStop) }
func (p *producer) Stop(int) error      { return cuda.ErrRing }
func (p *producer) Start(int) error     { return nil }

func (p *producer) free(t *testing.T) {
	for _, a := range p.held {
		require.NoError(t, p.dev.Free(a))
	}
}

// counting is a sink that counts packets.
type counting struct{ records, packets uint64 }

func (c *counting) Record(r *telemetry.Record) {
	c.records++
	c.packets += r.Dir[0].Packets + r.Dir[1].Packets
}
func (*counting) Alert(*telemetry.Alert) {}

// soak is a run over many generations of pipelines.
type soak struct {
	dev                      cuda.Device
	gpu                      *cuda.GPU // nil: on the host
	rings                    int
	packets, records, resets uint64
	handovers                int
	gap, silence             time.Duration // longest
	share, rate              float64       // of a core in percent and Mpps, in the last round
}

// generation is one pipeline, from New to Close. feed makes what feeds it and says, after Run, how
// many packets that has delivered.
func (k *soak) generation(t *testing.T, rings int, onDevice, lossless bool, feed func([]mlx5.Queue) (cuda.Feeder, func() uint64, error), during func(context.Context, *cuda.Pipeline)) {
	sink := &counting{}
	var sent func() uint64
	c := cuda.Config{
		Device: k.dev, Sink: sink, Rings: rings, Shards: 2, LogRQ: 10, Pitch: 256, LogRecords: 16, OnDevice: onDevice, Lossless: lossless, Flow: flow.Config{MaxFlows: 1 << 12},
		Port: func(queues []mlx5.Queue) (f cuda.Feeder, err error) {
			f, sent, err = feed(queues)
			return f, err
		},
	}
	if k.gpu == nil {
		c.Patience, c.LogRQ = 2*time.Minute, 7
	} else {
		c.Shards, c.LogRQ, c.LogRecords, c.Flow.MaxFlows = 4, 12, 20, 1<<18
	}
	p, err := cuda.New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if during != nil {
			during(ctx, p)
		}
	}()
	running, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err = p.Run(running)
	require.NoError(t, running.Err())
	require.NoError(t, err)
	cancel()
	<-ended
	k.silence = max(k.silence, p.Silence())
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.NotZero(t, sent())
	require.Equal(t, sent(), s.Engine.PacketsSeen)
	require.Equal(t, sink.packets, s.Engine.PacketsRecorded)
	require.Equal(t, sink.records, s.Engine.Records)
	require.Zero(t, s.Engine.PacketsActive)
	require.Zero(t, s.Engine.FlowsActive)
	require.NotContains(t, s.Engine.Drops, cuda.DropDeviceState)
	require.Zero(t, s.Missing())
	if lossless {
		require.Equal(t, s.Engine.PacketsSeen, s.Engine.PacketsRecorded)
	}
	k.packets += s.Engine.PacketsSeen
	k.records += s.Engine.Records
	require.NoError(t, p.Close())
}

// produced is a generation that the device feeds itself until it has sent so many packets per ring,
// with handovers meanwhile, or, if that is 0, until it is stopped after a while.
func (k *soak) produced(t *testing.T, nic abi.NIC, lossless bool, every time.Duration) {
	nic.Flows, nic.FrameLen, nic.StartNs, nic.GapNs = 100, 60, 1_700_000_000_000_000_000, 10_000
	var p *producer
	k.generation(t, k.rings, true, lossless, func(queues []mlx5.Queue) (_ cuda.Feeder, _ func() uint64, err error) {
		p, err = newProducer(k.dev, queues, nic)
		return p, p.total, err
	}, func(ctx context.Context, pipe *cuda.Pipeline) {
		handover := func() bool {
			gap, err := pipe.Handover(ctx, nil)
			if err != nil {
				return false
			}
			k.handovers++
			k.gap = max(k.gap, gap)
			return true
		}
		if nic.Packets == 0 {
			handover() // all has been started
			k.load(t, pipe, every)
			p.Interrupt()
			return
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
			}
			if !handover() {
				return
			}
		}
	})
	p.free(t)
}

// load is what the process needs of a core while a pipeline runs and is asked for its counters once.
func (k *soak) load(t *testing.T, p *cuda.Pipeline, length time.Duration) {
	var s telemetry.Snapshot
	p.Snapshot(&s)
	packets, seconds, begin := s.Engine.PacketsSeen, cpuSeconds(t), time.Now()
	time.Sleep(length)
	p.Snapshot(&s)
	passed := time.Since(begin).Seconds()
	k.share = 100 * (cpuSeconds(t) - seconds) / passed
	k.rate = float64(s.Engine.PacketsSeen-packets) / passed / 1e6
}

// faulty is a generation that the NIC model on the host feeds, with errors and resets.
func (k *soak) faulty(t *testing.T, seed, packets uint64) {
	traffic, err := model.NewTraffic(model.Profile{Seed: seed, Packets: packets, Flows: 500, NewFlows: 0.05})
	require.NoError(t, err)
	feed := &port{traffic: traffic}
	k.generation(t, 2, false, true, func(queues []mlx5.Queue) (cuda.Feeder, func() uint64, error) {
		feed.nic, err = model.New(model.Config{Seed: seed, Memory: queues})
		if err != nil {
			return nil, nil, err
		}
		for f, probability := range map[model.Fault]float64{
			model.FaultLocalLength: 0.01, model.FaultMinor: 0.01, model.FaultLocalProt: 0.0005, model.FaultWRFlush: 0.0005,
			model.FaultLateUpper: 0.05, model.FaultInvalid: 0.05, model.FaultStaleDoorbell: 0.3,
		} {
			feed.nic.SetFault(f, probability)
		}
		return feed, func() (n uint64) {
			for i := range queues {
				n += feed.nic.Counters(i).Frames
			}
			return n
		}, nil
	}, nil)
	for i := range 2 {
		c := feed.nic.Counters(i)
		k.resets += c.Errors[mlx5.SyndromeLocalProt]
	}
}

// memory is what the process and the GPU have in use.
func (k *soak) memory(t *testing.T) (host, device uint64) {
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, raw, ok := bytes.Cut(raw, []byte("VmRSS:"))
	require.True(t, ok)
	host, err = strconv.ParseUint(string(bytes.Fields(raw)[0]), 10, 64)
	require.NoError(t, err)
	if k.gpu != nil {
		free, total, err := k.gpu.Context().MemInfo()
		require.NoError(t, err)
		device = total - free
	}
	return host << 10, device
}

func cpuSeconds(t *testing.T) float64 {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// TestSoak runs pipelines one after the other, for as long as AGP_SOAK says (2 s if it says
// nothing): fed by the device itself with handovers, fed by the NIC model with faults and resets,
// stopped in the middle, lossless and not. Counters are exact, memory stays as it is, no heartbeat is late.
func TestSoak(t *testing.T) {
	length := 2 * time.Second
	if s := os.Getenv("AGP_SOAK"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	k := &soak{dev: simt.Device(t), rings: 3}
	packets, faulty, every, stopped := uint64(1<<11), uint64(4000), 20*time.Millisecond, 100*time.Millisecond
	var on bool
	if k.gpu, on = k.dev.(*cuda.GPU); on {
		packets, faulty, every, stopped, k.rings = 1<<22, 200_000, 200*time.Millisecond, 5*time.Second, 16
	}
	var host, device uint64
	until := time.Now().Add(length)
	rounds := 0
	for ; rounds < 3 || time.Now().Before(until); rounds++ {
		k.produced(t, abi.NIC{Warps: 2, Packets: packets, NewPer1024: 100, Seed: uint64(rounds)}, true, every)
		k.produced(t, abi.NIC{Warps: 2, Packets: packets, NewPer1024: 400, Seed: uint64(rounds)}, false, every)
		k.faulty(t, uint64(rounds), faulty)
		k.produced(t, abi.NIC{Warps: 1, Seed: uint64(rounds)}, false, stopped)
		h, d := k.memory(t)
		if rounds == 1 { // by then everything has been used once
			host, device = h, d
		}
		if rounds > 1 {
			require.Less(t, h, host+host/8+32<<20, "resident memory, %d rounds", rounds)
			require.LessOrEqual(t, d, device+2<<20, "memory of the GPU, %d rounds", rounds)
		}
		if on {
			t.Logf("NIC model, round %d: %d packets in all; with long flows %.1f Mpps and %.2f%% of a core; RSS %d MiB, GPU memory %d MiB", rounds, k.packets, k.rate, k.share, h>>20, d>>20)
		}
	}
	require.NotZero(t, k.handovers)
	require.NotZero(t, k.resets)
	t.Logf("NIC model, %d rounds: %d packets, %d records, %d handovers (longest gap %v), %d resets, longest silence of a ring %v", rounds, k.packets, k.records, k.handovers, k.gap, k.resets, k.silence)
}
