package port

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

func options(t *testing.T) Options {
	return Options{StateDir: t.TempDir(), LockDir: t.TempDir()}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

func TestVethChannelsAndPromiscuousAreAsBefore(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 4)
	o := options(t)
	p, err := Open("a", o)
	require.NoError(t, err)
	before, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, "veth", before.Driver)
	require.EqualValues(t, 4, before.MaxChannels.RX)
	require.True(t, before.Up)

	require.NoError(t, p.Apply(Settings{Channels: 2, Promiscuous: true}))
	require.Len(t, files(t, o.StateDir), 1)
	now, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, 2, now.Channels.Receive())
	l, err := netlink.LinkByName("a")
	require.NoError(t, err)
	require.Equal(t, 1, l.Attrs().Promisc)

	rep, err := p.Close()
	require.NoError(t, err)
	require.Equal(t, []string{"channels"}, rep.Restored)
	require.Empty(t, files(t, o.StateDir))
	require.Empty(t, files(t, o.LockDir))
	l, err = netlink.LinkByName("a")
	require.NoError(t, err)
	require.Zero(t, l.Attrs().Promisc)

	p, err = Open("a", o)
	require.NoError(t, err)
	after, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = p.Close()
	require.NoError(t, err)
	_, err = p.Close()
	require.NoError(t, err, "closing twice")
	require.ErrorIs(t, p.Apply(Settings{}), ErrClosed)
}

func TestQueueCountLargerThanTheInterfaceHas(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 2)
	o := options(t)
	p, err := Open("a", o)
	require.NoError(t, err)
	defer p.Close()
	err = p.Apply(Settings{Channels: 3})
	require.ErrorIs(t, err, ErrLimit)
	require.EqualError(t, err, "a: 3 receive queues, but the interface has at most 2")
	require.Empty(t, files(t, o.StateDir), "nothing was changed")
}

func TestDriverWithoutRSSOrRules(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 2)
	p, err := Open("a", options(t))
	require.NoError(t, err)
	defer p.Close()
	for _, s := range []Settings{
		{RSSKey: []byte{0x6d, 0x5a}},
		{Indirection: []uint32{0}},
		{RXRing: 1024},
		{HashFields: map[ethtool.FlowType]uint64{ethtool.UDP4: ethtool.HashSrc}},
		{Rules: []ethtool.Rule{{Flow: ethtool.TCP4, DstPort: 80}}},
		{Features: map[string]bool{"no-such-switch": true}},
	} {
		err := p.Apply(s)
		require.ErrorIs(t, err, ErrNotSupported, "%+v", s)
		require.ErrorContains(t, err, "a: ")
	}
}

func TestTwoPluginsOnOnePort(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 1)
	o := options(t)
	p, err := Open("a", o)
	require.NoError(t, err)
	_, err = Open("a", o)
	require.ErrorIs(t, err, ErrBusy)
	require.EqualError(t, err, "a: port is in use by process "+strconv.Itoa(os.Getpid()))
	q, err := Open("b", o)
	require.NoError(t, err, "another port")
	_, err = q.Close()
	require.NoError(t, err)
	_, err = p.Close()
	require.NoError(t, err)
	p, err = Open("a", o)
	require.NoError(t, err, "the port is free again")
	_, err = p.Close()
	require.NoError(t, err)
}

func TestInterfaceMissing(t *testing.T) {
	inNetns(t)
	_, err := Open("nosuch", options(t))
	require.ErrorIs(t, err, ErrNoInterface)
	require.ErrorContains(t, err, "nosuch")
}

func TestAnErrorNamesTheInterfaceOnce(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 2)
	p, err := Open("a", options(t))
	require.NoError(t, err)
	defer p.Close()
	require.EqualError(t, p.Apply(Settings{RXRing: 1024}), "a: read rings: not supported by the driver")
	require.EqualError(t, p.Apply(Settings{Channels: 3}), "a: 3 receive queues, but the interface has at most 2")
	require.EqualError(t, p.Apply(Settings{Features: map[string]bool{"no-such": true}}), "a: feature/no-such: not supported by the driver")
}

func TestLookTakesNothing(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 2)
	p, err := Open("a", options(t))
	require.NoError(t, err)
	defer p.Close()
	want, err := p.Info()
	require.NoError(t, err)
	got, err := Look("a")
	require.NoError(t, err, "although the port is held")
	require.Equal(t, want, got)
	_, err = Look("nosuch")
	require.ErrorIs(t, err, ErrNoInterface)
}

func TestInterfaceRemovedWhileApplied(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 2)
	o := options(t)
	p, err := Open("a", o)
	require.NoError(t, err)
	require.NoError(t, p.Apply(Settings{Channels: 1, Promiscuous: true}))
	require.NoError(t, netlink.LinkDel(l))
	require.ErrorIs(t, p.Apply(Settings{Channels: 2}), ErrNoInterface)
	_, err = p.Info()
	require.ErrorIs(t, err, ErrNoInterface)
	rep, err := p.Close()
	require.NoError(t, err)
	require.True(t, rep.Absent)
	require.Empty(t, files(t, o.StateDir), "a virtual interface cannot come back")
}

// A virtual interface keeps its settings in the namespace that it is moved to.
func TestInterfaceMovedToAnotherNamespaceAndBackIsPutBack(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 2)
	here, err := netns.Get()
	require.NoError(t, err)
	defer here.Close()
	there, err := netns.New() // the thread is in it now
	require.NoError(t, err)
	defer there.Close()
	require.NoError(t, netns.Set(here))
	o := options(t)
	p, err := Open("a", o)
	require.NoError(t, err)
	events, err := p.Watch(t.Context())
	require.NoError(t, err)
	next(t, events, Up)
	before, err := p.Info()
	require.NoError(t, err)
	const feature = "rx-vlan-hw-parse"
	require.True(t, before.Features[feature].Active)
	require.NoError(t, p.Apply(Settings{Channels: 1, Features: map[string]bool{feature: false}}))

	require.NoError(t, netlink.LinkSetNsFd(l, int(there)))
	for e := range events {
		if e.Kind == Gone {
			break
		}
	}
	rep, err := p.Close()
	require.NoError(t, err)
	require.True(t, rep.Absent)
	reps, err := RestoreAll(o.StateDir)
	require.NoError(t, err)
	require.Len(t, reps, 1)
	require.True(t, reps[0].Absent)
	require.Len(t, journals(t, o.StateDir), 1, "it can come back")

	require.NoError(t, netns.Set(there))
	require.NoError(t, netlink.LinkSetNsFd(l, int(here)))
	require.NoError(t, netns.Set(here))
	reps, err = RestoreAll(o.StateDir)
	require.NoError(t, err)
	require.Equal(t, []Report{{Interface: "a", Restored: []string{"channels", "feature/" + feature}}}, reps)
	require.Empty(t, journals(t, o.StateDir))
	p, err = Open("a", o)
	require.NoError(t, err)
	defer p.Close()
	after, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, before.Channels, after.Channels)
	require.Equal(t, before.Features, after.Features)
}

func TestInterfaceRenamedWhileApplied(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 2)
	o := options(t)
	p, err := Open("a", o)
	require.NoError(t, err)
	require.NoError(t, p.Apply(Settings{Channels: 1}))
	require.NoError(t, netlink.LinkSetDown(l))
	require.NoError(t, netlink.LinkSetName(l, "c"))
	rep, err := p.Close()
	require.NoError(t, err)
	require.Equal(t, []string{"channels"}, rep.Restored)
	q, err := Open("c", o)
	require.NoError(t, err)
	i, err := q.Info()
	require.NoError(t, err)
	require.Equal(t, 2, i.Channels.Receive())
	_, err = q.Close()
	require.NoError(t, err)
}

// The process ends without a word: the kernel drops its lock and its sockets.
func vanish(p *Port) {
	p.lock.f.Close()
	p.lock.name.Close()
	if p.promisc != nil {
		p.promisc.Close()
	}
	p.k.Close()
}

func TestRestoreAllAfterACrash(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 4)
	o := options(t)
	for _, name := range []string{"a", "b"} {
		p, err := Open(name, o)
		require.NoError(t, err)
		require.NoError(t, p.Apply(Settings{Channels: 3, Promiscuous: true}))
		if name == "a" {
			vanish(p)
		} else {
			defer p.Close()
		}
	}
	reps, err := RestoreAll(o.StateDir)
	require.NoError(t, err)
	require.Len(t, reps, 2)
	slices.SortFunc(reps, func(a, b Report) int { return strings.Compare(a.Interface, b.Interface) })
	require.Equal(t, Report{Interface: "a", Restored: []string{"channels"}}, reps[0])
	require.ErrorIs(t, reps[1].Busy, ErrBusy, "b has an owner that lives")
	require.Len(t, files(t, o.StateDir), 1)

	p, err := Open("a", o)
	require.NoError(t, err)
	i, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, 4, i.Channels.Receive())
	require.NoError(t, p.Apply(Settings{Channels: 1}))
	vanish(p)
	p, err = Open("a", o)
	require.NoError(t, err)
	require.Equal(t, []Report{{Interface: "a", Restored: []string{"channels"}}}, p.Recovered)
	_, err = p.Close()
	require.NoError(t, err)

	reps, err = RestoreAll(t.TempDir() + "/none")
	require.NoError(t, err)
	require.Empty(t, reps)
}

func TestNoPrivilegeLive(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 2)
	o := options(t)
	// Capabilities belong to the thread, which ends with the test.
	var none [2]unix.CapUserData
	require.NoError(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
	p, err := Open("a", o)
	require.NoError(t, err)
	_, err = p.Info()
	require.NoError(t, err)
	err = p.Apply(Settings{Channels: 1})
	require.ErrorIs(t, err, ErrPermission)
	require.ErrorContains(t, err, "CAP_NET_ADMIN")
	err = p.Apply(Settings{Promiscuous: true})
	require.ErrorIs(t, err, ErrPermission)
	require.ErrorContains(t, err, "CAP_NET_RAW")
	require.Empty(t, journals(t, o.StateDir))
	_, err = p.Close()
	require.NoError(t, err)
}
