"""Packet sequences of attacks (and of the harmless traffic closest to them), used only for training `class`.

Each generator returns (l3_lengths, gaps_us): one entry per packet, the first gap is ignored. They are written from
how such channels work, with the parameters a defender cannot know (symbol time, period, sizes, round trip) drawn
wide. They are never counted in an evaluation.
"""
import numpy as np


def rtt_us(r):
    return 10 ** r.uniform(2.0, 5.4)


def jitter(r, v, rel):
    return v * float(np.exp(r.normal(0, rel)))


# --- covert channels ----------------------------------------------------------------------------

def covert_timing(r):
    """Bits as two (or more) gaps between tiny equal packets, each acknowledged."""
    n = int(r.integers(64, 6000))
    t0 = 10 ** r.uniform(3.9, 5.8)
    ratio = r.choice([1.5, 2, 2, 2, 3, 4])
    levels = t0 * ratio ** np.arange(r.choice([2, 2, 2, 3, 4]))
    pay, hdr = int(r.choice([1, 1, 2, 4, 8, 16, 32, r.integers(1, 200)])), int(r.choice([40, 52, 52, 28]))
    acked, back = r.random() < 0.85, 10 ** r.uniform(0.5, 4.5)
    sizes, gaps = [], []
    while len(sizes) < n:
        sizes.append(hdr + pay), gaps.append(jitter(r, levels[r.integers(len(levels))], 0.02))
        if acked:
            sizes.append(hdr), gaps.append(jitter(r, back, 0.4))
    return sizes, gaps


def covert_onoff(r):
    """A packet in the interval is a one, silence a zero: gaps are multiples of one interval."""
    n, t = int(r.integers(64, 4000)), 10 ** r.uniform(3.9, 5.8)
    pay, hdr = int(r.choice([1, 1, 4, 8, 32])), int(r.choice([40, 52, 52, 28]))
    acked, back = r.random() < 0.85, 10 ** r.uniform(0.5, 4.5)
    sizes, gaps = [], []
    while len(sizes) < n:
        sizes.append(hdr + pay), gaps.append(jitter(r, t * r.geometric(0.5), 0.02))
        if acked:
            sizes.append(hdr), gaps.append(jitter(r, back, 0.4))
    return sizes, gaps


def covert_size(r):
    """Bits as two (or few) packet sizes at a steady pace."""
    n, t = int(r.integers(64, 4000)), 10 ** r.uniform(3.7, 6.2)
    base, step = int(r.integers(60, 1400)), int(r.choice([1, 1, 2, 8, 16, 32, 100, 300]))
    sizes_set = [min(1500, base + k * step) for k in range(int(r.choice([2, 2, 2, 3, 4])))]
    acked, back, hdr = r.random() < 0.4, 10 ** r.uniform(0.5, 4.5), int(r.choice([40, 52]))
    sizes, gaps = [], []
    while len(sizes) < n:
        sizes.append(int(r.choice(sizes_set))), gaps.append(jitter(r, t, r.choice([0.002, 0.02, 0.1])))
        if acked:
            sizes.append(hdr), gaps.append(jitter(r, back, 0.4))
    return sizes, gaps


# --- tunnels --------------------------------------------------------------------------------------

def dns_tunnel(r):
    """Queries with encoded labels and answers with data, polled, on one port pair."""
    n, rt = int(r.integers(50, 3000)), rtt_us(r)
    poll = 10 ** r.uniform(4.0, 6.2)
    idle_q = int(r.integers(60, 110))
    idle_a = idle_q + int(r.integers(14, 80))
    big_q = int(r.integers(150, 300))
    big_a = big_q + int(r.integers(16, 160))
    busy = r.uniform(0.02, 0.9)
    sizes, gaps, active = [], [], r.random() < busy
    while len(sizes) < n:
        if r.random() < 0.08:
            active = r.random() < busy
        q, a = (big_q, big_a) if active else (idle_q, idle_a)
        if r.random() < 0.25:
            q, a = q - int(r.integers(0, max(1, q - idle_q) + 12)), a + int(r.integers(-30, 120))
        sizes.append(q), gaps.append(jitter(r, rt * 0.3 if active and r.random() < 0.7 else poll, 0.5))
        if r.random() < 0.97:
            sizes.append(max(50, a)), gaps.append(jitter(r, rt, 0.25))
    return sizes, gaps


def icmp_tunnel(r):
    """IP packets inside echo messages: small interactive traffic, sometimes bulk, in both directions."""
    n, rt, over = int(r.integers(50, 3000)), rtt_us(r), int(r.choice([28, 48, 56]))
    mtu = int(r.choice([576, 1000, 1028, 1400, 1472]))
    small = [over + int(r.integers(20, 120)) for _ in range(int(r.integers(1, 4)))]
    bulk = r.uniform(0, 0.5)
    sizes, gaps = [], []
    while len(sizes) < n:
        if r.random() < bulk * 0.3:
            for _ in range(int(r.integers(2, 10))):
                sizes.append(mtu + over), gaps.append(jitter(r, 10 ** r.uniform(1.5, 4), 0.4))
        else:
            sizes.append(int(r.choice(small)) + int(r.integers(0, 2)) * int(r.integers(0, 40))), gaps.append(jitter(r, 10 ** r.uniform(4.3, 6.3), 0.6))
            if r.random() < 0.8:
                sizes.append(int(r.choice(small)) + int(r.integers(0, 30))), gaps.append(jitter(r, rt, 0.3))
    return sizes, gaps


# --- command and control ----------------------------------------------------------------------------

def handshake(r, hdr, rt, tls=True):
    sizes, gaps = [hdr + 12, hdr + 12, hdr], [0, rt, 50]
    if tls:
        sizes += [hdr + int(r.integers(120, 560)), hdr, 1460 if r.random() < 0.6 else hdr + int(r.integers(700, 1300)), hdr, hdr + int(r.integers(80, 330)), hdr + int(r.integers(50, 260))]
        gaps += [2000, rt, 1500, 100, 3000, rt]
    return sizes, gaps


def rat_keepalive(r):
    """A remote-access trojan's channel: handshake, then a small request and answer every few seconds for as long as it lives."""
    n, rt, hdr = int(r.integers(50, 900)), rtt_us(r), int(r.choice([40, 40, 52]))
    period = 10 ** r.uniform(5.2, 7.3)
    up, down = int(r.integers(10, 180)), int(r.integers(10, 140))
    both, spread = r.random() < 0.7, r.choice([0.01, 0.1, 0.5])
    sizes, gaps = handshake(r, hdr, rt, r.random() < 0.7)
    delack = r.random() < 0.7
    while len(sizes) < n:
        if r.random() < 0.03:  # a task: screenshot, file, command output
            for _ in range(int(r.integers(2, 40))):
                sizes.append(int(r.choice([1460, 1500, 590, 1400])) if r.random() < 0.6 else hdr), gaps.append(jitter(r, 10 ** r.uniform(1.5, 4.5), 0.4))
        sizes.append(hdr + up + int(r.integers(0, 3)) * int(r.choice([0, 1, 16]))), gaps.append(jitter(r, period, spread))
        if both:
            sizes.append(hdr + down), gaps.append(jitter(r, rt, 0.3))
        if delack or not both:
            sizes.append(hdr), gaps.append(jitter(r, r.choice([4e4, 2e5, rt]), 0.2))
    return sizes, gaps


def mining(r):
    """Stratum: long-lived, jobs pushed every few ten seconds, shares sent at random, each acknowledged."""
    n, rt, hdr = int(r.integers(50, 900)), rtt_us(r), int(r.choice([40, 52, 52]))
    job, share, answer = int(r.integers(150, 1420)), int(r.integers(60, 260)), int(r.integers(30, 110))
    period = 10 ** r.uniform(5.6, 7.7)
    sizes, gaps = handshake(r, hdr, rt, r.random() < 0.2)
    while len(sizes) < n:
        if r.random() < 0.6:
            sizes.append(hdr + job + int(r.integers(0, 3))), gaps.append(jitter(r, period, 0.8))
            if job > 900 and r.random() < 0.5:
                sizes.append(hdr + int(r.integers(40, 1300))), gaps.append(jitter(r, 200, 1))
            sizes.append(hdr), gaps.append(jitter(r, r.choice([60, 4e4]), 0.3))
        else:
            sizes += [hdr + share, hdr + answer, hdr]
            gaps += [jitter(r, period * 0.5, 1), jitter(r, rt, 0.3), jitter(r, r.choice([60, 4e4]), 0.3)]
    return sizes, gaps


# --- password guessing in one connection ---------------------------------------------------------------

def brute_force(r):
    """User and password tried again and again, the server delaying every refusal."""
    n, rt, hdr = int(r.integers(40, 400)), rtt_us(r), int(r.choice([40, 52]))
    wait = 10 ** r.uniform(4.5, 6.6)
    user, pw, no, ask = int(r.integers(8, 40)), int(r.integers(8, 48)), int(r.integers(20, 60)), int(r.integers(20, 60))
    sizes, gaps = handshake(r, hdr, rt, False)
    while len(sizes) < n:
        sizes += [hdr + user, hdr + ask, hdr + pw + int(r.integers(0, 8)), hdr, hdr + no]
        gaps += [jitter(r, rt * 0.2, 0.5), jitter(r, rt, 0.2), jitter(r, rt * 0.2, 0.5), jitter(r, 4e4, 0.05), jitter(r, wait, 0.15)]
    return sizes, gaps


# --- harmless traffic that resembles the above -----------------------------------------------------------

def voice(r):
    n, size, t = int(r.integers(64, 1500)), int(r.choice([60, 72, 200, 172, 214, int(r.integers(60, 300))])), r.choice([2e4, 2e4, 3e4, 6e4])
    var, two = r.choice([0, 0, 10, 40]), r.random() < 0.6
    sizes = [int(size + abs(r.normal(0, var)) if var else size) for _ in range(n)]
    return sizes, [jitter(r, t / (2 if two else 1), r.choice([0.02, 0.3, 0.8])) for _ in range(n)]


def game(r):
    n, a, b = int(r.integers(64, 1500)), int(r.integers(48, 140)), int(r.integers(60, 700))
    return [int(abs(r.normal(a, 10))) + 30 if r.random() < 0.5 else int(abs(r.normal(b, b * 0.3))) + 30 for _ in range(n)], [jitter(r, 10 ** r.uniform(3.5, 4.8), 0.6) for _ in range(n)]


def download(r):
    n, rt, hdr = int(r.integers(64, 3000)), rtt_us(r), int(r.choice([40, 52]))
    sizes, gaps = handshake(r, hdr, rt, r.random() < 0.8)
    per = int(r.integers(1, 5))
    while len(sizes) < n:
        for _ in range(per):
            sizes.append(int(r.choice([1500, 1500, 1400, 1492]))), gaps.append(jitter(r, 10 ** r.uniform(0, 3), 0.5))
        sizes.append(hdr), gaps.append(jitter(r, 10 ** r.uniform(1, 3.5), 0.8))
        if r.random() < 0.05:
            sizes.append(hdr + int(r.integers(80, 900))), gaps.append(jitter(r, rt + 10 ** r.uniform(3, 6.5), 0.5))
    return sizes, gaps


def polling(r):
    """Field bus or monitoring: request and answer of fixed size, evenly paced."""
    n, rt, hdr = int(r.integers(64, 3000)), 10 ** r.uniform(2, 4.5), int(r.choice([40, 52]))
    q, a, t = int(r.integers(8, 60)), int(r.integers(8, 260)), 10 ** r.uniform(3, 5.2)
    ack = r.random() < 0.7
    sizes, gaps = handshake(r, hdr, rt, False)
    while len(sizes) < n:
        sizes += [hdr + q, hdr + a] + ([hdr] if ack else [])
        gaps += [jitter(r, t, 0.1), jitter(r, rt, 0.3)] + ([jitter(r, 200, 1)] if ack else [])
    return sizes, gaps


def browsing(r):
    n, rt, hdr = int(r.integers(40, 800)), rtt_us(r), int(r.choice([40, 52]))
    sizes, gaps = handshake(r, hdr, rt)
    while len(sizes) < n:
        sizes += [hdr + int(r.integers(60, 1200)), hdr]
        gaps += [jitter(r, 10 ** r.uniform(3, 6.8), 1), jitter(r, rt, 0.3)]
        for _ in range(int(r.geometric(0.25))):
            sizes += [int(r.choice([1500, 1500, 1400, hdr + int(r.integers(30, 1400))]))] + ([hdr] if r.random() < 0.5 else [])
            gaps += [jitter(r, 10 ** r.uniform(0.5, 3.5), 0.8)] + ([jitter(r, 100, 1)] if len(sizes) > len(gaps) + 1 else [])
        while len(gaps) < len(sizes):
            gaps.append(jitter(r, 100, 1))
    return sizes, gaps


GENERATORS = {
    "covert": [covert_timing, covert_onoff, covert_size],
    "tunnel": [dns_tunnel, icmp_tunnel],
    "c2": [rat_keepalive, mining],
    "brute_force": [brute_force],
    "benign": [voice, game, download, polling, browsing],
}


def histogram(sizes, gaps, n, delay_bins):
    """The `histogram` feature set of the first n packets: 95 size bins, then the delay bins."""
    s = np.minimum(np.asarray(sizes[:n]) // 16, 94)
    d = np.floor(4 * np.log2(np.maximum(np.asarray(gaps[1:n], float), 1))).astype(int)
    return np.concatenate([np.bincount(s, minlength=95), np.bincount(np.clip(d, 0, delay_bins - 1), minlength=delay_bins)]).astype(np.float32)


def make(classes, per_generator, seed, min_packets, delay_bins=64):
    r = np.random.default_rng(seed)
    xs, ys = [], []
    for c in classes:
        for g in GENERATORS.get(c, []):
            for _ in range(per_generator):
                s, d = g(r)
                hi = len(s)
                n = int(min(hi, min_packets * 2 ** r.uniform(0, max(0.0, np.log2(hi / min_packets))))) if hi > min_packets else hi
                xs.append(histogram(s, d, max(n, 8), delay_bins))
                ys.append(c)
    return np.stack(xs), ys
