#!/usr/bin/env python3
"""Writes one small ONNX model per operator, the CNNs the executor is judged by, random inputs and
what ONNX Runtime answers to them.

    models.py OUT [--n 10000] [--only NAME,...] [--add FILE.onnx ...]

--add answers for finished models as well; their inputs are random flows of the feature set that has
as many inputs (129 is head, else histograms). For each model: NAME.onnx, NAME.in.f32 and NAME.out.f32 (n rows of little-endian float32).
Seeds are fixed, so that the same versions write the same bytes. Exit code 3: a package is missing.
"""
import argparse
import json
import os
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper
except ImportError as e:
    print(f"needs numpy, onnx and onnxruntime: {e}", file=sys.stderr)
    sys.exit(3)

CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


class Graph:
    """Collects nodes; every method returns the name of its result."""

    def __init__(self, name, inputs, opset=17, inp=None, dims=None):
        self.name, self.inputs, self.opset = name, inputs, opset
        self.nodes, self.inits, self.meta = [], [], {}
        self.rng = np.random.default_rng(abs(hash_name(name)))
        self.sample = inp or (lambda rng, n: rng.normal(0, 1, (n, inputs)))
        self.dims = dims or ["batch", inputs]
        self.k = 0

    def new(self, stem):
        self.k += 1
        return f"{stem}{self.k}"

    def const(self, a, dtype=np.float32):
        name = self.new("c")
        self.inits.append(numpy_helper.from_array(np.asarray(a, dtype=dtype), name))
        return name

    def ints(self, *a):
        return self.const(list(a), np.int64)

    def rand(self, *shape, scale=None):
        if scale is None:
            scale = (2 / max(1, int(np.prod(shape[1:])))) ** 0.5
        return self.const(self.rng.normal(0, scale, shape))

    def op(self, kind, *ins, **attrs):
        out = self.new("t")
        self.nodes.append(helper.make_node(kind, list(ins), [out], name=f"{kind.lower()}_{self.k}", **attrs))
        return out

    def view(self, x, *shape):
        return self.op("Reshape", x, self.ints(0, *shape))

    def model(self, out):
        graph = helper.make_graph(
            self.nodes, self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.dims)],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["batch", "outputs"])], self.inits)
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        m.ir_version = 8
        for k, v in self.meta.items():
            e = m.metadata_props.add()
            e.key, e.value = k, v
        onnx.checker.check_model(m, full_check=True)
        return m


def hash_name(s):
    h = 0
    for c in s.encode():
        h = (h * 131 + c) & 0x7FFFFFFF
    return h


def unary(kind, inp=None, **attrs):
    def build():
        g = Graph(kind.lower(), 24, inp=inp)
        return g, g.op(kind, "x", **attrs)
    build.__name__ = kind.lower()
    CASES[build.__name__] = build


def positive(rng, n):
    return np.abs(rng.normal(0, 100, (n, 24))) + 1e-3


unary("Relu")
unary("LeakyRelu", alpha=0.2)
unary("Tanh")
unary("Sigmoid", inp=lambda rng, n: rng.normal(0, 8, (n, 24)))
unary("Exp")
unary("Log", inp=positive)
unary("Sqrt", inp=positive)
unary("Abs")
unary("Neg")
unary("Floor")
unary("Sign", inp=lambda rng, n: rng.integers(-2, 3, (n, 24)))


@case
def identity():
    g = Graph("identity", 24)
    return g, g.op("Identity", g.op("Relu", g.op("Identity", "x")))


def conv(name, dims, wdims, opset=17, **attrs):
    def build():
        g = Graph(name, int(np.prod(dims)), opset=opset)
        x = g.view("x", *dims)
        y = g.op("Conv", x, g.rand(*wdims), g.rand(wdims[0], scale=1), **attrs)
        return g, g.op("Flatten", y)
    build.__name__ = name
    CASES[name] = build


conv("conv1d", (2, 23), (5, 2, 3))
conv("conv1d_stride_pad_dilation", (3, 20), (8, 3, 3), strides=[2], pads=[2, 1], dilations=[2])
conv("conv1d_group", (6, 12), (4, 3, 3), group=2)
conv("conv1d_depthwise", (5, 12), (5, 1, 3), group=5)
conv("conv1d_same", (2, 11), (4, 2, 4), auto_pad="SAME_UPPER")
conv("conv2d", (2, 6, 7), (5, 2, 3, 2), strides=[2, 1], pads=[1, 0, 1, 1])
conv("conv2d_opset22", (1, 6, 6), (4, 1, 3, 3), opset=22, group=1)


@case
def conv_relu_pool():
    g = Graph("conv_relu_pool", 60)
    y = g.op("Relu", g.op("Conv", g.view("x", 2, 30), g.rand(9, 2, 4), g.rand(9, scale=1)))
    y = g.op("MaxPool", y, kernel_shape=[2], strides=[2])
    y = g.op("Relu", g.op("Conv", y, g.rand(6, 9, 3)))
    y = g.op("MaxPool", y, kernel_shape=[3], strides=[3])
    return g, g.op("Flatten", y)


def pool(name, kind, dims, opset=17, **attrs):
    def build():
        g = Graph(name, int(np.prod(dims)), opset=opset)
        return g, g.op("Flatten", g.op(kind, g.view("x", *dims), **attrs))
    build.__name__ = name
    CASES[name] = build


pool("maxpool", "MaxPool", (3, 11), kernel_shape=[3], strides=[2])
pool("maxpool_pad_ceil", "MaxPool", (3, 12), kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1)
pool("maxpool2d_dilated", "MaxPool", (2, 7, 6), kernel_shape=[2, 3], dilations=[2, 1])
pool("averagepool", "AveragePool", (3, 12), kernel_shape=[4], strides=[2], pads=[1, 2])
pool("averagepool2d_count_pad", "AveragePool", (2, 5, 6), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1],
     count_include_pad=1)
pool("globalaveragepool", "GlobalAveragePool", (4, 9))
pool("globalmaxpool", "GlobalMaxPool", (4, 3, 4))


@case
def gemm():
    g = Graph("gemm", 17)
    y = g.op("Gemm", "x", g.rand(11, 17), g.rand(11, scale=1), transB=1, alpha=0.5, beta=2.0)
    return g, g.op("Gemm", y, g.rand(11, 5))


@case
def matmul():
    g = Graph("matmul", 18)
    return g, g.op("Add", g.op("MatMul", "x", g.rand(18, 7, scale=0.3)), g.rand(7, scale=1))


@case
def matmul_positions():
    g = Graph("matmul_positions", 40)
    y = g.op("MatMul", g.view("x", 8, 5), g.rand(5, 6, scale=0.3))
    y = g.op("MatMul", g.op("Relu", y), g.rand(6, 4, scale=0.3))
    return g, g.op("Flatten", y)


def binary(kind, name=None, lo=None):
    def build():
        g = Graph(name or kind.lower(), 24,
                  inp=None if lo is None else lambda rng, n: rng.normal(0, 1, (n, 24)) + np.sign(rng.normal(0, 1, (n, 24))) * lo)
        a = g.op(kind, "x", g.rand(24, scale=3))
        b = g.op(kind, g.rand(24, scale=3), "x")
        c = g.op(kind, g.op("Slice", "x", g.ints(0), g.ints(12), g.ints(1)), g.op("Slice", "x", g.ints(12), g.ints(24), g.ints(1)))
        return g, g.op("Concat", a, b, c, axis=1)
    build.__name__ = name or kind.lower()
    CASES[build.__name__] = build


for k in ("Add", "Sub", "Mul", "Min", "Max"):
    binary(k)
binary("Div", lo=0.5)


@case
def scaling():
    """Standardisation in the ways exporters write it: each step rounds on its own."""
    g = Graph("scaling", 24, inp=lambda rng, n: rng.normal(1000, 1, (n, 24)))
    y = g.op("Div", g.op("Sub", "x", g.const(np.full(24, 1000.0))), g.rand(1, 24, scale=3))
    y = g.op("Add", g.op("Mul", y, g.rand(24, scale=1)), g.rand(24, scale=1))
    y = g.op("Relu", g.op("Sub", g.rand(1, scale=1), g.op("Relu", y)))
    z = g.op("Mul", g.op("Sub", "x", g.const([1000.0])), g.rand(24, scale=1))
    z = g.op("Mul", g.op("Mul", z, g.rand(24, scale=1)), g.rand(24, scale=1))
    z = g.op("Add", g.op("Relu", z), g.rand(24, scale=1))
    return g, g.op("Concat", y, z, axis=1)


@case
def broadcast():
    g = Graph("broadcast", 24)
    x = g.view("x", 4, 6)
    y = g.op("Mul", x, g.op("ReduceMean", x, axes=[2], keepdims=1))
    y = g.op("Add", y, g.rand(4, 1, scale=1))
    y = g.op("Sub", y, g.op("ReduceMax", x, axes=[1], keepdims=1))
    return g, g.op("Flatten", y)


@case
def reduce_opset18():
    g = Graph("reduce_opset18", 24, opset=18)
    x = g.view("x", 2, 3, 4)
    a = g.op("ReduceMean", x, g.ints(1, 3), keepdims=0)
    b = g.op("ReduceMax", x, g.ints(-1, 2), keepdims=0)
    c = g.op("ReduceSum", x, g.ints(2), keepdims=0)
    return g, g.op("Concat", a, b, g.op("Flatten", c), axis=1)


@case
def compare():
    """One-hot by comparison."""
    g = Graph("compare", 24, inp=lambda rng, n: rng.integers(0, 4, (n, 24)))
    y = [g.op("Cast", g.op(k, "x", g.const([v])), to=TensorProto.FLOAT) for k, v in (("Equal", 2.0), ("Greater", 1.0), ("Less", 1.0))]
    return g, g.op("Concat", *y, axis=1)


@case
def concat():
    g = Graph("concat", 24)
    x = g.view("x", 4, 6)
    y = g.op("Concat", x, g.op("Relu", x), g.op("Slice", x, g.ints(1), g.ints(3), g.ints(2)), axis=2)
    return g, g.op("Flatten", y)


@case
def slice():
    g = Graph("slice", 30)
    x = g.view("x", 5, 6)
    a = g.op("Slice", x, g.ints(-1, 1), g.ints(-2**31, 100), g.ints(1, 2), g.ints(-2, 2))
    b = g.op("Slice", x, g.ints(1), g.ints(-1), g.ints(1))
    return g, g.op("Concat", g.op("Flatten", a), g.op("Flatten", b), axis=1)


@case
def gather():
    g = Graph("gather", 24)
    x = g.view("x", 4, 6)
    y = g.op("Gather", x, g.const([[0, -1], [2, 2]], np.int64), axis=2)
    return g, g.op("Flatten", y)


@case
def embedding():
    def inp(rng, n):
        return np.concatenate([rng.integers(-1, 17, (n, 10)), rng.normal(0, 1, (n, 4))], axis=1)
    g = Graph("embedding", 14, inp=inp)
    code = g.op("Add", g.op("Slice", "x", g.ints(0), g.ints(10), g.ints(1)), g.const([1.0]))
    e = g.op("Gather", g.rand(18, 3, scale=1), g.op("Cast", code, to=TensorProto.INT64), axis=0)
    y = g.op("Conv", g.op("Transpose", e, perm=[0, 2, 1]), g.rand(4, 3, 3), g.rand(4, scale=1))
    return g, g.op("Concat", g.op("Flatten", y), g.op("Slice", "x", g.ints(10), g.ints(14), g.ints(1)), axis=1)


@case
def cast():
    g = Graph("cast", 24, inp=lambda rng, n: rng.normal(0, 50, (n, 24)))
    i = g.op("Cast", "x", to=TensorProto.INT32)
    return g, g.op("Cast", g.op("Add", i, g.const([3], np.int32)), to=TensorProto.FLOAT)


@case
def transpose():
    g = Graph("transpose", 24)
    return g, g.op("Flatten", g.op("Transpose", g.view("x", 2, 3, 4), perm=[0, 3, 1, 2]))


@case
def squeeze_unsqueeze():
    g = Graph("squeeze_unsqueeze", 24)
    y = g.op("Unsqueeze", "x", g.ints(1, -1))
    y = g.op("Mul", y, g.rand(1, 1, 24, 1, scale=1))
    return g, g.op("Squeeze", y, g.ints(1, 3))


@case
def reshape_by_shape():
    """What torch writes for x.view(x.size(0), -1)."""
    g = Graph("reshape_by_shape", 24)
    y = g.op("Relu", g.view("x", 4, 6))
    n = g.op("Unsqueeze", g.op("Gather", g.op("Shape", y), g.const(0, np.int64), axis=0), g.ints(0))
    return g, g.op("Reshape", y, g.op("Concat", n, g.ints(-1), axis=0))


@case
def pad():
    g = Graph("pad", 24)
    y = g.op("Pad", g.view("x", 4, 6), g.ints(0, 1, 2, 0, 0, -1), g.const(0.5))
    return g, g.op("Flatten", y)


@case
def clip():
    g = Graph("clip", 24)
    a = g.op("Clip", "x", g.const(-0.5), g.const(0.75))
    return g, g.op("Clip", a, "", g.const(0.7))


@case
def softmax():
    g = Graph("softmax", 24, inp=lambda rng, n: rng.normal(0, 5, (n, 24)))
    a = g.op("Softmax", "x", axis=-1)
    b = g.op("Flatten", g.op("Softmax", g.view("x", 4, 6), axis=1))
    return g, g.op("Concat", a, b, axis=1)


@case
def dropout():
    g = Graph("dropout", 24)
    return g, g.op("Relu", g.op("Dropout", "x", g.const(0.3)))


@case
def constant():
    g = Graph("constant", 24)
    a = g.op("Constant", value_floats=[2.0])
    b = g.op("Mul", a, g.op("Constant", value=numpy_helper.from_array(np.full((24,), 1.5, np.float32))))
    return g, g.op("Add", "x", g.op("Sqrt", b))


def batchnorm(g, y, c):
    return g.op("BatchNormalization", y, g.const(g.rng.uniform(0.5, 2, c)), g.rand(c, scale=1), g.rand(c, scale=1),
                g.const(g.rng.uniform(0.5, 2, c)))


@case
def batchnormalization():
    g = Graph("batchnormalization", 24)
    return g, g.op("Flatten", batchnorm(g, g.view("x", 4, 6), 4))


@case
def batchnorm_folded():
    g = Graph("batchnorm_folded", 24)
    y = g.op("Conv", g.view("x", 1, 24), g.rand(6, 1, 3))
    y = g.op("Flatten", g.op("Relu", batchnorm(g, y, 6)))
    return g, g.op("Relu", batchnorm(g, g.op("Gemm", y, g.rand(132, 7, scale=0.1)), 7))


@case
def residual():
    g = Graph("residual", 48)
    x = g.op("Relu", g.op("Conv", g.view("x", 4, 12), g.rand(4, 4, 3), pads=[1, 1]))
    y = g.op("Conv", x, g.rand(4, 4, 3), pads=[1, 1])
    return g, g.op("Flatten", g.op("Relu", g.op("Add", x, y)))


@case
def read_twice():
    """Results that have two readers, and a normalisation after the activation: none of it may be fused."""
    g = Graph("read_twice", 40)
    c = g.op("Conv", g.view("x", 2, 20), g.rand(4, 2, 3), g.rand(4, scale=0.5))
    y = batchnorm(g, g.op("Relu", c), 4)
    y = g.op("Flatten", g.op("Sub", y, c))
    d = g.op("Gemm", y, g.rand(72, 6, scale=0.1), g.rand(6, scale=0.5))
    p = g.op("MaxPool", g.op("Conv", g.view("x", 1, 40), g.rand(3, 1, 3)), kernel_shape=[2], strides=[2])
    p = g.op("Flatten", g.op("Sub", p, g.const([0.5])))
    n = g.op("Flatten", batchnorm(g, g.op("Relu", g.op("Conv", g.view("x", 4, 10), g.rand(3, 4, 3))), 3))
    return g, g.op("Concat", d, g.op("Relu", d), batchnorm(g, g.op("Relu", d), 6), p, n,
                   g.op("Add", g.op("Relu", g.op("Gemm", n, g.rand(24, 5, scale=0.3))), g.const([0.25])), axis=1)


def counts(inputs):
    def f(rng, n):
        lam = rng.choice([0.02, 0.2, 1, 20], (n, 1)) * rng.gamma(0.3, 3, (n, inputs))
        return rng.poisson(lam)
    return f


def cnn(name, inputs, classes, scaled):
    """The 13,393-parameter 1-D CNN, and the same with log counts and a softmax."""
    g = Graph(name, inputs, inp=counts(inputs))
    x = "x"
    length = inputs
    if scaled:
        x = g.op("Log", g.op("Add", x, g.const([1.0])))
    else:  # the published net reads the size bins only
        length = 95
        x = g.op("Slice", x, g.ints(0), g.ints(length), g.ints(1))
    y = g.view(x, 1, length)
    channels = 1
    for filters, k, p in ((64, 4, 3), (32, 2, 2), (16, 3, 2)):
        y = g.op("Relu", g.op("Conv", y, g.rand(filters, channels, k), g.rand(filters, scale=0.05)))
        y = g.op("MaxPool", y, kernel_shape=[p], strides=[p])
        length = (length - k + 1) // p
        channels = filters
    y = g.op("Flatten", y)
    width = length * channels
    for n in (64, 16, 8):
        y = g.op("Relu", g.op("Gemm", y, g.rand(n, width), g.rand(n, scale=0.05), transB=1))
        width = n
    y = g.op("Gemm", y, g.const(g.rng.normal(0, 0.1, (classes, width))), g.rand(classes, scale=0.05), transB=1)
    y = g.op("Softmax", y, axis=1) if classes > 1 else g.op("Sigmoid", y)
    g.meta = {
        "agp.name": name, "agp.version": "1", "agp.feature_set": "histogram", "agp.field": "class",
        "agp.classes": json.dumps([f"c{i}" for i in range(max(2, classes))]), "agp.benign": json.dumps(["c0"]),
        "agp.threshold": "0.5", "agp.min_packets": "8",
    }
    return g, y


@case
def cnn95():
    return cnn("cnn95", 159, 1, False)


@case
def cnn159():
    return cnn("cnn159", 159, 8, True)


HEAD = 129  # inputs of the head feature set


def heads(rng, n):
    p = np.where(rng.random((n, 96)) < 0.3, -1, rng.integers(0, 256, (n, 96)))
    l = np.where(rng.random((n, 16)) < 0.3, 0, rng.integers(-1500, 1500, (n, 16)))
    return np.concatenate([p, l, rng.integers(0, 65, (n, 16)), rng.choice([6, 17, 1], (n, 1))], axis=1)


@case
def head():
    """Reads the head feature set as a payload classifier does: embedded bytes, signed lengths, delays."""
    g = Graph("head", HEAD, inp=heads)

    def cut(a, b):
        return g.op("Slice", "x", g.ints(a), g.ints(b), g.ints(1))
    code = g.op("Cast", g.op("Add", cut(0, 96), g.const([1.0])), to=TensorProto.INT64)
    e = g.op("Gather", g.rand(257, 4, scale=1), code, axis=0)
    e = g.op("Transpose", g.op("Reshape", e, g.ints(0, 2, 48, 4)), perm=[0, 1, 3, 2])
    y = g.op("Reshape", e, g.ints(0, 8, 48))
    y = g.op("Relu", g.op("Conv", y, g.rand(16, 8, 5), g.rand(16, scale=0.1), pads=[2, 2]))
    y = g.op("Flatten", g.op("GlobalMaxPool", y))
    size = cut(96, 112)
    size = g.op("Mul", g.op("Sign", size), g.op("Log", g.op("Add", g.op("Abs", size), g.const([1.0]))))
    delay = g.op("Div", cut(112, 128), g.const([64.0]))
    y = g.op("Concat", y, size, delay, axis=1)
    y = g.op("Relu", g.op("Gemm", y, g.rand(16, 48), g.rand(16, scale=0.1), transB=1))
    y = g.op("Softmax", g.op("Gemm", y, g.rand(6, 16), transB=1), axis=1)
    g.meta = {
        "agp.name": "head", "agp.version": "1", "agp.feature_set": "head", "agp.field": "app",
        "agp.classes": json.dumps([f"app{i}" for i in range(6)]), "agp.threshold": "0.4", "agp.triggers": "[4, 8, 16]",
    }
    return g, y


def answer(out, name, raw, x):
    """Writes a model, its inputs and the answers to them."""
    so = ort.SessionOptions()
    so.intra_op_num_threads = 1
    so.log_severity_level = 3
    s = ort.InferenceSession(raw, so, providers=["CPUExecutionProvider"])
    r = s.run(None, {s.get_inputs()[0].name: x})[0]
    assert r.dtype == np.float32 and r.ndim == 2, (name, r.dtype, r.shape)
    with open(os.path.join(out, name + ".onnx"), "wb") as f:
        f.write(raw)
    x.tofile(os.path.join(out, name + ".in.f32"))
    r.tofile(os.path.join(out, name + ".out.f32"))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("out")
    ap.add_argument("--n", type=int, default=10000)
    ap.add_argument("--only", default="")
    ap.add_argument("--skip", default="")
    ap.add_argument("--add", nargs="*", default=[], metavar="FILE.onnx")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name in args.only.split(",") if args.only else CASES:
        if name in args.skip.split(","):
            continue
        g, y = CASES[name]()
        raw = g.model(y).SerializeToString()
        answer(args.out, name, raw, g.sample(np.random.default_rng(7), args.n).astype(np.float32))
    for path in args.add:
        with open(path, "rb") as f:
            raw = f.read()
        width = onnx.load_from_string(raw).graph.input[0].type.tensor_type.shape.dim[1].dim_value
        sample = heads if width == HEAD else counts(width)
        name = os.path.splitext(os.path.basename(path))[0]
        answer(args.out, name, raw, sample(np.random.default_rng(7), args.n).astype(np.float32))


if __name__ == "__main__":
    main()
