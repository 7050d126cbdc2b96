package afxdp

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/source"
)

// namespace moves the test to an empty network namespace of its own, which vanishes
// with its thread, and skips it where that is not allowed.
func namespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("network namespaces need CAP_SYS_ADMIN")
		}
		require.NoError(t, err)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skip("kernel has no AF_XDP")
	}
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	// The kernel is not to send frames of its own.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}

// veth makes a pair of interfaces, both up.
func veth(t testing.TB, name, peer string, queues, mtu int) {
	t.Helper()
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.NumRxQueues, a.NumTxQueues = name, mtu, queues, queues
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: peer, PeerMTU: uint32(mtu)}))
	up(t, name)
	up(t, peer)
}

func up(t testing.TB, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(l))
}

func down(t testing.TB, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetDown(l))
}

func index(t testing.TB, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return l.Attrs().Index
}

// program is what redirect attaches.
type program struct {
	perQueue, firstSlot int
	generic             bool
	oneBuffer           bool  // the program does not know frames of several buffers
	stamp               bool  // put metadata before frames
	skew                int32 // added to their time
}

const seqAt = 20 // where frames of the tests have their number, 4 bytes big endian

// newMap makes an XSKMAP.
func newMap(t testing.TB, entries int) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(entries)})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// redirect attaches a program that redirects all frames to the map, within a queue
// by their number; what finds no socket goes to the host.
func redirect(t testing.TB, name string, m *ebpf.Map, p program) {
	t.Helper()
	p.perQueue = max(p.perQueue, 1)
	// struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index.
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	if p.stamp {
		code = append(code,
			asm.Mov.Imm(asm.R2, -MetadataLen),
			asm.FnXdpAdjustMeta.Call(),
			asm.JNE.Imm(asm.R0, 0, "route"),
			asm.FnKtimeGetNs.Call(),
			asm.Add.Imm(asm.R0, p.skew),
			asm.LoadMem(asm.R2, asm.R6, 8, asm.Word),
			asm.LoadMem(asm.R3, asm.R6, 0, asm.Word),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, MetadataLen),
			asm.JGT.Reg(asm.R4, asm.R3, "route"),
			asm.StoreMem(asm.R2, 0, asm.R0, asm.DWord),
			asm.StoreImm(asm.R2, 8, MetadataMagic, asm.Word),
			asm.StoreImm(asm.R2, 12, ClockMonotonic, asm.Word),
		)
	}
	code = append(code,
		asm.LoadMem(asm.R2, asm.R6, 16, asm.Word).WithSymbol("route"),
		asm.Mul.Imm(asm.R2, int32(p.perQueue)),
		asm.LoadMem(asm.R3, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R4, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R5, asm.R3),
		asm.Add.Imm(asm.R5, seqAt+4),
		asm.JGT.Reg(asm.R5, asm.R4, "go"),
		asm.LoadMem(asm.R3, asm.R3, seqAt+3, asm.Byte),
		asm.Mod.Imm(asm.R3, int32(p.perQueue)),
		asm.Add.Reg(asm.R2, asm.R3),
		asm.Add.Imm(asm.R2, int32(p.firstSlot)).WithSymbol("go"),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Imm(asm.R3, 2), // XDP_PASS
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
	spec := &ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: code, License: "Dual BSD/GPL"}
	if !p.oneBuffer {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	prog, err := ebpf.NewProgram(spec)
	if errors.Is(err, unix.EPERM) {
		t.Skip("loading programs needs CAP_BPF")
	}
	require.NoError(t, err)
	flags := link.XDPDriverMode
	if p.generic {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index(t, name), Flags: flags})
	require.NoError(t, err)
	t.Cleanup(func() {
		l.Close()
		prog.Close()
	})
}

// sender sends frames on an interface, by a plain packet socket.
type sender struct {
	t  testing.TB
	fd int
}

func newSender(t testing.TB, name string) *sender {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index(t, name)}))
	t.Cleanup(func() { unix.Close(fd) })
	return &sender{t, fd}
}

func (s *sender) send(frame []byte) {
	s.t.Helper()
	_, err := unix.Write(s.fd, frame)
	require.NoError(s.t, err)
}

// test frames have a local experimental Ethernet type, so that nothing answers.
func testFrame(seq, size int) []byte {
	frame := make([]byte, size)
	copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	for i := 14; i < size; i++ {
		frame[i] = byte(seq*7 + i)
	}
	binary.BigEndian.PutUint32(frame[seqAt:], uint32(seq))
	return frame
}

func seqOf(f source.Frame) int { return int(binary.BigEndian.Uint32(f.Data[seqAt:])) }

// open opens a source that the test closes. Kernels before multi-buffer skip tests of
// long frames.
func open(t testing.TB, cfg Config) *Source {
	t.Helper()
	s, err := Open(cfg)
	if errors.Is(err, ErrMTU) && !cfg.DisableMultiBuffer {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// collect takes n frames of the tests from s.
func collect(t testing.TB, s *Source, b *source.Batch, n int, each func(source.Frame)) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); n > 0; {
		_, err := s.Next(b)
		require.NoError(t, err)
		for _, f := range b.Frames {
			if binary.BigEndian.Uint16(f.Data[12:]) == 0x88b5 {
				each(f)
				n--
			}
		}
		require.False(t, time.Now().After(deadline), "%d frames are missing", n)
	}
	require.Zero(t, n, "frames came twice")
}

// listener receives what arrives at an interface.
type listener struct {
	t  testing.TB
	fd int
}

func newListener(t testing.TB, name string) *listener {
	t.Helper()
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index(t, name), Protocol: all}))
	t.Cleanup(func() { unix.Close(fd) })
	return &listener{t, fd}
}

// next returns the next frame of the tests.
func (l *listener) next() []byte {
	l.t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(l.fd, buf)
		require.NoError(l.t, err, "no frame arrived")
		if binary.BigEndian.Uint16(buf[12:]) == 0x88b5 {
			return buf[:n]
		}
	}
}

// withoutCapabilities runs f on a thread that lacks them.
func withoutCapabilities(t *testing.T, f func(), caps ...int) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var old, less [2]unix.CapUserData
	require.NoError(t, unix.Capget(&hdr, &old[0]))
	less = old
	for _, c := range caps {
		less[c/32].Effective &^= 1 << (c % 32)
	}
	require.NoError(t, unix.Capset(&hdr, &less[0]))
	defer func() { require.NoError(t, unix.Capset(&hdr, &old[0])) }()
	f()
}
