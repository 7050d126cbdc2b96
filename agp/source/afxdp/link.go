package afxdp

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
)

// frameOverhead is what a frame has beyond the MTU: the Ethernet header and two
// VLAN tags.
const frameOverhead = 14 + 2*4

// linkInfo is what Open needs to know of a device.
type linkInfo struct {
	name     string
	index    int
	mtu      int
	queues   int // receive queues in use
	linkType packet.LinkType
	generic  bool // an XDP program runs in generic mode
}

func lookup(h *netlink.Handle, p *Port) (linkInfo, error) {
	var (
		l   netlink.Link
		err error
	)
	if p.IfIndex != 0 {
		l, err = h.LinkByIndex(p.IfIndex)
	} else {
		l, err = h.LinkByName(p.Interface)
	}
	if err != nil {
		label := p.Interface
		if label == "" {
			label = fmt.Sprintf("interface %d", p.IfIndex)
		}
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
			return linkInfo{}, fmt.Errorf("%s: %w", label, ErrInterface)
		}
		return linkInfo{}, fmt.Errorf("%s: %w", label, err)
	}
	a := l.Attrs()
	if p.Interface != "" && a.Name != p.Interface {
		return linkInfo{}, fmt.Errorf("%s: %w: index %d is %s", p.Interface, ErrInterface, p.IfIndex, a.Name)
	}
	info := linkInfo{name: a.Name, index: a.Index, mtu: a.MTU, queues: channels(a.Name), linkType: packet.LinkEthernet}
	if info.queues == 0 {
		info.queues = max(a.NumRxQueues, 1)
	}
	if a.EncapType != "ether" && a.EncapType != "loopback" {
		info.linkType = packet.LinkRaw
	}
	info.generic = genericXDP(a)
	return info, nil
}

func genericXDP(a *netlink.LinkAttrs) bool {
	return a.Xdp != nil && a.Xdp.Attached && a.Xdp.AttachMode == nl.XDP_ATTACHED_SKB
}

// channels returns how many receive queues a driver says that it uses, or 0.
func channels(name string) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	c := struct {
		cmd, maxRx, maxTx, maxOther, maxCombined, rx, tx, other, combined uint32
	}{cmd: unix.ETHTOOL_GCHANNELS}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&c)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&c)
	if errno != 0 {
		return 0
	}
	return int(c.rx + c.combined)
}
