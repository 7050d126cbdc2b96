package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source/live"
)

// Errors of Open and Next, wrapped with the interface's name.
var (
	// ErrPermission: the process lacks CAP_NET_RAW.
	ErrPermission = errors.New("packet sockets need CAP_NET_RAW")
	// ErrNoInterface: there is no such interface.
	ErrNoInterface = errors.New("no such interface")
	// ErrGone: the interface was removed while frames were read.
	ErrGone = errors.New("interface was removed")
	// ErrUnsupported: the kernel has no packet sockets with such rings.
	ErrUnsupported = errors.New("kernel does not support packet rings")
)

const (
	blockSize = 256 << 10
	retireMs  = 8    // after which the kernel hands over a block that is not full
	frameUnit = 2048 // only a unit of the request: TPACKET_V3 packs frames
)

// device is an interface to capture from.
type device struct {
	name  string
	index int
	link  packet.LinkType
}

// lookup asks a socket's namespace for an interface.
func lookup(fd int, name string) (d device, err error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil || name == "" {
		return d, ErrNoInterface // no interface has such a name
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); err != nil {
		if err == unix.ENODEV {
			return d, ErrNoInterface
		}
		return d, os.NewSyscallError("SIOCGIFINDEX", err)
	}
	d = device{name: name, index: int(ifr.Uint32())}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFHWADDR, ifr); err != nil {
		return d, os.NewSyscallError("SIOCGIFHWADDR", err)
	}
	d.link, err = live.LinkType(ifr.Uint16()) // sa_family of the address
	return d, err
}

// exists reports whether the interface is still in the socket's namespace.
func (d *device) exists(fd int) bool {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return true
	}
	ifr.SetUint32(uint32(d.index))
	return unix.IoctlIfreq(fd, unix.SIOCGIFNAME, ifr) != unix.ENODEV
}

// socket opens a packet socket that receives nothing yet.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch err {
	case nil:
		return fd, nil
	case unix.EPERM, unix.EACCES:
		return -1, fmt.Errorf("%w: %w", ErrPermission, err)
	case unix.EAFNOSUPPORT:
		return -1, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return -1, os.NewSyscallError("socket", err)
}

// filter lets snap bytes of each frame pass, none of any frame if it is 0.
func filter(fd, snap int) error {
	prog := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(snap)}}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &prog[0]})
	return os.NewSyscallError("SO_ATTACH_FILTER", err)
}

// setup makes a ring for the socket and binds it. It stays behind a filter that passes
// nothing until all sockets of the interface share the traffic.
func (r *ring) setup(d *device, bytes int, promiscuous bool) error {
	if err := filter(r.fd, 0); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, os.NewSyscallError("PACKET_VERSION", err))
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, os.NewSyscallError("PACKET_VNET_HDR", err))
	}
	blocks := max(2, bytes/blockSize)
	req := unix.TpacketReq3{
		Block_size:     blockSize,
		Block_nr:       uint32(blocks),
		Frame_size:     frameUnit,
		Frame_nr:       uint32(blocks * (blockSize / frameUnit)),
		Retire_blk_tov: retireMs,
	}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("ring of %d bytes: %w", blocks*blockSize, os.NewSyscallError("PACKET_RX_RING", err))
	}
	mem, err := unix.Mmap(r.fd, 0, blocks*blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	r.mem, r.size, r.seen = mem, blockSize, make([]int64, blocks)
	if err := unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: d.index}); err != nil {
		if err == unix.ENODEV {
			return ErrNoInterface
		}
		return os.NewSyscallError("bind", err)
	}
	if promiscuous {
		// The kernel counts who wants this, and forgets it with the socket.
		mreq := unix.PacketMreq{Ifindex: int32(d.index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(r.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
			return os.NewSyscallError("PACKET_MR_PROMISC", err)
		}
	}
	return nil
}

// share makes the sockets of one interface divide the flows among themselves.
func share(rings []ring) error {
	if len(rings) < 2 {
		return nil
	}
	err := unix.SetsockoptInt(rings[0].fd, unix.SOL_PACKET, unix.PACKET_FANOUT, (unix.PACKET_FANOUT_HASH|unix.PACKET_FANOUT_FLAG_UNIQUEID)<<16)
	if err != nil {
		return os.NewSyscallError("PACKET_FANOUT", err)
	}
	id, err := unix.GetsockoptInt(rings[0].fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
	if err != nil {
		return os.NewSyscallError("PACKET_FANOUT", err)
	}
	for i := range rings[1:] {
		if err := unix.SetsockoptInt(rings[1+i].fd, unix.SOL_PACKET, unix.PACKET_FANOUT, id&0xffff|unix.PACKET_FANOUT_HASH<<16); err != nil {
			return os.NewSyscallError("PACKET_FANOUT", err)
		}
	}
	return nil
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
