"""Trains `app`: application protocol from the first bytes and lengths of a flow. See README.md and ../app.md."""
import argparse
import collections
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import common
import synth_app

EMBED, CONV1, CONV2, POSITIONS, HIDDEN = 12, 16, 20, 64, 80
STEPS, BATCH, RATE, DECAY, SMOOTH, DROPOUT = 1000, 256, 3e-3, 1e-3, 0.05, 0.3
PER_CLASS, SEED, FOLDS = 150, 1, 5
TRIGGERS, MIN_PACKETS = [8, 16], 1
RIGHT = 0.985  # wanted share of right answers, which sets the threshold
UNKNOWN = "unknown"
NAMES = sorted(set(synth_app.GENERATORS) - {UNKNOWN}) + [UNKNOWN]
INDEX = {n: i for i, n in enumerate(NAMES)}

# Captures that have no oracle but whose protocol their origin states: capture -> server port -> protocol (0: any port).
STATED = {
    "ssh.pcap": {0: "SSH"}, "malicious-ssh-bruteforce.pcap": {0: "SSH"}, "bruteforce.pcap": {21: "FTP_CONTROL"},
    "modbusBig.pcap": {502: "Modbus"}, "smb2.pcap": {445: "NetBIOS"}, "pgsql-5000-query-results-input.pcap": {5432: "PostgreSQL"},
    "bro.org.pcap": {80: "HTTP"}, "HTTPS_NWZ_Zeitung.pcap": {443: "TLS"},
}
TCP_ONLY = ["TLS", "HTTP", "SOCKS", "SSH", "FTP_CONTROL", "SMTP", "IMAP", "POP3", "Telnet", "PostgreSQL", "MySQL", "Redis", "MQTT", "Modbus", "BGP", "HTTP_Proxy"]
UDP_ONLY = ["QUIC", "DTLS", "DHCP", "DHCPV6", "NTP", "SSDP", "MDNS", "LLMNR", "WireGuard", "Radius", "TFTP", "Syslog", "Dropbox"]


class Data:
    """Rows of head features. `last` marks the one row per flow that is evaluated."""

    def __init__(self, flows, captures):
        labels, self.with_oracle = common.oracles(captures)
        x, self.label, self.source, self.capture, last = [], [], [], [], []
        for f in flows:
            label, source = self.name(f, labels)
            heads = [r["head"] for r in f.rows if r["head"] is not None]
            if label is None or not heads or max(heads[-1][:96]) < 0:
                continue  # without a payload byte there is no evidence, and the pipeline does not ask
            for i, h in enumerate(heads):
                x.append(h)
                self.label.append(label)
                self.source.append(source)
                self.capture.append(f.capture)
                last.append(i == len(heads) - 1)
        self.x = np.array(x, np.float32)
        self.label, self.source, self.capture, self.last = map(np.array, (self.label, self.source, self.capture, last))
        self.y = np.array([INDEX.get(n, INDEX[UNKNOWN]) for n in self.label])

    @staticmethod
    def name(f, labels):
        got = labels.get(f.key())
        if got:
            protocol, confidence = got
            if protocol == "Unknown":
                return protocol, "unknown"
            return protocol, "dpi" if confidence.startswith("DPI") else "guess"
        stated = STATED.get(f.capture, {})
        port = next((p for p in (f.dst_port, f.src_port, 0) if p in stated), None)
        return (stated[port], "stated") if port is not None else (None, None)

    def fit(self, seed, allowed=True, generated=True):
        use = (self.source != "guess") & allowed
        return fit(self.x[use], self.y[use], self.capture[use], seed, generated=generated)

    def evaluated(self):
        """Protocols that occur in at least 4 captures, on payload seen by the oracle (not guessed from port or address)."""
        where = collections.defaultdict(set)
        for n, c, s, e in zip(self.label, self.capture, self.source, self.last):
            if s == "dpi" and e:
                where[str(n)].add(c)
        return sorted(n for n, c in where.items() if len(c) >= 4)


# --- network ---------------------------------------------------------------------------------------

def byte_table():
    """Start of the byte embedding: bits and character classes, then room to learn. Row 0 is an absent byte."""
    t = np.random.RandomState(0).randn(257, EMBED) * 0.1
    for b in range(256):
        t[b + 1, :8] = [((b >> j) & 1) - 0.5 for j in range(8)]
        t[b + 1, 8:12] = [48 <= b < 58, 65 <= b < 91 or 97 <= b < 123, b in (10, 13), b == 32]
    t[0] = 0
    return torch.tensor(t, dtype=torch.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(byte_table())
        self.conv1, self.bn1 = nn.Conv1d(EMBED, CONV1, 5, padding=2), nn.BatchNorm1d(CONV1)
        self.conv2, self.bn2 = nn.Conv1d(CONV1, CONV2, 3, stride=2, padding=1), nn.BatchNorm1d(CONV2)
        self.first = nn.Linear(2 * 8 * EMBED, POSITIONS)  # the first 8 bytes by position: magic numbers, types, versions
        self.hidden, self.bn3 = nn.Linear(2 * 12 * CONV2 + POSITIONS + 3 * 16 + 4, HIDDEN), nn.BatchNorm1d(HIDDEN)
        self.out = nn.Linear(HIDDEN, len(NAMES))
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x):
        e = self.embed[(x[:, :96] + 1).long().clamp(0, 256)].transpose(1, 2)

        def direction(z):
            z = F.max_pool1d(F.relu(self.bn1(self.conv1(z))), 2)
            return F.relu(self.bn2(self.conv2(z))).flatten(1)

        first = torch.cat([e[:, :, :8].flatten(1), e[:, :, 48:56].flatten(1)], 1)
        length = x[:, 96:112]
        sign = torch.sign(length)
        size = torch.log(1 + length.abs() / 8) / 3
        protocol = torch.cat([(1 - (x[:, 128:129] - p).abs()).clamp(0, 1) for p in (1.0, 6.0, 17.0, 58.0)], 1) * 2
        v = torch.cat([direction(e[:, :, :48]), direction(e[:, :, 48:]), F.relu(self.first(first)), size * sign, sign, size], 1)
        h = F.relu(self.bn3(self.hidden(torch.cat([self.drop(v), protocol], 1))))
        return self.out(self.drop(h))


# --- augmentation ------------------------------------------------------------------------------------

def augment(x, r):
    """What another network, another capture point or a shorter look could have shown of the same conversation."""
    x = x.copy()
    n = len(x)
    noise = (r.rand(n, 96) < r.choice([0, 0, 0.02, 0.06], size=(n, 1))) & (x[:, :96] >= 0)
    x[:, :96][noise] = r.randint(0, 256, noise.sum())
    for d in (0, 1):  # payload cut short
        cut = (r.rand(n) < 0.2)[:, None] & (np.arange(48)[None] >= r.randint(12, 49, n)[:, None])
        x[:, 48 * d: 48 * d + 48][cut] = -1
    u = r.rand(n)
    for lost in (0, 1):  # only one direction passes the capture point; it is then the initiator's
        i = np.where(((u < 0.07) if lost == 0 else (u > 0.93)) & (x[:, 48 * (1 - lost)] >= 0))[0]
        for k in i:
            row, keep = x[k], x[k, 48 * (1 - lost): 48 * (1 - lost) + 48].copy()
            seen = row[96:112] < 0 if lost == 0 else row[96:112] > 0
            length, delay = np.abs(row[96:112][seen]), row[112:128][seen]
            row[:48], row[48:96], row[96:128] = keep, -1, 0
            row[96: 96 + len(length)], row[112: 112 + len(delay)] = length, delay
    for k in np.where(r.rand(n) < 0.25)[0]:  # fewer packets seen
        m = r.randint(3, 16)
        x[k, 96 + m: 112] = x[k, 112 + m: 128] = 0
    length = x[:, 96:112]  # other header options
    jitter = r.choice([-12, -8, 0, 8, 12, 20], size=(n, 1)) + r.choice([0, 0, 0, -4, 3], size=(n, 16))
    x[:, 96:112] = np.where((r.rand(n) < 0.5)[:, None] & (length != 0), np.sign(length) * np.maximum(20, np.abs(length) + jitter), length)
    return x


def background(x, y, r):
    """Turns a tenth of a batch into traffic that must stay unknown: opening bytes replaced, or the transport exchanged."""
    y = y.copy()
    u = r.rand(len(x))
    for i in np.where((u < 0.06) & ~np.isin(y, [INDEX["ICMP"], INDEX["ICMPV6"]]))[0]:
        k, all_, rolled = r.randint(3, 13), r.rand() < 0.5, r.rand() < 0.5
        for d in (0, 1):
            opening, whole = x[i, 48 * d: 48 * d + k], x[i, 48 * d: 48 * d + 48]
            opening[opening >= 0] = r.randint(0, 256, (opening >= 0).sum())
            if all_:
                p = whole >= 0
                whole[p] = np.roll(whole[p], r.randint(1, 9)) if rolled else r.randint(0, 256, p.sum())
        y[i] = INDEX[UNKNOWN]
    swap = (u > 0.95) & np.isin(y, [INDEX[n] for n in TCP_ONLY + UDP_ONLY])
    x[swap, 128] = np.where(x[swap, 128] == 6, 17, 6)
    y[swap] = INDEX[UNKNOWN]
    silent = (x[:, :96] < 0).all(1)
    y[silent] = INDEX[UNKNOWN]
    return x, y


def sample_weights(y, capture):
    """Classes share evenly, captures within a class by the root of their size; one capture of thousands of flows must not dominate."""
    w = np.zeros(len(y))
    for c in np.unique(y):
        i = y == c
        n = collections.Counter(capture[i])
        share = np.array([n[k] ** -0.5 for k in capture[i]])
        w[i] = share / sum(v ** 0.5 for v in n.values()) * min(1, 0.35 + 0.15 * len(n))
        w[i] *= 4 if c == INDEX[UNKNOWN] else 2 if NAMES[c] in ("TLS", "HTTP", "QUIC", "DNS") else 1
    return w / w.sum()


def fit(x, y, capture, seed, steps=STEPS, generated=True):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    r = np.random.RandomState(seed)
    w = sample_weights(y, capture)
    n_gen = BATCH // 2 if generated else 0
    if generated:
        gx, gy = synth_app.make(NAMES, PER_CLASS, seed)
        gy = np.array([INDEX[n] for n in gy])
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, RATE, total_steps=steps, pct_start=0.15)
    for _ in range(steps):
        i = r.choice(len(y), BATCH - n_gen, p=w)
        xb, yb = x[i], y[i]
        if generated:
            k = r.choice(len(gy), n_gen)
            xb, yb = np.concatenate([xb, gx[k]]), np.concatenate([yb, gy[k]])
        xb, yb = background(augment(xb, r), yb, r)
        loss = F.cross_entropy(net(torch.tensor(xb)), torch.tensor(yb), label_smoothing=SMOOTH)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    return net.eval()


def predict(net, x):
    with torch.no_grad():
        return torch.cat([torch.softmax(net(torch.tensor(x[i: i + 1024])), 1) for i in range(0, len(x), 1024)]).numpy()


def export(net, path, threshold):
    g = common.Graph(common.HEAD)
    f32 = lambda t: t.detach().numpy()

    def folded(conv, bn):  # batch normalisation is folded into the weights
        s = f32(bn.weight) / np.sqrt(f32(bn.running_var) + bn.eps)
        w = f32(conv.weight)
        return w * s.reshape(-1, *[1] * (w.ndim - 1)), (f32(conv.bias) - f32(bn.running_mean)) * s + f32(bn.bias)

    (w1, b1), (w2, b2), (w3, b3) = folded(net.conv1, net.bn1), folded(net.conv2, net.bn2), folded(net.hidden, net.bn3)
    c = {n: g.const(n, v) for n, v in {"conv1.w": w1, "conv1.b": b1, "conv2.w": w2, "conv2.b": b2, "hidden.w": w3, "hidden.b": b3,
         "first.w": f32(net.first.weight), "first.b": f32(net.first.bias), "out.w": f32(net.out.weight), "out.b": f32(net.out.bias),
         "bytes": f32(net.embed), "one": 1.0, "zero": 0.0, "two": 2.0, "eight": 8.0, "three": 3.0, "protocols": [1, 6, 17, 58]}.items()}
    index = g.op("Cast", "byte_index", g.op("Add", "byte_plus_one", g.slice("payload", "features", 0, 96), c["one"]), to=7)
    e = g.op("Transpose", "embedded", g.op("Gather", "rows", c["bytes"], index, axis=0), perm=[0, 2, 1])

    def direction(n, start):
        z = g.op("Conv", n + ".conv1", g.slice(n, e, start, start + 48, 2), c["conv1.w"], c["conv1.b"], kernel_shape=[5], pads=[2, 2], strides=[1])
        z = g.op("MaxPool", n + ".pool", g.op("Relu", n + ".relu1", z), kernel_shape=[2], strides=[2])
        z = g.op("Conv", n + ".conv2", z, c["conv2.w"], c["conv2.b"], kernel_shape=[3], pads=[1, 1], strides=[2])
        return g.op("Flatten", n + ".flat", g.op("Relu", n + ".relu2", z), axis=1)

    fwd, rev = direction("fwd", 0), direction("rev", 48)
    opening = g.op("Concat", "openings", *(g.op("Flatten", n + ".opening", g.slice(n + ".opening8", e, s, s + 8, 2), axis=1) for n, s in (("fwd", 0), ("rev", 48))), axis=1)
    first = g.op("Relu", "first.relu", g.op("Gemm", "first", opening, c["first.w"], c["first.b"], transB=1))
    length = g.slice("lengths", "features", 96, 112)
    sign = g.op("Sign", "direction", length)
    size = g.op("Add", "size1", g.op("Div", "size8", g.op("Abs", "size", length), c["eight"]), c["one"])
    size = g.op("Div", "log_size", g.op("Log", "log", size), c["three"])
    far = g.op("Abs", "protocol_far", g.op("Sub", "protocol_diff", g.slice("protocol", "features", 128, 129), c["protocols"]))
    proto = g.op("Mul", "protocol_is", g.op("Clip", "protocol_clip", g.op("Sub", "protocol_near", c["one"], far), c["zero"], c["one"]), c["two"])
    v = g.op("Concat", "all", fwd, rev, first, g.op("Mul", "signed_size", size, sign), sign, size, proto, axis=1)
    h = g.op("Relu", "hidden.relu", g.op("Gemm", "hidden", v, c["hidden.w"], c["hidden.b"], transB=1))
    g.op("Softmax", "probabilities", g.op("Gemm", "out", h, c["out.w"], c["out.b"], transB=1), axis=1)
    g.save(path, "probabilities", NAMES, {
        "agp.name": "app", "agp.version": "1", "agp.feature_set": "head", "agp.field": "app", "agp.triggers": json.dumps(TRIGGERS),
        "agp.min_packets": str(MIN_PACKETS), "agp.threshold": f"{threshold:.2f}", "agp.benign": json.dumps(NAMES)})


# --- evaluation ---------------------------------------------------------------------------------------

def fold_job(job):
    data, test, seed, generated = job
    return predict(data.fit(seed, ~test, generated), data.x[test])


def cross_validate(data, flows, workers, by_network=False, generated=True):
    """Probabilities of every row from a network that saw no row of its group."""
    group = common.groups(flows, by_network)
    classes = collections.defaultdict(set)
    for n, c, s in zip(data.label, data.capture, data.source):
        classes[c].add(n if s == "dpi" else "other")
    fold = common.folds(classes, {c: group[c] for c in classes}, FOLDS, 0)
    of = np.array([fold[c] for c in data.capture])
    p = np.zeros((len(data.y), len(NAMES)), np.float32)
    with ProcessPoolExecutor(workers) as pool:
        for k, q in enumerate(pool.map(fold_job, [(data, of == k, SEED * 100 + k, generated) for k in range(FOLDS)])):
            p[of == k] = q
    return p, len(set(group[c] for c in classes))


def measure(label, p, classes, threshold):
    """Figures over rows whose label is among classes."""
    m = np.isin(label, classes)
    y, got, score = label[m], np.array(NAMES)[p[m].argmax(1)], p[m].max(1)
    per, f1 = {}, []
    for n in classes:
        tp, fp, fn = ((y == n) & (got == n)).sum(), ((y != n) & (got == n)).sum(), ((y == n) & (got != n)).sum()
        f1.append(2 * tp / max(1, 2 * tp + fp + fn))
        wrong = collections.Counter(got[(y == n) & (got != n)].tolist())
        per[str(n)] = {"flows": int((y == n).sum()), "recall": round(float(tp / max(1, tp + fn)), 4), "precision": round(float(tp / max(1, tp + fp)), 4),
                       "f1": round(float(f1[-1]), 4), "taken_for": dict(wrong.most_common(5))}
    answered = (score >= threshold) & (got != UNKNOWN)
    return {"flows": int(m.sum()), "accuracy": round(float((y == got).mean()), 4), "macro_f1": round(float(np.mean(f1)), 4), "answered": round(float(answered.mean()), 4),
            "answers_right": round(float((y == got)[answered].mean()), 4), "per_protocol": per}


def choose_threshold(label, p):
    """The lowest threshold at which enough of all answers are right, flows of protocols that the model does not know counted as wrong."""
    got, score = np.array(NAMES)[p.argmax(1)], p.max(1)
    for t in np.arange(0.5, 0.96, 0.05):
        a = (score >= t) & (got != UNKNOWN)
        if (label == got)[a].mean() >= RIGHT:
            return round(float(t), 2)
    raise SystemExit("no threshold reaches the wanted share of right answers")


def evaluate(data, flows, workers):
    p, n_groups = cross_validate(data, flows, workers)
    classes = data.evaluated()
    e = data.last & (data.source == "dpi")
    label, q, capture = data.label[e], p[e], data.capture[e]
    threshold = choose_threshold(label, q)
    out = measure(label, q, classes, threshold)
    out |= {"threshold": threshold, "scheme": f"{FOLDS} folds, whole captures held out, captures that share a conversation kept together",
            "captures": len(set(data.capture)), "groups": n_groups, "classes": classes}
    got, score = np.array(NAMES)[q.argmax(1)], q.max(1)
    named = (score >= threshold) & (got != UNKNOWN)
    other = ~np.isin(label, classes)
    known = np.isin(label, NAMES)
    out["rarer_protocols"] = {"flows": int(other.sum()), "of_them_known_to_the_model": int((other & known).sum()), "named_right": int((other & named & (label == got)).sum()),
                              "named_wrong": int((other & named & (label != got)).sum()),
                              "wrong": {f"{a} as {b}": n for (a, b), n in collections.Counter(zip(label[other & named & (label != got)].tolist(), got[other & named & (label != got)].tolist())).most_common(12)}}
    out["all_answers_right"] = round(float((label == got)[named].mean()), 4)
    m = np.isin(label, classes)
    out["per_capture_wrong"] = {c: {"flows": int((m & (capture == c)).sum()), "wrong": int((m & (capture == c) & (label != got)).sum()), "wrong_answered": int((m & named & (capture == c) & (label != got)).sum())}
                                for c in sorted(set(capture[m & (label != got)].tolist()))}
    big = collections.Counter(capture[m].tolist()).most_common(1)[0][0]
    k = m & (capture != big)
    out["without_largest_capture"] = {"capture": big, **{n: v for n, v in measure(label[k], q[k], classes, threshold).items() if n != "per_protocol"}}
    for source, text in (("stated", "captures_without_oracle"), ("guess", "oracle_guessed_from_port_or_address")):
        s = data.last & (data.source == source)
        if s.any():
            g, sc = np.array(NAMES)[p[s].argmax(1)], p[s].max(1)
            a = (sc >= threshold) & (g != UNKNOWN)
            out[text] = {n: {"flows": int((data.label[s] == n).sum()), "answered": int((a & (data.label[s] == n)).sum()), "right": int((a & (data.label[s] == n) & (g == n)).sum())} for n in sorted(set(data.label[s].tolist()))}
    s = data.last & (data.source == "unknown")
    g, sc = np.array(NAMES)[p[s].argmax(1)], p[s].max(1)
    out["oracle_unknown"] = {"flows": int(s.sum()), "named": int(((sc >= threshold) & (g != UNKNOWN)).sum())}
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--features", required=True, help="output of telegraf-agp model features")
    a.add_argument("--captures", required=True, help="folder with the oracles (*.ndpi.out)")
    a.add_argument("--out", required=True, help="folder for app.onnx and app.eval.json")
    a.add_argument("--evaluate", action="store_true", help="cross-validate, print the figures and write app.eval.json, which holds the threshold")
    a.add_argument("--ablations", action="store_true", help="with --evaluate: also folds by network, and without generated conversations")
    a.add_argument("--workers", type=int, default=2)
    a = a.parse_args()
    start = time.time()
    flows = common.read_flows(a.features)
    data = Data(flows, a.captures)
    report = os.path.join(a.out, "app.eval.json")
    if a.evaluate:
        result = evaluate(data, flows, a.workers)
        if a.ablations:
            for name, kw in (("folds_by_network", {"by_network": True}), ("without_generated_conversations", {"generated": False})):
                p, n = cross_validate(data, flows, a.workers, **kw)
                e = data.last & (data.source == "dpi")
                r = measure(data.label[e], p[e], result["classes"], result["threshold"])
                result[name] = {k: r[k] for k in ("accuracy", "macro_f1", "answered", "answers_right")} | {"groups": n, "f1": {k: v["f1"] for k, v in r["per_protocol"].items()}}
        common.write_json(report, result)
        print(json.dumps(result, indent=1, sort_keys=True))
    else:
        with open(report) as f:
            threshold = json.load(f)["threshold"]
        net = data.fit(SEED)
        path = os.path.join(a.out, "app.onnx")
        export(net, path, threshold)
        print("app.onnx: largest difference to ONNX Runtime", common.verify(path, data.x[:2000], predict(net, data.x[:2000])))
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
