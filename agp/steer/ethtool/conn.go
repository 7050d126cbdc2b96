package ethtool

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Operations of the generic netlink family. The newer ones are in no library yet.
const (
	msgRSSGet = 38
	msgRSSSet = 48
)

// Conn is a way to the kernel's ethtool, in one network namespace.
type Conn struct {
	fd     int
	genl   *genetlink.Conn // nil if the kernel has no ethtool family
	family uint16
	ops    map[uint32]bool // operations of the family that the kernel lists
}

// Open opens the sockets in the network namespace of the calling thread. It needs
// no privilege; reading needs none either.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		// A host without IPv4 still has netlink sockets, which take the ioctl too.
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	}
	if err != nil {
		return nil, wrap("ethtool socket", err)
	}
	c := &Conn{fd: fd}
	if g, err := genetlink.Dial(nil); err == nil {
		if c.family, c.ops, err = family(g); err == nil {
			// The kernel's words for a refused change are better than its number.
			// Kernels that cannot say them are none the worse.
			_ = g.SetOption(netlink.ExtendedAcknowledge, true)
			c.genl = g
		} else {
			g.Close()
		}
	}
	return c, nil
}

// Close closes the sockets.
func (c *Conn) Close() error {
	if c.genl != nil {
		c.genl.Close()
	}
	return unix.Close(c.fd)
}

// NetlinkRSS says whether the kernel reads and writes RSS over netlink.
func (c *Conn) NetlinkRSS() (get, set bool) { return c.ops[msgRSSGet], c.ops[msgRSSSet] }

// family asks the kernel for the number of the ethtool family and its operations.
func family(g *genetlink.Conn) (id uint16, ops map[uint32]bool, err error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.CTRL_ATTR_FAMILY_NAME, unix.ETHTOOL_GENL_NAME)
	b, err := e.Encode()
	if err != nil {
		return 0, nil, err
	}
	answer, err := g.Execute(genetlink.Message{
		Header: genetlink.Header{Command: unix.CTRL_CMD_GETFAMILY, Version: 1}, Data: b,
	}, unix.GENL_ID_CTRL, netlink.Request)
	if err != nil {
		return 0, nil, err
	}
	ops = map[uint32]bool{}
	for _, m := range answer {
		if id, err = decodeFamily(m.Data, ops); err != nil {
			return 0, nil, err
		}
	}
	return id, ops, nil
}

func decodeFamily(b []byte, ops map[uint32]bool) (id uint16, err error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return 0, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.CTRL_ATTR_FAMILY_ID:
			id = ad.Uint16()
		case unix.CTRL_ATTR_OPS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(op *netlink.AttributeDecoder) error {
						for op.Next() {
							if op.Type() == unix.CTRL_ATTR_OP_ID {
								ops[op.Uint32()] = true
							}
						}
						return nil
					})
				}
				return nil
			})
		}
	}
	return id, ad.Err()
}

// Device is one interface.
type Device struct {
	c     *Conn
	index int
}

// Device returns the interface with this index. It need not exist; calls then
// return ErrNoDevice.
func (c *Conn) Device(ifindex int) *Device { return &Device{c: c, index: ifindex} }

// Name asks the kernel for the present name of the interface.
func (d *Device) Name() (string, error) {
	var req struct {
		name  [unix.IFNAMSIZ]byte
		index int32
		_     [20]byte
	}
	req.index = int32(d.index)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.c.fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return "", wrap(fmt.Sprintf("interface %d", d.index), errno)
	}
	name, _, _ := bytes.Cut(req.name[:], []byte{0})
	return string(name), nil
}

// ioctl hands buf, a structure that starts with its command, to the kernel, which
// answers in place. The result is the value that the ioctl returned.
func (d *Device) ioctl(op string, buf unsafe.Pointer) (int, error) {
	name, err := d.Name()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	var pin runtime.Pinner
	pin.Pin(buf)
	defer pin.Unpin()
	req.data = buf
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.c.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return 0, wrap(name+": "+op, errno)
	}
	// Renamed in between: another interface may have got the old name.
	if now, err := d.Name(); err != nil || now != name {
		return 0, fmt.Errorf("%s: %s: %w: it was renamed or removed during the call", name, op, ErrNoDevice)
	}
	return int(r), nil
}
