package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// Version is the protocol version this build speaks, VersionMin the oldest it accepts.
const (
	Version    = 1
	VersionMin = 1
)

// MaxMessage is the largest message in bytes, without its length prefix.
const MaxMessage = 16 << 20

// Errors of a peer that does not follow the protocol. After one of them the
// stream cannot be trusted any more.
var (
	ErrTooLarge  = errors.New("message larger than the protocol allows")
	ErrMalformed = errors.New("malformed message")
	ErrVersion   = errors.New("protocol version mismatch")
)

// CheckHello returns ErrVersion if the sender of h and this build share no
// protocol version.
func CheckHello(h *agppb.Hello) error {
	if h.GetProtocol() < VersionMin || h.GetProtocolMin() > Version || h.GetProtocol() < h.GetProtocolMin() {
		return fmt.Errorf("%w: peer %s speaks %d to %d, this program %d to %d", ErrVersion,
			h.GetVersion(), h.GetProtocolMin(), h.GetProtocol(), VersionMin, Version)
	}
	return nil
}

// Conn frames messages over a byte stream.
type Conn struct {
	r       *bufio.Reader
	limit   int // bytes of a message received
	in      []byte
	unknown atomic.Uint64

	mu  sync.Mutex // guards what follows
	w   io.Writer
	out []byte
}

// NewConn returns a Conn over rw. It does not close rw.
func NewConn(rw io.ReadWriter) *Conn { return NewLimitedConn(rw, MaxMessage) }

// NewLimitedConn is NewConn with a smaller limit for messages that are received, for
// peers that are trusted less.
func NewLimitedConn(rw io.ReadWriter, limit int) *Conn {
	return &Conn{r: bufio.NewReaderSize(rw, min(limit, 64<<10)), limit: min(limit, MaxMessage), w: rw}
}

// Send writes one message with one Write. Safe for concurrent use.
func (c *Conn) Send(m proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := proto.Size(m)
	if size > MaxMessage {
		return fmt.Errorf("%w: %d bytes to send, limit %d", ErrTooLarge, size, MaxMessage)
	}
	c.out = binary.AppendUvarint(c.out[:0], uint64(size))
	var err error
	c.out, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(c.out, m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	if _, err := c.w.Write(c.out); err != nil {
		return err
	}
	if cap(c.out) > 1<<20 {
		c.out = nil // one large message must not pin its memory
	}
	return nil
}

// Receive reads the next message into m. It returns io.EOF if the stream ended
// between two messages and io.ErrUnexpectedEOF if it ended inside one.
func (c *Conn) Receive(m proto.Message) error {
	size, err := readLength(c.r, c.limit)
	if err != nil {
		return err
	}
	if cap(c.in) > 1<<20 {
		c.in = nil
	}
	c.in, err = readBody(c.r, c.in[:0], size)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(c.in, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if n := countUnknown(m.ProtoReflect()); n > 0 {
		c.unknown.Add(n)
	}
	return nil
}

// Unknown returns how many unknown fields were skipped so far.
func (c *Conn) Unknown() uint64 { return c.unknown.Load() }

func readLength(r *bufio.Reader, limit int) (int, error) {
	var size uint64
	for shift := uint(0); ; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			if shift > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		size |= uint64(b&0x7f) << shift
		if size > uint64(limit) || shift > 28 {
			return 0, fmt.Errorf("%w: %d bytes announced, limit %d", ErrTooLarge, size, limit)
		}
		if b < 0x80 {
			return int(size), nil
		}
	}
}

// readBody grows its buffer as bytes arrive: an announced length alone reserves
// no memory.
func readBody(r io.Reader, buf []byte, size int) ([]byte, error) {
	const step = 256 << 10
	for len(buf) < size {
		n := min(size-len(buf), step)
		start := len(buf)
		if cap(buf)-start < n {
			grown := make([]byte, start, min(size, max(2*cap(buf), start+n)))
			copy(grown, buf)
			buf = grown
		}
		buf = buf[:start+n]
		if _, err := io.ReadFull(r, buf[start:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return buf, err
		}
	}
	return buf, nil
}

// countUnknown counts the unknown fields of m and of the messages in it.
func countUnknown(m protoreflect.Message) uint64 {
	var n uint64
	for raw := m.GetUnknown(); len(raw) > 0; n++ {
		_, _, size := protowire.ConsumeField(raw)
		if size <= 0 {
			break
		}
		raw = raw[size:]
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.Message() == nil || fd.IsMap() || !m.Has(fd) {
			continue
		}
		if !fd.IsList() {
			n += countUnknown(m.Get(fd).Message())
			continue
		}
		list := m.Get(fd).List()
		for k := range list.Len() {
			n += countUnknown(list.Get(k).Message())
		}
	}
	return n
}
