package model

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/encoding/protowire"
)

// A small ONNX writer, enough to make the files that no exporter would write.

type msg []byte

func (m msg) bytes(num protowire.Number, v []byte) msg {
	return protowire.AppendBytes(protowire.AppendTag(m, num, protowire.BytesType), v)
}

func (m msg) str(num protowire.Number, v string) msg { return m.bytes(num, []byte(v)) }

func (m msg) int(num protowire.Number, v int64) msg {
	return protowire.AppendVarint(protowire.AppendTag(m, num, protowire.VarintType), uint64(v))
}

func (m msg) float(num protowire.Number, v float32) msg {
	return protowire.AppendFixed32(protowire.AppendTag(m, num, protowire.Fixed32Type), math.Float32bits(v))
}

func floatTensor(name string, dims []int64, data []float32) msg {
	var raw []byte
	for _, x := range data {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return tensorHead(name, onnxFloat, dims).bytes(9, raw)
}

func intTensor(name string, dims []int64, data []int64) msg {
	var raw []byte
	for _, x := range data {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(x))
	}
	return tensorHead(name, onnxInt64, dims).bytes(9, raw)
}

func tensorHead(name string, dtype int64, dims []int64) msg {
	var m msg
	for _, d := range dims {
		m = m.int(1, d)
	}
	return m.int(2, dtype).str(8, name)
}

func intAttr(name string, v int64) msg { return msg{}.str(1, name).int(3, v).int(20, attrInt) }

func intsAttr(name string, v ...int64) msg {
	m := msg{}.str(1, name).int(20, attrInts)
	for _, x := range v {
		m = m.int(8, x)
	}
	return m
}

func strAttr(name, v string) msg { return msg{}.str(1, name).str(4, v).int(20, attrString) }

func nodeMsg(op, name string, in, out []string, attrs ...msg) msg {
	var m msg
	for _, s := range in {
		m = m.str(1, s)
	}
	for _, s := range out {
		m = m.str(2, s)
	}
	m = m.str(3, name).str(4, op)
	for _, a := range attrs {
		m = m.bytes(5, a)
	}
	return m
}

// valueMsg declares a float tensor; a dimension of -1 is symbolic.
func valueMsg(name string, dims ...int64) msg {
	var shape msg
	for _, d := range dims {
		if d < 0 {
			shape = shape.bytes(1, msg{}.str(2, "batch"))
		} else {
			shape = shape.bytes(1, msg{}.int(1, d))
		}
	}
	return msg{}.str(1, name).bytes(2, msg{}.bytes(1, msg{}.int(1, onnxFloat).bytes(2, shape)))
}

type testModel struct {
	nodes, inits []msg
	in, out      msg
	opset        int64
	meta         map[string]string
	extra        msg // appended to the model
}

// newModel has input x [batch, inputs] and output y.
func newModel(inputs int64) *testModel {
	return &testModel{in: valueMsg("x", -1, inputs), out: valueMsg("y", -1, -1), opset: 17}
}

func (t *testModel) node(op string, in []string, out string, attrs ...msg) *testModel {
	t.nodes = append(t.nodes, nodeMsg(op, op+"_"+out, in, []string{out}, attrs...))
	return t
}

func (t *testModel) init(m msg) *testModel {
	t.inits = append(t.inits, m)
	return t
}

func (t *testModel) encode() []byte {
	var g msg
	for _, n := range t.nodes {
		g = g.bytes(1, n)
	}
	g = g.str(2, "test")
	for _, i := range t.inits {
		g = g.bytes(5, i)
	}
	if t.in != nil {
		g = g.bytes(11, t.in)
	}
	if t.out != nil {
		g = g.bytes(12, t.out)
	}
	m := msg{}.int(1, 8).bytes(8, msg{}.str(1, "").int(2, t.opset)).bytes(7, g)
	for k, v := range t.meta {
		m = m.bytes(14, msg{}.str(1, k).str(2, v))
	}
	return append(m, t.extra...)
}

// classifier is a valid model for a feature set: one Gemm and a Softmax with the given biases.
func classifier(f FeatureSet, bias []float32, meta map[string]string) *testModel {
	n, k := int64(len(bias)), int64(f.Inputs())
	rng := rand.New(rand.NewPCG(3, uint64(n)))
	w := make([]float32, n*k)
	for i := range w {
		w[i] = float32(rng.NormFloat64()) / 1000
	}
	t := newModel(k).
		init(floatTensor("w", []int64{n, k}, w)).init(floatTensor("b", []int64{n}, bias)).
		node("Gemm", []string{"x", "w", "b"}, "s", intAttr("transB", 1)).
		node("Softmax", []string{"s"}, "y")
	t.meta = map[string]string{
		"agp.name": "test", "agp.version": "1", "agp.feature_set": f.String(), "agp.field": "class", "agp.classes": `["a","b","c"]`,
	}
	for k, v := range meta {
		t.meta[k] = v
	}
	return t
}

// cnn1D is the 13,393-parameter network of the class model, 95 inputs, one sigmoid, random weights.
func cnn1D() *testModel {
	rng := rand.New(rand.NewPCG(1, 1))
	random := func(dims ...int64) []float32 {
		n, fan := int64(1), int64(1)
		for i, d := range dims {
			if n *= d; i > 0 {
				fan *= d
			}
		}
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(rng.NormFloat64() * math.Sqrt(2/float64(fan)))
		}
		return s
	}
	t := newModel(95).init(intTensor("shape", []int64{3}, []int64{0, 1, 95})).node("Reshape", []string{"x", "shape"}, "t")
	at, channels := "t", int64(1)
	for i, l := range [][3]int64{{64, 4, 3}, {32, 2, 2}, {16, 3, 2}} {
		id := string(rune('0' + i))
		t.init(floatTensor("cw"+id, []int64{l[0], channels, l[1]}, random(l[0], channels, l[1]))).
			init(floatTensor("cb"+id, []int64{l[0]}, random(l[0]))).
			node("Conv", []string{at, "cw" + id, "cb" + id}, "c"+id).
			node("Relu", []string{"c" + id}, "r"+id).
			node("MaxPool", []string{"r" + id}, "p"+id, intsAttr("kernel_shape", l[2]), intsAttr("strides", l[2]))
		at, channels = "p"+id, l[0]
	}
	t.node("Flatten", []string{at}, "f")
	at, channels = "f", 96
	for i, n := range []int64{64, 16, 8, 1} {
		id := string(rune('0' + i))
		t.init(floatTensor("dw"+id, []int64{n, channels}, random(n, channels))).init(floatTensor("db"+id, []int64{n}, random(n))).
			node("Gemm", []string{at, "dw" + id, "db" + id}, "d"+id, intAttr("transB", 1))
		at, channels = "d"+id, n
		if n > 1 {
			t.node("Relu", []string{at}, "e"+id)
			at = "e" + id
		}
	}
	return t.node("Sigmoid", []string{at}, "y")
}
