// Package netns gives tests and benchmarks networks of their own: namespaces,
// veth pairs, bridges, macvlans, senders and receivers of raw frames.
//
// A namespace has no name: it lives as long as somebody holds it, an NS, a process
// or a socket, so that nothing of it is left when a test ends, however it ends. The
// interfaces of the host are never touched. An NS may be used by several
// goroutines. Do runs a function on a thread that is in the namespace; sockets and
// processes that the function makes stay there.
//
// Interfaces come up without addresses and without IPv6, so that a namespace says
// nothing that a test has not sent; Addr gives an address.
//
// Lengths are bytes of a frame from the Ethernet header on, without FCS.
package netns
