package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// Module is loaded device code.
type Module struct {
	c      *Context
	handle api.Handle

	mu       sync.Mutex
	unloaded bool
}

// Load loads a cubin, or PTX, which the driver compiles; what its compiler complains
// of is part of the error. ErrBusy while a persistent kernel runs.
func (c *Context) Load(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("%w: empty device code", ErrArgument)
	}
	m := &Module{c: c}
	log := api.NewLog()
	err := c.idle(func() error {
		return withLog(c.do("cuModuleLoadDataEx", func() (r Result) {
			m.handle, r = c.api.ModuleLoadDataEx(terminated(image), log)
			return r
		}), log)
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// terminated returns code with the NUL at its end that PTX needs.
func terminated(code []byte) []byte {
	if code[len(code)-1] == 0 {
		return code
	}
	return append(code[:len(code):len(code)], 0)
}

// Unload gives the code back. ErrBusy while a persistent kernel runs.
func (m *Module) Unload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unloaded {
		return nil
	}
	err := m.c.idle(func() error {
		return m.c.do("cuModuleUnload", func() Result { return m.c.api.ModuleUnload(m.handle) })
	})
	m.unloaded = err == nil
	return err
}

// Function is a kernel. It is unusable after its module is unloaded.
type Function struct {
	c      *Context
	handle api.Handle
	name   string
	attrs  FuncAttributes
	params []uintptr // sizes of its parameters, if known
	known  bool
}

// FuncAttributes are the resources of a kernel.
type FuncAttributes struct {
	Registers   int // of a thread
	LocalBytes  int // of a thread: stack and spilled registers
	SharedBytes int // of a block, static
	ConstBytes  int
	MaxThreads  int // of a block
	PTX, Binary int // 80: compute_80, 90: sm_90
}

// Function looks a kernel up and sees to it that its code is on the device, which
// a driver in lazy mode would do at the first launch. ErrBusy while a persistent
// kernel runs.
func (m *Module) Function(name string) (*Function, error) {
	f := &Function{c: m.c, name: name}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := ErrClosed
	if !m.unloaded {
		err = m.c.idle(func() error { return f.lookup(m.handle) })
	}
	if err != nil {
		return nil, fmt.Errorf("kernel %q: %w", name, err)
	}
	return f, nil
}

func (f *Function) lookup(module api.Handle) error {
	c := f.c
	err := c.do("cuModuleGetFunction", func() (r Result) {
		f.handle, r = c.api.ModuleGetFunction(module, f.name)
		return r
	})
	if err != nil {
		return err
	}
	// A driver without the call (before CUDA 12.4) loads when it is asked for attributes.
	err = c.do("cuFuncLoad", func() Result { return c.api.FuncLoad(f.handle) })
	if err != nil && !errors.Is(err, NotSupported) {
		return err
	}
	for _, a := range []struct {
		attr api.FuncAttribute
		to   *int
	}{
		{api.FuncRegisters, &f.attrs.Registers}, {api.FuncLocalBytes, &f.attrs.LocalBytes}, {api.FuncSharedBytes, &f.attrs.SharedBytes},
		{api.FuncConstBytes, &f.attrs.ConstBytes}, {api.FuncMaxThreads, &f.attrs.MaxThreads}, {api.FuncPTXVersion, &f.attrs.PTX},
		{api.FuncBinaryVersion, &f.attrs.Binary},
	} {
		err := c.do("cuFuncGetAttribute", func() Result {
			v, r := c.api.FuncGetAttribute(a.attr, f.handle)
			*a.to = int(v)
			return r
		})
		if err != nil {
			return err
		}
	}
	return f.parameters()
}

// parameters asks for the sizes until there is no further parameter.
func (f *Function) parameters() error {
	for i := uint64(0); ; i++ {
		var size uint64
		err := f.c.do("cuFuncGetParamInfo", func() (r Result) {
			_, size, r = f.c.api.FuncGetParamInfo(f.handle, i)
			return r
		})
		switch {
		case errors.Is(err, InvalidValue):
			f.known = true
			return nil
		case errors.Is(err, NotSupported):
			return nil
		case err != nil:
			return err
		}
		f.params = append(f.params, uintptr(size))
	}
}

// match compares arguments with parameters.
func (f *Function) match(args []Arg) error {
	if !f.known {
		return nil
	}
	if len(args) != len(f.params) {
		return fmt.Errorf("%w: %d arguments for %d parameters", ErrArgument, len(args), len(f.params))
	}
	for i, a := range args {
		if a.size != f.params[i] {
			return fmt.Errorf("%w: argument %d has %d bytes, the kernel's parameter %d", ErrArgument, i, a.size, f.params[i])
		}
	}
	return nil
}

// Name returns the name of the kernel.
func (f *Function) Name() string { return f.name }

// Attributes returns the resources of the kernel.
func (f *Function) Attributes() FuncAttributes { return f.attrs }

// SetShared allows n bytes of dynamic shared memory, needed above 48 KiB.
func (f *Function) SetShared(n int) error {
	return f.c.do("cuFuncSetAttribute", func() Result {
		return f.c.api.FuncSetAttribute(f.handle, api.FuncMaxDynamicShared, int32(n))
	})
}

// BlocksPerSM returns how many blocks of so many threads and so much dynamic shared
// memory run on one SM at the same time.
func (f *Function) BlocksPerSM(threads, shared int) (int, error) {
	var n int32
	err := f.c.do("cuOccupancyMaxActiveBlocksPerMultiprocessor", func() (r Result) {
		n, r = f.c.api.OccupancyMaxActiveBlocksPerMultiprocessor(f.handle, int32(threads), uint64(shared))
		return r
	})
	return int(n), err
}

// Input is one part of a program.
type Input struct {
	Name string // for messages
	PTX  []byte // either this
	Code []byte // or a cubin
}

// Link compiles and links parts into a cubin for the device of the context. Works
// while a persistent kernel runs, unlike Load of PTX.
func (c *Context) Link(parts ...Input) (cubin []byte, err error) {
	if len(parts) == 0 {
		return nil, fmt.Errorf("%w: nothing to link", ErrArgument)
	}
	log := api.NewLog()
	var h api.Handle
	err = c.do("cuLinkCreate", func() (r Result) {
		h, r = c.api.LinkCreate(log)
		return r
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, c.do("cuLinkDestroy", func() Result { return c.api.LinkDestroy(h) }))
		if err != nil {
			cubin = nil
		}
	}()
	for _, p := range parts {
		kind, data := api.InputCubin, p.Code
		if len(p.PTX) > 0 {
			kind, data = api.InputPTX, terminated(p.PTX)
		}
		if len(data) == 0 {
			return nil, fmt.Errorf("%w: %q is empty", ErrArgument, p.Name)
		}
		err := c.do("cuLinkAddData", func() Result { return c.api.LinkAddData(h, kind, data, p.Name) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, withLog(err, log))
		}
	}
	err = c.do("cuLinkComplete", func() (r Result) {
		cubin, r = c.api.LinkComplete(h)
		return r
	})
	return cubin, withLog(err, log)
}
