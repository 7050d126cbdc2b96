package cuda_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/source"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// silent is a port that gets no packet until it is told to end.
type silent struct{ end chan struct{} }

func (s *silent) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.end:
		return nil
	}
}
func (*silent) ClockNs() int64      { return 0 }
func (*silent) Stats() source.Stats { return source.Stats{} }
func (*silent) Stop(int) error      { return cuda.ErrRing }
func (*silent) Start(int) error     { return cuda.ErrRing }
func (s *silent) Interrupt() {
	select {
	case s.end <- struct{}{}:
	default:
	}
}

// gpuOf is the GPU, or the test is skipped.
func gpuOf(t *testing.T) *cuda.GPU {
	g, ok := simt.Device(t).(*cuda.GPU)
	if !ok {
		t.Skip("no GPU")
	}
	return g
}

// started is a pipeline that runs on the GPU; the function ends it.
func started(t *testing.T, g *cuda.GPU) (stop func()) {
	p, err := cuda.New(cuda.Config{
		Device: g, Sink: &counting{}, Rings: 4, Flow: flow.Config{MaxFlows: 1 << 20},
		Port: func([]mlx5.Queue) (cuda.Feeder, error) { return &silent{make(chan struct{}, 1)}, nil },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	run := make(chan error, 1)
	go func() { run <- p.Run(ctx) }()
	_, err = p.Handover(ctx, nil) // the kernel beats
	require.NoError(t, err)
	return func() {
		begin := time.Now()
		cancel()
		require.NoError(t, <-run)
		require.Less(t, time.Since(begin), 5*time.Second)
		t.Logf("stopped within %v, longest silence of a ring %v", time.Since(begin), p.Silence())
		require.NoError(t, p.Close())
	}
}

// computing lists the processes that compute on GPUs, as NVML has them: pid and memory.
func computing(t *testing.T) map[int]string {
	out, err := exec.Command("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader").CombinedOutput()
	require.NoError(t, err, "%s", out)
	list := map[int]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		pid, memory, _ := strings.Cut(line, ",")
		if n, err := strconv.Atoi(strings.TrimSpace(pid)); err == nil {
			list[n] = strings.TrimSpace(memory)
		}
	}
	return list
}

// TestLiveKilledEngineFreesTheGPU: after SIGKILL to a process with a kernel that would never end,
// NVML shows no process, the memory is back, and a pipeline can be started.
func TestLiveKilledEngineFreesTheGPU(t *testing.T) {
	const env = "AGP_ENGINE_TO_KILL"
	g := gpuOf(t)
	if os.Getenv(env) != "" {
		_ = started(t, g)
		fmt.Println("the kernel runs")
		select {}
	}
	free, _, err := g.Context().MemInfo()
	require.NoError(t, err)
	before := computing(t)
	child := exec.Command(os.Args[0], "-test.run=^TestLiveKilledEngineFreesTheGPU$")
	child.Env = append(os.Environ(), env+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if this process ends first
	runtime.LockOSThread()                                               // whose end that means
	defer runtime.UnlockOSThread()
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewScanner(out)
	said := ""
	for said != "the kernel runs" && lines.Scan() {
		said = lines.Text()
	}
	require.Equal(t, "the kernel runs", said)
	taken, _, err := g.Context().MemInfo()
	require.NoError(t, err)
	require.Less(t, taken, free-100<<20, "the other process has memory")
	t.Logf("NVML before: %v, with the child: %v", before, computing(t))

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	begin := time.Now()
	require.Eventually(t, func() bool {
		now, _, err := g.Context().MemInfo()
		require.NoError(t, err)
		return now+16<<20 >= free && len(computing(t)) <= len(before)
	}, 20*time.Second, 50*time.Millisecond)
	t.Logf("free again after %v", time.Since(begin))
	require.NotContains(t, computing(t), child.Process.Pid)
	started(t, g)()
}

// TestLiveKernelThatFailsIsTold: what the hardware says of a kernel that leaves its memory comes out
// of Run, in words. The process is of no use afterwards, so it is a child.
func TestLiveKernelThatFailsIsTold(t *testing.T) {
	const env = "AGP_ENGINE_TO_FAIL"
	if os.Getenv(env) == "" {
		gpuOf(t)
		child := exec.Command(os.Args[0], "-test.run=^TestLiveKernelThatFailsIsTold$", "-test.v")
		child.Env = append(os.Environ(), env+"=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
		return
	}
	all, err := driver.Open()
	require.NoError(t, err)
	d, err := all.Device(0)
	require.NoError(t, err)
	g, err := cuda.OpenGPU(d) // not closed: it cannot be
	require.NoError(t, err)
	p, err := cuda.New(cuda.Config{
		Device: broken{g}, Sink: &counting{}, Rings: 1, Flow: flow.Config{MaxFlows: 1 << 10},
		Port: func([]mlx5.Queue) (cuda.Feeder, error) { return &silent{make(chan struct{}, 1)}, nil },
	})
	require.NoError(t, err)
	err = p.Run(t.Context())
	require.ErrorIs(t, err, cuda.ErrDevice)
	require.ErrorIs(t, err, driver.IllegalAddress)
	t.Log(err)
	done := make(chan error, 1)
	go func() { done <- p.Close() }()
	select {
	case err = <-done:
		t.Logf("Close: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("Close hangs")
	}
}

// broken is a device that gives a kernel the address of nothing as its rings.
type broken struct{ cuda.Device }

func (b broken) Launch(kernel string, blocks, warps, shared int, params []byte) (cuda.Run, error) {
	bad := append([]byte{}, params...)
	for i := range 8 {
		bad[8+i] = 0
	}
	bad[8+1] = 0x10 // 4 KiB
	return b.Device.Launch(kernel, blocks, warps, shared, bad)
}
