package simt

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

const selftest = "tests/simt/lib/selftest.cu"

func open(t testing.TB) *Library {
	t.Helper()
	testcap.Program(t, compiler)
	l, err := OpenSources(selftest)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func alloc[T any](t testing.TB, l *Library, n int) ([]T, uint64) {
	t.Helper()
	var zero T
	m, err := l.AllocMapped(n * int(unsafe.Sizeof(zero)))
	require.NoError(t, err)
	return Slice[T](m), uint64(m.Addr)
}

type intrinsicsIn struct {
	Wide, Other           uint64
	Mask, Value, From, By uint32
}

type intrinsicsOut struct {
	Shfl64, ShflUp, Mulhi                               uint64
	Ballot, Shfl, Match, Match64, Add, Max, Min, Swap32 uint32
	Popc, Ffs, Bits                                     int32
	Lane, Index, Local                                  uint32
}

// groups cuts the lanes of a warp into random groups, for each lane the mask of its own.
func groups(r *rand.Rand) (masks [32]uint32) {
	of := make([]int, 32)
	n := 1 + r.IntN(32)
	if r.IntN(4) == 0 {
		n = 1
	}
	for i := range of {
		of[i] = r.IntN(n)
	}
	for i := range masks {
		for j := range of {
			if of[i] == of[j] {
				masks[i] |= 1 << j
			}
		}
	}
	return masks
}

func member(r *rand.Rand, mask uint32) uint32 {
	for {
		if i := r.Uint32N(32); mask>>i&1 == 1 {
			return i
		}
	}
}

// TestIntrinsicsEqualAScalarModel: every function of warp.cuh, on random values and masks.
func TestIntrinsicsEqualAScalarModel(t *testing.T) {
	const blocks, warps, rounds = 2, 3, 300
	l := open(t)
	in, inAt := alloc[intrinsicsIn](t, l, blocks*warps*rounds*32)
	out, outAt := alloc[intrinsicsOut](t, l, len(in))
	r := rand.New(rand.NewPCG(1, 2))
	for at := 0; at < len(in); at += 32 {
		masks := groups(r)
		for i := range masks {
			v := intrinsicsIn{Wide: r.Uint64() >> r.IntN(65), Other: r.Uint64(), Mask: masks[i], Value: r.Uint32() >> r.IntN(33)}
			if r.IntN(2) == 0 { // values that others have as well
				v.Wide, v.Value = 1<<40*uint64(r.IntN(3)), 7*uint32(r.IntN(3))
			}
			// Lanes are numbered modulo 32. A lane that shfl_up names is in the mask, or below 0.
			v.From = member(r, masks[i]) + 32*r.Uint32N(3)
			v.By = uint32(i) - member(r, masks[i])
			if int32(v.By) < 0 {
				v.By = uint32(i) + 1 + r.Uint32N(40)
			}
			in[at+i] = v
		}
	}
	params := struct {
		In, Out     uint64
		Rounds, Pad uint32
	}{inAt, outAt, rounds, 0}
	require.NoError(t, Call(deadline(t), l, "intrinsics", blocks, warps, params))

	for at := 0; at < len(in); at += 32 {
		for lane := range uint32(32) {
			i := in[at+int(lane)]
			warp := uint32(at / 32 / rounds)
			want := intrinsicsOut{Lane: lane, Index: warp, Local: warp % warps, Min: ^uint32(0)}
			for other := range uint32(32) {
				if i.Mask>>other&1 == 0 {
					continue
				}
				o := in[at+int(other)]
				want.Ballot |= o.Value & 1 << other
				if o.Value == i.Value {
					want.Match |= 1 << other
				}
				if o.Wide == i.Wide {
					want.Match64 |= 1 << other
				}
				want.Add += o.Value
				want.Max = max(want.Max, o.Value)
				want.Min = min(want.Min, o.Value)
			}
			want.Shfl = in[at+int(i.From%32)].Value
			want.Shfl64 = in[at+int(i.From%32)].Wide
			want.ShflUp = i.Wide
			if i.By <= lane {
				want.ShflUp = in[at+int(lane-i.By)].Wide
			}
			want.Popc = int32(bits.OnesCount32(i.Value))
			want.Ffs = -1
			if i.Value != 0 {
				want.Ffs = int32(bits.TrailingZeros32(i.Value))
			}
			want.Bits = int32(bits.Len64(i.Wide))
			want.Mulhi, _ = bits.Mul64(i.Wide, i.Other)
			want.Swap32 = bits.ReverseBytes32(i.Value)
			require.Equal(t, want, out[at+int(lane)], "warp %d round %d lane %d", warp, at/32%rounds, lane)
		}
	}
}

var misuses = []string{
	"lanes of one mask at different collectives",
	"lanes of one mask at different collectives",
	"a lane of the mask has returned",
	"a mask without its caller",
	"a value from a lane outside the mask",
	"lanes wait for each other",
	"misaligned address",
	"misaligned address",
	"more shared memory than a block has",
}

// TestMisuseEndsTheProcessAndNamesThePlaces: what the device leaves undefined.
func TestMisuseEndsTheProcessAndNamesThePlaces(t *testing.T) {
	const env = "AGP_SIMT_MISUSE"
	if s := os.Getenv(env); s != "" {
		which, err := strconv.ParseUint(s, 10, 32)
		require.NoError(t, err)
		l := open(t)
		_ = Call(deadline(t), l, "misuse", 1, 1, struct{ Which, Pad uint32 }{uint32(which), 0})
		return
	}
	places := [][]string{{"sync(ffffffff) at selftest.cu:", "ballot(ffffffff) at selftest.cu:"}, {"add(ffffffff) at selftest.cu:"}, {"sync(ffffffff) at selftest.cu:", "lane 3 has returned"},
		{"in sync(ffffffdf) at selftest.cu:"}, {"lane 20", "shfl(0000ffff) at selftest.cu:"}, {"lane 0 in sync(00000005)", "lane 1 in sync(00000006)", "lane 2 in sync(00000007)"}, {"accesses 4 bytes", "selftest.cu:"}, {"accesses 16 bytes", "selftest.cu:"}, nil}
	for i, want := range misuses {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMisuseEndsTheProcessAndNamesThePlaces$")
			cmd.Env = append(os.Environ(), env+"="+strconv.Itoa(i))
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Contains(t, string(out), "simt: kernel misuse, warp 0: "+want)
			for _, p := range places[i] {
				require.Contains(t, string(out), p)
			}
		})
	}
}

// TestAMissingSyncShows: with it every order of lanes gives the same, without it orders differ.
func TestAMissingSyncShows(t *testing.T) {
	l := open(t)
	out, at := alloc[uint32](t, l, 32)
	results := func(synced uint32) map[[32]uint32]bool {
		seen := map[[32]uint32]bool{}
		for seed := range uint64(20) {
			l.Seed(seed)
			require.NoError(t, Call(deadline(t), l, "exchange", 1, 1, struct {
				Out         uint64
				Synced, Pad uint32
			}{at, synced, 0}))
			seen[[32]uint32(out)] = true
		}
		return seen
	}
	require.Len(t, results(1), 1)
	require.Greater(t, len(results(0)), 10)
}

// TestASeedRepeatsTheOrder: the same seed gives the same order of lanes.
func TestASeedRepeatsTheOrder(t *testing.T) {
	l := open(t)
	out, at := alloc[uint32](t, l, 32)
	once := func(seed uint64) [32]uint32 {
		l.Seed(seed)
		require.NoError(t, Call(deadline(t), l, "exchange", 1, 1, struct {
			Out         uint64
			Synced, Pad uint32
		}{at, 0, 0}))
		return [32]uint32(out)
	}
	first := once(42)
	require.Equal(t, first, once(42))
	require.NotEqual(t, first, once(43))
}

// TestWarpsPassMessages: release and acquire between two warps, thousands of times.
func TestWarpsPassMessages(t *testing.T) {
	const count = 2000
	l := open(t)
	_, flag := alloc[uint32](t, l, 2)
	_, data := alloc[uint64](t, l, 32)
	out, outAt := alloc[uint64](t, l, 32)
	require.NoError(t, Call(deadline(t), l, "messages", 1, 2, struct {
		Flag, Data, Out uint64
		Count           uint32
		Faults          [4]uint8
	}{flag, data, outAt, count, [4]uint8{}}))
	for lane, got := range out {
		require.Equal(t, uint64(count*(count+1)/2)<<32|uint64(count*(lane^1)), got)
	}
}

// TestBlocksShareMemoryAndMeetAtBarriers, and half of the lanes return before the others.
func TestBlocksShareMemoryAndMeetAtBarriers(t *testing.T) {
	const blocks, warps = 5, 4
	l := open(t)
	out, at := alloc[uint32](t, l, blocks*warps)
	for seed := range uint64(10) {
		l.Seed(seed)
		require.NoError(t, Call(deadline(t), l, "rows", blocks, warps, struct {
			Out           uint64
			Warps, Synced uint32
		}{at, warps, 1}))
		for i := range uint32(blocks * warps) {
			var want uint32
			for row := range uint32(warps) {
				want += (i/warps*warps+row)*1000 + i%warps
			}
			require.Equal(t, want, out[i], "warp %d", i)
		}
	}
}

// TestLanesMakeProgressIndependently: one waits for another of its warp by looking at memory.
func TestLanesMakeProgressIndependently(t *testing.T) {
	l := open(t)
	for seed := range uint64(10) {
		word, at := alloc[uint32](t, l, 1)
		l.Seed(seed)
		require.NoError(t, Call(deadline(t), l, "spin", 1, 1, struct{ Word uint64 }{at}))
		require.Equal(t, uint32(2), word[0])
	}
}

// TestAPersistentKernelTalksToTheHost, by mapped memory, until it is told to end.
func TestAPersistentKernelTalksToTheHost(t *testing.T) {
	l := open(t)
	in, inAt := alloc[uint64](t, l, 1)
	out, outAt := alloc[uint64](t, l, 1)
	atomic.StoreUint64(&in[0], 1)
	run, err := l.Launch("echo", 1, 1, 0, Bytes(&struct{ In, Out uint64 }{inAt, outAt}))
	require.NoError(t, err)
	ctx := deadline(t)
	for v := uint64(1); v < 100; v++ {
		atomic.StoreUint64(&in[0], v)
		for atomic.LoadUint64(&out[0]) != v+1 {
			require.NoError(t, ctx.Err())
			time.Sleep(10 * time.Microsecond)
		}
	}
	require.ErrorIs(t, l.Close(), ErrRunning)
	short, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, run.Wait(short), context.Canceled)
	atomic.StoreUint64(&in[0], 0)
	require.NoError(t, run.Wait(ctx))
	<-run.Done()
	require.Equal(t, uint64(1), out[0])
}

func TestBadLaunches(t *testing.T) {
	l := open(t)
	params := make([]byte, 8)
	for _, c := range []struct {
		kernel        string
		blocks, warps int
		size          int
		want          error
	}{
		{"none", 1, 1, 8, ErrKernel},
		{"spin", 1, 1, 7, ErrParams},
		{"spin", 0, 1, 8, ErrGrid},
		{"spin", 1, -1, 8, ErrGrid},
		{"spin", 1, 9, 8, ErrGrid}, // a block has at most 8
		{"spin", 1 << 20, 1, 8, ErrGrid},
	} {
		_, err := l.Launch(c.kernel, c.blocks, c.warps, 0, params[:c.size])
		require.ErrorIs(t, err, c.want, "%+v", c)
	}
}

func TestMemory(t *testing.T) {
	l := open(t)
	for _, n := range []int{0, -1} {
		_, err := l.Alloc(n)
		require.Error(t, err)
	}
	a, err := l.Alloc(1000)
	require.NoError(t, err)
	require.Zero(t, a%256)
	got := []byte{1, 2, 3}
	require.NoError(t, l.Read(got, a+997))
	require.Equal(t, []byte{0, 0, 0}, got)
	require.NoError(t, l.Write(a+997, []byte{4, 5, 6}))
	require.NoError(t, l.Read(got, a+997))
	require.Equal(t, []byte{4, 5, 6}, got)
	require.ErrorIs(t, l.Write(a+998, got), ErrAddress)
	require.ErrorIs(t, l.Read(got, a-1), ErrAddress)
	require.ErrorIs(t, l.Free(a+1), ErrAddress)
	require.NoError(t, l.Free(a))
	require.ErrorIs(t, l.Free(a), ErrAddress)
	require.ErrorIs(t, l.Write(a, got), ErrAddress)
	require.NoError(t, l.Close())
	_, err = l.Alloc(1)
	require.ErrorIs(t, err, ErrClosed)
	_, err = l.Launch("spin", 1, 1, 0, make([]byte, 8))
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, l.Close())
}

// TestCompilerErrors: a source that does not compile says why; without a compiler that is said.
func TestCompilerErrors(t *testing.T) {
	testcap.Program(t, compiler)
	_, err := OpenSources("tests/simt/lib/none.cu")
	require.ErrorContains(t, err, "none.cu")
	t.Setenv("PATH", t.TempDir())
	_, err = OpenSources(selftest)
	require.ErrorIs(t, err, ErrNoCompiler)
}

// TestLitmus runs kernels under sanitizers: clean ones are, and each fault is found.
func TestLitmus(t *testing.T) {
	testcap.Program(t, compiler)
	cases := []struct {
		sanitizer Sanitizer
		args      string
		want      string // a word of the report, "" if there is none
	}{
		{Thread, "messages", ""},
		{Thread, "messages no_release", "data race"},
		{Thread, "messages no_acquire", "data race"},
		{Thread, "messages no_sync", "data race"},
		{Thread, "messages late", "data race"},
		{Thread, "exchange", ""},
		{Thread, "exchange no_sync", "data race"},
		{Thread, "exchange shuffle", "data race"},
		{Thread, "rows", ""},
		{Thread, "rows no_barrier", "data race"},
		{Thread, "spin", ""},
		{Address, "messages", ""},
		{Address, "rows", ""},
		{Address, "spin", ""},
		{Address, "stray", ""},
		{Address, "stray over", "heap-buffer-overflow"},
		{Address, "overflow", ""},
		{Address, "overflow over", "signed integer overflow"},
	}
	for _, c := range cases {
		t.Run(string(c.sanitizer)+" "+c.args, func(t *testing.T) {
			out, err := Run(deadline(t), "tests/simt/lib/litmus.cc", c.sanitizer, strings.Fields(c.args)...)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err, "%s", out)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "selftest.cu")
		})
	}
}

var _ cuda.Run = (*run)(nil)

func BenchmarkCollective(b *testing.B) {
	l := open(b)
	_, at := alloc[uint32](b, l, 1)
	require.NoError(b, Call(deadline(b), l, "turns", 1, 1, struct {
		Out        uint64
		Count, Pad uint32
	}{at, uint32(b.N), 0}))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/lane")
}
