package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/internal/claim"
	"github.com/agp-net/telegraf-agp/agp/pipeline"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/gpu"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
	"github.com/agp-net/telegraf-agp/tests/simt"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// reader is a management library that says the same again and again.
type reader struct {
	row    telemetry.GPURow
	closed int
}

func (r *reader) Read(s *telemetry.Snapshot) {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == r.row.UUID {
			warps, sms := s.GPUs[i].EngineWarps, s.GPUs[i].EngineSMs
			s.GPUs[i] = r.row
			s.GPUs[i].EngineWarps, s.GPUs[i].EngineSMs = warps, sms
			return
		}
	}
	s.GPUs = append(s.GPUs, r.row)
}

func (r *reader) Close() error { r.closed++; return nil }

// machine has GPUs of package cudatest, and no management library.
func machine(version int, list ...driver.Info) (Hardware, *cudatest.Driver) {
	return machineWith(cudatest.Kernel{Params: []int{int(unsafe.Sizeof(abi.Params{}))}}, version, list...)
}

// machineWith is machine with something that its kernels do.
func machineWith(k cudatest.Kernel, version int, list ...driver.Info) (Hardware, *cudatest.Driver) {
	all := map[string]cudatest.Kernel{}
	for _, name := range []string{"agp_rings", "agp_rings_sketched", "agp_sequence", "agp_packets", "agp_nic_send"} {
		all[name] = k
	}
	d := cudatest.New(cudatest.Options{Version: version, Devices: list, Kernels: all})
	return Hardware{
		Driver:   d.Open,
		Readings: func(string) (Readings, error) { return nil, gpu.ErrAbsent },
		Claim:    func(string) (io.Closer, error) { return io.NopCloser(nil), nil },
	}, d
}

// emulated is a machine with one H200 on which device code of the host runs.
func emulated(t *testing.T) Hardware {
	t.Helper()
	h, _ := machine(13000, cudatest.H200())
	h.Patience = 2 * time.Minute
	h.Open = func(*driver.Device) (cuda.Device, error) {
		l, err := simt.Open()
		if errors.Is(err, simt.ErrNoCompiler) {
			t.Skip(err)
		}
		return l, err
	}
	return h
}

// onGPUs is conf for the GPU pipeline.
func onGPUs(pipeline string, files ...string) *agppb.Configure {
	c := conf(files...)
	c.Pipeline, c.MaxFlows = pipeline, 1024
	return c
}

// TestWhyAGPUIsNotUsed: "auto" takes the CPU and says why, "cuda" refuses with the same words and
// without blaming the configuration, since another time it may be otherwise.
func TestWhyAGPUIsNotUsed(t *testing.T) {
	gpus := func(version int, change ...func(*driver.Info)) (Hardware, *cudatest.Driver) {
		var list []driver.Info
		for _, c := range change {
			i := cudatest.H200()
			c(&i)
			list = append(list, i)
		}
		return machine(version, list...)
	}
	same := func(*driver.Info) {}
	for name, c := range map[string]struct {
		hardware func() (Hardware, *cudatest.Driver)
		wish     string
		queues   uint32
		want     []string
	}{
		"no driver": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000)
			h.Driver = func() (*driver.Driver, error) { return nil, driver.ErrNoDriver }
			return h, d
		}, "", 2, []string{"no CUDA driver"}},
		"no GPU":         {func() (Hardware, *cudatest.Driver) { return gpus(13000) }, "", 2, []string{"no GPU is visible to this process", "CUDA_VISIBLE_DEVICES"}},
		"driver too old": {func() (Hardware, *cudatest.Driver) { return gpus(12080, same) }, "", 2, []string{"0, NVIDIA H200: CUDA driver too old: it runs CUDA 12.8, the device code needs 13.0"}},
		"not enough memory": {func() (Hardware, *cudatest.Driver) {
			return gpus(13000, func(i *driver.Info) { i.MemoryBytes = 256 << 20 })
		}, "", 2, []string{"256 MiB, 5"}},
		"memory that others have": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, same)
			d.Fail("cuMemAlloc", driver.OutOfMemory, 3)
			return h, d
		}, "", 2, []string{"bytes of device memory", "CUDA_ERROR_OUT_OF_MEMORY", "other processes have the GPU's memory"}},
		"compute mode prohibited": {func() (Hardware, *cudatest.Driver) {
			return gpus(13000, func(i *driver.Info) { i.Mode = driver.ComputeProhibited })
		}, "", 2, []string{"compute mode prohibited"}},
		"exclusive mode and taken by another process": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, func(i *driver.Info) { i.Mode = driver.ComputeExclusiveProcess })
			d.Fail("cuDevicePrimaryCtxRetain", driver.DeviceUnavailable, 0)
			return h, d
		}, "", 2, []string{"CUDA_ERROR_DEVICE_UNAVAILABLE", "another process has the GPU"}},
		"MIG slice without room for the kernel": {func() (Hardware, *cudatest.Driver) {
			return gpus(13000, func(i *driver.Info) {
				i.MIG, i.SMs, i.UUID = true, 1, "MIG-ffeeddcc-bbaa-9988-7766-554433221100"
			})
		}, "", 2, []string{"MIG slice of NVIDIA H200", "2 blocks", "room for 1 on 1 multiprocessors", "ask for fewer rings"}},
		"JIT failure": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, func(i *driver.Info) { i.Major, i.Minor = 8, 6 })
			d.Fail("cuModuleLoadDataEx", driver.InvalidPTX, 0)
			return h, d
		}, "", 2, []string{"CUDA_ERROR_INVALID_PTX"}},
		"no compiler in the driver": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, func(i *driver.Info) { i.Major, i.Minor = 8, 6 })
			d.Fail("cuModuleLoadDataEx", driver.JITCompilerNotFound, 0)
			return h, d
		}, "", 2, []string{"CUDA_ERROR_JIT_COMPILER_NOT_FOUND"}},
		"lost": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, same)
			h.Readings = func(uuid string) (Readings, error) {
				return &reader{row: telemetry.GPURow{UUID: uuid, Lost: true}}, nil
			}
			return h, d
		}, "", 2, []string{"GPU is lost"}},
		"memory error": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, same)
			d.Fail("cuMemcpyHtoDAsync", driver.EccUncorrectable, 0)
			return h, d
		}, "", 2, []string{"the GPU has failed", "CUDA_ERROR_ECC_UNCORRECTABLE", "XID 48"}},
		"libraries of two versions": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, same)
			d.Fail("cuInit", driver.SystemDriverMismatch, 0)
			return h, d
		}, "", 2, []string{"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reload the module or reboot"}},
		"another engine has it": {func() (Hardware, *cudatest.Driver) {
			h, d := gpus(13000, same)
			h.Claim = func(uuid string) (io.Closer, error) { return nil, &claim.TakenError{Name: "gpu/" + uuid, Pid: 4711} }
			return h, d
		}, "", 2, []string{"GPU cannot be used: 0, NVIDIA H200: gpu/GPU-00010203-0405-0607-0809-0a0b0c0d0e0f is in use by process 4711"}},
		"another GPU is asked for":   {func() (Hardware, *cudatest.Driver) { return gpus(13000, same, same) }, "2", 2, []string{"no such GPU: 2, the driver shows 2"}},
		"more queues than there are": {func() (Hardware, *cudatest.Driver) { return gpus(13000, same) }, "", 257, []string{"257 rings"}},
		"several, each with a reason": {func() (Hardware, *cudatest.Driver) {
			return gpus(13000, func(i *driver.Info) { i.Major = 7 }, func(i *driver.Info) { i.HostMemory = false })
		}, "", 2, []string{"GPU cannot be used: 0, NVIDIA H200: compute capability below 8.0", "; GPU cannot be used: 1, NVIDIA H200: memory of the host"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeCapture(t, 3)
			h, d := c.hardware()
			cfg := onGPUs("cuda", file)
			cfg.Gpu, cfg.Queues = c.wish, c.queues
			_, err := h.Build(cfg, &sink{}, (&lines{}).log)
			require.ErrorIs(t, err, ErrGPU)
			require.NotErrorIs(t, err, ErrConfig)
			require.True(t, gpuFault(err))
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
			require.Empty(t, d.Leaks(), "given back")

			if c.queues > 256 {
				return // the CPU pipeline refuses it too
			}
			h, _ = c.hardware()
			cfg.Pipeline = "auto"
			s := &sink{}
			b, err := h.Build(cfg, s, (&lines{}).log)
			require.NoError(t, err)
			require.Equal(t, "cpu", b.Kind)
			require.True(t, strings.HasPrefix(b.Why, "no GPU: "), b.Why)
			require.NotContains(t, b.Why, "\n")
			for _, text := range c.want {
				require.Contains(t, b.Why, text)
			}
			require.Nil(t, b.GPU)
			require.NoError(t, b.Pipeline.Run(context.Background()))
			require.Len(t, s.records, 3)
			require.NoError(t, b.Close())
		})
	}
}

// TestTheGPUThatIsUsed: the first that suffices, or the one that is asked for.
func TestTheGPUThatIsUsed(t *testing.T) {
	old, first, second := cudatest.H200(), cudatest.H200(), cudatest.H200()
	old.Major, second.UUID = 7, "GPU-10010203-0405-0607-0809-0a0b0c0d0e0f"
	for _, c := range []struct {
		pipeline, wish string
		busy           int // GPUs in front that are taken
		want           string
	}{
		{"auto", "", 0, "GPU 1, NVIDIA H200, the first that suffices"},
		{"auto", "", 1, "GPU 2, NVIDIA H200, the first that suffices"},
		{"auto", "2", 0, "GPU 2, NVIDIA H200, as configured"},
		{"cuda", "", 0, "GPU 1, NVIDIA H200, as configured"},
		{"cuda", strings.ToUpper(second.UUID), 0, "GPU 2, NVIDIA H200, as configured"},
	} {
		h, d := machine(13000, old, first, second)
		for range c.busy {
			d.Fail("cuDevicePrimaryCtxRetain", driver.DeviceUnavailable, 0)
		}
		cfg := onGPUs(c.pipeline, writeCapture(t, 1))
		cfg.Gpu = c.wish
		b, err := h.Build(cfg, &sink{}, (&lines{}).log)
		require.NoError(t, err)
		require.Equal(t, "cuda", b.Kind)
		require.Equal(t, c.want, b.Why)
		require.NoError(t, b.Close())
		require.Empty(t, d.Leaks())
	}
}

// TestAGPUHasOneEngineAtATime: the second takes another, or the CPU; when the first has ended its GPU
// is free.
func TestAGPUHasOneEngineAtATime(t *testing.T) {
	one := cudatest.H200()
	one.UUID = fmt.Sprintf("GPU-%08x-0405-0607-0809-0a0b0c0d0e0f", os.Getpid()) // of this test alone
	h, _ := machine(13000, one)
	h.Claim = nil
	build := func() *Built {
		b, err := h.Build(onGPUs("auto", writeCapture(t, 1)), &sink{}, (&lines{}).log)
		require.NoError(t, err)
		return b
	}
	first, second := build(), build()
	require.Equal(t, "cuda", first.Kind)
	require.Equal(t, "cpu", second.Kind)
	require.Contains(t, second.Why, fmt.Sprintf("is in use by process %d", os.Getpid()))
	require.NoError(t, first.Close())
	third := build()
	require.Equal(t, "cuda", third.Kind)
	require.NoError(t, errors.Join(second.Close(), third.Close()))
}

// TestAMIGSliceIsUsedIfTheKernelFits: with fewer queues where nobody asks for a number.
func TestAMIGSliceIsUsedIfTheKernelFits(t *testing.T) {
	slice := cudatest.H200()
	slice.MIG, slice.SMs, slice.UUID, slice.MemoryBytes = true, 4, "MIG-ffeeddcc-bbaa-9988-7766-554433221100", 16<<30
	for queues, want := range map[uint32]int{0: 4, 3: 3} {
		h, d := machine(13000, slice)
		cfg := onGPUs("auto", writeCapture(t, 1))
		cfg.Queues = queues
		b, err := h.Build(cfg, &sink{}, (&lines{}).log)
		require.NoError(t, err)
		require.Equal(t, "GPU 0, MIG slice of NVIDIA H200, the first that suffices", b.Why)
		require.Equal(t, want, b.Queues)
		require.NoError(t, b.Close())
		require.Empty(t, d.Leaks())
	}
}

// TestOrderingNoneDoesNotConcernTheRelay: only a port that writes into the GPU's memory.
func TestOrderingNoneDoesNotConcernTheRelay(t *testing.T) {
	weak := cudatest.H200()
	weak.Ordering = driver.OrderingNone
	require.ErrorIs(t, cuda.Ordered(&weak), cuda.ErrOrdering)
	h, _ := machine(13000, weak)
	b, err := h.Build(onGPUs("auto", writeCapture(t, 1)), &sink{}, (&lines{}).log)
	require.NoError(t, err)
	require.Equal(t, "cuda", b.Kind)
	require.NoError(t, b.Close())
}

// TestAGPUThatHasFailedIsLeftAlone: it is not even opened.
func TestAGPUThatHasFailedIsLeftAlone(t *testing.T) {
	h, d := machine(13000, cudatest.H200())
	before := d.Calls("cuInit")
	cfg := onGPUs("auto", writeCapture(t, 1))
	cfg.GpuFailed = "3 engines in a row failed with the GPU"
	b, err := h.Build(cfg, &sink{}, (&lines{}).log)
	require.NoError(t, err)
	require.Equal(t, "cpu", b.Kind)
	require.Equal(t, cfg.GpuFailed, b.Why)
	require.Equal(t, before, d.Calls("cuInit"))
	require.NoError(t, b.Close())
}

// TestASourceThatCannotBeOpenedIsNoFaultOfTheGPU: no other pipeline is tried with it.
func TestASourceThatCannotBeOpenedIsNoFaultOfTheGPU(t *testing.T) {
	for _, p := range []string{"auto", "cuda"} {
		h, d := machine(13000, cudatest.H200())
		_, err := h.Build(onGPUs(p, "/does/not/exist"), &sink{}, (&lines{}).log)
		require.ErrorIs(t, err, ErrConfig)
		require.False(t, gpuFault(err))
		require.Empty(t, d.Leaks())
	}
}

// TestGPUReadings: the row of the management library, what the kernel takes of the GPU, and what
// the GPU takes for the packets. Without the library the second is there.
func TestGPUReadings(t *testing.T) {
	h, _ := machine(13000, cudatest.H200())
	r := &reader{row: telemetry.GPURow{Index: 7, UUID: cudatest.H200().UUID, Name: "NVIDIA H200", EccUncorrected: new(uint64(2)), EnergyMillijoules: new(uint64(1000))}}
	h.Readings = func(uuid string) (Readings, error) {
		require.Equal(t, r.row.UUID, uuid)
		return r, nil
	}
	l := &lines{}
	b, err := h.Build(onGPUs("cuda", writeCapture(t, 1)), &sink{}, l.log)
	require.NoError(t, err)
	require.True(t, l.has("WARN GPU 0, NVIDIA H200 has had 2 memory errors"))
	var s telemetry.Snapshot
	b.GPU(&s)
	require.Len(t, s.GPUs, 1)
	require.EqualValues(t, 7, s.GPUs[0].Index, "the library's, without CUDA_VISIBLE_DEVICES")
	require.EqualValues(t, 2, *s.GPUs[0].EngineSMs)
	require.NotZero(t, *s.GPUs[0].EngineWarps)
	require.Nil(t, s.GPUs[0].JoulesPerMillionPackets, "no window yet")
	require.NoError(t, b.Close())
	require.Equal(t, 1, r.closed)

	h.Readings = func(string) (Readings, error) { return nil, gpu.ErrAbsent }
	b, err = h.Build(onGPUs("cuda", writeCapture(t, 1)), &sink{}, l.log)
	require.NoError(t, err)
	s.Reset()
	b.GPU(&s)
	require.Equal(t, cudatest.H200().UUID, s.GPUs[0].UUID)
	require.EqualValues(t, 2, *s.GPUs[0].EngineSMs)
	require.NoError(t, b.Close())

	h.Readings = func(string) (Readings, error) { return nil, errors.New("NVML: no permission") }
	b, err = h.Build(onGPUs("cuda", writeCapture(t, 1)), &sink{}, l.log)
	require.NoError(t, err)
	require.True(t, l.has("WARN GPU 0, NVIDIA H200 is not measured: NVML: no permission"))
	require.NoError(t, b.Close())
}

func TestEnergyPerMillionPackets(t *testing.T) {
	now := time.Unix(1e9, 0)
	e := energy{every: 10 * time.Second, now: func() time.Time { return now }}
	at := func(after time.Duration, joules, packets uint64) *float64 {
		now = now.Add(after)
		mj := joules * 1000
		return e.perMillion(&mj, packets)
	}
	require.Nil(t, e.perMillion(nil, 1))
	require.Nil(t, at(0, 100, 1e6))
	require.Nil(t, at(5*time.Second, 500, 5e6))
	require.InDelta(t, 200.0, *at(5*time.Second, 1100, 6e6), 1e-9) // 1000 J, 5 million packets
	require.InDelta(t, 200.0, *at(9*time.Second, 9999, 9e9), 1e-9, "the last whole window")
	require.Nil(t, at(time.Second, 20000, 6e6), "no packets")
	require.Nil(t, at(10*time.Second, 5, 7e6), "the driver was loaded again")
	require.InDelta(t, 1.0, *at(10*time.Second, 6, 8e6), 1e-9)
}

// comparable are records as text, without the queue, in order.
func comparable(s *sink) (list []string) {
	for i := range s.records {
		r := s.records[i]
		r.Queue = 0
		list = append(list, string(telemetry.AppendJSON(nil, &r)))
	}
	slices.Sort(list)
	return list
}

// sameLines compares without showing thousands of lines.
func sameLines(t *testing.T, want, got []string) {
	t.Helper()
	differ := 0
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			if differ++; differ == 1 {
				t.Errorf("line %d:\nwant %s\ngot  %s", i, want[i], got[i])
			}
		}
	}
	if differ > 0 || len(want) != len(got) {
		t.Fatalf("%d of %d and %d lines differ", differ, len(want), len(got))
	}
}

// TestACaptureGivesTheSameOnBothPipelines: records, traffic, sketches and accounting.
func TestACaptureGivesTheSameOnBothPipelines(t *testing.T) {
	path := synthetic(t, traffic.Bench(3, 20000, 900))
	h := emulated(t)
	run := func(pipeline string) ([]string, telemetry.Snapshot) {
		cfg := onGPUs(pipeline, path)
		cfg.MaxFlows = 1 << 14
		s := &sink{}
		b, err := h.Build(cfg, s, (&lines{}).log)
		require.NoError(t, err)
		require.Equal(t, pipeline, b.Kind)
		require.NoError(t, b.Pipeline.Run(context.Background()))
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		require.NoError(t, b.Close())
		require.Zero(t, snap.Missing())
		require.Zero(t, snap.Engine.PacketsActive)
		return comparable(s), snap
	}
	want, cpu := run("cpu")
	got, gpu := run("cuda")
	require.Greater(t, len(want), 500)
	sameLines(t, want, got)
	require.Equal(t, cpu.Engine.PacketsSeen, gpu.Engine.PacketsSeen)
	require.Equal(t, cpu.Engine.Drops, gpu.Engine.Drops)
	require.ElementsMatch(t, cpu.Traffic, gpu.Traffic)
	require.Equal(t, len(cpu.Sketches), len(gpu.Sketches))
	require.Equal(t, "cuda", gpu.Engine.Pipeline)
}

// TestStatelessModeCountsPacketsOnAGPUOnly: there are rows of traffic and of sketches, and no flows;
// without a GPU there is no engine, whatever the pipeline is called.
func TestStatelessModeCountsPacketsOnAGPUOnly(t *testing.T) {
	path := synthetic(t, traffic.Bench(3, 20000, 900))
	for _, pipeline := range []string{"auto", "cuda"} {
		cfg := onGPUs(pipeline, path)
		cfg.Mode, cfg.Emit = "stateless", nil
		s := &sink{}
		b, err := emulated(t).Build(cfg, s, (&lines{}).log)
		require.NoError(t, err)
		require.NoError(t, b.Pipeline.Run(context.Background()))
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		require.NoError(t, b.Close())
		require.Empty(t, s.records)
		require.EqualValues(t, 20000, snap.Engine.PacketsSeen)
		require.EqualValues(t, 20000, snap.Engine.PacketsRecorded)
		var packets uint64
		for _, r := range snap.Traffic {
			packets += r.Packets
		}
		require.EqualValues(t, 20000, packets)
		require.NotEmpty(t, snap.Top)
		require.Zero(t, snap.Missing())

		h, _ := machine(12080, cudatest.H200())
		cfg.GpuFailed = "failed three times"
		_, err = h.Build(cfg, &sink{}, (&lines{}).log)
		require.ErrorIs(t, err, ErrGPU)
		require.ErrorContains(t, err, `mode = "stateless": GPU cannot be used: 0, NVIDIA H200: CUDA driver too old`)
	}
	for says, change := range map[string]func(*agppb.Configure){
		`pipeline = "cpu", allowed: "auto", "cuda"`: func(c *agppb.Configure) { c.Pipeline = "cpu" },
		`models = [app.onnx], allowed: none`:        func(c *agppb.Configure) { c.Models = []string{"app.onnx"} },
		`mode = "fast", allowed`:                    func(c *agppb.Configure) { c.Mode = "fast" },
	} {
		cfg := onGPUs("auto", path)
		cfg.Mode, cfg.Emit = "stateless", nil
		change(cfg)
		_, err := emulated(t).Build(cfg, &sink{}, (&lines{}).log)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, says)
	}
}

// TestSequenceModeGivesTheSameOnBothPipelines: the processor takes it for what it is, a matter of the GPU.
func TestSequenceModeGivesTheSameOnBothPipelines(t *testing.T) {
	path := synthetic(t, traffic.Bench(3, 5000, 300))
	run := func(pipeline string) []string {
		cfg := onGPUs(pipeline, path)
		cfg.MaxFlows, cfg.Mode = 1<<14, "sequence"
		s := &sink{}
		b, err := emulated(t).Build(cfg, s, (&lines{}).log)
		require.NoError(t, err)
		require.Equal(t, pipeline, b.Kind)
		require.NoError(t, b.Pipeline.Run(context.Background()))
		require.NoError(t, b.Close())
		return comparable(s)
	}
	want := run("cpu")
	require.NotEmpty(t, want)
	sameLines(t, want, run("cuda"))
}

// TestAClockThatIsSetBackCountsOnBothPipelines: captures one after the other as one input.
func TestAClockThatIsSetBackCountsOnBothPipelines(t *testing.T) {
	h, first, second := emulated(t), writeCapture(t, 100), writeCapture(t, 90)
	for _, pipeline := range []string{"cpu", "cuda"} {
		s := &sink{}
		b, err := h.Build(onGPUs(pipeline, first, second), s, (&lines{}).log)
		require.NoError(t, err)
		require.NoError(t, b.Pipeline.Run(context.Background()))
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		require.Equal(t, map[string]uint64{"clock_back": 1}, snap.Engine.Errors, pipeline)
		require.NoError(t, b.Close())
	}
}

// findings is a sink that keeps alerts as well.
type findings struct {
	sink
	alerts []string
}

func (f *findings) Alert(a *telemetry.Alert) {
	f.alerts = append(f.alerts, string(telemetry.AppendAlertJSON(nil, a)))
}

// TestModelsAreExchangedOnTheGPU by command, as on the CPU.
func TestModelsAreExchangedOnTheGPU(t *testing.T) {
	dir := t.TempDir()
	first, other := filepath.Join(dir, "a.onnx"), filepath.Join(dir, "b.onnx")
	writeModel(t, first, "1", "c2")
	writeModel(t, other, "2", "benign")
	cfg := onGPUs("cuda", writeCapture(t, 20))
	cfg.Models = []string{first}
	s := &sink{}
	b, err := emulated(t).Build(cfg, s, (&lines{}).log)
	require.NoError(t, err)
	names, err := b.Swap([]string{other})
	require.NoError(t, err)
	require.Equal(t, []string{"test@2"}, names)
	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, 20)
	for i := range s.records {
		require.Len(t, s.records[i].Outputs, 1)
		require.Equal(t, "test@2", s.records[i].Outputs[0].Model)
	}
	require.NoError(t, b.Close())
}

// TestModelsAndDetectorsFindTheSameOnBothPipelines: answers, alerts and what is counted of them.
func TestModelsAndDetectorsFindTheSameOnBothPipelines(t *testing.T) {
	path := synthetic(t, traffic.Demo(1))
	model := filepath.Join(t.TempDir(), "a.onnx")
	writeModel(t, model, "1", "c2")
	h := emulated(t)
	run := func(pipeline string) ([]string, []string, telemetry.Snapshot) {
		cfg := onGPUs(pipeline, path)
		cfg.MaxFlows, cfg.Models = 1<<14, []string{model}
		f := &findings{}
		b, err := h.Build(cfg, f, (&lines{}).log)
		require.NoError(t, err)
		require.Equal(t, pipeline, b.Kind)
		require.Equal(t, []string{"test@1"}, b.Models)
		require.NoError(t, b.Pipeline.Run(context.Background()))
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		require.Zero(t, snap.Missing())
		require.NoError(t, b.Close())
		slices.Sort(f.alerts)
		return comparable(&f.sink), f.alerts, snap
	}
	records, alerts, cpu := run("cpu")
	got, gotAlerts, gpu := run("cuda")
	require.Contains(t, records[0], `"class_model":"test@1"`)
	sameLines(t, records, got)
	require.NotEmpty(t, alerts)
	require.Equal(t, alerts, gotAlerts)
	require.Equal(t, cpu.Engine.Alerts, gpu.Engine.Alerts)
	require.NotZero(t, gpu.Engine.Inferences)
	require.Equal(t, cpu.Engine.Models, gpu.Engine.Models)
}

// TestServeSaysWhichPipelineRunsAndWhy: in "ready" and in every snapshot, and counts alike.
func TestServeSaysWhichPipelineRunsAndWhy(t *testing.T) {
	h := emulated(t)
	p := beginBuilder(t, h.Build)
	c := onGPUs("auto", writeCapture(t, 50))
	p.configure(c)
	ready := p.until(func(ev *agppb.Event) bool { return ev.GetReady() != nil }).GetReady()
	require.Equal(t, "cuda", ready.GetPipeline())
	require.Equal(t, "GPU 0, NVIDIA H200, the first that suffices", ready.GetPipelineReason())
	sum := p.until(isFinished).GetFinished().GetSummary()
	require.EqualValues(t, 50, sum.GetPacketsSeen())
	require.EqualValues(t, 50, sum.GetPacketsRecorded())
	require.Equal(t, 50, p.records())
	last := p.events[len(p.events)-2].GetSnapshot()
	require.Equal(t, ready.GetPipelineReason(), last.GetEngine().GetPipelineReason())
	require.Equal(t, "cuda", last.GetEngine().GetPipeline())
	require.Len(t, last.GetGpus(), 1)
	require.EqualValues(t, 2, last.GetGpus()[0].GetEngineSms())
	require.NoError(t, p.served())
}

// TestAGPUThatFailsEndsTheEngine: also one that reads files, which would otherwise be taken for read;
// the plugin is told that it was the GPU.
func TestAGPUThatFailsEndsTheEngine(t *testing.T) {
	for name, fault := range map[string]error{
		"hung":            fmt.Errorf("%w: ring 3 gave no heartbeat for more than 2s", cuda.ErrHung),
		"illegal address": cuda.Explain(fmt.Errorf("launch: %w", driver.IllegalAddress)),
		"memory error":    cuda.Explain(fmt.Errorf("stream: %w", driver.EccUncorrectable)),
		"desync":          fmt.Errorf("%w 0: completions and receive queue disagree", cuda.ErrRing),
		"while draining":  errors.Join(context.Canceled, cuda.ErrHung),
	} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, func(context.Context, pipeline.Sink) error { return fault })
			p.configure(&agppb.Configure{})
			ev := p.until(func(ev *agppb.Event) bool { return isFinished(ev) || ev.GetError() != nil })
			require.Nil(t, ev.GetFinished())
			require.True(t, ev.GetError().GetFatal())
			require.True(t, ev.GetError().GetGpu())
			require.False(t, ev.GetError().GetConfig())
			require.Equal(t, fault.Error(), ev.GetError().GetText())
			require.Error(t, p.served())
		})
	}
}

// TestTheDriversXIDIsPartOfTheError: what the management library has been told.
func TestTheDriversXIDIsPartOfTheError(t *testing.T) {
	p := beginBuilt(t, func(context.Context, pipeline.Sink) error { return cuda.ErrHung }, func(b *Built) {
		b.GPU = func(s *telemetry.Snapshot) {
			s.GPUs = append(s.GPUs, telemetry.GPURow{UUID: "GPU-1", XidErrors: new(uint64(2)), LastXid: new(uint64(79))})
		}
	})
	p.configure(&agppb.Configure{})
	e := p.until(func(ev *agppb.Event) bool { return ev.GetError() != nil }).GetError()
	require.Equal(t, cuda.ErrHung.Error()+"; the last of 2 critical errors that the driver reported of GPU-1 is XID 79", e.GetText())
	require.True(t, e.GetGpu())
	require.Error(t, p.served())
}

// TestAnEngineWithoutGPUSaysWhatIsMissing to the plugin.
func TestAnEngineWithoutGPUSaysWhatIsMissing(t *testing.T) {
	h, _ := machine(12080, cudatest.H200())
	p := beginBuilder(t, h.Build)
	p.configure(onGPUs("cuda", writeCapture(t, 1)))
	e := p.until(func(ev *agppb.Event) bool { return ev.GetError() != nil }).GetError()
	require.True(t, e.GetFatal())
	require.True(t, e.GetGpu())
	require.False(t, e.GetConfig())
	require.Equal(t, `no GPU for the pipeline: pipeline = "cuda": GPU cannot be used: 0, NVIDIA H200: CUDA driver too old: it runs CUDA 12.8, the device code needs 13.0`, e.GetText())
	require.ErrorIs(t, p.served(), ErrGPU)
}

// synthetic writes generated traffic.
func synthetic(t *testing.T, c *traffic.Capture) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "synthetic.pcap")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, c.WritePcap(f))
	require.NoError(t, f.Close())
	return path
}

// TestAGPUThatFailsWhileItRunsLosesCountedPackets: what it had is one reason of drops, the plugin is
// told, and the next engine, on the CPU, reads on behind what is lost.
func TestAGPUThatFailsWhileItRunsLosesCountedPackets(t *testing.T) {
	const all = 20000
	file := writeCapture(t, all)
	fail := cudatest.Kernel{Params: []int{int(unsafe.Sizeof(abi.Params{}))}, Run: func(*cudatest.Call) driver.Result {
		time.Sleep(20 * time.Millisecond) // the relay fills the rings meanwhile
		return driver.IllegalAddress
	}}
	h, d := machineWith(fail, 13000, cudatest.H200())
	p := beginBuilder(t, h.Build)
	p.configure(onGPUs("cuda", file))
	ev := p.until(func(ev *agppb.Event) bool { return isFinished(ev) || ev.GetError() != nil })
	require.Nil(t, ev.GetFinished())
	require.True(t, ev.GetError().GetGpu())
	require.Contains(t, ev.GetError().GetText(), "the GPU has failed")
	require.Contains(t, ev.GetError().GetText(), "CUDA_ERROR_ILLEGAL_ADDRESS")
	last := p.events[len(p.events)-2].GetSnapshot().GetEngine()
	seen := last.GetPacketsSeen()
	require.NotZero(t, seen)
	require.Less(t, seen, uint64(all))
	require.Equal(t, map[string]uint64{cuda.DropDeviceState: seen}, last.GetDrops())
	require.Zero(t, last.GetPacketsActive())
	require.Error(t, p.served())
	require.NotZero(t, d.Calls("cuLaunchKernelEx"))

	next := onGPUs("auto", file)
	next.GpuFailed, next.Source.SkipFrames, next.MaxFlows = "3 engines in a row failed with the GPU", seen, 1<<15
	s := &sink{}
	b, _ := build(t, next, s)
	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, int(all-seen))
}
