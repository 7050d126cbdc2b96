package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers below are those of onnx.proto3.

// ONNX tensor element types that constants may have.
const (
	onnxFloat  = 1
	onnxInt32  = 6
	onnxInt64  = 7
	onnxBool   = 9
	onnxDouble = 11
)

// tensor is a constant. Exactly one of f and i is used, also when it is empty.
type tensor struct {
	name  string
	dims  []int
	isInt bool
	f     []float32
	i     []int64
}

func (t *tensor) len() int {
	if t.isInt {
		return len(t.i)
	}
	return len(t.f)
}

type attribute struct {
	name   string
	f      float32
	i      int64
	s      string
	t      *tensor
	floats []float32
	ints   []int64
	kind   int // AttributeProto.type
}

// AttributeProto.type values that the operators use.
const (
	attrFloat  = 1
	attrInt    = 2
	attrString = 3
	attrTensor = 4
	attrFloats = 6
	attrInts   = 7
)

type node struct {
	name, op, domain string
	in, out          []string
	attrs            []attribute
}

// String names the node in errors: operator and node name.
func (n *node) String() string {
	name := n.name
	if name == "" && len(n.out) > 0 {
		name = "-> " + n.out[0]
	}
	return fmt.Sprintf("%s node %q", clip(n.op), clip(name))
}

type valueInfo struct {
	name     string
	elem     int
	dims     []int // -1: symbolic or unknown
	hasShape bool
}

type graph struct {
	nodes   []node
	inits   []*tensor
	inputs  []valueInfo
	outputs []valueInfo
	meta    map[string]string
	opset   int64

	edges    int // counted against maxEdges
	elements int // counted against maxElements
}

// clip keeps names from hostile files from filling a log line.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// fields calls f for each field of a message. v is the payload of a
// length-delimited field; u is the value of a varint or fixed field.
func fields(b []byte, f func(num protowire.Number, typ protowire.Type, v []byte, u uint64) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrFormat, protowire.ParseError(n))
		}
		b = b[n:]
		var v []byte
		var u uint64
		switch typ {
		case protowire.VarintType:
			u, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			u = uint64(x)
		case protowire.Fixed64Type:
			u, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			v, n = protowire.ConsumeBytes(b)
		default: // groups do not occur in ONNX
			return fmt.Errorf("%w: wire type %d of field %d", ErrFormat, typ, num)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d: %w", ErrFormat, num, protowire.ParseError(n))
		}
		b = b[n:]
		if err := f(num, typ, v, u); err != nil {
			return err
		}
	}
	return nil
}

// wantBytes refuses a field that is not length-delimited.
func wantBytes(typ protowire.Type, what string) error {
	if typ != protowire.BytesType {
		return fmt.Errorf("%w: %s has wire type %d", ErrFormat, what, typ)
	}
	return nil
}

func parseONNX(b []byte) (*graph, error) {
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("%w: file of %d bytes, at most %d", ErrTooLarge, len(b), maxFileBytes)
	}
	g := &graph{meta: map[string]string{}}
	var body []byte
	err := fields(b, func(num protowire.Number, typ protowire.Type, v []byte, u uint64) error {
		switch num {
		case 7: // graph; decoded last, when the opset is known to be right
			if err := wantBytes(typ, "graph"); err != nil {
				return err
			}
			if body != nil {
				return fmt.Errorf("%w: two graphs", ErrFormat)
			}
			body = v
			if body == nil {
				body = []byte{}
			}
		case 8: // opset_import
			if err := wantBytes(typ, "opset_import"); err != nil {
				return err
			}
			return g.parseOpset(v)
		case 14: // metadata_props
			if err := wantBytes(typ, "metadata_props"); err != nil {
				return err
			}
			return g.parseMeta(v)
		case 25: // functions
			return fmt.Errorf("%w: model-local functions", ErrUnknownOperator)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if body == nil {
		return nil, fmt.Errorf("%w: no graph", ErrFormat)
	}
	if g.opset < 13 || g.opset > 22 {
		return nil, fmt.Errorf("%w: %d, want 13 to 22", ErrOpset, g.opset)
	}
	return g, g.parseGraph(body)
}

func (g *graph) parseOpset(b []byte) error {
	var domain string
	var version int64
	err := fields(b, func(num protowire.Number, _ protowire.Type, v []byte, u uint64) error {
		switch num {
		case 1:
			domain = string(v)
		case 2:
			version = int64(u)
		}
		return nil
	})
	if domain == "" || domain == "ai.onnx" {
		g.opset = version
	}
	return err
}

func (g *graph) parseMeta(b []byte) error {
	var k, s string
	err := fields(b, func(num protowire.Number, _ protowire.Type, v []byte, _ uint64) error {
		if len(v) > maxMetaBytes {
			return fmt.Errorf("%w: metadata entry of %d bytes", ErrTooLarge, len(v))
		}
		switch num {
		case 1:
			k = string(v)
		case 2:
			s = string(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, dup := g.meta[k]; dup {
		return fmt.Errorf("%w: metadata key %q", ErrDuplicate, clip(k))
	}
	if len(g.meta) == maxMetaProps {
		return fmt.Errorf("%w: more than %d metadata entries", ErrTooLarge, maxMetaProps)
	}
	g.meta[k] = s
	return nil
}

func (g *graph) parseGraph(b []byte) error {
	return fields(b, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
		switch num {
		case 1, 5, 11, 12, 15:
			if err := wantBytes(typ, "graph field"); err != nil {
				return err
			}
		}
		switch num {
		case 1: // node
			if len(g.nodes) == maxNodes {
				return fmt.Errorf("%w: more than %d nodes", ErrTooLarge, maxNodes)
			}
			n, err := g.parseNode(v)
			if err != nil {
				return err
			}
			g.nodes = append(g.nodes, n)
		case 5: // initializer
			if len(g.inits) == maxTensors {
				return fmt.Errorf("%w: more than %d initializers", ErrTooLarge, maxTensors)
			}
			t, err := g.parseTensor(v)
			if err != nil {
				return err
			}
			g.inits = append(g.inits, t)
		case 11, 12: // input, output
			vi, err := parseValueInfo(v)
			if err != nil {
				return err
			}
			list := &g.inputs
			if num == 12 {
				list = &g.outputs
			}
			if len(*list) == maxTensors {
				return fmt.Errorf("%w: more than %d graph inputs or outputs", ErrTooLarge, maxTensors)
			}
			*list = append(*list, vi)
		case 15:
			return fmt.Errorf("%w: sparse initializer", ErrType)
		}
		return nil
	})
}

func (g *graph) parseNode(b []byte) (node, error) {
	var n node
	err := fields(b, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
		switch num {
		case 1, 2:
			if g.edges++; g.edges > maxEdges {
				return fmt.Errorf("%w: more than %d node inputs and outputs", ErrTooLarge, maxEdges)
			}
			if num == 1 {
				n.in = append(n.in, string(v))
			} else {
				n.out = append(n.out, string(v))
			}
		case 3:
			n.name = string(v)
		case 4:
			n.op = string(v)
		case 5:
			if err := wantBytes(typ, "attribute"); err != nil {
				return err
			}
			if len(n.attrs) == maxAttrs {
				return fmt.Errorf("%w: %s: more than %d attributes", ErrTooLarge, &n, maxAttrs)
			}
			a, err := g.parseAttribute(v)
			if err != nil {
				return err
			}
			n.attrs = append(n.attrs, a)
		case 7:
			n.domain = string(v)
		}
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("%s: %w", &n, err)
	}
	return n, nil
}

func (g *graph) parseAttribute(b []byte) (attribute, error) {
	var a attribute
	err := fields(b, func(num protowire.Number, typ protowire.Type, v []byte, u uint64) error {
		var err error
		switch num {
		case 1:
			a.name = string(v)
		case 2:
			a.f = math.Float32frombits(uint32(u))
		case 3:
			a.i = int64(u)
		case 4:
			a.s = string(v)
		case 5:
			if err = wantBytes(typ, "tensor attribute"); err == nil {
				a.t, err = g.parseTensor(v)
			}
		case 7:
			a.floats, err = appendFloats(a.floats, typ, v, u, maxAttrItems)
		case 8:
			a.ints, err = appendInts(a.ints, typ, v, u, maxAttrItems)
		case 20:
			a.kind = int(u)
		}
		return err
	})
	if err != nil {
		return a, fmt.Errorf("attribute %q: %w", clip(a.name), err)
	}
	return a, nil
}

// appendFloats reads a repeated float field, packed or not.
func appendFloats(dst []float32, typ protowire.Type, v []byte, u uint64, limit int) ([]float32, error) {
	switch typ {
	case protowire.Fixed32Type:
		if len(dst) >= limit {
			return nil, fmt.Errorf("%w: more than %d floats", ErrTooLarge, limit)
		}
		return append(dst, math.Float32frombits(uint32(u))), nil
	case protowire.BytesType:
		if len(v)%4 != 0 {
			return nil, fmt.Errorf("%w: packed floats of %d bytes", ErrFormat, len(v))
		}
		if len(dst)+len(v)/4 > limit {
			return nil, fmt.Errorf("%w: more than %d floats", ErrTooLarge, limit)
		}
		for ; len(v) > 0; v = v[4:] {
			dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(v)))
		}
		return dst, nil
	}
	return nil, fmt.Errorf("%w: float list has wire type %d", ErrFormat, typ)
}

// appendInts reads a repeated varint field, packed or not.
func appendInts(dst []int64, typ protowire.Type, v []byte, u uint64, limit int) ([]int64, error) {
	switch typ {
	case protowire.VarintType:
		if len(dst) >= limit {
			return nil, fmt.Errorf("%w: more than %d integers", ErrTooLarge, limit)
		}
		return append(dst, int64(u)), nil
	case protowire.BytesType:
		for len(v) > 0 {
			x, n := protowire.ConsumeVarint(v)
			if n < 0 {
				return nil, fmt.Errorf("%w: %w", ErrFormat, protowire.ParseError(n))
			}
			if len(dst) >= limit {
				return nil, fmt.Errorf("%w: more than %d integers", ErrTooLarge, limit)
			}
			dst = append(dst, int64(x))
			v = v[n:]
		}
		return dst, nil
	}
	return nil, fmt.Errorf("%w: integer list has wire type %d", ErrFormat, typ)
}

// count returns the number of elements of dims, or an error before anything
// of that size is allocated.
func count(dims []int, limit int) (int, error) {
	if len(dims) > maxRank {
		return 0, fmt.Errorf("%w: rank %d, at most %d", ErrTooLarge, len(dims), maxRank)
	}
	n := 1
	for _, d := range dims {
		if d < 0 {
			return 0, fmt.Errorf("%w: dimension %d", ErrShape, d)
		}
		if d > maxDim {
			return 0, fmt.Errorf("%w: dimension %d, at most %d", ErrTooLarge, d, maxDim)
		}
		if d != 0 && n > limit/d { // n*d > limit
			return 0, fmt.Errorf("%w: shape %v has more than %d elements", ErrTooLarge, dims, limit)
		}
		n *= d
	}
	return n, nil
}

// take counts n elements against what all constants of a file may have.
func (g *graph) take(n int) error {
	if n > maxElements-g.elements {
		return fmt.Errorf("%w: constants have more than %d elements", ErrTooLarge, maxElements)
	}
	g.elements += n
	return nil
}

func (g *graph) parseTensor(b []byte) (*tensor, error) {
	t := &tensor{}
	var dims64, ints []int64
	var floats []float32
	var raw, doubles []byte
	var hasRaw bool
	var dtype int
	// Payload fields are only remembered in the first pass; they are decoded
	// when dims have said how much to expect.
	type chunk struct {
		num protowire.Number
		typ protowire.Type
		v   []byte
		u   uint64
	}
	var chunks []chunk
	err := fields(b, func(num protowire.Number, typ protowire.Type, v []byte, u uint64) error {
		var err error
		switch num {
		case 1:
			dims64, err = appendInts(dims64, typ, v, u, maxRank)
		case 2:
			dtype = int(u)
		case 4, 5, 7:
			if len(chunks) == maxAttrItems {
				return fmt.Errorf("%w: more than %d unpacked values", ErrTooLarge, maxAttrItems)
			}
			chunks = append(chunks, chunk{num, typ, v, u})
		case 8:
			t.name = string(v)
		case 9:
			if err = wantBytes(typ, "raw_data"); err == nil {
				raw, hasRaw = v, true
			}
		case 10:
			if err = wantBytes(typ, "double_data"); err == nil {
				doubles = v
			}
		case 3:
			err = fmt.Errorf("%w: segmented tensor", ErrFormat)
		case 6, 11:
			err = fmt.Errorf("%w: string or unsigned tensor", ErrType)
		case 13:
			err = ErrExternalData
		case 14:
			if u != 0 {
				err = ErrExternalData
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", clip(t.name), err)
	}
	fail := func(err error) (*tensor, error) {
		return nil, fmt.Errorf("tensor %q: %w", clip(t.name), err)
	}
	t.dims = make([]int, len(dims64))
	for i, d := range dims64 {
		if d < 0 || d > maxDim {
			return fail(fmt.Errorf("%w: dimension %d", ErrTooLarge, d))
		}
		t.dims[i] = int(d)
	}
	n, err := count(t.dims, maxElements)
	if err != nil {
		return fail(err)
	}
	if err := g.take(n); err != nil {
		return fail(err)
	}
	width := 0 // bytes per element of raw_data
	switch dtype {
	case onnxFloat:
		width = 4
	case onnxDouble:
		width = 8
	case onnxInt32:
		width, t.isInt = 4, true
	case onnxInt64:
		width, t.isInt = 8, true
	case onnxBool:
		width, t.isInt = 1, true
	default:
		return fail(fmt.Errorf("%w: element type %d", ErrType, dtype))
	}
	if dtype == onnxDouble && !hasRaw {
		raw, hasRaw = doubles, true
	}
	if hasRaw {
		if len(raw) != n*width {
			return fail(fmt.Errorf("%w: shape %v needs %d bytes, data has %d", ErrShape, t.dims, n*width, len(raw)))
		}
		t.decodeRaw(raw, dtype, n)
		return t, nil
	}
	for _, c := range chunks {
		switch {
		case c.num == 4:
			floats, err = appendFloats(floats, c.typ, c.v, c.u, n)
		default:
			ints, err = appendInts(ints, c.typ, c.v, c.u, n)
		}
		if err != nil {
			return fail(err)
		}
	}
	t.f, t.i = floats, ints
	if dtype == onnxInt32 {
		for i, x := range t.i {
			t.i[i] = int64(int32(x))
		}
	}
	if t.len() != n {
		return fail(fmt.Errorf("%w: shape %v needs %d values, data has %d", ErrShape, t.dims, n, t.len()))
	}
	if t.isInt {
		t.f = nil
	} else {
		t.i = nil
	}
	return t, nil
}

// decodeRaw reads n little-endian elements; the length has been checked.
func (t *tensor) decodeRaw(raw []byte, dtype, n int) {
	le := binary.LittleEndian
	if t.isInt {
		t.i = make([]int64, n)
	} else {
		t.f = make([]float32, n)
	}
	for j := range n {
		switch dtype {
		case onnxFloat:
			t.f[j] = math.Float32frombits(le.Uint32(raw[4*j:]))
		case onnxDouble:
			t.f[j] = float32(math.Float64frombits(le.Uint64(raw[8*j:])))
		case onnxInt32:
			t.i[j] = int64(int32(le.Uint32(raw[4*j:])))
		case onnxInt64:
			t.i[j] = int64(le.Uint64(raw[8*j:]))
		case onnxBool:
			t.i[j] = int64(raw[j])
		}
	}
}

func parseValueInfo(b []byte) (valueInfo, error) {
	var vi valueInfo
	err := fields(b, func(num protowire.Number, _ protowire.Type, v []byte, _ uint64) error {
		switch num {
		case 1:
			vi.name = string(v)
		case 2: // TypeProto
			return fields(v, func(num protowire.Number, _ protowire.Type, v []byte, _ uint64) error {
				if num != 1 { // only tensor_type
					return nil
				}
				return fields(v, func(num protowire.Number, _ protowire.Type, v []byte, u uint64) error {
					switch num {
					case 1:
						vi.elem = int(u)
					case 2:
						vi.hasShape = true
						return vi.parseShape(v)
					}
					return nil
				})
			})
		}
		return nil
	})
	return vi, err
}

func (vi *valueInfo) parseShape(b []byte) error {
	return fields(b, func(num protowire.Number, _ protowire.Type, v []byte, _ uint64) error {
		if num != 1 {
			return nil
		}
		if len(vi.dims) == maxRank {
			return fmt.Errorf("%w: %q has a rank above %d", ErrTooLarge, clip(vi.name), maxRank)
		}
		d := -1
		err := fields(v, func(num protowire.Number, typ protowire.Type, _ []byte, u uint64) error {
			if num != 1 || typ != protowire.VarintType {
				return nil
			}
			if u > maxDim {
				return fmt.Errorf("%w: %q has a dimension of %d", ErrTooLarge, clip(vi.name), int64(u))
			}
			d = int(u)
			return nil
		})
		vi.dims = append(vi.dims, d)
		return err
	})
}
