package afpacket

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source/live"
)

// Layout of a block (struct tpacket_block_desc) and of a frame in it (struct
// tpacket3_hdr, then struct sockaddr_ll): offsets in bytes, host byte order.
const (
	blockStatus = 8
	blockFrames = 12
	blockFirst  = 16
	blockHeader = 48

	frameNext    = 0
	frameSec     = 4
	frameNsec    = 8
	frameSnap    = 12
	frameLen     = 16
	frameStatus  = 20
	frameMAC     = 24
	frameTCI     = 32
	frameTPID    = 36
	framePktType = 48 + 10
	frameHeader  = 48 + unix.SizeofSockaddrLinklayer

	// vnetHeader is the size of struct virtio_net_hdr, which ends where the frame begins.
	vnetHeader  = 10
	vnetGSOType = 1
	vnetGSOSize = 4
)

// ring is one packet socket with its memory.
type ring struct {
	fd    int
	mem   []byte
	size  int // of a block
	next  int // block to read, or that is read
	iface uint32
	link  packet.LinkType

	seen  []int64 // monotonic time at which each block was seen to be handed over
	ahead int     // blocks from next on that were
	block []byte  // that is read, nil if there is none
	left  uint32  // frames in it that are not read
	off   int     // of the next one
	time  int64   // of the next one
	drops uint64  // counted by the kernel

}

func (r *ring) blocks() int { return len(r.mem) / r.size }

func (r *ring) status(block int) *uint32 {
	return (*uint32)(unsafe.Pointer(&r.mem[block*r.size+blockStatus]))
}

// handed reports whether the kernel has handed over a block.
func (r *ring) handed(block int) bool {
	return atomic.LoadUint32(r.status(block))&unix.TP_STATUS_USER != 0
}

// look notes which blocks the kernel has handed over.
func (r *ring) look(now int64) {
	for r.ahead < r.blocks() {
		i := (r.next + r.ahead) % r.blocks()
		if !r.handed(i) {
			return
		}
		r.seen[i] = now
		r.ahead++
	}
}

// ready reports whether there is a frame in the blocks that look has seen.
func (r *ring) ready() bool {
	for r.block == nil {
		if r.ahead == 0 {
			return false
		}
		r.block = r.mem[r.next*r.size : (r.next+1)*r.size : (r.next+1)*r.size]
		r.left = binary.NativeEndian.Uint32(r.block[blockFrames:])
		r.off = int(binary.NativeEndian.Uint32(r.block[blockFirst:]))
		r.stamp()
	}
	return true
}

// behind reports whether at least half of the ring waits to be read.
func (r *ring) behind() bool { return r.ahead > r.blocks()/2 }

// stamp reads the time of the frame at off, or gives the block back if it has no more.
func (r *ring) stamp() {
	if r.left == 0 {
		r.release()
		return
	}
	if r.off < blockHeader || r.off > len(r.block)-frameHeader {
		return // frame says so
	}
	p := r.block[r.off:]
	r.time = int64(binary.NativeEndian.Uint32(p[frameSec:]))*1e9 + int64(binary.NativeEndian.Uint32(p[frameNsec:]))
}

func (r *ring) release() {
	r.block = nil
	atomic.StoreUint32(r.status(r.next), unix.TP_STATUS_KERNEL)
	r.next = (r.next + 1) % r.blocks()
	r.ahead--
}

// info is what a block says of a frame.
type info struct {
	length    uint32
	tci, tpid uint16 // tpid 0: no tag was taken out
	segment   uint16
	outgoing  bool
}

// frame reads the frame at off, at most snap bytes of it. It reports false if what the block
// says cannot be; lost is then the number of frames that cannot be found any more.
func (r *ring) frame(snap int, in *info) (data []byte, ok bool, lost uint32) {
	if r.off < blockHeader || r.off > len(r.block)-frameHeader {
		lost, r.left = r.left, 0
		return nil, false, lost
	}
	p, ne := r.block[r.off:], binary.NativeEndian
	next := ne.Uint32(p[frameNext:])
	r.left--
	if r.left > 0 {
		if next == 0 || uint64(next) > uint64(len(r.block)) {
			lost, r.left = r.left, 0
		} else {
			r.off += int(next)
		}
	}
	mac := int(ne.Uint16(p[frameMAC:]))
	n := min(int(ne.Uint32(p[frameSnap:])), snap)
	*in = info{length: ne.Uint32(p[frameLen:]), outgoing: p[framePktType] == unix.PACKET_OUTGOING}
	if mac < frameHeader+vnetHeader || n <= 0 || mac+n > len(p) || uint32(n) > in.length || in.length > live.MaxLen {
		return nil, false, lost + 1
	}
	status := ne.Uint32(p[frameStatus:])
	if status&unix.TP_STATUS_VLAN_VALID != 0 {
		in.tci, in.tpid = uint16(ne.Uint32(p[frameTCI:])), unix.ETH_P_8021Q
		if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			in.tpid = ne.Uint16(p[frameTPID:])
		}
	}
	if vnet := p[mac-vnetHeader : mac]; vnet[vnetGSOType] != 0 {
		in.segment = ne.Uint16(vnet[vnetGSOSize:])
	}
	return p[mac : mac+n : mac+n], true, lost
}

// dropped reads the kernel's count, which begins anew with each reading.
func (r *ring) dropped() uint64 {
	if r.fd >= 0 {
		if st, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			r.drops += uint64(st.Drops)
		}
	}
	return r.drops
}

func (r *ring) close() (err error) {
	if r.mem != nil {
		err = unix.Munmap(r.mem)
	}
	if r.fd >= 0 {
		err = errors.Join(err, unix.Close(r.fd))
	}
	r.mem, r.block, r.fd = nil, nil, -1
	return err
}
