package simt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
)

// Errors of a Library.
var (
	ErrKernel  = errors.New("simt: no such kernel")
	ErrParams  = errors.New("simt: parameters of another size than the kernel's")
	ErrGrid    = errors.New("simt: a grid that the kernel does not run as")
	ErrThreads = errors.New("simt: the system has no more threads")
	ErrAddress = errors.New("simt: not memory of this device")
	ErrClosed  = errors.New("simt: closed")
	ErrRunning = errors.New("simt: a kernel runs")
)

var launchErrors = []error{nil, ErrKernel, ErrParams, ErrGrid, ErrThreads}

// api is what lib/simt.h declares as extern "C".
type api struct {
	launch  func(kernel string, blocks, warps uint32, params unsafe.Pointer, size uintptr, handle unsafe.Pointer) int32
	wait    func(handle uintptr, timeoutNs int64) int32
	release func(handle uintptr)
	seed    func(seed uint64)
}

// loaded are the libraries of this process by path: they are never unloaded.
var (
	loadedMu sync.Mutex
	loaded   = map[string]*api{}
)

func load(path string) (*api, error) {
	loadedMu.Lock()
	defer loadedMu.Unlock()
	if a, ok := loaded[path]; ok {
		return a, nil
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("simt: %w", err)
	}
	a := &api{}
	purego.RegisterLibFunc(&a.launch, handle, "simt_launch")
	purego.RegisterLibFunc(&a.wait, handle, "simt_wait")
	purego.RegisterLibFunc(&a.release, handle, "simt_release")
	purego.RegisterLibFunc(&a.seed, handle, "simt_seed")
	loaded[path] = a
	return a, nil
}

// Library is device code compiled for the host: a cuda.Device.
type Library struct {
	api *api

	mu     sync.Mutex
	memory arena
	runs   int             // kernels that have not returned
	last   map[string]*run // of each stream
	closed bool
}

var _ cuda.Device = (*Library)(nil)

// Open compiles and loads the kernels of cuda/kernels/main.cu.
func Open() (*Library, error) { return OpenSources("cuda/kernels/main.cu") }

// OpenSources compiles and loads kernels of other sources, named from the root of the repository.
func OpenSources(sources ...string) (*Library, error) {
	path, err := build("kernels", sources, true, Plain)
	if err != nil {
		return nil, err
	}
	a, err := load(path)
	if err != nil {
		return nil, err
	}
	return &Library{api: a, last: map[string]*run{}}, nil
}

// Seed is what the order of lanes is drawn from in kernels that are launched after it, of this
// library and others of the same sources.
func (l *Library) Seed(seed uint64) { l.api.seed(seed) }

// Alloc implements cuda.Device.
func (l *Library) Alloc(n int) (cuda.Addr, error) {
	m, err := l.AllocMapped(n)
	return m.Addr, err
}

// AllocMapped implements cuda.Device.
func (l *Library) AllocMapped(n int) (cuda.Mapped, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return cuda.Mapped{}, ErrClosed
	}
	b, err := l.memory.alloc(n)
	if err != nil {
		return cuda.Mapped{}, err
	}
	return cuda.Mapped{Bytes: b, Addr: cuda.Addr(uintptr(unsafe.Pointer(unsafe.SliceData(b))))}, nil
}

// Free implements cuda.Device.
func (l *Library) Free(a cuda.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.free(a)
}

// Write implements cuda.Device.
func (l *Library) Write(a cuda.Addr, p []byte) error {
	b, err := l.bytes(a, len(p))
	copy(b, p)
	return err
}

// Read implements cuda.Device.
func (l *Library) Read(p []byte, a cuda.Addr) error {
	b, err := l.bytes(a, len(p))
	copy(p, b)
	return err
}

// ReadAll implements cuda.Device.
func (l *Library) ReadAll(pieces []cuda.Piece) error {
	for _, p := range pieces {
		if err := l.Read(p.To, cuda.Addr(p.From)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Library) bytes(a cuda.Addr, n int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.at(a, n)
}

// run is a launched kernel.
type run struct {
	done chan struct{}
	err  error // once done is closed
}

// Launch implements cuda.Device.
func (l *Library) Launch(kernel string, blocks, warps, _ int, params []byte) (cuda.Run, error) {
	if blocks < 1 || warps < 1 || blocks > 1<<16 || warps > 1<<16 {
		return nil, fmt.Errorf("%w: %s, %d blocks of %d warps", ErrGrid, kernel, blocks, warps)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	start := func() (handle uintptr, err error) {
		if rc := l.api.launch(kernel, uint32(blocks), uint32(warps), unsafe.Pointer(unsafe.SliceData(params)), uintptr(len(params)), unsafe.Pointer(&handle)); rc != 0 {
			err = fmt.Errorf("%w: %s, %d blocks of %d warps, %d bytes of parameters", launchErrors[rc], kernel, blocks, warps, len(params))
		}
		return handle, err
	}
	r, stream := &run{done: make(chan struct{})}, cuda.StreamOf(kernel)
	before := l.last[stream]
	var handle uintptr
	if before.ended() {
		var err error
		if handle, err = start(); err != nil {
			return nil, err
		}
	} else {
		params = bytes.Clone(params) // the caller's may change meanwhile
	}
	l.runs++
	l.last[stream] = r
	go func() {
		if handle == 0 {
			<-before.done
			handle, r.err = start()
		}
		if r.err == nil {
			l.api.wait(handle, -1)
			l.api.release(handle)
		}
		l.mu.Lock()
		l.runs--
		l.mu.Unlock()
		close(r.done)
	}()
	return r, nil
}

// ended says whether what is launched after r may run.
func (r *run) ended() bool {
	if r == nil {
		return true
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Done implements cuda.Run.
func (r *run) Done() <-chan struct{} { return r.done }

// Wait implements cuda.Run.
func (r *run) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Call launches a kernel with the bytes of params, which holds no Go pointers, and waits for it.
func Call[T any](ctx context.Context, l *Library, kernel string, blocks, warps int, params T) error {
	r, err := l.Launch(kernel, blocks, warps, 0, Bytes(&params))
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Close implements cuda.Device.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs > 0 {
		return fmt.Errorf("%w: %d", ErrRunning, l.runs)
	}
	l.closed = true
	return l.memory.close()
}

// Bytes is the memory of a value that holds no Go pointers.
func Bytes[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// Slice is memory of a device as values of a type.
func Slice[T any](m cuda.Mapped) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m.Bytes))), uintptr(len(m.Bytes))/unsafe.Sizeof(zero))
}

// arena is memory outside the Go heap: whole mappings, each of one allocation, with a page that
// nothing may touch behind it.
type arena struct{ blocks map[cuda.Addr]mapping }

type mapping struct {
	all  []byte // with the page behind
	used []byte
}

const align = 256

func (a *arena) alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("simt: %d bytes of memory", n)
	}
	page := unix.Getpagesize()
	size := (n + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("simt: %d bytes of memory: %w", n, err)
	}
	if err := unix.Mprotect(all[size:], unix.PROT_NONE); err != nil {
		return nil, errors.Join(err, unix.Munmap(all))
	}
	// As near to the end as the alignment allows.
	at := (size - n) / align * align
	used := all[at : at+n : at+n]
	if a.blocks == nil {
		a.blocks = map[cuda.Addr]mapping{}
	}
	a.blocks[cuda.Addr(uintptr(unsafe.Pointer(unsafe.SliceData(used))))] = mapping{all, used}
	return used, nil
}

func (a *arena) free(at cuda.Addr) error {
	m, ok := a.blocks[at]
	if !ok {
		return fmt.Errorf("%w: %#x", ErrAddress, uint64(at))
	}
	delete(a.blocks, at)
	return unix.Munmap(m.all)
}

// at is n bytes of one allocation that begins at or before an address.
func (a *arena) at(from cuda.Addr, n int) ([]byte, error) {
	for start, m := range a.blocks {
		if from >= start && from-start <= cuda.Addr(len(m.used)) && n <= len(m.used)-int(from-start) {
			return m.used[from-start:][:n], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x", ErrAddress, n, uint64(from))
}

func (a *arena) close() error {
	var err error
	for at := range a.blocks {
		err = errors.Join(err, a.free(at))
	}
	return err
}
