package place

import (
	"errors"
	"fmt"
)

// ErrNone says that a port can reach no memory that a GPU can read.
var ErrNone = errors.New("no memory that both the port and the GPU reach")

// Kind of memory for rings and payload. They are always of one kind: the port's writes to two
// kinds of memory are not ordered.
type Kind uint8

// Kinds, best first.
const (
	KindDMABuf Kind = iota + 1 // GPU memory, exported as a dmabuf
	KindPeer                   // GPU memory, by nvidia-peermem
	KindHost                   // pinned host memory, which the GPU reads across the bus
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindDMABuf:
		return "GPU memory (dmabuf)"
	case KindPeer:
		return "GPU memory (nvidia-peermem)"
	case KindHost:
		return "pinned host memory"
	}
	return "none"
}

// Doorbell says who tells the port of new send WQEs. Receiving needs none.
type Doorbell uint8

// Doorbells.
const (
	DoorbellNone   Doorbell = iota // nothing is sent
	DoorbellDirect                 // the GPU writes to the port
	DoorbellProxy                  // a host thread does, on the GPU's behalf
)

// Host makes the calls. Those that obtain something are undone by the function that they return.
type Host interface {
	// ExportDMABuf exports the GPU memory of a queue: cuMemGetHandleForAddressRange.
	ExportDMABuf() (fd int, undo func(), err error)
	// RegisterDMABuf registers a dmabuf with the port, with offsets in it instead of addresses:
	// mlx5dv_devx_umem_reg_ex for the rings, ibv_reg_dmabuf_mr for the payload.
	RegisterDMABuf(fd int) (undo func(), err error)
	// RegisterPeer registers GPU memory by its address: mlx5dv_devx_umem_reg, ibv_reg_mr.
	RegisterPeer() (undo func(), err error)
	// RegisterHost registers pinned host memory.
	RegisterHost() (undo func(), err error)
	// MapUAR lets the GPU write to the port's doorbell: cuMemHostRegister of I/O memory.
	MapUAR() (undo func(), err error)
}

// Plan is what was chosen and obtained.
type Plan struct {
	Memory   Kind
	Doorbell Doorbell
	// Refused are the reasons why nothing better was chosen, in the order of trying.
	Refused []error
	undo    []func()
}

// Close gives everything back, in reverse order. It may be called more than once.
func (p *Plan) Close() {
	for i := len(p.undo) - 1; i >= 0; i-- {
		p.undo[i]()
	}
	p.undo = nil
}

// Choose tries the kinds of memory from the best to the last, and, if something is to be sent,
// whether the GPU can reach the doorbell. If no memory will do it returns ErrNone with all reasons, and
// holds nothing.
func Choose(h Host, send bool) (*Plan, error) {
	p := &Plan{}
	for _, try := range []struct {
		kind Kind
		do   func() error
	}{
		{KindDMABuf, func() error { return p.dmabuf(h) }},
		{KindPeer, func() error { return p.keep(h.RegisterPeer()) }},
		{KindHost, func() error { return p.keep(h.RegisterHost()) }},
	} {
		err := try.do()
		if err == nil {
			p.Memory = try.kind
			break
		}
		p.Close()
		p.Refused = append(p.Refused, fmt.Errorf("%s: %w", try.kind, err))
	}
	if p.Memory == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNone, errors.Join(p.Refused...))
	}
	if !send {
		return p, nil
	}
	p.Doorbell = DoorbellDirect
	if err := p.keep(h.MapUAR()); err != nil {
		p.Doorbell = DoorbellProxy
		p.Refused = append(p.Refused, fmt.Errorf("doorbell from the GPU: %w", err))
	}
	return p, nil
}

func (p *Plan) dmabuf(h Host) error {
	fd, undo, err := h.ExportDMABuf()
	if err := p.keep(undo, err); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := p.keep(h.RegisterDMABuf(fd)); err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	return nil
}

// keep remembers how to undo what succeeded.
func (p *Plan) keep(undo func(), err error) error {
	if err == nil {
		p.undo = append(p.undo, undo)
	}
	return err
}
