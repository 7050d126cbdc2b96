package cudatest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// Call is one run of a kernel.
type Call struct {
	Grid, Block cuda.Dim
	SharedBytes int
	Cooperative bool
	Args        [][]byte // as many as Kernel.Params

	d *Driver
}

// Memory returns n bytes at p, of the device or mapped. It panics with the address
// if they are not there.
func (c *Call) Memory(p cuda.DevicePtr, n int) []byte {
	b := c.d.memory(uint64(p), uint64(n))
	if b == nil {
		panic(fmt.Sprintf("cudatest: a kernel uses %d bytes at %#x", n, uint64(p)))
	}
	return b
}

// Kernel is a function that can be launched.
type Kernel struct {
	Params      []int // sizes
	Registers   int
	LocalBytes  int
	BlocksPerSM int // default 1
	// Run is the kernel. What it returns is that of everything after it, Success
	// (0) for a kernel that ends well. nil does nothing.
	Run func(*Call) cuda.Result
}

// Options of a Driver.
type Options struct {
	Version int // default 13000
	Devices []cuda.Info
	// Kernels by name. A module contains those whose names are in its image.
	Kernels map[string]Kernel
	// Lacks are functions that this driver is too old to have: "cuFuncLoad".
	Lacks []string
}

// H200 is what an NVIDIA H200 says.
func H200() cuda.Info {
	return cuda.Info{
		Name: "NVIDIA H200", UUID: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", PCI: "0000:1b:00.0", Major: 9, SMs: 132, ThreadsPerSM: 2048,
		SharedBytes: 232448, L2Bytes: 60 << 20, MemoryBytes: 139 << 30, ClockKHz: 1980000, MemoryKHz: 3201000, Ecc: true,
		Cooperative: true, HostMemory: true, DirectRDMA: true, Flush: 1, Ordering: cuda.OrderingOwner, DMABuf: true,
	}
}

// Module returns an image with these kernels.
func Module(kernels ...string) []byte {
	b := []byte("\x7fELF")
	for _, k := range kernels {
		b = append(append(b, 0), k...)
	}
	return append(b, 0)
}

// BadPTX is PTX that the compiler complains about, with BadPTXLog.
const (
	BadPTX    = ".version 8.0\n.target sm_80\nnonsense"
	BadPTXLog = "ptxas application ptx input, line 3; fatal: Parsing error near 'nonsense': syntax error"
)

const stackBytes = 1024 // of a thread, without asking for more

// Driver behaves like libcuda.
type Driver struct {
	o Options

	mu       sync.Mutex
	idle     sync.Cond // signalled when something is done
	next     uint64    // of handles and addresses
	running  int       // kernels
	queued   int       // kernels and everything else
	waited   []string
	failures map[string][]failure
	calls    map[string]int
	current  map[int][]*ctx // stack of a thread
	devices  []*ctx         // primary contexts, by device
	objects  map[api.Handle]any
	mem      map[uint64]*block // by address
}

type failure struct {
	after int
	r     api.Result
}

// ctx is a primary context.
type ctx struct {
	handle   api.Handle
	shares   int
	used     uint64 // bytes of memory
	local    int    // bytes of local memory per thread
	poisoned api.Result
}

type block struct {
	ctx  *ctx
	b    []byte
	host bool
}

type (
	module   struct{ image []byte }
	function struct {
		module api.Handle
		Kernel
		name string
	}
	stream struct {
		ctx  *ctx
		tail chan struct{} // closed when everything is done
	}
	event struct {
		noTime bool
		done   chan struct{} // nil: never recorded
		at     *time.Time    // set when it is done
	}
	link struct {
		log *api.Log
		out []byte
	}
)

var _ api.Driver = (*Driver)(nil)

// New returns a driver.
func New(o Options) *Driver {
	if o.Version == 0 {
		o.Version = 13000
	}
	d := &Driver{
		o: o, next: 0x7f00_0000_0000, failures: make(map[string][]failure), calls: make(map[string]int),
		current: make(map[int][]*ctx), devices: make([]*ctx, len(o.Devices)), objects: make(map[api.Handle]any), mem: make(map[uint64]*block),
	}
	d.idle.L = &d.mu
	return d
}

// Open returns the driver as package cuda has it.
func (d *Driver) Open() (*cuda.Driver, error) { return cuda.With(d) }

// Fail makes a call of a function, "cuMemAlloc", return r once, after it has
// worked a number of times more.
func (d *Driver) Fail(call string, r cuda.Result, after int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures[call] = append(d.failures[call], failure{d.calls[call] + after, r})
}

// Calls returns how often a function was called.
func (d *Driver) Calls(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[call]
}

// Called returns the functions that were called.
func (d *Driver) Called() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.calls))
}

// Waited returns the calls that had to wait for a kernel and that package cuda is
// there to avoid.
func (d *Driver) Waited() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.waited)
}

// Leaks lists what is not given back.
func (d *Driver) Leaks() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	for p, b := range d.mem {
		kind := "device"
		if b.host {
			kind = "host"
		}
		list = append(list, fmt.Sprintf("%s memory: %d bytes at %#x", kind, len(b.b), p))
	}
	for h, o := range d.objects {
		if _, ok := o.(*function); !ok { // they go with their module
			list = append(list, fmt.Sprintf("%T %#x", o, uintptr(h)))
		}
	}
	for i, c := range d.devices {
		if c != nil {
			list = append(list, fmt.Sprintf("context of device %d, %d shares", i, c.shares))
		}
	}
	slices.Sort(list)
	return list
}

// enter counts a call and returns what it has to fail with. mu is held.
func (d *Driver) enter(call string) api.Result {
	n := d.calls[call]
	d.calls[call]++
	if slices.Contains(d.o.Lacks, call) {
		return api.NotSupported
	}
	for i, f := range d.failures[call] {
		if f.after == n {
			d.failures[call] = slices.Delete(d.failures[call], i, i+1)
			return f.r
		}
	}
	return api.Success
}

// inside is enter for what needs a context.
func (d *Driver) inside(call string) (*ctx, api.Result) {
	if r := d.enter(call); r != api.Success {
		return nil, r
	}
	stack := d.current[unix.Gettid()]
	if len(stack) == 0 || stack[len(stack)-1] == nil || stack[len(stack)-1].shares == 0 {
		return nil, api.InvalidContext
	}
	c := stack[len(stack)-1]
	return c, c.poisoned
}

// wait waits for everything that is queued, and notes if kernels are among it. mu is held.
func (d *Driver) wait(call string) {
	if d.running > 0 {
		d.waited = append(d.waited, call)
	}
	for d.queued > 0 {
		d.idle.Wait()
	}
}

func (d *Driver) handle(o any) api.Handle {
	d.next += 0x100
	h := api.Handle(d.next)
	d.objects[h] = o
	return h
}

// object returns a thing by its handle.
func object[T any](d *Driver, h api.Handle) (T, bool) {
	o, ok := d.objects[h].(T)
	return o, ok
}

// memory returns n bytes at p, nil if they are not there.
func (d *Driver) memory(p, n uint64) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for base, b := range d.mem {
		if p >= base && p+n <= base+uint64(len(b.b)) {
			return b.b[p-base:][:n]
		}
	}
	return nil
}

// enqueue does f when it is the stream's turn. mu is held. What f returns poisons.
func (d *Driver) enqueue(s *stream, f func() api.Result) {
	before, done := s.tail, make(chan struct{})
	s.tail = done
	d.queued++
	go func() {
		if before != nil {
			<-before
		}
		r := f()
		d.mu.Lock()
		defer d.mu.Unlock()
		if r != api.Success {
			s.ctx.poisoned = r
		}
		d.queued--
		d.idle.Broadcast()
		close(done)
	}()
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return c == nil
	}
}

// launch starts a kernel.
func (d *Driver) launch(f *function, s *stream, c *api.Config, args []unsafe.Pointer) {
	call := &Call{
		Grid:        cuda.Dim{X: int(c.Grid[0]), Y: int(c.Grid[1]), Z: int(c.Grid[2])},
		Block:       cuda.Dim{X: int(c.Block[0]), Y: int(c.Block[1]), Z: int(c.Block[2])},
		SharedBytes: int(c.SharedBytes), Cooperative: c.Cooperative, d: d,
	}
	for i, n := range f.Params {
		call.Args = append(call.Args, bytes.Clone(unsafe.Slice((*byte)(args[i]), n)))
	}
	d.running++ // from the launch on: what waits waits for what is queued too
	d.enqueue(s, func() api.Result {
		defer func() {
			d.mu.Lock()
			d.running--
			d.mu.Unlock()
		}()
		if f.Run == nil {
			return api.Success
		}
		return f.Run(call)
	})
}
