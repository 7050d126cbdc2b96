package model

import (
	"fmt"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/steer/toeplitz"
)

// rss spreads frames over queues.
type rss struct {
	hasher *toeplitz.Hasher
	table  []int // a power of two of entries
}

// newRSS fills the table as DPDK's mlx5 driver does: with as many entries as there are queues if that is
// a power of two, else with size entries in turn, which favours the first queues a little.
func newRSS(key toeplitz.Key, queues, size int) (r rss, err error) {
	if size < 1 || size&(size-1) != 0 {
		return r, fmt.Errorf("%w: an indirection table of %d entries, which is no power of two", ErrConfig, size)
	}
	n := queues
	if n&(n-1) != 0 {
		for n = size; n < queues; n *= 2 {
		}
	}
	r = rss{hasher: toeplitz.New(key), table: make([]int, n)}
	for i := range r.table {
		r.table[i] = i % queues
	}
	return r, nil
}

func (r *rss) queue(hash uint32) int { return r.table[hash&uint32(len(r.table)-1)] }

// hash covers the addresses, and the ports of TCP and UDP unless the frame is a fragment; it is
// 0 if the frame is not IP.
func (r *rss) hash(h *header) uint32 {
	var b [36]byte
	n := 0
	switch h.info.IPVersion {
	case 4:
		copy(b[0:4], h.info.Src[:4])
		copy(b[4:8], h.info.Dst[:4])
		n = 8
	case 6:
		copy(b[0:16], h.info.Src[:])
		copy(b[16:32], h.info.Dst[:])
		n = 32
	default:
		return 0
	}
	if h.ports() {
		b[n], b[n+1] = byte(h.info.SrcPort>>8), byte(h.info.SrcPort)
		b[n+2], b[n+3] = byte(h.info.DstPort>>8), byte(h.info.DstPort)
		n += 4
	}
	return r.hasher.Sum(b[:n])
}

// header is what the port finds in a frame.
type header struct{ info packet.Info }

var parser packet.Parser // opens no tunnels: the outer headers count

func (h *header) read(frame []byte) {
	if parser.Parse(packet.LinkEthernet, frame, uint32(len(frame)), &h.info) != packet.OK {
		h.info.IPVersion, h.info.Protocol, h.info.Flags = 0, 0, 0
	}
}

func (h *header) fragment() bool { return h.info.Flags&packet.FlagFragment != 0 }

func (h *header) ports() bool {
	return !h.fragment() && (h.info.Protocol == packet.ProtoTCP || h.info.Protocol == packet.ProtoUDP)
}

func (h *header) hashType() uint8 {
	return mlx5.HashType(h.info.IPVersion, h.ports() && h.info.Protocol == packet.ProtoTCP, h.ports() && h.info.Protocol == packet.ProtoUDP)
}

func (h *header) checks() uint8 {
	v := mlx5.L2OK
	if h.info.IPVersion != 0 {
		v |= mlx5.L3OK
		if h.ports() {
			v |= mlx5.L4OK
		}
	}
	return v
}

func (h *header) typ() (t uint8) {
	switch h.info.IPVersion {
	case 4:
		t = mlx5.HdrL3v4
	case 6:
		t = mlx5.HdrL3v6
	default:
		return 0
	}
	switch {
	case h.fragment():
		t |= mlx5.HdrFragment
	case h.info.Protocol == packet.ProtoUDP:
		t |= mlx5.HdrUDP
	case h.info.Protocol != packet.ProtoTCP:
	case h.info.TCPFlags&packet.TCPAck == 0:
		t |= mlx5.HdrTCP
	case h.info.PayloadLen == 0:
		t |= mlx5.HdrTCPAck
	default:
		t |= mlx5.HdrTCPAckData
	}
	return t
}

// within says whether b begins in a.
func within(a, b []byte) bool {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a)))
	return off < uintptr(len(a))
}
