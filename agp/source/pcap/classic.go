package pcap

import (
	"encoding/binary"
	"io"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// First four bytes of a pcap file, read in the writer's byte order.
const (
	magicMicro    = 0xa1b2c3d4
	magicNano     = 0xa1b23c4d
	magicModified = 0xa1b2cd34 // microseconds; records also name interface, protocol and direction
)

const (
	classicHeader = 24
	// maxFrame is libpcap's limit. A record that claims more is corrupt.
	maxFrame = 262144
)

// classic is the state of a pcap file.
type classic struct {
	swap   bool // big-endian
	nsTick int64
	hdr    int // bytes of a record header
	link   packet.LinkType
	iface  uint32
}

// classicMagic reports whether a file starts like pcap.
func classicMagic(b []byte) (swap bool, magic uint32, ok bool) {
	magic = binary.LittleEndian.Uint32(b)
	for range 2 {
		switch magic {
		case magicMicro, magicNano, magicModified:
			return swap, magic, true
		}
		magic, swap = bits.ReverseBytes32(magic), true
	}
	return false, 0, false
}

func (c *classic) u32(b []byte) uint32 {
	v := binary.LittleEndian.Uint32(b)
	if c.swap {
		v = bits.ReverseBytes32(v)
	}
	return v
}

// header reads the file header, which classicMagic has recognised.
func (c *classic) header(r *Reader) error {
	b, err := r.w.peek(classicHeader)
	if err != nil {
		return r.short(err, "file header")
	}
	var magic uint32
	c.swap, magic, _ = classicMagic(b)
	major := binary.LittleEndian.Uint16(b[4:])
	if c.swap {
		major = bits.ReverseBytes16(major)
	}
	if major != 2 {
		return r.errorf(ErrVersion, "pcap %d", major)
	}
	c.nsTick, c.hdr = 1000, 16
	switch magic {
	case magicNano:
		c.nsTick = 1
	case magicModified:
		c.hdr = 24
	}
	// The upper bits say how long the frame check sequence is. It needs no care:
	// the IP header says where the packet ends.
	c.link = packet.LinkType(c.u32(b[20:]) & 0xffff)
	r.w.pos += classicHeader
	c.iface, err = r.addInterface(Interface{LinkType: c.link, SnapLen: c.u32(b[16:])}, timescale{})
	return err
}

// next reads one record; fr.Data points into the window.
func (c *classic) next(r *Reader, fr *source.Frame) error {
	b, err := r.w.peek(c.hdr)
	if err != nil {
		return r.shortRecord(b, err)
	}
	sec, frac, capLen, wireLen := c.u32(b), c.u32(b[4:]), c.u32(b[8:]), c.u32(b[12:])
	if capLen > maxFrame {
		r.dropped[reasonCorrupt]++
		return r.errorf(ErrCorrupt, "record of %d bytes", capLen)
	}
	n := c.hdr + int(capLen)
	if len(b) < n {
		if b, err = r.w.peek(n); err != nil {
			return r.shortRecord(b, err)
		}
	}
	fr.Data = b[c.hdr:n:n]
	fr.TimestampNs = int64(sec)*second + int64(frac)*c.nsTick
	fr.WireLen = r.wireLen(wireLen, capLen)
	fr.LinkType = c.link
	fr.Interface = c.iface
	r.start = r.w.pos
	r.w.pos += n
	return nil
}

// shortRecord turns what peek said of an incomplete record into its error: the end
// of the input is a good one only between records.
func (r *Reader) shortRecord(rest []byte, err error) error {
	switch {
	case pause(err), r.interrupted.Load():
		return err
	case r.w.skip > 0: // counted, if it was a packet
		return r.short(err, "block")
	case err == io.EOF && len(rest) == 0:
		return err
	case len(rest) == 0: // the input failed between records
		return r.short(err, "record")
	}
	r.dropped[reasonTruncated]++
	return r.short(err, "record")
}
