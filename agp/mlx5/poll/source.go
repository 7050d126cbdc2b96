package poll

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// How long Next of a Source sleeps while its queues are empty, at a time and in all.
const (
	shortPause = 20 * time.Microsecond
	longPause  = time.Millisecond
	waitMax    = 10 * time.Millisecond
)

const (
	addresses = 12 // bytes before the type of an Ethernet frame
	etherVLAN = 0x8100
)

// SourceConfig of a Source.
type SourceConfig struct {
	Pollers []*Poller
	// Ports resets the poller's queue when it needs that; nil: Next returns the error.
	Ports []Modifier
	// Feed, if set, is called when all queues are empty, to have something written into
	// them. io.EOF ends the input. If nil, Next waits for a port.
	Feed func() error
}

// Source is a source.Source over queues. Frames are copied into the batch, tags that the port
// took out are put back. With several queues, what one call returns is ordered by time; ticks
// are left out.
type Source struct {
	cfg     SourceConfig
	packets []Packet
	stop    atomic.Bool
	stats   source.Stats
}

// NewSource returns a source over queues.
func NewSource(cfg SourceConfig) (*Source, error) {
	if len(cfg.Pollers) == 0 || cfg.Ports != nil && len(cfg.Ports) != len(cfg.Pollers) {
		return nil, fmt.Errorf("%w: %d pollers for %d ports", ErrConfig, len(cfg.Pollers), len(cfg.Ports))
	}
	return &Source{cfg: cfg, packets: make([]Packet, 0, MaxBatch)}, nil
}

// Next implements source.Source.
func (s *Source) Next(b *source.Batch) (int, error) {
	frames := b.Frames[:0]
	b.Buf = b.Buf[:0]
	pause, waited := shortPause, time.Duration(0)
	for !s.stop.Load() {
		var err error
		if frames, err = s.poll(b, frames); err != nil && len(frames) == 0 {
			return 0, err
		}
		if len(frames) > 0 {
			return len(frames), nil
		}
		if s.cfg.Feed != nil {
			if err := s.cfg.Feed(); err != nil {
				return 0, err
			}
			continue
		}
		if waited >= waitMax {
			return 0, nil
		}
		time.Sleep(pause)
		waited += pause
		pause = min(2*pause, longPause)
	}
	return 0, io.EOF
}

// poll appends what all queues hold, as far as there is room.
func (s *Source) poll(b *source.Batch, frames []source.Frame) ([]source.Frame, error) {
	var failed error
	for i, p := range s.cfg.Pollers {
		for len(frames) < cap(frames) {
			list, err := p.Poll(s.packets[:0:min(cap(s.packets), cap(frames)-len(frames))])
			for j := range list {
				if !list[j].Tick {
					frames = append(frames, s.copy(b, &list[j], uint32(i)))
				}
			}
			p.Release()
			if errors.Is(err, ErrReset) && s.cfg.Ports != nil {
				err = p.Reset(s.cfg.Ports[i])
			}
			if err != nil {
				failed = err
				break
			}
			if len(list) == 0 {
				break
			}
		}
	}
	if len(s.cfg.Pollers) > 1 {
		slices.SortStableFunc(frames, func(a, b source.Frame) int {
			switch {
			case a.TimestampNs < b.TimestampNs:
				return -1
			case a.TimestampNs > b.TimestampNs:
				return 1
			}
			return 0
		})
	}
	return frames, failed
}

func (s *Source) copy(b *source.Batch, k *Packet, queue uint32) source.Frame {
	at := len(b.Buf)
	if k.TCI >= 0 && len(k.Data) >= addresses {
		b.Buf = append(b.Buf, k.Data[:addresses]...)
		b.Buf = binary.BigEndian.AppendUint16(b.Buf, etherVLAN)
		b.Buf = binary.BigEndian.AppendUint16(b.Buf, uint16(k.TCI))
		b.Buf = append(b.Buf, k.Data[addresses:]...)
	} else {
		b.Buf = append(b.Buf, k.Data...)
	}
	data := b.Buf[at:len(b.Buf):len(b.Buf)]
	s.stats.Frames++
	s.stats.Bytes += uint64(len(data))
	return source.Frame{
		Data: data, TimestampNs: k.TimestampNs, WireLen: max(k.WireLen, uint32(len(data))), LinkType: k.LinkType,
		SegmentSize: k.SegmentSize, Side: k.Side, Interface: queue,
	}
}

// Stats implements source.Source. Error CQEs are frames that were lost.
func (s *Source) Stats() source.Stats {
	st := s.stats
	st.Dropped = map[string]uint64{}
	for _, p := range s.cfg.Pollers {
		for syndrome, n := range p.count.Errors {
			if n > 0 {
				st.Dropped["rx_"+mlx5.Syndrome(syndrome).String()] += n
			}
		}
		if n := p.count.Skipped; n > 0 {
			st.Dropped["rx_reset"] += n
		}
	}
	return st
}

// Interrupt implements source.Source.
func (s *Source) Interrupt() { s.stop.Store(true) }

// Close implements source.Source. The queues' memory is the caller's.
func (s *Source) Close() error {
	s.stop.Store(true)
	return nil
}
