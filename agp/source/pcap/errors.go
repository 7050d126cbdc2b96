package pcap

import (
	"errors"
	"fmt"
)

// Errors that Next and Open wrap with the path and the offset.
var (
	// ErrNotCapture: the input is neither pcap nor pcapng.
	ErrNotCapture = errors.New("not a capture")
	// ErrEmpty: the input has no byte. It is an ErrNotCapture too.
	ErrEmpty = fmt.Errorf("%w: empty", ErrNotCapture)
	// ErrVersion: a capture of a major version that is not known. It is an ErrNotCapture too.
	ErrVersion = fmt.Errorf("%w of a known version", ErrNotCapture)
	// ErrTruncated: the input ends inside a record.
	ErrTruncated = errors.New("truncated capture")
	// ErrCorrupt: lengths in the input contradict each other or are absurd.
	ErrCorrupt = errors.New("corrupt capture")
)

// What peek returns besides io.EOF and errors of the input.
var (
	errWait = errors.New("no data yet")
	errFull = errors.New("batch is full")
)

// pause reports whether err only says that reading goes on with the next batch.
func pause(err error) bool { return err == errWait || err == errFull }

// reason numbers what the reader counts as not delivered or not as it was.
type reason uint8

const (
	reasonTruncated        reason = iota // a record cut by the end of the input
	reasonCorrupt                        // a record or block that contradicts itself
	reasonTooLong                        // a frame of more than maxFrame bytes
	reasonUnknownInterface               // a packet block of an interface that was not described
	numReasons
)

var reasonNames = [numReasons]string{
	reasonTruncated:        "truncated_record",
	reasonCorrupt:          "corrupt_record",
	reasonTooLong:          "frame_too_long",
	reasonUnknownInterface: "unknown_interface",
}
