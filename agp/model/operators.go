package model

import (
	"fmt"
	"math"
	"slices"
)

const variadic = 1 << 20

type operator struct {
	min, max int // number of inputs
	build    func(b *builder, in []operand, a *attrs) (operand, error)
}

// operators is what a graph may use, opset 13 to 22.
var operators map[string]operator

func init() {
	operators = map[string]operator{
		"Conv":               {2, 3, buildConv},
		"MaxPool":            {1, 1, poolOp(false)},
		"AveragePool":        {1, 1, poolOp(true)},
		"GlobalMaxPool":      {1, 1, globalPool(ReduceMax)},
		"GlobalAveragePool":  {1, 1, globalPool(ReduceMean)},
		"Gemm":               {2, 3, buildGemm},
		"MatMul":             {2, 2, buildMatMul},
		"BatchNormalization": {5, 5, buildBatchNorm},

		"Relu":      {1, 1, unaryOp(Relu)},
		"Tanh":      {1, 1, unaryOp(Tanh)},
		"Sigmoid":   {1, 1, unaryOp(Sigmoid)},
		"Exp":       {1, 1, unaryOp(Exp)},
		"Log":       {1, 1, unaryOp(Log)},
		"Abs":       {1, 1, unaryOp(Abs)},
		"Sign":      {1, 1, unaryOp(Sign)},
		"Sqrt":      {1, 1, unaryOp(Sqrt)},
		"Neg":       {1, 1, unaryOp(Neg)},
		"Floor":     {1, 1, unaryOp(Floor)},
		"LeakyRelu": {1, 1, buildLeakyRelu},
		"Clip":      {1, 3, buildClip},
		"Cast":      {1, 1, buildCast},
		"Softmax":   {1, 1, buildSoftmax},

		"Add": {2, 2, binaryOp(Add)},
		"Sub": {2, 2, binaryOp(Sub)},
		"Mul": {2, 2, binaryOp(Mul)},
		"Div": {2, 2, binaryOp(Div)},
		"Min": {1, variadic, foldOp(Min)},
		"Max": {1, variadic, foldOp(Max)},

		"Equal":   {2, 2, compareOp(Equal)},
		"Greater": {2, 2, compareOp(Greater)},
		"Less":    {2, 2, compareOp(Less)},

		"ReduceMean": {1, 2, reduceOp(ReduceMean)},
		"ReduceMax":  {1, 2, reduceOp(ReduceMax)},
		"ReduceSum":  {1, 2, reduceOp(ReduceSum)},

		"Constant":  {0, 0, buildConstant},
		"Identity":  {1, 1, buildIdentity},
		"Dropout":   {1, 3, buildDropout},
		"Shape":     {1, 1, buildShape},
		"Flatten":   {1, 1, buildFlatten},
		"Reshape":   {2, 2, buildReshape},
		"Squeeze":   {1, 2, buildSqueeze},
		"Unsqueeze": {2, 2, buildUnsqueeze},
		"Transpose": {1, 1, buildTranspose},
		"Concat":    {1, variadic, buildConcat},
		"Slice":     {3, 5, buildSlice},
		"Gather":    {2, 2, buildGather},
		"Pad":       {2, 4, buildPad},
	}
}

// ---- convolution and pooling ----

// window is the geometry that Conv and the pools share, with 1-D as H = 1.
type window struct {
	c, h, w                  int
	kh, kw, sh, sw, dh, dw   int
	top, left, bottom, right int
	oh, ow                   int
	flat                     bool // one spatial dimension
}

func pair(list []int64, flat bool, def int, what string) (h, w int, err error) {
	want := 2
	if flat {
		want = 1
	}
	if list == nil {
		return def, def, nil
	}
	if len(list) != want {
		return 0, 0, fmt.Errorf("%w: %s has %d values, want %d", ErrShape, what, len(list), want)
	}
	for _, x := range list {
		if x < 0 || x > maxDim {
			return 0, 0, fmt.Errorf("%w: %s %d", ErrShape, what, x)
		}
	}
	if flat {
		return def, int(list[0]), nil
	}
	return int(list[0]), int(list[1]), nil
}

// readWindow reads the attributes. kernel overrides kernel_shape (Conv).
func readWindow(x operand, a *attrs, kernel []int) (g window, err error) {
	if err = x.activation("input"); err != nil {
		return
	}
	switch len(x.dims) {
	case 2:
		g.c, g.h, g.w, g.flat = x.dims[0], 1, x.dims[1], true
	case 3:
		g.c, g.h, g.w = x.dims[0], x.dims[1], x.dims[2]
	default:
		return g, fmt.Errorf("%w: rank %d; one or two spatial dimensions are supported", ErrShape, x.rank())
	}
	ks := a.ints("kernel_shape")
	if ks == nil {
		for _, k := range kernel {
			ks = append(ks, int64(k))
		}
	}
	if ks == nil {
		return g, fmt.Errorf("%w: no kernel_shape", ErrAttribute)
	}
	if g.kh, g.kw, err = pair(ks, g.flat, 1, "kernel_shape"); err != nil {
		return
	}
	if g.sh, g.sw, err = pair(a.ints("strides"), g.flat, 1, "strides"); err != nil {
		return
	}
	if g.dh, g.dw, err = pair(a.ints("dilations"), g.flat, 1, "dilations"); err != nil {
		return
	}
	if g.kh < 1 || g.kw < 1 || g.sh < 1 || g.sw < 1 || g.dh < 1 || g.dw < 1 {
		return g, fmt.Errorf("%w: kernel, stride or dilation below 1", ErrShape)
	}
	spanH, spanW := (g.kh-1)*g.dh+1, (g.kw-1)*g.dw+1
	ceil := a.int("ceil_mode", 0) != 0
	pads := a.ints("pads")
	switch auto := a.string("auto_pad", "NOTSET"); auto {
	case "NOTSET", "":
		n := 4
		if g.flat {
			n = 2
		}
		if pads != nil && len(pads) != n {
			return g, fmt.Errorf("%w: pads has %d values, want %d", ErrShape, len(pads), n)
		}
		for _, p := range pads {
			if p < 0 || p > maxDim {
				return g, fmt.Errorf("%w: pad %d", ErrShape, p)
			}
		}
		switch {
		case pads == nil:
		case g.flat:
			g.left, g.right = int(pads[0]), int(pads[1])
		default:
			g.top, g.left, g.bottom, g.right = int(pads[0]), int(pads[1]), int(pads[2]), int(pads[3])
		}
	case "VALID":
	case "SAME_UPPER", "SAME_LOWER":
		same := func(in, span, step int) (lo, hi int) {
			total := max(0, ((in+step-1)/step-1)*step+span-in)
			if auto == "SAME_UPPER" {
				return total / 2, total - total/2
			}
			return total - total/2, total / 2
		}
		g.top, g.bottom = same(g.h, spanH, g.sh)
		g.left, g.right = same(g.w, spanW, g.sw)
	default:
		return g, fmt.Errorf("%w: auto_pad %q", ErrAttribute, clip(auto))
	}
	g.oh, err = outSize(g.h, spanH, g.sh, g.top, g.bottom, ceil)
	if err == nil {
		g.ow, err = outSize(g.w, spanW, g.sw, g.left, g.right, ceil)
	}
	return
}

func outSize(in, span, step, lo, hi int, ceil bool) (int, error) {
	room := in + lo + hi - span
	if room < 0 {
		return 0, fmt.Errorf("%w: window of %d does not fit %d", ErrShape, span, in+lo+hi)
	}
	n := room/step + 1
	if ceil && room%step != 0 {
		n++
		if (n-1)*step >= in+lo { // a window must start inside the input or its leading pad
			n--
		}
	}
	return n, nil
}

// dims is the result shape for f channels.
func (g *window) dims(f int) []int {
	if g.flat {
		return []int{f, g.ow}
	}
	return []int{f, g.oh, g.ow}
}

func buildConv(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	w, err := in[1].constFloats("weight")
	if err != nil {
		return x, err
	}
	if len(w.dims) < 3 || len(w.dims) != x.rank() {
		return x, fmt.Errorf("%w: weight %v for input %v", ErrShape, w.dims, x.dims)
	}
	g, err := readWindow(x, a, w.dims[2:])
	if err != nil {
		return x, err
	}
	c := &Conv{C: g.c, H: g.h, W: g.w, F: w.dims[0], OH: g.oh, OW: g.ow, KH: g.kh, KW: g.kw,
		StrideH: g.sh, StrideW: g.sw, DilationH: g.dh, DilationW: g.dw, Pool: 1}
	group := a.int("group", 1)
	if group < 1 || group > int64(g.c) || g.c%int(group) != 0 || c.F%int(group) != 0 || c.F == 0 {
		return x, fmt.Errorf("%w: %d groups of %d channels and %d filters", ErrShape, group, g.c, c.F)
	}
	c.Group = int(group)
	want := []int{c.F, c.C / c.Group, c.KH, c.KW}
	if g.flat {
		want = []int{c.F, c.C / c.Group, c.KW}
	}
	if !slices.Equal(w.dims, want) {
		return x, fmt.Errorf("%w: weight %v, want %v", ErrShape, w.dims, want)
	}
	c.Weights = slices.Clone(w.f)
	if c.Bias, err = biasOf(in[2], c.F); err != nil {
		return x, err
	}
	if g.top+g.left+g.bottom+g.right > 0 {
		c.H, c.W = c.H+g.top+g.bottom, c.W+g.left+g.right
		flat := operand{id: x.id, dims: []int{c.C, g.h, g.w}}
		dims := []int{c.C, c.H, c.W}
		if err := b.checkMove(flat, dims); err != nil {
			return x, err
		}
		x, err = b.move(flat, dims, padIndex(flat.dims, dims, []int{0, g.top, g.left}), 0)
		if err != nil {
			return x, err
		}
	}
	return b.emit(c, g.dims(c.F), convSlack(c), x.id)
}

// biasOf returns a private copy of an optional bias of n values.
func biasOf(o operand, n int) ([]float32, error) {
	if o.missing() {
		return make([]float32, n), nil
	}
	t, err := o.constFloats("bias")
	if err != nil {
		return nil, err
	}
	if len(t.dims) != 1 || t.dims[0] != n {
		return nil, fmt.Errorf("%w: bias %v, want [%d]", ErrShape, t.dims, n)
	}
	return slices.Clone(t.f), nil
}

func poolOp(average bool) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, a *attrs) (operand, error) {
		g, err := readWindow(in[0], a, nil)
		if err != nil {
			return in[0], err
		}
		p := &Pool{C: g.c, H: g.h, W: g.w, OH: g.oh, OW: g.ow, KH: g.kh, KW: g.kw, StrideH: g.sh, StrideW: g.sw,
			DilationH: g.dh, DilationW: g.dw, Top: g.top, Left: g.left, Bottom: g.bottom, Right: g.right, Average: average}
		if g.top >= g.kh || g.left >= g.kw || g.bottom >= g.kh || g.right >= g.kw {
			return in[0], fmt.Errorf("%w: padding is not smaller than the window", ErrShape)
		}
		if g.kh > g.h+g.top+g.bottom || g.kw > g.w+g.left+g.right {
			return in[0], fmt.Errorf("%w: window is larger than the input", ErrShape)
		}
		if average {
			p.CountPad = a.int("count_include_pad", 0) != 0
			if p.DilationH > 1 || p.DilationW > 1 {
				return in[0], fmt.Errorf("%w: dilated AveragePool", ErrAttribute)
			}
		} else if a.int("storage_order", 0) != 0 {
			return in[0], fmt.Errorf("%w: storage_order", ErrAttribute)
		}
		return b.emit(p, g.dims(g.c), 0, in[0].id)
	}
}

func globalPool(k ReduceKind) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, _ *attrs) (operand, error) {
		x := in[0]
		if err := x.activation("input"); err != nil {
			return x, err
		}
		if len(x.dims) < 2 {
			return x, fmt.Errorf("%w: rank %d", ErrShape, x.rank())
		}
		dims := slices.Clone(x.dims)
		for i := range dims[1:] {
			dims[i+1] = 1
		}
		return b.emit(&Reduce{Kind: k, Outer: x.dims[0], N: size(x.dims[1:])}, dims, 0, x.id)
	}
}

// ---- matrix products ----

func buildGemm(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	if err := x.activation("A"); err != nil {
		return x, err
	}
	w, err := in[1].constFloats("B")
	if err != nil {
		return x, err
	}
	if len(x.dims) != 1 || len(w.dims) != 2 || a.int("transA", 0) != 0 {
		return x, fmt.Errorf("%w: A %v (without batch) and B %v", ErrShape, x.dims, w.dims)
	}
	d := &Dense{T: 1, K: w.dims[0], N: w.dims[1]}
	transB := a.int("transB", 0) != 0
	if transB {
		d.K, d.N = d.N, d.K
	}
	alpha, beta := a.float("alpha", 1), a.float("beta", 1)
	if err := d.setWeights(w, transB, alpha, x); err != nil {
		return x, err
	}
	if !in[2].missing() {
		c, err := in[2].constFloats("C")
		if err != nil {
			return x, err
		}
		dims, err := broadcast(c.dims, []int{1, d.N})
		if err != nil || !slices.Equal(dims, []int{1, d.N}) {
			return x, fmt.Errorf("%w: C %v, want [%d]", ErrShape, c.dims, d.N)
		}
		for i, j := range broadcastIndex(c.dims, dims) {
			d.Bias[i] = beta * c.f[j]
		}
	}
	return b.emit(d, []int{d.N}, 7, x.id)
}

func (d *Dense) setWeights(w *tensor, transposed bool, alpha float32, x operand) error {
	if d.N == 0 || d.K == 0 || x.dims[len(x.dims)-1] != d.K {
		return fmt.Errorf("%w: input %v and matrix %v", ErrShape, x.dims, w.dims)
	}
	d.Bias = make([]float32, d.N)
	d.Weights = make([]float32, d.N*d.K)
	for n := range d.N {
		for k := range d.K {
			if transposed {
				d.Weights[n*d.K+k] = alpha * w.f[n*d.K+k]
			} else {
				d.Weights[n*d.K+k] = alpha * w.f[k*d.N+n]
			}
		}
	}
	return nil
}

func buildMatMul(b *builder, in []operand, _ *attrs) (operand, error) {
	x := in[0]
	if err := x.activation("A"); err != nil {
		return x, err
	}
	w, err := in[1].constFloats("B")
	if err != nil {
		return x, err
	}
	if len(x.dims) == 0 || len(w.dims) != 2 {
		return x, fmt.Errorf("%w: A %v (without batch) and B %v", ErrShape, x.dims, w.dims)
	}
	lead := x.dims[:len(x.dims)-1]
	d := &Dense{T: size(lead), K: w.dims[0], N: w.dims[1]}
	if err := d.setWeights(w, false, 1, x); err != nil {
		return x, err
	}
	return b.emit(d, append(slices.Clone(lead), d.N), 7, x.id)
}

func buildBatchNorm(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	if err := x.activation("input"); err != nil {
		return x, err
	}
	eps := a.float("epsilon", 1e-5)
	a.float("momentum", 0) // training only
	if a.int("training_mode", 0) != 0 {
		return x, fmt.Errorf("%w: training_mode", ErrAttribute)
	}
	if len(x.dims) == 0 {
		return x, fmt.Errorf("%w: rank %d", ErrShape, x.rank())
	}
	c := x.dims[0]
	var p [4][]float32 // scale, bias, mean, variance
	for i := range p {
		var err error
		if p[i], err = biasOf(in[1+i], c); err != nil {
			return x, err
		}
	}
	n := size(x.dims)
	af := &Affine{Scale: make([]float32, n), Shift: make([]float32, n)}
	per := n / max(c, 1)
	for i := range c {
		s := float64(p[0][i]) / math.Sqrt(float64(p[3][i])+float64(eps))
		t := float64(p[1][i]) - float64(p[2][i])*s
		for j := range per {
			af.Scale[i*per+j], af.Shift[i*per+j] = float32(s), float32(t)
		}
	}
	return b.emit(af, x.dims, 0, x.id)
}

// ---- element-wise ----

func unaryOp(k UnaryKind) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, _ *attrs) (operand, error) { return b.unary(in[0], Unary{Kind: k}) }
}

func (b *builder) unary(x operand, u Unary) (operand, error) {
	if x.k == nil {
		if x.isInt && u.Kind != Clip && u.Kind != Relu && u.Kind != Abs && u.Kind != Sign && u.Kind != Neg {
			return x, fmt.Errorf("%w: integer input", ErrType)
		}
		r, err := b.emit(&u, x.dims, 0, x.id)
		r.isInt = x.isInt
		return r, err
	}
	if x.k.isInt {
		return x, fmt.Errorf("%w: integer constant", ErrType)
	}
	t, err := b.newConst(x.k.dims, false)
	if err != nil {
		return x, err
	}
	for i, v := range x.k.f {
		t.f[i] = apply(u.Kind, u.A, u.B, v)
	}
	return operand{k: t}, nil
}

func buildLeakyRelu(b *builder, in []operand, a *attrs) (operand, error) {
	return b.unary(in[0], Unary{Kind: LeakyRelu, A: a.float("alpha", 0.01)})
}

func buildClip(b *builder, in []operand, _ *attrs) (operand, error) {
	u := Unary{Kind: Clip, A: float32(math.Inf(-1)), B: float32(math.Inf(1))}
	for i, p := range []*float32{&u.A, &u.B} {
		o := in[1+i]
		if o.missing() {
			continue
		}
		if o.k == nil || o.k.len() != 1 {
			return o, fmt.Errorf("%w: limits of Clip must be constant scalars", ErrShape)
		}
		if o.k.isInt {
			*p = float32(o.k.i[0])
		} else {
			*p = o.k.f[0]
		}
	}
	return b.unary(in[0], u)
}

func buildCast(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	a.int("saturate", 1) // float8 only
	to := a.int("to", 0)
	var toInt bool
	switch to {
	case onnxFloat:
	case onnxInt32, onnxInt64:
		toInt = true
	default:
		return x, fmt.Errorf("%w: cast to element type %d", ErrType, to)
	}
	if toInt == x.isInt {
		return x, nil
	}
	if x.k == nil {
		if !toInt {
			x.isInt = false
			return x, nil
		}
		r, err := b.emit(&Unary{Kind: Trunc}, x.dims, 0, x.id)
		r.isInt = true
		return r, err
	}
	t, err := b.newConst(x.k.dims, toInt)
	if err != nil {
		return x, err
	}
	for i := range t.len() {
		if toInt {
			t.i[i] = int64(x.k.f[i])
		} else {
			t.f[i] = float32(x.k.i[i])
		}
	}
	return operand{k: t, isInt: toInt}, nil
}

func buildSoftmax(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	if err := x.activation("input"); err != nil {
		return x, err
	}
	axis, err := x.axis(a.int("axis", -1))
	if err != nil {
		return x, err
	}
	return b.emit(&Softmax{Outer: size(x.dims[:axis]), N: x.dims[axis], Inner: size(x.dims[axis+1:])}, x.dims, 0, x.id)
}

func binaryOp(k BinaryKind) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, _ *attrs) (operand, error) { return b.binary(k, in[0], in[1]) }
}

// compareOp gives integers (0 and 1), which Cast turns into floats.
func compareOp(k BinaryKind) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, _ *attrs) (operand, error) {
		if in[0].k != nil && in[1].k != nil {
			return in[0], fmt.Errorf("%w: comparison of constants", ErrShape)
		}
		r, err := b.binary(k, in[0], in[1])
		r.isInt = true
		return r, err
	}
}

// foldOp applies a two-operand function over a list of inputs.
func foldOp(k BinaryKind) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, _ *attrs) (operand, error) {
		x := in[0]
		var err error
		for _, y := range in[1:] {
			if x, err = b.binary(k, x, y); err != nil {
				return x, err
			}
		}
		return x, nil
	}
}

func (b *builder) binary(k BinaryKind, x, y operand) (operand, error) {
	if x.isInt != y.isInt {
		return x, fmt.Errorf("%w: integer and float operands", ErrType)
	}
	switch {
	case x.k != nil && y.k != nil:
		return b.foldBinary(k, x, y)
	case x.k == nil && y.k == nil:
		if len(x.dims) != len(y.dims) {
			return x, fmt.Errorf("%w: %v and %v (without batch) differ in rank", ErrShape, x.dims, y.dims)
		}
		if k == Div && x.isInt {
			return x, fmt.Errorf("%w: integer division", ErrType)
		}
		dims, err := broadcast(x.dims, y.dims)
		if err != nil {
			return x, err
		}
		if x, err = b.expand(x, dims); err != nil {
			return x, err
		}
		if y, err = b.expand(y, dims); err != nil {
			return y, err
		}
		r, err := b.emit(&Binary{Kind: k}, dims, 0, x.id, y.id)
		r.isInt = x.isInt
		return r, err
	case x.k != nil:
		return b.withConst(k, y, x.k, true)
	default:
		return b.withConst(k, x, y.k, false)
	}
}

// expand broadcasts an operand to dims.
func (b *builder) expand(o operand, dims []int) (operand, error) {
	if slices.Equal(o.shape(), dims) {
		return o, nil
	}
	if err := b.checkMove(o, dims); err != nil {
		return o, err
	}
	return b.move(o, dims, broadcastIndex(o.shape(), dims), 0)
}

func (b *builder) foldBinary(k BinaryKind, x, y operand) (operand, error) {
	dims, err := broadcast(x.k.dims, y.k.dims)
	if err != nil {
		return x, err
	}
	if x, err = b.expand(x, dims); err != nil {
		return x, err
	}
	if y, err = b.expand(y, dims); err != nil {
		return x, err
	}
	t, err := b.newConst(dims, x.isInt)
	if err != nil {
		return x, err
	}
	for i := range t.len() {
		if !t.isInt {
			t.f[i] = combine(k, x.k.f[i], y.k.f[i])
			continue
		}
		p, q := x.k.i[i], y.k.i[i]
		switch k {
		case Add:
			t.i[i] = p + q
		case Sub:
			t.i[i] = p - q
		case Mul:
			t.i[i] = p * q
		case Div:
			if q == 0 {
				return x, fmt.Errorf("%w: integer division by zero", ErrShape)
			}
			t.i[i] = p / q
		case Min:
			t.i[i] = min(p, q)
		case Max:
			t.i[i] = max(p, q)
		}
	}
	return operand{k: t, isInt: t.isInt}, nil
}

// withConst combines an activation with a constant; first says that the
// constant is the left operand.
func (b *builder) withConst(k BinaryKind, x operand, c *tensor, first bool) (operand, error) {
	// The constant's dimension that would meet the batch must be 1.
	cd := c.dims
	for len(cd) > len(x.dims) {
		if cd[0] != 1 || len(cd) > len(x.dims)+1 {
			return x, fmt.Errorf("%w: constant %v and input %v (without batch)", ErrShape, c.dims, x.dims)
		}
		cd = cd[1:]
	}
	dims, err := broadcast(x.dims, cd)
	if err != nil {
		return x, err
	}
	if x, err = b.expand(x, dims); err != nil {
		return x, err
	}
	n, err := count(dims, maxRows)
	if err != nil {
		return x, err
	}
	row := make([]float32, n)
	for i, j := range broadcastIndex(cd, dims) {
		if c.isInt {
			row[i] = float32(c.i[j])
		} else {
			row[i] = c.f[j]
		}
	}
	if x.isInt && k == Div {
		return x, fmt.Errorf("%w: integer division", ErrType)
	}
	fill := func(v float32) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = v
		}
		return s
	}
	var op Op
	switch {
	case k == Add:
		op = &Affine{Scale: fill(1), Shift: row}
	case k == Mul:
		op = &Affine{Scale: row, Shift: fill(0)}
	case k == Sub && first: // c - x
		op = &Affine{Scale: fill(-1), Shift: row}
	case k == Sub:
		for i := range row {
			row[i] = -row[i]
		}
		op = &Affine{Scale: fill(1), Shift: row}
	default:
		op = &Binary{Kind: k, Const: row, Swap: first}
	}
	r, err := b.emit(op, dims, 0, x.id)
	r.isInt = x.isInt
	return r, err
}

// ---- reductions ----

func reduceOp(k ReduceKind) func(*builder, []operand, *attrs) (operand, error) {
	return func(b *builder, in []operand, a *attrs) (operand, error) {
		x := in[0]
		if err := x.activation("input"); err != nil {
			return x, err
		}
		list := a.ints("axes") // an input from opset 18 on
		if !in[1].missing() {
			var err error
			if list, err = in[1].constInts("axes"); err != nil {
				return x, err
			}
		}
		noop := a.int("noop_with_empty_axes", 0) != 0
		if len(list) == 0 {
			if noop {
				return x, nil
			}
			return x, fmt.Errorf("%w: reduction over the batch dimension", ErrShape)
		}
		axes, err := x.axes(list)
		if err != nil {
			return x, err
		}
		// Bring the reduced dimensions to the end; then one reduction does.
		var perm, keep, dims []int
		n := 1
		for i, d := range x.dims {
			if slices.Contains(axes, i) {
				n *= d
				if a.int("keepdims", 1) != 0 {
					dims = append(dims, 1)
				}
			} else {
				perm = append(perm, i)
				keep = append(keep, d)
				dims = append(dims, d)
			}
		}
		a.int("keepdims", 1)
		slices.Sort(axes)
		perm = append(perm, axes...)
		moved, idx := permuteIndex(x.dims, perm)
		if x, err = b.move(x, moved, idx, 0); err != nil {
			return x, err
		}
		return b.emit(&Reduce{Kind: k, Outer: size(keep), N: n}, dims, 0, x.id)
	}
}

// ---- constants and shapes ----

func buildConstant(b *builder, _ []operand, a *attrs) (operand, error) {
	if x := a.find("value", attrTensor); x != nil && x.t != nil {
		return operand{k: x.t, isInt: x.t.isInt}, nil
	}
	t := &tensor{}
	if x := a.find("value_float", attrFloat); x != nil {
		t.f = []float32{x.f}
	} else if x := a.find("value_floats", attrFloats); x != nil {
		t.f, t.dims = x.floats, []int{len(x.floats)}
	} else if x := a.find("value_int", attrInt); x != nil {
		t.i, t.isInt = []int64{x.i}, true
	} else if x := a.find("value_ints", attrInts); x != nil {
		t.i, t.isInt, t.dims = x.ints, true, []int{len(x.ints)}
	} else {
		return operand{}, fmt.Errorf("%w: no supported value", ErrAttribute)
	}
	return operand{k: t, isInt: t.isInt}, b.g.take(t.len())
}

func buildIdentity(_ *builder, in []operand, _ *attrs) (operand, error) { return in[0], nil }

func buildDropout(_ *builder, in []operand, a *attrs) (operand, error) {
	a.int("seed", 0)
	if t := in[2].k; t != nil && t.len() == 1 && t.isInt && t.i[0] != 0 {
		return in[0], fmt.Errorf("%w: training_mode", ErrAttribute)
	}
	return in[0], nil
}

func buildShape(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	var full []int64
	if x.k == nil {
		full = append(full, batchMark)
	}
	for _, d := range x.shape() {
		full = append(full, int64(d))
	}
	n := int64(len(full))
	lo, hi := a.int("start", 0), a.int("end", n)
	for _, p := range []*int64{&lo, &hi} {
		if *p < 0 {
			*p += n
		}
		*p = min(max(*p, 0), n)
	}
	full = full[lo:max(lo, hi)]
	return operand{k: &tensor{dims: []int{len(full)}, isInt: true, i: full}, isInt: true}, b.g.take(len(full))
}

func buildFlatten(_ *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	axis := a.int("axis", 1)
	if x.k != nil {
		return x, fmt.Errorf("%w: Flatten of a constant", ErrShape)
	}
	if axis < 0 {
		axis += int64(x.rank())
	}
	if axis != 1 {
		return x, fmt.Errorf("%w: axis %d would merge the batch", ErrShape, axis)
	}
	return reshape(x, []int{size(x.dims)})
}

func buildReshape(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	list, err := in[1].constInts("shape")
	if err != nil {
		return x, err
	}
	zero := a.int("allowzero", 0) != 0
	list = slices.Clone(list)
	src := x.shape()
	if x.k == nil {
		if len(list) == 0 {
			return x, fmt.Errorf("%w: shape %v has no batch", ErrShape, list)
		}
		switch d := list[0]; {
		case d == batchMark, d == 0 && !zero, d == 1 && b.one:
		case d == -1:
			// Stands for the batch only if the rest holds exactly one flow, which reshape checks below.
			if slices.Contains(list[1:], -1) {
				return x, fmt.Errorf("%w: two unknown dimensions in %v", ErrShape, list)
			}
		default:
			return x, fmt.Errorf("%w: shape %v does not keep the batch", ErrShape, list)
		}
		list = list[1:]
	}
	if len(list) > maxRank {
		return x, fmt.Errorf("%w: rank %d", ErrTooLarge, len(list))
	}
	dims := make([]int, len(list))
	free, known := -1, 1
	for i, d := range list {
		switch {
		case d == -1 && free < 0:
			free = i
			continue
		case d == 0 && !zero:
			if i >= len(src) {
				return x, fmt.Errorf("%w: shape %v copies a dimension that %v lacks", ErrShape, list, src)
			}
			d = int64(src[i])
		case d < 0 || d > maxDim:
			return x, fmt.Errorf("%w: dimension %d", ErrShape, d)
		}
		dims[i] = int(d)
		if known *= int(d); known > maxElements {
			return x, fmt.Errorf("%w: shape %v", ErrTooLarge, list)
		}
	}
	if free >= 0 {
		if known == 0 {
			return x, fmt.Errorf("%w: shape %v", ErrShape, list)
		}
		dims[free] = size(src) / known
	}
	return reshape(x, dims)
}

func buildSqueeze(_ *builder, in []operand, _ *attrs) (operand, error) {
	x := in[0]
	var drop []int
	if in[1].missing() {
		if x.k == nil {
			return x, fmt.Errorf("%w: Squeeze without axes could drop the batch", ErrShape)
		}
		for i, d := range x.shape() {
			if d == 1 {
				drop = append(drop, i)
			}
		}
	} else {
		list, err := in[1].constInts("axes")
		if err != nil {
			return x, err
		}
		if drop, err = x.axes(list); err != nil {
			return x, err
		}
	}
	var dims []int
	for i, d := range x.shape() {
		if !slices.Contains(drop, i) {
			dims = append(dims, d)
		} else if d != 1 {
			return x, fmt.Errorf("%w: squeezed dimension is %d", ErrShape, d)
		}
	}
	return reshape(x, dims)
}

func buildUnsqueeze(_ *builder, in []operand, _ *attrs) (operand, error) {
	x := in[0]
	list, err := in[1].constInts("axes")
	if err != nil {
		return x, err
	}
	rank := x.rank() + len(list)
	if rank > maxRank {
		return x, fmt.Errorf("%w: rank %d", ErrTooLarge, rank)
	}
	isNew := make([]bool, rank)
	for _, a := range list {
		if a < 0 {
			a += int64(rank)
		}
		if a < 0 || a >= int64(rank) || isNew[a] {
			return x, fmt.Errorf("%w: axes %v for rank %d", ErrShape, list, rank)
		}
		isNew[a] = true
	}
	if x.k == nil {
		if isNew[0] {
			return x, fmt.Errorf("%w: a dimension before the batch", ErrShape)
		}
		isNew = isNew[1:]
	}
	var dims []int
	src := x.shape()
	for _, n := range isNew {
		if n {
			dims = append(dims, 1)
			continue
		}
		dims = append(dims, src[0])
		src = src[1:]
	}
	return reshape(x, dims)
}

// ---- rearranging ----

func buildTranspose(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	list := a.ints("perm")
	n := x.rank()
	if list == nil {
		for i := range n {
			list = append(list, int64(n-1-i))
		}
	}
	if len(list) != n {
		return x, fmt.Errorf("%w: perm %v for rank %d", ErrShape, list, n)
	}
	if x.k == nil {
		if list[0] != 0 {
			return x, fmt.Errorf("%w: perm %v moves the batch", ErrShape, list)
		}
		list = list[1:]
	}
	perm, err := x.axes(list)
	if err != nil {
		return x, err
	}
	if err := b.checkMove(x, x.shape()); err != nil {
		return x, err
	}
	dims, idx := permuteIndex(x.shape(), perm)
	return b.move(x, dims, idx, 0)
}

func buildConcat(b *builder, in []operand, a *attrs) (operand, error) {
	// With one activation all parts are seen without the batch dimension.
	ref := in[0]
	for _, o := range in {
		if o.k == nil {
			ref = o
			break
		}
	}
	axis, err := ref.axis(a.int("axis", 0))
	if err != nil {
		return ref, err
	}
	allConst := ref.k != nil
	dims := slices.Clone(ref.shape())
	dims[axis] = 0
	var parts [][]int
	for _, o := range in {
		if o.missing() {
			return o, fmt.Errorf("%w: missing input", ErrFormat)
		}
		if o.isInt != ref.isInt {
			return o, fmt.Errorf("%w: integer and float inputs", ErrType)
		}
		s := o.shape()
		if o.k != nil && !allConst {
			if len(s) != len(dims)+1 || s[0] != 1 || !b.one {
				return o, fmt.Errorf("%w: constant %v beside an activation", ErrShape, s)
			}
			s = s[1:]
		}
		if len(s) != len(dims) {
			return o, fmt.Errorf("%w: %v and %v differ in rank", ErrShape, s, dims)
		}
		for i := range s {
			if i != axis && s[i] != dims[i] {
				return o, fmt.Errorf("%w: %v and %v", ErrShape, s, dims)
			}
		}
		dims[axis] += s[axis]
		parts = append(parts, s)
		if dims[axis] > maxDim {
			return o, fmt.Errorf("%w: concatenation of %d", ErrTooLarge, dims[axis])
		}
	}
	if err := b.checkMove(ref, dims); err != nil {
		return ref, err
	}
	outer, inner := size(dims[:axis]), size(dims[axis+1:])
	if allConst {
		t, err := b.newConst(dims, ref.isInt)
		if err != nil {
			return ref, err
		}
		at := 0
		for o := range outer {
			for i := range in {
				n := parts[i][axis] * inner
				if t.isInt {
					copy(t.i[at:], in[i].k.i[o*n:(o+1)*n])
				} else {
					copy(t.f[at:], in[i].k.f[o*n:(o+1)*n])
				}
				at += n
			}
		}
		return operand{k: t, isInt: t.isInt}, nil
	}
	g := &Gather{Index: make([]int32, 0, size(dims))}
	base := make([]int, len(in)) // first row of each part in the joined inputs, or -1-base in Const
	var ids []int
	rows := 0
	for i, o := range in {
		if o.k == nil {
			base[i] = rows
			rows += size(o.dims)
			ids = append(ids, o.id)
			continue
		}
		base[i] = -1 - len(g.Const)
		for j := range o.k.len() {
			if o.k.isInt {
				g.Const = append(g.Const, float32(o.k.i[j]))
			} else {
				g.Const = append(g.Const, o.k.f[j])
			}
		}
	}
	for o := range outer {
		for i := range in {
			n := parts[i][axis] * inner
			for j := o * n; j < (o+1)*n; j++ {
				if base[i] >= 0 {
					g.Index = append(g.Index, int32(base[i]+j))
				} else {
					g.Index = append(g.Index, int32(base[i]-j))
				}
			}
		}
	}
	r, err := b.emit(g, dims, 0, ids...)
	r.isInt = ref.isInt
	return r, err
}

func buildSlice(b *builder, in []operand, _ *attrs) (operand, error) {
	x := in[0]
	starts, err := in[1].constInts("starts")
	if err != nil {
		return x, err
	}
	ends, err := in[2].constInts("ends")
	if err != nil {
		return x, err
	}
	list := make([]int64, len(starts))
	for i := range list {
		list[i] = int64(i)
	}
	if !in[3].missing() {
		if list, err = in[3].constInts("axes"); err != nil {
			return x, err
		}
	}
	steps := make([]int64, len(starts))
	for i := range steps {
		steps[i] = 1
	}
	if !in[4].missing() {
		if steps, err = in[4].constInts("steps"); err != nil {
			return x, err
		}
	}
	if len(ends) != len(starts) || len(list) != len(starts) || len(steps) != len(starts) {
		return x, fmt.Errorf("%w: %d starts, %d ends, %d axes, %d steps", ErrShape, len(starts), len(ends), len(list), len(steps))
	}
	axes, err := x.axes(list)
	if err != nil {
		return x, err
	}
	dims := slices.Clone(x.shape())
	start := make([]int, len(dims))
	step := make([]int, len(dims))
	for i := range step {
		step[i] = 1
	}
	for i, ax := range axes {
		d := int64(dims[ax])
		lo, hi, st := starts[i], ends[i], steps[i]
		if st == 0 || st < -maxDim || st > maxDim {
			return x, fmt.Errorf("%w: step %d", ErrShape, st)
		}
		if lo < 0 {
			lo += d
		}
		if hi < 0 {
			hi += d
		}
		n := int64(0)
		if st > 0 {
			lo, hi = min(max(lo, 0), d), min(max(hi, 0), d)
			n = (hi - lo + st - 1) / st
		} else {
			lo, hi = min(max(lo, 0), d-1), min(max(hi, -1), d-1)
			n = (lo - hi - st - 1) / -st
		}
		if hi == lo || n < 0 {
			n = 0
		}
		dims[ax], start[ax], step[ax] = int(n), int(lo), int(st)
	}
	if err := b.checkMove(x, dims); err != nil {
		return x, err
	}
	return b.move(x, dims, sliceIndex(x.shape(), dims, start, step), 0)
}

func buildGather(b *builder, in []operand, a *attrs) (operand, error) {
	x, sel := in[0], in[1]
	if !sel.isInt {
		return x, fmt.Errorf("%w: indices must be integers", ErrType)
	}
	axis, err := x.axis(a.int("axis", 0))
	if err != nil {
		return x, err
	}
	if sel.k == nil { // embedding
		if x.k == nil {
			return x, fmt.Errorf("%w: Gather from an activation by an activation", ErrShape)
		}
		if axis != 0 || x.k.isInt || len(x.k.dims) == 0 || x.k.len() == 0 {
			return x, fmt.Errorf("%w: Gather by an activation needs a float table and axis 0, has %v and %d", ErrShape, x.k.dims, axis)
		}
		e := &Embed{N: x.k.dims[0], D: size(x.k.dims[1:]), Table: x.k.f}
		return b.emit(e, append(slices.Clone(sel.dims), x.k.dims[1:]...), 0, sel.id)
	}
	src := x.shape()
	dims := append(append(slices.Clone(src[:axis]), sel.k.dims...), src[axis+1:]...)
	if err := b.checkMove(x, dims); err != nil {
		return x, err
	}
	entries := make([]int, sel.k.len())
	for i, e := range sel.k.i {
		d := int64(src[axis])
		if e < 0 {
			e += d
		}
		if e < 0 || e >= d {
			return x, fmt.Errorf("%w: index %d of %d", ErrShape, sel.k.i[i], d)
		}
		entries[i] = int(e)
	}
	dims, idx := takeIndex(src, axis, entries, sel.k.dims)
	return b.move(x, dims, idx, 0)
}

func buildPad(b *builder, in []operand, a *attrs) (operand, error) {
	x := in[0]
	if mode := a.string("mode", "constant"); mode != "constant" {
		return x, fmt.Errorf("%w: mode %q", ErrAttribute, clip(mode))
	}
	pads, err := in[1].constInts("pads")
	if err != nil {
		return x, err
	}
	var fill float32
	if !in[2].missing() {
		t := in[2].k
		if t == nil || t.len() != 1 {
			return x, fmt.Errorf("%w: constant_value must be a constant scalar", ErrShape)
		}
		if t.isInt {
			fill = float32(t.i[0])
		} else {
			fill = t.f[0]
		}
	}
	r := x.rank()
	lo, hi := make([]int64, r), make([]int64, r)
	if in[3].missing() {
		if len(pads) != 2*r {
			return x, fmt.Errorf("%w: %d pads for rank %d", ErrShape, len(pads), r)
		}
		copy(lo, pads[:r])
		copy(hi, pads[r:])
	} else {
		axes, err := in[3].constInts("axes")
		if err != nil {
			return x, err
		}
		if len(pads) != 2*len(axes) {
			return x, fmt.Errorf("%w: %d pads for %d axes", ErrShape, len(pads), len(axes))
		}
		for i, ax := range axes {
			if ax < 0 {
				ax += int64(r)
			}
			if ax < 0 || ax >= int64(r) {
				return x, fmt.Errorf("%w: axis %d of rank %d", ErrShape, axes[i], r)
			}
			lo[ax], hi[ax] = pads[i], pads[len(axes)+i]
		}
	}
	if x.k == nil {
		if lo[0] != 0 || hi[0] != 0 {
			return x, fmt.Errorf("%w: padding of the batch", ErrShape)
		}
		lo, hi = lo[1:], hi[1:]
	}
	src := x.shape()
	dims, before := make([]int, len(src)), make([]int, len(src))
	for i, d := range src {
		if lo[i] < -maxDim || hi[i] < -maxDim || lo[i] > maxDim || hi[i] > maxDim {
			return x, fmt.Errorf("%w: pads %v", ErrTooLarge, pads)
		}
		before[i] = int(lo[i])
		if dims[i] = d + int(lo[i]) + int(hi[i]); dims[i] < 0 {
			return x, fmt.Errorf("%w: pads %v cut more than %v holds", ErrShape, pads, src)
		}
	}
	if err := b.checkMove(x, dims); err != nil {
		return x, err
	}
	return b.move(x, dims, padIndex(src, dims, before), fill)
}
