package pcap

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// order is a byte order that can also append.
type order interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

var orders = map[string]order{"little": binary.LittleEndian, "big": binary.BigEndian}

// rec is a record to write.
type rec struct {
	sec, frac uint32
	data      string
	wire      uint32 // 0: len(data)
}

func (r rec) wireLen() uint32 {
	if r.wire == 0 {
		return uint32(len(r.data))
	}
	return r.wire
}

// classicBytes writes a pcap file.
func classicBytes(o order, magic, link uint32, recs ...rec) []byte {
	b := o.AppendUint32(nil, magic)
	b = o.AppendUint16(b, 2)
	b = o.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = o.AppendUint32(b, 65535)
	b = o.AppendUint32(b, link)
	for _, r := range recs {
		b = o.AppendUint32(b, r.sec)
		b = o.AppendUint32(b, r.frac)
		b = o.AppendUint32(b, uint32(len(r.data)))
		b = o.AppendUint32(b, r.wireLen())
		if magic == magicModified {
			b = append(b, 0, 0, 0, 1, 8, 0, 4, 0)
		}
		b = append(b, r.data...)
	}
	return b
}

// ng writes pcapng blocks.
type ng struct {
	o order
	b []byte
}

func (w *ng) block(typ uint32, body ...byte) *ng {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	n := uint32(len(body) + 12)
	w.b = w.o.AppendUint32(w.b, typ)
	w.b = w.o.AppendUint32(w.b, n)
	w.b = append(w.b, body...)
	w.b = w.o.AppendUint32(w.b, n)
	return w
}

func (w *ng) section() *ng {
	b := w.o.AppendUint32(nil, byteOrderMagic)
	b = w.o.AppendUint16(b, 1)
	b = w.o.AppendUint16(b, 0)
	b = w.o.AppendUint64(b, 1<<64-1)
	return w.block(blockSection, b...)
}

func (w *ng) option(b []byte, code uint16, val []byte) []byte {
	b = w.o.AppendUint16(b, code)
	b = w.o.AppendUint16(b, uint16(len(val)))
	b = append(b, val...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// iface writes an interface description; a tsresol below 0 or offset of 0 is left out.
func (w *ng) iface(link uint16, snap uint32, name string, tsresol int, offset int64) *ng {
	b := w.o.AppendUint16(nil, link)
	b = append(b, 0, 0)
	b = w.o.AppendUint32(b, snap)
	if name != "" {
		b = w.option(b, 2, []byte(name))
	}
	if tsresol >= 0 {
		b = w.option(b, 9, []byte{byte(tsresol)})
	}
	if offset != 0 {
		b = w.option(b, 14, w.o.AppendUint64(nil, uint64(offset)))
	}
	if name != "" { // without options there is no end of options either
		b = w.option(b, 0, nil)
	}
	return w.block(blockInterface, b...)
}

func (w *ng) enhanced(id uint32, ticks uint64, data string, wire uint32) *ng {
	b := w.o.AppendUint32(nil, id)
	b = w.o.AppendUint32(b, uint32(ticks>>32))
	b = w.o.AppendUint32(b, uint32(ticks))
	b = w.o.AppendUint32(b, uint32(len(data)))
	b = w.o.AppendUint32(b, max(wire, uint32(len(data))))
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return w.block(blockEnhanced, w.option(b, 1, []byte("a comment"))...)
}

func (w *ng) obsolete(id uint16, ticks uint64, data string) *ng {
	b := w.o.AppendUint16(nil, id)
	b = append(b, 0, 7)
	b = w.o.AppendUint32(b, uint32(ticks>>32))
	b = w.o.AppendUint32(b, uint32(ticks))
	b = w.o.AppendUint32(b, uint32(len(data)))
	b = w.o.AppendUint32(b, uint32(len(data)))
	return w.block(blockPacket, append(b, data...)...)
}

func (w *ng) simple(wire uint32, data string) *ng {
	return w.block(blockSimple, append(w.o.AppendUint32(nil, wire), data...)...)
}

func little() *ng { return &ng{o: binary.LittleEndian} }

// tempFile writes a file for the test.
func tempFile(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o644))
	return path
}

// openBytes returns a Reader of one file with the given content.
func openBytes(t testing.TB, content []byte, opts Options) *Reader {
	t.Helper()
	r, err := Open([]string{tempFile(t, "capture", content)}, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// readerOf returns a Reader of any io.Reader.
func readerOf(in io.Reader) *Reader {
	r := newReader(Options{})
	r.w.input(in)
	r.cur = &file{path: "memory", fd: -1}
	return r
}

func memory(content []byte) *Reader { return readerOf(bytes.NewReader(content)) }
