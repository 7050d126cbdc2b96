// Package model turns an ONNX file into something a flow can be scored with.
//
// The way of a file: bytes -> graph (onnx.go, hand-decoded wire fields, every
// size checked before memory is taken) -> Plan (compile.go: shapes, constants
// folded, layers fused, one static arena) -> Executor (exec.go: plain Go, AVX2
// or AVX-512). Metadata of the file says which features it reads and what its
// outputs mean (metadata.go); plan and metadata together are a Model. A Registry
// watches model files and publishes an immutable Set of models; a Scorer runs a
// Set for one goroutine.
//
// Goroutines: Plan, Model and Set are immutable and shared freely. An Executor
// and a Scorer belong to one goroutine each. A Registry owns one goroutine that
// Close stops; its methods may be called from any goroutine.
//
// Units: features are raw counts, bytes and bins (features.go); scaling lives
// inside the graph, so that there is no second copy of it here. Scores are
// probabilities, 0 to 1. Nothing here reads a clock except the Registry, which
// waits for a file to come to rest before it reads it.
//
// Accuracy: outputs are within 1e-5 of ONNX Runtime's (of the value, where that is
// above 1); the tests compare 10,000 random inputs per operator and per
// shipped model.
//
// Results: the output for a flow depends on that flow's inputs alone, bit for
// bit, whatever else is in the batch. AVX2 and AVX-512 give the same bits;
// plain Go differs from them by rounding, because it has no fused multiply-add.
package model
