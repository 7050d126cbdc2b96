package model

import (
	"fmt"
	"slices"
)

// operand is what a name of the graph stands for while it is compiled: a
// constant, or an activation (a plan value seen under a shape).
type operand struct {
	k     *tensor
	id    int
	dims  []int // activation: without the batch dimension
	isInt bool
}

func (o operand) shape() []int {
	if o.k != nil {
		return o.k.dims
	}
	return o.dims
}

// batchMark stands for the unknown batch size in the result of Shape. It is far
// outside of any legal dimension, so that arithmetic with it ends in ErrShape.
const batchMark = int64(-1) << 40

type builder struct {
	g      *graph
	names  map[string]operand
	values []Value
	layers []Layer
	node   *node
	one    bool // the graph's input has a static batch of 1
	made   int  // floats and indices that layers hold, against maxElements
	macs   int  // against maxMACs, before layers are fused
}

// compile turns a parsed graph into a plan.
func compile(g *graph) (*Plan, error) {
	order, err := sortNodes(g)
	if err != nil {
		return nil, err
	}
	b := &builder{g: g, names: map[string]operand{"": {id: -1}}}
	inits := map[string]bool{}
	for _, t := range g.inits {
		inits[t.name] = true
		b.names[t.name] = operand{k: t, isInt: t.isInt}
	}
	in := -1
	for _, vi := range g.inputs {
		if inits[vi.name] {
			continue // old exporters list initializers as inputs too
		}
		if in >= 0 {
			return nil, fmt.Errorf("%w: second graph input %q; one is supported", ErrShape, clip(vi.name))
		}
		if in, err = b.input(vi); err != nil {
			return nil, fmt.Errorf("graph input %q: %w", clip(vi.name), err)
		}
	}
	if in < 0 {
		return nil, fmt.Errorf("%w: graph has no input", ErrShape)
	}
	for _, i := range order {
		n := &g.nodes[i]
		if err := b.add(n); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
	}
	if len(g.outputs) != 1 {
		return nil, fmt.Errorf("%w: %d graph outputs; one is supported", ErrShape, len(g.outputs))
	}
	name := g.outputs[0].name
	out, ok := b.names[name]
	switch {
	case !ok || name == "":
		return nil, fmt.Errorf("%w: graph output %q", ErrUnknownInput, clip(name))
	case out.k != nil:
		return nil, fmt.Errorf("%w: graph output %q is constant", ErrShape, clip(name))
	case out.isInt:
		return nil, fmt.Errorf("%w: graph output %q is an integer", ErrType, clip(name))
	case out.id == in:
		return nil, fmt.Errorf("%w: graph output %q is the input", ErrShape, clip(name))
	}
	return finish(b.values, b.layers, in, out.id)
}

func (b *builder) input(vi valueInfo) (int, error) {
	if vi.elem != onnxFloat {
		return -1, fmt.Errorf("%w: element type %d, want float32", ErrType, vi.elem)
	}
	if !vi.hasShape || len(vi.dims) < 2 {
		return -1, fmt.Errorf("%w: want [batch, features]", ErrShape)
	}
	if d := vi.dims[0]; d >= 0 && d != 1 {
		return -1, fmt.Errorf("%w: batch of %d; want a symbolic batch or 1", ErrShape, d)
	}
	b.one = vi.dims[0] == 1
	dims := vi.dims[1:]
	for _, d := range dims {
		if d <= 0 {
			return -1, fmt.Errorf("%w: only the batch may be symbolic: %v", ErrShape, vi.dims)
		}
	}
	n, err := count(dims, maxRows)
	if err != nil {
		return -1, err
	}
	b.values = append(b.values, Value{Rows: n})
	b.names[vi.name] = operand{id: 0, dims: dims}
	return 0, nil
}

// sortNodes checks names and returns the nodes in an order in which they can run.
func sortNodes(g *graph) ([]int, error) {
	producer := map[string]int{} // node, or -1 for inputs and initializers
	for _, t := range g.inits {
		if _, dup := producer[t.name]; dup {
			return nil, fmt.Errorf("%w: initializer %q", ErrDuplicate, clip(t.name))
		}
		producer[t.name] = -1
	}
	seen := map[string]bool{}
	for _, vi := range g.inputs {
		if seen[vi.name] || vi.name == "" {
			return nil, fmt.Errorf("%w: graph input %q", ErrDuplicate, clip(vi.name))
		}
		seen[vi.name] = true
		producer[vi.name] = -1
	}
	for i := range g.nodes {
		for _, name := range g.nodes[i].out {
			if name == "" {
				continue
			}
			if _, dup := producer[name]; dup {
				return nil, fmt.Errorf("%s: %w: output %q", &g.nodes[i], ErrDuplicate, clip(name))
			}
			producer[name] = i
		}
	}
	waits := make([]int, len(g.nodes))
	users := make([][]int, len(g.nodes))
	for i := range g.nodes {
		for _, name := range g.nodes[i].in {
			if name == "" {
				continue
			}
			p, ok := producer[name]
			if !ok {
				return nil, fmt.Errorf("%s: %w: %q", &g.nodes[i], ErrUnknownInput, clip(name))
			}
			if p >= 0 {
				waits[i]++
				users[p] = append(users[p], i)
			}
		}
	}
	order := make([]int, 0, len(g.nodes))
	for i, w := range waits {
		if w == 0 {
			order = append(order, i)
		}
	}
	for j := 0; j < len(order); j++ {
		for _, u := range users[order[j]] {
			if waits[u]--; waits[u] == 0 {
				order = append(order, u)
			}
		}
	}
	if len(order) < len(g.nodes) {
		for i, w := range waits {
			if w > 0 {
				return nil, fmt.Errorf("%s: %w", &g.nodes[i], ErrCycle)
			}
		}
	}
	return order, nil
}

// add compiles one node.
func (b *builder) add(n *node) error {
	f, ok := operators[n.op]
	if !ok || (n.domain != "" && n.domain != "ai.onnx") {
		if n.domain != "" {
			return fmt.Errorf("%w of domain %q", ErrUnknownOperator, clip(n.domain))
		}
		return ErrUnknownOperator
	}
	if len(n.in) < f.min || len(n.in) > f.max {
		return fmt.Errorf("%w: %d inputs, want %d to %d", ErrFormat, len(n.in), f.min, f.max)
	}
	if len(n.out) == 0 || n.out[0] == "" {
		return fmt.Errorf("%w: no output", ErrFormat)
	}
	for _, extra := range n.out[1:] {
		if extra != "" && n.op != "Dropout" {
			return fmt.Errorf("%w: output %q: only the first is supported", ErrAttribute, clip(extra))
		}
	}
	b.node = n
	slots := len(n.in)
	if f.max != variadic {
		slots = f.max // optional ones that are left out count as missing
	}
	in := make([]operand, slots)
	for i := range in {
		in[i].id = -1
		if i < len(n.in) {
			in[i] = b.names[n.in[i]]
			if n.in[i] != "" && in[i].k == nil && in[i].id < 0 {
				return fmt.Errorf("%w: %q", ErrUnknownInput, clip(n.in[i]))
			}
		}
		if i < f.min && in[i].k == nil && in[i].id < 0 {
			return fmt.Errorf("%w: input %d is missing", ErrFormat, i)
		}
	}
	a := &attrs{list: n.attrs, used: make([]bool, len(n.attrs))}
	out, err := f.build(b, in, a)
	if err != nil {
		return err
	}
	if a.err != nil {
		return a.err
	}
	for i, used := range a.used {
		if !used {
			return fmt.Errorf("%w: %q", ErrAttribute, clip(n.attrs[i].name))
		}
	}
	b.names[n.out[0]] = out
	return nil
}

// attrs reads attributes by name and notices those that nobody read.
type attrs struct {
	list []attribute
	used []bool
	err  error // first attribute of a wrong type
}

func (a *attrs) find(name string, kind int) *attribute {
	for i := range a.list {
		if a.list[i].name != name {
			continue
		}
		a.used[i] = true
		if a.list[i].kind != kind {
			if a.err == nil {
				a.err = fmt.Errorf("%w: %q has type %d, want %d", ErrAttribute, name, a.list[i].kind, kind)
			}
			return nil
		}
		return &a.list[i]
	}
	return nil
}

func (a *attrs) int(name string, def int64) int64 {
	if x := a.find(name, attrInt); x != nil {
		return x.i
	}
	return def
}

func (a *attrs) float(name string, def float32) float32 {
	if x := a.find(name, attrFloat); x != nil {
		return x.f
	}
	return def
}

func (a *attrs) string(name, def string) string {
	if x := a.find(name, attrString); x != nil {
		return x.s
	}
	return def
}

func (a *attrs) ints(name string) []int64 {
	if x := a.find(name, attrInts); x != nil {
		return x.ints
	}
	return nil
}

// emit appends a layer whose result has the given shape.
func (b *builder) emit(op Op, dims []int, slack int, in ...int) (operand, error) {
	n, err := count(dims, maxRows)
	if err != nil {
		return operand{}, err
	}
	if n == 0 {
		return operand{}, fmt.Errorf("%w: empty result %v", ErrShape, dims)
	}
	tables, macs := cost(op)
	if b.made += tables; b.made > maxElements {
		return operand{}, fmt.Errorf("%w: layers have more than %d weights and table entries", ErrTooLarge, maxElements)
	}
	if b.macs += macs; b.macs > maxMACs {
		return operand{}, fmt.Errorf("%w: more than %d operations per flow", ErrTooLarge, maxMACs)
	}
	id := len(b.values)
	b.values = append(b.values, Value{Rows: n, Slack: slack})
	name := b.node.name
	if name == "" {
		name = b.node.op
	}
	b.layers = append(b.layers, Layer{Name: clip(name), In: in, Out: id, Op: op})
	return operand{id: id, dims: dims}, nil
}

// cost returns the entries that a layer holds and the multiply-accumulates, or for a pool the
// comparisons, that it does per flow. Kernel calls that an executor will list count as entries, too.
func cost(op Op) (tables, macs int) {
	const call = 16
	switch o := op.(type) {
	case *Conv:
		return len(o.Weights) + len(o.Bias) + call*o.Group*o.OH*o.OW, o.macs()
	case *Dense:
		return len(o.Weights) + len(o.Bias) + call*o.T, o.macs()
	case *Pool:
		return 0, o.C * o.OH * o.OW * min(o.KH, o.H) * min(o.KW, o.W)
	case *Gather:
		return len(o.Index) + len(o.Const), 0
	case *Affine:
		return len(o.Scale) + len(o.Shift), 0
	case *Binary:
		return len(o.Const), 0
	}
	return 0, 0
}

// newConst makes a folded constant of checked size.
func (b *builder) newConst(dims []int, isInt bool) (*tensor, error) {
	n, err := count(dims, maxElements)
	if err != nil {
		return nil, err
	}
	if err := b.g.take(n); err != nil {
		return nil, err
	}
	t := &tensor{dims: slices.Clone(dims), isInt: isInt}
	if isInt {
		t.i = make([]int64, n)
	} else {
		t.f = make([]float32, n)
	}
	return t, nil
}

// checkMove checks the size of a rearranged operand before its index table is built.
func (b *builder) checkMove(o operand, dims []int) error {
	limit := maxRows
	if o.k != nil {
		limit = maxElements
	}
	n, err := count(dims, limit)
	if err == nil && o.k != nil {
		err = b.g.take(n) // the table itself
	}
	return err
}

// move rearranges o by an index table; -1 takes fill.
func (b *builder) move(o operand, dims []int, idx []int32, fill float32) (operand, error) {
	if o.k == nil {
		if identity(idx, size(o.dims)) {
			return operand{id: o.id, dims: dims, isInt: o.isInt}, nil
		}
		r, err := b.emit(&Gather{Index: idx, Const: []float32{fill}}, dims, 0, o.id)
		r.isInt = o.isInt
		return r, err
	}
	t, err := b.newConst(dims, o.k.isInt)
	if err != nil {
		return operand{}, err
	}
	for i, j := range idx {
		switch {
		case t.isInt && j < 0:
			t.i[i] = int64(fill)
		case t.isInt:
			t.i[i] = o.k.i[j]
		case j < 0:
			t.f[i] = fill
		default:
			t.f[i] = o.k.f[j]
		}
	}
	return operand{k: t, isInt: t.isInt}, nil
}

// reshape gives o another shape of the same size.
func reshape(o operand, dims []int) (operand, error) {
	limit := maxElements
	n, err := count(dims, limit)
	if err != nil {
		return o, err
	}
	if n != size(o.shape()) {
		return o, fmt.Errorf("%w: %v does not hold %v", ErrShape, dims, o.shape())
	}
	if o.k == nil {
		return operand{id: o.id, dims: dims, isInt: o.isInt}, nil
	}
	t := *o.k
	t.dims = dims
	return operand{k: &t, isInt: t.isInt}, nil
}

// rank includes the batch dimension.
func (o operand) rank() int {
	if o.k != nil {
		return len(o.k.dims)
	}
	return len(o.dims) + 1
}

// axis turns an ONNX axis into an index of shape().
func (o operand) axis(a int64) (int, error) {
	r := int64(o.rank())
	if a < -r || a >= r {
		return 0, fmt.Errorf("%w: axis %d of rank %d", ErrShape, a, r)
	}
	if a < 0 {
		a += r
	}
	if o.k == nil {
		if a == 0 {
			return 0, fmt.Errorf("%w: the batch dimension is not an operand", ErrShape)
		}
		a--
	}
	return int(a), nil
}

// axes is axis for a list; duplicates are refused.
func (o operand) axes(list []int64) ([]int, error) {
	out := make([]int, len(list))
	for i, a := range list {
		x, err := o.axis(a)
		if err != nil {
			return nil, err
		}
		if slices.Contains(out[:i], x) {
			return nil, fmt.Errorf("%w: axis %d is named twice", ErrShape, a)
		}
		out[i] = x
	}
	return out, nil
}

// constInts returns the values of an integer constant with at most one dimension.
func (o operand) constInts(what string) ([]int64, error) {
	if o.k == nil {
		return nil, fmt.Errorf("%w: %s must be constant", ErrShape, what)
	}
	if !o.k.isInt || len(o.k.dims) > 1 {
		return nil, fmt.Errorf("%w: %s must be a list of integers", ErrType, what)
	}
	return o.k.i, nil
}

// constFloats returns the values of a float constant.
func (o operand) constFloats(what string) (*tensor, error) {
	if o.k == nil {
		return nil, fmt.Errorf("%w: %s must be constant", ErrShape, what)
	}
	if o.k.isInt {
		return nil, fmt.Errorf("%w: %s must be float", ErrType, what)
	}
	return o.k, nil
}

func (o operand) missing() bool { return o.k == nil && o.id < 0 }

// activation refuses constants and integers where an operator needs float activations.
func (o operand) activation(what string) error {
	if o.k != nil {
		return fmt.Errorf("%w: %s is constant", ErrShape, what)
	}
	if o.isInt {
		return fmt.Errorf("%w: %s is an integer", ErrType, what)
	}
	return nil
}
