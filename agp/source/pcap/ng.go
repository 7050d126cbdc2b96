package pcap

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// pcapng block types.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
)

const (
	byteOrderMagic = 0x1a2b3c4d
	// maxBlock bounds what is held in memory of a block that must be understood.
	maxBlock = 1 << 20
	// maxName bounds the interface name that is kept.
	maxName = 256
)

// section is the state of the current pcapng section.
type section struct {
	swap   bool // big-endian
	ifaces []ngInterface
	lastNs int64 // of the frame before, for packets without a time
}

type ngInterface struct {
	scale timescale
	link  packet.LinkType
	snap  uint32
	index uint32 // in Reader.Interfaces
}

func (s *section) u16(b []byte) uint16 {
	v := binary.LittleEndian.Uint16(b)
	if s.swap {
		v = bits.ReverseBytes16(v)
	}
	return v
}

func (s *section) u32(b []byte) uint32 {
	v := binary.LittleEndian.Uint32(b)
	if s.swap {
		v = bits.ReverseBytes32(v)
	}
	return v
}

// next reads blocks up to the next frame; fr.Data points into the window.
func (s *section) next(r *Reader, fr *source.Frame) error {
	for {
		b, err := r.w.peek(12)
		if err != nil {
			return r.shortRecord(b, err)
		}
		typ := s.u32(b)
		if typ == blockSection {
			if err := s.section(r, b); err != nil {
				return err
			}
			continue
		}
		total := s.u32(b[4:])
		if total < 12 || total%4 != 0 {
			r.dropped[reasonCorrupt]++
			return r.errorf(ErrCorrupt, "block of %d bytes", total)
		}
		switch typ {
		case blockEnhanced, blockPacket, blockSimple, blockInterface:
		default: // may be of any length
			r.w.discard(int64(total))
			continue
		}
		if total > maxBlock {
			if typ == blockInterface {
				return r.errorf(ErrCorrupt, "interface description of %d bytes", total)
			}
			r.dropped[reasonTooLong]++
			r.w.discard(int64(total))
			continue
		}
		if b, err = r.w.peek(int(total)); err != nil {
			if typ == blockInterface {
				return r.short(err, "interface description")
			}
			return r.shortRecord(b, err)
		}
		if end := s.u32(b[total-4:]); end != total {
			r.dropped[reasonCorrupt]++
			return r.errorf(ErrCorrupt, "block lengths %d and %d disagree", total, end)
		}
		body := b[8 : total-4]
		r.start = r.w.pos
		r.w.pos += int(total)
		if typ == blockInterface {
			if err := s.describe(r, body); err != nil {
				return err
			}
			continue
		}
		if s.frame(r, typ, body, fr) {
			s.lastNs = fr.TimestampNs
			return nil
		}
	}
}

// section reads a section header. Its byte order may differ from the one before.
func (s *section) section(r *Reader, b []byte) error {
	switch binary.LittleEndian.Uint32(b[8:]) {
	case byteOrderMagic:
		s.swap = false
	case bits.ReverseBytes32(byteOrderMagic):
		s.swap = true
	default:
		r.dropped[reasonCorrupt]++
		return r.errorf(ErrCorrupt, "section header without byte order")
	}
	total := s.u32(b[4:])
	if total < 28 || total%4 != 0 || total > maxBlock {
		r.dropped[reasonCorrupt]++
		return r.errorf(ErrCorrupt, "section header of %d bytes", total)
	}
	b, err := r.w.peek(int(total))
	if err != nil {
		return r.short(err, "section header")
	}
	if major := s.u16(b[12:]); major != 1 {
		return r.errorf(ErrVersion, "pcapng %d", major)
	}
	if end := s.u32(b[total-4:]); end != total {
		r.dropped[reasonCorrupt]++
		return r.errorf(ErrCorrupt, "block lengths %d and %d disagree", total, end)
	}
	s.ifaces = s.ifaces[:0]
	r.w.pos += int(total)
	return nil
}

// describe reads an interface description.
func (s *section) describe(r *Reader, body []byte) error {
	const optEnd, optName, optTsresol, optTsoffset = 0, 2, 9, 14
	if len(body) < 8 {
		return r.errorf(ErrCorrupt, "interface description of %d bytes", len(body)+12)
	}
	var (
		name     string
		tsresol  uint8 = 6
		tsoffset int64
	)
	for opts := body[8:]; len(opts) >= 4; {
		code, n := s.u16(opts), int(s.u16(opts[2:]))
		opts = opts[4:]
		if code == optEnd || n > len(opts) {
			break
		}
		val := opts[:n]
		switch {
		case code == optName:
			val, _, _ = bytes.Cut(val, []byte{0})
			name = string(val[:min(len(val), maxName)])
		case code == optTsresol && n >= 1:
			tsresol = val[0]
		case code == optTsoffset && n >= 8:
			hi, lo := s.u32(val), s.u32(val[4:])
			if !s.swap {
				hi, lo = lo, hi
			}
			tsoffset = int64(uint64(hi)<<32 | uint64(lo))
		}
		opts = opts[min(len(opts), (n+3)&^3):]
	}
	i := ngInterface{scale: newTimescale(tsresol, tsoffset), link: packet.LinkType(s.u16(body)), snap: s.u32(body[4:])}
	var err error
	i.index, err = r.addInterface(Interface{Name: name, LinkType: i.link, SnapLen: i.snap}, i.scale)
	if err != nil {
		return r.errorf(err, "too many interfaces")
	}
	s.ifaces = append(s.ifaces, i)
	return nil
}

// frame reads a packet block; false means that it was counted as not readable.
func (s *section) frame(r *Reader, typ uint32, body []byte, fr *source.Frame) bool {
	var (
		id, capLen, wireLen uint32
		ticks               uint64
	)
	head := 20
	if typ == blockSimple {
		head = 4
	}
	if len(body) < head {
		r.dropped[reasonCorrupt]++
		return false
	}
	switch typ {
	case blockEnhanced, blockPacket:
		id = s.u32(body)
		if typ == blockPacket {
			id = uint32(s.u16(body))
		}
		ticks = uint64(s.u32(body[4:]))<<32 | uint64(s.u32(body[8:]))
		capLen, wireLen = s.u32(body[12:]), s.u32(body[16:])
	case blockSimple:
		wireLen = s.u32(body)
		capLen = wireLen
	}
	if uint64(id) >= uint64(len(s.ifaces)) {
		r.dropped[reasonUnknownInterface]++
		return false
	}
	i := &s.ifaces[id]
	if typ == blockSimple && i.snap != 0 {
		capLen = min(capLen, i.snap)
	}
	data := body[head:]
	switch {
	case uint64(capLen) > uint64(len(data)):
		r.dropped[reasonCorrupt]++
		return false
	case capLen > maxFrame:
		r.dropped[reasonTooLong]++
		return false
	}
	fr.Data = data[:capLen:capLen]
	fr.WireLen = r.wireLen(wireLen, capLen)
	fr.LinkType = i.link
	fr.Interface = i.index
	fr.TimestampNs = s.lastNs
	if typ != blockSimple {
		fr.TimestampNs = i.scale.ns(ticks)
	}
	return true
}

// ngMagic reports whether a file starts like pcapng.
func ngMagic(b []byte) bool { return binary.LittleEndian.Uint32(b) == blockSection }

// short turns what peek said of an incomplete part of the input into its error.
func (r *Reader) short(err error, what string) error {
	switch {
	case pause(err):
		return err
	case err == io.EOF:
		return r.errorf(ErrTruncated, "%s is cut", what)
	}
	return r.errorf(err, "%s", what)
}
