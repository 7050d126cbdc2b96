package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Errors of a request. They are wrapped with the prefix and the reason.
var (
	ErrPrefix   = errors.New("not an address or prefix")
	ErrTooWide  = errors.New("prefix is too wide to block")
	ErrReserved = errors.New("never a host to block")
	ErrAllowed  = errors.New("conflicts with the allow list")
	ErrFull     = errors.New("list of rules is full")
	ErrNotFound = errors.New("no such rule")
	ErrTTL      = errors.New("lifetime of a rule is out of range")
	ErrRate     = errors.New("rate is out of range")
	ErrText     = errors.New("text is too long")
	ErrNotReady = errors.New("addresses of this machine are not known yet")
	ErrUnable   = errors.New("the engine captures without kernel programs and can enforce nothing")
)

// Limits of a rule.
const (
	MinTTL  = time.Second
	MaxTTL  = 365 * 24 * time.Hour
	MaxRate = 100_000_000 // packets per second; the engine's clock is too coarse for more
	MaxText = 256         // bytes of reason and of author

	minBits4 = 8  // the widest prefix that can be blocked, IPv4
	minBits6 = 16 // and IPv6
)

// Rule is one entry of the list.
type Rule struct {
	Prefix           netip.Prefix
	PacketsPerSecond uint64 // 0: blocked, else the rate that may pass
	Created, Expires time.Time
	Reason           string
	By               string // who asked for it: "alert", "uid 0"
}

// reserved are addresses of which no host on the network is blocked by its address.
var reserved = []struct {
	prefix netip.Prefix
	name   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// ParsePrefix reads an address or a prefix. IPv4 addresses mapped into IPv6 are
// IPv4. Bits beyond the length are refused: 10.0.0.7/8 is more likely a slip than
// the wish to block 16 million addresses.
func ParsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%w: %q", ErrPrefix, s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%w: %q", ErrPrefix, s)
	}
	p = unmap(p)
	if m := p.Masked(); m != p {
		return netip.Prefix{}, fmt.Errorf("%w: %q has bits beyond its length; %s or %s?", ErrPrefix, s, m, p.Addr())
	}
	return p, nil
}

// unmap returns ::ffff:a.b.c.d/n as IPv4.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// checkPrefix refuses what is blocked under no circumstances.
func checkPrefix(p netip.Prefix) error {
	if !p.IsValid() || p.Masked() != p || p != unmap(p) {
		return fmt.Errorf("%w: %s", ErrPrefix, p)
	}
	for _, r := range reserved {
		if p.Overlaps(r.prefix) && p.Bits() >= r.prefix.Bits() {
			return fmt.Errorf("%w: %s is %s", ErrReserved, p, r.name)
		}
	}
	limit := minBits6
	if p.Addr().Is4() {
		limit = minBits4
	}
	if p.Bits() < limit {
		return fmt.Errorf("%w: %s, the widest is /%d", ErrTooWide, p, limit)
	}
	for _, r := range reserved {
		if p.Overlaps(r.prefix) {
			return fmt.Errorf("%w: %s contains %s (%s)", ErrReserved, p, r.prefix, r.name)
		}
	}
	return nil
}
