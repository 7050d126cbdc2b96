package netns_test

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/netns"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

func pair(t *testing.T) (a, b *netns.NS) {
	t.Helper()
	a, b = netns.Test(t), netns.Test(t)
	require.NoError(t, netns.Veth(netns.End{NS: a, Name: "a0"}, netns.End{NS: b, Name: "b0"}, 2, 0))
	return a, b
}

func TestNamespacesAreApartAndSilent(t *testing.T) {
	host, err := net.Interfaces()
	require.NoError(t, err)
	a, b := pair(t)
	again, err := net.Interfaces()
	require.NoError(t, err)
	require.Len(t, again, len(host), "the host has another interface")
	for _, n := range []*netns.NS{a, b} {
		list, err := n.Netlink().LinkList()
		require.NoError(t, err)
		require.Len(t, list, 2)
		addrs, err := n.Netlink().AddrList(list[1], 0)
		require.NoError(t, err)
		require.Empty(t, addrs)
	}
	ida, err := a.ID()
	require.NoError(t, err)
	idb, err := b.ID()
	require.NoError(t, err)
	require.NotEqual(t, ida, idb)
}

func TestFramesArriveAndAreWritten(t *testing.T) {
	a, b := pair(t)
	path := filepath.Join(t.TempDir(), "b0.pcap")
	sniffer, err := b.Sniff("b0", path)
	require.NoError(t, err)
	s, err := a.Sender("a0")
	require.NoError(t, err)
	defer s.Close()
	frames := make([][]byte, 200)
	for i := range frames {
		frames[i] = append(make([]byte, 12), append([]byte{0x88, 0xb5}, bytes.Repeat([]byte{byte(i)}, 1+i)...)...)
	}
	n, err := s.Send(frames)
	require.NoError(t, err)
	require.Equal(t, len(frames), n)
	_, err = s.Send([][]byte{make([]byte, 5000)})
	require.ErrorIs(t, err, netns.ErrSize)
	got, err := sniffer.Stop()
	require.NoError(t, err)
	require.EqualValues(t, len(frames), got)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), string(frames[199]))
}

func TestProcessesAndSocketsAreInside(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Addr("a0", netip.MustParsePrefix("10.1.0.1/24")))
	require.NoError(t, b.Addr("b0", netip.MustParsePrefix("10.1.0.2/24")))
	out, err := a.Output("cat", "/proc/self/net/dev")
	require.NoError(t, err)
	require.Contains(t, out, "a0:")

	var l net.Listener
	require.NoError(t, b.Do(func() (err error) { l, err = net.Listen("tcp4", "10.1.0.2:7"); return err }))
	defer l.Close()
	var c net.Conn
	require.NoError(t, a.Do(func() (err error) { c, err = net.DialTimeout("tcp4", "10.1.0.2:7", 5*time.Second); return err }))
	require.NoError(t, c.Close())
}

func TestOffloadsAreSwitched(t *testing.T) {
	a, _ := pair(t)
	path := testcap.Program(t, "ethtool")
	for _, on := range []bool{false, true} {
		require.NoError(t, a.Offload("a0", on))
		out, err := a.Output(path, "-k", "a0")
		require.NoError(t, err)
		want := map[bool]string{true: " on", false: " off"}[on]
		for _, f := range []string{"tcp-segmentation-offload:", "tx-udp-segmentation:", "generic-receive-offload:", "generic-segmentation-offload:"} {
			require.True(t, strings.Contains(out, f+want), "%s%s in\n%s", f, want, out)
		}
	}
}

func TestLinksOfAllKinds(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Bridge("br0", "a0"))
	require.NoError(t, b.Macvlan("mv0", "b0"))
	require.NoError(t, b.Rename("b0", "b1"))
	require.NoError(t, b.Down("b1"))
	require.NoError(t, b.Up("b1"))
	require.NoError(t, a.Tun("t0"))
	require.NoError(t, b.Remove("b1"))
	_, err := b.Link("mv0")
	require.Error(t, err, "a macvlan goes with its parent")
}

func TestWhatIsLeftIsFound(t *testing.T) {
	before, err := netns.BPF()
	if err != nil {
		testcap.Missing(t, "BPF objects cannot be listed: %v", err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "left_behind", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	left, err := netns.Gone(before, 0)
	require.NoError(t, err)
	require.Contains(t, strings.Join(left, "\n"), "left_behind")
	require.NoError(t, m.Close())
	_, err = netns.Gone(before, time.Second)
	require.NoError(t, err)
	now, err := netns.BPF()
	require.NoError(t, err)
	require.NotContains(t, strings.Join(now.Since(before), "\n"), "left_behind")
}
