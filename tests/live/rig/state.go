package rig

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// Programs are the BPF programs that are attached to an interface: XDP, tcx and
// filters of clsact, by where and number.
func Programs(ns *netns.NS, name string) ([]string, error) {
	l, err := ns.Link(name)
	if err != nil {
		return nil, err
	}
	var list []string
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		list = append(list, fmt.Sprintf("xdp %d", x.ProgId))
	}
	err = ns.Do(func() error {
		for where, at := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
			q, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
			if err != nil {
				continue // no tcx in this kernel
			}
			for _, p := range q.Programs {
				list = append(list, fmt.Sprintf("%s %d", where, p.ID))
			}
		}
		for where, parent := range map[string]uint32{"ingress": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				continue // no clsact there
			}
			for _, f := range filters {
				if b, ok := f.(*netlink.BpfFilter); ok {
					list = append(list, fmt.Sprintf("filter %s %d", where, b.Id))
				}
			}
		}
		return nil
	})
	slices.Sort(list)
	return list, err
}

// Settings is what a port must have again afterwards, as text: flags, MTU,
// promiscuous users, queueing disciplines, channels, rings, RSS, features, programs.
func Settings(ns *netns.NS, name string) (string, error) {
	l, err := ns.Link(name)
	if err != nil {
		return "", err
	}
	a := l.Attrs()
	programs, err := Programs(ns, name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "flags %#x mtu %d promiscuous %d allmulti %d\n", a.RawFlags&^unix.IFF_RUNNING&^unix.IFF_LOWER_UP, a.MTU, a.Promisc, a.Allmulti)
	fmt.Fprintf(&b, "programs %v\n", programs)
	err = ns.Do(func() error {
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			return err
		}
		for _, q := range qdiscs {
			fmt.Fprintf(&b, "qdisc %s\n", q.Type())
		}
		conn, err := ethtool.Open()
		if err != nil {
			return err
		}
		defer conn.Close()
		d := conn.Device(a.Index)
		channels, _, err := d.Channels()
		fmt.Fprintf(&b, "channels %+v %v\n", channels, err)
		rings, _, err := d.Rings()
		fmt.Fprintf(&b, "rings %+v %v\n", rings, err)
		rss, err := d.RSS()
		fmt.Fprintf(&b, "rss %+v %v\n", rss, err)
		features, err := d.Features()
		for _, k := range slices.Sorted(maps.Keys(features)) {
			fmt.Fprintf(&b, "%s %v\n", k, features[k].Active)
		}
		return err
	})
	return b.String(), err
}

// QueueDrops is how many frames the kernel has dropped since it started because the queue of
// a CPU, into which a veth end puts them, was full: the second column of softnet_stat.
func QueueDrops() (drops uint64, err error) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		columns := strings.Fields(line)
		if len(columns) < 2 {
			return 0, fmt.Errorf("softnet_stat: %q", line)
		}
		n, err := strconv.ParseUint(columns[1], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("softnet_stat: %w", err)
		}
		drops += n
	}
	return drops, nil
}
