package port

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// device is what a port asks of one interface; *ethtool.Device is the real one.
type device interface {
	Channels() (current, max ethtool.Channels, err error)
	SetChannels(ethtool.Channels) error
	Rings() (current, max ethtool.Rings, err error)
	SetRings(ethtool.Rings) error
	RSS() (ethtool.RSS, error)
	SetRSS(ethtool.RSSChange) error
	HashFields(ethtool.FlowType) (uint64, error)
	SetHashFields(ethtool.FlowType, uint64) error
	Features() (map[string]ethtool.Feature, error)
	SetFeature(string, bool) error
	Rules() (rules []ethtool.Spec, places int, err error)
	InsertRule(ethtool.Spec) error
	DeleteRule(location uint32) error
}

// link is an interface as a journal knows it.
type link struct {
	Index   int    `json:"ifindex"`
	Name    string `json:"name"`
	Driver  string `json:"driver"`
	Bus     string `json:"bus"`     // "" if virtual
	Address string `json:"address"` // permanent hardware address, "" if it has none
	mtu     int
	up      bool
}

// same says whether the two are one piece of hardware.
func (l link) same(o link) bool {
	return l.physical() && l.Driver == o.Driver && l.Bus == o.Bus && l.Address == o.Address
}

func (l link) physical() bool { return l.Bus != "" && l.Address != "" }

// kernel is one network namespace of one boot.
type kernel interface {
	Boot() string
	Netns() uint64 // inode
	Link(name string) (link, error)
	LinkByIndex(ifindex int) (link, error)
	Links() ([]link, error)
	Device(ifindex int) device
	Promiscuous(l link) (io.Closer, error)
	Claim(l link) (io.Closer, error) // for this process, until it is closed
	Close() error
}

type linux struct {
	conn  *ethtool.Conn
	nl    *netlink.Handle
	boot  string
	netns uint64
}

// openLinux opens the kernel as the calling thread sees it.
func openLinux() (kernel, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	conn, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &linux{conn: conn, nl: nl, boot: string(bytes.TrimSpace(boot)), netns: st.Ino}, nil
}

func (k *linux) Boot() string              { return k.boot }
func (k *linux) Netns() uint64             { return k.netns }
func (k *linux) Device(ifindex int) device { return k.conn.Device(ifindex) }

func (k *linux) Close() error {
	k.nl.Close()
	return k.conn.Close()
}

func (k *linux) Link(name string) (link, error) {
	l, err := k.nl.LinkByName(name)
	return k.link(l, name, err)
}

func (k *linux) LinkByIndex(ifindex int) (link, error) {
	l, err := k.nl.LinkByIndex(ifindex)
	return k.link(l, fmt.Sprintf("interface %d", ifindex), err)
}

func (k *linux) Links() ([]link, error) {
	list, err := whole(k.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []link
	for _, l := range list {
		if x, err := k.link(l, "", nil); err == nil {
			out = append(out, x)
		} // else it has gone since
	}
	return out, nil
}

func (k *linux) link(l netlink.Link, what string, err error) (link, error) {
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return link{}, fmt.Errorf("%s: %w", what, ErrNoInterface)
	}
	if err != nil {
		return link{}, fmt.Errorf("%s: %w", what, err)
	}
	a := l.Attrs()
	out := link{Index: a.Index, Name: a.Name, mtu: a.MTU, up: a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0}
	d := k.conn.Device(a.Index)
	// Some drivers (loopback, tunnels) tell nothing of themselves.
	if drv, err := d.Driver(); err == nil {
		out.Driver, out.Bus = drv.Name, strings.TrimSpace(drv.Bus)
	}
	if out.Bus == "N/A" {
		out.Bus = ""
	}
	if mac, err := d.PermanentAddress(); err == nil {
		out.Address = mac.String()
	}
	return out, nil
}

// Promiscuous makes the interface receive frames for others until the result is closed.
func (k *linux) Promiscuous(l link) (io.Closer, error) {
	// Protocol 0: the socket itself receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, promiscError(l, err)
	}
	err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(l.Index), Type: unix.PACKET_MR_PROMISC})
	if err != nil {
		unix.Close(fd)
		return nil, promiscError(l, err)
	}
	return os.NewFile(uintptr(fd), "promiscuous "+l.Name), nil
}

func promiscError(l link, err error) error {
	op := l.Name + ": promiscuous mode"
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &PermissionError{Op: op, Capability: "CAP_NET_RAW"}
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%s: %w", op, ErrNoInterface)
	}
	return fmt.Errorf("%s: %w", op, err)
}
