package options

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Class is traffic that the steering policy names: a protocol, with or without ports
// of which either end may have one.
type Class struct {
	Protocol         uint8  // IP protocol number
	PortMin, PortMax uint16 // 0, 0: any
}

// ErrClass says that a text names no class.
var ErrClass = errors.New(`not a traffic class, allowed: "tcp", "udp", "icmp", "icmpv6", "sctp" or a protocol number, and for the first two and "sctp" "/port" or "/low-high"`)

var classProtocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}

// MaxClasses is how many classes a policy can have, both lists together.
const MaxClasses = 32

// ParseClass reads "tcp", "udp/53", "tcp/8000-8999", "icmp" or "47".
func ParseClass(text string) (c Class, err error) {
	bad := fmt.Errorf("%w: %q", ErrClass, text)
	name, ports, hasPorts := strings.Cut(text, "/")
	p, ok := classProtocols[name]
	if !ok {
		n, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return c, bad
		}
		p = uint8(n)
	}
	c.Protocol = p
	if !hasPorts {
		return c, nil
	}
	if p != 6 && p != 17 && p != 132 {
		return c, bad
	}
	low, high, isRange := strings.Cut(ports, "-")
	if !isRange {
		high = low
	}
	l, err := strconv.ParseUint(low, 10, 16)
	if err != nil {
		return c, bad
	}
	h, err := strconv.ParseUint(high, 10, 16)
	if err != nil || l == 0 || h < l {
		return c, bad
	}
	c.PortMin, c.PortMax = uint16(l), uint16(h)
	return c, nil
}
