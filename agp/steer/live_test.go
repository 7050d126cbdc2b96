package steer

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Frames are judged while everything changes; nothing is lost from the account.
func TestChangesWhileFramesAreJudged(t *testing.T) {
	d := load(t, Config{PerQueue: 4, Sockets: 8})
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	for _, p := range []string{ingress, divert} { // loads them
		run(t, d, p, f)
	}
	d.mu.Lock()
	programs := d.programs
	d.mu.Unlock()
	stop := make(chan struct{})
	var changers, senders sync.WaitGroup
	for i, change := range []func(i int) error{
		func(i int) error { return d.SetPolicy(Policy{SampleN: uint32(i % 3), IPOnly: i%2 == 0}) },
		func(i int) error {
			table := make([]uint32, DefaultIndirection)
			for j := range table {
				table[j] = uint32((i + j) % 4)
			}
			return d.SetIndirection(table)
		},
		func(i int) error { return d.Add([]Rule{block(fmt.Sprintf("192.0.2.%d/32", i%200))}) },
		func(int) error { return d.Clear() },
		func(int) error { d.Blocked(); _, err := d.Counters(); return err },
	} {
		changers.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
					assert.NoError(t, change(n))
				}
			}
		})
	}
	const each = 2000
	for _, p := range programs {
		senders.Go(func() {
			for range each {
				_, _, err := p.Test(f)
				assert.NoError(t, err)
			}
		})
	}
	senders.Wait()
	close(stop)
	changers.Wait()
	n := count(t, d)
	require.EqualValues(t, 2+len(programs)*each, n.Seen().Frames)
	require.EqualValues(t, n.Seen().Frames, n.Pass.Frames+n.Blocked.Frames)
}

func TestCountersNeverFall(t *testing.T) {
	d := load(t, Config{})
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	var before uint64
	for i := range 20 {
		run(t, d, ingress, f)
		require.NoError(t, d.SetPolicy(Policy{}))
		now := count(t, d).Seen().Frames
		require.EqualValues(t, i+1, now)
		require.Greater(t, now, before)
		before = now
	}
}

// What drivers answer, which no driver here does.
func TestWhatADriverRefusesHasAName(t *testing.T) {
	dev := func(mtu int) *iface {
		return &iface{Link: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: mtu}}}
	}
	for _, c := range []struct {
		mtu   int
		err   error
		flags link.XDPAttachFlags
		want  error
	}{
		{1500, unix.EOPNOTSUPP, link.XDPDriverMode, ErrNoDriverXDP},
		{9000, unix.EINVAL, link.XDPDriverMode, ErrMTU},
		{9000, unix.EOPNOTSUPP, link.XDPDriverMode, ErrMTU},
		{1500, unix.ERANGE, link.XDPDriverMode, ErrMTU},
		{1500, unix.EINVAL, link.XDPDriverMode, unix.EINVAL},
		{9000, unix.ENOMEM, link.XDPGenericMode, unix.ENOMEM},
		{9000, &PermissionError{Capability: "CAP_NET_ADMIN", Err: unix.EPERM}, link.XDPDriverMode, ErrPermission},
	} {
		got := dev(c.mtu).xdpError(fmt.Errorf("attaching: %w", c.err), c.flags)
		require.ErrorIs(t, got, c.want)
		require.ErrorIs(t, got, c.err, "the cause is kept")
	}
	require.ErrorContains(t, &PermissionError{Capability: "CAP_BPF", Err: unix.EPERM}, "CAP_BPF")
	require.ErrorIs(t, &UnsupportedError{Feature: "tcx", Err: unix.EINVAL}, ErrUnsupported)
	require.ErrorContains(t, &AttachedError{ID: 7, Name: "fence"}, `id 7, name "fence"`)
}
