package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	// ErrParam says that a constructor was given a size out of range.
	ErrParam = errors.New("sketch parameter out of range")
	// ErrMismatch says that two sketches have different parameters or keys.
	ErrMismatch = errors.New("sketches differ in parameters or key")
	// ErrFormat says that serialised input is not a sketch of this kind.
	ErrFormat = errors.New("bad sketch encoding")
)

const (
	wireVersion = 1
	wireHeader  = 8
)

func writeHeader(b []byte, kind byte) []byte {
	return append(b, 'A', 'G', 'P', kind, wireVersion, 0, 0, 0)
}

// reader consumes a serialised sketch; the first failure sticks.
type reader struct {
	b   []byte
	err error
}

func newReader(b []byte, kind byte) *reader {
	r := &reader{b: b}
	switch {
	case len(b) < wireHeader || b[0] != 'A' || b[1] != 'G' || b[2] != 'P' || b[3] != kind:
		r.err = fmt.Errorf("%w: no %q header", ErrFormat, kind)
	case b[4] != wireVersion:
		r.err = fmt.Errorf("%w: version %d, know %d", ErrFormat, b[4], wireVersion)
	case b[5]|b[6]|b[7] != 0:
		r.err = fmt.Errorf("%w: reserved bytes set", ErrFormat)
	default:
		r.b = b[wireHeader:]
	}
	return r
}

func (r *reader) u64() uint64 {
	if r.err != nil {
		return 0
	}
	if len(r.b) < 8 {
		r.err = fmt.Errorf("%w: truncated", ErrFormat)
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// expect reads a parameter that must be the receiver's.
func (r *reader) expect(name string, want uint64) {
	if got := r.u64(); r.err == nil && got != want {
		r.err = fmt.Errorf("%w: %s is %d, want %d", ErrMismatch, name, got, want)
	}
}

// exactly checks that n bytes of cells are left.
func (r *reader) exactly(n int) {
	if r.err == nil && len(r.b) != n {
		r.err = fmt.Errorf("%w: %d bytes of cells, want %d", ErrFormat, len(r.b), n)
	}
}

func appendU32s(b []byte, v []uint32) []byte {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func (r *reader) u32s(dst []uint32) {
	for i := range dst {
		dst[i] = binary.LittleEndian.Uint32(r.b[4*i:])
	}
	r.b = r.b[4*len(dst):]
}

func satAdd(a, b uint32) uint32 {
	if s := a + b; s >= a {
		return s
	}
	return ^uint32(0)
}
