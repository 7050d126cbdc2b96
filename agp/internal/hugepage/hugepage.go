// Package hugepage asks the kernel to back large tables with huge pages. Tables
// that packets hit at random places cost a TLB miss per access otherwise, which
// in a virtual machine is a walk through two page tables.
package hugepage

// Size is the alignment and length of what can be one huge page.
const Size = 2 << 20
