"""What both trainings share: features, labels, folds, ONNX graphs, reports.

Features come from `telegraf-agp model features`, so that a network is trained on exactly what it is shown later.
Labels come from the folder of captures: NAME.ndpi.out beside a capture (per-flow protocol) and MANIFEST.tsv.
"""
import collections
import hashlib
import ipaddress
import json
import os
import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE_BINS, DELAY_BINS, HEAD = 95, 64, 129
TRIGGERS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]  # what the feature file holds


class Flow:
    """One flow record: `rows` are the exported lines, in order, the last one from its end."""
    __slots__ = ("capture", "src", "dst", "src_port", "dst_port", "protocol", "rows")

    def key(self):
        ports = (0, 0) if self.protocol in (1, 58) else (self.src_port, self.dst_port)
        return (self.capture, self.protocol) + tuple(sorted([(norm(self.src), ports[0]), (norm(self.dst), ports[1])]))

    def head(self):
        """The last head features of the flow; they are complete after 16 packets."""
        return next((r["head"] for r in reversed(self.rows) if r.get("head") is not None), None)


def norm(address):
    return str(ipaddress.ip_address(address.split("%")[0]))


def read_flows(path):
    """The flows of a feature file, by capture and in order of their end, so that the order of files does not matter."""
    open_, out = {}, []
    with open(path) as f:
        for line in f:
            r = json.loads(line)
            k = (r["capture"], r["src"], r["dst"], r["src_port"], r["dst_port"], r["protocol"])
            fl = open_.get(k)
            if fl is None:
                fl = open_[k] = Flow()
                fl.capture, fl.src, fl.dst, fl.src_port, fl.dst_port, fl.protocol = k
                fl.rows = []
            fl.rows.append({n: r[n] for n in ("packets", "end", "head")} | {"hist": r["size_hist"] + r["delay_hist"]})
            if r["end"]:
                out.append(open_.pop(k))
    return sorted(out, key=lambda f: f.capture)


def find(captures, suffix):
    for folder, _, names in sorted(os.walk(captures)):
        for n in sorted(names):
            if n.endswith(suffix):
                yield os.path.join(folder, n)


FLOW_LINE = re.compile(r"^\t\d+\t(\S+) (\S+) (?:<->|->) (\S+) (.*)$")
IP_PROTOCOL = {"TCP": 6, "UDP": 17, "ICMP": 1, "ICMPV6": 58, "SCTP": 132}


def endpoint(text):
    host, _, port = text.rpartition("]:" if text.startswith("[") else ":")
    return norm(host.lstrip("[")), int(port)


def oracles(captures):
    """Flow key -> (master protocol, confidence), and the names of the captures that have an oracle."""
    labels, names = {}, set()
    for path in find(captures, ".ndpi.out"):
        capture = os.path.basename(path)[: -len(".ndpi.out")]
        names.add(capture)
        with open(path, errors="replace") as f:
            for line in f:
                m = FLOW_LINE.match(line)
                p = m and re.search(r"\[proto: [\d.]+/([^\]]+)\]", m[4])
                if not p:
                    continue
                try:
                    ends = sorted([endpoint(m[2]), endpoint(m[3])])
                except ValueError:
                    continue
                proto = IP_PROTOCOL.get(m[1]) or (int(m[1]) if m[1].isdigit() else -1)
                c = re.search(r"\]\[Confidence: ([^\]]+)\]", m[4])
                labels.setdefault((capture, proto) + tuple(ends), (p[1].split(".")[0], c[1] if c else ""))
    return labels, names


def manifest(captures):
    """Capture -> (class, detail) of MANIFEST.tsv."""
    out = {}
    for path in find(captures, "MANIFEST.tsv"):
        with open(path) as f:
            head = f.readline().rstrip("\n").split("\t")
            if "class" not in head:
                continue
            for line in f:
                row = dict(zip(head, line.rstrip("\n").split("\t")))
                out[row["file"]] = (row["class"], row["detail"])
    return out


def groups(flows, by_network=False):
    """Capture -> group. Captures that share a conversation are one group; with by_network also those that share a client address."""
    parent = {f.capture: f.capture for f in flows}

    def root(c):
        while parent[c] != c:
            c = parent[c]
        return c

    seen = {}
    for f in flows:
        h = f.head()
        if h is None:
            continue
        keys = []
        if h[0] >= 0 and h[48] >= 0 and sum(v >= 0 for v in h[:96]) >= 64:
            keys.append(hashlib.sha256(json.dumps(h[:96]).encode()).digest())
        a = ipaddress.ip_address(norm(f.src))
        if by_network and not (a.is_loopback or a.is_unspecified or a.is_multicast or a.is_link_local):
            keys.append(str(a))
        for k in keys:
            a, b = root(f.capture), root(seen.setdefault(k, f.capture))
            if a != b:
                parent[max(a, b)] = min(a, b)
    return {c: root(c) for c in parent}


def folds(classes_of, group_of, k, seed):
    """Capture -> fold. Rare classes are dealt out first, so that every class is spread over as many folds as it has groups."""
    r = np.random.RandomState(seed)
    content = collections.defaultdict(set)
    for c, classes in classes_of.items():
        content[group_of[c]] |= set(classes)
    where = collections.defaultdict(list)
    for g in sorted(content):
        for c in content[g]:
            where[c].append(g)
    load = collections.Counter()
    fold = {}
    for c in sorted(where, key=lambda c: (len(where[c]), c)):
        todo = [g for g in where[c] if g not in fold]
        r.shuffle(todo)
        for g in todo:
            f = min(range(k), key=lambda f: (load[f, c], load[f], r.rand()))
            fold[g] = f
            load[f] += 1
            for d in content[g]:
                load[f, d] += 1
    for g in sorted(set(group_of.values())):
        fold.setdefault(g, int(r.randint(k)))
    return {c: fold[g] for c, g in group_of.items()}


# --- ONNX ------------------------------------------------------------------------------------------

class Graph:
    """Builds an ONNX graph node by node; values are named by what they are."""

    def __init__(self, inputs):
        self.inputs, self.nodes, self.consts = inputs, [], []

    def const(self, name, value, dtype=np.float32):
        if not any(c.name == name for c in self.consts):
            self.consts.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, kind, name, *args, **attrs):
        self.nodes.append(helper.make_node(kind, list(args), [name], name=name, **attrs))
        return name

    def slice(self, name, x, start, end, axis=1):
        ints = [self.const(f"at_{v}", [v], np.int64) for v in (start, end, axis)]
        return self.op("Slice", name, x, *ints)

    def save(self, path, output, classes, meta):
        x = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", self.inputs])
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", len(classes)])
        graph = helper.make_graph(self.nodes, meta["agp.name"], [x], [y], self.consts)
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="telegraf-agp")
        helper.set_model_props(m, {**meta, "agp.classes": json.dumps(classes)})
        onnx.checker.check_model(m, full_check=True)
        onnx.save(m, path)


def verify(path, x, expected, tolerance=1e-5):
    """The file computes what was trained, as ONNX Runtime sees it."""
    import onnxruntime
    got = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"features": x.astype(np.float32)})[0]
    worst = float(np.abs(got - expected).max())
    if worst > tolerance:
        raise SystemExit(f"{path}: ONNX Runtime differs from the trained network by {worst}")
    return worst


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1, sort_keys=True)
        f.write("\n")
