package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// ErrUnavailable says that this process may not make namespaces.
var ErrUnavailable = errors.New("network namespaces cannot be made")

// NS is one network namespace.
type NS struct {
	handle netns.NsHandle
	nl     *netlink.Handle
	once   sync.Once
}

// New makes an empty namespace whose loopback is up.
func New() (*NS, error) {
	n := &NS{}
	err := onThread(func() error {
		var err error
		if n.handle, err = netns.New(); err != nil { // moves this thread into it
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// For interfaces to come, and for those that are there.
		for _, name := range []string{"default", "all"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n.nl, err = netlink.NewHandleAt(n.handle, unix.NETLINK_ROUTE); err != nil {
		n.handle.Close()
		return nil, err
	}
	return n, n.Up("lo")
}

// Test makes a namespace that is removed when the test ends. A test that may not
// make one is skipped, see testcap.Missing.
func Test(t testing.TB) *NS {
	t.Helper()
	n, err := New()
	if errors.Is(err, ErrUnavailable) {
		testcap.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// Close gives the namespace up. It goes as soon as nobody else holds it, and its
// interfaces with it.
func (n *NS) Close() {
	n.once.Do(func() {
		n.nl.Close()
		n.handle.Close()
	})
}

// onThread runs f on a thread that may change its namespace, and waits.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		err = f()
		// A thread that cannot go back ends with this goroutine instead of serving others.
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Do runs f inside the namespace and waits for it. f must do what concerns the
// namespace on its own goroutine.
func (n *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return err
		}
		return f()
	})
}

// Start starts a process inside the namespace.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Output runs a process inside the namespace and returns what it printed.
func (n *NS) Output(name string, args ...string) (string, error) {
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput() //nolint:gosec // what the test names
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return string(out), err
}

// ID tells namespaces apart: the inode.
func (n *NS) ID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(n.handle), &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// End is where one end of a veth pair goes.
type End struct {
	NS   *NS
	Name string
}

// Veth makes a veth pair with that many queues at each end and the given MTU, 0
// for 1500. Both ends are up.
func Veth(a, b End, queues, mtu int) error {
	if mtu == 0 {
		mtu = 1500
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues, attrs.TxQLen = a.Name, mtu, queues, queues, 1000
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerNamespace = b.Name, netlink.NsFd(b.NS.handle)
	v.PeerNumTxQueues, v.PeerNumRxQueues, v.PeerMTU = uint32(queues), uint32(queues), uint32(mtu)
	if err := a.NS.nl.LinkAdd(v); err != nil {
		return fmt.Errorf("veth %s-%s: %w", a.Name, b.Name, err)
	}
	if err := a.NS.Up(a.Name); err != nil {
		return err
	}
	return b.NS.Up(b.Name)
}

// Bridge makes a bridge of interfaces of the namespace.
func (n *NS) Bridge(name string, ports ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	off := false
	br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off}
	if err := n.nl.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	for _, p := range ports {
		l, err := n.Link(p)
		if err != nil {
			return err
		}
		if err := n.nl.LinkSetMaster(l, br); err != nil {
			return fmt.Errorf("bridge %s: %s: %w", name, p, err)
		}
	}
	return n.Up(name)
}

// Macvlan makes an interface with an address of its own on another one.
func (n *NS) Macvlan(name, parent string) error {
	p, err := n.Link(parent)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = name, p.Attrs().Index
	if err := n.nl.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		return fmt.Errorf("macvlan %s: %w", name, err)
	}
	return n.Up(name)
}

// Tun makes a persistent tun interface, whose driver has no MAC header.
func (n *NS) Tun(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := n.Do(func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN})
	})
	if err != nil {
		return fmt.Errorf("tun %s: %w", name, err)
	}
	return n.Up(name)
}

// Link returns an interface by its name.
func (n *NS) Link(name string) (netlink.Link, error) {
	l, err := n.nl.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// Netlink is the namespace's own handle for what has no method here.
func (n *NS) Netlink() *netlink.Handle { return n.nl }

// Up switches an interface on.
func (n *NS) Up(name string) error { return n.with(name, n.nl.LinkSetUp) }

// Down switches an interface off.
func (n *NS) Down(name string) error { return n.with(name, n.nl.LinkSetDown) }

// Remove deletes an interface.
func (n *NS) Remove(name string) error { return n.with(name, n.nl.LinkDel) }

// Rename gives an interface another name.
func (n *NS) Rename(name, to string) error {
	return n.with(name, func(l netlink.Link) error { return n.nl.LinkSetName(l, to) })
}

// Move moves an interface to another namespace, where it is down.
func (n *NS) Move(name string, to *NS) error {
	return n.with(name, func(l netlink.Link) error { return n.nl.LinkSetNsFd(l, int(to.handle)) })
}

// Addr gives an interface an address. With the first of IPv6 it is able to say what
// that needs.
func (n *NS) Addr(name string, prefix netip.Prefix) error {
	if prefix.Addr().Is6() {
		err := n.Do(func() error {
			dir := "/proc/sys/net/ipv6/conf/" + name
			return errors.Join(os.WriteFile(dir+"/accept_dad", []byte("0"), 0), os.WriteFile(dir+"/router_solicitations", []byte("0"), 0),
				os.WriteFile(dir+"/disable_ipv6", []byte("0"), 0))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return n.with(name, func(l netlink.Link) error {
		ip := prefix.Addr().AsSlice()
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(prefix.Bits(), len(ip)*8)}}
		if prefix.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD // can be used at once
		}
		return n.nl.AddrAdd(l, a)
	})
}

func (n *NS) with(name string, f func(netlink.Link) error) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	if err := f(l); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Offloads are the features with which the kernel joins frames or leaves their splitting to the port.
var Offloads = []string{
	"tx-udp-segmentation", "tx-gso-list", "tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-tcp-accecn-segmentation",
	"tx-tcp6-segmentation", "tx-generic-segmentation", "rx-gro", "rx-gro-list", "rx-udp-gro-forwarding",
}

// Offload switches TSO, GSO (of UDP as well) and GRO of an interface on or off.
// On leaves GRO lists and forwarding of joined UDP as they are.
func (n *NS) Offload(name string, on bool) error {
	l, err := n.Link(name)
	if err != nil {
		return err
	}
	return n.Do(func() error {
		conn, err := ethtool.Open()
		if err != nil {
			return err
		}
		defer conn.Close()
		d := conn.Device(l.Attrs().Index)
		have, err := d.Features()
		if err != nil {
			return err
		}
		for _, feature := range Offloads {
			f, ok := have[feature]
			if !ok || f.Active == on || on && (feature == "rx-gro-list" || feature == "rx-udp-gro-forwarding") || f.Fixed {
				continue
			}
			if err := d.SetFeature(feature, on); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}
