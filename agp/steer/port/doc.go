// Package port prepares a network interface for capture and puts it back as it
// was: number of queues, ring sizes, RSS, hash fields, features, classification
// rules and promiscuous mode.
//
// It owns, for each port, a lock (a file, and the name of an abstract socket for those
// with another directory: two processes can never hold one port) and a journal. Nothing
// is changed before the journal that says what was there is on the disk, so that whoever
// comes next can undo it: Restore on stop, RestoreAll after a crash, Open at the next start.
//
// # What is put back
//
// The journal holds the whole state before the first change, and for each
// property the values that we wrote or that our changes led to. A property is put
// back only if it still has one of these: whoever changed it meanwhile meant it, and it
// is left alone and reported. An indirection table that was the driver's even spread is
// given back to the driver rather than written, because a written table forbids
// later changes of the number of queues.
//
// What a driver does by itself with such a change (it spreads the table again when
// the number of queues changes, it rounds a ring, it drops rules) is undone with it, also
// if the process ended before that could be noted.
//
// Promiscuous mode needs no journal. It is a membership of a packet socket
// (PACKET_ADD_MEMBERSHIP), which the kernel counts and takes back with the socket,
// however the process ends, without touching what others set; the interface flag
// IFF_PROMISC that ip(8) sets has no owner and would stay.
//
// # Which interface a journal is of
//
// Within one boot and one network namespace the index is the interface, whatever
// its name is now. Otherwise (power cut, namespace gone, driver loaded again) it is the one
// interface with the same driver, bus address and permanent hardware address.
// Virtual interfaces have none of these: they are gone for good, and their journal with
// them, unless Watch has seen one move to another namespace: it keeps its settings there and
// is put back when it is here again, with its index, in the same boot.
// A journal that cannot be read is never guessed at: it stays, with a copy
// beside it, and its port cannot be opened until somebody has looked at it.
//
// # Goroutines and namespaces
//
// A Port may be used by several goroutines; Watch starts two, which end with its
// context. The sockets belong to the network namespace of the thread that called
// Open, RestoreAll, Watch, Addresses, DefaultGateways or Stack.
//
// Units: queues, ring entries, MTU in bytes. No clock is used.
package port
