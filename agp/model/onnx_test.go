package model

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func compileBytes(b []byte) (*Plan, error) {
	g, err := parseONNX(b)
	if err != nil {
		return nil, err
	}
	return compile(g)
}

// big is a tensor that claims dims without holding the data.
func big(name string, dims ...int64) msg {
	return tensorHead(name, onnxFloat, dims).bytes(9, make([]byte, 16))
}

var one = []float32{1}

// hostile are files that must be refused, why, and what the error must name.
func hostile() map[string]struct {
	file []byte
	want error
	says string
} {
	type h = struct {
		file []byte
		want error
		says string
	}
	relu := func() *testModel { return newModel(4).node("Relu", []string{"x"}, "y") }
	cases := map[string]h{
		"empty file":                  {nil, ErrFormat, "no graph"},
		"not protobuf":                {[]byte("<html>not found</html>"), ErrFormat, ""},
		"unknown operator":            {newModel(4).node("FancyOp", []string{"x"}, "y").encode(), ErrUnknownOperator, `FancyOp node "FancyOp_y"`},
		"control flow":                {newModel(4).node("If", []string{"x"}, "y", msg{}.str(1, "then_branch").bytes(6, nil).int(20, 5)).encode(), ErrUnknownOperator, "If"},
		"model-local function":        {append(relu().encode(), msg{}.bytes(25, nil)...), ErrUnknownOperator, "functions"},
		"opset too old":               {func() []byte { m := relu(); m.opset = 9; return m.encode() }(), ErrOpset, "9"},
		"opset too new":               {func() []byte { m := relu(); m.opset = 99; return m.encode() }(), ErrOpset, "99"},
		"cycle":                       {newModel(4).node("Add", []string{"x", "b"}, "a").node("Relu", []string{"a"}, "b").node("Relu", []string{"b"}, "y").encode(), ErrCycle, `Add node "Add_a"`},
		"node reads itself":           {newModel(4).node("Add", []string{"x", "y"}, "y").encode(), ErrCycle, "Add"},
		"unknown input":               {newModel(4).node("Add", []string{"x", "ghost"}, "y").encode(), ErrUnknownInput, `"ghost"`},
		"output not produced":         {newModel(4).node("Relu", []string{"x"}, "z").encode(), ErrUnknownInput, `"y"`},
		"name defined twice":          {newModel(4).node("Relu", []string{"x"}, "y").node("Tanh", []string{"x"}, "y").encode(), ErrDuplicate, "Tanh"},
		"initializer twice":           {relu().init(floatTensor("w", []int64{1}, one)).init(floatTensor("w", []int64{1}, one)).encode(), ErrDuplicate, `"w"`},
		"external data location":      {relu().init(tensorHead("w", onnxFloat, []int64{1}).int(14, 1)).encode(), ErrExternalData, `"w"`},
		"external data path":          {relu().init(tensorHead("w", onnxFloat, []int64{1}).bytes(13, msg{}.str(1, "location").str(2, "/etc/passwd"))).encode(), ErrExternalData, `"w"`},
		"huge dimension":              {relu().init(big("w", 1<<40)).encode(), ErrTooLarge, `"w"`},
		"negative dimension":          {relu().init(big("w", -3)).encode(), ErrTooLarge, `"w"`},
		"dimensions multiply to much": {relu().init(big("w", 1<<23, 1<<23, 1<<23)).encode(), ErrTooLarge, `"w"`},
		"dimensions overflow to zero": {relu().init(big("w", 1<<16, 1<<16, 1<<16, 1<<16)).encode(), ErrTooLarge, `"w"`},
		"rank too high":               {relu().init(big("w", 1, 1, 1, 1, 1, 1, 1, 1, 1)).encode(), ErrTooLarge, "more than 8"},
		"data shorter than shape":     {relu().init(big("w", 1000)).encode(), ErrShape, `"w"`},
		"data longer than shape":      {relu().init(floatTensor("w", []int64{1}, []float32{1, 2})).encode(), ErrShape, `"w"`},
		"string tensor":               {relu().init(tensorHead("w", 8, []int64{1}).str(6, "a")).encode(), ErrType, `"w"`},
		"half tensor":                 {relu().init(tensorHead("w", 10, []int64{1}).bytes(9, []byte{0, 0})).encode(), ErrType, `"w"`},
		"no input":                    {func() []byte { m := relu(); m.in = nil; return m.encode() }(), ErrUnknownInput, `"x"`},
		"input without shape":         {func() []byte { m := relu(); m.in = msg{}.str(1, "x"); return m.encode() }(), ErrType, `"x"`},
		"input of fixed batch":        {func() []byte { m := relu(); m.in = valueMsg("x", 8, 4); return m.encode() }(), ErrShape, "batch of 8"},
		"input of symbolic width":     {func() []byte { m := relu(); m.in = valueMsg("x", -1, -1); return m.encode() }(), ErrShape, `"x"`},
		"input too wide":              {func() []byte { m := relu(); m.in = valueMsg("x", -1, 1<<23); return m.encode() }(), ErrTooLarge, `"x"`},
		"no output":                   {func() []byte { m := relu(); m.out = nil; return m.encode() }(), ErrShape, "0 graph outputs"},
		"output is constant":          {newModel(4).init(floatTensor("y", []int64{1}, one)).encode(), ErrShape, `"y"`},
		"output is the input":         {newModel(4).node("Identity", []string{"x"}, "y").encode(), ErrShape, `"y"`},
		"gemm shapes":                 {newModel(4).init(floatTensor("w", []int64{3, 2}, make([]float32, 6))).node("Gemm", []string{"x", "w"}, "y").encode(), ErrShape, `Gemm node "Gemm_y"`},
		"gemm of a vector":            {newModel(4).init(floatTensor("w", []int64{4}, make([]float32, 4))).node("Gemm", []string{"x", "w"}, "y").encode(), ErrShape, "Gemm"},
		"gemm without columns":        {newModel(4).init(floatTensor("w", []int64{4, 0}, nil)).node("Gemm", []string{"x", "w"}, "y").encode(), ErrShape, "Gemm"},
		"conv channels":               {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 2, 2})).init(floatTensor("w", []int64{1, 3, 1}, make([]float32, 3))).node("Reshape", []string{"x", "s"}, "r").node("Conv", []string{"r", "w"}, "y").encode(), ErrShape, "Conv"},
		"conv kernel too wide":        {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 1, 4})).init(floatTensor("w", []int64{1, 1, 5}, make([]float32, 5))).node("Reshape", []string{"x", "s"}, "r").node("Conv", []string{"r", "w"}, "y").encode(), ErrShape, "Conv"},
		"conv of a matrix":            {newModel(4).init(floatTensor("w", []int64{1, 1, 1}, one)).node("Conv", []string{"x", "w"}, "y").encode(), ErrShape, "Conv"},
		"conv with zero groups":       {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 1, 4})).init(floatTensor("w", []int64{1, 1, 1}, one)).node("Reshape", []string{"x", "s"}, "r").node("Conv", []string{"r", "w"}, "y", intAttr("group", 0)).encode(), ErrShape, "Conv"},
		"conv with zero stride":       {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 1, 4})).init(floatTensor("w", []int64{1, 1, 1}, one)).node("Reshape", []string{"x", "s"}, "r").node("Conv", []string{"r", "w"}, "y", intsAttr("strides", 0)).encode(), ErrShape, "Conv"},
		"conv padded without end":     {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 1, 4})).init(floatTensor("w", []int64{1, 1, 1}, one)).node("Reshape", []string{"x", "s"}, "r").node("Conv", []string{"r", "w"}, "y", intsAttr("pads", 1<<23, 1<<23)).encode(), ErrTooLarge, "Conv"},
		"pool window of zero":         {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 1, 4})).node("Reshape", []string{"x", "s"}, "r").node("MaxPool", []string{"r"}, "y", intsAttr("kernel_shape", 0)).encode(), ErrShape, "MaxPool"},
		"pool without window":         {newModel(4).init(intTensor("s", []int64{3}, []int64{0, 1, 4})).node("Reshape", []string{"x", "s"}, "r").node("MaxPool", []string{"r"}, "y").encode(), ErrAttribute, "MaxPool"},
		"reshape to another size":     {newModel(4).init(intTensor("s", []int64{2}, []int64{0, 5})).node("Reshape", []string{"x", "s"}, "y").encode(), ErrShape, "Reshape"},
		"reshape across the batch":    {newModel(4).init(intTensor("s", []int64{2}, []int64{2, -1})).node("Reshape", []string{"x", "s"}, "y").encode(), ErrShape, "Reshape"},
		"reshape with two unknowns":   {newModel(4).init(intTensor("s", []int64{3}, []int64{-1, -1, -1})).node("Reshape", []string{"x", "s"}, "y").encode(), ErrShape, "Reshape"},
		"reshape by an activation":    {newModel(4).node("Cast", []string{"x"}, "i", intAttr("to", 7)).node("Reshape", []string{"x", "i"}, "y").encode(), ErrShape, "Reshape"},
		"transpose of the batch":      {newModel(4).node("Transpose", []string{"x"}, "y").encode(), ErrShape, "Transpose"},
		"transpose with a double":     {newModel(4).node("Transpose", []string{"x"}, "y", intsAttr("perm", 0, 0)).encode(), ErrShape, "Transpose"},
		"softmax over the batch":      {newModel(4).node("Softmax", []string{"x"}, "y", intAttr("axis", 0)).encode(), ErrShape, "Softmax"},
		"axis out of range":           {newModel(4).node("Softmax", []string{"x"}, "y", intAttr("axis", 7)).encode(), ErrShape, "Softmax"},
		"gather out of range":         {newModel(4).init(intTensor("i", []int64{1}, []int64{4})).node("Gather", []string{"x", "i"}, "y", intAttr("axis", 1)).encode(), ErrShape, "Gather"},
		"gather by floats":            {newModel(4).init(floatTensor("i", []int64{1}, one)).node("Gather", []string{"x", "i"}, "y", intAttr("axis", 1)).encode(), ErrType, "Gather"},
		"empty slice":                 {newModel(4).init(intTensor("a", []int64{1}, []int64{1})).node("Slice", []string{"x", "a", "a", "a"}, "y").encode(), ErrShape, "Slice"},
		"slice with step 0":           {newModel(4).init(intTensor("a", []int64{1}, []int64{1})).init(intTensor("z", []int64{1}, []int64{0})).node("Slice", []string{"x", "z", "a", "a", "z"}, "y").encode(), ErrShape, "Slice"},
		"pad without end":             {newModel(4).init(intTensor("p", []int64{4}, []int64{0, 1 << 40, 0, 0})).node("Pad", []string{"x", "p"}, "y").encode(), ErrTooLarge, "Pad"},
		"pad that cuts too much":      {newModel(4).init(intTensor("p", []int64{4}, []int64{0, -9, 0, 0})).node("Pad", []string{"x", "p"}, "y").encode(), ErrShape, "Pad"},
		"broadcast mismatch":          {newModel(4).init(floatTensor("w", []int64{3}, []float32{1, 2, 3})).node("Add", []string{"x", "w"}, "y").encode(), ErrShape, "Add"},
		"broadcast over the batch":    {newModel(4).init(floatTensor("w", []int64{2, 4}, make([]float32, 8))).node("Add", []string{"x", "w"}, "y").encode(), ErrShape, "Add"},
		"mixed types":                 {newModel(4).init(intTensor("w", []int64{1}, []int64{1})).node("Add", []string{"x", "w"}, "y").encode(), ErrType, "Add"},
		"constant division by zero":   {newModel(4).init(intTensor("w", []int64{1}, []int64{0})).node("Div", []string{"w", "w"}, "d").node("Relu", []string{"x"}, "y").encode(), ErrShape, "Div"},
		"unknown attribute":           {newModel(4).node("Softmax", []string{"x"}, "y", intAttr("temperature", 3)).encode(), ErrAttribute, "temperature"},
		"attribute of a wrong type":   {newModel(4).node("Softmax", []string{"x"}, "y", strAttr("axis", "one")).encode(), ErrAttribute, "axis"},
		"too few inputs":              {newModel(4).node("Add", []string{"x"}, "y").encode(), ErrFormat, "Add"},
		"optional input in between":   {newModel(4).node("Add", []string{"", "x"}, "y").encode(), ErrFormat, "Add"},
		"second output used": {func() []byte {
			m := newModel(4)
			m.nodes = append(m.nodes, nodeMsg("MaxPool", "p", []string{"x"}, []string{"y", "indices"}))
			return m.encode()
		}(), ErrAttribute, "indices"},
		"operator of another domain": {func() []byte {
			m := newModel(4)
			m.nodes = append(m.nodes, nodeMsg("Relu", "r", []string{"x"}, []string{"y"}).str(7, "com.acme"))
			return m.encode()
		}(), ErrUnknownOperator, "com.acme"},
		"two graphs":         {append(relu().encode(), msg{}.bytes(7, nil)...), ErrFormat, "two graphs"},
		"metadata key twice": {append(relu().encode(), msg{}.bytes(14, msg{}.str(1, "k")).bytes(14, msg{}.str(1, "k"))...), ErrDuplicate, `"k"`},
		"group wire type":    {append(relu().encode(), 0x0b, 0x0c), ErrFormat, "wire type"},
		"field number zero":  {append(relu().encode(), 0x00, 0x00), ErrFormat, ""},
	}

	nodes := newModel(4)
	for range maxNodes + 1 {
		nodes.nodes = append(nodes.nodes, nil)
	}
	cases["too many nodes"] = h{nodes.encode(), ErrTooLarge, "nodes"}
	inits := relu()
	for range maxTensors + 1 {
		inits.init(tensorHead("", onnxFloat, []int64{0}))
	}
	cases["too many initializers"] = h{inits.encode(), ErrTooLarge, "initializers"}
	edges := newModel(4)
	edges.node("Concat", strings.Split(strings.Repeat("x,", maxEdges), ","), "y")
	cases["too many edges"] = h{edges.encode(), ErrTooLarge, "inputs and outputs"}

	// A constant that doubles 40 times: must stop at the limit, not at the end of memory.
	double := relu().init(floatTensor("c0", []int64{1}, one))
	name := "c0"
	for i := range 40 {
		next := "c" + string(rune('A'+i))
		double.node("Concat", []string{name, name}, next, intAttr("axis", 0))
		name = next
	}
	cases["constant that doubles"] = h{double.encode(), ErrTooLarge, "Concat"}
	// The same with an activation.
	wide, name := newModel(4), "x"
	for i := range 40 {
		next := "c" + string(rune('A'+i))
		wide.node("Concat", []string{name, name}, next, intAttr("axis", 1))
		name = next
	}
	cases["activation that doubles"] = h{wide.encode(), ErrTooLarge, "Concat"}
	// [65536, 1] + [1, 65536] of constants.
	column := make([]float32, 1<<16)
	outer := relu().init(floatTensor("a", []int64{1 << 16, 1}, column)).init(floatTensor("b", []int64{1, 1 << 16}, column)).node("Add", []string{"a", "b"}, "c")
	cases["constants broadcast to 2^32"] = h{outer.encode(), ErrTooLarge, "Add"}
	// Work without end in little memory: 30 dense layers of 4096 x 256 would pass each limit alone.
	work := newModel(256).init(floatTensor("w", []int64{256, 4096}, make([]float32, 256*4096))).init(floatTensor("v", []int64{4096, 256}, make([]float32, 256*4096)))
	name = "x"
	for i := range 150 {
		up, down := "u"+string(rune('A'+i)), "d"+string(rune('A'+i))
		work.node("MatMul", []string{name, "w"}, up).node("MatMul", []string{up, "v"}, down)
		name = down
	}
	work.node("Relu", []string{name}, "y")
	cases["weights used again and again"] = h{work.encode(), ErrTooLarge, "MatMul"}
	// Cheap layers that each hold a table as wide as the input.
	tables := newModel(1 << 16).init(floatTensor("w", []int64{1 << 16}, make([]float32, 1<<16)))
	name = "x"
	for i := range 40 {
		next := "t" + string(rune('A'+i))
		tables.node("Min", []string{name, "w"}, next+"m").node("Mul", []string{next + "m", "w"}, next)
		name = next
	}
	cases["tables without end"] = h{tables.node("Relu", []string{name}, "y").encode(), ErrTooLarge, "table entries"}
	// Few weights at many positions.
	slow := newModel(1<<15).init(intTensor("s", []int64{3}, []int64{0, 256, 128})).init(floatTensor("w", []int64{256, 256, 3}, make([]float32, 256*256*3))).
		node("Reshape", []string{"x", "s"}, "ra")
	for i := range 14 {
		slow.node("Conv", []string{"r" + string(rune('a'+i)), "w"}, "r"+string(rune('b'+i)), intsAttr("pads", 1, 1))
	}
	cases["too much work"] = h{slow.node("Relu", []string{"ro"}, "y").encode(), ErrTooLarge, "operations per flow"}
	cases["file too large"] = h{make([]byte, maxFileBytes+1), ErrTooLarge, "bytes"}

	// A tensor in an attribute in a node in an attribute ...: nothing recurses, depth costs nothing.
	deep := msg{}
	for range 1000 {
		deep = msg{}.str(1, "body").bytes(6, msg{}.bytes(1, msg{}.str(4, "Loop").bytes(5, deep))).int(20, 5)
		if len(deep) > 1<<18 {
			break
		}
	}
	cases["deep nesting"] = h{newModel(4).node("Loop", []string{"x"}, "y", deep).encode(), ErrUnknownOperator, "Loop"}
	return cases
}

func TestHostileONNXIsRefusedByNameAndReason(t *testing.T) {
	for name, c := range hostile() {
		t.Run(name, func(t *testing.T) {
			_, err := compileBytes(c.file)
			require.ErrorIs(t, err, c.want)
			require.Contains(t, err.Error(), c.says)
			require.Less(t, len(err.Error()), 600, "error is long enough to flood a log")
		})
	}
}

// Every prefix of a valid file is refused or is a valid file; nothing panics.
func TestTruncatedONNXIsRefused(t *testing.T) {
	b, err := os.ReadFile("testdata/golden/head.onnx")
	require.NoError(t, err)
	for n := range b {
		if n > 2000 && n < len(b)-2000 && n%37 != 0 {
			continue
		}
		_, err := LoadBytes(b[:n])
		if n < len(b)-60 { // the last 60 bytes are metadata entries that may be left out
			require.Error(t, err, "%d of %d bytes", n, len(b))
		}
	}
}

// What a file claims must be checked before memory is taken for it.
func TestMemoryIsBoundedBeforeAllocation(t *testing.T) {
	for name, c := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := compileBytes(c.file)
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		used := after.TotalAlloc - before.TotalAlloc
		// Constants of at most maxElements, each with an index table and a result while it is folded.
		require.Less(t, used, uint64(200<<20), "%s allocated %d MB", name, used>>20)
		if name == "huge dimension" || name == "dimensions multiply to much" || name == "input too wide" || name == "pad without end" {
			require.Less(t, used, uint64(1<<20), "%s allocated %d kB", name, used>>10)
		}
	}
}

// Old exporters list initializers among the graph inputs, and write data as typed fields.
func TestOlderSpellingsAreRead(t *testing.T) {
	w := tensorHead("w", onnxFloat, []int64{2}).float(4, 3).float(4, 4) // unpacked float_data
	v := tensorHead("v", onnxFloat, []int64{2}).bytes(4, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x40000000), 0x3f800000))
	s := tensorHead("s", onnxInt64, []int64{2}).int(7, 0).int(7, -1)
	m := newModel(2).init(w).init(v).init(s).
		node("Mul", []string{"x", "w"}, "a").node("Add", []string{"a", "v"}, "b").node("Reshape", []string{"b", "s"}, "y")
	p, err := compileBytes(m.encode())
	require.NoError(t, err)
	out := make([]float32, 2)
	NewExecutor(p).Run([]float32{10, 20}, 1, out)
	require.Equal(t, []float32{32, 81}, out)
}

func FuzzONNX(f *testing.F) {
	files, err := filepath.Glob("testdata/golden/*.onnx")
	require.NoError(f, err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(f, err)
		if len(b) < 6000 {
			f.Add(b)
		}
	}
	for _, c := range hostile() {
		if len(c.file) < 4000 {
			f.Add(c.file)
		}
	}
	f.Add(classifier(HeadSet, []float32{0, 1, 2}, nil).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = LoadBytes(b)
		p, err := compileBytes(b)
		if err != nil {
			return
		}
		if p.MACs > 1<<20 || p.Arena > 1<<14 {
			return // valid, but slow to run in a fuzzer
		}
		in := make([]float32, 3*p.Inputs)
		for i := range in {
			in[i] = float32(i%7) - 2
		}
		for _, isa := range ISAs() {
			e, err := NewExecutorISA(p, isa)
			require.NoError(t, err)
			guard := e.guard()
			e.Run(in, 3, make([]float32, 3*p.Outputs))
			require.True(t, guard(), "%s wrote outside of its arena", isa)
		}
	})
}
