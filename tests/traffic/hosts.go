package traffic

import (
	"math"
	"net/netip"
	"strconv"
)

// hosts hands out end points so that no two flows share a key.
type hosts struct {
	c       *Capture
	v6      float64 // share of IPv6 flows
	clients int
	servers int
	ports   map[netip.Addr]uint16
}

func (c *Capture) hosts(clients, servers int, v6 float64) *hosts {
	return &hosts{c: c, v6: v6, clients: clients, servers: servers, ports: map[netip.Addr]uint16{}}
}

// client returns an unused port of some client.
func (h *hosts) client(six bool) netip.AddrPort {
	n := h.c.Rand.IntN(h.clients)
	return h.of(private(six, n))
}

func (h *hosts) of(a netip.Addr) netip.AddrPort {
	p, ok := h.ports[a]
	if !ok {
		p = 32768 + uint16(h.c.Rand.IntN(8192))
	}
	h.ports[a] = p + 1
	return netip.AddrPortFrom(a, p)
}

// server returns a server; few are popular.
func (h *hosts) server(six bool, port uint16) netip.AddrPort {
	n := int(math.Pow(h.c.Rand.Float64(), 3) * float64(h.servers))
	return netip.AddrPortFrom(public(six, n), port)
}

func (h *hosts) pair(port uint16) (src, dst netip.AddrPort) {
	six := h.c.Rand.Float64() < h.v6
	return h.client(six), h.server(six, port)
}

// private is the n-th address of the site: 10.1.0.0/16 or its IPv6 prefix.
func private(six bool, n int) netip.Addr {
	n++
	if six {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, 1 + byte(n>>16), byte(n >> 8), byte(n)})
}

// public is the n-th address outside, from the benchmarking range of RFC 2544.
func public(six bool, n int) netip.Addr {
	n++
	if six {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xff, 0, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{198, 18 + byte(n>>16)&1, byte(n >> 8), byte(n)})
}

func serverName(n int) string { return "www" + strconv.Itoa(n) + ".example.com" }
