/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Ethernet to the ports of the transport layer, for both kinds of program. It
 * reads what agp/packet reads, except for what only rare networks have: more than
 * two tags, labels, PPPoE, LLC and tunnels. Such frames are not understood.
 */
#ifndef AGP_PARSE_H
#define AGP_PARSE_H

#include "kernel.h"

/* Kinds of context: a constant where it is used, so that one branch remains. */
#define AGP_SKB 0
#define AGP_XDP 1

#define AGP_MAX_TAGS 2
#define AGP_MAX_EXTENSIONS 8

enum agp_parse_result {
	AGP_PARSED = 0,
	AGP_SHORT,    /* the frame ends inside a header */
	AGP_ETHERTYPE,/* neither IPv4 nor IPv6 */
	AGP_BAD_IP,   /* version, header length or total length cannot be */
	AGP_DEEP,     /* too many extension headers */
};

enum agp_pkt_flag {
	AGP_PKT_FRAGMENT = 1,
	AGP_PKT_PORTS = 2, /* the protocol has ports, and they are here */
};

struct agp_pkt {
	__u32 saddr[4]; /* network order; IPv4 in the first, the others 0 */
	__u32 daddr[4];
	__u16 sport;    /* network order */
	__u16 dport;
	__u8 version;   /* 4, 6 */
	__u8 protocol;
	__u8 flags;
	__u8 pad;
	__u32 l4;       /* offset of the transport header */
	__u32 end;      /* offset of the end of the IP packet */
};

enum {
	ETH_IPV4 = 0x0800,
	ETH_IPV6 = 0x86dd,
	ETH_VLAN = 0x8100,
	ETH_QINQ = 0x88a8,
	ETH_QINQ1 = 0x9100,
	ETH_QINQ2 = 0x9200,
	ETH_QINQ3 = 0x9300,
};

enum {
	PROTO_HOPOPTS = 0,
	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_AH = 51,
	PROTO_NONE = 59,
	PROTO_DSTOPTS = 60,
	PROTO_SCTP = 132,
};

struct agp_ip4 {
	__u8 ver_ihl;
	__u8 tos;
	__u16 len;
	__u16 id;
	__u16 frag;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 saddr;
	__u32 daddr;
};

struct agp_ip6 {
	__u32 ver;
	__u16 len;
	__u8 next;
	__u8 hops;
	__u32 saddr[4];
	__u32 daddr[4];
};

struct agp_ext {
	__u8 next;
	__u8 len;
	__u16 frag; /* of a fragment header */
	__u32 id;
};

struct agp_ports {
	__u16 source;
	__u16 dest;
};

struct agp_tag {
	__u16 tci;
	__u16 type;
};

/* READ copies an object of constant size at an offset: directly where the bytes
 * are linear, which is nearly always, otherwise through the helper.
 */
#define READ(ctx, kind, off, obj)                                                     \
	({                                                                            \
		void *start = (void *)(long)((kind) == AGP_SKB ?                      \
			((struct __sk_buff *)(ctx))->data : ((struct xdp_md *)(ctx))->data);  \
		void *end = (void *)(long)((kind) == AGP_SKB ?                        \
			((struct __sk_buff *)(ctx))->data_end : ((struct xdp_md *)(ctx))->data_end); \
		typeof(obj) *at = start + (off);                                      \
		long err = 0;                                                         \
		if ((void *)(at + 1) <= end)                                          \
			(obj) = *at;                                                  \
		else if ((kind) == AGP_SKB)                                           \
			err = bpf_skb_load_bytes(ctx, off, &(obj), sizeof(obj));      \
		else                                                                  \
			err = bpf_xdp_load_bytes(ctx, off, &(obj), sizeof(obj));      \
		err;                                                                  \
	})

INLINE int agp_transport(void *ctx, const int kind, __u32 off, __u32 end, struct agp_pkt *p)
{
	struct agp_ports port;
	__u32 need;

	p->l4 = off;
	p->end = end;
	switch (p->protocol) {
	case PROTO_TCP:
		/* A first fragment may split the header and still names its flow. */
		need = p->flags & AGP_PKT_FRAGMENT ? 4 : 20;
		break;
	case PROTO_UDP:
		need = 8;
		break;
	case PROTO_SCTP:
		need = 12;
		break;
	default:
		return AGP_PARSED;
	}
	if (off + need > end)
		return AGP_SHORT;
	if (READ(ctx, kind, off, port))
		return AGP_SHORT;
	p->sport = port.source;
	p->dport = port.dest;
	p->flags |= AGP_PKT_PORTS;
	return AGP_PARSED;
}

INLINE int agp_ipv4(void *ctx, const int kind, __u32 off, __u32 len, struct agp_pkt *p)
{
	struct agp_ip4 ip;
	__u32 header, total;

	if (READ(ctx, kind, off, ip))
		return AGP_SHORT;
	if (ip.ver_ihl >> 4 != 4)
		return AGP_BAD_IP;
	header = (ip.ver_ihl & 15) * 4;
	if (header < sizeof(ip))
		return AGP_BAD_IP;
	total = bpf_ntohs(ip.len);
	if (total && total < header)
		return AGP_BAD_IP;
	if (!total || total > len - off) /* left to the card, or more than there is */
		total = len - off;
	if (total < header)
		return AGP_BAD_IP;
	p->version = 4;
	p->saddr[0] = ip.saddr;
	p->daddr[0] = ip.daddr;
	p->protocol = ip.protocol;
	if (ip.frag & bpf_htons(0x3fff)) {
		p->flags |= AGP_PKT_FRAGMENT;
		if (ip.frag & bpf_htons(0x1fff)) {
			p->l4 = off + header;
			p->end = off + total;
			return AGP_PARSED;
		}
	}
	return agp_transport(ctx, kind, off + header, off + total, p);
}

INLINE int agp_ipv6(void *ctx, const int kind, __u32 off, __u32 len, struct agp_pkt *p)
{
	struct agp_ip6 ip;
	struct agp_ext ext;
	__u32 end, step;
	__u8 next;
	int i;

	if (READ(ctx, kind, off, ip))
		return AGP_SHORT;
	if ((*(__u8 *)&ip.ver) >> 4 != 6)
		return AGP_BAD_IP;
	next = ip.next;
	end = off + sizeof(ip) + bpf_ntohs(ip.len);
	if ((!ip.len && next != PROTO_NONE) || end > len) /* jumbo, left to the card, or more than there is */
		end = len;
	p->version = 6;
	p->saddr[0] = ip.saddr[0];
	p->saddr[1] = ip.saddr[1];
	p->saddr[2] = ip.saddr[2];
	p->saddr[3] = ip.saddr[3];
	p->daddr[0] = ip.daddr[0];
	p->daddr[1] = ip.daddr[1];
	p->daddr[2] = ip.daddr[2];
	p->daddr[3] = ip.daddr[3];
	off += sizeof(ip);
	/* Unrolled: older verifiers refuse some shapes of loop (Linux 6.1 does). */
#pragma unroll
	for (i = 0; i <= AGP_MAX_EXTENSIONS; i++) {
		switch (next) {
		case PROTO_HOPOPTS:
		case PROTO_ROUTING:
		case PROTO_DSTOPTS:
		case PROTO_AH:
		case PROTO_FRAGMENT:
			break;
		default:
			p->protocol = next;
			return agp_transport(ctx, kind, off, end, p);
		}
		if (i == AGP_MAX_EXTENSIONS)
			break;
		if (READ(ctx, kind, off, ext))
			return AGP_SHORT;
		step = 8;
		if (next == PROTO_AH)
			step = (ext.len + 2) * 4;
		else if (next != PROTO_FRAGMENT)
			step = (ext.len + 1) * 8;
		if (off + step > end)
			return AGP_SHORT;
		off += step;
		/* Neither an offset nor more to come: a whole packet (RFC 6946). */
		if (next == PROTO_FRAGMENT && (ext.frag & bpf_htons(0xfff9))) {
			p->flags |= AGP_PKT_FRAGMENT;
			if (ext.frag & bpf_htons(0xfff8)) {
				p->protocol = ext.next;
				p->l4 = off;
				p->end = end;
				return AGP_PARSED;
			}
		}
		next = ext.next;
	}
	return AGP_DEEP;
}

/* agp_parse reads a frame of len bytes. raw says that it begins with the IP header.
 * *p must be zero.
 */
INLINE int agp_parse(void *ctx, const int kind, int raw, __u32 len, struct agp_pkt *p)
{
	__u32 off = 0;
	__u16 type;
	int i;

	if (raw) {
		__u8 first;

		if (READ(ctx, kind, 0, first))
			return AGP_SHORT;
		type = first >> 4 == 4 ? ETH_IPV4 : first >> 4 == 6 ? ETH_IPV6 : 0;
		if (!type)
			return AGP_BAD_IP;
	} else {
		if (READ(ctx, kind, 12, type))
			return AGP_SHORT;
		type = bpf_ntohs(type);
		off = 14;
#pragma unroll
		for (i = 0; i < AGP_MAX_TAGS; i++) {
			struct agp_tag tag;

			if (type != ETH_VLAN && type != ETH_QINQ && type != ETH_QINQ1 &&
			    type != ETH_QINQ2 && type != ETH_QINQ3)
				break;
			if (READ(ctx, kind, off, tag))
				return AGP_SHORT;
			type = bpf_ntohs(tag.type);
			off += 4;
		}
	}
	if (type == ETH_IPV4)
		return agp_ipv4(ctx, kind, off, len, p);
	if (type == ETH_IPV6)
		return agp_ipv6(ctx, kind, off, len, p);
	return AGP_ETHERTYPE;
}

GLOBAL int agp_parse_skb(struct __sk_buff *skb, struct agp_pkt *p, __u32 raw)
{
	return p ? agp_parse(skb, AGP_SKB, raw, skb->len, p) : AGP_SHORT;
}

GLOBAL int agp_parse_xdp(struct xdp_md *xdp, struct agp_pkt *p)
{
	return p ? agp_parse(xdp, AGP_XDP, 0, bpf_xdp_get_buff_len(xdp), p) : AGP_SHORT;
}

INLINE __u32 agp_rotl(__u32 x, const int by)
{
	return x << by | x >> (32 - by);
}

/* agp_hash is the Toeplitz hash with the key 6d5a, repeated. The key has a period of
 * 16 bits, so the hash is a function of the exclusive or of all 16-bit words, and
 * both directions of a flow have the same. Every fragment is hashed without
 * ports, because only the first one has them: a datagram stays together.
 *
 * For each bit of the input that is 1, the textbook adds the key rotated to that bit.
 * The sum is the same if for each bit of the key that is 1 the reversed input
 * is added, rotated: nine terms, no branch, no state for the verifier to follow.
 */
INLINE __u32 agp_hash(const struct agp_pkt *p)
{
	__u32 x = p->saddr[0] ^ p->saddr[1] ^ p->saddr[2] ^ p->saddr[3] ^
		  p->daddr[0] ^ p->daddr[1] ^ p->daddr[2] ^ p->daddr[3];

	x = (x ^ x >> 16) & 0xffff;
	if (!(p->flags & AGP_PKT_FRAGMENT))
		x ^= p->sport ^ p->dport;
	/* The bytes are in network order: with the bits of each byte reversed, the word is. */
	x = (x & 0x5555) << 1 | (x >> 1 & 0x5555);
	x = (x & 0x3333) << 2 | (x >> 2 & 0x3333);
	x = (x & 0x0f0f) << 4 | (x >> 4 & 0x0f0f);
	x |= x << 16;
	return agp_rotl(x, 1) ^ agp_rotl(x, 3) ^ agp_rotl(x, 4) ^ agp_rotl(x, 6) ^ agp_rotl(x, 8) ^
	       agp_rotl(x, 10) ^ agp_rotl(x, 11) ^ agp_rotl(x, 13) ^ agp_rotl(x, 14);
}

#endif
