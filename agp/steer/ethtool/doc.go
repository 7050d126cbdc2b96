// Package ethtool reads and changes the hardware settings of a network
// interface: receive side scaling (RSS), channels, rings, features, hash fields and
// classification rules (ntuple).
//
// It owns two sockets: one for the ethtool ioctl, one for ethtool's generic
// netlink family, where RSS is read and written if the running kernel lists the
// operation (ntuple rules have no netlink form). They belong to the network
// namespace of the thread that called Open. A Device is an interface of that
// namespace, addressed by its index: the ioctl wants a name, so the name is asked
// for immediately before each call and checked after it.
//
// A Conn and its Devices may be used by several goroutines. Nothing is cached.
//
// Units: queues and ring entries are counts, queue numbers start at 0. Byte
// layouts are those of linux/ethtool.h, in the byte order of the host, but for
// addresses, ports and VLAN tags of rules, which are in network order.
package ethtool
