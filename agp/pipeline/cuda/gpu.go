package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/kernels"
)

// ErrOrdering says that the GPU makes no promise about the order in which the writes of
// others arrive, so that a completion can be seen before its payload.
var ErrOrdering = errors.New("GPUDirect RDMA write ordering is NONE")

// GPU is a Device on a CUDA device. One kernel runs at a time.
type GPU struct {
	info   cuda.Info
	ctx    *cuda.Context
	module *cuda.Module

	mu      sync.Mutex
	funcs   map[string]function
	streams map[string]*cuda.Stream
	memory  map[Addr]func() error
}

// function is a kernel and the stream on which it is launched.
type function struct {
	*cuda.Function
	stream *cuda.Stream
}

// OpenGPU takes a share of the device's context and loads the device code.
func OpenGPU(d *cuda.Device) (*GPU, error) {
	info, err := d.Info()
	if err != nil {
		return nil, err
	}
	image, err := kernels.For(info.Major, info.Minor)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", info.Name, err)
	}
	g := &GPU{info: info, funcs: map[string]function{}, streams: map[string]*cuda.Stream{}, memory: map[Addr]func() error{}}
	if err := g.load(d, image.Code); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", info.Name, err), g.Close())
	}
	return g, nil
}

func (g *GPU) load(d *cuda.Device, code []byte) (err error) {
	if g.ctx, err = d.Retain(); err != nil {
		return err
	}
	if g.module, err = g.ctx.Load(code); err != nil {
		return err
	}
	for _, name := range kernelNames { // looked up now: later it can block
		var f function
		if f.Function, err = g.module.Function(name); err == nil {
			f.stream, err = g.stream(StreamOf(name))
		}
		if servesRings(name) && err == nil {
			err = f.SetShared(min(abi.BlockScratch, g.info.SharedBytes))
		}
		if err != nil {
			return err
		}
		g.funcs[name] = f
	}
	return nil
}

// kernelNames are the kernels that a Device can launch.
var kernelNames = append([]string{"agp_nic_send"}, ringKernels...)

// StreamOf names what a Device launches a kernel on: those of one stream run one after the other,
// those of different streams beside each other.
func StreamOf(kernel string) string {
	if servesRings(kernel) {
		return ringsKernel
	}
	return kernel
}

func (g *GPU) stream(name string) (*cuda.Stream, error) {
	if s := g.streams[name]; s != nil {
		return s, nil
	}
	s, err := g.ctx.NewStream()
	if err == nil {
		g.streams[name] = s
	}
	return s, err
}

func servesRings(kernel string) bool { return slices.Contains(ringKernels, kernel) }

const (
	ringsKernel    = "agp_rings"
	fullKernel     = "agp_rings_sketched" // the same with sketches of all traffic, models and messages
	sequenceKernel = "agp_sequence"       // all of it in ModeSequence
	packetsKernel  = "agp_packets"        // ModeStateless
)

var ringKernels = []string{ringsKernel, fullKernel, sequenceKernel, packetsKernel}

// Info says which GPU it is.
func (g *GPU) Info() cuda.Info { return g.info }

// Context is the share of the device's context, for measurements.
func (g *GPU) Context() *cuda.Context { return g.ctx }

// Alloc implements Device.
func (g *GPU) Alloc(n int) (Addr, error) {
	p, err := g.ctx.Alloc(n)
	if err != nil {
		return 0, err
	}
	if err := g.ctx.Fill(p, 0, n); err != nil {
		return 0, errors.Join(err, g.ctx.Free(p))
	}
	g.hold(Addr(p), func() error { return g.ctx.Free(p) })
	return Addr(p), nil
}

// PageBytes is what the driver hands out memory in, to requests that are not much smaller.
func (g *GPU) PageBytes() int { return 2 << 20 }

// AllocMapped implements Device.
func (g *GPU) AllocMapped(n int) (Mapped, error) {
	b, err := g.ctx.HostAlloc(n)
	if err != nil {
		return Mapped{}, err
	}
	g.hold(Addr(b.Device), b.Free)
	return Mapped{b.Bytes, Addr(b.Device)}, nil
}

func (g *GPU) hold(a Addr, free func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory[a] = free
}

// Free implements Device.
func (g *GPU) Free(a Addr) error {
	g.mu.Lock()
	free := g.memory[a]
	delete(g.memory, a)
	g.mu.Unlock()
	if free == nil {
		return fmt.Errorf("%w: %#x is not memory of this device", cuda.ErrArgument, a)
	}
	return free()
}

// Write implements Device.
func (g *GPU) Write(a Addr, p []byte) error { return g.ctx.CopyToDevice(cuda.DevicePtr(a), p) }

// Read implements Device.
func (g *GPU) Read(p []byte, a Addr) error { return g.ctx.CopyFromDevice(p, cuda.DevicePtr(a)) }

// ReadAll implements Device.
func (g *GPU) ReadAll(pieces []Piece) error { return g.ctx.CopyAllFromDevice(pieces) }

// Launch implements Device.
func (g *GPU) Launch(kernel string, blocks, warps, shared int, params []byte) (Run, error) {
	f, ok := g.funcs[kernel]
	if !ok {
		return nil, fmt.Errorf("%w: no kernel %s", cuda.ErrArgument, kernel)
	}
	// Cooperative: a ring whose warp does not run would wait for ever.
	l := cuda.Launch{Grid: cuda.Dim{X: blocks}, Block: cuda.Dim{X: 32 * warps}, SharedBytes: shared, Persistent: true, Cooperative: servesRings(kernel)}
	ended, err := g.ctx.NewEvent()
	if err != nil {
		return nil, err
	}
	if err = f.stream.Launch(f.Function, l, cuda.Bytes(params)); err == nil {
		err = f.stream.Record(ended)
	}
	if err != nil {
		_ = ended.Close() // nobody has seen it
		return nil, err
	}
	r := &gpuRun{ended: ended, done: make(chan struct{})}
	go func() {
		t := time.NewTicker(endEvery)
		defer t.Stop()
		for !r.look() {
			select {
			case <-t.C:
			case <-r.done:
			}
		}
	}()
	return r, nil
}

// endEvery is how often it is looked whether a kernel has ended that nobody waits for: not often,
// each look is a call of the driver.
const endEvery = 250 * time.Millisecond

type gpuRun struct {
	done chan struct{}
	err  error // once done is closed

	mu    sync.Mutex  // who looks may not find the event destroyed
	ended *cuda.Event // the stream may have more to do; nil: it has
}

// look says whether the kernel has ended.
func (r *gpuRun) look() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		return true
	}
	ended, err := r.ended.Done()
	if !ended && err == nil {
		return false
	}
	if r.err = err; err == nil {
		r.err = r.ended.Close()
	}
	r.ended = nil
	close(r.done)
	return true
}

func (r *gpuRun) Done() <-chan struct{} { return r.done }

// Wait looks more often than is looked without it.
func (r *gpuRun) Wait(ctx context.Context) error {
	pause := 20 * time.Microsecond
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			if !r.look() {
				t.Reset(pause)
				pause = min(2*pause, time.Millisecond)
			}
		}
	}
}

// Close implements Device.
func (g *GPU) Close() error {
	var err error
	for a := range g.memory {
		err = errors.Join(err, g.Free(a))
	}
	for _, s := range g.streams {
		err = errors.Join(err, s.Close())
	}
	if g.module != nil {
		err = errors.Join(err, g.module.Unload())
	}
	if g.ctx != nil {
		err = errors.Join(err, g.ctx.Close())
	}
	return err
}
