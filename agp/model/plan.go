package model

import "math"

// Plan is a compiled graph for one flow: layers in order over values that live
// in one arena. It is immutable; executors (and device code) read it.
//
// A value is a list of Rows floats per flow. Multi-dimensional values are
// row-major without the batch dimension, so Reshape and Flatten are free.
type Plan struct {
	Inputs  int // floats per flow
	Outputs int
	In, Out int // value ids
	Values  []Value
	Layers  []Layer
	Arena   int // rows that hold all values, by Value.Offset
	Params  int // weights and biases
	MACs    int // multiply-accumulates per flow that are computed
	Final   Final
}

// Final says what the outputs of a plan are.
type Final uint8

// Kinds of output.
const (
	FinalOther   Final = iota // not probabilities
	FinalSoftmax              // one softmax over all outputs
	FinalSigmoid              // each output is a probability of its own
)

// FLOPs counts two operations per multiply-accumulate.
func (p *Plan) FLOPs() int { return 2 * p.MACs }

// Value is one activation.
type Value struct {
	Rows   int // floats per flow
	Offset int // first row in the arena
	Slack  int // rows after the value that its producer may overwrite
}

// Layer is one step. Out is never one of In, and never overlaps one in the arena.
type Layer struct {
	Name string // nodes of the file that it comes from
	In   []int
	Out  int
	Op   Op
}

// Op is one of the pointer types below.
type Op interface{ op() }

// Conv is a 2-D convolution without padding (a 1-D one has H = KH = 1); padding is
// a Gather before it. Input [C][H][W], output [F][OH][OW], after Pool [F][OH][OW/Pool].
type Conv struct {
	C, H, W, F, OH, OW, KH, KW int
	StrideH, StrideW           int
	DilationH, DilationW       int
	Group                      int
	Weights                    []float32 // [F][C/Group][KH][KW]
	Bias                       []float32 // [F]
	Relu                       bool
	Pool                       int // window and step of a max pool along W; 1 = none
}

func (c *Conv) macs() int {
	return c.F * c.OH * (c.OW / c.Pool * c.Pool) * (c.C / c.Group) * c.KH * c.KW
}

// Dense is y[t][n] = sum over k of W[n][k] x[t][k] + b[n].
type Dense struct {
	T, K, N int
	Weights []float32 // [N][K]
	Bias    []float32 // [N]
	Relu    bool
}

func (d *Dense) macs() int { return d.T * d.N * d.K }

// Pool is a 2-D max or average pool over [C][H][W]; windows are cut at the edges.
type Pool struct {
	C, H, W, OH, OW, KH, KW int
	StrideH, StrideW        int
	DilationH, DilationW    int
	Top, Left               int // padding
	Bottom, Right           int
	Average                 bool
	CountPad                bool // average divides by the window with its padding
}

// ReduceKind names a reduction.
type ReduceKind uint8

// Reductions.
const (
	ReduceMax ReduceKind = iota + 1
	ReduceSum
	ReduceMean
)

// Reduce takes [Outer][N] to [Outer].
type Reduce struct {
	Kind     ReduceKind
	Outer, N int
}

// Gather copies rows: Transpose, Slice, Pad, Concat, broadcasting. Index counts through
// the rows of all inputs one after the other; -1-j is Const[j].
type Gather struct {
	Index []int32
	Const []float32
}

// UnaryKind names an element-wise function.
type UnaryKind uint8

// Element-wise functions. A and B are the parameters in Unary.
const (
	Relu      UnaryKind = iota + 1
	LeakyRelu           // A: slope below 0
	Tanh
	Sigmoid
	Exp
	Log
	Abs
	Sign
	Sqrt
	Neg
	Floor
	Trunc // float to integer
	Clip  // A: low, B: high
)

// Unary applies Kind to each element.
type Unary struct {
	Kind UnaryKind
	A, B float32
}

// Affine is y = x*Scale[row] + Shift[row].
type Affine struct {
	Scale, Shift []float32
	Relu         bool
}

// BinaryKind names a function of two values.
type BinaryKind uint8

// Functions of two values.
const (
	Add BinaryKind = iota + 1
	Sub
	Mul
	Div
	Min
	Max
	Equal // this and the following give 1 or 0
	Greater
	Less
)

// Binary combines two values of equal size, or one value with Const.
type Binary struct {
	Kind  BinaryKind
	Const []float32 // second operand if there is one input
	Swap  bool      // Const is the first operand
}

// Embed replaces each input element, an index into Table, by D floats. Negative indices
// count from the end; what is still out of range takes the nearest entry.
type Embed struct {
	N, D  int
	Table []float32 // [N][D]
}

// Softmax normalises N elements over [Outer][N][Inner].
type Softmax struct {
	Outer, N, Inner int
}

func (*Conv) op()    {}
func (*Dense) op()   {}
func (*Pool) op()    {}
func (*Reduce) op()  {}
func (*Gather) op()  {}
func (*Unary) op()   {}
func (*Affine) op()  {}
func (*Binary) op()  {}
func (*Embed) op()   {}
func (*Softmax) op() {}

// apply computes one element. Functions are evaluated in double precision and
// rounded once, where the type of x does not make that pointless.
func apply(k UnaryKind, a, b, x float32) float32 {
	switch k {
	case Relu:
		if x < 0 {
			return 0
		}
	case LeakyRelu:
		if x < 0 {
			return a * x
		}
	case Tanh:
		return float32(math.Tanh(float64(x)))
	case Sigmoid:
		return float32(1 / (1 + math.Exp(-float64(x))))
	case Exp:
		return float32(math.Exp(float64(x)))
	case Log:
		return float32(math.Log(float64(x)))
	case Abs:
		return float32(math.Abs(float64(x)))
	case Sign:
		switch {
		case x > 0:
			return 1
		case x < 0:
			return -1
		}
	case Sqrt:
		return float32(math.Sqrt(float64(x)))
	case Neg:
		return -x
	case Floor:
		return float32(math.Floor(float64(x)))
	case Trunc:
		return float32(math.Trunc(float64(x)))
	case Clip:
		if x < a {
			x = a
		}
		if x > b {
			x = b
		}
	}
	return x
}

func combine(k BinaryKind, x, y float32) float32 {
	switch k {
	case Add:
		return x + y
	case Sub:
		return x - y
	case Mul:
		return x * y
	case Div:
		return x / y
	case Min:
		return min(x, y)
	case Max:
		return max(x, y)
	}
	if k == Equal && x == y || k == Greater && x > y || k == Less && x < y {
		return 1
	}
	return 0
}

var unaryNames = [...]string{Relu: "relu", LeakyRelu: "leaky relu", Tanh: "tanh", Sigmoid: "sigmoid", Exp: "exp", Log: "log",
	Abs: "abs", Sign: "sign", Sqrt: "sqrt", Neg: "neg", Floor: "floor", Trunc: "trunc", Clip: "clip"}

func (k UnaryKind) String() string { return unaryNames[k] }

var binaryNames = [...]string{Add: "add", Sub: "sub", Mul: "mul", Div: "div", Min: "min", Max: "max",
	Equal: "equal", Greater: "greater", Less: "less"}

func (k BinaryKind) String() string { return binaryNames[k] }

var reduceNames = [...]string{ReduceMax: "max", ReduceSum: "sum", ReduceMean: "mean"}

func (k ReduceKind) String() string { return reduceNames[k] }
