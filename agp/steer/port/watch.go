package port

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// EventKind says what has happened to an interface.
type EventKind int

// Kinds of events.
const (
	Down    EventKind = iota // set down, or the carrier is lost
	Up                       // up, with a carrier
	Gone                     // removed, or moved to another network namespace
	Back                     // an interface of the watched name is there again, with another index
	Renamed                  // the same interface has another name
	MTU                      // the MTU has changed
	Lost                     // the watch has failed; Err says why; no event follows
)

func (k EventKind) String() string {
	return [...]string{"down", "up", "gone", "back", "renamed", "mtu", "lost"}[k]
}

// Event is a change of the watched interface.
type Event struct {
	Kind    EventKind
	IfIndex int    // of the interface; for Back the new one
	Name    string // its name now; for Gone the last one
	MTU     int    // bytes
	Up      bool   // up with a carrier, after the event
	Err     error  // for Lost
}

// Watch reports what happens to the interface of this port from now on; see Watch.
func (p *Port) Watch(ctx context.Context) (<-chan Event, error) {
	left := make(chan struct{})
	var once sync.Once
	events, err := watch(ctx, p.link.Name, p.link.Index, dialLinks, func(moved bool) {
		once.Do(func() {
			p.moved.Store(moved)
			close(left)
		})
	})
	if err == nil {
		p.mu.Lock()
		p.left = left
		p.mu.Unlock()
	}
	return events, err
}

// Watch reports what happens to the interface of this name. The first event is Up, Down or Gone
// and says how it is now (Renamed may come before it). Then an interface is followed by its index, so a new name is
// Renamed; when it is gone, the next one of the watched name is Back. What happens
// between two looks is not lost: events of the kernel are read in order, and if
// it could not deliver some (ENOBUFS), all interfaces are read again and the difference is
// reported. The channel is closed when ctx ends or after Lost. Watch never waits for a
// reader: events that are not taken are kept, at most 1024; a reader that falls behind
// further is told the present state instead.
func Watch(ctx context.Context, name string) (<-chan Event, error) {
	return watch(ctx, name, 0, dialLinks, nil)
}

// linkState is what netlink says of one interface.
type linkState struct {
	index int
	name  string
	up    bool
	mtu   int
	moved bool // to another network namespace; in a message that it is gone
}

// linkConn delivers changes of interfaces; the real one is a netlink socket.
type linkConn interface {
	Receive() ([]netlink.Message, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// linkSource subscribes and reads all interfaces; tests have another.
type linkSource func() (events linkConn, all func() ([]linkState, error), close func() error, err error)

func dialLinks() (linkConn, func() ([]linkState, error), func() error, error) {
	events, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: unix.RTMGRP_LINK})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("watch interfaces: %w", err)
	}
	dump, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("watch interfaces: %w", err), events.Close())
	}
	all := func() ([]linkState, error) {
		// A dump that was interrupted by a change is not whole.
		for range 10 {
			m, err := dump.Execute(netlink.Message{
				Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
				Data:   make([]byte, unix.SizeofIfInfomsg),
			})
			if err != nil {
				return nil, fmt.Errorf("read interfaces: %w", err)
			}
			var out []linkState
			torn := false
			for _, x := range m {
				torn = torn || x.Header.Flags&netlink.DumpInterrupted != 0
				if l, ok := decodeLink(x.Data); ok {
					out = append(out, l)
				}
			}
			if !torn {
				return out, nil
			}
		}
		return nil, errors.New("read interfaces: they change too often")
	}
	return events, all, func() error { return errors.Join(events.Close(), dump.Close()) }, nil
}

// decodeLink reads an ifinfomsg with its attributes. It is not ok if it is damaged or
// speaks of a bridge port as the bridge sees it.
func decodeLink(b []byte) (l linkState, ok bool) {
	if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_UNSPEC {
		return l, false
	}
	l.index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	const both = unix.IFF_UP | unix.IFF_RUNNING
	l.up = binary.NativeEndian.Uint32(b[8:])&both == both
	ad, err := netlink.NewAttributeDecoder(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return l, false
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.name = ad.String()
		case unix.IFLA_MTU:
			l.mtu = int(ad.Uint32())
		case unix.IFLA_NEW_NETNSID:
			l.moved = true
		}
	}
	return l, ad.Err() == nil
}

// tracker turns states into events.
type tracker struct {
	want string    // the name that Back waits for
	now  linkState // index 0: gone
	emit func(Event)
	left func(moved bool) // the interface has left this namespace, or is not watched any more; nil: nobody asks
}

func (t *tracker) event(k EventKind) {
	t.emit(Event{Kind: k, IfIndex: t.now.index, Name: t.now.name, MTU: t.now.mtu, Up: t.now.up})
}

// seen is called with the present state of an interface.
func (t *tracker) seen(l linkState) {
	switch {
	case t.now.index == 0 && l.name == t.want:
		t.now = l
		t.event(Back)
	case t.now.index == 0 || l.index != t.now.index:
	default:
		was := t.now
		t.now = l
		if l.name != was.name {
			t.event(Renamed)
		}
		if l.mtu != was.mtu {
			t.event(MTU)
		}
		if l.up != was.up {
			if l.up {
				t.event(Up)
			} else {
				t.event(Down)
			}
		}
	}
}

// gone is called when an interface is no longer there; moved says that it is elsewhere.
func (t *tracker) gone(index int, moved bool) {
	if index != t.now.index || index == 0 {
		return
	}
	if t.left != nil {
		t.left(moved)
	}
	t.now.up = false
	t.event(Gone)
	t.now = linkState{}
}

// resync is called with all interfaces.
func (t *tracker) resync(all []linkState) {
	there := false
	for _, l := range all {
		if there = l.index == t.now.index; there {
			break
		}
	}
	if !there {
		t.gone(t.now.index, false)
	}
	for _, l := range all {
		t.seen(l)
	}
}

const maxEvents = 1024

func watch(ctx context.Context, name string, index int, dial linkSource, left func(moved bool)) (<-chan Event, error) {
	conn, all, closeAll, err := dial() // subscribed before the first look
	if err != nil {
		return nil, err
	}
	links, err := all()
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	events := make(chan Event, 1)
	queue := make(chan Event, maxEvents)
	t := &tracker{want: name, left: left}
	t.emit = func(e Event) {
		select {
		case queue <- e:
		default:
			// The reader is far behind: what it has not taken is no longer so.
			for {
				select {
				case <-queue:
					continue
				default:
				}
				break
			}
			queue <- e
		}
	}
	for _, l := range links {
		if l.index == index || index == 0 && l.name == name {
			t.now = l
		}
	}
	switch {
	case t.now.index == 0:
		t.now = linkState{index: index, name: name}
		if left != nil {
			left(false)
		}
		t.event(Gone)
		t.now = linkState{}
		// It may have come back under this name before the first look.
		t.resync(links)
	default:
		if t.now.name != name {
			t.event(Renamed)
		}
		if t.now.up {
			t.event(Up)
		} else {
			t.event(Down)
		}
	}

	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	go func() {
		defer close(queue)
		defer stop()
		err := t.run(conn, all)
		if left != nil {
			left(false)
		}
		if cerr := closeAll(); ctx.Err() == nil {
			t.emit(Event{Kind: Lost, IfIndex: t.now.index, Name: t.now.name, Err: errors.Join(err, cerr)})
		}
	}()
	go func() {
		defer close(events)
		for e := range queue {
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}

// run reads until that fails, as it does when the context ends.
func (t *tracker) run(conn linkConn, all func() ([]linkState, error)) error {
	for {
		messages, err := conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			links, err := all()
			if err != nil {
				return err
			}
			t.resync(links)
			continue
		}
		if err != nil {
			return fmt.Errorf("watch interfaces: %w", err)
		}
		for _, m := range messages {
			l, ok := decodeLink(m.Data)
			switch {
			case !ok:
			case m.Header.Type == unix.RTM_NEWLINK:
				t.seen(l)
			case m.Header.Type == unix.RTM_DELLINK:
				t.gone(l.index, l.moved)
			}
		}
	}
}
