"""Conversations written from protocol specifications, used only for training `app`.

Captures show a protocol as a few hosts happened to speak it. These generators vary what the
specification leaves open (versions, message types, identifiers, names, lengths, direction) so
that the network learns the fixed part. They are never counted in an evaluation.

A generator returns (ip_protocol, [(direction, payload), ...]), direction 0 from the initiator.
`head` turns that into the 129 inputs of the `head` feature set.
"""
import struct

import numpy as np

HEAD_PAYLOAD, HEAD_PACKETS = 48, 16
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58


class Gen:
    """Random choices and the byte-level helpers of the generators, on one seeded stream."""

    def __init__(self, seed):
        self.r = np.random.default_rng(seed)

    def i(self, lo, hi):
        return int(self.r.integers(lo, hi + 1))

    def p(self, prob):
        return self.r.random() < prob

    def c(self, *xs):
        return xs[int(self.r.integers(len(xs)))]

    def raw(self, n):
        return self.r.bytes(max(0, int(n)))

    def word(self, lo=2, hi=12):
        return "".join(self.c(*"abcdefghijklmnopqrstuvwxyz0123456789-") for _ in range(self.i(lo, hi)))

    def host(self):
        labels = [self.word(1, 14) for _ in range(self.i(1, 3))]
        return ".".join(labels + [self.c("com", "net", "org", "de", "io", "local", "cn", "co")])

    def ip4(self):
        return self.raw(4)

    def path(self):
        return "/" + "/".join(self.word(1, 10) for _ in range(self.i(0, 4)))

    def agent(self):
        return self.c("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "Dalvik/2.1.0", "Wget/1.21",
                      "okhttp/4.9", "python-requests/2.31", self.word(4, 10) + "/1.0")

    # --- web -------------------------------------------------------------------------------
    def tls_record(self, kind, ver, body):
        return struct.pack(">BHH", kind, ver, len(body)) + body

    def client_hello(self, dtls=False):
        sid = self.c(0, 0, 32)
        n = self.c(self.i(80, 260), self.i(180, 520), 508, self.i(509, 800), self.i(1400, 1900))
        ver = self.c(0xfefd, 0xfeff) if dtls else self.c(0x0303, 0x0303, 0x0303, 0x0301, 0x0302)
        body = struct.pack(">H", ver) + self.raw(32) + bytes([sid]) + self.raw(sid)
        k = self.i(1, 40)
        if dtls:
            body += b"\0"
        body += struct.pack(">H", 2 * k) + self.raw(2 * k) + b"\1\0"
        body += self.raw(max(0, n - len(body)))
        return body

    def handshake(self, kind, body):
        return bytes([kind]) + len(body).to_bytes(3, "big") + body

    def tls_server(self):
        ver = self.c(0x0303, 0x0303, 0x0303, 0x0301)
        sid = self.c(0, 32, 32)
        ext = self.i(0, 90)
        sh = struct.pack(">H", ver) + self.raw(32) + bytes([sid]) + self.raw(sid) + self.raw(3)
        if ext:
            sh += struct.pack(">H", ext) + self.raw(ext)
        return self.tls_record(22, ver, self.handshake(2, sh)) + self.raw(self.i(20, 4000))

    def app_record(self):
        n = self.i(20, 900)
        head = self.c(b"", b"", b"\0\0\0\0\0\0\0" + bytes([self.i(1, 40)]))
        return self.tls_record(self.c(23, 23, 23, 23, 21), self.c(0x0303, 0x0303, 0x0301), head + self.raw(n))

    def tls(self):
        if self.p(0.25):  # joined in the middle
            a, b = (0, 1) if self.p(0.5) else (1, 0)
            m = [(a if self.p(0.6) else b, self.app_record()) for _ in range(self.i(1, 12))]
            m[0] = (0, m[0][1])
            return TCP, m
        hello = self.tls_record(22, self.c(0x0301, 0x0301, 0x0303, 0x0300), self.handshake(1, self.client_hello()))
        m = [(0, hello)]
        if self.p(0.07):
            return TCP, m + [(1, self.tls_record(21, self.c(0x0301, 0x0303), self.c(b"\2", b"\1") + bytes([self.i(0, 120)])))]
        m.append((1, self.tls_server()))
        for _ in range(self.i(0, 8)):
            m.append((self.i(0, 1), self.app_record()))
        return TCP, m

    def http(self):
        meth = self.c("GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH")
        hdr = [f"Host: {self.host()}", f"User-Agent: {self.agent()}", "Accept: */*", "Connection: keep-alive",
               f"Content-Type: {self.c('application/json', 'text/xml', 'application/octet-stream')}",
               f"Cookie: {self.word(3, 8)}={self.word(8, 30)}"]
        self.r.shuffle(hdr)
        req = f"{meth} {self.path()}{self.c('', '?' + self.word(2, 6) + '=' + self.word(1, 9), '.html', '.php')} HTTP/{self.c('1.1', '1.1', '1.1', '1.0')}\r\n"
        req = req.encode() + "\r\n".join(hdr[: self.i(1, 6)]).encode() + b"\r\n\r\n" + self.raw(self.c(0, 0, self.i(0, 800)))
        code = self.c("200 OK", "200 OK", "200 OK", "302 Found", "301 Moved Permanently", "404 Not Found", "304 Not Modified",
                      "204 No Content", "500 Internal Server Error", "206 Partial Content", "101 Switching Protocols")
        rh = [f"Server: {self.c('nginx', 'Apache', 'cloudflare', 'Microsoft-IIS/10.0')}", "Date: Mon, 01 Jan 2024 10:00:00 GMT",
              f"Content-Length: {self.i(0, 99999)}", "Content-Type: text/html", "Cache-Control: no-cache", "Connection: close"]
        self.r.shuffle(rh)
        resp = f"HTTP/{self.c('1.1', '1.1', '1.0')} {code}\r\n".encode() + "\r\n".join(rh[: self.i(1, 6)]).encode() + b"\r\n\r\n" + self.raw(self.i(0, 3000))
        m = [(0, req)] * (0 if self.p(0.05) else 1)
        if self.p(0.85) or not m:
            m.append((1, resp))
            if not self.p(0.7):
                m += [(0, req), (1, resp)]
        return TCP, m

    def quic(self):
        n = self.i(1200, 1350)
        style = self.c(0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 7, 7, 8, 9, 9)
        dcid, scid = self.raw(self.c(8, 8, 8, self.i(4, 20))), self.raw(self.c(0, 0, 8, self.i(0, 20)))
        if style <= 4:
            ver = self.c(b"\0\0\0\1", b"\0\0\0\1", b"\x6b\x33\x43\xcf", b"\xff\0\0" + bytes([self.i(22, 34)]), b"Q0" + str(self.i(46, 50)).encode(),
                         b"T0" + str(self.i(50, 51)).encode(), b"\xfa\xce\xb0" + bytes([self.i(1, 14)]))
            if ver == b"\x6b\x33\x43\xcf":
                k1, k2 = 0xd0, self.c(0xd0, 0xf0, 0x90)
            else:
                k1, k2 = self.c(0xc0, 0xc0, 0xc0, 0xd0), self.c(0xc0, 0xe0, 0xd0, 0xf0)
            tok = self.c(b"\0", b"\0", b"\x40" + bytes([60]) + self.raw(60))
            a = bytes([k1 | self.i(0, 15)]) + ver + bytes([len(dcid)]) + dcid + bytes([len(scid)]) + scid + tok + b"\x44" + self.raw(n)
            b = bytes([k2 | self.i(0, 15)]) + ver + bytes([len(scid)]) + scid + bytes([len(dcid)]) + dcid + b"\0\x44" + self.raw(self.c(n, self.i(20, 1200)))
            a, b = a[:n], b[:n]
        elif style == 5:  # version negotiation with a reserved version
            v = self.c(bytes([(self.i(0, 15) << 4) | 10]) * 4, bytes((self.i(0, 15) << 4) | 10 for _ in range(4)))
            a = (bytes([0xc0 | self.i(0, 63)]) + v + bytes([len(dcid)]) + dcid + bytes([len(scid)]) + scid + b"\0\x44" + self.raw(n))[:n]
            b = bytes([0x80 | self.i(0, 127)]) + b"\0\0\0\0" + bytes([len(scid)]) + scid + bytes([len(dcid)]) + dcid
            b += b"".join(self.c(b"\0\0\0\1", b"\xff\0\0" + bytes([self.i(20, 34)]), b"Q0" + str(self.i(43, 50)).encode(), v) for _ in range(self.i(1, 8)))
        elif style in (6, 7):  # gQUIC with public header
            cid = self.raw(8)
            a = bytes([self.c(0x09, 0x0d, 0x0d)]) + cid + b"Q0" + str(self.i(24, 43)).encode() + b"\1" + self.raw(n)
            b = self.c(b"\x08" + cid + b"\1" + self.raw(12), b"\x08" + cid, b"\0\1", b"\x0c" + cid + b"\1") + self.raw(self.i(20, 1300))
        elif style == 8:  # Q043/Q046 with short connection ids
            cid = self.raw(8)
            ver = b"Q046"
            a = bytes([self.c(0xc3, 0xc3, 0xd3)]) + ver + b"\x50" + cid + b"\0\0\0\1" + self.raw(n)
            b = bytes([self.c(0xc3, 0xd3, 0xe3)]) + ver + b"\x05" + cid + b"\0\0\0\1" + self.raw(self.i(20, 1300))
        else:  # joined after the handshake: short headers only
            m = [(0, bytes([0x40 | self.i(0, 63)]) + self.raw(self.c(self.i(25, 70), 1250)))]
            cid = m[0][1][1:9]
            for _ in range(self.i(2, 14)):
                d = self.i(0, 1)
                m.append((d, bytes([0x40 | self.i(0, 63)]) + (cid if d == 0 else b"") + self.raw(self.c(self.i(20, 70), 1250))))
            return UDP, m
        m = [(0, a)]
        if self.p(0.15):
            return UDP, m * self.i(1, 8)
        m.append((1, b))
        for _ in range(self.i(0, 12)):
            m.append((self.i(0, 1), self.raw(self.c(self.i(25, 70), self.i(25, 1250), 1250))))
        return UDP, m

    # --- names -----------------------------------------------------------------------------
    def qname(self, host):
        return b"".join(bytes([len(x)]) + x.encode()[:63] for x in host.split(".")) + b"\0"

    def dns_msgs(self):
        tid = self.raw(2)
        q = self.qname(self.host()) + struct.pack(">HH", self.c(1, 1, 28, 16, 15, 12, 33, 5, 65, 10, 255), 1)
        opt = self.p(0.3)
        add = b"\0\0\x29\x10\0\0\0\0\0\0\0" if opt else b""
        qry = tid + self.c(b"\x01\0", b"\x01\0", b"\x01\x20", b"\0\0", b"\0\x10") + struct.pack(">HHHH", 1, 0, 0, int(opt)) + q + add
        an = self.c(0, 1, 1, 1, 2, 3, self.i(1, 12))
        fl = self.c(b"\x81\x80", b"\x81\x80", b"\x85\x80", b"\x81\x83", b"\x84\0", b"\x81\xa0", b"\x80\0", b"\x81\x82")
        rsp = tid + fl + struct.pack(">HHHH", 1, an, self.c(0, 0, 4, 1), self.c(0, int(opt), 4)) + q + b"\xc0\x0c" + self.raw(self.i(0, 30 + 30 * an))
        return qry, rsp

    def dns(self):
        m = []
        for _ in range(self.c(1, 1, 1, 2, self.i(1, 6))):
            a, b = self.dns_msgs()
            m += [(0, a)] * self.c(1, 1, 1, 2) + ([(1, b)] if self.p(0.9) else [])
        if self.p(0.08):
            return TCP, [(d, struct.pack(">H", len(x)) + x) for d, x in m]
        if self.p(0.05):
            return UDP, [(0, b)]
        return UDP, m

    def mdns(self):
        svc = "_" + self.word(3, 12) + self.c("._tcp", "._udp") + ".local"
        name = self.c(svc, self.word(3, 14) + ".local", "".join(self.c(*"0123456789ABCDEF") for _ in range(8)) + "." + svc, "_services._dns-sd._udp.local")
        m = []
        for _ in range(self.c(1, 2, self.i(1, 12))):
            if self.p(0.6):
                n = self.i(1, 9)
                x = struct.pack(">HHHHHH", self.c(0, 0, 0, self.i(0, 9)), self.c(0, 0, 0x0100), n, self.c(0, 0, self.i(0, 5)), 0, self.c(0, 0, 1)) + self.qname(name) + struct.pack(">HH", self.c(12, 255, 1, 28, 33), self.c(1, 1, 0x8001)) + self.raw(22 * (n - 1))
            else:
                n = self.i(1, 8)
                x = struct.pack(">HHHHHH", 0, 0x8400, 0, n, 0, self.i(0, 4)) + self.qname(name) + struct.pack(">HHIH", self.c(12, 16, 33, 1), self.c(1, 0x8001), self.c(120, 4500, 10), self.i(2, 60)) + self.raw(self.i(10, 200))
            m.append((0, x))
        return UDP, m

    def llmnr(self):
        q = self.qname(self.word(3, 15)) + struct.pack(">HH", self.c(1, 28, 255), 1)
        a = self.raw(2) + struct.pack(">HHHHH", 0, 1, 0, 0, 0) + q
        m = [(0, a)] * self.c(1, 2, 2)
        if self.p(0.15):
            m.append((1, a[:2] + struct.pack(">HHHHH", 0x8000, 1, 1, 0, 0) + q + q + self.raw(10)))
        return UDP, m

    def nb_name(self):
        return b"\x20" + (bytes(self.i(0x41, 0x50) for _ in range(2 * self.i(4, 15))) + b"CA" * 16)[:32] + b"\0"

    def netbios(self):
        k = self.i(0, 4)
        if k <= 1:
            fl, qd, an, ar = self.c((0x0110, 1, 0, 0), (0x0110, 1, 0, 0), (0x2910, 1, 0, 1), (0x2810, 1, 0, 1), (0x2900, 1, 0, 1), (0, 1, 0, 0),
                                    (0x0010, 1, 0, 0), (0x8500, 0, 1, 0), (0x3010, 1, 0, 1), (0xad80, 0, 1, 0), (0x8400, 0, 1, 0))
            x = self.raw(2) + struct.pack(">HHHHH", fl, qd, an, 0, ar) + self.nb_name() + struct.pack(">HH", self.c(0x20, 0x20, 0x21), 1)
            x += self.raw(self.c(0, 0, 18)) if not ar else b"\xc0\x0c" + struct.pack(">HHIHH", 0x20, 1, 300000, 6, 0) + self.raw(4)
            m = [(0, x)] * self.c(1, 3, self.i(1, 16))
            if self.p(0.2):
                m.append((1, x[:2] + struct.pack(">HHHHH", 0x8500, 0, 1, 0, 0) + x[12:] + self.raw(10)))
            return UDP, m
        if k == 2:
            x = bytes([self.c(0x11, 0x11, 0x10, 0x12), self.c(0x02, 0x0a, 0x0e, 0x0f)]) + self.raw(2) + self.ip4() + struct.pack(">HHH", 138, self.i(170, 200), 0) + self.nb_name() + self.nb_name() + b"\xffSMB%" + self.raw(self.i(80, 110))
            return UDP, [(0, x)] * self.c(1, 1, self.i(1, 8))
        smb2 = self.p(0.6)
        m = []
        if k == 3 and self.p(0.4):
            m += [(0, b"\x81\0\0\x44" + self.nb_name() + self.nb_name()), (1, b"\x82\0\0\0")]
        for j in range(self.i(1, 7)):
            cmd = self.i(0, 18) if j or self.p(0.3) else 0
            if smb2:
                q = b"\xfeSMB\x40\0" + struct.pack("<HIHH", self.i(0, 1), 0, cmd, self.i(0, 2)) + self.raw(2) + b"\0\0" + struct.pack("<IQ", 0, j) + self.raw(self.i(30, 300))
                s = b"\xfeSMB\x40\0" + struct.pack("<HIHH", self.i(0, 1), self.c(0, 0xc0000016), cmd, 1) + b"\x01\0\0\0" + struct.pack("<IQ", 0, j) + self.raw(self.i(30, 500))
            else:
                cmd = self.c(0x72, 0x73, 0x75, 0xa2, 0x2e, 0x25, 0x32)
                q = b"\xffSMB" + bytes([cmd]) + b"\0\0\0\0\x18" + self.raw(2) + b"\0" * 12 + self.raw(self.i(10, 120))
                s = b"\xffSMB" + bytes([cmd]) + b"\0\0\0\0\x98" + self.raw(2) + b"\0" * 12 + self.raw(self.i(10, 200))
            m += [(0, struct.pack(">I", len(q)) + q), (1, struct.pack(">I", len(s)) + s)]
        return TCP, m

    # --- control ---------------------------------------------------------------------------
    def icmp(self):
        k = self.i(0, 3)
        if k == 0:
            x = self.c(bytes(range(8, 56)), self.raw(8) + b"\0\0\0\0" + bytes(range(16, 56)), b"abcdefghijklmnopqrstuvwabcdefghi", self.raw(self.i(0, 1472)), b"\0" * self.i(0, 60))
            return ICMP, [(j & 1, x) for j in range(self.i(1, 12))]
        inner = b"\x45\0" + struct.pack(">H", self.i(28, 1500)) + self.raw(2) + self.c(b"\0\0", b"\x40\0") + bytes([self.i(1, 64), self.c(6, 17, 17, 1)]) + self.raw(10)
        return ICMP, [(0, inner + self.raw(self.c(8, 8, self.i(8, 500))))] * self.i(1, 10)

    def icmpv6(self):
        k = self.i(0, 3)
        if k == 0:
            x = self.raw(self.i(0, 1000))
            return ICMPV6, [(j & 1, x) for j in range(self.i(1, 8))]
        if k == 1:
            return ICMPV6, [(0, b"\xfe\x80" + b"\0" * 6 + self.raw(8) + b"\x01\x01" + self.raw(6))] * self.i(1, 4)
        if k == 2:
            return ICMPV6, [(0, self.c(b"\x01\x01" + self.raw(6), b"\x04\0\0\0\xff\x02" + b"\0" * 9 + self.raw(5), b""))] * self.i(1, 4)
        return ICMPV6, [(0, b"\x60" + self.raw(3) + self.raw(2) + bytes([17, 60]) + self.raw(self.i(32, 900)))] * self.i(1, 4)

    def dhcp(self):
        op = self.c(1, 1, 1, 2)
        yi = b"\0" * 4 if op == 1 else self.ip4()
        x = bytes([op, 1, 6, self.c(0, 0, 0, 1)]) + self.raw(4) + struct.pack(">HH", self.c(0, 0, self.i(0, 60), self.i(0, 60000)), self.c(0, 0, 0x8000))
        x += self.c(b"\0" * 4, b"\0" * 4, self.ip4()) + yi + self.c(b"\0" * 4, self.ip4()) + b"\0" * 4 + self.raw(6) + b"\0" * 202 + b"\x63\x82\x53\x63\x35\x01"
        return UDP, [(0, x + bytes([self.i(1, 8)]) + self.raw(self.i(20, 120)))] * self.c(1, 2, self.i(1, 12)) + ([(1, bytes([2]) + x[1:] + self.raw(60))] if op == 1 and self.p(0.3) else [])

    def dhcpv6(self):
        x = bytes([self.c(1, 1, 3, 5, 11, 7, 2)]) + self.raw(3) + self.c(b"\0\x08\0\x02", b"\0\x01\0\x0e\0\x01\0\x01") + self.raw(self.i(30, 120))
        return UDP, [(0, x)] * self.i(1, 6)

    def dropbox(self):
        body = self.c('{"version": [%d, 0], "port": 17500, "host_int": %d, "displayname": "", "namespaces": [' % (self.i(1, 2), self.i(1, 2**31)),
                      '{"host_int": %d, "version": [%d, %d], "displayname": "%s", "port": 17500, "namespaces": [' % (self.i(1, 2**62), self.i(1, 2), self.i(0, 8), self.c("", self.word())))
        body += ", ".join(str(self.i(10**6, 10**10)) for _ in range(self.i(1, 40))) + "]}"
        return UDP, [(0, body.encode())] * self.i(1, 16)

    def ntp(self):
        v = self.c(1, 2, 3, 3, 4, 4, 4)
        def pkt(mode):
            client = mode == 3 and self.p(0.6)
            st, poll, prec = (0, self.c(0, 4, 6, 10), self.c(0, 0xfa, 0xe9, 0x20)) if client else (self.i(0, 5), self.i(3, 10), self.i(0xe0, 0xfa))
            x = bytes([(self.c(0, 0, 3) << 6) | (v << 3) | mode, st, poll, prec])
            if client and self.p(0.6):
                x += b"\0" * 36 + self.c(b"\0" * 8, self.raw(8))
            else:
                x += b"\0\0" + self.raw(2) + b"\0\0" + self.raw(2) + self.c(self.raw(4), b"GPS\0", b"LOCL") + b"".join(self.raw(8) for _ in range(4))
            return x + self.c(b"", b"", b"", self.raw(20))
        k = self.i(0, 9)
        if k == 0:  # private mode 7, e.g. monlist
            q = bytes([0x17 | self.c(0, 0) , 0, 3, 0x2a]) + b"\0" * self.i(4, 44)
            s = bytes([0x80 | (v << 3) | 7, self.i(0, 99), 3, 0x2a, 0, self.i(1, 6), 0, 72]) + self.raw(self.i(72, 432))
            return UDP, self.c([(0, q), (1, s)], [(0, s)] * self.i(1, 10), [(0, q)])
        if k == 1:  # control mode 6
            q = bytes([(v << 3) | 6, self.i(1, 8), 0, self.i(0, 9)]) + b"\0" * 8
            return UDP, [(0, q), (1, bytes([q[0], 0x80 | q[1]]) + self.raw(self.i(10, 400)))]
        m = self.c(3, 3, 1, 5, 4)
        a = pkt(m)
        return UDP, self.c([(0, a)], [(0, a), (1, pkt(4))], [(0, a), (1, pkt(4))] * self.i(1, 4), [(0, a)] * self.i(1, 3))

    def ssdp(self):
        st = self.c("ssdp:all", "upnp:rootdevice", "urn:schemas-upnp-org:device:MediaRenderer:1", "urn:dial-multiscreen-org:service:dial:1", "roku:ecp")
        h = ["HOST: 239.255.255.250:1900", 'MAN: "ssdp:discover"', f"MX: {self.i(1, 5)}", f"ST: {st}", f"USER-AGENT: {self.agent()}"]
        self.r.shuffle(h)
        k = self.i(0, 5)
        if k <= 3:
            a = "M-SEARCH * HTTP/1.1\r\n" + "\r\n".join(h[: self.i(1, 5)]) + "\r\n\r\n"
            if self.p(0.15):
                a = a[: self.i(19, 60)]
            m = [(0, a.encode())] * self.i(1, 8)
            if self.p(0.2):
                m.append((1, f"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=1800\r\nST: {st}\r\nUSN: uuid:{self.word(8, 20)}\r\n\r\n".encode()))
            return UDP, m
        if k == 4:
            return UDP, [(0, f"NOTIFY * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nCACHE-CONTROL: max-age={self.i(60, 3600)}\r\nLOCATION: http://{self.host()}/\r\nNT: {st}\r\nNTS: ssdp:alive\r\n\r\n".encode())] * self.i(1, 8)
        return UDP, [(0, f"HTTP/1.1 200 OK\r\nLOCATION: http://{self.host()}/d.xml\r\nST: {st}\r\nUSN: uuid:{self.word(8, 20)}\r\n\r\n".encode())] * self.i(1, 6)

    def socks(self):
        inner = self.c(self.tls, self.http)()[1]
        if self.p(0.3):
            h = self.host().encode()
            q = bytes([4, self.c(1, 1, 2)]) + self.raw(2) + self.c(self.ip4(), b"\0\0\0" + bytes([self.i(1, 255)])) + self.c(b"", b"user", self.word().encode()) + b"\0"
            if q[4:7] == b"\0\0\0":
                q += h + b"\0"
            m = [(0, q), (1, b"\0" + self.c(b"\x5a", b"\x5a", b"\x5b") + self.c(self.raw(6), b"\0" * 6))]
        else:
            ms = self.c(b"\0", b"\0", b"\0\1", b"\0\2", b"\2", b"\0\1\2")
            host = self.host().encode()
            at = self.c(b"\1" + self.ip4(), b"\3" + bytes([len(host)]) + host, b"\4" + self.raw(16))
            m = [(0, bytes([5, len(ms)]) + ms)]
            if b"\2" in ms and self.p(0.7):
                u, w = self.word().encode(), self.word().encode()
                m += [(1, b"\5\2"), (0, bytes([1, len(u)]) + u + bytes([len(w)]) + w), (1, b"\1\0")]
            else:
                m += [(1, b"\5\0")]
            m += [(0, b"\5" + self.c(b"\1", b"\1", b"\1", b"\3") + b"\0" + at + self.c(b"\0P", b"\1\xbb", self.raw(2))), (1, b"\5\0\0\1" + self.c(b"\0" * 6, self.raw(6), b"\x7f\0\0\1" + self.raw(2)))]
        return TCP, (m + inner)[: self.i(2, 16)]

    # --- calls -----------------------------------------------------------------------------
    def stun_msg(self, kind, tid, attrs=None, cookie=b"\x21\x12\xa4\x42"):
        if attrs is None:
            attrs = self.c(b"", struct.pack(">HH", self.c(6, 3, 8, 0x20, 0x12, 0x8022, 0x19, 0x24, 0x4000, 9, 13, 1), 8) + self.raw(self.i(2, 40) * 4), self.raw(self.i(1, 30) * 4))
        return struct.pack(">HH", kind, len(attrs)) + cookie + tid + attrs

    def stun_start(self):
        tid = self.c(self.raw(12), self.word(12, 12).encode())
        kind = self.c(1, 1, 1, 1, 3, 3, 4, 8, 9, 0x11, 0x16)
        cookie = self.raw(4) if self.p(0.07) else b"\x21\x12\xa4\x42"
        m = [(0, self.stun_msg(kind, tid, cookie=cookie))] * self.c(1, 1, 2, self.i(1, 5))
        if self.p(0.8):
            addr = struct.pack(">HH", self.c(0x20, 0x20, 1), 8) + self.raw(8)
            m.append((1, self.stun_msg(kind | self.c(0x100, 0x100, 0x100, 0x110), tid, addr + self.c(b"", self.raw(self.i(1, 14) * 4)), cookie)))
        return m

    def stun(self):
        m = self.stun_start()
        for _ in range(self.i(0, 4)):
            m += self.stun_start()[:2]
        if self.p(0.2):
            m += [(self.i(0, 1), self.c(b"\x40\0", b"\x80\x60", b"\x90\x6f") + self.raw(self.i(20, 300))) for _ in range(self.i(1, 8))]
        if self.p(0.15):
            framed = self.p(0.4)
            return TCP, [(d, (struct.pack(">H", len(x)) if framed else b"") + x) for d, x in m]
        return UDP, m

    def dtls_rec(self, kind, body, ep=0):
        return bytes([kind]) + self.c(b"\xfe\xff", b"\xfe\xfd", b"\xfe\xfd") + struct.pack(">HHIH", ep, 0, self.i(0, 30), len(body)) + body

    def dtls_hs(self, kind, body):
        n = len(body).to_bytes(3, "big")
        return self.dtls_rec(22, bytes([kind]) + n + struct.pack(">H", self.i(0, 2)) + b"\0\0\0" + n + body)

    def dtls(self):
        if self.p(0.15):
            a = [(self.i(0, 1), self.dtls_rec(23, self.raw(self.i(20, 1300)), self.i(1, 2))) for _ in range(self.i(1, 16))]
            a[0] = (0, a[0][1])
            return UDP, a
        ch = self.dtls_hs(1, self.client_hello(True)[: self.c(self.i(90, 160), self.i(90, 600))])
        m = []
        srtp = self.p(0.45)
        if srtp:  # WebRTC: connectivity checks first, then the handshake on the same ports
            for _ in range(self.i(1, 3)):
                tid = self.word(12, 12).encode()
                m += [(0, self.stun_msg(1, tid, struct.pack(">HH", 6, self.i(9, 80)) + self.raw(self.i(16, 34) * 4)))] * self.c(1, 1, 2)
                if self.p(0.8):
                    m.append((1, self.stun_msg(0x101, tid, struct.pack(">HH", 0x20, 8) + self.raw(self.c(40, 52, 72, self.i(8, 20) * 4)))))
        a, b = (0, 1) if self.p(0.75) else (1, 0)
        m.append((a, ch))
        if self.p(0.4) and not srtp:
            m += [(b, self.dtls_hs(3, b"\xfe\xff" + bytes([20]) + self.raw(20))), (a, ch + self.raw(20))]
        if self.p(0.9):
            m.append((b, self.dtls_hs(2, struct.pack(">H", 0xfefd) + self.raw(self.i(50, 110))) + self.raw(self.i(300, 1200))))
            m.append((a, self.dtls_hs(self.c(11, 16), self.raw(self.i(300, 900)))))
            m.append((b, self.dtls_rec(20, b"\1") + self.raw(self.i(40, 560))))
            for _ in range(self.i(0, 8)):
                m.append((self.i(0, 1), self.c(b"\x80\x60", b"\x90\x6f", b"\x17\xfe\xfd") + self.raw(self.i(20, 1100))))
        return UDP, m

    def sip(self):
        u = f"sip:{self.word(2, 10)}@{self.host()}"
        meth = self.c("INVITE", "REGISTER", "OPTIONS", "SUBSCRIBE", "NOTIFY", "BYE", "ACK", "MESSAGE")
        q = f"{meth} {u} SIP/2.0\r\nVia: SIP/2.0/UDP {self.host()}:5060;branch=z9hG4bK{self.word(6, 12)}\r\nFrom: <{u}>\r\nTo: <{u}>\r\nCSeq: {self.i(1, 99)} {meth}\r\n\r\n"
        s = f"SIP/2.0 {self.c('100 Trying', '200 OK', '401 Unauthorized', '180 Ringing', '404 Not Found')}\r\nVia: SIP/2.0/UDP {self.host()}:5060\r\n\r\n"
        return self.c(UDP, UDP, UDP, TCP), [(0, q.encode()), (1, s.encode())][: self.c(1, 2, 2)] * self.i(1, 3)

    def rtp(self):
        pt, ssrc, seq, ts = self.c(0, 8, 8, 9, 18, 96, 111, 101), self.raw(4), self.i(0, 60000), self.i(0, 2**31)
        s2, n = self.raw(4), self.c(160, 160, 20, self.i(20, 1100))
        m = []
        for k in range(self.i(3, 16)):
            d = self.i(0, 1) if self.p(0.6) else 0
            m.append((d, bytes([0x80, pt | (0x80 if k == 0 and self.p(0.5) else 0)]) + struct.pack(">HI", (seq + k) & 0xffff, ts + k * 160) + (s2 if d else ssrc) + self.c(self.raw(n), b"\xd5" * n, b"\xff" * n)))
        m[0] = (0, m[0][1])
        return UDP, m

    # --- remote access, mail, files ----------------------------------------------------------
    def ssh(self):
        v = self.c("OpenSSH_9.6p1 Debian-3", "OpenSSH_7.4", "OpenSSH_5.3", "dropbear_2020.81", "libssh2_1.9.0", "Go", "PuTTY_Release_0.70", "libssh-0.6.3", "Cisco-1.25", "paramiko_2.7.2")
        w = self.c("OpenSSH_8.9p1 Ubuntu-3ubuntu0.1", "OpenSSH_9.2p1", "OpenSSH_6.6.1", "dropbear_2019.78", "ROSSSH", "Cisco-1.25")
        proto = self.c("2.0", "2.0", "2.0", "2.0", "1.99", "1.5")
        def kex():
            n = self.i(300, 1500)
            return struct.pack(">I", n) + bytes([self.i(4, 12), 20]) + self.raw(16) + struct.pack(">I", self.i(60, 260)) + b"curve25519-sha256,ecdh-sha2-nistp256" + self.raw(n - 60)
        m = [(0, f"SSH-2.0-{v}\r\n".encode()), (1, f"SSH-{proto}-{w}\r\n".encode())]
        if self.p(0.5):
            m.reverse()
        m += [(0, kex()), (1, kex())] + [(self.i(0, 1), struct.pack(">I", 44) + self.raw(self.i(40, 400))) for _ in range(self.i(0, 6))]
        return TCP, m[: self.i(1, len(m))]

    def ftp(self):
        s = self.c("220 (vsFTPd 3.0.3)\r\n", "220 ProFTPD Server ready.\r\n", "220-FileZilla Server\r\n", f"220 {self.host()} FTP server ready\r\n", "220 Microsoft FTP Service\r\n")
        m = [(1, s.encode()), (0, f"USER {self.word(3, 9)}\r\n".encode()), (1, b"331 Please specify the password.\r\n"), (0, f"PASS {self.word(4, 10)}\r\n".encode()),
             (1, self.c(b"230 Login successful.\r\n", b"530 Login incorrect.\r\n")), (0, self.c(b"SYST\r\n", b"TYPE I\r\n", b"PASV\r\n", b"QUIT\r\n")), (1, b"215 UNIX Type: L8\r\n")]
        return TCP, m[: self.i(2, 7)]

    def smtp(self):
        m = [(1, f"220 {self.host()} {self.c('ESMTP Postfix', 'ESMTP Exim 4.94', 'Microsoft ESMTP MAIL Service', 'ESMTP')}\r\n".encode()),
             (0, f"{self.c('EHLO', 'EHLO', 'HELO')} {self.host()}\r\n".encode()), (1, f"250-{self.host()}\r\n250-PIPELINING\r\n250-SIZE 10240000\r\n250 8BITMIME\r\n".encode()),
             (0, self.c(b"STARTTLS\r\n", b"AUTH LOGIN\r\n", f"MAIL FROM:<{self.word()}@{self.host()}>\r\n".encode())), (1, b"250 2.1.0 Ok\r\n")]
        return TCP, m[: self.i(2, 5)]

    def imap(self):
        m = [(1, self.c(b"* OK IMAP4 ready\r\n", b"* OK [CAPABILITY IMAP4rev1 SASL-IR LOGIN-REFERRALS ID ENABLE IDLE] Dovecot ready.\r\n", b"* OK Gimap ready for requests\r\n")),
             (0, f"{self.c('1', 'a1', 'A001', 'a001', '00000001')} {self.c('CAPABILITY', 'LOGIN user pass', 'STARTTLS', 'ID NIL')}\r\n".encode()), (1, b"* CAPABILITY IMAP4rev1 UIDPLUS\r\n")]
        return TCP, m[: self.i(2, 3)]

    def pop3(self):
        m = [(1, self.c(b"+OK POP3 ready\r\n", b"+OK Dovecot ready.\r\n", f"+OK <{self.i(1, 9999)}.{self.i(1, 10**9)}@{self.host()}>\r\n".encode())),
             (0, self.c(f"USER {self.word()}\r\n".encode(), b"CAPA\r\n", b"STLS\r\n", b"AUTH\r\n")), (1, b"+OK\r\n"), (0, f"PASS {self.word()}\r\n".encode()), (1, b"+OK Logged in.\r\n")]
        return TCP, m[: self.i(2, 5)]

    def telnet(self):
        def neg():
            return b"".join(b"\xff" + bytes([self.c(0xfb, 0xfd, 0xfc, 0xfe), self.c(1, 3, 24, 31, 32, 33, 34, 39, 5, 35)]) for _ in range(self.i(1, 8)))
        m = [(self.i(0, 1), neg()) for _ in range(self.i(2, 5))] + [(1, self.c(b"login: ", b"\r\nUser Access Verification\r\n\r\nPassword: ", b"Ubuntu\r\nlogin: ")), (0, self.word(1, 1).encode())]
        return TCP, m[: self.i(2, len(m))]

    def rdp(self):
        if self.p(0.25):
            return UDP, [(0, b"\xff\xff\xff\xff\0\x40" + self.raw(2) + self.raw(4) + b"\x04\xd0\x04\xd0" + self.raw(1200)), (1, self.raw(4) + b"\0\x40" + self.raw(2) + self.raw(4) + b"\x04\xd0\x04\xd0" + b"\0\1\1\1" + b"\0" * 1190)]
        ck = self.c(b"", b"Cookie: mstshash=" + self.word().encode() + b"\r\n")
        neg = self.c(b"", b"\1\0\x08\0" + bytes([self.c(0, 1, 3, 11)]) + b"\0\0\0")
        x = bytes([6 + len(ck) + len(neg), 0xe0]) + b"\0\0" + self.c(b"\0\0", self.raw(2)) + b"\0" + ck + neg
        y = self.c(b"\x06\xd0\0\0\x12\x34\0", b"\x0e\xd0\0\0\x12\x34\0\2" + self.raw(1) + b"\x08\0" + bytes([self.c(0, 1, 2, 8)]) + b"\0\0\0")
        m = [(0, struct.pack(">BBH", 3, 0, len(x) + 4) + x), (1, struct.pack(">BBH", 3, 0, len(y) + 4) + y)]
        m += self.tls()[1][:4] if self.p(0.7) else [(0, b"\3\0\1\xb0\x02\xf0\x80\x7f\x65\x82" + self.raw(400)), (1, b"\3\0\1\x51\x02\xf0\x80\x7f\x66\x82" + self.raw(300))]
        return TCP, m[: self.i(1, 6)]

    def kerberos(self):
        def kdc(kind, rep):
            n = self.i(140, 1400)
            der = bytes([kind, 0x82]) + struct.pack(">H", n) + b"\x30\x82" + struct.pack(">H", n - 4)
            if n < 255 - 20:
                der = bytes([kind, 0x81, n & 255]) + b"\x30\x81" + bytes([(n - 3) & 255])
            if rep:
                der += b"\xa0\3\2\1\5\xa1\3\2\1" + bytes([{0x6b: 11, 0x6d: 13, 0x7e: 30}[kind]]) + self.c(b"\xa3" + self.raw(1) + b"\x1b" + self.raw(1) + self.host().upper().encode(), b"\xa4\x11\x18\x0f20240101120000Z\xa5\5\2\3" + self.raw(3))
            else:
                der += b"\xa1\3\2\1\5\xa2\3\2\1" + bytes([{0x6a: 10, 0x6c: 12}[kind]]) + b"\xa3" + self.c(b"\x82" + self.raw(2) + b"\x30\x82" + self.raw(2), b"\x15\x30\x13\x30\x11\xa1\4\2\2\0\x80") + self.raw(4)
            return der + self.raw(max(0, n - len(der)))
        a = self.c(0x6a, 0x6a, 0x6c)
        m = [(0, kdc(a, False)), (1, kdc(self.c(a + 1, a + 1, 0x7e), True))]
        if self.p(0.1):
            m = m[:1]
        if self.p(0.5):
            return TCP, [(d, struct.pack(">I", len(x)) + x) for d, x in m]
        return UDP, m

    def ldap(self):
        def msg(i, op):
            b = bytes([2, 1, i]) + op
            return (b"\x30" + bytes([len(b)]) if len(b) < 128 and self.p(0.6) else b"\x30\x84" + struct.pack(">I", len(b))) + b
        bind = b"\x60" + bytes([7 + self.i(0, 60)]) + b"\2\1" + bytes([self.c(2, 3, 3)]) + b"\4" + self.c(b"\0", b"\x0ccn=admin,dc=") + self.raw(self.i(4, 50))
        srch = b"\x63\x84\0\0\0" + self.raw(1) + b"\4" + self.c(b"\0", b"\x0edc=example,dc=com") + b"\x0a\1" + bytes([self.i(0, 2)]) + b"\x0a\1\0\2\1\0\2\1" + self.raw(20)
        return self.c(TCP, TCP, TCP, UDP), [(0, msg(1, self.c(bind, srch))), (1, msg(1, self.c(b"\x61\7\x0a\1\0\4\0\4\0", b"\x61\x84\0\0\0\7\x0a\1\0\4\0\4\0", b"\x64" + self.raw(60)))), (0, msg(2, srch)), (1, msg(2, b"\x64" + self.raw(90)))][: self.c(2, 4)]

    # --- vpn -------------------------------------------------------------------------------
    def openvpn(self):
        tcp = self.p(0.3)
        s1, s2 = self.raw(8), self.raw(8)
        hm = self.c(0, 0, 20, 32, 16)
        def rst(op, sid, ack):
            auth = (self.raw(hm) + struct.pack(">I", 1) + self.raw(4)) if hm else b""
            return bytes([op << 3]) + sid + auth + (b"\0" if ack is None else b"\1\0\0\0\0" + ack) + b"\0\0\0\0"
        m = [(0, rst(self.c(7, 7, 7, 10), s1, None)), (1, rst(8, s2, s1)), (0, bytes([0x28]) + s1 + b"\1\0\0\0\0" + s2), (0, bytes([0x20]) + s1 + b"\0\0\0\0\1" + self.tls()[1][0][1][:1200])]
        m += [(self.i(0, 1), bytes([self.c(0x20, 0x28, 0x30)]) + self.c(s1, s2) + self.raw(self.i(14, 1200))) for _ in range(self.i(0, 10))]
        m = [m[0]] * self.c(1, 1, 3) + m[1: self.i(2, len(m))] if self.p(0.9) else [m[0]] * self.i(1, 6)
        return (TCP, [(d, struct.pack(">H", len(x)) + x) for d, x in m]) if tcp else (UDP, m)

    def wireguard(self):
        if self.p(0.3):
            i1 = self.raw(4)
            m = [(self.i(0, 1), b"\4\0\0\0" + i1 + struct.pack("<Q", self.i(0, 3000)) + self.raw(16 * self.i(1, 90))) for _ in range(self.i(3, 14))]
            m[0] = (0, m[0][1])
            return UDP, m
        a, b = self.raw(4), self.raw(4)
        m = [(0, b"\1\0\0\0" + a + self.raw(140))] * self.c(1, 1, 3) + [(1, b"\2\0\0\0" + b + a + self.raw(80))]
        for k in range(self.i(0, 12)):
            d = self.i(0, 1)
            m.append((d, b"\4\0\0\0" + (a if d else b) + struct.pack("<Q", k) + self.raw(16 * self.i(1, 90))))
        return UDP, m[: max(1, self.i(1, len(m)))]

    def ipsec(self):
        x = self.raw(8) + b"\0" * 8 + self.c(b"\x21\x20\x22\x08", b"\x01\x10\x02\0", b"\x01\x10\x04\0") + b"\0\0\0\0" + struct.pack(">I", self.i(150, 900))
        y = x[:8] + self.raw(8) + self.c(b"\x21\x20\x22\x20", x[16:20]) + x[20:]
        natt = self.c(b"", b"", b"\0\0\0\0")
        return UDP, [(0, natt + x + self.raw(300)), (1, natt + y + self.raw(250))][: self.c(1, 2, 2)]

    # --- data bases, messaging, industry, infrastructure ------------------------------------
    def postgres(self):
        m = [(0, b"\0\0\0\x08\x04\xd2\x16\x2f"), (1, self.c(b"N", b"S"))] if self.p(0.5) else []
        if m and m[1][1] == b"S":
            return TCP, m + self.tls()[1][:3]
        b = b"\0\3\0\0user\0" + self.word().encode() + b"\0database\0" + self.word().encode() + b"\0\0"
        m += [(0, struct.pack(">I", len(b) + 4) + b), (1, self.c(b"R\0\0\0\x0c\0\0\0\5" + self.raw(4), b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0", b"R\0\0\0\x08\0\0\0\0S\0\0\0\x1aapplication_name\0")), (0, b"p\0\0\0\x28md5" + self.raw(33)), (1, b"R\0\0\0\x08\0\0\0\0S\0\0\0\x16")]
        return TCP, m[: self.i(2, len(m))]

    def mysql(self):
        v = self.c("5.7.33-log", "8.0.32", "5.5.5-10.3.27-MariaDB", "5.1.73", "5.0.22-Debian")
        g = b"\x0a" + v.encode() + b"\0" + self.raw(2) + b"\0\0" + self.raw(8) + b"\0" + self.raw(2) + bytes([self.c(8, 33, 45, 255)]) + self.raw(40)
        r = self.raw(2) + self.c(b"\x0f\0", b"\x3e\0", b"\xff\x81") + b"\0\0\0\1" + bytes([self.c(8, 33, 45)]) + b"\0" * 23 + self.word().encode() + b"\0" + self.raw(25)
        return TCP, [(1, len(g).to_bytes(3, "little") + b"\0" + g), (0, len(r).to_bytes(3, "little") + b"\1" + r), (1, b"\7\0\0\2\0\0\0\2\0\0\0")][: self.c(2, 3, 3)]

    def redis(self):
        cmd = self.c("PING", "INFO", "GET", "SET", "AUTH", "HGETALL", "SELECT", "SUBSCRIBE", "CLIENT")
        args = [cmd] + [self.word() for _ in range(self.i(0, 3))]
        q = f"*{len(args)}\r\n" + "".join(f"${len(a)}\r\n{a}\r\n" for a in args)
        return TCP, [(0, q.encode()), (1, self.c(b"+OK\r\n", b"+PONG\r\n", b"$5\r\nhello\r\n", b":1\r\n", b"-NOAUTH Authentication required.\r\n", b"$-1\r\n"))] * self.i(1, 4)

    def mqtt(self):
        v5 = self.p(0.2)
        cid = self.word(4, 20).encode()
        b = b"\0\4MQTT" + bytes([5 if v5 else 4, self.c(2, 0xc2, 0, 0x82)]) + struct.pack(">H", self.c(60, 30, 300)) + (b"\0" if v5 else b"") + struct.pack(">H", len(cid)) + cid
        if self.p(0.2):
            b = b"\0\6MQIsdp\3" + b[7:]
        t = self.word(3, 20).encode()
        return TCP, [(0, b"\x10" + bytes([len(b)]) + b), (1, b"\x20\2\0\0"), (0, self.c(b"\x82", b"\x30") + bytes([5 + len(t)]) + b"\0\1" + struct.pack(">H", len(t)) + t + b"\0"), (1, b"\x90\3\0\1\0")][: self.c(2, 4, 4)]

    def modbus(self):
        m, tid, fc = [], self.i(0, 60000), self.c(1, 2, 3, 3, 4, 5, 6, 15, 16)
        for k in range(self.i(1, 8)):
            q = struct.pack(">HHHBB", (tid + k) & 0xffff, 0, 6, self.c(0, 1, 1, 255), fc) + struct.pack(">HH", self.i(0, 2000), self.i(1, 125))
            n = self.i(2, 120)
            m += [(0, q), (1, q[:4] + struct.pack(">H", n + 3) + q[6:8] + bytes([n]) + self.raw(n))]
        return TCP, m[: self.i(1, len(m))]

    def bgp(self):
        o = b"\xff" * 16 + b"\0" + bytes([self.i(29, 90)]) + b"\1\4" + self.raw(2) + b"\0\xb4" + self.ip4() + self.raw(self.i(1, 50))
        ka = b"\xff" * 16 + b"\0\x13\4"
        return TCP, self.c([(0, o), (1, o), (0, ka), (1, ka)], [(0, ka), (1, ka)] * self.i(1, 6), [(0, b"\xff" * 16 + b"\0" + self.raw(1) + b"\2" + self.raw(50)), (1, ka)])

    def snmp(self):
        com = self.c(b"public", b"public", b"private", self.word().encode())
        v = self.c(0, 1, 1, 1, 3)
        def msg(pdu, n):
            b = bytes([2, 1, v]) + (bytes([4, len(com)]) + com if v < 3 else b"\x30\x0e\2\4" + self.raw(4) + b"\2\3\0\xff\xe3\4\1\4\2\1\3") + bytes([pdu, n & 127, 2, 4]) + self.raw(4) + b"\2\1\0\2\1\0\x30" + self.raw(1) + b"\x30\x0c\6\x08\x2b\6\1\2\1" + self.raw(n)
            return (b"\x30" + bytes([len(b)]) if len(b) < 128 else b"\x30\x82" + struct.pack(">H", len(b))) + b
        return UDP, ([(0, msg(self.c(0xa0, 0xa1, 0xa5), self.i(8, 20))), (1, msg(0xa2, self.i(8, 300)))] * self.i(1, 4) if self.p(0.8) else [(0, msg(self.c(0xa2, 0xa7, 0xa4), self.i(20, 300)))])

    def radius(self):
        i = self.i(0, 255)
        q = bytes([self.c(1, 1, 4), i]) + struct.pack(">H", self.i(40, 250)) + self.raw(16) + b"\1" + bytes([self.i(4, 20)]) + self.word().encode() + self.raw(self.i(10, 150))
        return UDP, [(0, q), (1, bytes([self.c(2, 3, 5, 11), i]) + struct.pack(">H", self.i(20, 200)) + self.raw(self.i(16, 150)))]

    def syslog(self):
        return UDP, [(0, f"<{self.i(0, 191)}>{self.c('1 2024-01-01T10:00:00Z ', 'Jan  1 10:00:00 ', '')}{self.word()} {self.word()}[{self.i(1, 9999)}]: {self.word(10, 12)}".encode())] * self.i(1, 8)

    def tftp(self):
        return UDP, [(0, bytes([0, self.c(1, 1, 2)]) + self.word(4, 12).encode() + self.c(b".bin", b".cfg", b"", b".txt") + b"\0" + self.c(b"octet", b"octet", b"netascii") + b"\0" + self.c(b"", b"blksize\x001428\0"))] * self.i(1, 3)

    def rtsp(self):
        u = f"rtsp://{self.host()}:{self.i(1, 9999)}/{self.word()}"
        return TCP, [(0, f"{self.c('OPTIONS', 'DESCRIBE', 'SETUP', 'PLAY')} {u} RTSP/1.0\r\nCSeq: {self.i(1, 9)}\r\nUser-Agent: {self.agent()}\r\n\r\n".encode()), (1, b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nPublic: OPTIONS, DESCRIBE\r\n\r\n")] * self.i(1, 3)

    def bittorrent(self):
        h = b"\x13BitTorrent protocol" + self.raw(8) + self.raw(20) + b"-" + self.c(b"UT", b"TR", b"qB", b"DE") + b"3210-" + self.raw(12)
        if self.p(0.5):
            return TCP, [(0, h), (1, h), (0, struct.pack(">I", self.i(1, 200)) + b"\x14" + self.raw(60))][: self.i(1, 3)]
        q = b"d1:ad2:id20:" + self.raw(20) + self.c(b"e1:q4:ping", b"6:target20:" + self.raw(20) + b"e1:q9:find_node", b"9:info_hash20:" + self.raw(20) + b"e1:q9:get_peers") + b"1:t2:" + self.raw(2) + b"1:y1:qe"
        return UDP, [(0, q), (1, b"d1:rd2:id20:" + self.raw(20) + b"5:nodes208:" + self.raw(208))][: self.c(1, 2)]

    def http_proxy(self):
        h = self.host()
        if self.p(0.6):
            q = f"CONNECT {h}:443 HTTP/1.{self.i(0, 1)}\r\nHost: {h}:443\r\nUser-Agent: {self.agent()}\r\n\r\n"
            return TCP, ([(0, q.encode()), (1, b"HTTP/1.1 200 Connection established\r\n\r\n")] + self.tls()[1])[: self.i(1, 8)]
        a, b = self.http()[1][0][1], self.http()[1][-1][1]
        meth = self.c(b"GET", b"GET", b"POST", b"HEAD")
        return TCP, [(0, meth + b" http://" + h.encode() + self.path().encode() + b" HTTP/1.1\r\nHost: " + h.encode() + b"\r\n" + a[-30:]), (1, b"HTTP/1.1 200 OK\r\n" + b[-200:])]

    def slp(self):
        x = self.c(b"\2" + bytes([self.c(1, 2, 6, 9)]) + b"\0\0" + self.raw(1) + b"\0\0\0\0\0" + self.raw(2) + b"\0\2en\0\0\0" + self.raw(1) + b"service:" + self.word().encode() + b"\0\7default",
                   b"\1" + bytes([self.c(1, 6)]) + b"\0" + self.raw(1) + b"\0\0en\0\3" + self.raw(2) + b"\0\0\0\x10service:" + self.word().encode())
        return UDP, [(0, x)] * self.i(1, 4)

    def noise(self):
        """Traffic of no particular protocol: random or patterned payload."""
        k = self.i(0, 5)
        pr = self.c(TCP, UDP)
        if k == 0:
            return pr, [(self.i(0, 1) if j else 0, self.raw(self.i(1, 1400))) for j in range(self.i(1, 12))]
        if k == 1:
            h = self.raw(self.i(1, 8))
            return pr, [(self.i(0, 1) if j else 0, h + self.raw(self.i(1, 300))) for j in range(self.i(1, 12))]
        if k == 2:
            return pr, [(j & 1, (self.word(2, 12) + self.c(" ", ":", "=", "|", ",")).encode() * self.i(1, 12) + self.c(b"", b"\n", b"\0")) for j in range(self.i(1, 8))]
        if k == 3:
            return pr, [(j & 1, struct.pack(self.c(">I", "<I", ">H", "<H"), self.i(1, 2000)) + self.raw(self.i(4, 400))) for j in range(self.i(1, 8))]
        if k == 4:
            return pr, [(0, bytes([self.i(0, 255)]) * self.i(1, 200))] * self.i(1, 5)
        return pr, [(j & 1, ('{"%s":"%s","%s":%d}' % (self.word(), self.word(), self.word(), self.i(0, 9999))).encode()) for j in range(self.i(1, 6))]

    def silent(self):
        """No payload at all: handshakes, resets and keep-alives carry no evidence."""
        return self.c(TCP, TCP, TCP, UDP), [(self.i(0, 1) if j else 0, b"") for j in range(self.i(1, 10))]


GENERATORS = {
    "TLS": Gen.tls, "HTTP": Gen.http, "QUIC": Gen.quic, "DNS": Gen.dns, "ICMP": Gen.icmp, "STUN": Gen.stun, "NetBIOS": Gen.netbios,
    "DTLS": Gen.dtls, "ICMPV6": Gen.icmpv6, "DHCP": Gen.dhcp, "Dropbox": Gen.dropbox, "MDNS": Gen.mdns, "NTP": Gen.ntp, "SSDP": Gen.ssdp,
    "SOCKS": Gen.socks, "Kerberos": Gen.kerberos, "RDP": Gen.rdp, "HTTP_Proxy": Gen.http_proxy, "SIP": Gen.sip, "RTP": Gen.rtp,
    "OpenVPN": Gen.openvpn, "WireGuard": Gen.wireguard, "IPSec": Gen.ipsec, "PostgreSQL": Gen.postgres, "MySQL": Gen.mysql, "Redis": Gen.redis,
    "MQTT": Gen.mqtt, "Modbus": Gen.modbus, "BGP": Gen.bgp, "SNMP": Gen.snmp, "Radius": Gen.radius, "Syslog": Gen.syslog, "TFTP": Gen.tftp,
    "RTSP": Gen.rtsp, "BitTorrent": Gen.bittorrent, "SSH": Gen.ssh, "FTP_CONTROL": Gen.ftp, "SMTP": Gen.smtp, "IMAP": Gen.imap, "POP3": Gen.pop3,
    "Telnet": Gen.telnet, "LDAP": Gen.ldap, "LLMNR": Gen.llmnr, "DHCPV6": Gen.dhcpv6, "Service_Location_Protocol": Gen.slp,
    "unknown": Gen.noise,
}


def head(g, proto, msgs):
    """The 129 inputs of one conversation, with TCP handshake, ACKs, segmentation and plausible delays."""
    v6 = g.p(0.15)
    ip = 40 if v6 else 20
    hdr = ip + ({TCP: 20 + g.c(0, 12), UDP: 8}.get(proto, 8))
    pay, lens, gaps = [b"", b""], [], []
    rtt = 10 ** g.r.uniform(2.3, 5.5)  # microseconds
    last = None

    def packet(d, n, wait):
        nonlocal last
        lens.append((n + hdr) * (-1 if d else 1))
        gaps.append(wait if last is not None else None)
        last = d

    if proto == TCP and g.p(0.85):
        opt = g.c(0, 4, 8, 12, 20)
        lens.extend([ip + 20 + opt, -(ip + 20 + g.c(opt, 4, 12)), hdr])
        gaps.extend([None, rtt, rtt * 0.02])
        last = 0
    mss = g.c(1460, 1448, 1400, 1380, 1460, 2800, 65000)
    for d, x in msgs:
        pay[d] += x
        wait = rtt * (g.r.uniform(0.8, 1.5) if d != last else 0.02 * g.r.random())
        if g.p(0.1):
            wait += 10 ** g.r.uniform(3, 7)
        if proto == TCP and x:
            rest = len(x)
            while rest > 0:
                packet(d, min(rest, mss), wait)
                wait = rtt * 0.01
                rest -= mss
                if g.p(0.3):
                    packet(1 - d, 0, rtt * 0.5)
        else:
            packet(d, len(x), wait)
        if len(lens) >= HEAD_PACKETS:
            break
    v = np.full(129, 0, np.float32)
    v[:96] = -1
    for d in (0, 1):
        b = np.frombuffer(pay[d][:HEAD_PAYLOAD], np.uint8)
        v[48 * d: 48 * d + len(b)] = b
    n = min(len(lens), HEAD_PACKETS)
    v[96: 96 + n] = np.clip(lens[:n], -32767, 32767)
    for k in range(1, n):
        v[112 + k] = 1 + int(np.clip(np.floor(4 * np.log2(max(gaps[k], 1e-3))), 0, 63))
    v[128] = proto
    return v


def make(names, per_class, seed):
    """per_class conversations of every named protocol. Returns X [n, 129], list of names."""
    g, xs, ys = Gen(seed), [], []
    for name in names:
        if name not in GENERATORS:
            continue
        for _ in range(per_class):
            if name == "unknown" and g.p(0.25):
                xs.append(head(g, *g.silent()))
            else:
                xs.append(head(g, *GENERATORS[name](g)))
            ys.append(name)
    return np.stack(xs), ys
