package port

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inNetns puts the test into a network namespace of its own, which vanishes with it.
// The test stays on its thread, and the thread is not used again.
func inNetns(t *testing.T) {
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
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
}

// addVeth makes a pair of interfaces with this many queues each, both up.
func addVeth(t *testing.T, name, peer string, queues int) netlink.Link {
	t.Helper()
	a := netlink.NewLinkAttrs()
	a.Name, a.NumTxQueues, a.NumRxQueues = name, queues, queues
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: a, PeerName: peer, PeerNumTxQueues: uint32(queues), PeerNumRxQueues: uint32(queues),
	}))
	for _, n := range []string{peer, name} {
		l, err := netlink.LinkByName(n)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
	}
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return l
}
