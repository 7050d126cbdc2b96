//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* For tests: parser and hash alone, whose result is in a map, and the types that user
 * space mirrors.
 */
#include "agp.h"
#include "parse.h"

char agp_license[] SEC("license") = "Dual BSD/GPL";

struct parsed {
	struct agp_pkt pkt;
	__u32 hash;
	__u32 result; /* enum agp_parse_result */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct parsed);
} out SEC(".maps");

struct {
	struct agp_event event;
	struct agp_counters counters;
	struct agp_rule rule;
	struct agp_lpm4 lpm4;
	struct agp_lpm6 lpm6;
	struct agp_policy policy;
	struct parsed parsed;
	enum agp_hook hook;
	enum agp_event_flag event_flag;
	enum agp_count count;
	enum agp_action action;
	enum agp_list list;
	enum agp_parse_result result;
	enum agp_pkt_flag pkt_flag;
} types;

INLINE void keep(struct parsed *r, int result)
{
	__u32 zero = 0;
	struct parsed *to = bpf_map_lookup_elem(&out, &zero);

	r->result = result;
	if (result == AGP_PARSED)
		r->hash = agp_hash(&r->pkt);
	if (to)
		*to = *r;
}

SEC("tc")
int parse_skb(struct __sk_buff *skb)
{
	struct parsed r = {};

	keep(&r, agp_parse_skb(skb, &r.pkt, 0));
	return 0;
}

SEC("tc")
int parse_skb_ip(struct __sk_buff *skb)
{
	struct parsed r = {};

	keep(&r, agp_parse_skb(skb, &r.pkt, 1));
	return 0;
}

SEC("xdp")
int parse_xdp(struct xdp_md *ctx)
{
	struct parsed r = {};

	keep(&r, agp_parse_xdp(ctx, &r.pkt));
	return XDP_PASS;
}
