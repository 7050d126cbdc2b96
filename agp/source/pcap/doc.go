// Package pcap reads captures as a source.Source: pcap (both byte orders, micro-
// and nanoseconds, the variant with interface numbers) and pcapng (all sections,
// interfaces, clocks and packet blocks), plain or gzip, from regular files and
// from pipes.
//
// One goroutine owns a Reader; Interrupt and Interfaces alone may be called from
// any other. The package starts no goroutine.
//
// Regular files are mapped into memory and frames point into the mapping, which
// lasts until Close, so a frame outlives its batch only as far as the Reader does.
// Pages that were read are handed back to the page cache as reading proceeds. A
// file that shrinks while it is read is noticed before each batch, but a frame
// in use at that very moment faults like any mapped file. Other inputs are copied
// into the batch's Buf; a live pipe makes Next return 0, nil after at most 100 ms.
//
// Times are nanoseconds since the Unix epoch as the capture states them; what does
// not fit an int64 is clamped and counted. Records without a time (pcapng's simple
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
