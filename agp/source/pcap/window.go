package pcap

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/agp-net/telegraf-agp/agp/source"
)

const (
	// windowSize is what a batch's buffer holds at least.
	windowSize = 256 << 10
	minRead    = 4 << 10
)

// window is the stretch of an input that lies in the buffer of the current batch.
// Frames point into it, so that nothing is copied but what a batch leaves unread.
type window struct {
	buf    []byte
	pos    int       // first byte of buf that is not consumed
	pinned bool      // a frame of the current batch points into buf
	base   int64     // input offset of buf[0]
	r      io.Reader // nil: there is no input
	skip   int64     // bytes to drop before the next one that is read
	err    error     // sticky: what ended r

	left int // frames that the batch has room for
	avg  int // running mean of bytes per record
}

// input makes r the input, from its beginning. What was read of the one before
// stays where it is for the frames that point there.
func (w *window) input(r io.Reader) {
	w.pos = len(w.buf)
	w.base = -int64(w.pos)
	w.r, w.skip, w.err = r, 0, nil
}

// offset returns how much of the input is consumed.
func (w *window) offset() int64 { return w.base + int64(w.pos) }

// attach moves the window into the batch's buffer.
func (w *window) attach(b *source.Batch) {
	if cap(b.Buf) < windowSize {
		b.Buf = make([]byte, 0, windowSize)
	}
	w.pinned = false
	w.moveTo(b.Buf[:0])
	w.left = cap(b.Frames)
}

// moveTo continues in another buffer, which is large enough.
func (w *window) moveTo(buf []byte) {
	w.base += int64(w.pos)
	w.buf = append(buf, w.buf[w.pos:]...)
	w.pos = 0
}

// peek returns the bytes that are not consumed, at least n of them or an error:
// io.EOF if the input is shorter, errWait if more may come, errFull if the batch has
// no room for them.
func (w *window) peek(n int) ([]byte, error) {
	if len(w.buf)-w.pos >= n {
		return w.buf[w.pos:], nil
	}
	err := w.fill(n)
	return w.buf[w.pos:], err
}

func (w *window) fill(n int) error {
	room := n
	if w.skip > 0 {
		room = max(n, minRead) // a long block is not skipped in tiny steps
	}
	if cap(w.buf)-w.pos < room {
		switch {
		case w.pinned:
			return errFull
		case cap(w.buf) < room:
			w.moveTo(make([]byte, 0, n+windowSize))
		default:
			w.moveTo(w.buf[:0])
		}
	}
	for len(w.buf)-w.pos < n {
		if w.err != nil {
			return w.err
		}
		// What this batch leaves unread must be moved by the next one, so that no more
		// is read than the batch is likely to take.
		want := max(minRead, w.left*w.avg, n-(len(w.buf)-w.pos))
		got, err := w.r.Read(w.buf[len(w.buf):min(len(w.buf)+want, cap(w.buf))])
		if w.skip > 0 { // then all that was read before is consumed
			drop := min(w.skip, int64(got))
			w.skip -= drop
			w.base += drop
			got = copy(w.buf[w.pos:cap(w.buf)], w.buf[w.pos+int(drop):w.pos+got])
		}
		w.buf = w.buf[:len(w.buf)+got]
		switch {
		case err == nil:
		case errors.Is(err, errWait):
			if len(w.buf)-w.pos < n {
				return errWait
			}
		default:
			w.err = readError(err)
		}
	}
	return nil
}

// discard consumes n bytes, also more than were read so far.
func (w *window) discard(n int64) {
	have := int64(len(w.buf) - w.pos)
	if n <= have {
		w.pos += int(n)
		return
	}
	w.pos = len(w.buf)
	w.skip = n - have
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
