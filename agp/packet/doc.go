// Package packet reads the headers of one captured frame, from the link layer to
// the transport layer, into an Info.
//
// It owns no memory and no goroutine. A Parser is read-only while it is in use and
// may be shared; Parse does not allocate and keeps no reference to the frame. A
// FragmentTable belongs to one goroutine.
//
// Units: bytes, and nanoseconds of the clock that stamped the frame. Parse does
// not look at the clock: Info.TimestampNs is the caller's and is left as it is.
//
// Every frame yields a Verdict: OK, or the one reason why it is not part of a
// flow. The reasons of frames that are not IP name what they are instead
// (non_ip_arp); all other reasons name the layer that was not readable.
//
// What is trusted: lengths in headers are believed only as far as the wire
// length of the frame allows. A header that claims more is clamped, and the frame
// is kept with FlagBadLength, because all that it carried is readable.
//
// Tunnels are opened only if Decap says so and only if the inner packet is
// readable; otherwise the outer packet is the flow. A tunnel that carries a frame
// that is not IP is counted as that frame. Outer fragments are never opened.
// IP-in-IP, 6in4, ESP and, over IPv4, AH stay outer flows.
package packet
