// Package steer owns the kernel's half of a live capture: it loads the BPF programs
// of agp/steer/bpf, attaches them to interfaces and offers their maps as a Go API:
// rings of snapshots, sockets, policy, block list, counters.
//
// A Datapath may be used by any goroutine; a mutex orders changes. The kernel reads
// maps at any time, so every change is seen whole: a policy is exchanged behind
// one pointer, a rule is one map entry, an indirection entry one word. Nothing here
// runs per packet.
//
// # Where frames are seen, and what is matched
//
// A mirror sees what comes in and what goes out, and a block applies to both: the
// address matched is the source of what comes in and the destination of what goes
// out. XDP, hence divert, sees only what comes in. A rate limit counts what comes
// in and never takes replies from the bucket. Of several rules that match, the most
// specific one counts alone. A limit is one token bucket per rule, shared by all
// CPUs (one compare and swap per frame), with a burst of BurstNs. Where a frame passes
// several interfaces of one Datapath, a limit and a dry run count it at the first one
// alone; XDP is not part of that.
//
// # Whatever is in doubt goes on to the kernel
//
// That is a frame which the parser does not understand, a redirect without socket,
// a full ring. Programs are attached by links that nothing pins: they end with
// the process that holds the Datapath. One kind cannot: where the kernel has no tcx
// (before 6.6), a filter of clsact outlives a crash; Sweep removes it. No program that
// is not ours is replaced or detached, and kernel versions are never compared:
// features are probed.
//
// Units: bytes and frames as on the wire (a coalesced frame counts as those it is;
// MAC header and VLAN tags, no FCS), nanoseconds of the monotonic clock.
package steer
