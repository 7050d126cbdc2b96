package afxdp

import (
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// drops are frames that the kernel could not put on a receive ring, and frames that
// it could not send for a peer.
type drops struct {
	rxDropped, ringFull, fillEmpty, invalid uint64
	txInvalid                               uint64
	// emptied counts how often a zero-copy driver found the fill ring empty. Those are
	// not frames: what the device then drops only the device counts.
	emptied uint64
}

// readDrops brings s.dropped up to date. The kernel counts a frame that found no
// buffer both as dropped and as fill ring empty; here it is only the latter.
func (s *Source) readDrops() {
	var d drops
	for _, q := range s.queues {
		var dropped, empty uint64
		for i, k := range q.sockets {
			st := k.kernelStats()
			if i == 0 {
				// What concerns the fill ring is the same for all sockets of a queue.
				d.invalid += st.Rx_invalid_descs
				empty = st.Rx_fill_ring_empty_descs
			}
			dropped += st.Rx_dropped
			d.ringFull += st.Rx_ring_full
			d.txInvalid += st.Tx_invalid_descs
			if k.zero {
				d.emptied += empty
				empty = 0
			}
		}
		empty = min(empty, dropped)
		d.fillEmpty += empty
		d.rxDropped += dropped - empty
	}
	o := &s.dropped
	o.rxDropped = max(o.rxDropped, d.rxDropped)
	o.ringFull = max(o.ringFull, d.ringFull)
	o.fillEmpty = max(o.fillEmpty, d.fillEmpty)
	o.invalid = max(o.invalid, d.invalid)
	o.txInvalid = max(o.txInvalid, d.txInvalid)
	o.emptied = max(o.emptied, d.emptied)
}

// Stats implements source.Source. Dropped has, if not 0: rx_ring_full (the pipeline is
// slower than the traffic), fill_ring_empty (no buffer was free), rx_dropped (too
// long for the buffers, or the socket was not ready), rx_invalid, unread (received, but
// the source was closed), peer_tx_dropped (delivered, but not sent to the peer).
func (s *Source) Stats() source.Stats {
	s.readDrops()
	st := source.Stats{Frames: s.frameCount, Bytes: s.byteCount, Dropped: make(map[string]uint64)}
	for name, n := range map[string]uint64{
		"rx_ring_full":    s.dropped.ringFull,
		"fill_ring_empty": s.dropped.fillEmpty,
		"rx_dropped":      s.dropped.rxDropped,
		"rx_invalid":      s.dropped.invalid + s.invalid,
		"unread":          s.unread,
		"peer_tx_dropped": s.txDropped + s.dropped.txInvalid,
	} {
		if n > 0 {
			st.Dropped[name] = n
		}
	}
	if s.badTimes > 0 {
		st.Repaired = map[string]uint64{"bad_timestamp": s.badTimes}
	}
	return st
}

// Status says what a socket got from the kernel and the driver.
type Status struct {
	Interface   string
	Queue       int
	Socket      int // within the queue
	Mode        Mode
	MultiBuffer bool
	NeedWakeup  bool
	FrameSize   int  // of one buffer
	HugePages   bool // buffers are in reserved huge pages
	// FillRingEmpty is how often a zero-copy driver found no buffer for the queue; the
	// device counts the frames that it lost.
	FillRingEmpty uint64
}

// Mode returns what the sockets of the port got; those of a peer may differ in generic
// or not.
func (s *Source) Mode() Mode {
	if status := s.Status(); len(status) > 0 {
		return status[0].Mode
	}
	return s.cfg.Mode
}

// Status returns what each socket got. Whether copy mode is generic depends on how
// the XDP program is attached now.
func (s *Source) Status() []Status {
	var all []Status
	for _, p := range s.ports {
		if s.links != nil {
			if l, err := s.links.LinkByIndex(p.index); err == nil {
				p.generic = genericXDP(l.Attrs())
			}
		}
		for _, q := range p.queues {
			for i, k := range q.sockets {
				st := Status{
					Interface: p.name, Queue: q.id, Socket: i, Mode: ModeCopy,
					MultiBuffer: s.got.flags&unix.XDP_USE_SG != 0,
					NeedWakeup:  s.got.flags&unix.XDP_USE_NEED_WAKEUP != 0,
					FrameSize:   s.chunk, HugePages: s.huge,
				}
				switch {
				case k.zero:
					st.Mode = ModeZeroCopy
					st.FillRingEmpty = k.kernelStats().Rx_fill_ring_empty_descs
				case p.generic:
					st.Mode = ModeGeneric
				}
				all = append(all, st)
			}
		}
	}
	return all
}

// Timed returns how many frames had a time of the device or of the XDP program, so that
// one can see whether Config.Timestamps is of use.
func (s *Source) Timed() uint64 { return s.timed }
