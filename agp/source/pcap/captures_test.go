package pcap

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// rival reads a capture with gopacket.
func rival(t *testing.T, path string, each func(data []byte, ci gopacket.CaptureInfo, link int)) error {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	require.NoError(t, err)
	_, err = f.Seek(0, io.SeekStart)
	require.NoError(t, err)
	if ngMagic(magic) {
		ng, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		require.NoError(t, err)
		for {
			data, ci, err := ng.ReadPacketData()
			if err != nil {
				return err
			}
			i, err := ng.Interface(ci.InterfaceIndex)
			require.NoError(t, err)
			each(data, ci, int(i.LinkType))
		}
	}
	pc, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	pc.SetSnaplen(maxFrame)
	for {
		data, ci, err := pc.ReadPacketData()
		if err != nil {
			return err
		}
		each(data, ci, int(pc.LinkType()))
	}
}

// buffers spares the fuzzer most of its allocations.
var buffers = sync.Pool{New: func() any { return new([windowSize]byte) }}

// collect reads everything and copies it; the error is what ended the input.
func collect(t testing.TB, r *Reader, batch int) ([]source.Frame, error) {
	t.Helper()
	buf := buffers.Get().(*[windowSize]byte)
	defer buffers.Put(buf)
	b := &source.Batch{Frames: make([]source.Frame, 0, batch), Buf: buf[:0]}
	var all []source.Frame
	for {
		n, err := r.Next(b)
		require.Len(t, b.Frames, n)
		if err != nil {
			require.Zero(t, n)
			_, again := r.Next(b)
			require.Equal(t, err, again, "the end stays the end")
			return all, err
		}
		for _, f := range b.Frames {
			f.Data = append([]byte(nil), f.Data...)
			all = append(all, f)
		}
	}
}

func TestCapturesReadLikeGopacket(t *testing.T) {
	var frames int
	for _, path := range testcap.All(t) {
		r, err := Open([]string{path}, Options{})
		require.NoError(t, err)
		got, end := collect(t, r, 64)
		i := 0
		rivalEnd := rival(t, path, func(data []byte, ci gopacket.CaptureInfo, link int) {
			require.Less(t, i, len(got), path)
			f := got[i]
			i++
			require.Equal(t, data, append([]byte{}, f.Data...), "%s frame %d", path, i)
			require.Equal(t, ci.Length, int(f.WireLen), "%s frame %d", path, i)
			require.Equal(t, link, int(f.LinkType), "%s frame %d", path, i)
			if !ci.Timestamp.IsZero() {
				require.Equal(t, ci.Timestamp.UnixNano(), f.TimestampNs, "%s frame %d", path, i)
			}
		})
		require.Len(t, got, i, path)
		st := r.Stats()
		require.Equal(t, uint64(i), st.Frames)
		switch name := filepath.Base(path); {
		case errors.Is(rivalEnd, io.EOF) && end == io.EOF:
			require.Empty(t, st.Dropped, path)
			require.Equal(t, st.Size, st.Offset, path)
		case name == "pgsql-5000-query-results-input.pcap": // cut inside its last packet
			require.ErrorIs(t, end, ErrTruncated)
			require.Equal(t, map[string]uint64{"truncated_record": 1}, st.Dropped)
			require.Len(t, got, 785)
		default:
			t.Errorf("%s: gopacket ended with %v, we with %v", name, rivalEnd, end)
		}
		require.NoError(t, r.Close())
		frames += i
	}
	t.Logf("%d frames", frames)
}
