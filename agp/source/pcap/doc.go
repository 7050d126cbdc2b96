// Package pcap reads captures as a source.Source: pcap (both byte orders, micro-
// and nanoseconds, the variant with interface numbers) and pcapng (all sections,
// interfaces, clocks and packet blocks), plain or gzip, from regular files and
// from pipes.
//
// One goroutine owns a Reader; Interrupt and Interfaces alone may be called from
// any other. The package starts no goroutine.
//
// Frames point into the buffer of the batch they were delivered in, and what a
// batch leaves unread is moved into the next one; a batch that was given to a
// Reader therefore stays with that Reader. Files are read, not mapped: that costs
// the same once packets are parsed, and a file that shrinks meanwhile is an error
// instead of a fault. A live pipe makes Next return 0, nil after at most 100 ms; a
// compressed one blocks until there is data or an Interrupt.
//
// Times are nanoseconds since the Unix epoch as the capture states them; what does
// not fit an int64 is clamped. Records without a time (pcapng's simple
// packets) get that of the frame before. The injected clock serves only to keep
// the capture's pace.
//
// Bad input: all that is readable is delivered, what is not is counted in
// Stats().Dropped, and at the very end Next returns the errors of all files
// (match with errors.Is) in place of io.EOF. After a file with an error the next
// one is read. pcap has no marks to find the next record by, so that a corrupt
// record header ends its file; in pcapng a corrupt packet block is skipped as long
// as block lengths agree. Frames of unknown link types and empty frames are
// delivered: the parser counts them.
package pcap
