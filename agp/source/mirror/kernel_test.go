package mirror

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

const noWakeup = 1 // BPF_RB_NO_WAKEUP

// kernelRing is a ring buffer that a BPF program writes to: one record of size bytes for
// each run, which is the packet of the run with the time in its first 8 bytes. The record of
// a packet whose first byte is not 0 is discarded.
type kernelRing struct {
	m    *ebpf.Map
	prog *ebpf.Program
}

func newKernelRing(tb testing.TB, room, size int) kernelRing {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(room)})
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		tb.Skipf("no ring buffers: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { m.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "BSD",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Imm(asm.R2, int32(size)),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnRingbufReserve.Call(),
			asm.JEq.Imm(asm.R0, 0, "full"),
			asm.Mov.Reg(asm.R7, asm.R0),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Reg(asm.R3, asm.R7),
			asm.Mov.Imm(asm.R4, int32(size)),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "discard"),
			asm.LoadMem(asm.R8, asm.R7, 0, asm.Byte),
			asm.JNE.Imm(asm.R8, 0, "discard"),
			asm.FnKtimeGetNs.Call(),
			asm.StoreMem(asm.R7, 0, asm.R0, asm.DWord),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.Mov.Imm(asm.R2, noWakeup),
			asm.FnRingbufSubmit.Call(),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
			asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("discard"),
			asm.Mov.Imm(asm.R2, noWakeup),
			asm.FnRingbufDiscard.Call(),
			asm.Mov.Imm(asm.R0, 2),
			asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("full"),
			asm.Return(),
		},
	})
	if errors.Is(err, unix.EPERM) {
		tb.Skipf("no programs: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { prog.Close() })
	return kernelRing{m, prog}
}

// write runs the program n times and returns the answer of the last.
func (k kernelRing) write(tb testing.TB, rec []byte, n int) uint32 {
	ret, err := k.prog.Run(&ebpf.RunOptions{Data: rec, Repeat: uint32(n)})
	require.NoError(tb, err)
	return ret
}

func openKernel(tb testing.TB, rings []kernelRing, cfg Config) *Source {
	for _, k := range rings {
		cfg.Rings = append(cfg.Rings, k.m)
	}
	cfg.Links = links
	s, err := Open(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { s.Close() })
	return s
}

// TestKernelRings: what a program wrote to real ring buffers of 2 to 8 CPUs comes once, in
// order, across several wraps, with discarded records between, and times near the clock.
func TestKernelRings(t *testing.T) {
	for _, cpus := range []int{1, 2, 8} {
		var rings []kernelRing
		for range cpus {
			rings = append(rings, newKernelRing(t, os.Getpagesize(), eventSize+128))
		}
		s := openKernel(t, rings, Config{})
		var b source.Batch
		last := int64(0)
		for round := range 40 {
			before := time.Now().UnixNano()
			for i := range 8 {
				for c, k := range rings {
					f := rec{frame: frame(round*1000+i*10+c, 80), snap: 128}.bytes()
					require.Zero(t, k.write(t, f, 1))
					f[0] = 1
					require.EqualValues(t, 2, k.write(t, f, 1))
				}
			}
			seen := make(map[uint64]bool)
			for len(seen) < 8*cpus {
				for _, f := range next(t, s, &b) {
					seen[binary.BigEndian.Uint64(f.Data[42:])] = true
					require.GreaterOrEqual(t, f.TimestampNs, last)
					last = f.TimestampNs
				}
			}
			require.InDelta(t, before, last, 5e9)
			require.GreaterOrEqual(t, last, before-int64(time.Millisecond))
		}
		require.EqualValues(t, 40*8*cpus, s.Stats().Frames)
		require.Empty(t, s.Stats().Dropped)
		require.Empty(t, s.Stats().Repaired)
	}
}

// TestKernelRingFull: the program sees a full ring, and room again after one Next.
func TestKernelRingFull(t *testing.T) {
	k := newKernelRing(t, os.Getpagesize(), eventSize+64)
	s := openKernel(t, []kernelRing{k}, Config{})
	f := rec{frame: frame(1, 20)}.bytes()
	var b source.Batch
	for range 20 {
		require.EqualValues(t, 1, k.write(t, f, 100))
		require.NotEmpty(t, next(t, s, &b))
		require.Zero(t, k.write(t, f, 1))
	}
}

// TestKernelWritesWhileReading: programs run on all CPUs of the machine while the source reads.
func TestKernelWritesWhileReading(t *testing.T) {
	rings := []kernelRing{newKernelRing(t, 1<<20, eventSize+64), newKernelRing(t, 1<<20, eventSize+64)}
	s := openKernel(t, rings, Config{})
	const rounds, per = 50, 100
	var wg sync.WaitGroup
	for c, k := range rings {
		wg.Go(func() {
			runtime.LockOSThread() // a ring has one CPU in use; here it has at least one thread
			for i := range rounds {
				ret, err := k.prog.Run(&ebpf.RunOptions{Data: rec{frame: frame(c*rounds+i, 20)}.bytes(), Repeat: per})
				if ret != 0 || err != nil {
					t.Error("full", ret, err)
				}
			}
		})
	}
	var b source.Batch
	last, got := int64(0), 0
	for got < 2*rounds*per {
		for _, f := range next(t, s, &b) {
			if f.TimestampNs < last {
				// A virtual CPU may stand still between stamp and record.
				require.NotZero(t, s.Stats().Repaired["out_of_order"])
			}
			last = max(last, f.TimestampNs)
			got++
		}
	}
	wg.Wait()
	require.Empty(t, s.Stats().Dropped)
}

// TestRingsAreUnmapped: Close gives the mappings back, and the map may be closed before.
func TestRingsAreUnmapped(t *testing.T) {
	k := newKernelRing(t, os.Getpagesize(), eventSize+64)
	mappings := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return bytes.Count(maps, []byte("anon_inode:bpf-map"))
	}
	before := mappings()
	s, err := Open(Config{Rings: []*ebpf.Map{k.m, k.m}, Links: links})
	require.NoError(t, err)
	require.Equal(t, before+4, mappings())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Equal(t, before, mappings())
}

// TestOpenRefuses: other maps, no maps, no link types.
func TestOpenRefuses(t *testing.T) {
	_, err := Open(Config{Links: links})
	require.ErrorIs(t, err, ErrRing)
	k := newKernelRing(t, os.Getpagesize(), eventSize+64)
	_, err = Open(Config{Rings: []*ebpf.Map{k.m}})
	require.Error(t, err)
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4096})
	require.NoError(t, err)
	defer array.Close()
	_, err = Open(Config{Rings: []*ebpf.Map{k.m, array}, Links: links})
	require.ErrorIs(t, err, ErrRing)
	require.ErrorContains(t, err, "CPU 1")
}

// BenchmarkRead is the cost of one frame from a record in the ring to a batch.
func BenchmarkRead(b *testing.B) {
	for _, bench := range []struct {
		name string
		cpus int
		size int
		cfg  Config
	}{
		{"1cpu_64", 1, 22, Config{}},
		{"1cpu_256", 1, 1400, Config{}},
		{"2cpu_256", 2, 1400, Config{}},
		{"8cpu_256", 8, 1400, Config{}},
		{"64cpu_256", 64, 1400, Config{}},
		{"2cpu_256_duplicates", 2, 1400, Config{Duplicates: true}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bench.cfg.Slack = 1
			s, rings, _ := openSize(bench.cpus, 4<<20, bench.cfg)
			for c, f := range rings {
				for i := range 4000 {
					f.write(rec{ns: uint64(start + i*1000 + c*10), frame: frame(i*100+c, bench.size)}.bytes())
				}
			}
			batch := source.Batch{Frames: make([]source.Frame, 0, 256)}
			var read int
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; {
				got, err := s.Next(&batch)
				if err != nil {
					b.Fatal(err)
				}
				if got == 0 || s.rings[0].pos == rings[0].producer {
					for i := range s.rings { // read them again
						s.rings[i].pos, s.rings[i].published, s.rings[i].last = 0, 0, 0
					}
					s.newest = 0
				}
				n += got
				read += len(batch.Buf)
			}
			b.SetBytes(int64(read / max(b.N, 1)))
		})
	}
}
