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
	size    int64 // of a regular file, else 0
	mapped  []byte
	freed   int         // bytes of mapped that were handed back
	counted *counter    // of a compressed input
	live    *pollReader // of a pipe, socket or device
	w       window
	format  func(*Reader, *file, *source.Frame) error
	classic classic
	section section
}

// errorf wraps an error with the place where it occurred.
func (f *file) errorf(err error, format string, args ...any) error {
	return fmt.Errorf("%s: byte %d: %s: %w", f.path, f.w.offset(), fmt.Sprintf(format, args...), err)
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

// open opens an input and maps it if it is a regular, uncompressed file.
func (r *Reader) open(path string) (*file, error) {
	f := &file{path: path}
	if path == Stdin {
		f.path, f.fd = "standard input", 0
	} else {
		// Without O_NONBLOCK the opening of a named pipe would wait for its writer,
		// out of Interrupt's reach.
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		f.fd = fd
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		f.close()
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.live = &pollReader{fd: f.fd, wake: r.wakeRead, patient: true}
		f.w.r = f.live
		return f, nil
	}
	f.size = st.Size
	if at, err := unix.Seek(f.fd, 0, io.SeekCurrent); err == nil && at == 0 && f.size > 0 && f.size == int64(int(f.size)) {
		if m, err := unix.Mmap(f.fd, 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED); err == nil {
			// Advice only; reading works without.
			_ = unix.Madvise(m, unix.MADV_SEQUENTIAL)
			f.mapped, f.w.buf = m, m
			return f, nil
		}
	}
	// Files of /proc, of size 0, and file systems that cannot map.
	f.w.r = fdReader(f.fd)
	return f, nil
}

// start recognises the format.
func (r *Reader) start(f *file) error {
	b, err := f.w.peek(4)
	switch {
	case err == io.EOF && len(b) == 0:
		return f.errorf(ErrEmpty, "no data")
	case err == io.EOF:
		return f.errorf(ErrNotCapture, "%d bytes", len(b))
	case err != nil:
		return f.short(err, "magic number")
	}
	if b[0] == 0x1f && b[1] == 0x8b && f.counted == nil {
		return r.unzip(f)
	}
	if _, _, ok := classicMagic(b); ok {
		if err := r.classicHeader(f); err != nil {
			return err
		}
		f.format = f.classic.next
		return nil
	}
	if ngMagic(b) {
		f.format = f.section.next
		return nil
	}
	return f.errorf(ErrNotCapture, "starts with %x", b[:4])
}

// unzip puts a decompressor before the input. Below it nothing may say errWait,
// because its errors are final; a compressed pipe blocks until Interrupt.
func (r *Reader) unzip(f *file) error {
	var in io.Reader
	in = bytes.NewReader(f.w.buf[f.w.pos:])
	if f.w.r != nil {
		in = io.MultiReader(in, f.w.r)
	}
	if f.live != nil {
		f.live.block = true
	}
	f.counted = &counter{r: in}
	zr, err := gzip.NewReader(bufio.NewReaderSize(f.counted, 64<<10))
	if err != nil {
		return f.errorf(readError(err), "gzip")
	}
	f.w = window{r: zr}
	return r.start(f)
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

const (
	freeStep = 16 << 20
	// freeLag is what stays mapped behind the reading place, for batches in flight.
	freeLag = 8 << 20
)

// release hands pages that were read back to the page cache, so that a long
// capture does not count as the process's memory. A batch that still points there
// reads them in anew.
func (f *file) release() {
	if f.mapped == nil || f.counted != nil {
		return
	}
	end := (f.w.pos - freeLag) &^ (freeStep - 1)
	if end > f.freed {
		_ = unix.Madvise(f.mapped[f.freed:end], unix.MADV_DONTNEED)
		f.freed = end
	}
}

// shrunk reports whether a mapped file became shorter than its mapping, which would
// make access to it fault.
func (f *file) shrunk() bool {
	if f.mapped == nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(f.fd, &st) == nil && st.Size < int64(len(f.mapped))
}

// close closes the descriptor; the mapping stays, because batches point into it.
func (f *file) close() {
	if f.fd > 0 {
		_ = unix.Close(f.fd) // nothing was written
	}
	f.fd = -1
}
