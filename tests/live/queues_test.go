package live

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/bench"
	"github.com/agp-net/telegraf-agp/tests/netns"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// datagram is a UDP frame.
func datagram(src, dst netip.AddrPort, payload int) []byte {
	b := make([]byte, 14+20+8+payload)
	b[0], b[6] = 2, 2 // locally administered addresses
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip := b[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], src.Addr().AsSlice())
	copy(ip[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[20:], src.Port())
	binary.BigEndian.PutUint16(ip[22:], dst.Port())
	binary.BigEndian.PutUint16(ip[24:], uint16(8+payload))
	return b
}

// Both directions of every flow reach the same queue of the engine, although the
// port receives them on different CPUs and different receive queues.
func TestBothDirectionsOfAFlowReachOneQueue(t *testing.T) {
	cpus := bench.CPUs(2)
	if len(cpus) < 2 {
		testcap.Missing(t, "there is one CPU only")
	}
	const flows, each = 500, 10
	var way [2][][]byte
	for i := range flows {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(20000+i))
		b := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i), 7}), 53)
		for range each {
			way[0] = append(way[0], datagram(a, b, 40))
			way[1] = append(way[1], datagram(b, a, 400))
		}
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			netns.NothingLeft(t)
			w := newWire(t, 2, 0)
			conf := config(t, kind, "h0")
			conf.Queues = 4
			e := start(t, w.host, conf)
			for i, frames := range way {
				release, err := netns.Pin(cpus[i])
				require.NoError(t, err)
				w.send(t, e, frames)
				release()
			}
			if kind == "divert" { // the driver counts what its XDP program sees
				out, err := w.host.Output(testcap.Program(t, "ethtool"), "-S", "h0")
				require.NoError(t, err)
				for i := range way {
					var n int
					_, rest, ok := strings.Cut(out, fmt.Sprintf("rx_queue_%d_xdp_packets: ", i))
					require.True(t, ok, out)
					_, err := fmt.Sscan(rest, &n)
					require.NoError(t, err)
					require.Equal(t, flows*each, n, "receive queue %d", i)
				}
			}
			got, _ := drain(t, e)
			require.Len(t, got, flows)
			used := map[uint64]int{}
			for _, r := range got {
				require.EqualValues(t, each, r.Number("packets_fwd"), r)
				require.EqualValues(t, each, r.Number("packets_rev"), r)
				used[r.Number("queue")]++
			}
			t.Logf("flows by queue: %v", used)
			require.Len(t, used, 4)
		})
	}
}
