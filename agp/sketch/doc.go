// Package sketch holds the summaries that keep the whole traffic in fixed
// memory: CountMin, Published and Blocked (per-flow histograms of all flows),
// HLL (distinct counts), Quantiles, TopK (heavy hitters) and Entropy.
//
// Every sketch allocates in its constructor and nowhere on the Add path, states
// its error bound in its comment, and has Add, Merge, Reset, an estimate and a
// stable serialisation. Merge fails with ErrMismatch when the two sketches have
// different parameters or keys: their cells would not mean the same.
//
// A sketch belongs to one goroutine at a time; nothing here locks. Sketches of
// several goroutines or hosts are merged by their owner.
//
// Values are integers without a unit except in Quantiles, whose unit is the
// caller's (ns, bytes). Nothing in this package reads a clock.
//
// Hashes are keyed (Hasher), so that whoever sends the traffic cannot choose
// values that collide. HLL is the exception by default; its comment says why.
//
// Binary form of the sketches that have no standard format: 4 bytes "AGP" and a
// kind letter, 1 byte version, 3 bytes zero, the parameters, a fingerprint of
// the key (never the key itself), the cells; integers are little endian. A
// decoder fills a sketch made by its constructor and refuses input whose
// parameters, fingerprint or length differ, so input cannot make it allocate.
package sketch
