package pcap

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// liveWait is how long Next waits for a live input or for the next frame's time.
const liveWait = 100 * time.Millisecond

// Stdin is the path that stands for the standard input.
const Stdin = "-"

// file is the input being read.
type file struct {
	path    string
	fd      int
	counted *counter    // of a compressed input
	live    *pollReader // of a pipe, socket or device
	format  func(*Reader, *source.Frame) error
	classic classic
	section section
}

// errorf wraps an error with the place where it occurred.
func (r *Reader) errorf(err error, format string, args ...any) error {
	return fmt.Errorf("%s: byte %d: %s: %w", r.cur.path, r.w.offset(), fmt.Sprintf(format, args...), err)
}

// counter counts the bytes of a compressed input, for progress.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// open makes an input the current one.
func (r *Reader) open(path string) error {
	f := &file{path: path}
	if path == Stdin {
		f.path = "standard input"
	} else {
		// Without O_NONBLOCK the opening of a named pipe would wait for its writer,
		// out of Interrupt's reach.
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		f.fd = fd
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		f.close()
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		_ = unix.Fadvise(f.fd, 0, 0, unix.FADV_SEQUENTIAL) // advice: reading works without
		r.w.input(fdReader(f.fd))
	} else {
		f.live = &pollReader{fd: f.fd, wake: r.wakeRead, patient: true}
		r.w.input(f.live)
	}
	r.cur = f
	return nil
}

// recognise finds out the format of the current input.
func (r *Reader) recognise() error {
	f := r.cur
	b, err := r.w.peek(4)
	switch {
	case err == io.EOF && len(b) == 0:
		return r.errorf(ErrEmpty, "no data")
	case err == io.EOF:
		return r.errorf(ErrNotCapture, "no more than %d bytes", len(b))
	case err != nil:
		return r.short(err, "magic number")
	}
	if b[0] == 0x1f && b[1] == 0x8b && f.counted == nil {
		return r.unzip()
	}
	if _, _, ok := classicMagic(b); ok {
		if err := f.classic.header(r); err != nil {
			return err
		}
		f.format = f.classic.next
		return nil
	}
	if ngMagic(b) {
		f.format = f.section.next
		return nil
	}
	return r.errorf(ErrNotCapture, "starts with %x", b[:4])
}

// unzip puts a decompressor before the input. Below it nothing may say errWait,
// because its errors are final; a compressed pipe blocks until Interrupt.
func (r *Reader) unzip() error {
	f := r.cur
	ahead := append([]byte(nil), r.w.buf[r.w.pos:]...)
	f.counted = &counter{r: io.MultiReader(bytes.NewReader(ahead), r.w.r)}
	if f.live != nil {
		f.live.block = true
	}
	zr, err := gzip.NewReader(bufio.NewReaderSize(f.counted, 64<<10))
	if err != nil {
		return r.errorf(readError(err), "gzip")
	}
	r.w.buf = r.w.buf[:r.w.pos]
	r.w.input(zr)
	return r.recognise()
}

// fdReader reads a regular file.
type fdReader int

func (fd fdReader) Read(p []byte) (int, error) { return readFD(int(fd), p) }

func readFD(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// pollReader reads a pipe, socket or device without blocking for long, so that
// time can pass and Interrupt is heeded.
type pollReader struct {
	fd      int
	wake    int  // readable once Interrupt was called
	patient bool // wait a little for data
	block   bool // wait for ever instead of returning errWait
}

func (p *pollReader) Read(b []byte) (int, error) {
	for {
		fds := [2]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(p.wake), Events: unix.POLLIN}}
		timeout := 0
		if p.patient || p.block {
			timeout = int(liveWait / time.Millisecond)
		}
		_, err := unix.Poll(fds[:], timeout)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			if p.block {
				return 0, io.EOF
			}
			return 0, errWait
		case fds[0].Revents == 0:
			if p.block {
				continue
			}
			return 0, errWait
		}
		n, err := readFD(p.fd, b)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		return n, err
	}
}

// close closes the descriptor.
func (f *file) close() {
	if f.fd > 0 {
		_ = unix.Close(f.fd) // nothing was written
	}
	f.fd = -1
}
