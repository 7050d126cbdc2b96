// Headers of one frame, from the link layer to the transport layer: what agp/packet's
// Parser.Parse does, with the same verdicts and the same numbers for every frame. A frame that
// Go and this read differently is a fault here.
//
// The common packets (Ethernet with at most one VLAN tag, IPv4 without options or IPv6 without
// extension headers, TCP or UDP, no fragment, no tunnel) are read in line, by whole words of the
// frame's head; all others by packet::slow, which is a step machine where Go calls functions,
// because a device has no stack to speak of.
#ifndef AGP_PARSE_CUH
#define AGP_PARSE_CUH

#include "agp.h"
#include "warp.cuh"

// view is a captured frame. On the device head is a multiple of 4.
struct view {
	const uint8_t *head; // its first bytes
	uint32_t have;       // how many of them, <= len
	uint64_t rest;       // device address of all of it
	uint32_t len;
};

namespace packet {

// Verdicts are packet.Verdict.
enum verdict : uint32_t {
	OK,
	EMPTY_FRAME,
	UNKNOWN_LINK_TYPE,
	TRUNCATED_L2,
	TRUNCATED_L3,
	TRUNCATED_L4,
	BAD_L2_HEADER,
	TOO_MANY_HEADERS,
	BAD_IP_VERSION,
	BAD_IP_HEADER,
	BAD_IP_LENGTH,
	NON_IP_ARP,
	NON_IP_LLDP,
	NON_IP_STP,
	NON_IP_CDP,
	NON_IP_LLC,
	NON_IP_ISIS,
	NON_IP_IPX,
	NON_IP_PPP,
	NON_IP_PPPOE,
	NON_IP_EAPOL,
	NON_IP_LACP,
	NON_IP_PTP,
	NON_IP_MACSEC,
	NON_IP_MPLS,
	NON_IP_CTP,
	NON_IP_80211,
	NON_IP_80211_ENCRYPTED,
	NON_IP_OTHER,
	VERDICTS,
};
static_assert((int)VERDICTS <= (int)AGP_VERDICTS, "a ring counts every verdict");

// Link types, https://www.tcpdump.org/linktypes.html.
enum : uint32_t {
	LINK_NULL = 0,
	LINK_ETHERNET = 1,
	LINK_PPP = 9,
	LINK_FDDI = 10,
	LINK_RAW_BSD = 12,
	LINK_RAW_OPENBSD = 14,
	LINK_PPP_HDLC = 50,
	LINK_PPPOE = 51,
	LINK_ATM_RFC1483 = 100,
	LINK_RAW = 101,
	LINK_CISCO_HDLC = 104,
	LINK_IEEE80211 = 105,
	LINK_LOOP = 108,
	LINK_LINUX_SLL = 113,
	LINK_PFLOG = 117,
	LINK_PRISM = 119,
	LINK_RADIOTAP = 127,
	LINK_AVS = 163,
	LINK_PPI = 192,
	LINK_IPV4 = 228,
	LINK_IPV6 = 229,
	LINK_LINUX_SLL2 = 276,
};

// Ethernet types.
enum : uint32_t {
	ET_MIN = 0x0600, // below: an 802.3 length
	ET_IPV4 = 0x0800,
	ET_ARP = 0x0806,
	ET_ERSPAN3 = 0x22eb,
	ET_TEB = 0x6558, // an Ethernet frame
	ET_RARP = 0x8035,
	ET_VLAN = 0x8100,
	ET_IPX = 0x8137,
	ET_IPV6 = 0x86dd,
	ET_SLOW = 0x8809,
	ET_PPP = 0x880b,
	ET_MPLS = 0x8847,
	ET_MPLS_MULTI = 0x8848,
	ET_PPPOE_DISC = 0x8863,
	ET_PPPOE = 0x8864,
	ET_EAPOL = 0x888e,
	ET_QINQ = 0x88a8,
	ET_ERSPAN2 = 0x88be,
	ET_LLDP = 0x88cc,
	ET_MACSEC = 0x88e5,
	ET_PBB = 0x88e7,
	ET_PTP = 0x88f7,
	ET_VNTAG = 0x8926,
	ET_CTP = 0x9000,
	ET_QINQ1 = 0x9100,
	ET_QINQ2 = 0x9200,
	ET_QINQ3 = 0x9300,
};

// IP protocol numbers.
enum : uint32_t {
	HOP_BY_HOP = 0,
	ICMP = 1,
	TCP = 6,
	UDP = 17,
	ROUTING = 43,
	FRAGMENT = 44,
	GRE = 47,
	AH = 51,
	ICMPV6 = 58,
	NO_NEXT = 59,
	DEST_OPTS = 60,
	SCTP = 132,
};

// Destination ports of tunnels over UDP.
enum : uint32_t { PORT_GTPU = 2152, PORT_VXLAN = 4789, PORT_VXLAN_GPE = 4790, PORT_GENEVE = 6081, PORT_VXLAN_LINUX = 8472 };

// Lengths of headers, and bounds on their number.
enum : int32_t {
	ETHER_HEADER = 14,
	IPV4_HEADER = 20,
	IPV6_HEADER = 40,
	TCP_HEADER = 20,
	UDP_HEADER = 8,
	SCTP_HEADER = 12,
	ICMP_HEADER = 8,
	MAX_TAGS = 16,
	MAX_TUNNELS = 4,
	MAX_WIRE = 1 << 30, // no sum of an offset and a length goes beyond 31 bits
};

AGP_DEVICE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
AGP_DEVICE int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }
AGP_DEVICE bool non_ip(uint32_t v) { return v >= NON_IP_ARP && v < VERDICTS; }

// A step names the header that is next, DONE says that the verdict is known.
enum step : uint32_t { DONE, ETHER, KIND, LLC, MPLS, PPPOE, PPP, CISCO_HDLC, WIFI, AVS, RAW, IPV4, IPV6, UPPER };

// reader is a place in a frame, and what has been read up to there.
struct reader {
	view f;
	int32_t off;      // <= f.len; the bytes from here on are not read yet
	int32_t lim;      // where the enclosing layer ends on the wire
	uint32_t kind;    // Ethernet type of what follows, for KIND
	uint32_t decap;   // tunnels to open
	uint32_t tunnels; // opened so far
	int32_t tags;     // tags, labels and bridged frames since the innermost tunnel
	bool padded;      // the 802.11 header is filled up to 4 bytes, for WIFI
	verdict v;
	agp_packet *out;
	agp_packet outer; // what the frame is if the tunnel opened last holds no readable packet
};

AGP_DEVICE step end(reader &r, verdict v) {
	r.v = v;
	return DONE;
}
AGP_DEVICE step go(reader &r, int32_t n, step next) {
	r.off += n;
	return next;
}

// left is how many captured bytes are not read yet; all reads below stay within them.
AGP_DEVICE int32_t left(const reader &r) { return (int32_t)r.f.len - r.off; }
AGP_DEVICE uint32_t byte(const view &f, uint32_t at) { return at < f.have ? f.head[at] : sys::load8(f.rest + at); }
AGP_OUTLINE uint32_t bytes1(view f, uint32_t at) { return byte(f, at); }
AGP_OUTLINE uint32_t bytes2(view f, uint32_t at) { return byte(f, at) | byte(f, at + 1) << 8; }
AGP_OUTLINE uint32_t bytes4(view f, uint32_t at) { return byte(f, at) | byte(f, at + 1) << 8 | byte(f, at + 2) << 16 | byte(f, at + 3) << 24; }
AGP_DEVICE uint32_t u8(const reader &r, int32_t i) { return bytes1(r.f, (uint32_t)(r.off + i)); }
AGP_DEVICE uint32_t le16(const reader &r, int32_t i) { return bytes2(r.f, (uint32_t)(r.off + i)); }
AGP_DEVICE uint32_t be16(const reader &r, int32_t i) { return swap32(le16(r, i)) >> 16; }
AGP_DEVICE uint32_t le32(const reader &r, int32_t i) { return bytes4(r.f, (uint32_t)(r.off + i)); }
AGP_DEVICE uint32_t be32(const reader &r, int32_t i) { return swap32(le32(r, i)); }
AGP_DEVICE uint64_t le64(const reader &r, int32_t i) { return (uint64_t)le32(r, i + 4) << 32 | le32(r, i); }

// clear sets all of a packet that Parse overwrites.
AGP_DEVICE void clear(agp_packet *p, uint32_t wire_len, uint32_t tunnel_id, uint32_t vlan, uint32_t flags) {
	p->src[0] = p->src[1] = p->dst[0] = p->dst[1] = 0;
	p->wire_len = wire_len;
	p->l3_len = p->payload_len = p->payload_off = p->payload_cap = 0;
	p->tunnel_id = tunnel_id;
	p->fragment_id = p->seq = p->ack = 0;
	p->src_port = p->dst_port = p->window = 0;
	p->vlan = (uint16_t)vlan;
	p->ip_version = p->protocol = p->tcp_flags = 0;
	p->flags = (uint8_t)flags;
	p->pad = 0;
}

AGP_DEVICE step family(reader &r, uint32_t family, int32_t n) {
	switch (family) {
	case 2:
		return go(r, n, IPV4);
	case 10: case 23: case 24: case 28: case 30: // differs between systems
		return go(r, n, IPV6);
	case 7:
		return end(r, NON_IP_ISIS);
	}
	return end(r, NON_IP_OTHER);
}

// cooked dispatches on the protocol of a Linux cooked header; below ET_MIN the numbers are
// Linux's own.
AGP_DEVICE step cooked(reader &r, uint32_t proto, uint32_t arphrd, int32_t n) {
	if (arphrd == 824) // netlink
		return end(r, NON_IP_OTHER);
	if (proto >= ET_MIN) {
		r.kind = proto;
		return go(r, n, KIND);
	}
	switch (proto) {
	case 1: // Novell's raw 802.3
		return end(r, NON_IP_IPX);
	case 3:
		return go(r, n, ETHER);
	case 4:
		return go(r, n, LLC);
	case 7: case 8:
		return go(r, n, PPP);
	}
	return end(r, NON_IP_OTHER);
}

AGP_DEVICE step pflog(reader &r) {
	if (left(r) < 2)
		return end(r, TRUNCATED_L2);
	int32_t n = ((int32_t)u8(r, 0) + 3) & ~3; // the length leaves the padding out
	if (n < 48)
		return end(r, BAD_L2_HEADER);
	if (left(r) < n)
		return end(r, TRUNCATED_L2);
	return family(r, u8(r, 1), n);
}

AGP_DEVICE step prism(reader &r) {
	if (left(r) < 8)
		return end(r, TRUNCATED_L2);
	if ((be32(r, 0) & ~0xfffu) == 0x80211000) // an AVS header under Prism's number
		return AVS;
	uint32_t n = le32(r, 4);
	if (n < 24)
		return end(r, BAD_L2_HEADER);
	if (n > (uint32_t)left(r))
		return end(r, TRUNCATED_L2);
	return go(r, (int32_t)n, WIFI);
}

AGP_DEVICE step avs(reader &r) {
	if (left(r) < 8)
		return end(r, TRUNCATED_L2);
	uint32_t n = be32(r, 4);
	if (n < 8)
		return end(r, BAD_L2_HEADER);
	if (n > (uint32_t)left(r))
		return end(r, TRUNCATED_L2);
	return go(r, (int32_t)n, WIFI);
}

AGP_DEVICE step radiotap(reader &r) {
	if (left(r) < 8)
		return end(r, TRUNCATED_L2);
	int32_t n = (int32_t)le16(r, 2);
	if (n < 8)
		return end(r, BAD_L2_HEADER);
	if (left(r) < n)
		return end(r, TRUNCATED_L2);
	// The flags say whether the 802.11 header is padded. They come after all presence words
	// and an 8-byte aligned timer.
	uint32_t present = le32(r, 4);
	int32_t at = 8;
	for (uint32_t word = present; word & 1u << 31; at += 4) {
		if (at + 4 > n)
			return end(r, BAD_L2_HEADER);
		word = le32(r, at);
	}
	if (present & 2) {
		if (present & 1)
			at = ((at + 7) & ~7) + 8;
		if (at >= n)
			return end(r, BAD_L2_HEADER);
		r.padded = u8(r, at) & 0x20;
	}
	return go(r, n, WIFI);
}

// start reads what only the start of a frame has.
AGP_DEVICE step start(reader &r, uint32_t link) {
	if (link == LINK_PPI) {
		if (left(r) < 8)
			return end(r, TRUNCATED_L2);
		int32_t n = (int32_t)le16(r, 2);
		if (u8(r, 0) != 0 || n < 8)
			return end(r, BAD_L2_HEADER);
		if (left(r) < n)
			return end(r, TRUNCATED_L2);
		link = le32(r, 4);
		if (link == LINK_PPI)
			return end(r, BAD_L2_HEADER);
		r.off += n;
	}
	switch (link) {
	case LINK_ETHERNET:
		return ETHER;
	case LINK_RAW: case LINK_RAW_BSD: case LINK_RAW_OPENBSD:
		return RAW;
	case LINK_IPV4:
		return IPV4;
	case LINK_IPV6:
		return IPV6;
	case LINK_LINUX_SLL:
		if (left(r) < 16)
			return end(r, TRUNCATED_L2);
		return cooked(r, be16(r, 14), be16(r, 2), 16);
	case LINK_LINUX_SLL2:
		if (left(r) < 20)
			return end(r, TRUNCATED_L2);
		return cooked(r, be16(r, 0), be16(r, 8), 20);
	case LINK_NULL: case LINK_LOOP: {
		if (left(r) < 4)
			return end(r, TRUNCATED_L2);
		// The family is a small number in an unknown byte order.
		uint32_t number = le32(r, 0);
		return family(r, number > 0xffff ? swap32(number) : number, 4);
	}
	case LINK_PPP: case LINK_PPP_HDLC:
		// libpcap's PPP also holds frames of a port that speaks Cisco HDLC.
		if (left(r) >= 4 && (u8(r, 0) == 0x0f || u8(r, 0) == 0x8f) && u8(r, 1) == 0)
			return CISCO_HDLC;
		return PPP;
	case LINK_CISCO_HDLC:
		return CISCO_HDLC;
	case LINK_PPPOE:
		return PPPOE;
	case LINK_FDDI:
		if (left(r) < 13)
			return end(r, TRUNCATED_L2);
		if ((u8(r, 0) & 0xf0) != 0x50) // not an LLC frame: token, station management
			return end(r, NON_IP_OTHER);
		return go(r, 13, LLC);
	case LINK_ATM_RFC1483:
		return LLC;
	case LINK_PFLOG:
		return pflog(r);
	case LINK_IEEE80211:
		return WIFI;
	case LINK_RADIOTAP:
		return radiotap(r);
	case LINK_PRISM:
		return prism(r);
	case LINK_AVS:
		return AVS;
	}
	return end(r, UNKNOWN_LINK_TYPE);
}

AGP_DEVICE step ether(reader &r) {
	if (left(r) < ETHER_HEADER)
		return end(r, TRUNCATED_L2);
	r.kind = be16(r, 12);
	return go(r, ETHER_HEADER, r.kind == ET_IPV4 ? IPV4 : r.kind == ET_IPV6 ? IPV6 : KIND);
}

// kind dispatches on an Ethernet type (or, below ET_MIN, an 802.3 length).
AGP_DEVICE step kind(reader &r) {
	uint32_t type = r.kind;
	for (; r.tags < MAX_TAGS; r.tags++) {
		int32_t n, at; // length of the tag, and where the next type is in it
		switch (type) {
		case ET_IPV4:
			return IPV4;
		case ET_IPV6:
			return IPV6;
		case ET_MPLS: case ET_MPLS_MULTI:
			return MPLS;
		case ET_PPPOE:
			return PPPOE;
		case ET_VLAN: case ET_QINQ: case ET_QINQ1: case ET_QINQ2: case ET_QINQ3:
			n = 4, at = 2;
			break;
		case ET_VNTAG:
			n = 6, at = 4;
			break;
		case ET_PBB: // 4 bytes of service tag, then an Ethernet frame
			n = 4 + ETHER_HEADER, at = 4 + 12;
			break;
		case ET_TEB:
			n = ETHER_HEADER, at = 12;
			break;
		case ET_ARP: case ET_RARP:
			return end(r, NON_IP_ARP);
		case ET_LLDP:
			return end(r, NON_IP_LLDP);
		case ET_IPX:
			return end(r, NON_IP_IPX);
		case ET_SLOW:
			return end(r, NON_IP_LACP);
		case ET_PPPOE_DISC:
			return end(r, NON_IP_PPPOE);
		case ET_EAPOL:
			return end(r, NON_IP_EAPOL);
		case ET_MACSEC:
			return end(r, NON_IP_MACSEC);
		case ET_PTP:
			return end(r, NON_IP_PTP);
		case ET_CTP:
			return end(r, NON_IP_CTP);
		default:
			r.tags++; // bridged frames nest too
			return type < ET_MIN ? LLC : end(r, NON_IP_OTHER);
		}
		if (left(r) < n)
			return end(r, TRUNCATED_L2);
		if (at == 2 && r.out->vlan == 0) // a priority tag (id 0) does not hide the id behind it
			r.out->vlan = be16(r, 0) & 0xfff;
		type = be16(r, at);
		r.off += n;
	}
	return end(r, TOO_MANY_HEADERS);
}

AGP_DEVICE step snap(reader &r) {
	if (left(r) < 5)
		return end(r, TRUNCATED_L2);
	uint32_t oui = u8(r, 0) << 16 | be16(r, 1), pid = be16(r, 3);
	switch (oui) {
	case 0: case 0x0000f8: // Ethernet types; 0000f8 is 802.1H bridging
		if (pid < ET_MIN)
			break;
		r.kind = pid;
		return go(r, 5, KIND);
	case 0x00000c: // Cisco
		if (pid == 0x2000)
			return end(r, NON_IP_CDP);
		if (pid == 0x010b)
			return end(r, NON_IP_STP);
		break;
	case 0x0080c2: // bridged frames (RFC 2684); 2 bytes of padding before Ethernet
		if (pid == 0x0001 || pid == 0x0007)
			return left(r) < 7 ? end(r, TRUNCATED_L2) : go(r, 7, ETHER);
		if (pid == 0x000d || pid == 0x000e)
			return end(r, NON_IP_STP);
		break;
	}
	return end(r, NON_IP_LLC);
}

// llc reads an 802.2 header and, if it is SNAP, what follows.
AGP_DEVICE step llc(reader &r) {
	if (left(r) < 3)
		return end(r, TRUNCATED_L2);
	uint32_t dsap = u8(r, 0), ssap = u8(r, 1), control = u8(r, 2);
	if (dsap == 0xaa && ssap == 0xaa && control == 0x03) {
		r.off += 3;
		return snap(r);
	}
	if (dsap == 0x42 && ssap == 0x42)
		return end(r, NON_IP_STP);
	if (dsap == 0xfe && ssap == 0xfe) {
		if (left(r) >= 4 && u8(r, 3) == 0xcc) // routed IPv4 behind an OSI network-layer id (RFC 1483)
			return go(r, 4, IPV4);
		return end(r, NON_IP_ISIS);
	}
	if (dsap == 0x06 && ssap == 0x06 && control == 0x03) // IP's own service access point
		return go(r, 3, IPV4);
	if (dsap == 0xe0 || (dsap == 0xff && ssap == 0xff))
		return end(r, NON_IP_IPX);
	return end(r, NON_IP_LLC);
}

// looks_ether reports whether an Ethernet frame with a type that matters may be n bytes on.
AGP_DEVICE bool looks_ether(const reader &r, int32_t n) {
	if (left(r) < n + ETHER_HEADER)
		return false;
	switch (be16(r, n + 12)) {
	case ET_IPV4: case ET_IPV6: case ET_ARP: case ET_VLAN: case ET_QINQ: case ET_MPLS: case ET_PPPOE: case ET_LLDP:
		return true;
	}
	return false;
}

// mpls reads a label stack. What it carries is not written in it: the reserved labels and the
// first nibble tell (RFC 4928), Ethernet by its own type.
AGP_DEVICE step mpls(reader &r) {
	uint32_t entry = 0;
	for (; r.tags < MAX_TAGS && !(entry & 0x100); r.tags++) {
		if (left(r) < 4)
			return end(r, TRUNCATED_L2);
		entry = be32(r, 0);
		r.off += 4;
	}
	if (!(entry & 0x100))
		return end(r, TOO_MANY_HEADERS);
	if (entry >> 12 == 0)
		return IPV4;
	if (entry >> 12 == 2)
		return IPV6;
	if (left(r) == 0)
		return end(r, TRUNCATED_L2);
	bool is_ether = looks_ether(r, 0);
	uint32_t first = u8(r, 0);
	switch (first >> 4) {
	case 4:
		// A MAC address may begin with 4 or 6 too; then the IP length is most likely absurd.
		if ((first & 0x0f) >= 5 && !(is_ether && (int32_t)be16(r, 2) > r.lim - r.off))
			return IPV4;
		break;
	case 6:
		if (!(is_ether && IPV6_HEADER + (int32_t)be16(r, 4) > r.lim - r.off))
			return IPV6;
		break;
	case 0: // control word of a pseudo-wire
		if (looks_ether(r, 4))
			return go(r, 4, ETHER);
		break;
	}
	return is_ether ? ETHER : end(r, NON_IP_MPLS);
}

AGP_DEVICE step pppoe(reader &r) {
	if (left(r) < 6)
		return end(r, TRUNCATED_L2);
	if (u8(r, 0) != 0x11)
		return end(r, BAD_L2_HEADER);
	if (u8(r, 1) != 0) // a discovery code
		return end(r, NON_IP_PPPOE);
	return go(r, 6, PPP);
}

// ppp reads PPP with or without address and control, protocol field compressed or not.
AGP_DEVICE step ppp(reader &r) {
	if (left(r) >= 2 && u8(r, 0) == 0xff && u8(r, 1) == 0x03)
		r.off += 2;
	if (left(r) < 1)
		return end(r, TRUNCATED_L2);
	uint32_t proto = u8(r, 0);
	if (!(proto & 1)) {
		if (left(r) < 2)
			return end(r, TRUNCATED_L2);
		proto = be16(r, 0);
		r.off++;
	}
	r.off++;
	switch (proto) {
	case 0x0021:
		return IPV4;
	case 0x0057:
		return IPV6;
	case 0x0281: case 0x0283:
		return MPLS;
	}
	return end(r, NON_IP_PPP);
}

AGP_DEVICE step cisco_hdlc(reader &r) {
	if (left(r) < 4)
		return end(r, TRUNCATED_L2);
	r.kind = be16(r, 2);
	if (r.kind < ET_MIN)
		return end(r, NON_IP_OTHER);
	return go(r, 4, KIND);
}

// wifi reads an 802.11 data frame. Of an aggregate (A-MSDU) the first packet is read.
AGP_DEVICE step wifi(reader &r) {
	if (left(r) < 2)
		return end(r, TRUNCATED_L2);
	uint32_t control = u8(r, 0), flags = u8(r, 1);
	if (control & 3) // protocol version
		return end(r, BAD_L2_HEADER);
	if ((control & 0x4c) != 0x08) // not of type data, or data without data
		return end(r, NON_IP_80211);
	if (flags & 0x40)
		return end(r, NON_IP_80211_ENCRYPTED);
	int32_t n = (flags & 3) == 3 ? 30 : 24; // with a fourth address between access points
	bool aggregate = false;
	if (control & 0x80) { // QoS
		if (left(r) < n + 2)
			return end(r, TRUNCATED_L2);
		aggregate = u8(r, n) & 0x80;
		n += flags & 0x80 ? 6 : 2;
	}
	if (r.padded)
		n = (n + 3) & ~3;
	if (aggregate)
		n += 14; // destination, source, length of the first packet
	if (left(r) < n)
		return end(r, TRUNCATED_L2);
	if (u8(r, 22) & 0x0f) // a later fragment of an 802.11 frame: no header of its own
		return end(r, NON_IP_80211);
	return go(r, n, LLC);
}

// raw is IP of the version that its first nibble gives.
AGP_DEVICE step raw(reader &r) {
	if (left(r) == 0)
		return end(r, TRUNCATED_L3);
	switch (u8(r, 0) >> 4) {
	case 4:
		return IPV4;
	case 6:
		return IPV6;
	}
	return end(r, BAD_IP_VERSION);
}

// after notes that the payload starts n bytes further on and ends with the IP packet, as far as
// the packet and the capture reach.
AGP_DEVICE void after(const reader &r, int32_t n) {
	int32_t from = least(r.off + n, r.lim);
	int32_t at = least(from, (int32_t)r.f.len); // the capture may end inside the transport header
	r.out->payload_len = (uint32_t)(r.lim - from);
	r.out->payload_off = (uint32_t)at;
	r.out->payload_cap = (uint32_t)least(r.lim - from, (int32_t)r.f.len - at);
}

AGP_DEVICE step later(reader &r) {
	r.out->flags |= AGP_FRAGMENT_LATER;
	after(r, 0);
	return end(r, OK);
}

AGP_DEVICE step ipv4(reader &r) {
	if (left(r) > 0 && u8(r, 0) >> 4 != 4)
		return end(r, BAD_IP_VERSION);
	if (left(r) < IPV4_HEADER)
		return end(r, TRUNCATED_L3);
	int32_t hdr = (int32_t)(u8(r, 0) & 0x0f) * 4;
	if (hdr < IPV4_HEADER)
		return end(r, BAD_IP_HEADER);
	int32_t wire = r.lim - r.off, l3 = (int32_t)be16(r, 2);
	if (l3 == 0) { // the capturing host left segmentation to its network card
		l3 = wire;
	} else if (l3 < hdr) {
		return end(r, BAD_IP_LENGTH);
	} else if (l3 > wire) {
		l3 = wire;
		r.out->flags |= AGP_BAD_LENGTH;
	}
	if (l3 < hdr)
		return end(r, BAD_IP_HEADER);
	if (left(r) < hdr)
		return end(r, TRUNCATED_L3);
	r.out->ip_version = 4;
	r.out->l3_len = (uint32_t)l3;
	r.out->protocol = (uint8_t)u8(r, 9);
	r.out->src[0] = le32(r, 12);
	r.out->dst[0] = le32(r, 16);
	r.out->fragment_id = be16(r, 4);
	uint32_t fragment = be16(r, 6);
	r.lim = r.off + l3;
	r.off += hdr;
	if (fragment & 0x3fff) {
		r.out->flags |= AGP_FRAGMENT;
		if (fragment & 0x1fff)
			return later(r);
	}
	return UPPER;
}

// cut says why an extension header of n bytes is not all there: the packet is shorter than it
// claims, or the capture was cut.
AGP_DEVICE step cut(reader &r, int32_t n) { return end(r, r.off + n > r.lim ? BAD_IP_HEADER : TRUNCATED_L3); }

AGP_DEVICE step ipv6(reader &r) {
	if (left(r) > 0 && u8(r, 0) >> 4 != 6)
		return end(r, BAD_IP_VERSION);
	if (left(r) < IPV6_HEADER)
		return end(r, TRUNCATED_L3);
	int32_t wire = r.lim - r.off;
	if (wire < IPV6_HEADER)
		return end(r, BAD_IP_HEADER);
	int32_t l3 = IPV6_HEADER + (int32_t)be16(r, 4);
	uint32_t next = u8(r, 6);
	if (l3 == IPV6_HEADER && next != NO_NEXT) { // a jumbogram, or segmentation left to the network card
		l3 = wire;
	} else if (l3 > wire) {
		l3 = wire;
		r.out->flags |= AGP_BAD_LENGTH;
	}
	r.out->ip_version = 6;
	r.out->l3_len = (uint32_t)l3;
	r.out->src[0] = le64(r, 8);
	r.out->src[1] = le64(r, 16);
	r.out->dst[0] = le64(r, 24);
	r.out->dst[1] = le64(r, 32);
	r.lim = r.off + l3;
	r.off += IPV6_HEADER;
	for (int i = 0; i < MAX_TAGS; i++) {
		int32_t n;
		r.out->protocol = (uint8_t)next;
		switch (next) {
		case HOP_BY_HOP: case ROUTING: case DEST_OPTS:
			if (left(r) < 2)
				return cut(r, 8);
			n = ((int32_t)u8(r, 1) + 1) * 8;
			break;
		case AH:
			if (left(r) < 2)
				return cut(r, 8);
			n = ((int32_t)u8(r, 1) + 2) * 4;
			break;
		case FRAGMENT:
			n = 8;
			break;
		default:
			return UPPER;
		}
		if (r.off + n > r.lim || left(r) < n)
			return cut(r, n);
		if (next == FRAGMENT) {
			uint32_t fragment = be16(r, 2);
			if (fragment & ~6u) { // else both offset and more-fragments are 0: a whole packet (RFC 6946)
				r.out->fragment_id = be32(r, 4);
				r.out->flags |= AGP_FRAGMENT;
				if (fragment & ~7u) {
					r.out->protocol = (uint8_t)u8(r, 0);
					r.off += n;
					return later(r);
				}
			}
		}
		next = u8(r, 0);
		r.off += n;
	}
	return end(r, TOO_MANY_HEADERS);
}

// request_of is the type of the request that an ICMP message of this type is or answers, -1 if
// it is or answers none. An answer is the other of the two.
AGP_DEVICE int32_t request_of(uint32_t protocol, uint32_t type) {
	if (protocol == ICMPV6) {
		switch (type) {
		case 128: case 129: // echo
		case 160: case 161: // extended echo
			return (int32_t)(type & ~1u);
		}
		return -1;
	}
	switch (type) {
	case 0: // echo
		return 8;
	case 8: case 13: case 15: case 17: case 37: case 42: // echo, timestamp, information, address mask, domain name, extended echo
		return (int32_t)type;
	case 14: case 16: case 18: case 38: case 43:
		return (int32_t)type - 1;
	}
	return -1;
}

// icmp gives a message the two numbers that stand for its ports, see packet.ICMPPorts.
AGP_DEVICE step icmp(reader &r) {
	int32_t l4 = r.lim - r.off;
	if (left(r) < 2 || l4 < 4)
		return end(r, TRUNCATED_L4);
	uint32_t protocol = r.out->protocol, type = u8(r, 0), code = u8(r, 1);
	int32_t request = request_of(protocol, type);
	uint32_t src = 0, dst = type << 8 | code;
	if (request >= 0) {
		if (left(r) < 6 || l4 < 6)
			return end(r, TRUNCATED_L4);
		uint32_t id = be16(r, 4);
		src = id;
		if ((uint32_t)request != type) {
			if (type == 43 || type == 161) // the code of an extended echo reply is its result, that of the request is 0
				code = 0;
			src = (uint32_t)request << 8 | code;
			dst = id;
		}
	}
	r.out->src_port = (uint16_t)src;
	r.out->dst_port = (uint16_t)dst;
	after(r, ICMP_HEADER);
	return end(r, OK);
}

// open goes on with the packet n bytes further on, inside the one that out describes. DONE says
// that it stays closed.
AGP_DEVICE step open(reader &r, uint32_t kind, uint32_t id, int32_t n) {
	if (r.tunnels >= MAX_TUNNELS)
		return DONE;
	r.tunnels++;
	r.tags = 0;
	r.outer = *r.out;
	clear(r.out, r.outer.wire_len, id, r.outer.vlan, r.outer.flags | AGP_TUNNEL);
	r.kind = kind;
	return go(r, n, kind == ET_PPP ? PPP : KIND);
}

AGP_DEVICE step gtpu(reader &r) {
	uint32_t first = u8(r, 0);
	if ((first & 0xf0) != 0x30 || u8(r, 1) != 0xff) // version 1, G-PDU
		return DONE;
	uint32_t teid = be32(r, 4);
	int32_t n = 8;
	if (first & 7) { // sequence number, N-PDU number, type of the first extension
		if (left(r) < 12)
			return DONE;
		n = 12;
		uint32_t next = first & 4 ? u8(r, 11) : 0;
		for (int i = 0; next != 0; i++) {
			if (i == MAX_TAGS || left(r) <= n || u8(r, n) == 0)
				return DONE;
			n += (int32_t)u8(r, n) * 4;
			if (left(r) < n)
				return DONE;
			next = u8(r, n - 1);
		}
	}
	if (left(r) <= n)
		return DONE;
	switch (u8(r, n) >> 4) {
	case 4:
		return open(r, ET_IPV4, teid, n);
	case 6:
		return open(r, ET_IPV6, teid, n);
	}
	return DONE;
}

// udp_tunnel opens the tunnel whose header is next, if there is one.
AGP_DEVICE step udp_tunnel(reader &r) {
	if (left(r) < 8 || r.lim - r.off < 8)
		return DONE;
	uint32_t port = r.out->dst_port, first = u8(r, 0);
	switch (port) {
	case PORT_VXLAN: case PORT_VXLAN_LINUX: case PORT_VXLAN_GPE: {
		if (!(r.decap & AGP_VXLAN) || !(first & 0x08)) // no network identifier
			return DONE;
		uint32_t kind = ET_TEB;
		if (port == PORT_VXLAN_GPE && first & 0x04) {
			switch (u8(r, 3)) {
			case 1:
				kind = ET_IPV4;
				break;
			case 2:
				kind = ET_IPV6;
				break;
			case 3:
				break;
			default:
				return DONE;
			}
		}
		return open(r, kind, be32(r, 4) >> 8, 8);
	}
	case PORT_GENEVE: {
		int32_t n = 8 + (int32_t)(first & 0x3f) * 4;
		if (!(r.decap & AGP_GENEVE) || first >> 6 != 0 || left(r) < n)
			return DONE;
		return open(r, be16(r, 2), be32(r, 4) >> 8, n);
	}
	case PORT_GTPU:
		return r.decap & AGP_GTPU ? gtpu(r) : DONE;
	}
	return DONE;
}

// gre_tunnel opens the GRE tunnel whose header is next.
AGP_DEVICE step gre_tunnel(reader &r) {
	if (left(r) < 4)
		return DONE;
	const uint32_t checksum = 0x8000, routing = 0x4000, key = 0x2000, seq = 0x1000, ack = 0x0080;
	uint32_t flags = be16(r, 0), kind = be16(r, 2), id = 0;
	int32_t n = 4;
	if (flags & routing) // deprecated source routes
		return DONE;
	switch (flags & 7) {
	case 0:
		n += flags & checksum ? 4 : 0;
		if (flags & key) {
			if (left(r) < n + 4)
				return DONE;
			id = be32(r, n);
			n += 4;
		}
		n += flags & seq ? 4 : 0;
		break;
	case 1: // PPTP
		if (kind != ET_PPP || left(r) < 8)
			return DONE;
		id = be16(r, 6); // call id
		n += 4;
		n += flags & seq ? 4 : 0;
		n += flags & ack ? 4 : 0;
		break;
	default:
		return DONE;
	}
	// A keep-alive or a bare acknowledgement carries nothing.
	if (left(r) < n || r.lim - r.off <= n)
		return DONE;
	int32_t span = 0; // length of an ERSPAN header
	if (kind == ET_ERSPAN2) {
		kind = ET_TEB;
		span = flags & seq ? 8 : 0; // type I has neither sequence number nor header
	} else if (kind == ET_ERSPAN3) {
		kind = ET_TEB;
		span = 12;
	}
	if (span > 0) {
		if (left(r) < n + span)
			return DONE;
		id = be16(r, n + 2) & 0x3ff;
		if (span == 12 && u8(r, n + 11) & 1) { // a sub-header
			span += 8;
			if (left(r) < n + span)
				return DONE;
		}
	}
	return open(r, kind, id, n + span);
}

// tcp_cut handles a TCP header that is not all there: a first fragment that splits it still
// names its flow. Anything else would be a packet without flags, which is worse than one that is
// counted as dropped.
AGP_DEVICE step tcp_cut(reader &r) {
	if (!(r.out->flags & AGP_FRAGMENT) || left(r) < 4 || r.lim - r.off < 4)
		return end(r, TRUNCATED_L4);
	r.out->src_port = (uint16_t)be16(r, 0);
	r.out->dst_port = (uint16_t)be16(r, 2);
	after(r, TCP_HEADER);
	return end(r, OK);
}

// upper reads the upper layer, whose protocol out already names.
AGP_DEVICE step upper(reader &r) {
	agp_packet *out = r.out;
	int32_t l4 = r.lim - r.off; // bytes of the IP packet that were on the wire
	bool fragment = out->flags & AGP_FRAGMENT;
	step next = DONE;
	switch (out->protocol) {
	case TCP: {
		if (left(r) < TCP_HEADER || l4 < TCP_HEADER)
			return tcp_cut(r);
		out->src_port = (uint16_t)be16(r, 0);
		out->dst_port = (uint16_t)be16(r, 2);
		out->seq = be32(r, 4);
		out->ack = be32(r, 8);
		out->tcp_flags = (uint8_t)u8(r, 13);
		out->window = (uint16_t)be16(r, 14);
		int32_t hdr = (int32_t)(u8(r, 12) >> 4) * 4;
		if (hdr < TCP_HEADER || hdr > l4) {
			out->flags |= AGP_BAD_LENGTH;
			hdr = most(TCP_HEADER, least(hdr, l4));
		}
		after(r, hdr);
		break;
	}
	case UDP:
		if (left(r) < 4 || l4 < UDP_HEADER)
			return end(r, TRUNCATED_L4);
		out->src_port = (uint16_t)be16(r, 0);
		out->dst_port = (uint16_t)be16(r, 2);
		if (left(r) >= 6 && !fragment) {
			// In a fragment the length is that of the whole datagram. 0 stands for a length
			// that does not fit, or segmentation left to the network card.
			int32_t n = (int32_t)be16(r, 4);
			if (n != 0 && (n < UDP_HEADER || n > l4))
				out->flags |= AGP_BAD_LENGTH;
			else if (n != 0)
				r.lim = r.off + n;
		}
		after(r, UDP_HEADER);
		if (r.decap && !fragment && left(r) >= UDP_HEADER) {
			r.off += UDP_HEADER;
			next = udp_tunnel(r);
		}
		break;
	case ICMP: case ICMPV6:
		return icmp(r);
	case SCTP:
		if (left(r) < 4 || l4 < SCTP_HEADER)
			return end(r, TRUNCATED_L4);
		out->src_port = (uint16_t)be16(r, 0);
		out->dst_port = (uint16_t)be16(r, 2);
		after(r, SCTP_HEADER);
		break;
	case GRE:
		after(r, 0);
		if (r.decap & AGP_GRE && !fragment)
			next = gre_tunnel(r);
		break;
	default:
		after(r, 0);
	}
	return next == DONE ? end(r, OK) : next;
}

// slow reads any frame.
AGP_OUTLINE uint8_t slow(uint32_t link, view f, uint32_t wire_len, uint32_t decap, agp_packet *out) {
	uint32_t flags = wire_len > f.len ? AGP_TRUNCATED : 0;
	clear(out, wire_len, 0, 0, flags);
	if (f.len == 0)
		return EMPTY_FRAME;
	if (f.len > MAX_WIRE)
		f.len = MAX_WIRE;
	reader r;
	r.f = f;
	r.off = 0;
	r.lim = wire_len < MAX_WIRE ? (int32_t)wire_len : (int32_t)MAX_WIRE;
	r.kind = 0;
	r.decap = decap;
	r.tunnels = 0;
	r.tags = 0;
	r.padded = false;
	r.out = out;
	step next = start(r, link);
	while (next != DONE) {
		switch (next) {
		case ETHER:
			next = ether(r);
			break;
		case KIND:
			next = kind(r);
			break;
		case LLC:
			next = llc(r);
			break;
		case MPLS:
			next = mpls(r);
			break;
		case PPPOE:
			next = pppoe(r);
			break;
		case PPP:
			next = ppp(r);
			break;
		case CISCO_HDLC:
			next = cisco_hdlc(r);
			break;
		case WIFI:
			next = wifi(r);
			break;
		case AVS:
			next = avs(r);
			break;
		case RAW:
			next = raw(r);
			break;
		case IPV4:
			next = ipv4(r);
			break;
		case IPV6:
			next = ipv6(r);
			break;
		default:
			next = upper(r);
		}
	}
	if (r.v == OK)
		return OK;
	if (r.tunnels > 0 && !non_ip(r.v)) {
		// The port or protocol number was no more than a guess; the outer packet is a good flow of its own.
		*out = r.outer;
		return OK;
	}
	clear(out, wire_len, 0, 0, flags);
	return r.v;
}

// word is 4 bytes of a frame's head, the first in the lowest bits.
AGP_DEVICE uint32_t word(const uint8_t *p) {
#ifdef __CUDACC__
	return *(const uint32_t *)p;
#else
	uint32_t w; // a host's frame may be anywhere
	__builtin_memcpy(&w, p, sizeof w);
	return w;
#endif
}
// Numbers in network order: in the lower half of a word, in its upper half, and across two.
AGP_DEVICE uint32_t low16(uint32_t w) { return swap32(w) >> 16; }
AGP_DEVICE uint32_t high16(uint32_t w) { return swap32(w) & 0xffff; }
AGP_DEVICE uint32_t across(uint32_t w, uint32_t next) { return w >> 16 | next << 16; }

AGP_DEVICE bool tunnel_port(uint32_t port) {
	return port == PORT_VXLAN || port == PORT_VXLAN_GPE || port == PORT_VXLAN_LINUX || port == PORT_GENEVE || port == PORT_GTPU;
}

// quick reads a common packet and returns true, or leaves out as it is and returns false.
// Everything from the Ethernet type on is at 2 modulo 4.
AGP_DEVICE bool quick(const view &f, uint32_t wire_len, uint32_t decap, agp_packet *out) {
	if (f.have < ETHER_HEADER + IPV4_HEADER + UDP_HEADER)
		return false;
	uint32_t l3_off = ETHER_HEADER, vlan = 0;
	uint32_t w0 = word(f.head + 12); // Ethernet type, and first bytes of the IP header
	if ((w0 & 0xffff) == 0x0081) {
		vlan = high16(w0) & 0xfff;
		l3_off += 4;
		w0 = word(f.head + 16);
	}
	const uint8_t *at = f.head + (l3_off - 2);
	uint32_t w1 = word(at + 4), w2 = word(at + 8);
	int32_t wire = (wire_len < MAX_WIRE ? (int32_t)wire_len : (int32_t)MAX_WIRE) - (int32_t)l3_off;
	int32_t hdr, l3;
	uint32_t protocol, version, id = 0;
	uint64_t src0, src1 = 0, dst0, dst1 = 0;
	if ((w0 & 0xffffff) == 0x450008) {
		if (w2 & 0xff3f || f.have < l3_off + IPV4_HEADER + UDP_HEADER) // a fragment
			return false;
		uint32_t w3 = word(at + 12), w4 = word(at + 16), w5 = word(at + 20);
		version = 4;
		hdr = IPV4_HEADER;
		l3 = (int32_t)low16(w1);
		l3 = l3 == 0 ? wire : l3;
		id = high16(w1);
		protocol = w2 >> 24;
		src0 = across(w3, w4);
		dst0 = across(w4, w5);
	} else if ((w0 & 0xf0ffff) == 0x60dd86) {
		if (f.have < l3_off + IPV6_HEADER + UDP_HEADER)
			return false;
		uint32_t w3 = word(at + 12), w4 = word(at + 16), w5 = word(at + 20), w6 = word(at + 24), w7 = word(at + 28);
		uint32_t w8 = word(at + 32), w9 = word(at + 36), w10 = word(at + 40);
		version = 6;
		hdr = IPV6_HEADER;
		l3 = (int32_t)high16(w1);
		l3 = l3 == 0 ? wire : l3 + IPV6_HEADER;
		protocol = w2 & 0xff;
		src0 = (uint64_t)across(w3, w4) << 32 | across(w2, w3);
		src1 = (uint64_t)across(w5, w6) << 32 | across(w4, w5);
		dst0 = (uint64_t)across(w7, w8) << 32 | across(w6, w7);
		dst1 = (uint64_t)across(w9, w10) << 32 | across(w8, w9);
	} else {
		return false;
	}
	uint32_t flags = wire_len > f.len ? AGP_TRUNCATED : 0;
	if (l3 > wire) {
		l3 = wire;
		flags |= AGP_BAD_LENGTH;
	}
	at += hdr;
	uint32_t l4_off = l3_off + (uint32_t)hdr;
	int32_t l4 = l3 - hdr; // negative if the length lies
	uint32_t t0 = word(at), t1 = word(at + 4), seq = 0, ack = 0, tcp_flags = 0, window = 0, src_port = high16(t0), dst_port = low16(t1);
	int32_t head;
	if (protocol == TCP) {
		if (l4 < TCP_HEADER || f.have < l4_off + TCP_HEADER)
			return false;
		uint32_t t2 = word(at + 8), t3 = word(at + 12), t4 = word(at + 16);
		seq = swap32(across(t1, t2));
		ack = swap32(across(t2, t3));
		tcp_flags = t3 >> 24;
		window = low16(t4);
		head = (int32_t)(t3 >> 18 & 0x3c);
		if (head < TCP_HEADER || head > l4) {
			flags |= AGP_BAD_LENGTH;
			head = most(TCP_HEADER, least(head, l4));
		}
	} else if (protocol == UDP) {
		if (l4 < UDP_HEADER || (decap && tunnel_port(dst_port)))
			return false;
		head = UDP_HEADER;
		int32_t n = (int32_t)high16(t1);
		if (n != 0) {
			bool bad = n < UDP_HEADER || n > l4;
			flags |= bad ? AGP_BAD_LENGTH : 0;
			l4 = bad ? l4 : n;
		}
	} else {
		return false;
	}
	uint32_t off = l4_off + (uint32_t)head, payload = (uint32_t)(l4 - head);
	off = off < f.len ? off : f.len;
	out->src[0] = src0;
	out->src[1] = src1;
	out->dst[0] = dst0;
	out->dst[1] = dst1;
	out->wire_len = wire_len;
	out->l3_len = (uint32_t)l3;
	out->payload_len = payload;
	out->payload_off = off;
	out->payload_cap = payload < f.len - off ? payload : f.len - off;
	out->tunnel_id = 0;
	out->fragment_id = id;
	out->seq = seq;
	out->ack = ack;
	out->src_port = (uint16_t)src_port;
	out->dst_port = (uint16_t)dst_port;
	out->window = (uint16_t)window;
	out->vlan = (uint16_t)vlan;
	out->ip_version = (uint8_t)version;
	out->protocol = (uint8_t)protocol;
	out->tcp_flags = (uint8_t)tcp_flags;
	out->flags = (uint8_t)flags;
	out->pad = 0;
	return true;
}

} // namespace packet

// parse reads one frame and returns its verdict. A wire length below the captured one is taken
// as that. It overwrites all of out but ts_ns, segment_size and side; unless the verdict is OK
// all of that is 0 but wire_len and AGP_TRUNCATED in flags.
AGP_DEVICE uint8_t parse(uint32_t link, const view &f, uint32_t wire_len, uint32_t decap, agp_packet *out) {
	wire_len = wire_len > f.len ? wire_len : f.len;
	if (link == packet::LINK_ETHERNET && packet::quick(f, wire_len, decap, out))
		return packet::OK;
	// By way of a copy, so that a caller may keep out in registers.
	agp_packet p;
	p.ts_ns = out->ts_ns;
	p.segment_size = out->segment_size;
	p.side = out->side;
	uint8_t v = packet::slow(link, f, wire_len, decap, &p);
	*out = p;
	return v;
}

#endif
