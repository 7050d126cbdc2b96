#!/usr/bin/env python3
"""Times a model with ONNX Runtime on one thread and with telegraf-agp on one core, same input, same
machine, one after the other, and prints both. Rates are per second of CPU time, so that other work on
the machine does not count against either.

    ort.py MODEL.onnx [--binary telegraf-agp] [--batch 64] [--time 2]

Needs numpy, onnx and onnxruntime. The Go side alone: telegraf-agp model bench MODEL.onnx
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort


def rows(width, n, head):
    """Made-up flows: mostly empty histogram bins, or payload bytes, lengths and delays."""
    rng = np.random.default_rng(7)
    if head:
        p = np.where(rng.random((n, 96)) < 0.3, -1, rng.integers(0, 256, (n, 96)))
        return np.concatenate([p, rng.integers(-1500, 1500, (n, 16)), rng.integers(0, 65, (n, 16)),
                               np.full((n, 1), 6)], axis=1).astype(np.float32)
    return rng.poisson(rng.gamma(0.3, 3, (n, width))).astype(np.float32)


def time_ort(raw, x, batch, span):
    so = ort.SessionOptions()
    so.intra_op_num_threads = so.inter_op_num_threads = 1
    so.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    so.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    s = ort.InferenceSession(raw, so, providers=["CPUExecutionProvider"])
    name = s.get_inputs()[0].name
    parts = [x[i:i + batch] for i in range(0, len(x) - batch + 1, batch)]
    for p in parts[:4]:
        s.run(None, {name: p})
    flows, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < span:
        for p in parts:
            s.run(None, {name: p})
            flows += batch
    return flows / (time.process_time() - cpu)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--binary", default="telegraf-agp")
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--time", type=float, default=2, help="seconds per row")
    args = ap.parse_args()
    raw = open(args.model, "rb").read()
    width = onnx.load_from_string(raw).graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = rows(width, max(4096, args.batch), head=width == 129)
    table = []
    for batch in sorted({1, args.batch, 1024}):
        table.append((f"onnxruntime {ort.__version__}", batch, time_ort(raw, x, batch, args.time)))
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "rows.f32")
        x.tofile(path)
        for batch in sorted({1, args.batch}):
            out = subprocess.run([args.binary, "model", "bench", "--json", "--input", path, "--batch", str(batch),
                                  "--time", f"{args.time}s", args.model], check=True, capture_output=True, text=True)
            for line in out.stdout.splitlines():
                r = json.loads(line)
                table.append(("telegraf-agp " + r["engine"], batch, r["flows_per_cpu_second"]))
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown CPU")
    best = max(r for name, _, r in table if name.startswith("onnxruntime"))
    print(f"{os.path.basename(args.model)} on {cpu}, one thread; ratio to the best ONNX Runtime row")
    print(f"{'engine':<28}{'batch':>6}{'flows/CPU s':>14}{'us/flow':>10}{'ratio':>8}")
    for name, batch, rate in table:
        print(f"{name:<28}{batch:>6}{rate:>14,.0f}{1e6 / rate:>10.2f}{rate / best:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
