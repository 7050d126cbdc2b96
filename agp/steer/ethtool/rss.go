package ethtool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	cmdSRXFHIndir = 0x39
	cmdSRSSH      = 0x47
	cmdSRXFH      = 0x2a

	indirNoChange = 0xffffffff
	maxIndir      = 1 << 16 // entries; what no hardware has is a broken answer
	maxKey        = 1 << 12 // bytes

	// Attributes of an RSS message.
	rssHeader    = 1
	rssHashFunc  = 3
	rssIndir     = 4
	rssKey       = 5
	rssTransform = 6
)

// HashFunction is the function that spreads packets over the indirection table.
type HashFunction uint32

// Hash functions.
const (
	Toeplitz HashFunction = 1
	XOR      HashFunction = 2
	CRC32    HashFunction = 4
)

// RSS is how an interface spreads packets over its receive queues.
type RSS struct {
	Function    HashFunction
	Key         []byte
	Indirection []uint32 // queue of each hash value (modulo the length)
	// Transform is what the hardware does to the packet's fields before it hashes
	// them (RXH_XFRM_*): 0 nothing, 1 symmetric xor, 2 symmetric or-xor.
	Transform uint32
}

// RSSChange names what is to be changed; zero values are left as they are.
type RSSChange struct {
	Function    HashFunction
	Key         []byte
	Indirection []uint32
	// DefaultIndirection gives the table back to the driver: an even spread that the
	// driver adapts when the number of queues changes.
	DefaultIndirection bool
}

// RSS reads the main RSS context.
func (d *Device) RSS() (RSS, error) {
	if d.c.ops[msgRSSGet] {
		return d.rssNetlink()
	}
	r, _, err := d.rssIoctl()
	if errors.Is(err, ErrNotSupported) {
		var old error
		if r.Indirection, old = d.indirIoctl(); old == nil {
			return r, nil
		}
	}
	return r, err
}

// SetRSS changes the main RSS context.
func (d *Device) SetRSS(c RSSChange) error {
	if d.c.ops[msgRSSSet] {
		err := d.setRSSNetlink(c)
		if err != nil || c.Indirection == nil {
			return err
		}
		// Kernels compare only the first quarter of the new table with the old one, and
		// tell the driver nothing if that part is the same (6.17 at least).
		now, err := d.rssNetlink()
		if err != nil || slices.Equal(now.Indirection, c.Indirection) {
			return err
		}
		c = RSSChange{Indirection: c.Indirection}
	}
	_, raw, err := d.rssIoctl()
	if errors.Is(err, ErrNotSupported) && c.Function == 0 && c.Key == nil {
		return d.setIndirIoctl(c)
	}
	if err != nil {
		return err
	}
	b := encodeRXFH(c, raw[17])
	_, err = d.ioctl("set RSS", unsafe.Pointer(&b[0]))
	return err
}

func (d *Device) header(e *netlink.AttributeEncoder) {
	e.Nested(rssHeader, func(h *netlink.AttributeEncoder) error {
		h.Uint32(unix.ETHTOOL_A_HEADER_DEV_INDEX, uint32(d.index))
		return nil
	})
}

func (d *Device) genl(op string, cmd uint8, flags netlink.HeaderFlags, e *netlink.AttributeEncoder) ([]genetlink.Message, error) {
	b, err := e.Encode()
	if err != nil {
		return nil, fmt.Errorf("interface %d: %s: %w", d.index, op, err)
	}
	m, err := d.c.genl.Execute(genetlink.Message{
		Header: genetlink.Header{Command: cmd, Version: unix.ETHTOOL_GENL_VERSION}, Data: b,
	}, d.c.family, netlink.Request|flags)
	if err == nil {
		return m, nil
	}
	name, nameErr := d.Name()
	if nameErr != nil {
		name = fmt.Sprintf("interface %d", d.index)
	}
	return nil, wrap(name+": "+op, err)
}

func (d *Device) rssNetlink() (RSS, error) {
	e := netlink.NewAttributeEncoder()
	d.header(e)
	answer, err := d.genl("read RSS", msgRSSGet, 0, e)
	if err != nil {
		return RSS{}, err
	}
	if len(answer) == 0 {
		return RSS{}, fmt.Errorf("interface %d: read RSS: empty answer", d.index)
	}
	return decodeRSS(answer[0].Data)
}

func decodeRSS(b []byte) (RSS, error) {
	var r RSS
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return r, fmt.Errorf("read RSS: %w", err)
	}
	for ad.Next() {
		switch ad.Type() {
		case rssHashFunc:
			r.Function = HashFunction(ad.Uint32())
		case rssIndir:
			t := ad.Bytes()
			if len(t)%4 != 0 {
				return r, fmt.Errorf("read RSS: indirection table of %d bytes", len(t))
			}
			r.Indirection = uint32s(t)
		case rssKey:
			r.Key = ad.Bytes()
		case rssTransform:
			r.Transform = ad.Uint32()
		}
	}
	if err := ad.Err(); err != nil {
		return r, fmt.Errorf("read RSS: %w", err)
	}
	return r, nil
}

func (d *Device) setRSSNetlink(c RSSChange) error {
	e := netlink.NewAttributeEncoder()
	d.header(e)
	encodeRSSChange(e, c)
	_, err := d.genl("set RSS", msgRSSSet, netlink.Acknowledge, e)
	return err
}

func encodeRSSChange(e *netlink.AttributeEncoder, c RSSChange) {
	if c.Function != 0 {
		e.Uint32(rssHashFunc, uint32(c.Function))
	}
	if c.Key != nil {
		e.Bytes(rssKey, c.Key)
	}
	switch {
	case c.DefaultIndirection:
		e.Bytes(rssIndir, []byte{})
	case c.Indirection != nil:
		e.Bytes(rssIndir, putUint32s(nil, c.Indirection))
	}
}

// rssIoctl reads struct ethtool_rxfh: 24 bytes, the table, the key. raw is the whole answer.
func (d *Device) rssIoctl() (r RSS, raw []byte, err error) {
	size := make([]byte, 24)
	binary.NativeEndian.PutUint32(size, unix.ETHTOOL_GRSSH)
	if _, err := d.ioctl("read RSS", unsafe.Pointer(&size[0])); err != nil {
		return r, nil, err
	}
	entries, key := binary.NativeEndian.Uint32(size[8:]), binary.NativeEndian.Uint32(size[12:])
	if entries > maxIndir || key > maxKey {
		return r, nil, fmt.Errorf("read RSS: the driver claims %d entries and a key of %d bytes", entries, key)
	}
	b := make([]byte, 24+4*int(entries)+int(key))
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GRSSH)
	binary.NativeEndian.PutUint32(b[8:], entries)
	binary.NativeEndian.PutUint32(b[12:], key)
	if _, err := d.ioctl("read RSS", unsafe.Pointer(&b[0])); err != nil {
		return r, nil, err
	}
	return decodeRXFH(b), b, nil
}

func decodeRXFH(b []byte) RSS {
	n := 24 + 4*min(int(binary.NativeEndian.Uint32(b[8:])), (len(b)-24)/4)
	return RSS{
		Function: HashFunction(b[16]), Transform: uint32(b[17]),
		Indirection: uint32s(b[24:n]), Key: b[n:],
	}
}

// encodeRXFH builds the request of a change. transform is what the driver reported:
// older kernels insist on 0 there, newer ones would change it.
func encodeRXFH(c RSSChange, transform byte) []byte {
	b := make([]byte, 24, 24+4*len(c.Indirection)+len(c.Key))
	binary.NativeEndian.PutUint32(b, cmdSRSSH)
	entries := uint32(len(c.Indirection))
	if entries == 0 && !c.DefaultIndirection {
		entries = indirNoChange
	}
	binary.NativeEndian.PutUint32(b[8:], entries)
	binary.NativeEndian.PutUint32(b[12:], uint32(len(c.Key)))
	b[16], b[17] = byte(c.Function), transform
	return append(putUint32s(b, c.Indirection), c.Key...)
}

// indirIoctl reads the table with the older struct ethtool_rxfh_indir.
func (d *Device) indirIoctl() ([]uint32, error) {
	size := []uint32{unix.ETHTOOL_GRXFHINDIR, 0}
	if _, err := d.ioctl("read indirection table", unsafe.Pointer(&size[0])); err != nil {
		return nil, err
	}
	if size[1] > maxIndir {
		return nil, fmt.Errorf("read indirection table: the driver claims %d entries", size[1])
	}
	b := make([]uint32, 2+size[1])
	b[0], b[1] = unix.ETHTOOL_GRXFHINDIR, size[1]
	_, err := d.ioctl("read indirection table", unsafe.Pointer(&b[0]))
	return b[2:], err
}

func (d *Device) setIndirIoctl(c RSSChange) error {
	b := append([]uint32{cmdSRXFHIndir, uint32(len(c.Indirection))}, c.Indirection...)
	_, err := d.ioctl("set indirection table", unsafe.Pointer(&b[0]))
	return err
}

func uint32s(b []byte) []uint32 {
	v := make([]uint32, len(b)/4)
	for i := range v {
		v[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return v
}

func putUint32s(b []byte, v []uint32) []byte {
	for _, x := range v {
		b = binary.NativeEndian.AppendUint32(b, x)
	}
	return b
}

// FlowType is a kind of packet, as the kernel numbers them.
type FlowType uint32

// Flow types. IPv4 and IPv6 are for rules, IPv4Hash and IPv6Hash for hash fields.
const (
	TCP4     FlowType = 0x01
	UDP4     FlowType = 0x02
	SCTP4    FlowType = 0x03
	TCP6     FlowType = 0x05
	UDP6     FlowType = 0x06
	SCTP6    FlowType = 0x07
	IPv4     FlowType = 0x0d
	IPv6     FlowType = 0x0e
	IPv4Hash FlowType = 0x10
	IPv6Hash FlowType = 0x11
)

// Fields that the hash of a flow type can cover.
const (
	HashVLAN    uint64 = 1 << 2
	HashL3      uint64 = 1 << 3
	HashSrc     uint64 = 1 << 4
	HashDst     uint64 = 1 << 5
	HashSrcPort uint64 = 1 << 6
	HashDstPort uint64 = 1 << 7
)

// HashFields returns what the hash of a flow type covers.
func (d *Device) HashFields(t FlowType) (uint64, error) {
	r := rxnfc{cmd: unix.ETHTOOL_GRXFH, flowType: uint32(t)}
	_, err := d.ioctl("read hash fields", unsafe.Pointer(&r))
	return r.data, err
}

// SetHashFields changes what the hash of a flow type covers.
func (d *Device) SetHashFields(t FlowType, fields uint64) error {
	r := rxnfc{cmd: cmdSRXFH, flowType: uint32(t), data: fields}
	_, err := d.ioctl("set hash fields", unsafe.Pointer(&r))
	return err
}
