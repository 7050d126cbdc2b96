package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
)

// Errors that say why a capture cannot be sent over a veth pair.
var (
	ErrLinkType = errors.New("not Ethernet")
	ErrFrame    = errors.New("a frame that no Ethernet interface sends")
)

const ethernetHeader = 14

// Frames reads a capture. Bytes that it does not have are zero, so that every
// frame has the length it had on the wire.
func Frames(path string, longest int) ([][]byte, error) {
	r, err := pcap.Open([]string{path}, pcap.Options{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := &source.Batch{Frames: make([]source.Frame, 0, 256), Buf: make([]byte, 0, 1<<20)}
	var frames [][]byte
	for {
		_, err := r.Next(b)
		if errors.Is(err, io.EOF) || errors.Is(err, pcap.ErrTruncated) {
			return frames, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Frames {
			f := &b.Frames[i]
			if f.LinkType != packet.LinkEthernet {
				return nil, fmt.Errorf("%w: link type %d", ErrLinkType, f.LinkType)
			}
			if n := int(f.WireLen); n < ethernetHeader || n > longest {
				return nil, fmt.Errorf("%w: %d bytes", ErrFrame, n)
			}
			frame := make([]byte, f.WireLen)
			copy(frame, f.Data)
			frames = append(frames, frame)
		}
	}
}

// Write writes frames as a capture whose packets are a microsecond apart.
func Write(path string, frames [][]byte) error {
	b := make([]byte, 24, 1<<20)
	binary.LittleEndian.PutUint32(b, 0xa1b2c3d4)
	binary.LittleEndian.PutUint16(b[4:], 2)
	binary.LittleEndian.PutUint16(b[6:], 4)
	binary.LittleEndian.PutUint32(b[16:], 1<<17)
	binary.LittleEndian.PutUint32(b[20:], 1)
	for i, f := range frames {
		b = binary.LittleEndian.AppendUint32(b, uint32(1_700_000_000+i/1_000_000))
		b = binary.LittleEndian.AppendUint32(b, uint32(i%1_000_000))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return os.WriteFile(path, b, 0o600)
}
