package pcap

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

const windowSize = 256 << 10

// window is the part of an input that can be read. Of a mapped file it is all.
type window struct {
	buf  []byte
	pos  int       // first byte of buf that is not consumed
	base int64     // input offset of buf[0]
	r    io.Reader // nil: buf is the whole input
	skip int64     // bytes to drop before the next one that is read
	err  error     // sticky: what ended r
}

// offset returns how much of the input is consumed.
func (w *window) offset() int64 { return w.base + int64(w.pos) }

// peek returns the bytes that are not consumed, at least n of them or an error:
// io.EOF if the input is shorter, errWait if more may come. What peek or next
// returned before may have moved.
func (w *window) peek(n int) ([]byte, error) {
	if len(w.buf)-w.pos >= n {
		return w.buf[w.pos:], nil
	}
	if w.r == nil {
		return w.buf[w.pos:], io.EOF
	}
	return w.fill(n)
}

func (w *window) fill(n int) ([]byte, error) {
	if w.skip == 0 {
		rest := copy(w.buf, w.buf[w.pos:])
		w.base += int64(w.pos)
		w.buf, w.pos = w.buf[:rest], 0
	}
	if cap(w.buf) < n {
		w.buf = append(make([]byte, 0, max(n, windowSize)), w.buf...)
	}
	for len(w.buf) < n {
		if w.err != nil {
			return w.buf, w.err
		}
		got, err := w.r.Read(w.buf[len(w.buf):cap(w.buf)])
		w.buf = w.buf[:len(w.buf)+got]
		if w.skip > 0 {
			drop := min(w.skip, int64(len(w.buf)))
			w.skip -= drop
			w.base += drop
			w.buf = w.buf[:copy(w.buf, w.buf[drop:])]
		}
		switch {
		case err == nil:
		case errors.Is(err, errWait):
			if len(w.buf) < n {
				return w.buf, errWait
			}
		default:
			w.err = readError(err)
		}
	}
	return w.buf, nil
}

// readError gives decompression errors their place among the package's own.
func readError(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case err == io.EOF:
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: gzip stream ends early", ErrTruncated)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// discard consumes n bytes, also more than there are to peek at. It returns io.EOF
// if the input is known to be shorter.
func (w *window) discard(n int64) error {
	have := int64(len(w.buf) - w.pos)
	if n <= have {
		w.pos += int(n)
		return nil
	}
	w.base += int64(len(w.buf))
	if w.r == nil {
		w.buf, w.pos = w.buf[len(w.buf):], 0
		return io.EOF
	}
	w.buf, w.pos = w.buf[:0], 0
	w.skip = n - have
	return nil
}
