package port

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// next returns the next event, which has to be of this kind.
func next(t *testing.T, events <-chan Event, kind EventKind) Event {
	t.Helper()
	select {
	case e, ok := <-events:
		require.True(t, ok, "the channel is closed")
		require.Equal(t, kind.String(), e.Kind.String(), "%+v", e)
		return e
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no event", "waiting for %s", kind)
	}
	return Event{}
}

func TestWatchVeth(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 1)
	first := l.Attrs().Index
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Open("a", options(t))
	require.NoError(t, err)
	defer p.Close()
	events, err := p.Watch(ctx)
	require.NoError(t, err)
	e := next(t, events, Up)
	require.Equal(t, Event{Kind: Up, IfIndex: first, Name: "a", MTU: l.Attrs().MTU, Up: true}, e)

	require.NoError(t, vnetlink.LinkSetMTU(l, 1400))
	require.Equal(t, 1400, next(t, events, MTU).MTU)
	require.NoError(t, vnetlink.LinkSetDown(l))
	require.False(t, next(t, events, Down).Up)
	require.NoError(t, vnetlink.LinkSetName(l, "c"))
	require.Equal(t, "c", next(t, events, Renamed).Name)
	require.NoError(t, vnetlink.LinkSetUp(l))
	next(t, events, Up)

	// The carrier goes with the peer.
	peer, err := vnetlink.LinkByName("b")
	require.NoError(t, err)
	require.NoError(t, vnetlink.LinkSetDown(peer))
	next(t, events, Down)
	require.NoError(t, vnetlink.LinkSetUp(peer))
	next(t, events, Up)

	// A bridge says of its ports that they are deleted when they leave it.
	br := &vnetlink.Bridge{LinkAttrs: vnetlink.LinkAttrs{Name: "br"}}
	if err := vnetlink.LinkAdd(br); errors.Is(err, unix.EOPNOTSUPP) {
		t.Log("no bridges here")
	} else {
		require.NoError(t, err)
		require.NoError(t, vnetlink.LinkSetMaster(l, br))
		require.NoError(t, vnetlink.LinkSetNoMaster(l))
		require.NoError(t, vnetlink.LinkSetMTU(l, 1300))
		next(t, events, MTU)
	}

	require.NoError(t, vnetlink.LinkDel(l))
	for {
		select {
		case e = <-events:
		case <-time.After(10 * time.Second):
			require.FailNow(t, "no event")
		}
		if e.Kind != Down { // some kernels say so first
			break
		}
	}
	require.Equal(t, Gone, e.Kind)
	require.Equal(t, first, e.IfIndex)
	addVeth(t, "x", "y", 1)
	a := vnetlink.NewLinkAttrs()
	a.Name = "a"
	require.NoError(t, vnetlink.LinkAdd(&vnetlink.Veth{LinkAttrs: a, PeerName: "b"}))
	e = next(t, events, Back)
	require.NotEqual(t, first, e.IfIndex)
	require.Equal(t, "a", e.Name)
	require.False(t, e.Up)

	cancel()
	for range events { //nolint:revive // until it is closed
	}
}

func TestWatchMissingInterface(t *testing.T) {
	inNetns(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := Watch(ctx, "a")
	require.NoError(t, err)
	next(t, events, Gone)
	l := addVeth(t, "a", "b", 1)
	require.Equal(t, l.Attrs().Index, next(t, events, Back).IfIndex)
}

// fakeLinks delivers messages and errors as a netlink socket does.
type fakeLinks struct {
	in     chan any // []linkMsg or error
	all    []linkState
	broken error
	closed chan struct{}
	cut    chan struct{}
}

type linkMsg struct {
	typ netlink.HeaderType
	linkState
	family byte
}

func newFakeLinks(all ...linkState) *fakeLinks {
	return &fakeLinks{in: make(chan any, 5000), all: all, closed: make(chan struct{}), cut: make(chan struct{})}
}

func (f *fakeLinks) dial() (linkConn, func() ([]linkState, error), func() error, error) {
	return f, func() ([]linkState, error) { return f.all, f.broken }, func() error { close(f.closed); return nil }, nil
}

func (f *fakeLinks) SetReadDeadline(time.Time) error { close(f.cut); return nil }
func (f *fakeLinks) Close() error                    { return nil }

func (f *fakeLinks) Receive() ([]netlink.Message, error) {
	var x any
	select {
	case x = <-f.in:
	case <-f.cut:
		return nil, errors.New("deadline")
	}
	switch x := x.(type) {
	case error:
		return nil, x
	case func():
		x()
		return nil, nil
	}
	var out []netlink.Message
	for _, m := range x.([]linkMsg) {
		out = append(out, netlink.Message{Header: netlink.Header{Type: m.typ}, Data: encodeLink(m)})
	}
	return out, nil
}

func encodeLink(m linkMsg) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = m.family
	binary.NativeEndian.PutUint32(b[4:], uint32(m.index))
	if m.up {
		binary.NativeEndian.PutUint32(b[8:], unix.IFF_UP|unix.IFF_RUNNING)
	}
	e := netlink.NewAttributeEncoder()
	e.String(unix.IFLA_IFNAME, m.name)
	e.Uint32(unix.IFLA_MTU, uint32(m.mtu))
	a, _ := e.Encode()
	return append(b, a...)
}

func TestWatchReadsAgainWhenTheKernelLostEvents(t *testing.T) {
	a := linkState{index: 3, name: "a", up: true, mtu: 1500}
	f := newFakeLinks(a)
	events, err := watch(t.Context(), "a", 3, f.dial, nil)
	require.NoError(t, err)
	next(t, events, Up)
	// It was removed and made again while the socket was full.
	f.in <- func() { f.all = []linkState{{index: 9, name: "a", mtu: 9000}} }
	f.in <- error(&netlink.OpError{Op: "receive", Err: unix.ENOBUFS})
	require.Equal(t, 3, next(t, events, Gone).IfIndex)
	e := next(t, events, Back)
	require.Equal(t, Event{Kind: Back, IfIndex: 9, Name: "a", MTU: 9000}, e)
	// Only some of it has changed.
	f.in <- func() { f.all = []linkState{{index: 2, name: "z"}, {index: 9, name: "q", mtu: 1500, up: true}} }
	f.in <- error(unix.ENOBUFS)
	next(t, events, Renamed)
	next(t, events, MTU)
	next(t, events, Up)
	// Nothing has.
	f.in <- error(unix.ENOBUFS)
	f.in <- []linkMsg{
		{unix.RTM_DELLINK, linkState{index: 9, name: "q"}, unix.AF_BRIDGE},
		{unix.RTM_NEWLINK, linkState{index: 9, name: "q", mtu: 1400, up: true}, 0},
	}
	next(t, events, MTU) // a bridge has let go of it, but it is there
	f.in <- []linkMsg{{unix.RTM_NEWLINK, linkState{index: 2, name: "a"}, 0},
		{unix.RTM_DELLINK, linkState{index: 9, name: "q"}, 0}}
	require.Equal(t, 9, next(t, events, Gone).IfIndex)
	// The watched name is taken by an interface that was there before.
	f.in <- []linkMsg{{unix.RTM_NEWLINK, linkState{index: 2, name: "a", up: true}, 0}}
	require.Equal(t, 2, next(t, events, Back).IfIndex)
}

func TestWatchThatFails(t *testing.T) {
	for _, in := range []struct {
		name   string
		err    error
		broken error
	}{
		{"socket", errors.New("torn cable"), nil},
		{"dump", unix.ENOBUFS, errors.New("no dump")},
	} {
		f := newFakeLinks(linkState{index: 3, name: "a"})
		events, err := watch(t.Context(), "a", 0, f.dial, nil)
		require.NoError(t, err)
		next(t, events, Down)
		f.in <- func() { f.broken = in.broken }
		f.in <- in.err
		e := next(t, events, Lost)
		require.Error(t, e.Err)
		_, open := <-events
		require.False(t, open)
		<-f.closed
	}
	f := newFakeLinks()
	f.broken = errors.New("no dump")
	_, err := watch(t.Context(), "a", 0, f.dial, nil)
	require.ErrorContains(t, err, "no dump")
	<-f.closed
}

// A reader that takes nothing blocks nobody, and then learns how it is.
func TestWatchWithAReaderThatFallsBehind(t *testing.T) {
	f := newFakeLinks(linkState{index: 3, name: "a", mtu: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := watch(ctx, "a", 0, f.dial, nil)
	require.NoError(t, err)
	const n = 4000
	for i := range n {
		f.in <- []linkMsg{{unix.RTM_NEWLINK, linkState{index: 3, name: "a", mtu: i + 2, up: i == n-1}, 0}}
	}
	done := make(chan struct{})
	f.in <- func() { close(done) }
	<-done
	last, count := Event{}, 0
	for last.MTU != n+1 || last.Kind != Up {
		select {
		case last = <-events:
			count++
		case <-time.After(10 * time.Second):
			require.FailNow(t, "the present state did not come", "%+v", last)
		}
	}
	require.True(t, last.Up)
	require.Less(t, count, n)
}

func TestWatchEndsWithItsContext(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		f := newFakeLinks(linkState{index: 3, name: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		events, err := watch(ctx, "a", 0, f.dial, nil)
		require.NoError(t, err)
		for i := range 10 { // nobody reads
			f.in <- []linkMsg{{unix.RTM_NEWLINK, linkState{index: 3, name: "a", mtu: i}, 0}}
		}
		cancel()
		<-f.closed
		for range events { //nolint:revive // until it is closed
		}
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 10*time.Second, time.Millisecond)
}

func FuzzLinkMessage(f *testing.F) {
	f.Add(encodeLink(linkMsg{linkState: linkState{index: 3, name: "a", up: true, mtu: 1500}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, ok := decodeLink(b)
		tr := &tracker{want: l.name, emit: func(e Event) { _ = fmt.Sprint(e) }}
		if ok {
			tr.seen(l)
			tr.gone(l.index, false)
		}
	})
}
