package model

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/model/internal/asm"
)

// Executor runs a plan for one goroutine. All memory is taken when it is made.
//
// Flows are processed in groups of Lanes: a row of the arena is one element of
// every flow of the group, side by side.
type Executor struct {
	plan  *Plan
	isa   ISA
	lanes int
	vec   *kernels  // nil: plain Go
	arena []float32 // plan.Arena rows of lanes floats
	steps []func()
}

// NewExecutor makes an executor with the fastest kernels allowed (DefaultISA).
func NewExecutor(p *Plan) *Executor {
	e, err := NewExecutorISA(p, DefaultISA())
	if err != nil {
		panic(err) // DefaultISA only names what is there
	}
	return e
}

// NewExecutorISA makes an executor with the given kernels.
func NewExecutorISA(p *Plan, isa ISA) (*Executor, error) {
	e := &Executor{plan: p, isa: isa, lanes: goLanes}
	k := kernelsFor(isa)
	if k != nil {
		e.lanes, e.vec = k.lanes, k
	} else if isa != Go {
		return nil, fmt.Errorf("%w: %s", ErrISA, isa)
	}
	e.arena = alignedFloats(p.Arena * e.lanes)
	for i := range p.Layers {
		e.steps = append(e.steps, e.prepare(&p.Layers[i]))
	}
	return e, nil
}

// alignedFloats returns floats that start on a cache line, so that no vector load crosses one.
func alignedFloats(n int) []float32 {
	const line = 64
	buf := make([]float32, n+line/4)
	skip := 0
	if r := uintptr(unsafe.Pointer(&buf[0])) % line; r != 0 {
		skip = int(line-r) / 4
	}
	return buf[skip : skip+n : skip+n]
}

// ISA returns the kernels in use.
func (e *Executor) ISA() ISA { return e.isa }

// Lanes is the number of flows computed together. A batch that is a multiple of it wastes nothing.
func (e *Executor) Lanes() int { return e.lanes }

// Plan returns the plan that is run.
func (e *Executor) Plan() *Plan { return e.plan }

// Run computes n flows: batch holds n x Inputs floats, out takes n x Outputs. It
// does not allocate. It panics if a slice is too short.
func (e *Executor) Run(batch []float32, n int, out []float32) {
	p := e.plan
	batch = batch[:n*p.Inputs]
	out = out[:n*p.Outputs]
	in := e.value(p.In)
	res := e.value(p.Out)
	for n > 0 {
		m := min(n, e.lanes)
		e.load(in, batch, m)
		for _, step := range e.steps {
			step()
		}
		for l := range m {
			row := out[l*p.Outputs : (l+1)*p.Outputs]
			for i := range row {
				row[i] = res[i*e.lanes+l]
			}
		}
		batch, out, n = batch[m*p.Inputs:], out[m*p.Outputs:], n-m
	}
}

// load transposes the inputs of m flows; lanes without a flow become 0.
func (e *Executor) load(in, batch []float32, m int) {
	width := e.plan.Inputs
	l := 0
	if e.vec != nil && width >= 8 {
		blocks := width / 8
		for ; l+8 <= m; l += 8 {
			e.vec.transpose(&in[l], &batch[l*width], blocks, 4*e.lanes, 4*width)
			for i := 8 * blocks; i < width; i++ {
				for j := l; j < l+8; j++ {
					in[i*e.lanes+j] = batch[j*width+i]
				}
			}
		}
	}
	for ; l < m; l++ {
		for i, x := range batch[l*width : (l+1)*width] {
			in[i*e.lanes+l] = x
		}
	}
	if m < e.lanes {
		for i := range width {
			clear(in[i*e.lanes+m : (i+1)*e.lanes])
		}
	}
}

// value returns the rows of a value.
func (e *Executor) value(id int) []float32 {
	v := e.plan.Values[id]
	return e.arena[v.Offset*e.lanes : (v.Offset+v.Rows)*e.lanes]
}

// prepare binds a layer to its memory and kernels.
func (e *Executor) prepare(l *Layer) func() {
	x, y, lanes, k := e.value(l.In[0]), e.value(l.Out), e.lanes, e.vec
	switch o := l.Op.(type) {
	case *Conv:
		if k == nil {
			return convGo(o, x, y)
		}
		return e.convVec(o, l)
	case *Dense:
		if k == nil {
			return denseGo(o, x, y)
		}
		return e.denseVec(o, l)
	case *Pool:
		if o.Average {
			return func() { averagePool(o, x, y, lanes) }
		}
		return func() { maxPool(o, x, y, lanes, k) }
	case *Reduce:
		if k != nil {
			if o.Kind == ReduceMax {
				return func() { k.maxRows(&y[0], &x[0], o.Outer, o.N) }
			}
			return func() {
				k.sumRows(&y[0], &x[0], o.Outer, o.N)
				if o.Kind == ReduceMean {
					divide(y, float32(o.N))
				}
			}
		}
		return func() { reduce(o, x, y, lanes) }
	case *Gather:
		return e.gather(o, l)
	case *Unary:
		if k != nil && k.functions[o.Kind] != nil {
			f := k.functions[o.Kind]
			return func() { f(&y[0], &x[0], len(x)) }
		}
		return func() {
			for i, v := range x {
				y[i] = apply(o.Kind, o.A, o.B, v)
			}
		}
	case *Affine:
		if k != nil {
			lo := lowest(o.Relu)
			return func() { k.affine(&y[0], &x[0], &o.Scale[0], &o.Shift[0], len(o.Scale), lo) }
		}
		return func() { affine(o, x, y, lanes) }
	case *Binary:
		if o.Const != nil {
			return func() { binaryConst(o, x, y, lanes) }
		}
		z := e.value(l.In[1])
		return func() {
			for i, v := range x {
				y[i] = combine(o.Kind, v, z[i])
			}
		}
	case *Embed:
		if k != nil {
			return func() { k.embed(&y[0], &x[0], &o.Table[0], len(x)/lanes, o.N, o.D) }
		}
		return func() { embed(o, x, y, lanes) }
	case *Softmax:
		if k != nil && o.Inner == 1 {
			return func() { softmaxVec(o, x, y, lanes, k.functions[Exp]) }
		}
		return func() { softmax(o, x, y, lanes) }
	}
	panic(fmt.Sprintf("model: no kernel for %T", l.Op))
}

func (e *Executor) ptr(row int) unsafe.Pointer { return unsafe.Pointer(&e.arena[row*e.lanes]) }

// lowest is what a clamp uses when there is no ReLU.
func lowest(relu bool) float32 {
	if relu {
		return 0
	}
	return float32(math.Inf(-1))
}

// pack lays out weights [filters][k] as [block][k][width], biases as [block][width], with
// zeros for filters that do not exist.
func pack(weights, bias []float32, filters, k, width int) (w, b []float32, blocks int) {
	blocks = (filters + width - 1) / width
	w = make([]float32, blocks*k*width)
	b = make([]float32, blocks*width)
	for f := range filters {
		b[f] = bias[f]
		for i := range k {
			w[(f/width*k+i)*width+f%width] = weights[f*k+i]
		}
	}
	return w, b, blocks
}

// call is one kernel invocation of a layer.
type call struct {
	run func(*asm.Args)
	a   asm.Args
}

// calls returns a step that runs a fixed list of kernel invocations.
func (e *Executor) calls(list []call) func() {
	return func() {
		for i := range list {
			list[i].run(&list[i].a)
		}
	}
}

func (e *Executor) convVec(o *Conv, l *Layer) func() {
	in, out := e.plan.Values[l.In[0]].Offset, e.plan.Values[l.Out].Offset
	rowBytes := 4 * e.lanes
	cg, fg := o.C/o.Group, o.F/o.Group
	kk := cg * o.KH * o.KW
	off := make([]int64, 0, kk)
	for c := range cg {
		for h := range o.KH {
			for w := range o.KW {
				off = append(off, int64(rowBytes*((c*o.H+h*o.DilationH)*o.W+w*o.DilationW)))
			}
		}
	}
	pw := o.OW / o.Pool // positions after the pool
	var list []call
	for g := range o.Group { // ascending: padding filters of a group are overwritten by the next one
		w, b, blocks := pack(o.Weights[g*fg*kk:(g+1)*fg*kk], o.Bias[g*fg:(g+1)*fg], fg, kk, 4)
		for oh := range o.OH {
			for p := 0; p < pw*o.Pool; {
				t := e.vec.tile(pw*o.Pool-p, o.Pool)
				list = append(list, call{t.run, asm.Args{
					X:   e.ptr(in + (g*cg*o.H+oh*o.StrideH)*o.W + p*o.StrideW),
					W:   unsafe.Pointer(&w[0]),
					B:   unsafe.Pointer(&b[0]),
					Off: unsafe.Pointer(&off[0]),
					Out: e.ptr(out + (g*fg*o.OH+oh)*pw + p/o.Pool),
					K:   kk, Blocks: blocks,
					XStep: rowBytes * o.StrideW, OutP: rowBytes, OutF: rowBytes * o.OH * pw,
					Lo: lowest(o.Relu),
				}})
				p += t.positions
			}
		}
	}
	return e.calls(list)
}

func (e *Executor) denseVec(o *Dense, l *Layer) func() {
	in, out := e.plan.Values[l.In[0]].Offset, e.plan.Values[l.Out].Offset
	rowBytes := 4 * e.lanes
	off := make([]int64, o.K)
	for i := range off {
		off[i] = int64(rowBytes * i)
	}
	width := 4
	if o.T == 1 {
		width = 8
	}
	w, b, blocks := pack(o.Weights, o.Bias, o.N, o.K, width)
	var list []call
	for t := 0; t < o.T; {
		run, n := e.vec.wide, 1
		switch {
		case o.T == 1:
		case o.N%4 == 0:
			tile := e.vec.tile(o.T-t, 1)
			run, n = tile.run, tile.positions
		default: // padding filters of a position are overwritten by the next one: one at a time
			run = e.vec.tile(1, 1).run
		}
		list = append(list, call{run, asm.Args{
			X: e.ptr(in + t*o.K), W: unsafe.Pointer(&w[0]), B: unsafe.Pointer(&b[0]), Off: unsafe.Pointer(&off[0]),
			Out: e.ptr(out + t*o.N), K: o.K, Blocks: blocks,
			XStep: rowBytes * o.K, OutP: rowBytes * o.N, OutF: rowBytes, Lo: lowest(o.Relu),
		}})
		t += n
	}
	return e.calls(list)
}

func (e *Executor) gather(o *Gather, l *Layer) func() {
	var src []int // arena row of each row of the joined inputs
	for _, v := range l.In {
		for r := range e.plan.Values[v].Rows {
			src = append(src, e.plan.Values[v].Offset+r)
		}
	}
	// Runs of neighbouring rows are copied at once.
	type run struct{ to, from, n int }
	type fill struct {
		to int
		v  float32
	}
	var runs []run
	var fills []fill
	for i, j := range o.Index {
		if j < 0 {
			fills = append(fills, fill{i, o.Const[-1-j]})
			continue
		}
		from := src[j]
		if n := len(runs); n > 0 && runs[n-1].to+runs[n-1].n == i && runs[n-1].from+runs[n-1].n == from {
			runs[n-1].n++
			continue
		}
		runs = append(runs, run{i, from, 1})
	}
	y, lanes := e.value(l.Out), e.lanes
	return func() {
		for _, r := range runs {
			copy(y[r.to*lanes:(r.to+r.n)*lanes], e.arena[r.from*lanes:])
		}
		for _, f := range fills {
			row := y[f.to*lanes : (f.to+1)*lanes]
			for i := range row {
				row[i] = f.v
			}
		}
	}
}
