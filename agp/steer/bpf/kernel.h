/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* The part of the kernel's stable user interface that the programs use, declared
 * here so that the objects do not depend on the headers of the building host.
 * Nothing in it is newer than Linux 5.18.
 */
#ifndef AGP_KERNEL_H
#define AGP_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* A function that the verifier checks once and alone, instead of along every path to it. */
#define GLOBAL __attribute__((noinline))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]

#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_XSKMAP = 17,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_RB_NO_WAKEUP = 1,
};

enum {
	XDP_DROP = 1,
	XDP_PASS = 2,
	XDP_REDIRECT = 4,
};

enum {
	TC_ACT_UNSPEC = -1, /* TCX_NEXT too: the next program or filter decides */
	TC_ACT_SHOT = 2,    /* TCX_DROP too */
};

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 off, void *to, __u32 len) = (void *)26;
static long (*const bpf_xdp_adjust_meta)(struct xdp_md *xdp, int delta) = (void *)54;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static void *(*const bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static void (*const bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)133;
static __u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *xdp) = (void *)188;
static long (*const bpf_xdp_load_bytes)(const void *xdp, __u32 off, void *to, __u32 len) = (void *)189;

/* Only programs that are bound to a device can call this (Linux 6.3). */
extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *xdp, __u64 *ns)
	__attribute__((section(".ksyms")));

#endif
