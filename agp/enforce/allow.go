package enforce

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Allowed is an entry of the allow list.
type Allowed struct {
	Prefix netip.Prefix
	Why    string // for people: "default gateway", "own address of eth0"
}

// host is the prefix of one address.
func host(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// ErrHost says that a host to protect cannot be read.
var ErrHost = errors.New("not a host name, host:port or URL")

// ParseHost returns the host of "name", "name:port", "[address]:port" or a URL.
func ParseHost(s string) (string, error) {
	name := s
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil {
			return "", fmt.Errorf("%w: %q", ErrHost, s)
		}
		name = u.Hostname()
	} else if h, _, err := net.SplitHostPort(s); err == nil {
		name = h
	}
	if name == "" || strings.ContainsAny(name, "/ \t[]@?#") || len(name) > 253 {
		return "", fmt.Errorf("%w: %q", ErrHost, s)
	}
	if strings.Contains(name, ":") {
		if _, err := netip.ParseAddr(name); err != nil {
			return "", fmt.Errorf("%w: %q", ErrHost, s)
		}
	}
	return name, nil
}

// resolvConfs are where the addresses of name servers are; the second has those
// behind the stub of systemd-resolved.
var resolvConfs = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// LocalAllowed returns what this machine must never lose: the gateways of its
// default routes in all tables, the addresses of all its interfaces and its DNS
// resolvers.
func LocalAllowed() ([]Allowed, error) {
	var list []Allowed
	names := map[int]string{}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			list = append(list, Allowed{host(ip), "own address of " + names[a.LinkIndex]})
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			if family == unix.AF_INET6 && errors.Is(err, unix.EOPNOTSUPP) {
				continue // a kernel without IPv6
			}
			return nil, fmt.Errorf("read routes: %w", err)
		}
		for i := range routes {
			list = append(list, gateways(&routes[i])...)
		}
	}
	for _, path := range resolvConfs {
		servers, err := nameServers(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		list = append(list, servers...)
	}
	return list, nil
}

// gateways returns those of a default route.
func gateways(r *netlink.Route) []Allowed {
	if r.Dst != nil {
		if ones, _ := r.Dst.Mask.Size(); ones > 0 {
			return nil
		}
	}
	var list []Allowed
	add := func(ip net.IP, via netlink.Destination) {
		if v, ok := via.(*netlink.Via); ok && v != nil {
			ip = v.Addr
		}
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsUnspecified() {
			list = append(list, Allowed{host(a), "default gateway"})
		}
	}
	add(r.Gw, r.Via)
	for _, hop := range r.MultiPath {
		add(hop.Gw, hop.Via)
	}
	return list
}

// nameServers reads a resolv.conf.
func nameServers(path string) ([]Allowed, error) {
	f, err := os.Open(path) //nolint:gosec // the system's own file
	if err != nil {
		return nil, fmt.Errorf("read name servers: %w", err)
	}
	defer f.Close()
	var list []Allowed
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			list = append(list, Allowed{host(a), "DNS resolver (" + path + ")"})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read name servers: %s: %w", path, err)
	}
	return list, nil
}
