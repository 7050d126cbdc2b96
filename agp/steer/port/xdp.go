package port

import (
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The generic netlink family "netdev" (Linux 6.3, Documentation/netlink/specs/netdev.yaml).
const (
	netdevFamily = "netdev"
	netdevDevGet = 1

	netdevIfIndex    = 1 // u32
	netdevXDP        = 3 // u64, bits below
	netdevRxMetadata = 5 // u64, bits below

	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpZeroCopy = 1 << 3
	xdpBuffers  = 1 << 5

	metadataTimestamp = 1 << 0
)

// XDP is what a driver says it can do with XDP programs.
type XDP struct {
	Native     bool // programs run in the driver
	Redirect   bool // and can redirect, as to AF_XDP sockets
	ZeroCopy   bool // of AF_XDP sockets
	Buffers    bool // frames of several buffers
	Timestamps bool // receive times of the hardware
}

// XDPFeatures asks the kernel what the driver of an interface can do. ErrNotSupported: the
// kernel cannot tell.
func XDPFeatures(ifindex int) (x XDP, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("XDP features of interface %d: %w", ifindex, err)
		}
	}()
	c, err := genetlink.Dial(nil)
	if err != nil {
		return x, err
	}
	defer c.Close()
	family, err := c.GetFamily(netdevFamily)
	if errors.Is(err, os.ErrNotExist) {
		return x, ErrNotSupported
	}
	if err != nil {
		return x, err
	}
	e := netlink.NewAttributeEncoder()
	e.Uint32(netdevIfIndex, uint32(ifindex))
	data, err := e.Encode()
	if err != nil {
		return x, err
	}
	answer, err := c.Execute(genetlink.Message{Header: genetlink.Header{Command: netdevDevGet, Version: family.Version}, Data: data}, family.ID, netlink.Request)
	if errors.Is(err, unix.ENODEV) {
		return x, ErrNoInterface
	}
	if err != nil {
		return x, err
	}
	for _, m := range answer {
		d, err := netlink.NewAttributeDecoder(m.Data)
		if err != nil {
			return x, err
		}
		for d.Next() {
			switch d.Type() {
			case netdevXDP:
				bits := d.Uint64()
				x.Native, x.Redirect = bits&xdpBasic != 0, bits&xdpRedirect != 0
				x.ZeroCopy, x.Buffers = bits&xdpZeroCopy != 0, bits&xdpBuffers != 0
			case netdevRxMetadata:
				x.Timestamps = d.Uint64()&metadataTimestamp != 0
			}
		}
		if err := d.Err(); err != nil {
			return x, err
		}
	}
	return x, nil
}
