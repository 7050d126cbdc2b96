package model

// Limits of what is accepted. They are far above any model that scores flows at
// line rate and keep the memory that a hostile file can claim below about
// 200 MB. All are checked before the memory is taken.
const (
	maxFileBytes = 16 << 20
	maxNodes     = 4096
	maxTensors   = 4096    // initializers
	maxEdges     = 1 << 16 // inputs and outputs of all nodes
	maxRank      = 8
	maxDim       = 1 << 24
	maxElements  = 4 << 20 // of one constant, and of all constants of a file
	maxRows      = 1 << 16 // floats per flow in one activation
	maxArenaRows = 1 << 18 // floats per flow in all live activations
	maxMACs      = 1 << 26 // multiply-accumulates per flow
	maxAttrs     = 256     // attributes of one node
	maxAttrItems = 1 << 16 // items of one list attribute
	maxMetaProps = 256
	maxMetaBytes = 1 << 20
)
