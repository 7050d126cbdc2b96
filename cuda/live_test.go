package cuda_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/cuda"
)

// live opens the first GPU of this machine, or skips the test.
func live(t *testing.T) (*cuda.Context, cuda.Info) {
	t.Helper()
	d, err := cuda.Open()
	if errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.NoDevice) {
		t.Skipf("no GPU: %v", err)
	}
	require.NoError(t, err)
	dev, err := d.Device(0)
	require.NoError(t, err)
	i, err := dev.Info()
	require.NoError(t, err)
	t.Logf("CUDA %s: %+v", d.Version(), i)
	c, err := dev.Retain()
	require.NoError(t, err)
	return c, i
}

func ptx(t *testing.T) []byte {
	t.Helper()
	code, err := os.ReadFile("testdata/kernels.ptx")
	require.NoError(t, err)
	return code
}

// TestLivePersistentKernel is TestPersistentKernel with a GPU: what the package lets
// through while a kernel runs does return, in time.
func TestLivePersistentKernel(t *testing.T) {
	c, info := live(t)
	m, err := c.Load(ptx(t))
	require.NoError(t, err)
	functions := map[string]*cuda.Function{}
	for _, name := range []string{"spin", "add", "deep"} {
		functions[name], err = m.Function(name)
		require.NoError(t, err)
		t.Logf("%s: %+v", name, functions[name].Attributes())
	}
	require.Greater(t, functions["deep"].Attributes().LocalBytes, 8<<10)
	old, err := c.Alloc(4096)
	require.NoError(t, err)
	word, err := c.HostAlloc(4096)
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	arg := cuda.Value(&params{Control: uint64(word.Device), N: 3})

	run := start(t, c, functions["spin"])
	defer func() {
		if run.word.Bytes != nil {
			run.tell() // whatever waits for it goes on
		}
	}()
	running, err := c.Running()
	require.NoError(t, err)
	require.True(t, running)
	for name, f := range map[string]func() error{
		"Load":            func() error { _, err := c.Load(ptx(t)); return err },
		"Function":        func() error { _, err := m.Function("add"); return err },
		"Unload":          m.Unload,
		"Free":            func() error { return c.Free(old) },
		"HostBuffer.Free": word.Free,
		"Close":           c.Close,
		"local memory":    func() error { return s.Launch(functions["deep"], cuda.Launch{}, arg) },
	} {
		require.ErrorIs(t, f(), cuda.ErrBusy, name)
	}

	var cubin []byte
	var more cuda.DevicePtr
	var host *cuda.HostBuffer
	var other *cuda.Stream
	var e1, e2 *cuda.Event
	got := make([]byte, 64)
	for _, step := range []struct {
		name string
		f    func() error
	}{
		{"MemInfo", func() error { _, _, err := c.MemInfo(); return err }},
		{"Alloc", func() (err error) { more, err = c.Alloc(64 << 20); return err }},
		{"HostAlloc", func() (err error) { host, err = c.HostAlloc(1 << 20); return err }},
		{"Link", func() (err error) { cubin, err = c.Link(cuda.Input{Name: "kernels", PTX: ptx(t)}); return err }},
		{"NewStream", func() (err error) { other, err = c.NewStream(); return err }},
		{"NewEvent", func() (err error) { e1, err = c.NewEvent(); return err }},
		{"NewEvent", func() (err error) { e2, err = c.NewEvent(); return err }},
		{"Record", func() error { return other.Record(e1) }},
		{"Launch", func() error { return other.Launch(functions["add"], cuda.Launch{}, arg) }},
		{"Record", func() error { return other.Record(e2) }},
		{"Synchronize", func() error { return other.Synchronize() }},
		{"Fill", func() error { return c.Fill(more, 7, 1<<20) }},
		{"CopyFromDevice", func() error { return c.CopyFromDevice(got, more+1<<20-64) }},
		{"CopyToDevice of much", func() error { return c.CopyToDevice(more, make([]byte, 8<<20)) }},
		{"Stream.CopyToDevice", func() error { return other.CopyToDevice(more, host, 0, 1<<20) }},
		{"Stream.CopyFromDevice", func() error { return other.CopyFromDevice(host, 0, more, 1<<20) }},
		{"Stream.CopyRowsToDevice", func() error {
			copy(host.Bytes[4096:], "one")
			copy(host.Bytes[4096+128:], "two")
			return errors.Join(other.CopyRowsToDevice(cuda.Rows{Dst: more + 4096, DstPitch: 3, SrcPitch: 128, Width: 3, Count: 2}, host, 4096), other.Synchronize())
		}},
		{"CopyFromDevice of the rows", func() error {
			err := c.CopyFromDevice(got[:6], more+4096)
			if err == nil && string(got[:6]) != "onetwo" {
				err = fmt.Errorf("rows: %q", got[:6])
			}
			return err
		}},
		{"Since", func() error {
			d, err := e2.Since(e1)
			if err == nil && d <= 0 {
				err = errors.New("no time has passed")
			}
			return err
		}},
		{"Event.Close", func() error { return e1.Close() }},
		{"Stream.Close", s.Close},
	} {
		begin, done := time.Now(), make(chan error, 1)
		go func() { done <- step.f() }()
		select {
		case err := <-done:
			require.NoError(t, err, step.name)
			t.Logf("%-24s %v", step.name, time.Since(begin))
		case <-time.After(limit):
			t.Fatalf("%s waits for the kernel", step.name)
		}
	}
	require.EqualValues(t, 3, binary.LittleEndian.Uint32(word.Bytes))
	require.EqualValues(t, 7, got[63])

	begin := time.Now()
	run.stop(t)
	t.Logf("%-24s %v", "stop", time.Since(begin))
	begin = time.Now()
	next, err := c.Load(cubin)
	require.NoError(t, err)
	f, err := next.Function("add")
	require.NoError(t, err)
	t.Logf("%-24s %v", "Load of a cubin", time.Since(begin))
	require.NoError(t, other.Launch(f, cuda.Launch{Cooperative: true}, arg))
	require.NoError(t, other.Synchronize())
	require.EqualValues(t, 6, binary.LittleEndian.Uint32(word.Bytes))
	require.NoError(t, other.Launch(functions["deep"], cuda.Launch{}, arg))
	require.NoError(t, other.Synchronize())
	require.EqualValues(t, 3, binary.LittleEndian.Uint32(word.Bytes))

	small := uint32(1)
	t.Logf("argument of another size: %v", other.Launch(f, cuda.Launch{}, cuda.Value(&small)))
	if info.DMABuf {
		file, err := c.DMABuf(more, 2<<20)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	require.ErrorIs(t, other.Launch(f, cuda.Launch{Grid: cuda.Dim{X: 1 << 20}, Block: cuda.Dim{X: 1024}, Cooperative: true}, arg), cuda.CooperativeLaunchTooLarge)
	require.NoError(t, errors.Join(e2.Close(), other.Close(), run.s.Close(), run.word.Free(), host.Free(), word.Free(), next.Unload(), m.Unload(), c.Free(old), c.Free(more)))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
}

func TestLiveErrorsHaveTheDriversWords(t *testing.T) {
	c, info := live(t)
	defer c.Close()
	_, err := c.Alloc(int(info.MemoryBytes) + 1<<30)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.ErrorContains(t, err, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
	_, err = c.Load([]byte(".version 7.0\n.target sm_80\n.address_size 64\nnonsense\n"))
	require.ErrorIs(t, err, cuda.InvalidPTX)
	require.ErrorContains(t, err, "nonsense")
	t.Log(err)
	_, err = c.Link(cuda.Input{Name: "bad.ptx", PTX: []byte(".version 7.0\n.target sm_80\n.address_size 64\nnonsense\n")})
	require.ErrorContains(t, err, "nonsense")
	m, err := c.Load(ptx(t))
	require.NoError(t, err)
	_, err = m.Function("absent")
	require.ErrorIs(t, err, cuda.NotFound)

	// A kernel that fails leaves nothing usable, and says so: the last thing this process does.
	if os.Getenv("AGP_GPU_CRASH") == "" {
		return
	}
	add, err := m.Function("add")
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Launch(add, cuda.Launch{Persistent: true}, cuda.Value(&params{Control: 8})))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err = s.Wait(ctx)
	require.ErrorIs(t, err, cuda.IllegalAddress)
	require.True(t, cuda.Poisoned(err))
	_, err = c.Alloc(64)
	require.True(t, cuda.Poisoned(err))
	t.Logf("Free after it: %v", c.Free(1))
}
