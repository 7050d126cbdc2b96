package model

import (
	"errors"
	"io"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/mlx5/poll"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// Source feeds a CPU pipeline with what goes through a Port: frames of another source, or of
// Traffic, are received into the port's queues and polled from there. The port is the
// source's alone. Frames that are not Ethernet are dropped. With one queue the order stays, with
// several it is that of the frames' times within what the queues hold at once.
type Source struct {
	*poll.Source
	port    *Port
	in      source.Source
	batch   source.Batch
	n, next int
	foreign uint64
}

const feedBatch = 256

// NewSource returns a source of in's frames. Closing it closes in.
func NewSource(port *Port, in source.Source) (*Source, error) {
	s := &Source{port: port, in: in, batch: source.Batch{Frames: make([]source.Frame, feedBatch)}}
	c := poll.SourceConfig{Feed: s.feed}
	for i := range port.Queues() {
		p, err := poll.New(poll.Config{Queue: port.Memory(i), Clock: port.cfg.Clock, Flush: port.Flush})
		if err != nil {
			return nil, err
		}
		c.Pollers, c.Ports = append(c.Pollers, p), append(c.Ports, port.Modifier(i))
	}
	var err error
	s.Source, err = poll.NewSource(c)
	return s, err
}

// feed lets the port receive as many frames as every queue can take.
func (s *Source) feed() error {
	late := len(s.port.pending) > 0
	s.port.Tick()
	if s.next == s.n {
		n, err := s.in.Next(&s.batch)
		if errors.Is(err, io.EOF) && late {
			return nil // until late writes have landed and been polled
		}
		if err != nil {
			return err
		}
		s.n, s.next = n, 0
	}
	room := s.n - s.next
	for i := range s.port.Queues() {
		if rq, _ := s.port.State(i); rq == mlx5.StateRDY {
			room = min(room, s.port.Credit(i))
		}
	}
	for range room {
		f := &s.batch.Frames[s.next]
		s.next++
		if f.LinkType != packet.LinkEthernet {
			s.foreign++
			continue
		}
		s.port.Inject(f.Data, Meta{TimestampNs: f.TimestampNs})
	}
	return nil
}

// Stats implements source.Source: the frames that came out, and what was lost on the way.
func (s *Source) Stats() source.Stats {
	st := s.Source.Stats()
	add := func(reason string, n uint64) {
		if n > 0 {
			st.Dropped[reason] += n
		}
	}
	for reason, n := range s.in.Stats().Dropped {
		add(reason, n)
	}
	add("not_ethernet", s.foreign)
	for i := range s.port.Queues() {
		c := &s.port.queues[i].count
		add("rx_out_of_buffer", c.OutOfBuffer)
		add("rx_discarded", c.Discarded)
		add("rx_link_down", c.LinkDown)
	}
	return st
}

// Interrupt implements source.Source.
func (s *Source) Interrupt() {
	s.Source.Interrupt()
	s.in.Interrupt()
}

// Close implements source.Source.
func (s *Source) Close() error { return errors.Join(s.Source.Close(), s.in.Close()) }
