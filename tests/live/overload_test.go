package live

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// overloadEnv is how long the overload lasts, "10s" without it.
const overloadEnv = "AGP_OVERLOAD"

const busyMTU = 1600 // the generator makes segments of 1460 bytes over IPv6 as well

// benchFrames is traffic of a busy link.
func benchFrames(t testing.TB, packets, flows int) [][]byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, traffic.Bench(1, packets, flows).WritePcap(&b))
	path := filepath.Join(t.TempDir(), "bench.pcap")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	frames, err := rig.Frames(path, busyMTU+14)
	require.NoError(t, err)
	return frames
}

// Overload: more packets than the engine takes, which for that gets no processor for a
// part of the time. Every frame that was sent is seen, in a record or in a counter with a
// reason; memory does not grow.
func TestOverloadIsCountedAndTakesNoMoreMemory(t *testing.T) {
	span := 10 * time.Second
	if text := os.Getenv(overloadEnv); text != "" {
		var err error
		span, err = time.ParseDuration(text)
		require.NoError(t, err, overloadEnv)
	}
	frames := benchFrames(t, 200_000, 10_000)
	for _, kind := range []string{"mirror", "divert"} {
		t.Run(kind, func(t *testing.T) {
			netns.NothingLeft(t)
			w := newWire(t, 2, busyMTU)
			conf := config(t, kind, "h0")
			conf.Emit.Flows = "none"
			conf.Models = models(t)
			conf.Source.Live.RingBytes, conf.Source.Live.UmemFrames = 1<<20, 4096
			e := start(t, w.host, conf)
			dropsBefore := linkDrops(t, w.host, "h0") + linkDrops(t, w.far, "out0")

			var sent atomic.Uint64
			var wg sync.WaitGroup
			until := time.Now().Add(span)
			for range 2 {
				s, err := w.far.Sender("out0")
				require.NoError(t, err)
				defer s.Close()
				wg.Go(func() {
					for time.Now().Before(until) {
						for at := 0; at < len(frames) && time.Now().Before(until); at += 1000 {
							n, err := s.Send(frames[at : at+1000])
							sent.Add(uint64(n))
							if err != nil {
								t.Errorf("after %d frames: %v", sent.Load(), err)
								return
							}
						}
					}
				})
			}
			rss := make(chan []uint64, 1)
			go func() { // owned by this test: ends with the span
				var list []uint64
				for time.Now().Before(until) {
					list = append(list, e.Snapshot().GetEngine().GetRssBytes())
					settle(200 * time.Millisecond)
				}
				rss <- list
			}()
			for time.Now().Before(until) {
				require.NoError(t, syscall.Kill(e.Pid(), syscall.SIGSTOP))
				settle(50 * time.Millisecond)
				require.NoError(t, syscall.Kill(e.Pid(), syscall.SIGCONT))
				settle(150 * time.Millisecond)
			}
			wg.Wait()
			memory := <-rss
			link := linkDrops(t, w.host, "h0") + linkDrops(t, w.far, "out0") - dropsBefore
			// Frames for which a socket has no room are drops of the driver as well. What waits
			// in a ring at the end is still to come.
			var s *agppb.Snapshot
			var want uint64
			for deadline := time.Now().Add(rig.Patience); ; {
				var err error
				s, err = e.Fresh()
				require.NoError(t, err)
				want = sent.Load() - (link - socketDrops(s))
				if rig.Accounted(s) == want || time.Now().After(deadline) {
					break
				}
			}
			require.Equal(t, want, rig.Accounted(s), "sent %d, of which the veth pair lost %d; %s", sent.Load(), link-socketDrops(s), e.Words())
			engine := s.GetEngine()
			require.Equal(t, rig.Seen(s), engine.GetPacketsSeen())
			dropped := uint64(0)
			for _, n := range lost(s) {
				dropped += n
			}
			t.Logf("%s: %d frames sent in %v (%.0f per s), %d seen, %d counted in flows, drops %v, lost in the veth pair %d",
				kind, sent.Load(), span, float64(sent.Load())/span.Seconds(), engine.GetPacketsSeen(), engine.GetPacketsRecorded()+engine.GetPacketsActive(), engine.GetDrops(), link-socketDrops(s))
			require.Positive(t, dropped, "this was no overload")
			require.Positive(t, engine.GetPacketsRecorded()+engine.GetPacketsActive())

			early, late := highest(memory[len(memory)/4:len(memory)/2]), highest(memory[len(memory)*3/4:])
			t.Logf("resident memory: %d MB in the second quarter, %d MB in the last", early>>20, late>>20)
			require.Less(t, late, early+early/10+16<<20)
		})
	}
}

func socketDrops(s *agppb.Snapshot) (n uint64) {
	for _, reason := range []string{"rx_dropped", "rx_ring_full", "fill_ring_empty", "rx_invalid"} {
		n += s.GetEngine().GetDrops()[reason]
	}
	return n
}

func highest(list []uint64) (most uint64) {
	for _, n := range list {
		most = max(most, n)
	}
	return most
}

// models are the shipped ones.
func models(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join("..", "..", "configs", "models", "*.onnx"))
	require.NoError(t, err)
	for i := range list {
		list[i], err = filepath.Abs(list[i])
		require.NoError(t, err)
	}
	return list
}
