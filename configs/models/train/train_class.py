"""Trains `class`: behaviour of a long flow from its size and delay histograms. See README.md and ../class.md."""
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
import synth_class

CLASSES = ["benign", "c2", "covert", "tunnel"]
INDEX = {c: i for i, c in enumerate(CLASSES)}
MIN_PACKETS = 128
TRIGGERS = [n for n in common.TRIGGERS if n >= MIN_PACKETS]
THRESHOLD = 0.8
# Distance in log-odds that the worst harmless flow keeps below THRESHOLD. Wider where agp/detect has a rule of its own,
# which sees payload and ports: there the network only confirms.
MARGIN = {"c2": 0.2, "covert": 0.8, "tunnel": 0.8}
STEPS, BATCH, RATE, DECAY, DROPOUT, MIXUP, SMOOTH = 1000, 192, 3e-3, 1e-3, 0.2, 0.3, 0.02
REAL_ATTACK, GENERATED_BENIGN = 0.5, 0.15  # share of captured attacks, and of generated harmless traffic
PER_GENERATOR, SEED, FOLDS = 200, 1, 5

# Which flows of an attack capture are the attack; the rest of such a capture is neither trained on nor counted.
ATTACKS = {
    "dns2tcp_tunnel.pcap": ("tunnel", None), "dns_exfiltration.pcap": ("tunnel", None), "bad-dns-traffic.pcap": ("tunnel", None), "icmp-tunnel.pcap": ("tunnel", None),
    "TCC_Faust_40_80.pcap": ("covert", None), "TCC_RedBrownFox_80_160.pcap": ("covert", None), "SCC_Faust_ZIP_60.pcap": ("covert", None),
    "Size_Mod_1000_1001_300ms_0925_1800.pcap": ("covert", None), "mining.pcapng": ("c2", None), "strrat-4423258f-59bc-4a88-bfec-d8ac08c88538.pcap": ("c2", None),
    "30a385ed-171e-4f15-ac3f-08c96be7bfd1.pcap": ("c2", lambda f: 7084 in (f.src_port, f.dst_port)),
    "9596cf60-0da6-47a7-a375-1f25ae32d843.pcap": ("c2", lambda f: 4782 in (f.src_port, f.dst_port)),
    "f9421792-7d2c-47d3-90e0-07eb54ae12fa.pcap": ("c2", lambda f: f.dst == "143.95.79.226"),
    "0e328ab7-12b2-4843-8717-a5b3ebef33a8.pcap": ("c2", lambda f: 80 in (f.src_port, f.dst_port)),
    "test-cc-capture-1.pcap": ("c2", None),
}
# Captures of the oracle collection whose own oracle reports an attack.
NOT_BENIGN = {
    "malware.pcap": "client contacted a malware host", "sql_injection.pcap": "SQL injection", "dotenv.pcap": "possible exploit attempt",
    "fuzz-2006-09-29-28586.pcap": "possible exploit attempt",
}


def label(capture, origin):
    if capture in ATTACKS:
        return ATTACKS[capture][0]
    if capture in NOT_BENIGN:
        return None
    return "benign" if origin.get(capture, ("benign",))[0] == "benign" else None


class Data:
    """Histograms of prefixes and, for training only, of the windows between two exported packet counts."""

    def __init__(self, flows, captures):
        origin = common.manifest(captures)
        x, y, capture, packets, scored = [], [], [], [], []
        self.captures = collections.defaultdict(set)  # class -> captures, also those without a long enough flow
        for f in flows:
            c = label(f.capture, origin)
            if c is None:
                continue
            self.captures[c].add(f.capture)
            if c != "benign" and ATTACKS[f.capture][1] and not ATTACKS[f.capture][1](f):
                continue
            before = None
            for r in f.rows:
                h, n = np.array(r["hist"], np.float32), r["packets"]
                if before is None or n != before[0]:
                    if n >= MIN_PACKETS * 0.66:
                        x.append(h), y.append(INDEX[c]), capture.append(f.capture), packets.append(n), scored.append(n >= MIN_PACKETS)
                    if before and n - before[0] >= MIN_PACKETS * 0.66:
                        x.append(h - before[1]), y.append(INDEX[c]), capture.append(f.capture), packets.append(n - before[0]), scored.append(False)
                before = (n, h)
        self.x, self.y, self.capture, self.packets, self.scored = map(np.array, (x, y, capture, packets, scored))


# --- network -----------------------------------------------------------------------------------------

class Net(nn.Module):
    """The 1-D CNN with 64, 32 and 16 filters; the two histograms are two channels of 95 positions, scaled to the root of the share."""

    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv1d(2, 64, 4), nn.Conv1d(64, 32, 2), nn.Conv1d(32, 16, 3)])
        self.dense = nn.ModuleList([nn.Linear(96, 64), nn.Linear(64, 16), nn.Linear(16, 8), nn.Linear(8, len(CLASSES))])
        self.drop = nn.Dropout(DROPOUT)
        for layer in self.dense[:3]:  # narrow layers: the usual smaller start leaves some of them dead
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        size, delay = x[:, : common.SIZE_BINS], x[:, common.SIZE_BINS:]
        n = size.sum(1, keepdim=True).clamp(min=1)
        z = torch.stack([torch.sqrt(size / n), F.pad(torch.sqrt(delay / n), (0, common.SIZE_BINS - common.DELAY_BINS))], 1)
        for conv, width in zip(self.conv, (3, 2, 2)):
            z = F.max_pool1d(F.relu(conv(z)), width)
        z = self.drop(z.flatten(1))
        for i, layer in enumerate(self.dense):
            z = layer(z)
            if i < 3:
                z = F.relu(z)
            if i == 0:
                z = self.drop(z)
        return z


# --- training data ---------------------------------------------------------------------------------------

def augment(x, r):
    """Fewer packets, another pace, other header sizes, less regular delays."""
    out = np.zeros_like(x)
    last = common.DELAY_BINS - 1
    for i in range(len(x)):
        s, d = x[i, : common.SIZE_BINS].astype(float), x[i, common.SIZE_BINS:].astype(float)
        n = int(s.sum())
        if r.rand() < 0.6:
            m = int(max(min(n, MIN_PACKETS), n * 2 ** -r.uniform(0, 4)))
            s = r.multinomial(m, s / s.sum())
            d = r.multinomial(max(m - 1, 0), d / d.sum()) if d.sum() > 0 else d
        if r.rand() < 0.5:
            k, e = r.randint(-4, 5), np.zeros(common.DELAY_BINS)
            np.add.at(e, np.clip(np.arange(common.DELAY_BINS) + k, 0, last), d)
            if k < 0:  # what was beyond the last bin stays there
                e[last + k] -= d[last]
                e[last] += d[last]
            d = e
        if r.rand() < 0.4:
            e = np.zeros(common.SIZE_BINS)
            np.add.at(e, np.clip(np.arange(common.SIZE_BINS) + r.randint(-2, 3), 1, common.SIZE_BINS - 1), s)
            s = e
        if r.rand() < 0.2:
            e = d * 0.6
            e[1:] += 0.2 * d[:-1]
            e[:-1] += 0.2 * d[1:]
            d = e
        out[i, : common.SIZE_BINS], out[i, common.SIZE_BINS:] = s, d
    return out


class Pool:
    """All training rows and their augmented copies, made once; a fold leaves out the rows of its captures."""

    def __init__(self, data):
        r = np.random.RandomState(3)
        x, y, capture = [], [], []
        count = collections.Counter(data.capture)
        for i in range(len(data.y)):
            k = 3 if data.y[i] == 0 else int(np.clip(400 / count[data.capture[i]], 2, 60))
            x += [data.x[i: i + 1], augment(np.repeat(data.x[i: i + 1], k, 0), r)]
            y += [data.y[i]] * (k + 1)
            capture += [data.capture[i]] * (k + 1)
        gx, gy = synth_class.make(CLASSES, PER_GENERATOR, 7, MIN_PACKETS, common.DELAY_BINS)
        for batch in (gx, augment(gx, r), augment(gx, r)):
            x.append(batch)
            y += [INDEX[c] for c in gy]
            capture += [""] * len(gy)
        self.x, self.y, self.capture = np.concatenate(x).astype(np.float32), np.array(y), np.array(capture)

    def weights(self, left_out):
        w = np.zeros(len(self.y))
        generated, allowed = self.capture == "", ~np.isin(self.capture, list(left_out))
        for c in range(len(CLASSES)):
            total, real = (0.55, 1 - GENERATED_BENIGN) if c == 0 else (0.15, REAL_ATTACK)
            i, g = (self.y == c) & ~generated & allowed, (self.y == c) & generated
            n = collections.Counter(self.capture[i])
            share = np.array([n[k] ** (-0.5 if c == 0 else -1.0) for k in self.capture[i]])
            w[i] = total * real * share / share.sum()
            w[g] = total * (1 - real) / g.sum()
        return w / w.sum()


def fit(pool, left_out, seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    r = np.random.RandomState(seed)
    order = r.choice(len(pool.y), (STEPS, BATCH), p=pool.weights(left_out))
    x, y = torch.tensor(pool.x), F.one_hot(torch.tensor(pool.y), len(CLASSES)).float() * (1 - SMOOTH) + SMOOTH / len(CLASSES)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, RATE, total_steps=STEPS, pct_start=0.2)
    for step in order:
        a, ya = x[step], y[step]
        p = torch.tensor(r.permutation(BATCH))
        share = float(r.beta(MIXUP, MIXUP))
        na, nb = a[:, : common.SIZE_BINS].sum(1, keepdim=True), a[p][:, : common.SIZE_BINS].sum(1, keepdim=True)
        mixed = (share * a / na + (1 - share) * a[p] / nb) * torch.maximum(na, nb)
        loss = -((share * ya + (1 - share) * ya[p]) * F.log_softmax(net(mixed), 1)).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    return net.eval()


def logits(net, x):
    with torch.no_grad():
        return net(torch.tensor(x, dtype=torch.float32)).numpy()


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def logit(p):
    return np.log(p / (1 - p))


def calibrate(z):
    """Shift of every attack class so that the worst harmless flow (its logits, from networks that did not know it) stays MARGIN below THRESHOLD."""
    margin = np.array([0.0] + [MARGIN[c] for c in CLASSES[1:]])
    shift = np.zeros(len(CLASSES))
    for _ in range(200):
        worst = softmax(z + shift).max(0)
        step = logit(THRESHOLD) - margin - logit(worst)
        step[0] = 0
        shift = np.minimum(shift + 0.5 * step, 2.0)
        shift[0] = 0
    return shift


def export(net, path, shift):
    g = common.Graph(common.SIZE_BINS + common.DELAY_BINS)
    f32 = lambda t: t.detach().numpy()
    size, delay = g.slice("sizes", "features", 0, common.SIZE_BINS), g.slice("delays", "features", common.SIZE_BINS, common.SIZE_BINS + common.DELAY_BINS)
    one, bins = g.const("one", 1.0), g.const("size_bins", float(common.SIZE_BINS))
    n = g.op("Max", "packets", g.op("Mul", "packets0", g.op("ReduceMean", "mean_bin", size, axes=[1], keepdims=1), bins), one)
    delay = g.op("Pad", "delays95", g.op("Sqrt", "delay_root", g.op("Div", "delay_share", delay, n)), g.const("pad", [0, 0, 0, common.SIZE_BINS - common.DELAY_BINS], np.int64))
    axis = g.const("axis1", [1], np.int64)
    z = g.op("Concat", "histograms", g.op("Unsqueeze", "size_channel", g.op("Sqrt", "size_root", g.op("Div", "size_share", size, n)), axis), g.op("Unsqueeze", "delay_channel", delay, axis), axis=1)
    for i, (conv, width) in enumerate(zip(net.conv, (3, 2, 2)), 1):
        z = g.op("Conv", f"conv{i}", z, g.const(f"conv{i}.w", f32(conv.weight)), g.const(f"conv{i}.b", f32(conv.bias)), kernel_shape=[conv.kernel_size[0]])
        z = g.op("MaxPool", f"pool{i}", g.op("Relu", f"conv{i}.relu", z), kernel_shape=[width], strides=[width])
    z = g.op("Flatten", "flat", z, axis=1)
    for i, layer in enumerate(net.dense, 1):
        bias = f32(layer.bias) + (shift if i == 4 else 0)
        z = g.op("Gemm", f"dense{i}", z, g.const(f"dense{i}.w", f32(layer.weight)), g.const(f"dense{i}.b", bias), transB=1)
        z = g.op("Relu", f"dense{i}.relu", z) if i < 4 else z
    g.op("Softmax", "probabilities", z, axis=1)
    g.save(path, "probabilities", CLASSES, {
        "agp.name": "class", "agp.version": "1", "agp.feature_set": "histogram", "agp.field": "class", "agp.triggers": json.dumps(TRIGGERS),
        "agp.min_packets": str(MIN_PACKETS), "agp.threshold": f"{THRESHOLD:.2f}", "agp.benign": json.dumps(["benign"])})


# --- evaluation --------------------------------------------------------------------------------------------

def deal(data):
    """Capture -> fold. The attack captures of one class go to different folds, so that a fold never misses a whole class."""
    fold, r = {}, np.random.RandomState(0)
    for i, c in enumerate(CLASSES[1:]):
        for k, name in enumerate(sorted(set(data.capture[data.y == INDEX[c]]))):
            fold[name] = (k + i) % FOLDS
    benign = sorted(set(data.capture[data.y == 0]))
    r.shuffle(benign)
    fold.update({name: k % FOLDS for k, name in enumerate(benign)})
    return fold


def fold_job(job):
    pool, left_out, x, seed = job
    return logits(fit(pool, left_out, seed), x)


def judge(data, p):
    """Per capture: highest score of each attack class over all its flows and packet counts."""
    out = {}
    for c in sorted(set(data.capture[data.scored])):
        i = (data.capture == c) & data.scored
        k = p[i][:, 1:].max(1).argmax()
        best = p[i].max(0)
        name = CLASSES[1 + int(p[i][k][1:].argmax())]
        out[str(c)] = {"class": CLASSES[int(data.y[i][0])], "flows_scored": int(i.sum()), "highest": {CLASSES[j]: round(float(best[j]), 3) for j in range(1, len(CLASSES))},
                       "alert": name if p[i][k].max() >= THRESHOLD and p[i][k].argmax() > 0 else None, "packets": int(data.packets[i][k])}
        of = INDEX[out[str(c)]["class"]]
        right = i & (p[:, of] >= THRESHOLD)
        if of and right.any():
            out[str(c)]["alert"], out[str(c)]["packets"] = CLASSES[of], int(data.packets[right].min())
    return out


def evaluate(data, workers):
    pool, fold = Pool(data), deal(data)
    of = np.array([fold[c] for c in data.capture])
    z = np.zeros((len(data.y), len(CLASSES)))
    with ProcessPoolExecutor(workers) as ex:
        jobs = [(pool, {c for c, f in fold.items() if f == k}, data.x[of == k], SEED * 100 + k) for k in range(FOLDS)]
        for k, q in enumerate(ex.map(fold_job, jobs)):
            z[of == k] = q
    harmless = data.scored & (data.y == 0)
    shift = calibrate(z[harmless])
    judged = judge(data, softmax(z + shift))
    attacks = {c: v for c, v in judged.items() if v["class"] != "benign"}
    benign = {c: v for c, v in judged.items() if v["class"] == "benign"}
    for c in CLASSES[1:]:
        for name in sorted(data.captures[c] - set(judged)):
            attacks[name] = {"class": c, "flows_scored": 0, "alert": None, "note": f"no flow of {MIN_PACKETS} packets"}
    # The same with a shift that does not know the judged fold's harmless captures either.
    nested = 0
    for k in range(FOLDS):
        s = calibrate(z[harmless & (of != k)])
        i = harmless & (of == k)
        p = softmax(z[i] + s)
        nested += len(set(data.capture[i][(p[:, 1:].max(1) >= THRESHOLD)]))
    caught = {c: [n for n, v in attacks.items() if v["class"] == c and v["alert"] == c] for c in CLASSES[1:]}
    missed = {c: [n for n, v in attacks.items() if v["class"] == c and v["alert"] != c] for c in CLASSES[1:]}
    return {"scheme": f"{FOLDS} folds, whole captures held out; a capture is judged by its highest score over all flows and packet counts, by a network that never saw it",
            "shift": [round(float(v), 4) for v in shift], "threshold": THRESHOLD, "min_packets": MIN_PACKETS,
            "benign_captures": len(data.captures["benign"]), "benign_captures_scored": len(benign), "benign_flows_scored": int(harmless.sum()),
            "benign_alerts": sorted(c for c, v in benign.items() if v["alert"]), "benign_alerts_with_threshold_from_other_captures": nested,
            "closest_benign": dict(sorted(((c, v["highest"]) for c, v in benign.items()), key=lambda t: -max(t[1].values()))[:10]),
            "caught": caught, "missed": missed, "attack_captures": attacks}


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--features", required=True, help="output of telegraf-agp model features")
    a.add_argument("--captures", required=True, help="folder with MANIFEST.tsv")
    a.add_argument("--out", required=True, help="folder for class.onnx and class.eval.json")
    a.add_argument("--evaluate", action="store_true", help="cross-validate, print the figures and write class.eval.json, which holds the calibration")
    a.add_argument("--workers", type=int, default=2)
    a = a.parse_args()
    start = time.time()
    data = Data(common.read_flows(a.features), a.captures)
    report = os.path.join(a.out, "class.eval.json")
    if a.evaluate:
        result = evaluate(data, a.workers)
        common.write_json(report, result)
        print(json.dumps(result, indent=1, sort_keys=True))
    else:
        with open(report) as f:
            shift = np.array(json.load(f)["shift"])
        net = fit(Pool(data), set(), SEED)
        path = os.path.join(a.out, "class.onnx")
        export(net, path, shift)
        p = softmax(logits(net, data.x) + shift)
        print("class.onnx: largest difference to ONNX Runtime", common.verify(path, data.x, p))
        print("alerts on its own training captures:", {c: v["alert"] for c, v in judge(data, p).items() if v["alert"]})
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
