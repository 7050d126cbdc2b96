package afxdp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// sendBudget is how many frames the kernel sends per call in copy mode.
const sendBudget = 32

// pair makes what from receives go out on to. The same sockets are always paired, so
// that frames of a flow keep their order.
func (s *Source) pair(from, to *port) {
	for i, q := range from.queues {
		out := to.queues[i%len(to.queues)]
		for j, k := range q.sockets {
			k.peer = out.sockets[j]
		}
	}
}

// forward puts the frame at the head of k on the peer's transmit ring. It returns
// false, and counts the frame, if there is no room or the frame is longer than the
// peer's wire takes: a super-packet, which a driver would drop without a word.
func (s *Source) forward(k *socket) bool {
	tx := &k.peer.tx
	if int(k.frame) > k.peer.q.p.mtu+frameOverhead || tx.room(k.descs) < k.descs {
		s.txDropped++
		return false
	}
	for i := range k.descs {
		tx.push(*k.rx.at(i))
	}
	return true
}

// reap gives the buffers of frames that were sent back to their queues.
func (s *Source) reap() {
	if s.cfg.Peer == nil {
		return
	}
	found := false
	for _, q := range s.queues {
		n := q.done.look()
		if n == 0 {
			continue
		}
		for i := range n {
			s.recycle(*q.done.at(i))
		}
		q.done.skip(n)
		q.done.publish()
		found = true
	}
	if found {
		for _, q := range s.queues {
			q.fill.publish()
		}
	}
}

// send makes the kernel send what forward has put on transmit rings.
func (s *Source) send() error {
	if s.cfg.Peer == nil {
		return nil
	}
	for _, k := range s.sockets {
		k.tx.publish()
		n := k.tx.pending()
		if n == 0 || k.zero && s.got.flags&unix.XDP_USE_NEED_WAKEUP != 0 && !k.tx.needsWakeup() {
			continue
		}
		for range n/sendBudget + 1 {
			err := k.kick()
			switch {
			case errors.Is(err, unix.EAGAIN):
				continue // more to send than fits one call
			case errors.Is(err, unix.EBUSY):
				s.txDropped++ // the device's queue refused a frame
				continue
			case errors.Is(err, unix.ENXIO):
				return fmt.Errorf("%s: %w", k.q.p.name, ErrGone)
			}
			break // all sent, or not now: the interface is down or memory is short
		}
	}
	return nil
}

// unsent reports whether frames wait on transmit rings.
func (s *Source) unsent() bool {
	if s.cfg.Peer == nil {
		return false
	}
	for _, k := range s.sockets {
		if k.tx.pending() > 0 {
			return true
		}
	}
	return false
}

// abandon counts the frames that the kernel has not taken from transmit rings.
func (s *Source) abandon() {
	if s.cfg.Peer == nil {
		return
	}
	for _, k := range s.sockets {
		for n := k.tx.pending(); n > 0; n-- {
			if k.tx.at(-n).Options&unix.XDP_PKT_CONTD == 0 {
				s.txDropped++
			}
		}
	}
}
