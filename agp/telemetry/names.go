package telemetry

import (
	"net/netip"
	"strconv"
)

// ipProtocols are the IANA keywords, lower case, of the protocols that real
// networks carry. Others are named by their number.
var ipProtocols = map[uint8]string{
	0: "hopopt", 1: "icmp", 2: "igmp", 4: "ipv4", 6: "tcp", 8: "egp", 9: "igp", 17: "udp", 27: "rdp",
	33: "dccp", 41: "ipv6", 43: "ipv6-route", 44: "ipv6-frag", 46: "rsvp", 47: "gre", 50: "esp", 51: "ah",
	58: "ipv6-icmp", 59: "ipv6-nonxt", 60: "ipv6-opts", 88: "eigrp", 89: "ospf", 94: "ipip", 97: "etherip",
	103: "pim", 108: "ipcomp", 112: "vrrp", 115: "l2tp", 132: "sctp", 136: "udplite", 137: "mpls-in-ip",
}

var protocolNames = func() (names [256]string) {
	for i := range names {
		if s, ok := ipProtocols[uint8(i)]; ok {
			names[i] = s
			continue
		}
		names[i] = strconv.Itoa(i)
	}
	return names
}()

// ProtocolName returns the IANA keyword of an IP protocol in lower case
// ("tcp", "udp", "ipv6-icmp"), or its number as text.
func ProtocolName(p uint8) string { return protocolNames[p] }

// HasPorts reports whether an IP protocol carries ports that the parser reads.
func HasPorts(p uint8) bool { return p == 6 || p == 17 || p == 132 }

var endReasons = [...]string{"idle", "active", "tcp_end", "evicted", "flushed"}

// String returns the public name of the reason.
func (e EndReason) String() string {
	if int(e) < len(endReasons) {
		return endReasons[e]
	}
	return "end_reason_" + strconv.Itoa(int(e))
}

// Addr returns an address of a record as a netip.Addr.
func Addr(ipVersion uint8, a *[16]byte) netip.Addr {
	if ipVersion == 4 {
		return netip.AddrFrom4([4]byte(a[:4]))
	}
	return netip.AddrFrom16(*a)
}

// outputNames are the names under which the answer of a model is published, by the
// field that the model fills.
var outputNames = map[string]struct{ score, model string }{
	"app":   {"app_score", "app_model"},
	"class": {"class_score", "class_model"},
}
