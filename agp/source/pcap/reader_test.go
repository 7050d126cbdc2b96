package pcap

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// brief is a frame without its bytes' identity, for comparison.
type brief struct {
	ns    int64
	data  string
	wire  uint32
	link  packet.LinkType
	iface uint32
}

func briefs(frames []source.Frame) []brief {
	var out []brief
	for _, f := range frames {
		out = append(out, brief{f.TimestampNs, string(f.Data), f.WireLen, f.LinkType, f.Interface})
	}
	return out
}

func TestClassicFormats(t *testing.T) {
	recs := []rec{{1, 2, "abc", 0}, {3, 4, "", 0}, {math.MaxUint32, 999, "defgh", 1500}}
	for name, o := range orders {
		for magic, tick := range map[uint32]int64{magicMicro: 1000, magicNano: 1, magicModified: 1000} {
			t.Run(fmt.Sprintf("%s/%x", name, magic), func(t *testing.T) {
				// The upper bits of the link type state a frame check sequence of 4 bytes.
				r := openBytes(t, classicBytes(o, magic, 0x24000000|113, recs...), Options{})
				got, err := collect(t, r, 2)
				require.Equal(t, io.EOF, err)
				require.Equal(t, []brief{
					{1*second + 2*tick, "abc", 3, 113, 0},
					{3*second + 4*tick, "", 0, 113, 0},
					{math.MaxUint32*second + 999*tick, "defgh", 1500, 113, 0},
				}, briefs(got))
				require.Equal(t, []Interface{{LinkType: 113, SnapLen: 65535}}, r.Interfaces())
				st := r.Stats()
				require.Equal(t, source.Stats{Frames: 3, Bytes: 8, Dropped: map[string]uint64{}, Offset: st.Size, Size: st.Size}, st)
			})
		}
	}
}

func TestWireLengthBelowCapturedLengthIsRaised(t *testing.T) {
	r := openBytes(t, classicBytes(binary.LittleEndian, magicMicro, 1, rec{0, 0, "abcdef", 2}), Options{})
	got, err := collect(t, r, 1)
	require.Equal(t, io.EOF, err)
	require.Equal(t, uint32(6), got[0].WireLen)
}

func TestFrameLongerThanSnapLengthIsDelivered(t *testing.T) {
	long := strings.Repeat("x", 70000) // the header says 65535
	r := openBytes(t, classicBytes(binary.LittleEndian, magicMicro, 1, rec{0, 0, long, 0}, rec{0, 0, "a", 0}), Options{})
	got, err := collect(t, r, 8)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []string{long, "a"}, []string{string(got[0].Data), string(got[1].Data)})
}

func TestNgInterfacesHaveTheirOwnClockAndLinkType(t *testing.T) {
	for name, o := range orders {
		t.Run(name, func(t *testing.T) {
			w := (&ng{o: o}).section().
				iface(1, 0, "eth0", -1, 0).           // microseconds
				iface(101, 96, "tun0", 9, 100).       // nanoseconds, 100 s later
				iface(113, 0, "any", 0x80|20, -5).    // 2^-20 s, 5 s earlier
				iface(276, 0, "", 3, 0).              // milliseconds, no end of options
				enhanced(0, 1_000_001, "abc", 60).    //
				enhanced(1, 1_000_000_001, "", 0).    //
				enhanced(2, 10<<20|1<<19, "de", 0).   // 10.5 s
				block(0x0bad, 1, 2, 3).               // unknown
				obsolete(3, 1500, "fghi").            //
				simple(300, strings.Repeat("x", 300)) // of interface 0, without a time
			w.block(4, 0, 0, 0, 0).block(5, make([]byte, 12)...)
			r := openBytes(t, w.b, Options{})
			got, err := collect(t, r, 3)
			require.Equal(t, io.EOF, err)
			require.Equal(t, []brief{
				{1_000_001_000, "abc", 60, 1, 0},
				{101_000_000_001, "", 0, 101, 1},
				{5_500_000_000, "de", 2, 113, 2},
				{1_500_000_000, "fghi", 4, 276, 3},
				{1_500_000_000, strings.Repeat("x", 300), 300, 1, 0},
			}, briefs(got))
			require.Equal(t, []Interface{{"eth0", 1, 0}, {"tun0", 101, 96}, {"any", 113, 0}, {"", 276, 0}}, r.Interfaces())
			require.Empty(t, r.Stats().Dropped)
		})
	}
}

func TestNgSectionsOfBothByteOrders(t *testing.T) {
	b := little().section().iface(1, 0, "eth0", 9, 0).enhanced(0, 1, "a", 0).b
	b = append(b, (&ng{o: binary.BigEndian}).section().iface(101, 0, "tun0", 9, 0).iface(1, 0, "eth0", 9, 0).
		enhanced(0, 2, "b", 0).enhanced(1, 3, "c", 0).b...)
	b = append(b, little().section().iface(1, 0, "eth0", 6, 0).enhanced(0, 4, "d", 0).b...)
	r := openBytes(t, b, Options{})
	got, err := collect(t, r, 16)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []brief{
		{1, "a", 1, 1, 0},
		{2, "b", 1, 101, 1},
		{3, "c", 1, 1, 0}, // the same interface in another section
		{4000, "d", 1, 1, 2},
	}, briefs(got))
}

func TestSimplePacketIsCutByTheSnapLength(t *testing.T) {
	r := openBytes(t, little().section().iface(1, 5, "", -1, 0).simple(300, "hello\x00\x00\x00").b, Options{})
	got, err := collect(t, r, 1)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []brief{{0, "hello", 300, 1, 0}}, briefs(got))
}

func TestTimestampsOfEveryResolutionNeitherOverflowNorWrap(t *testing.T) {
	for _, c := range []struct {
		tsresol uint8
		offset  int64
		ticks   uint64
		want    int64
	}{
		{6, 0, 1_600_000_000_123_456, 1_600_000_000_123_456_000},
		{9, 0, 1_600_000_000_123_456_789, 1_600_000_000_123_456_789},
		{0, 0, 1_600_000_000, 1_600_000_000 * second},
		{0, -1_600_000_000, 1_600_000_000, 0},
		{0, 0, math.MaxUint64, math.MaxInt64},
		{9, 0, math.MaxInt64 + 1, math.MaxInt64},
		{12, 0, 1_999, 1},
		{12, 0, math.MaxUint64, 18_446_744_073_709_551},
		{28, 0, math.MaxUint64, 1},
		{29, 0, math.MaxUint64, 0},
		{127, 5, math.MaxUint64, 5 * second},
		{0x80, 0, 7, 7 * second},
		{0x80 | 1, 0, 7, 3_500_000_000},
		{0x80 | 32, 0, 1<<32 + 1<<31, 1_500_000_000},
		{0x80 | 63, 0, 1 << 63, second},
		{0x80 | 63, 0, math.MaxUint64, 2*second - 1},
		{0x80 | 64, 0, 1 << 63, second / 2},
		{0x80 | 65, 0, 1 << 63, second / 4},
		{0x80 | 127, 0, math.MaxUint64, 0},
		{0x80, 0, math.MaxUint64, math.MaxInt64},
		{9, math.MaxInt64, 1, math.MaxInt64},
		{9, math.MinInt64, 0, math.MinInt64},
		{9, math.MinInt64, math.MaxInt64, -1},
		{9, 1, math.MaxInt64, math.MaxInt64},
		{9, -1, 0, -second},
	} {
		s := newTimescale(c.tsresol, c.offset)
		require.Equal(t, c.want, s.ns(c.ticks), "%#x %d %d", c.tsresol, c.offset, c.ticks)
	}
	for tsresol := range 256 { // every resolution is monotonic
		s := newTimescale(uint8(tsresol), 0)
		last := int64(0)
		for shift := range 64 {
			ns := s.ns(1<<shift | 1)
			require.GreaterOrEqual(t, ns, last, tsresol)
			last = ns
		}
	}
}

// badInput lists inputs that are not good to the end, and what must come of them.
func badInput() map[string]struct {
	content []byte
	frames  int
	err     error
	dropped map[string]uint64
} {
	type bad = struct {
		content []byte
		frames  int
		err     error
		dropped map[string]uint64
	}
	le := binary.LittleEndian
	two := []rec{{1, 0, "abc", 0}, {2, 0, "defg", 0}}
	classic := func(extra ...byte) []byte { return append(classicBytes(le, magicMicro, 1, two...), extra...) }
	ngGood := func() *ng { return little().section().iface(1, 0, "", -1, 0).enhanced(0, 1, "abcd", 0) }
	cut := func(b []byte, n int) []byte { return b[:len(b)-n] }
	truncated := map[string]uint64{"truncated_record": 1}
	corrupt := map[string]uint64{"corrupt_record": 1}
	mismatch := ngGood().enhanced(0, 2, "efgh", 0).b
	mismatch[len(mismatch)-1]++
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, _ = zw.Write(classic())
	_ = zw.Close()
	badSum := append([]byte(nil), zipped.Bytes()...)
	badSum[len(badSum)-5]++
	major := classic()
	major[4] = 9
	ngMajor := ngGood().b
	ngMajor[12] = 9
	return map[string]bad{
		"empty":                          {nil, 0, ErrEmpty, nil},
		"too short for a magic number":   {[]byte{0xd4, 0xc3}, 0, ErrNotCapture, nil},
		"text":                           {[]byte("this is not a capture, by any means"), 0, ErrNotCapture, nil},
		"header cut":                     {classic()[:20], 0, ErrTruncated, nil},
		"only a header":                  {classicBytes(le, magicMicro, 1), 0, io.EOF, nil},
		"record header cut":              {classic(1, 2, 3), 2, ErrTruncated, truncated},
		"last packet cut":                {cut(classic(), 1), 1, ErrTruncated, truncated},
		"garbage after the header":       {append(classicBytes(le, magicMicro, 1), bytes.Repeat([]byte{0xee}, 400)...), 0, ErrCorrupt, corrupt},
		"garbage after good records":     {classic(bytes.Repeat([]byte{0xee}, 400)...), 2, ErrCorrupt, corrupt},
		"captured length of 256 KiB + 1": {classic(0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 1, 0, 4, 0), 2, ErrCorrupt, corrupt},
		"pcap of another version":        {major, 0, ErrVersion, nil},

		"section cut":              {ngGood().b[:20], 0, ErrTruncated, nil},
		"section without magic":    {append([]byte{0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0}, make([]byte, 20)...), 0, ErrCorrupt, corrupt},
		"pcapng of another major":  {ngMajor, 0, ErrVersion, nil},
		"block cut":                {cut(ngGood().enhanced(0, 2, "efgh", 0).b, 5), 1, ErrTruncated, truncated},
		"block header cut":         {append(ngGood().b, 6, 0, 0), 1, ErrTruncated, truncated},
		"interface cut":            {cut(ngGood().iface(1, 0, "x", 6, 0).b, 4), 1, ErrTruncated, nil},
		"unknown block cut":        {cut(ngGood().block(77, make([]byte, 100)...).b, 4), 1, ErrTruncated, nil},
		"block lengths disagree":   {mismatch, 1, ErrCorrupt, corrupt},
		"block length 0":           {append(ngGood().b, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1, ErrCorrupt, corrupt},
		"block length not times 4": {append(ngGood().b, 6, 0, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0), 1, ErrCorrupt, corrupt},
		"packet longer than its block": {ngGood().block(blockEnhanced, append(make([]byte, 12), 200, 0, 0, 0, 200, 0, 0, 0, 1, 2, 3, 4)...).
			enhanced(0, 3, "i", 0).b, 2, io.EOF, corrupt},
		"block too short for its kind": {ngGood().block(blockEnhanced, 1, 2, 3, 4).enhanced(0, 3, "i", 0).b, 2, io.EOF, corrupt},
		"simple packet longer than its block": {
			ngGood().simple(300, "short").enhanced(0, 3, "i", 0).b, 2, io.EOF, corrupt},
		"packet of an unknown interface": {ngGood().enhanced(7, 2, "efgh", 0).simple(1, "x").b, 2, io.EOF, map[string]uint64{"unknown_interface": 1}},
		"packet before any interface":    {little().section().enhanced(0, 2, "efgh", 0).simple(1, "x").b, 0, io.EOF, map[string]uint64{"unknown_interface": 2}},
		"packet of more than 256 KiB": {ngGood().enhanced(0, 2, strings.Repeat("x", maxFrame+1), 0).enhanced(0, 3, "i", 0).b,
			2, io.EOF, map[string]uint64{"frame_too_long": 1}},
		"packet block of more than 1 MiB": {ngGood().enhanced(0, 2, strings.Repeat("x", maxBlock), 0).enhanced(0, 3, "i", 0).b,
			2, io.EOF, map[string]uint64{"frame_too_long": 1}},
		"interface of more than 1 MiB":    {ngGood().block(blockInterface, make([]byte, maxBlock)...).b, 1, ErrCorrupt, nil},
		"interface too short":             {ngGood().block(blockInterface, 1, 0, 0, 0).b, 1, ErrCorrupt, nil},
		"section header of absurd length": {append(ngGood().b, 0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 0x7f, 0x4d, 0x3c, 0x2b, 0x1a), 1, ErrCorrupt, corrupt},

		"gzip cut":            {cut(zipped.Bytes(), 12), 2, ErrTruncated, nil},
		"gzip of nothing":     {zipped.Bytes()[:5], 0, ErrTruncated, nil},
		"gzip checksum wrong": {badSum, 2, ErrCorrupt, nil},
	}
}

func TestBadInputDeliversWhatIsReadableAndSaysWhy(t *testing.T) {
	for name, c := range badInput() {
		t.Run(name, func(t *testing.T) {
			for _, batch := range []int{1, 3, 256} {
				r := openBytes(t, c.content, Options{})
				got, err := collect(t, r, batch)
				require.ErrorIs(t, err, c.err)
				require.Len(t, got, c.frames)
				if c.dropped == nil {
					c.dropped = map[string]uint64{}
				}
				st := r.Stats()
				require.Equal(t, c.dropped, st.Dropped)
				require.Equal(t, uint64(c.frames), st.Frames)
				require.LessOrEqual(t, st.Offset, st.Size)
				if c.err != io.EOF {
					require.Contains(t, err.Error(), "capture: byte ", "the error names file and place")
				}
			}
		})
	}
}

func TestEmptyAndUnknownVersionsAreNotCaptures(t *testing.T) {
	require.ErrorIs(t, ErrEmpty, ErrNotCapture)
	require.ErrorIs(t, ErrVersion, ErrNotCapture)
}

// goodInputs are captures that exercise all of both formats.
func goodInputs() map[string][]byte {
	var recs []rec
	w := little().section().iface(1, 0, "eth0", 9, 0).iface(101, 0, "tun0", 6, 0)
	for i := range 700 {
		data := strings.Repeat(string(rune('a'+i%26)), i*i%1500)
		recs = append(recs, rec{uint32(i), uint32(i), data, 0})
		w.enhanced(uint32(i%2), uint64(i), data, 0)
		if i%50 == 0 {
			w.block(99, make([]byte, 100*i)...).simple(uint32(len(data)), data).obsolete(1, uint64(i), data)
		}
	}
	return map[string][]byte{"pcap": classicBytes(binary.BigEndian, magicNano, 1, recs...), "pcapng": w.b}
}

func TestResultDoesNotDependOnBatchSizeOrOnHowInputArrives(t *testing.T) {
	for name, content := range goodInputs() {
		t.Run(name, func(t *testing.T) {
			want, err := collect(t, openBytes(t, content, Options{}), 256)
			require.Equal(t, io.EOF, err)
			require.Greater(t, len(want), 699)
			var zipped bytes.Buffer
			zw := gzip.NewWriter(&zipped)
			_, err = zw.Write(content)
			require.NoError(t, err)
			require.NoError(t, zw.Close())
			for how, in := range map[string]func() io.Reader{
				"at once":       func() io.Reader { return bytes.NewReader(content) },
				"byte by byte":  func() io.Reader { return iotest.OneByteReader(bytes.NewReader(content)) },
				"half":          func() io.Reader { return iotest.HalfReader(bytes.NewReader(content)) },
				"data with EOF": func() io.Reader { return iotest.DataErrReader(bytes.NewReader(content)) },
				"gzip":          func() io.Reader { return bytes.NewReader(zipped.Bytes()) },
			} {
				for _, batch := range []int{1, 7, 1000} {
					got, err := collect(t, readerOf(in()), batch)
					require.Equal(t, io.EOF, err)
					require.Equal(t, briefs(want), briefs(got), "%s, batch %d", how, batch)
				}
			}
		})
	}
}

func TestFramesOfSeveralBatchesStayValid(t *testing.T) {
	for name, content := range goodInputs() {
		t.Run(name, func(t *testing.T) {
			want, err := collect(t, memory(content), 64)
			require.Equal(t, io.EOF, err)
			r := memory(content)
			batches := make([]source.Batch, 4) // in turn; each is looked at just before it is reused
			var got []brief
			i := 0
			for ; ; i++ {
				b := &batches[i%4]
				got = append(got, briefs(b.Frames)...)
				if cap(b.Frames) == 0 {
					b.Frames = make([]source.Frame, 0, 11+i)
				}
				if _, err := r.Next(b); err != nil {
					require.Equal(t, io.EOF, err)
					break
				}
			}
			for k := 1; k < 4; k++ {
				got = append(got, briefs(batches[(i+k)%4].Frames)...)
			}
			require.Equal(t, briefs(want), got)
		})
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	var recs []rec
	for i := range 4000 {
		recs = append(recs, rec{uint32(i), 0, strings.Repeat("x", 60+i%1400), 0})
	}
	r := openBytes(t, classicBytes(binary.LittleEndian, magicMicro, 1, recs...), Options{})
	b := &source.Batch{Frames: make([]source.Frame, 0, 32)}
	for range 3 {
		_, err := r.Next(b)
		require.NoError(t, err)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		n, err := r.Next(b)
		if n != 32 || err != nil {
			t.Fatal(n, err)
		}
	}))
}

func TestFilesAreReadOneAfterTheOther(t *testing.T) {
	one := classicBytes(binary.LittleEndian, magicMicro, 1, rec{5, 0, "a", 0})
	cut := classicBytes(binary.LittleEndian, magicMicro, 1, rec{6, 0, "b", 0}, rec{7, 0, "lost", 0})
	cut = cut[:len(cut)-1]
	other := little().section().iface(101, 0, "tun0", 6, 0).enhanced(0, 1, "c", 0).b
	paths := []string{
		tempFile(t, "one", one), tempFile(t, "cut", cut), tempFile(t, "text", []byte("hello")), tempFile(t, "other", other),
	}
	r, err := Open(paths, Options{})
	require.NoError(t, err)
	defer r.Close()
	got, err := collect(t, r, 16)
	require.ErrorIs(t, err, ErrTruncated)
	require.ErrorIs(t, err, ErrNotCapture)
	require.Contains(t, err.Error(), paths[1])
	require.Contains(t, err.Error(), paths[2])
	require.Equal(t, []brief{{5 * second, "a", 1, 1, 0}, {6 * second, "b", 1, 1, 0}, {1000, "c", 1, 101, 1}}, briefs(got))
	require.Equal(t, int64(len(one)+len(cut)+5+len(other)), r.Stats().Size)
}

func TestOpenRefusesWhatCannotBeRead(t *testing.T) {
	_, err := Open(nil, Options{})
	require.Error(t, err)
	_, err = Open([]string{filepath.Join(t.TempDir(), "absent")}, Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open([]string{t.TempDir()}, Options{})
	require.ErrorIs(t, err, ErrNotCapture)
	for _, speed := range []float64{-1, math.NaN(), math.Inf(1)} {
		_, err = Open([]string{tempFile(t, "x", nil)}, Options{Speed: speed})
		require.Error(t, err)
	}
}

func TestFileThatShrinksIsTruncated(t *testing.T) {
	content := goodInputs()["pcap"]
	path := tempFile(t, "shrinks", content)
	r, err := Open([]string{path}, Options{})
	require.NoError(t, err)
	defer r.Close()
	b := &source.Batch{Frames: make([]source.Frame, 0, 4)}
	_, err = r.Next(b)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, int64(len(content)/2)))
	got, err := collect(t, r, 64)
	require.ErrorIs(t, err, ErrTruncated)
	require.Greater(t, len(got), 100)
}

// fifo makes a named pipe and opens its writing end.
func fifo(t *testing.T, opts Options) (*Reader, *os.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	r, err := Open([]string{path}, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	b := &source.Batch{}
	n, err := r.Next(b) // opens the reading end; nobody writes yet
	require.NoError(t, err)
	require.Zero(t, n)
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	return r, w
}

func TestLivePipeLetsTimePassAndEndsWithItsWriter(t *testing.T) {
	r, w := fifo(t, Options{})
	content := classicBytes(binary.LittleEndian, magicMicro, 1, rec{1, 0, "abc", 0}, rec{2, 0, "def", 0})
	b := &source.Batch{Frames: make([]source.Frame, 0, 8)}
	// A record that is not complete does not block, and does not get lost.
	_, err := w.Write(content[:len(content)-2])
	require.NoError(t, err)
	n, err := r.Next(b)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "abc", string(b.Frames[0].Data))
	n, err = r.Next(b)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = w.Write(content[len(content)-2:])
	require.NoError(t, err)
	n, err = r.Next(b)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "def", string(b.Frames[0].Data))
	require.NoError(t, w.Close())
	_, err = r.Next(b)
	require.Equal(t, io.EOF, err)
	require.Zero(t, r.Stats().Size)
	require.Equal(t, int64(len(content)), r.Stats().Offset)
}

// TestMain lets the test binary be a program that counts the frames of its
// standard input.
func TestMain(m *testing.M) {
	if os.Getenv("AGP_TEST_COUNT_STDIN") == "" {
		os.Exit(m.Run())
	}
	r, err := Open([]string{Stdin}, Options{})
	for b := (&source.Batch{}); err == nil; {
		_, err = r.Next(b)
	}
	fmt.Print(r.Stats().Frames, err)
}

func TestStandardInputMayBeAPipeOrAFile(t *testing.T) {
	content := goodInputs()["pcap"]
	file, err := os.Open(tempFile(t, "x", content))
	require.NoError(t, err)
	defer file.Close()
	for name, in := range map[string]io.Reader{"pipe": bytes.NewReader(content), "file": file} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "AGP_TEST_COUNT_STDIN=1")
		cmd.Stdin = in
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, name)
		require.Equal(t, "700 EOF", string(out), name)
	}
}

func TestPipeCutInsideARecordIsTruncated(t *testing.T) {
	r, w := fifo(t, Options{})
	content := classicBytes(binary.LittleEndian, magicMicro, 1, rec{1, 0, "abc", 0})
	_, err := w.Write(content[:len(content)-1])
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = collect(t, r, 8)
	require.ErrorIs(t, err, ErrTruncated)
}

// untilEnd calls Next until it fails, in a goroutine, and returns its error.
func untilEnd(r *Reader) <-chan error {
	done := make(chan error, 1)
	go func() {
		b := &source.Batch{}
		for {
			if _, err := r.Next(b); err != nil {
				done <- err
				return
			}
		}
	}()
	return done
}

// polling reports whether some goroutine is waiting for a pipe.
func polling() bool {
	stacks := make([]byte, 1<<16)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("pcap.(*pollReader).Read"))
}

func TestInterruptEndsABlockedPipe(t *testing.T) {
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, err := zw.Write(classicBytes(binary.LittleEndian, magicMicro, 1, rec{1, 0, "abc", 0}))
	require.NoError(t, err)
	require.NoError(t, zw.Flush())
	for name, content := range map[string][]byte{
		"silent":            nil,
		"inside a record":   classicBytes(binary.LittleEndian, magicMicro, 1, rec{1, 0, "abc", 0})[:30],
		"compressed, quiet": zipped.Bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			r, w := fifo(t, Options{})
			_, err := w.Write(content)
			require.NoError(t, err)
			done := untilEnd(r)
			require.Eventually(t, polling, 10*time.Second, time.Millisecond, "Next waits for the pipe")
			r.Interrupt()
			r.Interrupt()
			select {
			case err := <-done:
				require.Equal(t, io.EOF, err)
			case <-time.After(10 * time.Second):
				t.Fatal("still blocked")
			}
			require.Empty(t, r.Stats().Dropped, "an input that was left is not a bad one")
		})
	}
}

func TestInterruptEndsAFile(t *testing.T) {
	r := openBytes(t, goodInputs()["pcap"], Options{})
	b := &source.Batch{Frames: make([]source.Frame, 0, 4)}
	_, err := r.Next(b)
	require.NoError(t, err)
	r.Interrupt()
	_, err = r.Next(b)
	require.Equal(t, io.EOF, err)
}

func TestNextAfterCloseIsTheEnd(t *testing.T) {
	r, err := Open([]string{tempFile(t, "x", goodInputs()["pcapng"])}, Options{})
	require.NoError(t, err)
	b := &source.Batch{Frames: make([]source.Frame, 0, 4)}
	_, err = r.Next(b)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	r.Interrupt()
	_, err = r.Next(b)
	require.Equal(t, io.EOF, err)
	require.Equal(t, uint64(4), r.Stats().Frames)
}

func TestErrorOfTheInputIsPassedOn(t *testing.T) {
	boom := errors.New("disk on fire")
	content := classicBytes(binary.LittleEndian, magicMicro, 1, rec{1, 0, "abc", 0}, rec{2, 0, "def", 0})
	r := readerOf(io.MultiReader(bytes.NewReader(content[:len(content)-1]), iotest.ErrReader(boom)))
	got, err := collect(t, r, 4)
	require.ErrorIs(t, err, boom)
	require.Len(t, got, 1)
}

func TestTooManyInterfacesEndTheFile(t *testing.T) {
	w := little().section()
	for i := range maxInterfaces + 1 {
		w.iface(1, uint32(i), "", -1, 0)
	}
	r := memory(w.enhanced(0, 1, "a", 0).b)
	got, err := collect(t, r, 4)
	require.ErrorIs(t, err, ErrCorrupt)
	require.Empty(t, got)
	require.Len(t, r.Interfaces(), maxInterfaces)
}
