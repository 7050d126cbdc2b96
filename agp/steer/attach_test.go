package steer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// veth is a pair of namespaces with an interface each; a Datapath is attached to eth1 of b.
type veth struct {
	a, b *netns.NS
	dev  int // eth1
}

func newVeth(t *testing.T, mtu int) veth {
	t.Helper()
	v := veth{a: netns.Test(t), b: netns.Test(t)}
	require.NoError(t, netns.Veth(netns.End{NS: v.a, Name: "eth0"}, netns.End{NS: v.b, Name: "eth1"}, 1, mtu))
	v.dev = index(t, v.b, "eth1")
	return v
}

func index(t *testing.T, n *netns.NS, name string) int {
	t.Helper()
	l, err := n.Link(name)
	require.NoError(t, err)
	return l.Attrs().Index
}

func send(t *testing.T, n *netns.NS, dev string, frames ...[]byte) {
	t.Helper()
	s, err := n.Sender(dev)
	require.NoError(t, err)
	defer s.Close()
	sent, err := s.Send(frames)
	require.NoError(t, err)
	require.Len(t, frames, sent)
}

// sendQueued sends a frame the way sockets do. Senders of netns go around the queueing
// discipline, and with it around tc egress.
func sendQueued(t *testing.T, n *netns.NS, dev int, frame []byte) {
	t.Helper()
	require.NoError(t, n.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev})
	}))
}

// vanishes closes a datapath and waits until the kernel has none of its programs and maps.
func vanishes(t *testing.T, d *Datapath) {
	t.Helper()
	var programs []ebpf.ProgramID
	var maps []ebpf.MapID
	for _, p := range d.programs {
		info, err := p.Info()
		require.NoError(t, err)
		id, _ := info.ID()
		programs = append(programs, id)
	}
	for _, m := range d.maps {
		info, err := m.Info()
		require.NoError(t, err)
		id, _ := info.ID()
		maps = append(maps, id)
	}
	require.NotEmpty(t, maps)
	require.NoError(t, d.Close())
	require.Eventually(t, func() bool {
		for _, id := range programs {
			if p, err := ebpf.NewProgramFromID(id); err == nil {
				_ = p.Close()
				return false
			}
		}
		for _, id := range maps {
			if m, err := ebpf.NewMapFromID(id); err == nil {
				_ = m.Close()
				return false
			}
		}
		return true
	}, 10*time.Second, 5*time.Millisecond)
}

// records waits for so many records.
func records(t *testing.T, d *Datapath, n int) []record {
	t.Helper()
	var got []record
	require.Eventually(t, func() bool {
		got = append(got, drain(t, d)...)
		return len(got) >= n
	}, 5*time.Second, time.Millisecond)
	require.Len(t, got, n)
	return got
}

func TestAMirrorSeesBothDirectionsOfAnInterface(t *testing.T) {
	for _, c := range []struct {
		how        string
		xdp, plain bool
	}{{"tcx", false, false}, {"clsact", false, true}, {"xdp native + tcx", true, false}} {
		t.Run(c.how, func(t *testing.T) {
			v := newVeth(t, 0)
			d := load(t, Config{})
			d.withoutTCX = c.plain
			if strings.Contains(c.how, "tcx") && haveTCX() != nil {
				t.Skip("no tcx in this kernel")
			}
			var how string
			require.NoError(t, v.b.Do(func() (err error) { how, err = d.AttachMirror(v.dev, c.xdp); return err }))
			require.Equal(t, c.how, how)
			in, out := udp(t, "192.0.2.1:1", "198.51.100.1:2"), udp(t, "198.51.100.1:2", "192.0.2.1:1")
			send(t, v.a, "eth0", in)
			sendQueued(t, v.b, v.dev, out)
			for _, r := range records(t, d, 2) {
				require.EqualValues(t, v.dev, r.Ifindex)
				if r.Hook == bpf.HookEgress {
					require.Equal(t, out, r.data)
				} else {
					require.Equal(t, in, r.data)
					require.Equal(t, c.xdp, r.Hook == bpf.HookXDP)
				}
			}

			require.ErrorIs(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, false); return err }), ErrInUse)
			require.NoError(t, d.Detach(v.dev))
			require.NoError(t, d.Detach(v.dev), "again")
			before := count(t, d).Seen()
			send(t, v.a, "eth0", in)
			sendQueued(t, v.b, v.dev, out)
			require.Equal(t, before, count(t, d).Seen())
			require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, false); return err }), "attach again")
			vanishes(t, d)
			require.NoError(t, d.Close(), "again")
		})
	}
}

// Interfaces on one another, all of them captured: a rule applies to a frame once.
func TestARuleAppliesOnceToAFrameThatPassesSeveralInterfaces(t *testing.T) {
	const frames = 200
	vlan := func(n *netns.NS, name, parent string) error {
		l, err := n.Link(parent)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = name, l.Attrs().Index
		return errors.Join(n.Netlink().LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 5}), n.Up(name))
	}
	// What a bridge may give to netfilter needs a right checksum.
	from := func(addr string, to net.HardwareAddr) []byte {
		f := udp(t, addr+":1", "198.51.100.1:2")
		copy(f, to)
		var sum uint32
		for i := 14; i < 34; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(f[i:]))
		}
		binary.BigEndian.PutUint16(f[24:], ^uint16(sum+sum>>16)) //nolint:gosec // folded
		return f
	}
	tagged := func(f []byte) []byte { return slices.Insert(slices.Clone(f), 12, 0x81, 0, 0, 5) }
	for _, c := range []struct {
		name  string
		stack func(n *netns.NS) error
		hooks []string
		frame func(f []byte) []byte
	}{
		{"port alone", func(*netns.NS) error { return nil }, []string{"eth1"}, slices.Clone[[]byte]},
		{"bridge alone", func(n *netns.NS) error { return n.Bridge("br0", "eth1") }, []string{"br0"}, slices.Clone[[]byte]},
		{"bridge and port", func(n *netns.NS) error { return n.Bridge("br0", "eth1") }, []string{"eth1", "br0"}, slices.Clone[[]byte]},
		{"VLAN and port", func(n *netns.NS) error { return vlan(n, "v5", "eth1") }, []string{"v5", "eth1"}, tagged},
		{"VLAN, bridge and port", func(n *netns.NS) error {
			return errors.Join(n.Bridge("br0", "eth1"), vlan(n, "v5", "br0"))
		}, []string{"eth1", "br0", "v5"}, tagged},
		{"macvlan and port", func(n *netns.NS) error { return n.Macvlan("mv0", "eth1") }, []string{"eth1", "mv0"}, slices.Clone[[]byte]},
	} {
		for _, dry := range []bool{false, true} {
			for _, same := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, dry run %v, same frames %v", c.name, dry, same), func(t *testing.T) {
					v := newVeth(t, 0)
					err := c.stack(v.b)
					if errors.Is(err, unix.EOPNOTSUPP) {
						t.Skipf("no interfaces of this kind in this kernel: %v", err)
					}
					require.NoError(t, err)
					d := load(t, Config{RingBytes: 1 << 20})
					top, err := v.b.Link(c.hooks[len(c.hooks)-1])
					require.NoError(t, err)
					for _, h := range c.hooks {
						require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(index(t, v.b, h), false); return err }))
					}
					limit := Rule{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Action: RateLimit, PacketsPerSecond: 1000, DryRun: dry}
					wouldBlock := Rule{Prefix: netip.MustParsePrefix("192.0.2.2/32"), Action: Block, DryRun: true}
					require.NoError(t, d.Add([]Rule{limit, wouldBlock}))
					var list [][]byte
					for i := range frames {
						for _, addr := range []string{"192.0.2.1", "192.0.2.2"} {
							f := from(addr, top.Attrs().HardwareAddr)
							if !same {
								binary.BigEndian.PutUint16(f[14+20+6:], uint16(i))
							}
							list = append(list, c.frame(f))
						}
					}
					// A bridge forwards some time after it has its port.
					hooks := uint64(len(c.hooks))
					other := from("198.51.100.7", top.Attrs().HardwareAddr)
					require.Eventually(t, func() bool {
						before := count(t, d).Seen().Frames
						send(t, v.a, "eth0", c.frame(other))
						return count(t, d).Seen().Frames == before+hooks
					}, 5*time.Second, time.Millisecond)
					before := count(t, d).Seen().Frames
					release, err := netns.Pin(0) // the bucket is not full again before all are sent
					require.NoError(t, err)
					defer release()
					begin := time.Now()
					send(t, v.a, "eth0", list...)
					over := func(n Counters) uint64 { return n.RateLimited.Frames + n.WouldLimit.Frames }
					all := func(n Counters) bool {
						return n.Seen().Frames-before+n.RateLimited.Frames*(hooks-1) >= 2*frames*hooks
					}
					require.Eventually(t, func() bool { return all(count(t, d)) }, 5*time.Second, time.Millisecond)
					took := time.Since(begin)
					n := count(t, d)
					passed := frames - over(n)
					t.Logf("%d of %d passed in %v", passed, frames, took)
					require.GreaterOrEqual(t, passed, uint64(100), "the burst is a tenth of a second")
					require.LessOrEqual(t, passed, 102+uint64(took.Milliseconds()))
					require.EqualValues(t, frames, n.WouldBlock.Frames)
					if dry {
						require.Zero(t, n.RateLimited.Frames)
					} else {
						require.Zero(t, n.WouldLimit.Frames)
					}
				})
			}
		}
	}
}

func TestADryRunCountsOnceWhatIsSentOverABridgeAndItsPort(t *testing.T) {
	v := newVeth(t, 0)
	require.NoError(t, v.b.Bridge("br0", "eth1"))
	d := load(t, Config{})
	for _, h := range []string{"br0", "eth1"} {
		require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(index(t, v.b, h), false); return err }))
	}
	rule := block("192.0.2.1/32")
	rule.DryRun = true
	require.NoError(t, d.Add([]Rule{rule}))
	out := udp(t, "198.51.100.1:2", "192.0.2.1:1")
	release, err := netns.Pin(0)
	require.NoError(t, err)
	defer release()
	require.Eventually(t, func() bool { // a bridge forwards some time after it has its port
		before := count(t, d).Seen().Frames
		sendQueued(t, v.b, index(t, v.b, "br0"), out)
		return count(t, d).Seen().Frames == before+2
	}, 5*time.Second, time.Millisecond)
	before := count(t, d)
	for range 10 {
		sendQueued(t, v.b, index(t, v.b, "br0"), out)
	}
	after := count(t, d)
	require.EqualValues(t, 20, after.Seen().Frames-before.Seen().Frames)
	require.EqualValues(t, 10, after.WouldBlock.Frames-before.WouldBlock.Frames)
}

// watcher is a program of somebody else: it counts and passes.
func watcher(t *testing.T, typ ebpf.ProgramType, verdict int32) (*ebpf.Program, func() uint64) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	require.NoError(t, err)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "somebody", Type: typ, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close(); _ = m.Close() })
	return p, func() uint64 {
		var n uint64
		require.NoError(t, m.Lookup(uint32(0), &n))
		return n
	}
}

func TestOtherProgramsAtTCXStillRunAndStayAttached(t *testing.T) {
	if haveTCX() != nil {
		t.Skip("no tcx in this kernel")
	}
	v := newVeth(t, 0)
	p, seen := watcher(t, ebpf.SchedCLS, -1)
	var other link.Link
	require.NoError(t, v.b.Do(func() (err error) {
		other, err = link.AttachTCX(link.TCXOptions{Interface: v.dev, Program: p, Attach: ebpf.AttachTCXIngress})
		return err
	}))
	defer other.Close()
	d := load(t, Config{})
	require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, false); return err }))
	f := udp(t, "192.0.2.1:1", "198.51.100.1:2")
	send(t, v.a, "eth0", f)
	records(t, d, 1)
	require.EqualValues(t, 1, seen())

	require.NoError(t, d.Add([]Rule{block("192.0.2.1/32")}))
	send(t, v.a, "eth0", f)
	require.EqualValues(t, 1, count(t, d).Blocked.Frames)
	require.EqualValues(t, 1, seen(), "what is blocked ends with us")

	require.NoError(t, d.Close())
	send(t, v.a, "eth0", f)
	require.EqualValues(t, 2, seen(), "not ours, so still attached")
}

func TestOtherFiltersAtClsactStillRunAndStay(t *testing.T) {
	v := newVeth(t, 0)
	p, seen := watcher(t, ebpf.SchedCLS, -1)
	dev, err := v.b.Link("eth1")
	require.NoError(t, err)
	require.NoError(t, v.b.Netlink().QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: v.dev, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}))
	require.NoError(t, v.b.Netlink().FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: v.dev, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          p.FD(), Name: "somebody", DirectAction: true,
	}))
	filters := func() (names []string) {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			list, err := v.b.Netlink().FilterList(dev, parent)
			require.NoError(t, err)
			for _, f := range list {
				names = append(names, f.(*netlink.BpfFilter).Name)
			}
		}
		return names
	}
	d := load(t, Config{})
	d.withoutTCX = true
	require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, false); return err }))
	require.Equal(t, []string{"somebody", "telegraf-agp agp_ingress", "telegraf-agp agp_egress"}, filters())
	send(t, v.a, "eth0", udp(t, "192.0.2.1:1", "198.51.100.1:2"))
	records(t, d, 1)
	require.EqualValues(t, 1, seen())

	// A process that was killed leaves its filters.
	d.attached = map[int][]io.Closer{}
	require.NoError(t, d.Close())
	require.Len(t, filters(), 3)
	n := -1
	require.NoError(t, v.b.Do(func() (err error) { n, err = Sweep(v.dev); return err }))
	require.Equal(t, 2, n)
	require.Equal(t, []string{"somebody"}, filters())
	bare := index(t, v.a, "eth0") // no clsact there
	require.NoError(t, v.a.Do(func() (err error) { n, err = Sweep(bare); return err }))
	require.Zero(t, n)
}

func TestAnotherXDPProgramIsNamedAndStays(t *testing.T) {
	v := newVeth(t, 0)
	p, seen := watcher(t, ebpf.XDP, xdpPass)
	info, err := p.Info()
	require.NoError(t, err)
	id, ok := info.ID()
	require.True(t, ok)
	check := func(t *testing.T) {
		t.Helper()
		d := load(t, Config{})
		for _, attach := range []func() error{
			func() error { _, err := d.AttachDivert(v.dev, []Mode{Native, Generic}); return err },
			func() error { _, err := d.AttachMirror(v.dev, true); return err },
		} {
			err := v.b.Do(attach)
			require.ErrorIs(t, err, ErrAttached)
			require.ErrorContains(t, err, "eth1")
			var other *AttachedError
			require.ErrorAs(t, err, &other)
			require.Equal(t, AttachedError{ID: uint32(id), Name: "somebody"}, *other)
		}
		require.Empty(t, d.attached)
		require.NoError(t, d.Close())
		before := seen()
		send(t, v.a, "eth0", udp(t, "192.0.2.1:1", "198.51.100.1:2"))
		require.Eventually(t, func() bool { return seen() > before }, 5*time.Second, time.Millisecond)
	}
	for name, flags := range map[string]link.XDPAttachFlags{"native": link.XDPDriverMode, "generic": link.XDPGenericMode} {
		t.Run(name+" by link", func(t *testing.T) {
			var l link.Link
			require.NoError(t, v.b.Do(func() (err error) {
				l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: v.dev, Flags: flags})
				return err
			}))
			defer l.Close()
			check(t)
		})
	}
	t.Run("native by netlink", func(t *testing.T) {
		dev, err := v.b.Link("eth1")
		require.NoError(t, err)
		require.NoError(t, v.b.Do(func() error { return netlink.LinkSetXdpFdWithFlags(dev, p.FD(), unix.XDP_FLAGS_DRV_MODE) }))
		check(t)
	})
}

func TestDivertTakesTheFirstModeThatWorks(t *testing.T) {
	v := newVeth(t, 0)
	require.NoError(t, v.b.Macvlan("mac0", "eth1"))
	mac := index(t, v.b, "mac0")
	for _, c := range []struct {
		name  string
		dev   int
		modes []Mode
		want  Mode
		err   error
	}{
		{"native", v.dev, []Mode{Native, Generic}, Native, nil},
		{"generic by choice", v.dev, []Mode{Generic}, Generic, nil},
		{"generic as last resort", mac, []Mode{Native, Generic}, Generic, nil},
		{"a driver without XDP", mac, []Mode{Native}, 0, ErrNoDriverXDP},
		{"no mode", v.dev, nil, 0, ErrConfig},
		{"unknown mode", v.dev, []Mode{7}, 0, ErrConfig},
		{"no interface", 9999, []Mode{Native}, 0, ErrNoInterface},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, Config{})
			var mode Mode
			err := v.b.Do(func() (err error) { mode, err = d.AttachDivert(c.dev, c.modes); return err })
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, mode)
			if err != nil {
				return
			}
			if c.dev == v.dev {
				send(t, v.a, "eth0", udp(t, "192.0.2.1:1", "198.51.100.1:2"))
				require.Eventually(t, func() bool { return count(t, d).RedirectFail.Frames == 1 }, 5*time.Second, time.Millisecond)
			}
			other := v.dev + mac - c.dev
			require.ErrorIs(t, v.b.Do(func() error { _, err := d.AttachDivert(other, c.modes); return err }), ErrInUse, "one interface")
			require.NoError(t, d.Detach(c.dev))
			require.NoError(t, v.b.Do(func() error { _, err := d.AttachDivert(c.dev, c.modes); return err }), "again")
			vanishes(t, d)
			require.NoError(t, v.b.Do(func() error { return foreignXDP(c.dev) }), "nothing is attached")
		})
	}
}

func TestAMirrorByXDPIsOneByTCWhereTheDriverHasNoXDP(t *testing.T) {
	v := newVeth(t, 0)
	require.NoError(t, v.b.Macvlan("mac0", "eth1"))
	mac := index(t, v.b, "mac0")
	d := load(t, Config{})
	var how string
	require.NoError(t, v.b.Do(func() (err error) { how, err = d.AttachMirror(mac, true); return err }))
	require.Contains(t, []string{"tcx", "clsact"}, how, "generic XDP would take coalesced frames for one")
}

func TestFramesOfSeveralBuffersAreMirroredByXDP(t *testing.T) {
	v := newVeth(t, 9000)
	d := load(t, Config{})
	var how string
	require.NoError(t, v.b.Do(func() (err error) { how, err = d.AttachMirror(v.dev, true); return err }))
	require.Contains(t, how, "xdp native + ")
	f := tcp(t, 8900, "192.0.2.1:1", "198.51.100.1:2")
	send(t, v.a, "eth0", f)
	r := records(t, d, 1)[0]
	require.EqualValues(t, len(f), r.Len)
	require.Equal(t, f[:256], r.data)
	require.Equal(t, Count{Frames: 1, Bytes: uint64(len(f))}, count(t, d).ToEngine)
}

func TestAnInterfaceWithoutMACHeader(t *testing.T) {
	n := netns.Test(t)
	fd := -1
	require.NoError(t, n.Do(func() (err error) { // a tun that the test itself writes to
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR, 0); err != nil {
			return err
		}
		req, err := unix.NewIfreq("tun0")
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}))
	defer unix.Close(fd)
	require.NoError(t, n.Up("tun0"))
	d := load(t, Config{})
	dev := index(t, n, "tun0")
	require.NoError(t, n.Do(func() error { _, err := d.AttachMirror(dev, false); return err }))
	ip := udp(t, "66.9.149.187:2794", "161.142.100.80:1766")[14:]
	_, err := unix.Write(fd, ip)
	require.NoError(t, err)
	r := records(t, d, 1)[0]
	require.Equal(t, ip, r.data)
	require.EqualValues(t, 0x9fcc9fcc, r.Hash)
	require.EqualValues(t, bpf.EventRaw, r.Flags)
	require.EqualValues(t, len(ip), r.Len)

	require.ErrorIs(t, n.Do(func() error { _, err := d.AttachDivert(dev, []Mode{Generic}); return err }), ErrInUse)
	require.NoError(t, d.Detach(dev))
	require.ErrorIs(t, n.Do(func() error { _, err := d.AttachDivert(dev, []Mode{Generic}); return err }), ErrLinkType)
	require.ErrorIs(t, n.Do(func() error { _, err := d.AttachMirror(dev, true); return err }), ErrLinkType)
}

func TestAnInterfaceThatGoesAwayIsDetached(t *testing.T) {
	for _, plain := range []bool{false, true} {
		v := newVeth(t, 0)
		d := load(t, Config{})
		d.withoutTCX = plain
		require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, true); return err }))
		require.NoError(t, v.b.Remove("eth1"))
		require.NoError(t, d.Detach(v.dev))
		require.ErrorIs(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, true); return err }), ErrNoInterface)
		vanishes(t, d)
	}
}

// A tag that the card has taken off is in metadata and counts on the wire.
func TestATagInMetadata(t *testing.T) {
	v := newVeth(t, 0)
	d := load(t, Config{})
	require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, false); return err }))
	f := udp(t, "66.9.149.187:2794", "161.142.100.80:1766")
	tagged := append(append(append([]byte{}, f[:12]...), 0x81, 0x00, 0x20, 0x05), f[12:]...)
	send(t, v.a, "eth0", tagged)
	r := records(t, d, 1)[0]
	require.Equal(t, f, r.data, "the kernel takes the tag out before tc")
	require.EqualValues(t, 0x8100, r.VLANProto)
	require.EqualValues(t, 0x2005, r.VLANTCI)
	require.EqualValues(t, 0x9fcc9fcc, r.Hash)
	require.EqualValues(t, len(tagged), count(t, d).ToEngine.Bytes)
}

// Real TCP over veth: the kernel sends super-packets whose payload is not linear.
func TestSuperPacketsOfARealConnection(t *testing.T) {
	v := newVeth(t, 0)
	for ns, addr := range map[*netns.NS]string{v.a: "192.0.2.1/24", v.b: "192.0.2.2/24"} {
		name := "eth0"
		if ns == v.b {
			name = "eth1"
		}
		require.NoError(t, ns.Addr(name, prefixes(addr)[0]))
	}
	d := load(t, Config{RingBytes: 4 << 20})
	require.NoError(t, v.b.Do(func() error { _, err := d.AttachMirror(v.dev, false); return err }))
	var l net.Listener
	require.NoError(t, v.b.Do(func() (err error) { l, err = net.Listen("tcp4", "192.0.2.2:7777"); return err }))
	defer l.Close()
	var c net.Conn
	require.NoError(t, v.a.Do(func() (err error) { c, err = net.Dial("tcp4", "192.0.2.2:7777"); return err }))
	s, err := l.Accept()
	require.NoError(t, err)
	defer s.Close()
	payload := make([]byte, 1<<20)
	for i := range payload {
		payload[i] = 'x'
	}
	go func() {
		_, _ = c.Write(payload)
		_ = c.Close()
	}()
	n, buf := 0, make([]byte, 64<<10)
	for n < len(payload) {
		k, err := s.Read(buf)
		require.NoError(t, err)
		n += k
	}
	coalesced, bytes := 0, 0
	for _, r := range drain(t, d) {
		if r.Hook != bpf.HookIngress || r.Len < 1000 {
			continue
		}
		headers := 14 + 20 + int(r.data[46]>>4)*4
		bytes += int(r.Len) - headers
		for _, b := range r.data[headers:] {
			require.EqualValues(t, 'x', b, "not the payload")
		}
		if r.GSOSize > 0 && r.GSOSegs > 1 {
			coalesced++
			require.EqualValues(t, (int(r.Len)-headers+int(r.GSOSize)-1)/int(r.GSOSize), r.GSOSegs)
		}
	}
	t.Logf("%d super-packets", coalesced)
	require.NotZero(t, coalesced)
	require.InDelta(t, len(payload), bytes, 2000, "all payload, but for short last frames")
}

// without runs f on a thread with only these capabilities, which then ends.
func without(t *testing.T, caps []uint, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&head, &data[0]); err != nil {
			t.Errorf("capget: %v", err)
			return
		}
		var only [2]uint32
		for _, c := range caps {
			only[c/32] |= 1 << (c % 32)
		}
		for i := range data {
			data[i].Effective &= only[i]
		}
		if err := unix.Capset(&head, &data[0]); err != nil {
			t.Errorf("capset: %v", err)
			return
		}
		f()
	}()
	<-done
}

func TestThreeCapabilitiesAreEnoughAndAMissingOneIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give up capabilities")
	}
	load(t, Config{}) // or skip
	loadAll := func() error {
		d, err := Load(Config{RingBytes: 4096, MaxBlocked: 10})
		if err != nil {
			return err
		}
		defer d.Close()
		d.mu.Lock()
		defer d.mu.Unlock()
		for name := range d.spec.Programs {
			if name == bpf.SteerProgAgpDivertTimed {
				continue // is loaded for a device, or not at all
			}
			if _, err := d.program(name, 0, 0); err != nil {
				return err
			}
		}
		return nil
	}
	all := []uint{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN}
	without(t, all, func() { assert.NoError(t, loadAll()) })
	for i, name := range []string{"CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"} {
		rest := append(append([]uint{}, all[:i]...), all[i+1:]...)
		without(t, rest, func() {
			err := loadAll()
			if name == "CAP_PERFMON" && !errors.Is(err, ErrPermission) {
				t.Logf("this kernel does not need %s: %v", name, err)
				return
			}
			var p *PermissionError
			if !errors.As(err, &p) {
				t.Errorf("without %s: %v", name, err)
				return
			}
			if p.Capability != name {
				t.Errorf("without %s the error names %q: %v", name, p.Capability, err)
			}
		})
	}
	without(t, nil, func() {
		for _, f := range Probe() {
			assert.NotErrorIs(t, f.Err, ErrUnsupported, "without privileges nothing is known of %s", f.Name)
		}
	})
}

func TestProbeFindsWhatLoadNeeds(t *testing.T) {
	load(t, Config{})
	for _, f := range Probe() {
		t.Logf("%-32s %v", f.Name, f.Err)
		if f.Required {
			require.NoError(t, f.Err, f.Name)
		}
	}
}

func TestBadSettingsAreRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"ring not a power of two": {RingBytes: 5000},
		"ring below a page":       {RingBytes: 1024},
		"negative":                {MaxBlocked: -1},
		"snapshot too short":      {SnapLen: 20},
		"snapshot too long":       {SnapLen: 2000},
		"indirection not a power": {Indirection: 100},
		"too many sockets":        {Sockets: 1 << 20},
		"a share above all":       {Policy: Policy{SharePermille: 1001}},
		"ports of ICMP":           {Policy: Policy{Classes: []Class{{Protocol: 1, PortMax: 5}}}},
		"ports the wrong way":     {Policy: Policy{Classes: []Class{{Protocol: 6, PortMin: 9, PortMax: 5}}}},
		"33 classes":              {Policy: Policy{Classes: make([]Class, 16), Kernel: make([]Class, 17)}},
	} {
		_, err := Load(c)
		require.ErrorIs(t, err, ErrConfig, name)
	}
	d := load(t, Config{PerQueue: 2, Sockets: 2})
	require.ErrorIs(t, d.SetIndirection(make([]uint32, 64)), ErrConfig)
	table := make([]uint32, DefaultIndirection)
	require.NoError(t, d.SetIndirection(table))
	table[9] = 2
	require.ErrorIs(t, d.SetIndirection(table), ErrConfig)
	require.ErrorIs(t, d.SetPolicy(Policy{SharePermille: 2000}), ErrConfig)
}

func TestAClosedDatapathSaysSo(t *testing.T) {
	d := load(t, Config{})
	require.NoError(t, d.Close())
	_, err := d.Counters()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, d.SetPolicy(Policy{}), ErrClosed)
	require.ErrorIs(t, d.Add([]Rule{block("192.0.2.1/32")}), ErrClosed)
	require.ErrorIs(t, d.Remove(prefixes("192.0.2.1/32")), ErrClosed)
	require.ErrorIs(t, d.Clear(), ErrClosed)
	require.ErrorIs(t, d.SetIndirection(nil), ErrClosed)
	_, err = d.AttachMirror(1, false)
	require.ErrorIs(t, err, ErrClosed)
	_, err = d.AttachDivert(1, []Mode{Native})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, d.Detach(1))
}

func TestListsOfCPUs(t *testing.T) {
	got, err := parseCPUs("0-2,5\n")
	require.NoError(t, err)
	require.Equal(t, map[int]bool{0: true, 1: true, 2: true, 5: true}, got)
	for _, bad := range []string{"", "a", "3-1", "-1", "0-99999999", "1-b"} {
		_, err := parseCPUs(bad)
		require.Error(t, err, bad)
	}
}
