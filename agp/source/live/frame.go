package live

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// ErrLinkType says that frames of a kind of device cannot be read.
var ErrLinkType = errors.New("unsupported type of device")

// LinkType returns the link type of frames of a device of the given hardware type
// (ARPHRD_*, /sys/class/net/*/type).
func LinkType(hardware uint16) (packet.LinkType, error) {
	switch hardware {
	case unix.ARPHRD_ETHER, unix.ARPHRD_LOOPBACK:
		return packet.LinkEthernet, nil
	case unix.ARPHRD_NONE, unix.ARPHRD_RAWIP, unix.ARPHRD_PPP, unix.ARPHRD_TUNNEL, unix.ARPHRD_TUNNEL6,
		unix.ARPHRD_SIT, unix.ARPHRD_IPGRE, unix.ARPHRD_IP6GRE:
		return packet.LinkRaw, nil
	case unix.ARPHRD_IEEE80211:
		return packet.LinkIEEE80211, nil
	case unix.ARPHRD_IEEE80211_PRISM:
		return packet.LinkPrism, nil
	case unix.ARPHRD_IEEE80211_RADIOTAP:
		return packet.LinkRadiotap, nil
	}
	return 0, fmt.Errorf("%w: hardware type %d", ErrLinkType, hardware)
}

const (
	macs = 12 // destination and source address
	// TagLen is the length of a VLAN tag in bytes.
	TagLen = 4
	// MaxLen is more than the longest frame, which BIG TCP makes, can have.
	MaxLen = 1 << 24
)

// AppendFrame appends a frame to dst. A tag that hardware took out of it (proto is
// not 0) is put back behind the addresses.
func AppendFrame(dst, frame []byte, proto, tci uint16) []byte {
	if proto == 0 || len(frame) < macs {
		return append(dst, frame...)
	}
	dst = append(dst, frame[:macs]...)
	dst = binary.BigEndian.AppendUint16(dst, proto)
	dst = binary.BigEndian.AppendUint16(dst, tci)
	return append(dst, frame[macs:]...)
}

// Segments returns how many frames on the wire a frame with the given segment size
// is, by the rule that source.Frame states.
func Segments(link packet.LinkType, frame []byte, wireLen uint32, size uint16) uint64 {
	if size == 0 {
		return 1
	}
	var (
		p  packet.Parser
		in packet.Info
	)
	if p.Parse(link, frame, wireLen, &in) != packet.OK || in.PayloadLen <= uint32(size) {
		return 1
	}
	return (uint64(in.PayloadLen) + uint64(size) - 1) / uint64(size)
}
