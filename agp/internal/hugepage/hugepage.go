// Package hugepage asks the kernel to back large tables with huge pages. Tables
// that packets hit at random places cost a TLB miss per access otherwise, which
// in a virtual machine is a walk through two page tables.
//
// It keeps nothing: memory belongs to the caller, and so does the goroutine. Sizes
// are bytes. It reads no clock.
package hugepage

// Size is the alignment and length of what can be one huge page.
const Size = 2 << 20
