package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
)

// kernel plays the kernel: it returns when that does, with the error of the device.
type kernel func(k *played) cuda.Result

// played is what such a kernel sees.
type played struct {
	t       testing.TB
	memory  func(a Addr, n int) []byte
	control *abi.Control
	rings   []abi.Ring
	shards  [][]*abi.ShardStats
	stats   []*abi.Stats
	launch  uint64
}

func (k *played) command() uint32 { return atomic.LoadUint32(&k.control.Command) }

// beat is a report of ring i.
func (k *played) beat(i int, status uint32, frames uint64) {
	s := k.stats[i]
	atomic.AddUint64(&s.Version, 1)
	atomic.AddUint64(&s.Heartbeat, 1)
	atomic.StoreUint64(&s.Launches, k.launch)
	atomic.StoreUint32(&s.Status, status)
	atomic.StoreUint64(&s.Frames, frames)
	atomic.StoreUint64(&s.Drops[packet.OK], frames)
	atomic.AddUint64(&s.Version, 1)
	for _, d := range k.shards[i] {
		atomic.AddUint64(&d.Heartbeat, 1)
	}
}

// alive beats all rings but some until there is another command, and returns that.
func (k *played) alive(but ...int) uint32 {
	for k.command() == abi.CommandRun {
		for i := range k.rings {
			if len(but) == 0 || but[0] != i {
				k.beat(i, abi.RingRunning, 0)
			}
		}
		time.Sleep(time.Millisecond)
	}
	return k.command()
}

// playing is a GPU of package cudatest that runs such kernels, one after the other.
func playing(t testing.TB, kernels ...kernel) *GPU {
	t.Helper()
	launched := 0
	run := cudatest.Kernel{Params: []int{int(unsafe.Sizeof(abi.Params{}))}, BlocksPerSM: 2, Run: func(c *cudatest.Call) cuda.Result {
		now := kernels[min(launched, len(kernels)-1)]
		launched++
		p := at[abi.Params](c.Args[0])
		k := &played{t: t, launch: uint64(launched), memory: func(a Addr, n int) []byte { return c.Memory(cuda.DevicePtr(a), n) }}
		k.control = at[abi.Control](k.memory(p.Control, int(unsafe.Sizeof(abi.Control{}))))
		k.rings = unsafe.Slice(at[abi.Ring](k.memory(p.Rings, int(p.Count)*int(unsafe.Sizeof(abi.Ring{})))), p.Count)
		for i := range k.rings {
			k.stats = append(k.stats, at[abi.Stats](k.memory(k.rings[i].Stats, int(unsafe.Sizeof(abi.Stats{})))))
			var shards []*abi.ShardStats
			for _, d := range unsafe.Slice(at[abi.Shard](k.memory(k.rings[i].Shards, int(p.Shards)*int(unsafe.Sizeof(abi.Shard{})))), p.Shards) {
				shards = append(shards, at[abi.ShardStats](k.memory(d.Stats, int(unsafe.Sizeof(abi.ShardStats{})))))
			}
			k.shards = append(k.shards, shards)
		}
		return now(k)
	}}
	all := map[string]cudatest.Kernel{}
	for _, name := range kernelNames {
		all[name] = run
	}
	d, err := cudatest.New(cudatest.Options{Devices: []cuda.Info{cudatest.H200()}, Kernels: all}).Open()
	require.NoError(t, err)
	dev, err := d.Device(0)
	require.NoError(t, err)
	g, err := OpenGPU(dev)
	require.NoError(t, err)
	return g
}

// idle feeds nothing until it is told to end.
type idle struct {
	ended  chan struct{}
	deaf   bool // to interrupts
	resets atomic.Int32
	stop   error
}

func newIdle() *idle { return &idle{ended: make(chan struct{}, 1)} }

func (f *idle) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-f.ended:
		return nil
	}
}
func (f *idle) ClockNs() int64      { return 0 }
func (f *idle) Stats() source.Stats { return source.Stats{} }
func (f *idle) Stop(int) error      { f.resets.Add(1); return f.stop }
func (f *idle) Start(int) error     { return nil }
func (f *idle) Interrupt() {
	if f.deaf {
		return
	}
	select {
	case f.ended <- struct{}{}:
	default:
	}
}

type nothing struct{}

func (nothing) Record(*telemetry.Record) {}
func (nothing) Alert(*telemetry.Alert)   {}

// pipelineOf is a small pipeline on a device, with little patience.
func pipelineOf(t testing.TB, d Device, f Feeder, change func(*Config)) *Pipeline {
	t.Helper()
	c := Config{
		Device: d, Sink: nothing{}, Rings: 4, Shards: 2, LogRQ: 4, Pitch: 256, LogRecords: 14, Flow: flow.Config{MaxFlows: 64},
		Port:     func([]mlx5.Queue) (Feeder, error) { return f, nil },
		Patience: 500 * time.Millisecond, Heartbeat: 300 * time.Millisecond,
	}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	require.NoError(t, err)
	return p
}

// runs is Run in another goroutine.
func runs(ctx context.Context, p *Pipeline) chan error {
	out := make(chan error, 1)
	go func() { out <- p.Run(ctx) }()
	return out
}

// within waits for the end of a Run.
func within(t testing.TB, run chan error, limit time.Duration) error {
	t.Helper()
	select {
	case err := <-run:
		return err
	case <-time.After(limit):
		t.Fatal("Run does not return")
		return nil
	}
}

// TestARingWithoutHeartbeatEndsTheRunAndIsNamed: a kernel that still hears the command ends, and
// everything can be given back.
func TestARingWithoutHeartbeatEndsTheRunAndIsNamed(t *testing.T) {
	g := playing(t, func(k *played) cuda.Result {
		k.beat(2, abi.RingRunning, 77)
		require.Equal(t, abi.CommandStop, k.alive(2))
		return 0
	})
	p := pipelineOf(t, g, newIdle(), nil)
	err := within(t, runs(t.Context(), p), 10*time.Second)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, "ring 2 gave no heartbeat for more than 300ms: heartbeat 1, status 1, 0 completions and 77 frames taken")
	require.GreaterOrEqual(t, p.Silence(), 300*time.Millisecond)
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.EqualValues(t, 77, s.Engine.PacketsSeen)
	require.Equal(t, map[string]uint64{DropDeviceState: 77}, s.Engine.Drops)
	require.Zero(t, s.Engine.PacketsActive)
	require.Zero(t, s.Missing())
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
}

// TestAKernelThatHearsNothingIsGivenUp: Run returns all the same, and says so; the memory stays.
func TestAKernelThatHearsNothingIsGivenUp(t *testing.T) {
	end := make(chan struct{})
	g := playing(t, func(*played) cuda.Result { <-end; return 0 })
	p := pipelineOf(t, g, newIdle(), nil)
	begin := time.Now()
	err := within(t, runs(t.Context(), p), 10*time.Second)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, "ring 0 gave no heartbeat")
	require.ErrorContains(t, err, "does not stop within 500ms")
	require.GreaterOrEqual(t, time.Since(begin), 800*time.Millisecond)
	require.ErrorIs(t, p.Close(), ErrHung)
	var s telemetry.Snapshot
	p.Snapshot(&s)
	require.Zero(t, s.Missing())
	close(end)
	require.Eventually(t, func() bool { return p.Close() == nil }, 10*time.Second, 5*time.Millisecond)
	p.Snapshot(&s)
	require.NoError(t, g.Close())
}

// TestRunEndsInTimeWhenItIsToldTo, whatever hangs.
func TestRunEndsInTimeWhenItIsToldTo(t *testing.T) {
	for name, c := range map[string]struct {
		deaf  bool // the feeder does not hear
		hangs bool // the kernel beats and does nothing else
		want  error
	}{
		"nothing":               {},
		"the feeder":            {deaf: true, want: context.Canceled},
		"the kernel":            {hangs: true, want: ErrHung},
		"the feeder and kernel": {deaf: true, hangs: true, want: ErrHung},
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			g := playing(t, func(k *played) cuda.Result {
				require.Equal(t, abi.CommandFlush, k.alive())
				if c.hangs {
					<-end
				}
				return 0
			})
			feed := newIdle()
			feed.deaf = c.deaf
			p := pipelineOf(t, g, feed, nil)
			ctx, cancel := context.WithCancel(t.Context())
			run := runs(ctx, p)
			require.Eventually(t, func() bool {
				var s telemetry.Snapshot
				p.Snapshot(&s)
				return p.rings[0].seen.Heartbeat > 2
			}, 10*time.Second, time.Millisecond)
			begin := time.Now()
			cancel()
			err := within(t, run, 10*time.Second)
			require.ErrorIs(t, err, c.want)
			require.Less(t, time.Since(begin), 4*p.cfg.Patience)
			close(end)
			require.Eventually(t, func() bool { return p.Close() == nil }, 10*time.Second, 5*time.Millisecond)
			require.NoError(t, g.Close())
		})
	}
}

// TestAHostThatWasAwayBlamesNoRing: neither one that sleeps for longer than the limit nor one that
// is slow to take records, for which a lossless ring waits.
func TestAHostThatWasAwayBlamesNoRing(t *testing.T) {
	p := pipelineOf(t, playing(t, func(*played) cuda.Result { return 0 }), newIdle(), func(c *Config) { c.Lossless = true })
	w := newWatch(p)
	now := w.at
	turn := func(passed time.Duration) error {
		now = now.Add(passed)
		w.turn(now)
		return w.check(true)
	}
	for range silentShare - 1 { // an hour each
		require.NoError(t, turn(time.Hour))
	}
	for _, r := range p.rings {
		atomic.StoreUint64(&r.stats.Heartbeat, 1)
		for _, d := range r.shards {
			atomic.StoreUint64(&d.stats.Heartbeat, 1)
		}
	}
	for range silentShare + 1 {
		require.NoError(t, turn(time.Hour))
	}
	require.ErrorIs(t, turn(time.Hour), ErrHung)

	w = newWatch(p)
	wait := func(d *shard, n uint64) { *d.head, *d.tail = *d.head+n, *d.head }
	for range 10 * silentShare {
		for _, r := range p.rings {
			for _, d := range r.shards {
				wait(d, uint64(len(d.buf)))
			}
		}
		w.unseen = time.Hour
		require.NoError(t, w.look())
	}
	for _, r := range p.rings {
		for _, d := range r.shards {
			*d.tail = *d.head
		}
	}

	w = newWatch(p)
	for range 10 * silentShare { // a state warp has many records to write, and all others wait
		for _, r := range p.rings {
			r.shards[0].stats.Heartbeat++
			r.shards[1].stats.Heartbeat++
			*r.shards[0].head += 512
			*r.shards[0].tail += 512
		}
		w.unseen = time.Hour
		require.NoError(t, w.look())
	}
	for range silentShare {
		for _, r := range p.rings {
			r.shards[0].stats.Heartbeat++
			r.shards[1].stats.Heartbeat++
		}
		require.NoError(t, w.look())
	}
	require.ErrorContains(t, w.look(), "ring 0", "state warps that only wait do not help")
	require.NoError(t, p.Close())
}

// TestFailuresOfTheGPUEndTheRunInWords: with the driver's name, what it means and what to do.
// What was in flows is counted as lost, and Close neither hangs nor repeats itself.
func TestFailuresOfTheGPUEndTheRunInWords(t *testing.T) {
	for r, says := range map[cuda.Result]string{
		cuda.EccUncorrectable:    "CUDA_ERROR_ECC_UNCORRECTABLE (214): ecc uncorrectable: memory of the GPU has an error that ECC cannot correct, XID 48",
		cuda.NvlinkUncorrectable: "NVLink has failed, XID 74",
		cuda.Contained:           "a restart suffices",
		cuda.IllegalAddress:      "CUDA_ERROR_ILLEGAL_ADDRESS (700): illegal address: the kernel used memory that is not there",
		cuda.LaunchTimeout:       "CUDA_ERROR_LAUNCH_TIMEOUT (702)",
		cuda.HardwareStackError:  "the call stack of the kernel is damaged",
		cuda.IllegalInstruction:  "illegal instruction",
		cuda.MisalignedAddress:   "misaligned address",
		cuda.InvalidAddressSpace: "wrong kind of memory",
		cuda.InvalidPC:           "went astray",
		cuda.LaunchFailed:        "CUDA_ERROR_LAUNCH_FAILED (719)",
		cuda.Unknown:             "XID 79",
	} {
		t.Run(r.Error(), func(t *testing.T) {
			g := playing(t, func(k *played) cuda.Result {
				for i := range k.rings {
					k.beat(i, abi.RingRunning, 100)
				}
				for atomic.LoadInt64(&k.control.NowNs) == 0 {
					time.Sleep(time.Millisecond)
				}
				return r
			})
			p := pipelineOf(t, g, newIdle(), func(c *Config) { c.Now = func() int64 { return 1 }; c.Heartbeat = time.Minute })
			err := within(t, runs(t.Context(), p), 10*time.Second)
			require.ErrorIs(t, err, r)
			require.ErrorIs(t, err, ErrDevice)
			require.ErrorContains(t, err, says)
			require.NotErrorIs(t, err, ErrHung)
			var s telemetry.Snapshot
			p.Snapshot(&s)
			require.EqualValues(t, 400, s.Engine.PacketsSeen)
			require.Equal(t, map[string]uint64{DropDeviceState: 400}, s.Engine.Drops)
			require.Zero(t, s.Missing())
			err = p.Close()
			require.ErrorIs(t, err, r)
			require.Less(t, len(err.Error()), 500)
			p.Snapshot(&s)
			require.EqualValues(t, 400, s.Engine.PacketsSeen)
			_ = g.Close()
		})
	}
}

// TestLaunchesThatFailSayWhatToDo, and leave nothing behind.
func TestLaunchesThatFailSayWhatToDo(t *testing.T) {
	for r, says := range map[cuda.Result]string{
		cuda.DeviceUnavailable:         "launch: launch of agp_rings: cuLaunchKernelEx: CUDA_ERROR_DEVICE_UNAVAILABLE (46): device unavailable: another process has the GPU",
		cuda.SystemNotReady:            "nvidia-fabricmanager",
		cuda.CooperativeLaunchTooLarge: "cannot all run at once",
		cuda.EccUncorrectable:          "ECC cannot correct",
	} {
		all := map[string]cudatest.Kernel{}
		for _, name := range kernelNames {
			all[name] = cudatest.Kernel{Params: []int{int(unsafe.Sizeof(abi.Params{}))}}
		}
		fake := cudatest.New(cudatest.Options{Devices: []cuda.Info{cudatest.H200()}, Kernels: all})
		d, err := fake.Open()
		require.NoError(t, err)
		dev, err := d.Device(0)
		require.NoError(t, err)
		g, err := OpenGPU(dev)
		require.NoError(t, err)
		p := pipelineOf(t, g, newIdle(), nil)
		fake.Fail("cuLaunchKernelEx", r, 0)
		err = within(t, runs(t.Context(), p), 10*time.Second)
		require.ErrorIs(t, err, r)
		require.ErrorContains(t, err, says)
		require.Equal(t, cuda.Poisoned(r), errors.Is(err, ErrDevice))
		require.NoError(t, p.Close())
		require.NoError(t, g.Close())
		require.Empty(t, fake.Leaks())
	}
	require.NoError(t, Explain(nil))
	other := errors.New("other")
	require.Equal(t, other, Explain(other))
}

// TestAKernelThatDoesNotComeBackFromAHandoverIsGivenUp: the next generation must beat.
func TestAKernelThatDoesNotComeBackFromAHandoverIsGivenUp(t *testing.T) {
	end := make(chan struct{})
	g := playing(t, func(k *played) cuda.Result { k.alive(); return 0 }, func(*played) cuda.Result { <-end; return 0 })
	p := pipelineOf(t, g, newIdle(), nil)
	run := runs(t.Context(), p)
	_, err := p.Handover(t.Context(), nil)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, "ring 0 gave no heartbeat")
	require.ErrorIs(t, within(t, run, 10*time.Second), ErrHung)
	close(end)
	require.Eventually(t, func() bool { return p.Close() == nil }, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, g.Close())
}

// TestTheNextKernelWaitsForTheEndOfTheOneBefore: it is launched before that is told to stop, and
// has other words to obey.
func TestTheNextKernelWaitsForTheEndOfTheOneBefore(t *testing.T) {
	var running, launched atomic.Int32
	var first atomic.Pointer[abi.Control]
	play := func(k *played) cuda.Result {
		assert.EqualValues(t, 1, running.Add(1))
		if !first.CompareAndSwap(nil, k.control) {
			assert.NotSame(t, first.Load(), k.control)
		}
		k.alive()
		assert.Equal(t, int32(2), launched.Load(), "launches before the first is told to stop")
		running.Add(-1)
		return 0
	}
	g := &launching{GPU: playing(t, play), launched: &launched}
	p := pipelineOf(t, g, newIdle(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	run := runs(ctx, p)
	_, err := p.Handover(t.Context(), nil)
	require.NoError(t, err)
	g.refuse.Store(true)
	_, err = p.Handover(t.Context(), nil)
	require.ErrorIs(t, err, cuda.LaunchOutOfResources)
	require.EqualValues(t, 1, running.Load(), "the kernel runs on")
	cancel()
	require.NoError(t, within(t, run, 10*time.Second))
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
}

// TestAKernelWhoseLaunchIsSaidToHaveFailedEndsAtOnce: a launch can fail when all that is left is to
// note its end.
func TestAKernelWhoseLaunchIsSaidToHaveFailedEndsAtOnce(t *testing.T) {
	var launched, ended atomic.Int32
	g := &launching{GPU: playing(t, func(k *played) cuda.Result { k.alive(); ended.Add(1); return 0 }), launched: &launched}
	p := pipelineOf(t, g, newIdle(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	run := runs(ctx, p)
	require.Eventually(t, func() bool { return launched.Load() == 1 }, 10*time.Second, time.Millisecond)
	g.forget.Store(true)
	_, err := p.Handover(t.Context(), nil)
	require.ErrorIs(t, err, cuda.LaunchOutOfResources)
	cancel()
	require.NoError(t, within(t, run, 10*time.Second))
	require.Eventually(t, func() bool { return ended.Load() == 2 }, 10*time.Second, time.Millisecond)
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
}

// launching counts launches, until it refuses them, or says so.
type launching struct {
	*GPU
	launched       *atomic.Int32
	refuse, forget atomic.Bool
}

func (g *launching) Launch(kernel string, blocks, warps, shared int, params []byte) (Run, error) {
	if g.refuse.Load() {
		return nil, cuda.LaunchOutOfResources
	}
	run, err := g.GPU.Launch(kernel, blocks, warps, shared, params)
	g.launched.Add(1)
	if g.forget.Load() {
		return nil, cuda.LaunchOutOfResources
	}
	return run, err
}

// TestAQueueThatCannotBeResetEndsTheRun with the vendor's syndrome.
func TestAQueueThatCannotBeResetEndsTheRun(t *testing.T) {
	g := playing(t, func(k *played) cuda.Result {
		k.beat(1, abi.RingReset, 5)
		k.alive(1)
		return 0
	})
	feed := newIdle()
	feed.stop = errors.New("the port says no")
	p := pipelineOf(t, g, feed, nil)
	err := within(t, runs(t.Context(), p), 10*time.Second)
	require.ErrorIs(t, err, feed.stop)
	require.ErrorContains(t, err, "ring 1: vendor syndrome 0x0")
	require.EqualValues(t, 1, feed.resets.Load())
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
}

// byHand is a pipeline whose record rings can be filled by hand.
func byHand(t testing.TB, rings int, logRecords uint8) *Pipeline {
	p := pipelineOf(t, playing(t, func(*played) cuda.Result { return 0 }), newIdle(), func(c *Config) {
		c.Rings, c.Shards, c.LogRecords, c.Heartbeat = rings, DefaultShards, logRecords, time.Hour
		c.Now = func() int64 { return 1e18 }
	})
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// put writes n records of a flow with a packet into a record ring.
func (r *ring) put(n int) {
	const size = 64 + 448
	d := r.shards[0]
	head := *d.head
	for range n {
		b := d.buf[head&uint64(len(d.buf)-1):][:size]
		binary.LittleEndian.PutUint32(b, size)
		b[6] = abi.RecordFlow
		head += size
	}
	atomic.StoreUint64(d.head, head)
}

// TestAnIdleHostLooksSeldom: the pause grows to its most while nothing comes, is short at once
// when records come, longer when none has come for a time, and follows the size of the rings. A turn
// allocates nothing.
func TestAnIdleHostLooksSeldom(t *testing.T) {
	p := byHand(t, 16, 20)
	w := newWatch(p)
	now := w.at
	turn := func() time.Duration {
		now = now.Add(max(w.pause, 10*time.Microsecond))
		w.turn(now)
		require.NoError(t, w.check(true))
		return w.pause
	}
	require.Equal(t, leastPause, turn())
	for range 5 {
		turn()
	}
	require.InDelta(t, float64(mostPause), float64(turn()), 1e5)
	p.rings[3].put(1 << 20 / 512 / 2) // half of a ring within 10 ms
	require.InDelta(t, float64(mostPause/2), float64(turn()), 1e5)
	p.rings[3].put(1 << 20 / 512 / 2)
	require.InDelta(t, float64(mostPause/4), float64(turn()), 1e5)
	for range 5 {
		p.rings[3].put(1 << 20 / 512 / 2)
		turn()
	}
	require.Zero(t, w.pause)
	require.Equal(t, leastPause, turn())
	require.Zero(t, testing.AllocsPerRun(100, func() { turn() }))
	require.Zero(t, testing.AllocsPerRun(100, func() { p.rings[5].put(3); turn() }))
	for w.quiet <= quietAfter {
		turn()
	}
	require.InDelta(t, float64(quietTimes*mostPause), float64(turn()), 1e5)
	p.rings[5].put(1)
	require.LessOrEqual(t, turn(), mostPause)
	require.Equal(t, leastPause, newWatch(byHand(t, 1, 12)).most)
}

// BenchmarkHostLoop is a turn of the host's loop over 16 rings, with the share of a core that it
// takes when nothing comes, and with a record of each ring at a time.
func BenchmarkHostLoop(b *testing.B) {
	for name, records := range map[string]int{"idle": 0, "a record per ring": 1} {
		b.Run(name, func(b *testing.B) {
			p := byHand(b, 16, 20)
			w := newWatch(p)
			b.ReportAllocs()
			for now := w.at; b.Loop(); now = now.Add(mostPause) {
				for _, r := range p.rings {
					r.stats.Heartbeat++
					for _, d := range r.shards {
						d.stats.Heartbeat++
					}
					r.put(records)
				}
				w.turn(now)
				if err := w.check(true); err != nil {
					b.Fatal(err)
				}
			}
			perTurn := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			b.ReportMetric(100*perTurn/float64(mostPause), "%core")
		})
	}
}

// TestARecordRingThatMakesNoSenseEndsTheRun: nothing is read that is not there, and nothing twice.
func TestARecordRingThatMakesNoSenseEndsTheRun(t *testing.T) {
	for name, spoil := range map[string]func(d *shard){
		"no size":              func(d *shard) { *d.head = 512 },
		"no multiple of 64":    func(d *shard) { *d.head = 512; d.buf[0] = 100 },
		"longer than the ring": func(d *shard) { *d.head = 512; d.buf[3] = 0x80 },
		"longer than there is": func(d *shard) { *d.head = 64; d.buf[0], d.buf[6] = 128, abi.RecordSkip },
		"a flow of nothing":    func(d *shard) { *d.head = 64; d.buf[0], d.buf[6] = 64, abi.RecordFlow },
		"no counters":          func(d *shard) { *d.head = 512; d.buf[1], d.buf[6], d.buf[64+offsetOfTier] = 2, abi.RecordFlow, 1 },
	} {
		p := byHand(t, 2, 12)
		p.rings[1].put(2)
		require.Equal(t, 2, p.collect())
		require.NoError(t, p.check(), name)
		spoil(p.rings[0].shards[1])
		require.Zero(t, p.collect(), name)
		require.ErrorIs(t, p.check(), ErrRing, name)
		require.ErrorContains(t, p.check(), "receive ring 0: its record ring is damaged at 0")
	}
}

var offsetOfTier = unsafe.Offsetof(abi.Flow{}.Tier)

// TestOneLimitOfRings, for a port and for the relay.
func TestOneLimitOfRings(t *testing.T) {
	g := playing(t, func(*played) cuda.Result { return 0 })
	for _, port := range []func([]mlx5.Queue) (Feeder, error){nil, func([]mlx5.Queue) (Feeder, error) { return newIdle(), nil }} {
		c := Config{Device: g, Sink: nothing{}, Source: never{}, Port: port, Rings: MaxRings, Shards: 1, LogRQ: 1, Pitch: 64, LogRecords: 12, Flow: flow.Config{MaxFlows: 1}}
		p, err := New(c)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		c.Rings++
		_, err = New(c)
		require.ErrorIs(t, err, ErrConfig)
	}
	require.NoError(t, g.Close())
}

// never is a source without frames.
type never struct{}

func (never) Next(*source.Batch) (int, error) { return 0, io.EOF }
func (never) Stats() source.Stats             { return source.Stats{} }
func (never) Interrupt()                      {}
func (never) Close() error                    { return nil }
