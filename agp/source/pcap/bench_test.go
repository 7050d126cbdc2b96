package pcap

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// classicFile writes a little-endian pcap of n frames whose sizes follow a simple
// mix of small, middle and large packets, or are all equal.
func classicFile(b testing.TB, n, size int) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bench.pcap")
	file, err := os.Create(path)
	require.NoError(b, err)
	buf := bufio.NewWriterSize(file, 1<<20)
	le := binary.LittleEndian
	h := le.AppendUint32(nil, magicMicro)
	h = le.AppendUint16(h, 2)
	h = le.AppendUint16(h, 4)
	h = append(h, make([]byte, 8)...)
	h = le.AppendUint32(h, 65535)
	h = le.AppendUint32(h, 1)
	buf.Write(h)
	data := make([]byte, 1514)
	for i := range n {
		length := size
		if size == 0 {
			length = [...]int{64, 64, 64, 90, 128, 576, 1514, 1514}[i%8]
		}
		var rec [16]byte
		le.PutUint32(rec[0:], uint32(i/100000))
		le.PutUint32(rec[4:], uint32(i%100000))
		le.PutUint32(rec[8:], uint32(length))
		le.PutUint32(rec[12:], uint32(length))
		buf.Write(rec[:])
		buf.Write(data[:length])
	}
	require.NoError(b, buf.Flush())
	require.NoError(b, file.Close())
	return path
}

// BenchmarkRead reads 2 million packets from the page cache.
func BenchmarkRead(b *testing.B) {
	for name, size := range map[string]int{"64B": 64, "mixed": 0} {
		b.Run(name, func(b *testing.B) {
			const frames = 2_000_000
			path := classicFile(b, frames, size)
			batch := &source.Batch{Frames: make([]source.Frame, 0, 256)}
			var before, after unix.Rusage
			require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
			b.ResetTimer()
			for range b.N {
				r, err := Open([]string{path}, Options{})
				require.NoError(b, err)
				total := 0
				for {
					n, err := r.Next(batch)
					if err == io.EOF {
						break
					}
					require.NoError(b, err)
					total += n
				}
				require.Equal(b, frames, total)
				require.NoError(b, r.Close())
			}
			b.StopTimer()
			require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &after))
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			packets := float64(frames) * float64(b.N)
			b.ReportMetric(packets/b.Elapsed().Seconds()/1e6, "Mpps")
			b.ReportMetric(packets*1e3/float64(cpu), "Mpps-per-cpu") // on a busy machine
		})
	}
}
