package ethtool

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// veth makes a pair of interfaces with four queues in a network namespace that
// vanishes with the test, and returns one of them.
func veth(t *testing.T) (*Conn, *Device, netlink.Link) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	ns, err := netns.New()
	if err != nil {
		t.Skipf("no network namespaces: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	a := netlink.NewLinkAttrs()
	a.Name, a.NumTxQueues, a.NumRxQueues = "a", 4, 4
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "b", PeerNumRxQueues: 4, PeerNumTxQueues: 4}))
	l, err := netlink.LinkByName("a")
	require.NoError(t, err)
	c, err := Open()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, c.Device(l.Attrs().Index), l
}

func TestVeth(t *testing.T) {
	c, d, l := veth(t)
	name, err := d.Name()
	require.NoError(t, err)
	require.Equal(t, "a", name)
	drv, err := d.Driver()
	require.NoError(t, err)
	require.Equal(t, "veth", drv.Name)
	mac, err := d.PermanentAddress()
	require.NoError(t, err)
	require.Empty(t, mac)

	now, most, err := d.Channels()
	require.NoError(t, err)
	require.Equal(t, Channels{RX: 4, TX: 4}, most)
	now.RX = 2
	require.NoError(t, d.SetChannels(now))
	got, _, err := d.Channels()
	require.NoError(t, err)
	require.Equal(t, now, got)
	now.RX = 5
	require.ErrorIs(t, d.SetChannels(now), unix.EINVAL)

	f, err := d.Features()
	require.NoError(t, err)
	require.Contains(t, f, "tx-tcp-segmentation")
	require.False(t, f["rx-gro"].Fixed)
	want := !f["rx-gro"].Active
	require.NoError(t, d.SetFeature("rx-gro", want))
	f, err = d.Features()
	require.NoError(t, err)
	require.Equal(t, want, f["rx-gro"].Active)
	require.ErrorIs(t, d.SetFeature("nonsense", true), ErrNotSupported)
	require.True(t, f["netns-local"].Fixed || f["netns-immutable"].Fixed || len(f) > 20)

	// What veth has not.
	_, _, err = d.Rings()
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "a: read rings")
	require.ErrorIs(t, d.SetRings(Rings{RX: 1}), ErrNotSupported)
	for range 2 { // over netlink, then by ioctl
		_, err = d.RSS()
		require.ErrorIs(t, err, ErrNotSupported)
		require.ErrorContains(t, err, "a: ")
		require.ErrorIs(t, d.SetRSS(RSSChange{Indirection: []uint32{0}}), ErrNotSupported)
		require.Error(t, d.SetRSS(RSSChange{Key: []byte{0}}))
		c.ops = nil
	}
	_, err = d.HashFields(UDP4)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorIs(t, d.SetHashFields(UDP4, HashSrc), ErrNotSupported)
	_, _, err = d.Rules()
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorIs(t, d.InsertRule(Spec{}), ErrNotSupported)
	require.ErrorIs(t, d.DeleteRule(0), ErrNotSupported)

	// By index: the name may change at any time.
	require.NoError(t, netlink.LinkSetName(l, "z"))
	_, _, err = d.Channels()
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(l))
	_, _, err = d.Channels()
	require.ErrorIs(t, err, ErrNoDevice)
	_, err = d.RSS()
	require.ErrorIs(t, err, ErrNoDevice)
}

func TestOperationsAreProbed(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer c.Close()
	if c.genl == nil {
		t.Skip("the kernel has no ethtool netlink")
	}
	require.NotZero(t, c.family)
	require.True(t, c.ops[unix.ETHTOOL_MSG_CHANNELS_GET])
	get, set := c.NetlinkRSS()
	t.Logf("RSS over netlink: read %v, write %v", get, set)
	require.True(t, get || !set)
}

func TestNoCapability(t *testing.T) {
	_, d, _ := veth(t)
	// Capabilities belong to the thread, which ends with the test.
	var none [2]unix.CapUserData
	require.NoError(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
	now, _, err := d.Channels()
	require.NoError(t, err, "reading needs none")
	now.RX = 1
	for _, err := range []error{d.SetChannels(now), d.SetRings(Rings{}), d.SetFeature("rx-gro", false),
		d.SetRSS(RSSChange{Key: []byte{1}}), d.SetHashFields(UDP4, 0), d.DeleteRule(1)} {
		require.ErrorIs(t, err, ErrPermission)
		require.ErrorContains(t, err, "CAP_NET_ADMIN")
		require.ErrorContains(t, err, "a: ")
	}
}
