/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* What the programs and user space share. Little endian, native alignment; the Go
 * side is types.go, and a test compares both.
 */
#ifndef AGP_H
#define AGP_H

#include "kernel.h"

/* Where a snapshot was taken. */
enum agp_hook {
	AGP_HOOK_INGRESS = 0,
	AGP_HOOK_EGRESS = 1,
	AGP_HOOK_XDP = 2,
};

/* Flags of a snapshot. */
enum agp_event_flag {
	AGP_EVENT_UNPARSED = 1, /* not understood: hash is 0 */
	AGP_EVENT_RAW = 2,      /* begins with the IP header */
	AGP_EVENT_FRAGMENT = 4, /* an IP fragment: the hash is without ports */
};

/* One record of a ring: this header, then cap bytes of the frame, then unused
 * bytes up to one of three sizes (40 + 64, 128, 256).
 */
struct agp_event {
	__u64 time_ns;    /* bpf_ktime_get_ns */
	__u32 len;        /* of the frame, MAC header included, tag in metadata not */
	__u32 ifindex;
	__u32 hash;       /* symmetric Toeplitz */
	__u32 rx_queue;
	__u16 cap;        /* bytes of the frame in this record */
	__u16 gso_size;   /* payload of each frame on the wire but the last, 0: one frame */
	__u16 gso_segs;   /* frames on the wire, at least 1 */
	__u16 vlan_tci;
	__u16 vlan_proto; /* host order, 0: no tag in metadata */
	__u8 hook;
	__u8 flags;
	__u32 from; /* at egress: the interface by which a forwarded frame came in, else 0 */
};

/* Counters. A frame has exactly one of the fates (up to AGP_FATES); the rest are
 * remarks, which it may have besides.
 */
enum agp_count {
	AGP_TO_ENGINE = 0,
	AGP_KERNEL_CLASS,  /* a class that stays with the kernel */
	AGP_OTHER_CLASS,   /* no class of those that go to the engine */
	AGP_SAMPLED_OUT,
	AGP_SHARE_OUT,
	AGP_BLOCKED,
	AGP_RATE_LIMITED,
	AGP_RING_FULL,
	AGP_REDIRECT_FAIL, /* no socket at the index */
	AGP_NOT_IP,        /* not understood, therefore not for the engine */
	AGP_FATES,
	AGP_PASS = AGP_FATES, /* went on to the kernel */
	AGP_UNPARSED,
	AGP_WOULD_BLOCK,
	AGP_WOULD_LIMIT,
	AGP_COUNTS,
};

struct agp_count_value {
	__u64 frames; /* on the wire */
	__u64 bytes;  /* on the wire: MAC header and tags, without FCS */
};

struct agp_counters {
	struct agp_count_value count[AGP_COUNTS];
	__u64 turn; /* of sampling */
};

/* What precedes a diverted frame; package afxdp reads it. */
struct agp_stamp {
	__u64 time_ns;
	__u32 magic;
	__u32 clock;
};

#define AGP_STAMP_MAGIC 0x54504741 /* "AGPT" */
#define AGP_CLOCK_UTC 0
#define AGP_CLOCK_MONOTONIC 1
/* How far a device's time may be from the host's to be believed, in ns. */
#define AGP_STAMP_TRUE 1000000000LL

enum agp_action {
	AGP_BLOCK = 1,
	AGP_LIMIT = 2,
};

/* Times of a token bucket are in sixteenths of a nanosecond. */
#define AGP_TIME_SHIFT 4

/* Value of the block list. The bucket is shared by all CPUs: tat is the time at
 * which it will be full again (GCRA), advanced by compare and swap.
 */
struct agp_rule {
	__u64 tat;
	__u64 interval; /* per frame */
	__u64 burst;    /* how far tat may be ahead */
	__u8 action;
	__u8 dry_run;
	__u8 pad[6];
};

/* A frame that was judged, and the interfaces that it has passed, last one first. */
struct agp_judged {
	__u64 id;
	__u32 ifindex[4]; /* 0: none */
};

struct agp_lpm4 {
	__u32 bits;
	__u32 addr;
};

struct agp_lpm6 {
	__u32 bits;
	__u32 addr[4];
};

/* Which lists have entries. */
enum agp_list {
	AGP_LIST_HOST4 = 1,
	AGP_LIST_HOST6 = 2,
	AGP_LIST_NET4 = 4,
	AGP_LIST_NET6 = 8,
};

#define AGP_CLASSES 32

struct agp_class {
	__u8 protocol;  /* 0: any */
	__u8 engine;    /* 0: stays with the kernel */
	__u16 port_min; /* either port, host order; 0 and 0: any, or none */
	__u16 port_max;
	__u16 pad;
};

struct agp_policy {
	__u32 classes;
	__u32 engine;   /* number of classes that go to the engine, 0: everything does */
	__u32 sample_n; /* 0 and 1: each frame */
	__u32 share;    /* of 65536 */
	__u32 ip_only;
	__u32 pad;
	struct agp_class class[AGP_CLASSES];
};

#endif
