package steer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBadRulesChangeNothing(t *testing.T) {
	d := load(t, Config{})
	p := netip.MustParsePrefix("192.0.2.1/32")
	for name, r := range map[string]Rule{
		"no prefix":            {Action: Block},
		"every IPv4 address":   block("0.0.0.0/0"),
		"every IPv6 address":   block("::/0"),
		"all of IPv4, as IPv6": {Prefix: netip.PrefixFrom(netip.MustParseAddr("::ffff:0.0.0.0"), 90), Action: Block},
		"no action":            {Prefix: p},
		"unknown action":       {Prefix: p, Action: 9},
		"a limit of nothing":   {Prefix: p, Action: RateLimit},
		"a limit too high":     {Prefix: p, Action: RateLimit, PacketsPerSecond: MaxPacketsPerSecond + 1},
		"a block with a rate":  {Prefix: p, Action: Block, PacketsPerSecond: 1},
	} {
		require.ErrorIs(t, d.Add([]Rule{block("198.51.100.0/24"), r}), ErrRule, name)
		require.Zero(t, d.Blocked(), name)
	}
}

func TestAFullBlockListChangesNothing(t *testing.T) {
	d := load(t, Config{MaxBlocked: 2})
	require.NoError(t, d.Add([]Rule{block("192.0.2.1/32"), block("192.0.2.2/32")}))
	require.ErrorIs(t, d.Add([]Rule{block("192.0.2.3/32")}), ErrFull)
	require.ErrorIs(t, d.Add([]Rule{block("2001:db8::/32")}), ErrFull)
	require.NoError(t, d.Add([]Rule{block("192.0.2.1/32")}), "replacing is possible")
	again := []Rule{block("192.0.2.1/32"), block("192.0.2.2/32"), block("192.0.2.2/32")}
	require.NoError(t, d.Clear())
	require.NoError(t, d.Add(again), "repeated ones count once")
	require.Equal(t, 2, d.Blocked())
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "192.0.2.3:1", "198.51.100.1:2")))
}

func TestRepeatedAndUnknownPrefixes(t *testing.T) {
	d := load(t, Config{})
	require.NoError(t, d.Add([]Rule{block("192.0.2.1/32"), block("192.0.2.1/32"), block("10.0.0.0/8"), block("10.1.2.3/8")}))
	require.Equal(t, 2, d.Blocked())
	require.NoError(t, d.Remove(prefixes("192.0.2.1/32", "192.0.2.1/32", "192.0.2.9/32", "10.0.0.0/8", "10.0.0.0/8", "11.0.0.0/8", "2001:db8::1/128")))
	require.Zero(t, d.Blocked())
	require.NoError(t, d.Add(nil))
	require.NoError(t, d.Remove(nil))
}

func TestClearRemovesAllRules(t *testing.T) {
	d := load(t, Config{})
	require.NoError(t, d.Add([]Rule{block("192.0.2.1/32"), block("10.0.0.0/8"), block("2001:db8::1/128"), block("2001:db9::/32")}))
	require.NoError(t, d.Clear())
	require.Zero(t, d.Blocked())
	for _, src := range []string{"192.0.2.1:1", "10.0.0.1:1"} {
		require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, src, "198.51.100.1:2")))
	}
	// The maps are empty, not only switched off.
	require.NoError(t, d.Add([]Rule{block("192.0.2.7/32"), block("12.0.0.0/8"), block("2001:db8::7/128"), block("2002:db9::/32")}))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "192.0.2.1:1", "198.51.100.1:2")))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "10.0.0.1:1", "198.51.100.1:2")))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "[2001:db8::1]:1", "[2001:dba::1]:2")))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "[2001:db9::1]:1", "[2001:dba::1]:2")))
}

// million returns a million rules, every tenth of them IPv6.
func million(n int) []Rule {
	rules := make([]Rule, n)
	for i := range rules {
		if i%10 == 9 {
			a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
			binary.BigEndian.PutUint32(a[12:], uint32(i))
			rules[i] = Rule{Prefix: netip.PrefixFrom(netip.AddrFrom16(a), 128), Action: Block}
			continue
		}
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24+uint32(i))
		rules[i] = Rule{Prefix: netip.PrefixFrom(netip.AddrFrom4(a), 32), Action: Block}
	}
	return rules
}

func TestAMillionAddressesAreLoadedWithinTenSeconds(t *testing.T) {
	d := load(t, Config{MaxBlocked: 1 << 20})
	n := 1_000_000
	if raceEnabled {
		n /= 10 // the detector costs more than the maps; "make test" also runs this package without it
	}
	rules := million(n)
	start := time.Now()
	require.NoError(t, d.Add(rules))
	took := time.Since(start)
	t.Logf("%d addresses in %.2f s", n, took.Seconds())
	require.Less(t, took, 10*time.Second)
	require.Equal(t, n, d.Blocked())
	require.EqualValues(t, tcShot, run(t, d, ingress, udp(t, "10.0.0.1:1", "198.51.100.1:2")))
	require.EqualValues(t, tcNext, run(t, d, ingress, udp(t, "11.0.0.0:1", "198.51.100.1:2")))
	start = time.Now()
	require.NoError(t, d.Clear())
	t.Logf("and gone in %.2f s", time.Since(start).Seconds())
	require.Zero(t, d.Blocked())
}

// BenchmarkVerdict is the cost of a frame that no rule concerns, by what the block list
// holds, and of one that is dropped.
func BenchmarkVerdict(b *testing.B) {
	d := load(b, Config{MaxBlocked: 1 << 21, Policy: Policy{Kernel: []Class{{}}}})
	free, blocked := udp(b, "198.51.100.9:1", "198.51.100.1:2"), udp(b, "10.0.0.1:1", "198.51.100.1:2")
	measure := func(name, prog string, frame []byte) {
		b.Run(name+"/"+prog, func(b *testing.B) {
			d.mu.Lock()
			p, err := d.program(prog, 0, 0)
			d.mu.Unlock()
			require.NoError(b, err)
			const repeat = 100_000
			var sum time.Duration
			for b.Loop() {
				_, took, err := p.Benchmark(frame, repeat, nil)
				require.NoError(b, err)
				sum += took
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/frame")
		})
	}
	both := func(name string, frame []byte) {
		measure(name, ingress, frame)
		measure(name, divert, frame)
	}
	both("empty", free)
	require.NoError(b, d.Add(million(1000)))
	both("1k-hosts", free)
	require.NoError(b, d.Add(million(1_000_000)))
	both("1M-hosts", free)
	both("1M-hosts-dropped", blocked)
	require.NoError(b, d.Add([]Rule{block("203.0.113.0/24")}))
	both("1M-hosts-and-a-network", free)
	require.NoError(b, d.Clear())
	both("cleared", free)
}

// BenchmarkSnapshot is the cost of a frame that is mirrored, by the bytes taken of it.
func BenchmarkSnapshot(b *testing.B) {
	for _, snap := range []int{64, 128, 256} {
		d := load(b, Config{SnapLen: snap, RingBytes: 64 << 20})
		f := append(udp(b, "198.51.100.9:1", "198.51.100.1:2"), make([]byte, 1400)...)
		for _, prog := range []string{ingress, mirror} {
			b.Run(fmt.Sprintf("%d/%s", snap, prog), func(b *testing.B) {
				run(b, d, prog, f) // loads it
				d.mu.Lock()
				p, err := d.program(prog, 0, 0)
				d.mu.Unlock()
				require.NoError(b, err)
				const repeat = 100_000 // fits into the ring
				var sum time.Duration
				for b.Loop() {
					_, took, err := p.Benchmark(f, repeat, nil)
					require.NoError(b, err)
					sum += took
					b.StopTimer()
					for _, m := range d.Rings() {
						skipRing(b, m)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/frame")
				require.Zero(b, count(b, d).RingFull.Frames)
			})
		}
	}
}
