//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Steering and enforcement. Two families of programs with one parser, one block
 * list and one policy:
 *
 * XDP      divert (redirect to an AF_XDP socket) or mirror (snapshot, then pass)
 * tc, tcx  mirror at ingress and egress
 *
 * No program writes to a frame. In any doubt a frame goes on to the kernel.
 *
 * A frame on its way through stacked interfaces (a port, its bridge, a VLAN of that) meets
 * a tc program at each that is captured. Rules apply once: see agp_again.
 */
#include "agp.h"
#include "parse.h"

char agp_license[] SEC("license") = "Dual BSD/GPL";

/* Bytes of a frame in a snapshot, 64 to 256. */
volatile const __u32 snap_len = 256;
/* Entries of the indirection table - 1, which is a power of two - 1. */
volatile const __u32 indirection_mask = 127;
/* Sockets per receive queue. */
volatile const __u32 per_queue = 1;
/* ns from bpf_ktime_get_ns to the Unix epoch. */
volatile const __s64 realtime = 0;

/* Lists that have entries (enum agp_list): an empty one costs no lookup. */
volatile __u32 lists;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct agp_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct agp_rule);
} host4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32[4]);
	__type(value, struct agp_rule);
} host6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct agp_lpm4);
	__type(value, struct agp_rule);
} net4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct agp_lpm6);
	__type(value, struct agp_rule);
} net6 SEC(".maps");

/* The frame that was judged last on this CPU, for each direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct agp_judged);
} judged SEC(".maps");

/* The policy is the one entry of an array behind another, so that a change is seen
 * whole or not at all.
 */
struct policy_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct agp_policy));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct policy_map);
} policies SEC(".maps");

struct ring_map {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* One ring per possible CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring_map);
} rings SEC(".maps");

/* hash & indirection_mask -> socket of the queue */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 128);
	__type(key, __u32);
	__type(value, __u32);
} indirection SEC(".maps");

/* rx_queue * per_queue + socket of the queue */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* What one frame is on the wire. */
struct wire {
	__u32 frames;
	__u64 bytes;
};

INLINE void add(struct agp_counters *n, __u32 what, const struct wire *w)
{
	/* The verifier does not know what the compiler knows of the range. */
	asm volatile("" : "+r"(what));
	if (what < AGP_COUNTS) {
		n->count[what].frames += w->frames;
		n->count[what].bytes += w->bytes;
	}
}

/* over_rate takes the frames from the bucket of a rule and reports whether there were
 * too few. A coalesced frame may overdraw it, so that no size starves.
 */
INLINE int over_rate(struct agp_rule *r, __u32 frames)
{
	__u64 now = bpf_ktime_get_ns() << AGP_TIME_SHIFT;
	__u64 cost = r->interval * frames;
	int i;

	for (i = 0; i < 4; i++) {
		__u64 old = *(volatile __u64 *)&r->tat;
		__u64 from = old > now ? old : now;

		if (from - now > r->burst)
			return 1;
		if (__sync_val_compare_and_swap(&r->tat, old, from + cost) == old)
			return 0;
	}
	return 0; /* other CPUs were faster each time */
}

/* agp_again says whether a frame with a rule was judged at an interface below or above,
 * and notes it otherwise. The kernel takes a frame through stacked interfaces on one CPU
 * before it takes the next one, but tells only the last of them; so it is known by what it
 * says, and since it passes an interface once, the same at one of these is another frame.
 */
GLOBAL int agp_again(struct __sk_buff *skb, const struct agp_pkt *p, __u32 egress)
{
	__u32 side = egress ? 1 : 0, ifindex = skb->ifindex;
	struct agp_judged *j = bpf_map_lookup_elem(&judged, &side);
	__u64 id, l4[2] = {};

	if (!p || !j)
		return 0;
	/* Sequence numbers, checksum, the number of a ping. Not the padding, which may
	 * have gone meanwhile.
	 */
	if (p->l4 + 16 <= p->end)
		bpf_skb_load_bytes(skb, p->l4, l4, 16);
	else if (p->l4 + 8 <= p->end)
		bpf_skb_load_bytes(skb, p->l4, l4, 8);
	id = p->saddr[0] ^ p->saddr[1] ^ p->saddr[2] ^ p->saddr[3];
	id = id << 32 | (p->daddr[0] ^ p->daddr[1] ^ p->daddr[2] ^ p->daddr[3]);
	id = (id ^ l4[0]) * 0x9e3779b97f4a7c15ull;
	id = (id ^ id >> 32 ^ l4[1]) * 0x9e3779b97f4a7c15ull;
	id ^= id >> 32 ^ (__u64)(p->end - p->l4) << 32 ^ p->protocol;

	if (j->id == id && j->ifindex[0] != ifindex && j->ifindex[1] != ifindex &&
	    j->ifindex[2] != ifindex && !j->ifindex[3]) {
		j->ifindex[3] = j->ifindex[2];
		j->ifindex[2] = j->ifindex[1];
		j->ifindex[1] = j->ifindex[0];
		j->ifindex[0] = ifindex;
		return 1;
	}
	j->id = id;
	j->ifindex[0] = ifindex;
	j->ifindex[1] = 0;
	j->ifindex[2] = 0;
	j->ifindex[3] = 0;
	return 0;
}

/* apply returns what a rule makes of a frame: AGP_BLOCKED, AGP_RATE_LIMITED, in dry
 * run the remark that stands for it, or AGP_COUNTS for nothing.
 */
INLINE int apply(void *ctx, const int kind, const struct agp_pkt *p, struct agp_rule *r, __u32 egress, __u32 frames)
{
	if (r->action == AGP_BLOCK && !r->dry_run)
		return AGP_BLOCKED;
	/* Replies do not take from the bucket of the one whom they answer. */
	if (r->action == AGP_LIMIT && egress)
		return AGP_COUNTS;
	if (kind == AGP_SKB && agp_again(ctx, p, egress))
		return AGP_COUNTS;
	if (r->action == AGP_BLOCK)
		return AGP_WOULD_BLOCK;
	if (r->action == AGP_LIMIT && over_rate(r, frames))
		return r->dry_run ? AGP_WOULD_LIMIT : AGP_RATE_LIMITED;
	return AGP_COUNTS;
}

/* judge looks up the remote address: the source of what comes in, the destination of
 * what goes out. The most specific rule counts.
 */
INLINE int judge(void *ctx, const int kind, const struct agp_pkt *p, __u32 egress, __u32 frames)
{
	struct agp_rule *r;
	__u32 have = lists;
	__u32 addr[4];

	if (!p || !have)
		return AGP_COUNTS;
	addr[0] = egress ? p->daddr[0] : p->saddr[0];
	addr[1] = egress ? p->daddr[1] : p->saddr[1];
	addr[2] = egress ? p->daddr[2] : p->saddr[2];
	addr[3] = egress ? p->daddr[3] : p->saddr[3];
	r = 0;
	if (p->version == 4) {
		if (have & AGP_LIST_HOST4)
			r = bpf_map_lookup_elem(&host4, addr);
		if (!r && have & AGP_LIST_NET4) {
			struct agp_lpm4 key = {32, addr[0]};

			r = bpf_map_lookup_elem(&net4, &key);
		}
	} else {
		if (have & AGP_LIST_HOST6)
			r = bpf_map_lookup_elem(&host6, addr);
		if (!r && have & AGP_LIST_NET6) {
			struct agp_lpm6 key = {128, {addr[0], addr[1], addr[2], addr[3]}};

			r = bpf_map_lookup_elem(&net6, &key);
		}
	}
	return r ? apply(ctx, kind, p, r, egress, frames) : AGP_COUNTS;
}

GLOBAL int agp_judge_skb(struct __sk_buff *skb, const struct agp_pkt *p, __u32 egress, __u32 frames)
{
	return judge(skb, AGP_SKB, p, egress, frames);
}

/* Before the kernel makes a frame an skb nobody has judged it. */
GLOBAL int agp_judge_xdp(const struct agp_pkt *p)
{
	return judge(0, AGP_XDP, p, 0, 1);
}

/* Without branches, so that the loop over the classes has one path: 1 if x, below 2^31, is 0. */
INLINE __u32 is_zero(__u32 x)
{
	return (x - 1) >> 31;
}

INLINE __u32 in_ports(const struct agp_class *c, __u32 port)
{
	return ~((port - c->port_min) | (c->port_max - port)) >> 31;
}

/* agp_route returns AGP_TO_ENGINE or why a frame is not for the engine. divert says which way
 * a fragment goes of which the ports would decide: to the kernel, since nobody
 * else would deliver it, or if the kernel has it anyway, to the engine.
 */
GLOBAL int agp_route(const struct agp_pkt *p, __u32 parsed, __u32 hash, __u32 divert)
{
	struct agp_counters *n;
	__u32 zero = 0, i;
	struct agp_policy *policy;
	void *inner;

	n = bpf_map_lookup_elem(&counters, &zero);
	inner = bpf_map_lookup_elem(&policies, &zero);
	if (!p || !n || !inner)
		return AGP_OTHER_CLASS;
	policy = bpf_map_lookup_elem(inner, &zero);
	if (!policy)
		return AGP_OTHER_CLASS;

	if (!parsed) {
		if (divert || policy->ip_only)
			return AGP_NOT_IP;
	} else if (policy->classes) {
		__u32 sport = bpf_ntohs(p->sport), dport = bpf_ntohs(p->dport);
		__u32 fragment = p->flags & AGP_PKT_FRAGMENT ? 1 : 0;
		__u32 ports = p->flags & AGP_PKT_PORTS ? 1 : 0;
		__u32 engine = 0, kernel = 0;

		for (i = 0; i < AGP_CLASSES; i++) {
			const struct agp_class *c = &policy->class[i];
			__u32 to_engine = c->engine & 1, match;

			if (i >= policy->classes)
				break;
			match = ports & (in_ports(c, sport) | in_ports(c, dport));
			match = (match & ~fragment) | (fragment & (to_engine ^ divert));
			match |= is_zero(c->port_max);
			match &= is_zero(c->protocol) | is_zero(c->protocol ^ p->protocol);
			engine |= match & to_engine;
			kernel |= match & ~to_engine;
		}
		if (kernel)
			return AGP_KERNEL_CLASS;
		if (policy->engine && !engine)
			return AGP_OTHER_CLASS;
	}
	if (parsed && policy->share < 65536) {
		/* The table uses the low bits of the hash; these depend on all. */
		if ((hash * 0x9e3779b1u) >> 16 >= policy->share)
			return AGP_SHARE_OUT;
	}
	if (policy->sample_n > 1) {
		if (n->turn++ % policy->sample_n)
			return AGP_SAMPLED_OUT;
	}
	return AGP_TO_ENGINE;
}

INLINE long load(void *ctx, const int kind, void *to, __u32 len)
{
	return kind == AGP_SKB ? bpf_skb_load_bytes(ctx, 0, to, len) : bpf_xdp_load_bytes(ctx, 0, to, len);
}

/* The size of a reservation is a constant, hence one of three sizes, powers of two.
 * The mask gives every verifier the range 1 to size; the barrier keeps the
 * compiler from proving it needless.
 */
#define SNAPSHOT(size)                                                                \
	({                                                                            \
		struct {                                                              \
			struct agp_event head;                                        \
			__u8 data[size];                                              \
		} *e = bpf_ringbuf_reserve(ring, sizeof(*e), 0);                      \
		long err = 1;                                                         \
		if (e) {                                                              \
			__u64 cap = head->cap;                                        \
			asm volatile("" : "+r"(cap));                                 \
			e->head = *head;                                              \
			err = load(ctx, kind, e->data, ((cap - 1) & ((size) - 1)) + 1); \
			if (err)                                                      \
				bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);             \
			else                                                          \
				bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);              \
		}                                                                     \
		err;                                                                  \
	})

INLINE __u32 snapshot(void *ctx, const int kind, struct agp_event *head)
{
	__u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);
	__u32 cap = head->len < snap_len ? head->len : snap_len;
	long err;

	if (!ring)
		return AGP_RING_FULL;
	head->cap = cap;
	head->time_ns = bpf_ktime_get_ns();
	if (cap <= 64)
		err = SNAPSHOT(64);
	else if (cap <= 128)
		err = SNAPSHOT(128);
	else
		err = SNAPSHOT(256);
	return err ? AGP_RING_FULL : AGP_TO_ENGINE;
}

/* coalesced gives the frames on the wire of an skb that is several: each repeats the
 * headers in front of the payload.
 */
INLINE void coalesced(struct __sk_buff *skb, const struct agp_pkt *p, int parsed, __u32 size, struct wire *w)
{
	__u32 headers = p->l4, frames = 1;

	if (parsed && p->protocol == PROTO_TCP) {
		__u8 doff;

		if (bpf_skb_load_bytes(skb, p->l4 + 12, &doff, 1) == 0)
			headers += (doff >> 4) * 4;
	} else if (parsed && p->protocol == PROTO_UDP) {
		headers += 8;
	}
	if (parsed && p->end > headers)
		frames = (p->end - headers + size - 1) / size;
	else if (skb->gso_segs)
		frames = skb->gso_segs;
	if (frames > 65535)
		frames = 65535;
	w->frames = frames;
	w->bytes += (__u64)(frames - 1) * headers;
}

INLINE int tc(struct __sk_buff *skb, const int hook, const int raw)
{
	const int egress = hook == AGP_HOOK_EGRESS;
	struct agp_event head = {};
	struct agp_pkt p = {};
	struct wire w = {.frames = 1};
	struct agp_counters *n;
	__u32 zero = 0, fate, gso;
	int parsed;

	n = bpf_map_lookup_elem(&counters, &zero);
	if (!n)
		return TC_ACT_UNSPEC;
	head.len = skb->len;
	w.bytes = head.len;
	parsed = agp_parse_skb(skb, &p, raw) == AGP_PARSED;
	gso = skb->gso_size;
	if (gso && gso <= 65535) {
		coalesced(skb, &p, parsed, gso, &w);
		head.gso_size = gso;
	}
	if (skb->vlan_present) {
		w.bytes += 4 * w.frames;
		head.vlan_tci = skb->vlan_tci;
		head.vlan_proto = bpf_ntohs((__u16)skb->vlan_proto);
	}
	if (raw)
		head.flags |= AGP_EVENT_RAW;
	if (parsed) {
		head.hash = agp_hash(&p);
		if (p.flags & AGP_PKT_FRAGMENT)
			head.flags |= AGP_EVENT_FRAGMENT;
	} else {
		head.flags |= AGP_EVENT_UNPARSED;
		add(n, AGP_UNPARSED, &w);
	}
	/* The address counts, also where what follows it is not understood: nobody leaves
	 * the block list by one more extension header.
	 */
	if (p.version) {
		fate = agp_judge_skb(skb, &p, egress, w.frames);
		if (fate != AGP_COUNTS) {
			add(n, fate, &w);
			if (fate == AGP_BLOCKED || fate == AGP_RATE_LIMITED)
				return TC_ACT_SHOT;
		}
	}
	fate = agp_route(&p, parsed, head.hash, 0);
	if (fate == AGP_TO_ENGINE) {
		__u32 queue = skb->queue_mapping;

		head.ifindex = skb->ifindex;
		if (egress)
			head.from = skb->ingress_ifindex;
		head.gso_segs = w.frames;
		head.hook = hook;
		/* At ingress 0 stands for "not recorded" and n + 1 for queue n. */
		head.rx_queue = !egress && queue ? queue - 1 : queue;
		fate = snapshot(skb, AGP_SKB, &head);
	}
	add(n, fate, &w);
	add(n, AGP_PASS, &w);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int agp_ingress(struct __sk_buff *skb)
{
	return tc(skb, AGP_HOOK_INGRESS, 0);
}

SEC("tc")
int agp_egress(struct __sk_buff *skb)
{
	return tc(skb, AGP_HOOK_EGRESS, 0);
}

/* For interfaces whose frames begin with the IP header. */
SEC("tc")
int agp_ingress_ip(struct __sk_buff *skb)
{
	return tc(skb, AGP_HOOK_INGRESS, 1);
}

SEC("tc")
int agp_egress_ip(struct __sk_buff *skb)
{
	return tc(skb, AGP_HOOK_EGRESS, 1);
}

/* stamp puts the time in front of a frame, for its reader: that of the device if it has
 * one that can be true, else of now. Frames of one batch would have one time otherwise.
 * It reports whether there was room; then the packet's pointers have to be read again.
 */
INLINE int stamp(struct xdp_md *ctx, const int device)
{
	__u64 now = bpf_ktime_get_ns(), ns = 0;
	struct agp_stamp *s;
	int timed = 0;

	if (device && bpf_xdp_metadata_rx_timestamp(ctx, &ns) == 0) {
		__s64 off = (__s64)(ns - (now + (__u64)realtime));

		timed = off < AGP_STAMP_TRUE && off > -AGP_STAMP_TRUE;
	}
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*s)))
		return 0;
	s = (void *)(long)ctx->data_meta;
	if ((void *)(s + 1) > (void *)(long)ctx->data)
		return 0;
	s->time_ns = timed ? ns : now;
	s->magic = AGP_STAMP_MAGIC;
	s->clock = timed ? AGP_CLOCK_UTC : AGP_CLOCK_MONOTONIC;
	return 1;
}

INLINE int xdp(struct xdp_md *ctx, const int divert, const int device)
{
	struct agp_event head = {};
	struct agp_pkt p = {};
	struct wire w = {.frames = 1};
	struct agp_counters *n;
	__u32 zero = 0, fate;
	int parsed, action = XDP_PASS;

	n = bpf_map_lookup_elem(&counters, &zero);
	if (!n)
		return XDP_PASS;
	head.len = bpf_xdp_get_buff_len(ctx);
	w.bytes = head.len;
	parsed = agp_parse_xdp(ctx, &p) == AGP_PARSED;
	if (parsed) {
		head.hash = agp_hash(&p);
		if (p.flags & AGP_PKT_FRAGMENT)
			head.flags |= AGP_EVENT_FRAGMENT;
	} else {
		head.flags |= AGP_EVENT_UNPARSED;
		add(n, AGP_UNPARSED, &w);
	}
	/* As above. */
	if (p.version) {
		fate = agp_judge_xdp(&p);
		if (fate != AGP_COUNTS) {
			add(n, fate, &w);
			if (fate == AGP_BLOCKED || fate == AGP_RATE_LIMITED)
				return XDP_DROP;
		}
	}
	fate = agp_route(&p, parsed, head.hash, divert);
	if (fate == AGP_TO_ENGINE && divert) {
		__u32 slot = head.hash & indirection_mask;
		__u32 *entry = bpf_map_lookup_elem(&indirection, &slot);

		if (entry && *entry < per_queue) {
			int stamped = stamp(ctx, device);

			action = bpf_redirect_map(&sockets, ctx->rx_queue_index * per_queue + *entry, XDP_PASS);
			/* Frames that differ in what precedes them are not coalesced. */
			if (stamped && action != XDP_REDIRECT)
				bpf_xdp_adjust_meta(ctx, sizeof(struct agp_stamp));
		}
		if (action != XDP_REDIRECT)
			fate = AGP_REDIRECT_FAIL;
	} else if (fate == AGP_TO_ENGINE) {
		head.ifindex = ctx->ingress_ifindex;
		head.rx_queue = ctx->rx_queue_index;
		head.gso_segs = 1;
		head.hook = AGP_HOOK_XDP;
		fate = snapshot(ctx, AGP_XDP, &head);
	}
	add(n, fate, &w);
	if (action == XDP_PASS)
		add(n, AGP_PASS, &w);
	return action;
}

SEC("xdp")
int agp_divert(struct xdp_md *ctx)
{
	return xdp(ctx, 1, 0);
}

/* With times of the device. */
SEC("xdp")
int agp_divert_timed(struct xdp_md *ctx)
{
	return xdp(ctx, 1, 1);
}

SEC("xdp")
int agp_mirror(struct xdp_md *ctx)
{
	return xdp(ctx, 0, 0);
}
